/** Turns Markdown into DOM nodes. Never markup strings: what a model wrote cannot become code here. */

import { button, copyButton, element, fill } from './dom.js';
import { t } from './format.js';
import { DEEPEST, LONGEST_FORMULA, STEP, inline as inlineNodes, math, picture } from './inline.js';

const LONGEST = 200 * 1024;
const WIDEST = 64;
/** Longer lists, tables and paragraphs are split, to be laid out one at a time. In lines. */
const PIECE = 100;
/** So are tables of more cells. */
const CELLS = 2000;
/** So are paragraphs of more characters. Longer headings and rows are paragraphs. */
const LONGEST_PIECE = 8000;
/** What an answer shows at once, in lines; the rest follows in steps. */
const AT_ONCE = 40;
/** So many elements count as a line. */
const LINE = 25;
/** What follows more elements in one list, quote or footnote is plain text. */
const MOST = 4000;
/** Longer cells of a table keep some width. In characters. */
const ROOMY = 24;
/** Longer code is folded at first. In lines. */
const LONG_CODE = 40;

/**
 * The text that is being rendered: the names of its footnotes, what each says, where it is referred to; about how many elements are
 * made, and were when the block began.
 */
let current = null;

/** An answer: each block in its own direction, and no heading level skipped. A long one is completed in steps, so that the page never stalls. */
export function prose(text) {
  const made = element('div', { class: 'prose' });
  const steps = rendering(text, made);
  for (let read = 0; read < AT_ONCE;) {
    const { done, value } = steps.next();
    if (done) return made;
    read = value;
  }
  const goOn = () => {
    const end = performance.now() + STEP;
    while (made.isConnected && !steps.next().done) if (performance.now() > end) return void setTimeout(goOn);
  };
  setTimeout(goOn);
  return made;
}

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

