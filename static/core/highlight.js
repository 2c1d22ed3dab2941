/** Colours code by ranges over its text (CSS Custom Highlight API): no element is added. */

/** Longer code stays plain: colouring must never be felt. */
const LONGEST = 50_000;
/** So does code with a longer line, because browsers measure the line before each range. */
const LONGEST_LINE = 500;

const WORDS = {
  c: 'as async await auto bool boolean break byte case catch char class const constexpr continue default defer delete do double dyn else enum export extends extern final finally float fn for foreach from func function get goto if impl implements import in instanceof int interface internal let long loop map match mod move mut namespace new null nullptr object of operator override package private protected pub public readonly ref return sealed self set short signed sizeof static string struct super switch template this throw throws trait true false try type typedef typename typeof undefined union unsafe unsigned use using val var virtual void volatile when where while with yield None Some Ok Err',
  python: 'and as assert async await break class continue def del elif else except False finally for from global if import in is lambda match case None nonlocal not or pass raise return self True try while with yield',
  ruby: 'alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo rescue retry return self super then true undef unless until when while yield require',
  shell: 'if then elif else fi for while until do done case esac in function return exit local export readonly set unset shift trap source echo cd sudo',
  sql: 'add all alter and as asc between by case check column constraint create cross default delete desc distinct drop else end exists foreign from full group having in index inner insert into is join key left like limit not null offset on or order outer primary references right select set table then union unique update using values view when where with',
  data: 'true false null yes no on off',
  css: 'important media supports import layer container keyframes font-face root hover focus active not is where has',
};

const STRING = /"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?/;
const NUMBER = /\b(?:0[xob][\da-f_]+|\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?)[a-z%]{0,4}\b/;
/** Comments and strings of each family of languages, read in linear time: an escaped quote begins no string. */
const KINDS = {
  c: kind(/\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)/, [/`(?:[^`\\]|\\[\s\S])*`?/, /"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'/], WORDS.c),
  python: kind(/#[^\n]*/, [/"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)/, STRING], WORDS.python),
  ruby: kind(/#[^\n]*/, [STRING], WORDS.ruby),
  shell: kind(/(?<![$\w{])#[^\n]*/, [/"(?:[^"\\]|\\[\s\S])*"?|'[^']*'?/], WORDS.shell),
  sql: kind(/--[^\n]*|\/\*[\s\S]*?(?:\*\/|$)/, [STRING], WORDS.sql, 'i'),
  data: kind(/(?<!\S)#[^\n]*|\/\/[^\n]*/, [STRING], WORDS.data),
  css: kind(/\/\*[\s\S]*?(?:\*\/|$)/, [STRING], WORDS.css),
  diff: /(?<comment>^(?:@@|diff |index |--- |\+\+\+ ).*)|(?<inserted>^\+.*)|(?<deleted>^-.*)/gm,
  markup: new RegExp(`(?<comment><!--[\\s\\S]*?(?:-->|$))|(?<keyword></?[a-zA-Z][\\w:-]*|/?>)|(?<string>"[^"<>]*"|'[^'<>]*')`, 'g'),
};

const LANGUAGES = {
  c: 'c h cpp c++ cc cs csharp dart go java javascript js jsx kotlin kt mjs php rust rs scala swift ts tsx typescript zig',
  python: 'python py', ruby: 'ruby rb elixir', shell: 'bash sh shell zsh console dockerfile make makefile',
  sql: 'sql postgresql mysql sqlite', data: 'json json5 jsonc yaml yml toml ini conf properties', css: 'css scss less',
  markup: 'html xml svg vue svelte xhtml', diff: 'diff patch',
};
const KIND_OF = new Map(Object.entries(LANGUAGES).flatMap(([name, all]) => all.split(' ').map((language) => [language, KINDS[name]])));

function kind(comment, strings, words, flags = '') {
  const parts = [`(?<comment>${comment.source})`, `(?<string>${strings.map(({ source }) => source).join('|')})`,
    `(?<number>${NUMBER.source})`, `(?<keyword>\\b(?:${words.replaceAll(' ', '|')})\\b)`, '[A-Za-z_$][\\w$]*', "\\\\'"];
  return new RegExp(parts.join('|'), `g${flags}`);
}

/** The tokens of `text`, in order: `[{kind, start, end}]`; empty for an unknown language. */
export function tokens(text, language) {
  const reads = KIND_OF.get(language.toLowerCase());
  if (!reads || text.length > LONGEST) return [];
  const found = [];
  for (const { groups, index, 0: piece } of text.matchAll(reads)) {
    const name = Object.keys(groups).find((one) => groups[one] !== undefined);
    if (name) found.push({ kind: name, start: index, end: index + piece.length });
  }
  return found;
}

/** Where each kind is on the page now; the style sheet gives it its colour (`::highlight(code-string)`). */
const painted = new Map();

/** Colours the first text of `code`, an element. Where the browser cannot, it stays plain. */
export function highlight(code, language) {
  const text = code.firstChild?.data;
  if (!globalThis.CSS?.highlights || !text || text.split('\n').some((line) => line.length > LONGEST_LINE)) return;
  for (const { kind: name, start, end } of tokens(text, language)) {
    const range = new StaticRange({ startContainer: code.firstChild, startOffset: start, endContainer: code.firstChild, endOffset: end });
    const paint = painted.get(name) ?? new Highlight();
    if (!painted.has(name)) CSS.highlights.set(`code-${name}`, paint);
    painted.set(name, paint.add(range));
  }
  forgetWhatIsGone();
}

let tidied = 0;

/** Ranges of what is no longer shown would be kept for ever. */
function forgetWhatIsGone() {
  if (Date.now() - tidied < 10_000) return;
  tidied = Date.now();
  for (const paint of painted.values()) {
    for (const range of paint) if (!range.startContainer.isConnected) paint.delete(range);
  }
}
