/** Reads what stands within a block of Markdown: emphasis, code, links, formulas. */

import { element, fill } from './dom.js';

/** Deeper nesting stays text. */
export const DEEPEST = 12;
/** Longer formulas stay text. */
export const LONGEST_FORMULA = 4000;
/** A long answer is completed in steps of so many milliseconds. */
export const STEP = 5;
const LONGEST_ADDRESS = 2048;
const LOOK_BACK = 16;

const PIECE = /\\[!-/:-@[-`{-~]|\$\$?|`+|\*+|_+|~~|!?\[|\]|<(?:https?:\/\/|mailto:)[^\s<>]+>|<\/?[a-z]{1,6} ?\/?>|&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z]{2,8}\d?);|https?:\/\/|\\?\n| +\n?|[^\\`*_~![\]<&hH $\n]+|[\s\S]/giy;
/** The tags that models write within Markdown. Other tags, and all with attributes, stay text. */
const TAG = /^<(\/?)(br|sub|sup|kbd|b|strong|i|em|u|s|del|ins|mark|small|code)( ?\/?)>$/i;
/** The entities that models write: each name and its character. */
const ENTITIES = new Map(Array.from(`lt < gt > amp & quot " apos ' mdash — ndash – hellip … lsquo ‘ rsquo ’ ldquo “ rdquo ” laquo « raquo » bull •
  middot · times × divide ÷ minus − plusmn ± deg ° le ≤ ge ≥ ne ≠ asymp ≈ infin ∞ radic √ sum ∑ larr ← rarr → uarr ↑ darr ↓ harr ↔ rArr ⇒ check ✓
  euro € pound £ yen ¥ cent ¢ copy © reg ® trade ™ sect § frac12 ½ frac14 ¼ sup2 ² sup3 ³ alpha α beta β gamma γ delta δ Delta Δ lambda λ mu μ
  micro µ pi π sigma σ phi φ omega ω Omega Ω`.matchAll(/(\w+) (\S)/g), ([, name, sign]) => [name, sign]).concat([['nbsp', '\u00a0']]));
/** A picture within the answer itself: nothing is fetched. SVG is none, as it can hold a page. */
const PICTURE = /data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z\d+/]+={0,2}/y;

/**
 * The nodes of a run of text. One pass from left to right: `out` holds what is done, and an end mark wraps what follows its start mark.
 * A mark without a partner stays text. Nothing is searched twice, so an answer of start marks alone does not hang the page. Marks of the
 * footnotes in `notes.names` are added to `notes.marks`.
 */
export function inline(text, notes) {
  const run = { text, notes, out: [], brackets: [], ends: {}, marks: { '*': [], '_': [], '~': [] }, ticks: runsOfTicks(text) };
  for (let at = 0; at < text.length;) {
    PIECE.lastIndex = at;
    const [piece] = PIECE.exec(text);
    at = take(run, piece, at) ?? at + piece.length;
  }
  return joined(run.out);
}

/** The nodes of these parts; neighbouring texts become one, because many text nodes are slow to lay out. */
function joined(parts) {
  const nodes = [];
  for (const { node, text } of parts) {
    if (node) nodes.push(node);
    else if (typeof nodes.at(-1) === 'string') nodes[nodes.length - 1] += text;
    else nodes.push(text);
  }
  return nodes;
}

/** Takes one piece in; returns the place to go on from where that is not the piece's end. */
function take(run, piece, at) {
  const { out, brackets } = run;
  const first = piece[0];
  if (first === '`') return code(run, piece, at);
  if (first === '$' || piece === '\\(' || piece === '\\[') return inlineMath(run, piece, at);
  if (piece === '[' && run.text[at + 1] === '^') return noteMark(run, at);
  if (first === '*' || first === '_' || piece === '~~') return emphasis(run, piece, at);
  if (piece === '[' || piece === '![') return void brackets.push(out.push(words(piece)) - 1);
  if (piece === ']') return closeBracket(run, at);
  if (/^<?(?:https?:\/\/|mailto:.)/i.test(piece)) return autolink(run, piece, at);
  if (first === '<' && piece.length > 2) return tag(run, piece);
  if (first === '&' && piece.length > 2) return void out.push(words(character(piece)));
  if (piece === '\\\n' || /^ {2,}\n$/.test(piece)) return void out.push({ node: element('br'), depth: 1 });
  return void out.push(words(first === '\\' && piece.length === 2 ? piece[1] : piece));
}

const words = (text) => ({ text, depth: 0 });

/** An end tag wraps what follows the nearest start tag of its name. A tag without a partner stays text. */
function tag(run, piece) {
  const [, ends, written] = TAG.exec(piece) ?? [];
  const name = written?.toLowerCase();
  if (name === 'br') return void run.out.push({ node: element('br'), depth: 1 });
  const places = name && (run.marks[name] ??= []);
  if (name && !ends) return void places.push(run.out.push(words(piece)) - 1);
  const from = places?.pop();
  if (from === undefined || !wrap(run, from + 1, element(name))) return void run.out.push(words(piece));
  run.out.splice(from, 1);
}