/** Sets each block's direction, and the levels of headings after one of level `above`; returns the last level. */
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
const CALLOUT = /^\[!(note|tip|important|warning|caution)\] *$/i;
const IMAGE = /^ {0,3}!\[([^\]\n]{0,400})\]\((?=data:)/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +(.*)|)$/s;
const TASK = /^\[([ xX])\] +/;
const NOTE = /^ {0,3}\[\^([^\]\s]{1,40})\]: *(.*)$/s;
const MATH = /^ {0,3}(?:\$\$|\\\[|\\begin\{(align|equation|gather|multline)\*?\})/;
const DIVIDER = /^\|?(?: *:?-+:? *\|)* *:?-+:?(?: *\|)?$/;

/**
 * Each reader yields `[nodes, next line]` of each piece of the block at the line `at`, or nothing if the block is not of its kind.
 * Where it may pause, it yields null.
 */
const READERS = [fence, mathBlock, image, heading, rule, quote, footnote, list, table, paragraph];

const isFull = () => current.made - current.begun > MOST;
const isPlain = (depth) => depth >= DEEPEST || isFull();

function* pieces(lines, depth) {
  for (let at = 0; at < lines.length;) {
    let next = at;
    const readers = !lines[at].trim() ? [] : isPlain(depth) ? [paragraph] : READERS;
    for (const reader of readers) {
      for (const piece of reader(lines, at, depth)) {
        next = piece?.[1] ?? next;
        yield piece;
      }
      if (next > at) break;
    }
    at = Math.max(next, at + 1);
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

function* paragraph(lines, at, depth) {
  let next = at, more = true;
  const piece = (text, goesOn, isCut) => [[element('p', { class: pieceClass(goesOn, isCut) }, inline(text))], next];
  const isMore = () => next < lines.length && lines[next].trim() && (isPlain(depth) || !interrupts(lines, next));
  for (let from = at; more; from = next) {
    let length = 0, goesOn = from > at;
    do {
      length += lines[next].length;
      next += 1;
      more = isMore();
    } while (more && next - from < PIECE && length < LONGEST_PIECE);
    let text = lines.slice(from, next).map((line) => line.trimStart()).join('\n');
    while (text.length > 2 * LONGEST_PIECE) {
      const end = text.lastIndexOf(' ', LONGEST_PIECE) + 1 || LONGEST_PIECE;
      yield piece(text.slice(0, end), goesOn, true);
      text = text.slice(end);
      goesOn = true;
    }
    yield piece(text, goesOn, more);
  }
}

/** No gap shows between the pieces of a block. */
const pieceClass = (goesOn, more) => [goesOn && 'goes-on', more && 'cut'].filter(Boolean).join(' ') || null;

function interrupts(lines, at) {
  const line = lines[at];
  return FENCE.test(line) || MATH.test(line) || NOTE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || isTable(lines, at)
    || /^ {0,3}(?:[-*+]|1[.)]) +\S/.test(line);
}

function* fence(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return;
  const [, marks, language] = open;
  const indent = /^ */.exec(lines[at])[0].length;
  const closes = new RegExp(`^ {0,3}${marks[0]}{${marks.length},} *$`);
  let next = at + 1;
  while (next < lines.length && !closes.test(lines[next])) next += 1;
  const code = lines.slice(at + 1, next).map((line) => line.slice(Math.min(indent, /^ */.exec(line)[0].length))).join('\n');
  // Without its end mark, which a cut-off answer lacks, a fence runs to the end.
  yield [[codeBlock(code, language.trim().split(' ', 1)[0])], next + 1];
}

function codeBlock(text, language) {
  current.made += 10;
  const lines = text.split('\n');
  const isLong = lines.length > LONG_CODE;
  const shown = element('code', { text: isLong ? lines.slice(0, LONG_CODE).join('\n') : text });
  // Colours are loaded with the first code; without them, it is plain.
  const colour = () => language && void import('./highlight.js').then(({ highlight }) => highlight(shown, language)).catch(() => null);
  colour();
  const pre = element('pre', { tabindex: '0', role: 'group', 'aria-label': t('prose.code'), dir: 'ltr' }, shown);
  const wrap = button(t('prose.wrap'), () => { wrap.ariaPressed = pre.classList.toggle('wrapped'); }, 'link small');
  wrap.ariaPressed = 'false';
  const isWide = /[^\n]{60}/.test(text);
  const made = element('div', { class: 'code' },
    element('div', { class: 'code-head' }, element('span', { text: language || t('prose.codeKind') }), isWide ? wrap : null, copyButton(() => text)), pre);
  if (isLong) {
    made.classList.add('long');
    shown.append(element('span', { class: 'rest', text: `\n${lines.slice(LONG_CODE).join('\n')}` }));
    const all = button(t('prose.showLines', lines.length), () => {
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

/** For each text and end mark: up to which line it ends no formula. */
const endless = new WeakMap();

/** `$$ … $$` or `\\[ … \\]` on lines of their own; without its end mark it is text. */
function* mathBlock(lines, at) {
  const open = MATH.exec(lines[at]);
  if (!open) return;
  const isBare = Boolean(open[1]);
  const mark = open[0].trim();
  const end = isBare ? mark.replace('begin', 'end') : mark === '$$' ? '$$' : '\\]';
  const known = endless.get(lines) ?? new Map();
  if (at < known.get(end)) return;
  let next = at, length = lines[at].length, stop = lines[at].indexOf(end, open[0].length);
  while (stop < 0 && length <= LONGEST_FORMULA && lines[next + 1]?.trim()) {
    next += 1;
    length += lines[next].length;
    stop = lines[next].indexOf(end);
  }
  if (stop >= 0 && !lines[next].slice(stop + end.length).trim()) {
    const inner = [...lines.slice(at, next), lines[next].slice(0, stop)].join('\n').slice(open[0].length);
    if (inner.trim()) return yield [[math(isBare ? `${mark}${inner}${end}` : inner, true)], next + 1];
  }
  endless.set(lines, known.set(end, next));
}

/** `[^name]: text`, with indented lines after it. */
function* footnote(lines, at, depth) {
  const match = NOTE.exec(lines[at]);
  if (!match) return;
  const [, name, text] = match;
  let next = at + 1;
  while (next < lines.length && /^ {2,}\S/.test(lines[next])) next += 1;
  const inner = [text, ...lines.slice(at + 1, next).map((line) => line.trimStart())];
  if (!current.said.has(name)) current.said.set(name, yield* blocks(inner, depth + 1));
  yield [[], next];
}

/**
 * Numbers the marks of footnotes; yields the list of footnotes as `[nodes, parent]`, and null where it may pause. A mark without a
 * footnote stays text.
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
      item.append(' ', element('button', { type: 'button', class: 'link back', 'aria-label': t('prose.back'), text: '↩', click: () => mark.querySelector('button').focus() }));
      items.set(name, { item, number: items.size + 1 });
    }
    const { item, number } = items.get(name);
    mark.append(element('button', { type: 'button', class: 'link', 'aria-label': t('prose.footnote', number), text: number, click: () => item.focus() }));
  }
  if (!items.size) return;
  const all = element('ol');
  yield [[element('section', { class: 'footnotes', 'aria-label': t('prose.footnotes') }, all)]];
  for (const { item } of items.values()) yield [[item], all];
}

function* heading(lines, at) {
  const match = HEADING.exec(lines[at]);
  if (!match || lines[at].length > LONGEST_PIECE) return;
  // The page has an h1 and the view an h2.
  const level = Math.min(6, match[1].length + 2);
  const title = (match[2] ?? '').trim().replace(/(^| )#{1,6}$/, '');
  yield [[element(`h${level}`, {}, inline(title))], at + 1];
}

function* rule(lines, at) {
  if (RULE.test(lines[at])) yield [[element('hr')], at + 1];
}

/** A line that is a picture within the answer, however long. */
function* image(lines, at) {
  const [start, name] = IMAGE.exec(lines[at]) ?? [];
  const made = start && picture(lines[at], start.length, [{ text: name }]);
  if (made && !lines[at].slice(made.next).trim()) yield [[element('p', {}, made.node)], at + 1];
}

function* quote(lines, at, depth) {
  if (!QUOTE.test(lines[at])) return;
  let next = at;
  while (next < lines.length && (QUOTE.test(lines[next]) || (lines[next].trim() && !interrupts(lines, next)))) next += 1;
  const inner = lines.slice(at, next).map((line) => line.replace(QUOTE, ''));
  const kind = CALLOUT.exec(inner[0])?.[1].toLowerCase();
  if (kind) inner.shift();
  const title = kind && element('p', { class: 'callout-title', text: t(`callout.${kind}`) });
  yield [[element('blockquote', { class: kind && `callout is-${kind}` }, title, yield* blocks(inner, depth + 1))], next];
}

function* list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (!first || first[1].length > 3) return;
  const kind = kindOf(first[2]);
  let next = at, start = first;
  for (let done = 0; start; done += PIECE) {
    const items = [];
    let loose = false;
    while (start && items.length < PIECE) {
      const [inner, after] = itemLines(lines, next, start);
      if (inner.some((line, place) => !line.trim() && place < inner.length - 1)) loose = true;
      items.push(inner);
      const gap = skipBlank(lines, after);
      start = gap < lines.length && ITEM.exec(lines[gap]);
      next = start ? gap : after;
      const isSame = start && kindOf(start[2]) === kind;
      if (gap > after && isSame) loose = true;
      if (!isSame || start[1].length > first[1].length + 1 || RULE.test(lines[next])) start = null;
    }
    if (isFull()) start = null;
    const number = Number.parseInt(first[2], 10) + done;
    const made = element(Number.isNaN(number) ? 'ul' : 'ol', { start: number > 1 && number, class: pieceClass(done > 0, start) });
    for (const inner of items) made.append(yield* item(inner, depth, loose));
    yield [[made], next];
  }
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
  const box = element('input', { type: 'checkbox', disabled: true, checked: done, 'aria-label': done ? t('prose.done') : t('prose.toDo') });
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

function* table(lines, at) {
  if (!isTable(lines, at)) return;
  const aligned = cells(lines[at + 1]).map((mark) =>
    (mark.endsWith(':') ? (mark.startsWith(':') ? 'center' : 'right') : null));
  // A row of thousands of columns takes a browser seconds to lay out.
  const isWide = aligned.length > WIDEST;
  const most = isWide ? PIECE : Math.min(PIECE, CELLS / aligned.length);
  let next = at + 2, more = true;
  for (let from = isWide ? at : next; more; from = next) {
    while ((more = isRow(lines, next)) && next - from < most) next += 1;
    const rows = lines.slice(from, next);
    yield [[isWide ? element('pre', { class: pieceClass(from > at, more), text: rows.join('\n') }) : tablePiece(lines[at], rows, aligned)], next];
  }
}

const isRow = (lines, at) => at < lines.length && lines[at].length <= LONGEST_PIECE && lines[at].trim() && !interrupts(lines, at);

const tablePiece = (titles, rows, aligned) => element('div', { class: 'table', tabindex: '0', role: 'group', 'aria-label': t('prose.table') }, element('table', {},
  element('thead', {}, row(titles, 'th', aligned)), element('tbody', {}, rows.map((line) => row(line, 'td', aligned)))));

/** One cell stands for all that are missing, or short rows under many columns would be most of the page. */
function row(line, tag, aligned) {
  const texts = cells(line).slice(0, aligned.length);
  const missing = aligned.length - texts.length;
  return element('tr', {}, texts.map((text, place) => element(tag, { class: cellClass(aligned[place], text), scope: tag === 'th' && 'col' }, inline(text))),
    missing ? element(tag, { class: aligned[texts.length], colspan: missing > 1 && missing }) : null);
}

/** A column of sentences keeps a readable width; one of short words does not need it. */
const cellClass = (aligned, text) => [aligned, text.length > ROOMY && 'roomy'].filter(Boolean).join(' ') || null;

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
