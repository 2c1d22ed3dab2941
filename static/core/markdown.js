/** Turns Markdown into DOM nodes. Never markup strings: what a model wrote cannot become code here. */

import { button, copyButton, element, fill } from './dom.js';
import { DEEPEST, LONGEST_FORMULA, STEP, inline as inlineNodes, math } from './inline.js';

const TEXT = {
  code: 'Code',
  codeKind: 'code',
  wrap: 'Wrap lines',
  showLines: (count) => `Show all ${count} lines`,
  table: 'Table',
  done: 'done',
  toDo: 'to do',
  footnotes: 'Footnotes',
  footnote: (number) => `Footnote ${number}`,
  back: 'Back to the text',
};

const LONGEST = 200 * 1024;
const WIDEST = 64;
/** So many cells are laid out at a time. */
const CELLS = 2000;
/** Longer lists, tables and paragraphs are split, to be laid out one at a time. In lines. */
const PIECE = 100;
/** So are paragraphs of more characters. Longer headings and rows are paragraphs. */
const LONGEST_PIECE = 8000;
/** What an answer shows at once, in lines; the rest follows in steps. */
const AT_ONCE = 40;
/** So many elements count as a line. */
const LINE = 25;
/** What follows more elements in one list, quote or footnote is plain text. */
const MOST = 4000;
/** Longer code is folded at first. In lines. */
const LONG_CODE = 40;

/**
 * The text that is being rendered: names that footnotes may have, what each says, where it is referred to; about how many elements
 * are made, in all and when the block began.
 */
let current = null;

/** The steps that remain of answers that are not complete yet. */
const unfinished = new WeakMap();

/**
 * An answer: its text rendered, each block in its own direction, and no heading level skipped for screen readers. A long one is
 * completed in steps, so that the page never stalls.
 */
export function prose(text) {
  const made = element('div', { class: 'prose' });
  const steps = rendering(text, made);
  for (let read = 0; read < AT_ONCE;) {
    const { done, value } = steps.next();
    if (done) return made;
    read = value;
  }
  made.classList.add('long');
  unfinished.set(made, steps);
  const goOn = () => {
    const end = performance.now() + STEP;
    while (unfinished.has(made) && made.isConnected) {
      if (performance.now() > end) return void setTimeout(goOn);
      if (steps.next().done) unfinished.delete(made);
    }
  };
  setTimeout(goOn);
  return made;
}

export function complete(made) {
  const steps = unfinished.get(made);
  unfinished.delete(made);
  while (steps && !steps.next().done);
}

/** A fragment with the rendered text, made at once. */
export function render(text) {
  const fragment = document.createDocumentFragment();
  const steps = rendering(text, fragment, false);
  while (!steps.next().done);
  return fragment;
}

/** Appends the rendered text piece by piece; yields about how many lines are done. Past 200 KB the rest is shown as it is. */
function* rendering(text, made, dressed = true) {
  const lines = text.slice(0, LONGEST).replace(/\r\n?/g, '\n').replace(/\t/g, '    ').split('\n');
  const names = new Set(Array.from(text.matchAll(/\[\^([^\]\s]{1,40})\]:/g), ([, name]) => name));
  const own = { names, said: new Map(), marks: [], made: 0, begun: 0 };
  let into = made, begun = 0, above = 2, done = 0;
  const add = (nodes, parent = null) => {
    if (!parent && done > AT_ONCE && done - begun > PIECE / 2) {
      begun = done;
      into = element('div', { class: 'part' });
      made.append(into);
    }
    const piece = fill(document.createDocumentFragment(), nodes);
    piece.normalize();
    if (dressed) above = dress(piece, above);
    (parent ?? into).append(piece);
  };
  current = own;
  for (const piece of pieces(lines, 0)) {
    if (piece) {
      done = Math.max(done, piece[1]);
      add(piece[0]);
      own.begun = own.made;
    }
    done = Math.max(done, own.made / LINE);
    yield done;
    current = own;
  }
  into = made;
  begun = done;
  for (const piece of footnotes(own)) {
    if (piece) add(...piece);
    yield done;
  }
  if (own.marks.length) made.normalize();
  const rest = text.length > LONGEST ? text.slice(LONGEST).split('\n') : [];
  for (let at = 0; at < rest.length; at += PIECE) {
    const more = at + PIECE < rest.length;
    done = Math.max(done, lines.length) + PIECE;
    add([element('pre', { class: pieceClass(at > 0, more), text: rest.slice(at, at + PIECE).join('\n') })]);
    yield done;
  }
}