/** The character that an entity such as `&nbsp;` or `&#160;` stands for; an unknown one stays text. */
function character(entity) {
  if (entity[1] !== '#') return ENTITIES.get(entity.slice(1, -1)) ?? entity;
  const code = Number.parseInt(entity.replace(/^&#x/i, '0x').replace(/^&#/, ''));
  return code && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff) ? String.fromCodePoint(code) : '\ufffd';
}

const ENDS = { '$': '$', '$$': '$$', '\\(': '\\)', '\\[': '\\]' };

/** A formula in a line. A single `$` that a space follows, or that ends before a digit, is money. */
function inlineMath(run, piece, at) {
  const { text, out, ends } = run;
  const from = at + piece.length, end = ENDS[piece];
  // The next end mark stays the same for every start mark before it, so it is searched once.
  if (!(ends[end] >= from)) {
    const found = text.indexOf(end, from);
    ends[end] = found < 0 ? Infinity : found;
  }
  const stop = ends[end];
  const source = stop - from > LONGEST_FORMULA ? '' : text.slice(from, stop);
  const isMoney = piece === '$' && (/^\s|[\s\\]$/.test(source) || /\d/.test(text[stop + 1] ?? ''));
  if (isMoney || !source.trim()) return void out.push(words(piece.replace('\\', '')));
  out.push({ node: math(source, piece === '$$' || piece === '\\['), depth: 1 });
  return stop + end.length;
}

function noteMark({ text, notes, out, brackets }, at) {
  const match = /^\[\^([^\]\s]{1,40})\]/.exec(text.slice(at, at + 44));
  if (!match || !notes.names.has(match[1])) return void brackets.push(out.push(words('[')) - 1);
  const mark = element('sup', { class: 'note' });
  notes.marks.push({ name: match[1], mark });
  out.push({ node: mark, depth: 1 });
  return at + match[0].length;
}

/** Where runs of backticks of each length stand, so that a missing partner costs no second search. */
function runsOfTicks(text) {
  const runs = {};
  for (const { 0: run, index } of text.matchAll(/`+/g)) (runs[run] ??= []).push(index);
  return runs;
}

function code({ text, out, ticks }, marks, at) {
  const places = ticks[marks] ?? [];
  while (places[0] <= at) places.shift();
  if (!places.length) return void out.push(words(marks));
  const [end] = places;
  let inner = text.slice(at + marks.length, end).replaceAll('\n', ' ');
  if (inner.startsWith(' ') && inner.endsWith(' ') && inner.trim()) inner = inner.slice(1, -1);
  out.push({ node: element('code', { text: inner }), depth: 1 });
  return end + marks.length;
}

function emphasis(run, piece, at) {
  const { text, out } = run;
  const mark = piece[0], places = run.marks[mark];
  const [opens, closes] = sides(mark, text[at - 1] ?? ' ', text[at + piece.length] ?? ' ');
  let left = piece.length;
  while (closes && left > 0) {
    const from = partner(places, out, left, opens);
    if (from < 0) break;
    const start = out[from];
    const used = Math.min(2, left, start.left);
    const tag = mark === '~' ? 's' : used === 2 ? 'strong' : 'em';
    if (!wrap(run, from + 1, element(tag))) break;
    start.left -= used;
    start.text = mark.repeat(start.left);
    if (!start.left) places.pop();
    left -= used;
  }
  if (!left) return;
  const place = out.push({ text: mark.repeat(left), depth: 0, left, both: opens && closes }) - 1;
  if (opens) places.push(place);
}

/** Whether a mark between these two characters may start, and may end, emphasis. */
function sides(mark, before, after) {
  const [blankBefore, blankAfter] = [/\s/.test(before), /\s/.test(after)];
  const [pointBefore, pointAfter] = [/[\p{P}\p{S}]/u.test(before), /[\p{P}\p{S}]/u.test(after)];
  const opens = !blankAfter && (!pointAfter || blankBefore || pointBefore);
  const closes = !blankBefore && (!pointBefore || blankAfter || pointAfter);
  // snake_case is a name, not emphasis.
  return mark === '_' ? [opens && (!closes || pointBefore), closes && (!opens || pointAfter)] : [opens, closes];
}

/** The nearest start mark that may pair with an end mark of this length (CommonMark's rule of three). */
function partner(places, out, left, both) {
  for (let back = places.length - 1; back >= Math.max(0, places.length - LOOK_BACK); back -= 1) {
    const start = out[places[back]];
    const odd = (both || start.both) && (start.left + left) % 3 === 0 && (start.left % 3 || left % 3);
    if (!odd) {
      places.length = back + 1;
      return places[back];
    }
  }
  return -1;
}

/** Puts everything from `from` on into `node`; refuses to nest deeper than the cap. */
function wrap({ out, brackets, marks }, from, node) {
  const depth = out.slice(from).reduce((most, part) => Math.max(most, part.depth), 0) + 1;
  const all = [brackets, ...Object.values(marks)];
  if (depth > DEEPEST) {
    // Every wrap that starts before this one would be too deep as well.
    for (const places of all) places.splice(0, places.findLastIndex((place) => place < from) + 1);
    return false;
  }
  fill(node, joined(out.splice(from)));
  out.push({ node, depth });
  for (const places of all) {
    while (places.length && places.at(-1) >= from) places.pop();
  }
  return true;
}

function closeBracket(run, at) {
  const { text, out, brackets } = run;
  const from = brackets.pop();
  const shown = from !== undefined && out[from].text === '![' && picture(text, at + 2, out.slice(from + 1));
  if (shown) {
    out.splice(from, Infinity, { node: shown.node, depth: 1 });
    for (const places of Object.values(run.marks)) while (places.at(-1) >= from) places.pop();
    return shown.next;
  }
  const target = from !== undefined && text[at + 1] === '(' ? destination(text, at + 2) : null;
  const link = target && anchor(target.address);
  if (!link) return void out.push(words(']'));
  // An image becomes a link to it: nothing in an answer may make this page fetch. Inside a link it is its text.
  const holder = out[from].text === '![' && brackets.length ? element('span') : link;
  if (out.length === from + 1) out.push(words(target.address));
  if (!wrap(run, from + 1, holder)) return void out.push(words(']'));
  out.splice(from, 1);
  // No link stands in a link, so what was open around this one cannot become one.
  if (holder === link) brackets.length = 0;
  return target.next;
}

/** `data:image/png;base64,…)` from here, as a picture that is named by these parts; null if it is not that. */
export function picture(text, from, parts) {
  PICTURE.lastIndex = from;
  const [address] = PICTURE.exec(text) ?? [];
  if (!address || text[from + address.length] !== ')') return null;
  const alt = parts.map(({ node, text: part }) => node?.textContent ?? part).join('');
  return { node: element('img', { src: address, alt, decoding: 'async' }), next: from + address.length + 1 };
}

/** `address "title")` from here, with balanced parentheses; null when it is not that. */
function destination(text, from) {
  const rest = text.slice(from, from + LONGEST_ADDRESS);
  const match = /^ *(?! )(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*))(?: +(?:"[^"]*"|'[^']*'))? *\)/.exec(rest);
  return match && { address: match[1] ?? match[2], next: from + match[0].length };
}

/** An address without angle brackets ends before a parenthesis that has no partner in it. */
const ADDRESS = /(?:[^\s<>()]+|\([^\s<>()]*\))*/y;
/** What stands in brackets is the text of a link already, up to their end. */
const BRACKETED = /[^\s<>\]]*/y;

function autolink({ text, out, brackets }, piece, at) {
  let whole = piece, address = piece.slice(1, -1);
  if (piece[0] !== '<') {
    const reads = brackets.length ? BRACKETED : ADDRESS;
    reads.lastIndex = at;
    [whole] = reads.exec(text);
    let length = whole.length;
    while (`?!.,:;*_~'"]`.includes(whole[length - 1])) length -= 1;
    address = whole.slice(0, length);
  }
  const link = address.length <= LONGEST_ADDRESS && !brackets.length ? anchor(address) : null;
  if (!link) {
    out.push(words(whole));
    return at + whole.length;
  }
  link.append(address);
  out.push({ node: link, depth: 1 });
  return at + (piece[0] === '<' ? whole : address).length;
}

const SCHEMES = ['http:', 'https:', 'mailto:'];

/** A link that leaves this page and tells nobody where from; null for anything but web and mail. */
function anchor(address) {
  // Browsers drop tabs, newlines and other controls inside an address, which is how schemes are hidden.
  if (/[\u0000-\u0020\u007f-\u009f]/.test(address) || !URL.canParse(address)) return null;
  const { protocol, href } = new URL(address);
  if (!SCHEMES.includes(protocol)) return null;
  return element('a', { href, target: '_blank', rel: 'noopener noreferrer nofollow' });
}

/** Formulas that are shown as source so far. */
const waiting = new Set();

/** A formula: its source at first, then MathML as soon as math.js is there and knows all of it. */
export function math(source, isBlock) {
  const box = element(isBlock ? 'div' : 'span', { class: isBlock ? 'math display' : 'math', dir: 'ltr', text: source.trim() });
  if (waiting.add({ box, source, isBlock }).size === 1) void typeset();
  return box;
}

/** Typesets all formulas that wait, in steps. */
async function typeset() {
  try {
    const { formula } = await import('./math.js');
    let end = performance.now() + STEP;
    for (const one of waiting) {
      if (performance.now() > end) {
        await new Promise((done) => { setTimeout(done); });
        end = performance.now() + STEP;
      }
      waiting.delete(one);
      const made = formula(one.source, one.isBlock);
      if (made) one.box.replaceChildren(made);
    }
  } catch {
    waiting.clear();
  }
}