/** Gives each block its own direction, and headings their levels after one of level `above`; returns the last level. */
function dress(piece, above) {
  for (const block of piece.querySelectorAll('ul, ol, blockquote, table')) block.dir = 'auto';
  for (const heading of piece.querySelectorAll('h3, h4, h5, h6')) {
    const level = Math.min(Number(heading.tagName[1]), above + 1);
    if (level !== Number(heading.tagName[1])) heading.setAttribute('aria-level', level);
    above = level;
  }
  return above;
}

// Each of these reads a line in linear time: no two neighbouring parts can match the same characters.
const FENCE = /^ {0,3}(`{3,64}|~{3,64})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?: (.*)|)$/s;
const RULE = /^ {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +(.*)|)$/s;
const TASK = /^\[([ xX])\] +/;
const NOTE = /^ {0,3}\[\^([^\]\s]{1,40})\]: *(.*)$/s;
const MATH = /^ {0,3}(?:\$\$|\\\[|\\begin\{(align|equation|gather|multline)\*?\})/;
const DIVIDER = /^\|?(?: *:?-+:? *\|)* *:?-+:?(?: *\|)?$/;

/**
 * Each reader looks at the line `at` and returns `[nodes, next line]`, or null when it is not its kind. One that stopped after a
 * piece adds a function that reads on. The nodes of a block that holds others are a generator, which pauses within.
 */
const READERS = [fence, mathBlock, heading, rule, quote, footnote, list, table];

const isFull = () => current.made - current.begun > MOST;
const isPlain = (depth) => depth >= DEEPEST || isFull();

/** Yields `[nodes, next line]` of each piece, and null where it may pause. */
function* pieces(lines, depth) {
  let readOn = null;
  for (let at = 0; at < lines.length || readOn;) {
    if (!readOn && !lines[at].trim()) {
      at += 1;
      continue;
    }
    const read = readOn ? readOn(at) : isPlain(depth) ? null : firstOf(lines, at, depth);
    const [nodes, next, more = null] = read ?? paragraph(lines, at, depth);
    yield [Array.isArray(nodes) ? nodes : yield* nodes, next];
    at = next;
    readOn = more;
  }
}

function* blocks(lines, depth) {
  const nodes = [];
  for (const piece of pieces(lines, depth)) {
    if (piece) nodes.push(...piece[0]);
    current.made += 2;
    yield null;
  }
  return nodes;
}

function firstOf(lines, at, depth) {
  for (const reader of READERS) {
    const read = reader(lines, at, depth);
    if (read) return read;
  }
  return null;
}

function paragraph(lines, at, depth, goesOn = false) {
  let next = at + 1, length = lines[at].length;
  const isMore = () => next < lines.length && lines[next].trim() && (isPlain(depth) || !interrupts(lines, next));
  for (; next - at < PIECE && length < LONGEST_PIECE && isMore(); next += 1) length += lines[next].length;
  const more = isMore() ? (from) => paragraph(lines, from, depth, true) : null;
  return paragraphPiece(lines.slice(at, next).map((line) => line.trimStart()).join('\n'), next, more, goesOn);
}

/** Splits a text without enough line ends at a space. */
function paragraphPiece(text, next, more, goesOn) {
  if (text.length > 2 * LONGEST_PIECE) {
    const end = text.lastIndexOf(' ', LONGEST_PIECE) + 1 || LONGEST_PIECE;
    const rest = text.slice(end), after = more;
    more = () => paragraphPiece(rest, next, after, true);
    text = text.slice(0, end);
  }
  return [[element('p', { class: pieceClass(goesOn, more) }, inline(text))], next, more];
}

/** No gap shows between the pieces of a block. */
const pieceClass = (goesOn, more) => [goesOn && 'goes-on', more && 'cut'].filter(Boolean).join(' ') || null;

function interrupts(lines, at) {
  const line = lines[at];
  return FENCE.test(line) || MATH.test(line) || NOTE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || isTable(lines, at)
    || /^ {0,3}(?:[-*+]|1[.)]) +\S/.test(line);
}

function fence(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return null;
  const [, marks, language] = open;
  const indent = /^ */.exec(lines[at])[0].length;
  const closes = new RegExp(`^ {0,3}${marks[0]}{${marks.length},} *$`);
  let next = at + 1;
  while (next < lines.length && !closes.test(lines[next])) next += 1;
  const code = lines.slice(at + 1, next).map((line) => line.slice(Math.min(indent, /^ */.exec(line)[0].length))).join('\n');
  // Without its end mark, which a cut-off answer lacks, a fence runs to the end.
  return [[codeBlock(code, language.trim().split(' ', 1)[0])], next + 1];
}

function codeBlock(text, language) {
  current.made += 10;
  const lines = text.split('\n');
  const isLong = lines.length > LONG_CODE;
  const shown = element('code', { text: isLong ? lines.slice(0, LONG_CODE).join('\n') : text });
  // Colours are loaded with the first code; without them, it is plain.
  const colour = () => language && void import('./highlight.js').then(({ highlight }) => highlight(shown, language)).catch(() => null);
  colour();
  const pre = element('pre', { tabindex: '0', role: 'group', 'aria-label': TEXT.code, dir: 'ltr' }, shown);
  const wrap = button(TEXT.wrap, () => { wrap.ariaPressed = pre.classList.toggle('wrapped'); }, 'link small');
  wrap.ariaPressed = 'false';
  const isWide = /[^\n]{60}/.test(text);
  const made = element('div', { class: 'code' },
    element('div', { class: 'code-head' }, element('span', { text: language || TEXT.codeKind }), isWide ? wrap : null, copyButton(() => text)), pre);
  if (isLong) {
    made.classList.add('long');
    shown.append(element('span', { class: 'rest', text: `\n${lines.slice(LONG_CODE).join('\n')}` }));
    const all = button(TEXT.showLines(lines.length), () => {
      made.classList.remove('long');
      shown.textContent = text;
      colour();
      all.remove();
      pre.focus();
    }, 'link small');
    made.append(all);
  }
  return made;
}

/** The lines up to which an end mark is known to end no formula, for each text. */
const endless = new WeakMap();

/** `$$ … $$` or `\\[ … \\]` on lines of their own; without its end mark it is text. */
function mathBlock(lines, at) {
  const open = MATH.exec(lines[at]);
  if (!open) return null;
  const isBare = Boolean(open[1]);
  const mark = open[0].trim();
  const end = isBare ? mark.replace('begin', 'end') : mark === '$$' ? '$$' : '\\]';
  const known = endless.get(lines) ?? new Map();
  if (at < known.get(end)) return null;
  let next = at, length = lines[at].length, stop = lines[at].indexOf(end, open[0].length);
  while (stop < 0 && length <= LONGEST_FORMULA && lines[next + 1]?.trim()) {
    next += 1;
    length += lines[next].length;
    stop = lines[next].indexOf(end);
  }
  if (stop >= 0 && !lines[next].slice(stop + end.length).trim()) {
    const inner = [...lines.slice(at, next), lines[next].slice(0, stop)].join('\n').slice(open[0].length);
    if (inner.trim()) return [[math(isBare ? `${mark}${inner}${end}` : inner, true)], next + 1];
  }
  endless.set(lines, known.set(end, next));
  return null;
}

/** `[^name]: text`, with indented lines after it. */
function footnote(lines, at, depth) {
  const match = NOTE.exec(lines[at]);
  if (!match) return null;
  let next = at + 1;
  while (next < lines.length && /^ {2,}\S/.test(lines[next])) next += 1;
  const inner = [match[2], ...lines.slice(at + 1, next).map((line) => line.trimStart())];
  return [noted(match[1], inner, depth), next];
}

function* noted(name, inner, depth) {
  if (!current.said.has(name)) current.said.set(name, yield* blocks(inner, depth + 1));
  return [];
}

/**
 * Numbers the marks of footnotes, and yields the list of footnotes as `[nodes, where they belong]`, and null where it may pause. A mark
 * without a footnote stays text.
 */
function* footnotes({ said, marks }) {
  const items = new Map();
  for (const [place, { name, mark }] of marks.entries()) {
    if (place % PIECE === 0) yield null;
    const nodes = said.get(name);
    if (!nodes) {
      mark.replaceWith(`[^${name}]`);
      continue;
    }
    if (!items.has(name)) {
      const item = element('li', { tabindex: '-1' }, nodes);
      item.append(' ', element('button', { type: 'button', class: 'link back', 'aria-label': TEXT.back, text: '↩', click: () => mark.querySelector('button').focus() }));
      items.set(name, { item, number: items.size + 1 });
    }
    const { item, number } = items.get(name);
    mark.append(element('button', { type: 'button', class: 'link', 'aria-label': TEXT.footnote(number), text: number, click: () => item.focus() }));
  }
  if (!items.size) return;
  const all = element('ol');
  yield [[element('section', { class: 'footnotes', 'aria-label': TEXT.footnotes }, all)]];
  for (const { item } of items.values()) yield [[item], all];
}

function heading(lines, at) {
  const match = HEADING.exec(lines[at]);
  if (!match || lines[at].length > LONGEST_PIECE) return null;
  // The page has an h1 and the view an h2.
  const level = Math.min(6, match[1].length + 2);
  const title = (match[2] ?? '').trim().replace(/(^| )#{1,6}$/, '');
  return [[element(`h${level}`, {}, inline(title))], at + 1];
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? [[element('hr')], at + 1] : null;
}

function quote(lines, at, depth) {
  if (!QUOTE.test(lines[at])) return null;
  let next = at;
  while (next < lines.length && (QUOTE.test(lines[next]) || (lines[next].trim() && !interrupts(lines, next)))) next += 1;
  const inner = lines.slice(at, next).map((line) => line.replace(QUOTE, ''));
  return [quoted(inner, depth), next];
}

function* quoted(inner, depth) {
  return [element('blockquote', {}, yield* blocks(inner, depth + 1))];
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  return !first || first[1].length > 3 ? null : listPiece(lines, at, depth, first, 0);
}

function listPiece(lines, at, depth, first, done) {
  const kind = kindOf(first[2]);
  const items = [];
  let next = at, loose = false, more = null;
  while (next < lines.length) {
    const start = ITEM.exec(lines[next]);
    if (!start || start[1].length > first[1].length + 1 || kindOf(start[2]) !== kind || RULE.test(lines[next])) break;
    if (items.length === PIECE) {
      if (!isFull()) more = (from) => listPiece(lines, from, depth, first, done + PIECE);
      break;
    }
    const [inner, after] = itemLines(lines, next, start);
    if (inner.some((line, place) => !line.trim() && place < inner.length - 1)) loose = true;
    items.push(inner);
    const gap = skipBlank(lines, after);
    const goesOn = gap < lines.length && ITEM.exec(lines[gap]);
    if (gap > after && goesOn && kindOf(goesOn[2]) === kind) loose = true;
    next = goesOn ? gap : after;
  }
  const number = Number.parseInt(first[2], 10) + done;
  const made = element(Number.isNaN(number) ? 'ul' : 'ol', { start: number > 1 && number, class: pieceClass(done > 0, more) });
  return [listed(made, items, depth, loose), next, more];
}

function* listed(made, items, depth, loose) {
  for (const inner of items) made.append(yield* item(inner, depth, loose));
  return [made];
}

/** The lines of one item without their indent, and the line after it. */
function itemLines(lines, at, start) {
  const width = start[1].length + start[2].length + 1;
  const inner = [start[3] ?? ''];
  let next = at + 1;
  for (; next < lines.length; next += 1) {
    const line = lines[next];
    const indent = /^ */.exec(line)[0].length;
    if (!line.trim()) {
      const after = skipBlank(lines, next);
      // Models often indent by two where the mark is three wide.
      if (after >= lines.length || /^ */.exec(lines[after])[0].length < start[1].length + 2) break;
      for (; next < after; next += 1) inner.push('');
      next -= 1;
    } else if (indent >= start[1].length + 2) {
      inner.push(line.slice(Math.min(indent, width)));
    } else if (inner.at(-1).trim() && !ITEM.test(line) && !interrupts(lines, next)) {
      inner.push(line.trimStart());
    } else {
      break;
    }
  }
  return [inner, next];
}

function* item(inner, depth, loose) {
  const task = TASK.exec(inner[0]);
  if (task) inner[0] = inner[0].slice(task[0].length);
  const nodes = (yield* blocks(inner, depth + 1))
    .flatMap((node) => (!loose && node.tagName === 'P' ? [...node.childNodes] : [node]));
  if (!task) return element('li', {}, nodes);
  const done = task[1] !== ' ';
  const box = element('input', { type: 'checkbox', disabled: true, checked: done, 'aria-label': done ? TEXT.done : TEXT.toDo });
  return element('li', { class: 'task' }, box, ' ', nodes);
}

const kindOf = (mark) => (/\d/.test(mark) ? mark.at(-1) : mark);

function skipBlank(lines, at) {
  while (at < lines.length && !lines[at].trim()) at += 1;
  return at;
}

function isTable(lines, at) {
  return lines[at].length <= LONGEST_PIECE && lines[at].includes('|') && at + 1 < lines.length && lines[at + 1].includes('-') && DIVIDER.test(lines[at + 1].trim())
    && cells(lines[at]).length === cells(lines[at + 1]).length;
}

function table(lines, at) {
  if (!isTable(lines, at)) return null;
  const aligned = cells(lines[at + 1]).map((mark) =>
    (mark.endsWith(':') ? (mark.startsWith(':') ? 'center' : 'right') : null));
  // A row of thousands of columns takes a browser seconds to lay out.
  return aligned.length > WIDEST ? widePiece(lines, at, at + 2) : tablePiece(lines, at + 2, lines[at], aligned);
}

function widePiece(lines, at, from, goesOn = false) {
  let next = from;
  while (next - at < PIECE && isRow(lines, next)) next += 1;
  const more = isRow(lines, next) ? (after) => widePiece(lines, after, after, true) : null;
  return [[element('pre', { class: pieceClass(goesOn, more), text: lines.slice(at, next).join('\n') })], next, more];
}

const isRow = (lines, at) => at < lines.length && lines[at].length <= LONGEST_PIECE && lines[at].trim() && !interrupts(lines, at);

function tablePiece(lines, at, titles, aligned) {
  let next = at;
  while (next - at < PIECE && (next - at) * aligned.length < CELLS && isRow(lines, next)) next += 1;
  const head = element('thead', {}, row(titles, 'th', aligned));
  const body = element('tbody', {}, lines.slice(at, next).map((line) => row(line, 'td', aligned)));
  const made = element('div', { class: 'table', tabindex: '0', role: 'group', 'aria-label': TEXT.table }, element('table', {}, head, body));
  return [[made], next, isRow(lines, next) ? (from) => tablePiece(lines, from, titles, aligned) : null];
}

/** One cell stands for all that are missing, or short rows under many columns would be most of the page. */
function row(line, tag, aligned) {
  const texts = cells(line).slice(0, aligned.length);
  const missing = aligned.length - texts.length;
  return element('tr', {}, texts.map((text, place) => element(tag, { class: aligned[place], scope: tag === 'th' && 'col' }, inline(text))),
    missing ? element(tag, { class: aligned[texts.length], colspan: missing > 1 && missing }) : null);
}

function cells(line) {
  const found = [''];
  for (const [piece] of line.trim().replace(/^\|/, '').matchAll(/\\\||`[^`]*`|[^|\\`]+|[\s\S]/g)) {
    if (piece === '|') found.push('');
    else found[found.length - 1] += piece === '\\|' ? '|' : piece;
  }
  if (found.length > 1 && !found.at(-1).trim()) found.pop();
  return found.map((cell) => cell.trim());
}

function inline(text) {
  current.made += text.length / 50;
  if (isFull()) return [text];
  const nodes = inlineNodes(text, current);
  for (const node of nodes) current.made += node.nodeType ? 1 + node.getElementsByTagName('*').length : 1;
  return nodes;
}
