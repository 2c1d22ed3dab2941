/** The list of conversations, with search, export and import; and text files in messages. */

import { announce, button, byId, element, notice, saveFile } from '../core/dom.js';
import { price } from '../core/format.js';
import { conversations } from '../core/store.js';
import { TEXT } from './chat.js';

const DAY = 24 * 60 * 60 * 1000;
/** Older ones are found by search only. */
const MOST = 300;
/** How many rows are made at a time. */
const STEP = 8;

let chat = null, all = [], renaming = null, searching = null;
let makeRest = () => {};

/** `chat`: `{current(), open(conversation), fresh(), change(conversation, edit), closeDrawer()}`; called again, it changes nothing. */
export function start(view) {
  if (chat) return;
  chat = view;
  for (const id of ['search-field', 'export-all']) byId(id).hidden = false;
  byId('conversations').addEventListener('keydown', followKeys);
  byId('search').addEventListener('input', () => {
    clearTimeout(searching);
    searching = setTimeout(() => {
      draw();
      announce(TEXT.found(found().length, all.length));
    }, 150);
  });
  byId('export-all').addEventListener('click', async () => saveJson(await sorted(), TEXT.fileNames.all));
  byId('export-json').addEventListener('click', () => saveJson([chat.current()], chat.current().title));
  byId('import-file').addEventListener('change', async () => {
    const [file] = byId('import-file').files;
    if (file) await importFile(file);
    byId('import-file').value = '';
    await showList();
  });
  byId('export-markdown').addEventListener('click', () => {
    const conversation = chat.current();
    save(asMarkdown(conversation), conversation.title, 'md');
  });
  byId('share').hidden = !navigator.share;
  byId('share').addEventListener('click', () => void share(chat.current()));
}

export async function showList() {
  all = await sorted();
  draw();
}

/** Pinned ones first, then the newest. */
const sorted = async () => (await conversations.all()).sort((one, other) => Boolean(other.pinned) - Boolean(one.pinned) || other.at - one.at);

/** The ones that match the search, by title or content. */
function found() {
  const wanted = byId('search').value.trim().toLowerCase();
  if (!wanted) return all;
  const has = (text) => text?.toLowerCase().includes(wanted);
  return all.filter(({ title, turns }) => has(title) || turns.some((turn) => has(turn.question) || has(turn.answer)));
}

function draw() {
  // Another tab's change does not interrupt the typing of a name.
  if (renaming && byId('conversations').contains(document.activeElement)) return;
  const listed = found();
  const rows = listed.slice(0, MOST);
  const list = byId('conversations');
  const { activeElement: focused } = document;
  const held = list.contains(focused) && focused.closest('li');
  const place = held ? [...held.querySelectorAll('button')].indexOf(focused) : -1;
  const first = document.createDocumentFragment();
  let made = 0, group = { age: null, list: null };
  const make = (parent, count) => {
    if (made > rows.length) return;
    for (const conversation of rows.slice(made, made + count)) {
      const age = conversation.pinned ? TEXT.pinned : ageOf(conversation.at);
      if (age !== group.age) {
        group = { age, list: element('ul') };
        parent.append(element('h3', { text: age }), group.list);
      }
      group.list.append(row(conversation));
    }
    made += count;
    if (made < rows.length) return;
    made = Infinity;
    if (!listed.length) parent.append(element('p', { class: 'hint', text: all.length ? TEXT.noMatches : TEXT.noneYet }));
    if (listed.length > MOST) parent.append(element('p', { class: 'hint', text: TEXT.older(listed.length - MOST) }));
  };
  make(first, STEP + (held ? rows.findIndex(({ id }) => id === held.dataset.id) : 0));
  list.replaceChildren(first);
  const rest = () => make(list, MOST);
  makeRest = rest;
  const goOn = () => {
    if (makeRest !== rest || made > rows.length) return;
    make(list, STEP);
    later();
  };
  // Rows of one step per frame: the browser lays out all that it finds at once.
  const later = () => requestAnimationFrame(() => setTimeout(goOn));
  later();
  // The focus stays on its row, wherever that is now.
  const same = held && [...list.querySelectorAll('li')].find(({ dataset }) => dataset.id === held.dataset.id);
  if (same) (same.querySelectorAll('button')[place] ?? same.querySelector('button'))?.focus({ preventScroll: true });
}

const months = new Intl.DateTimeFormat([], { month: 'long', year: 'numeric' });

function ageOf(at) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (at >= midnight) return TEXT.today;
  if (at >= midnight - DAY) return TEXT.yesterday;
  return at >= midnight - 7 * DAY ? TEXT.week : months.format(at);
}

const nameOf = ({ title }) => title || TEXT.untitled;

function row(conversation) {
  const name = nameOf(conversation);
  const isCurrent = conversation.id === chat.current().id;
  const item = element('li', { class: isCurrent && 'current', 'data-id': conversation.id });
  item.append(
    element('button', { type: 'button', class: 'link', dir: 'auto', text: name, title: name, 'aria-current': isCurrent && 'true', 'aria-keyshortcuts': 'F2 Delete', click: () => take(conversation) }),
    snippet(conversation),
    element('span', { class: 'acts' },
      element('button', { type: 'button', class: 'link icon pen', tabindex: '-1', title: TEXT.rename, 'aria-label': TEXT.renameOf(name), click: () => rename(conversation, item) }),
      element('button', { type: 'button', class: 'link icon bin', tabindex: '-1', title: TEXT.delete, 'aria-label': TEXT.deleteOf(name), click: () => remove(conversation) }),
      element('button', { type: 'button', class: 'link icon pin', tabindex: '-1', 'aria-pressed': conversation.pinned ? 'true' : 'false', title: TEXT.pin, 'aria-label': TEXT.pinOf(name), click: () => pin(conversation) })));
  return item;
}

/** One Tab stop per row: arrows go to other rows and to a row's actions; F2 renames and Delete deletes. */
function followKeys(event) {
  const item = event.target.closest('li');
  if (!item || event.target.matches('input') || event.altKey || event.ctrlKey || event.metaKey) return;
  const controls = [...item.querySelectorAll('button')];
  const rows = [...byId('conversations').querySelectorAll('li > .link:first-child')];
  const step = (all, by) => () => all[all.indexOf(event.target.closest('button')) + by]?.focus();
  const near = (by) => () => rows[rows.indexOf(controls[0]) + by]?.focus();
  const act = {
    ArrowRight: step(controls, 1), ArrowLeft: step(controls, -1), ArrowDown: near(1), ArrowUp: near(-1),
    F2: () => controls[1]?.click(), Delete: () => controls[2]?.click(),
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

/** The search's match in the messages, with some words around it. */
function snippet({ title, turns }) {
  const wanted = byId('search').value.trim().toLowerCase();
  if (!wanted || title?.toLowerCase().includes(wanted)) return '';
  const text = turns.flatMap(({ question, answer }) => [question, answer]).find((one) => one?.toLowerCase().includes(wanted));
  const at = text?.toLowerCase().indexOf(wanted) ?? -1;
  // Lower case may have another length in some languages.
  if (at < 0) return '';
  const end = at + wanted.length;
  return element('span', { class: 'snippet', dir: 'auto' }, `${at > 30 ? '…' : ''}${text.slice(Math.max(0, at - 30), at)}`,
    element('mark', { text: text.slice(at, end) }), text.slice(end, end + 60));
}

async function pin(conversation) {
  const { pinned } = await chat.change(conversation, (latest) => { latest.pinned = !latest.pinned; });
  await showList();
  if (!hasMovedOn()) actOf(found().findIndex(({ id }) => id === conversation.id), 2)?.focus();
  announce((pinned ? TEXT.pinnedNow : TEXT.unpinned)(nameOf(conversation)));
}

async function take(conversation) {
  chat.closeDrawer();
  const { activeElement: focused } = document;
  await chat.open((await conversations.one(conversation.id)) ?? conversation);
  if (!hasMovedOn(focused)) byId('chat-heading').focus({ preventScroll: true });
}

/** Whether the focus has moved while the storage was read. `from`: what had it besides the list. */
function hasMovedOn(from = null) {
  const { activeElement: focused, body } = document;
  return focused !== body && focused !== from && !byId('conversations').contains(focused);
}

function rename(conversation, item) {
  const field = element('input', { type: 'text', value: conversation.title, 'aria-label': TEXT.newName(nameOf(conversation)), maxlength: 200 });
  const end = async () => {
    renaming = null;
    await showList();
    if (!hasMovedOn()) actOf(found().findIndex(({ id }) => id === conversation.id), 0)?.focus();
  };
  const save = async (event) => {
    event.preventDefault();
    const title = field.value.trim();
    renaming = null;
    if (title) await chat.change(conversation, (latest) => { latest.title = title; });
    if (title && conversation.id === chat.current().id) byId('chat-heading').textContent = title;
    field.blur();
    await end();
    if (title) announce(TEXT.renamed(title));
  };
  renaming = conversation.id;
  item.replaceChildren(element('form', { class: 'rename', submit: save },
    field, element('button', { type: 'submit', class: 'quiet small', text: TEXT.save })));
  field.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return;
    event.preventDefault();
    field.blur();
    void end();
  });
  field.focus();
  field.select();
}

/** Deletes at once, since it can be undone. */
async function remove(conversation) {
  const place = found().findIndex(({ id }) => id === conversation.id);
  const kept = (await conversations.one(conversation.id)) ?? conversation;
  await conversations.delete(conversation.id);
  const wasOpen = conversation.id === chat.current().id;
  const waits = kept.turns.some(({ state }) => state === 'sent' || state === 'left');
  const undo = button(TEXT.undo, async () => {
    shown.remove();
    await conversations.put(kept);
    await (wasOpen ? chat.open(kept) : showList());
    announce(TEXT.restored(nameOf(kept)));
    if (!hasMovedOn()) byId('chat-text').focus();
  });
  const shown = notice(TEXT.deleted(nameOf(kept), waits), undo, 'deleted');
  if (wasOpen) await chat.open(chat.fresh());
  await showList();
  if (!hasMovedOn()) (actOf(Math.min(place, found().length - 1), 1) ?? byId('new-conversation')).focus();
}

/** An action of the row at this place: 0 renames, 1 deletes, 2 pins. */
function actOf(place, which) {
  const rows = byId('conversations').getElementsByTagName('li');
  if (place >= rows.length) makeRest();
  return rows[place]?.querySelector('.acts')?.children[which];
}

// Export as JSON or Markdown, and import of JSON.

const FORMAT = 'tollgate-conversations';
const VERSION = 1;
/** Larger files are rejected. In bytes. */
const LARGEST = 200 * 1024 * 1024;
const STATES = ['done', 'refused', 'charged', 'unknown'];
const NOT_KNOWN = { state: 'unknown', problem: { code: 'untraceable', charged: 'unknown' } };

/** Saves these conversations as a file, without the keys of purchases: a key gives access to its answer. */
function saveJson(all, name) {
  const plain = all.map(({ id, title, at, system, turns, aside = [] }) => ({
    id, title, at, ...(system && { system }), turns: turns.map(outgoing),
    aside: aside.map((branch) => ({ at: branch.at, after: turns.findIndex(({ key }) => key === branch.after), turns: branch.turns.map(outgoing) })),
  }));
  save(JSON.stringify({ format: FORMAT, version: VERSION, exported: new Date().toISOString(), conversations: plain }, null, 1), name, 'json');
}

const outgoing = ({ question, answer, model, costMicros, at, state, problem }) => ({
  question, answer, model, costMicros, at, state: STATES.includes(state) ? state : 'unknown',
  problem: problem ? { code: problem.code, charged: problem.charged } : null,
});

/** Hands one conversation to another app, if the person picks one. */
async function share(conversation) {
  try {
    await navigator.share({ title: conversation.title || TEXT.exported.untitled, text: asMarkdown(conversation) });
  } catch (error) {
    if (error.name !== 'AbortError') notice(TEXT.notShared);
  }
}

/** One conversation with the model and the price of each answer. */
function asMarkdown({ title, turns }) {
  const parts = turns.flatMap(({ question, answer, model, costMicros, at }) => [
    `## ${TEXT.exported.question(new Date(at).toLocaleString())}`, question,
    `## ${TEXT.exported.answer(model, price(costMicros))}`, answer ?? TEXT.exported.noAnswer,
  ]);
  return `${[`# ${title || TEXT.exported.untitled}`, ...parts].join('\n\n')}\n`;
}

function save(text, name, ending) {
  const plain = (name || TEXT.fileNames.one).replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60) || TEXT.fileNames.one;
  saveFile(text, `${plain}.${ending}`, ending === 'md' ? 'text/markdown' : 'application/json');
}

/** Overwrites nothing. */
async function importFile(file) {
  const refuse = (why) => notice(TEXT.notImported(file.name, why), null, 'import');
  if (file.size > LARGEST) return refuse(TEXT.tooLarge);
  let incoming;
  try {
    incoming = checked(JSON.parse(await file.text()));
  } catch (error) {
    return refuse(error instanceof Fault ? error.message : TEXT.notJson);
  }
  const sum = { added: 0, there: 0, copied: 0 };
  for (const conversation of incoming) {
    const before = await conversations.one(conversation.id);
    const isSame = before && fingerprint(before) === fingerprint(conversation);
    if (isSame) {
      sum.there += 1;
      continue;
    }
    const id = before ? `${Date.now()}-${Math.random()}` : conversation.id;
    if (!(await conversations.put({ ...conversation, id, title: before ? TEXT.exported.copyOf(conversation.title) : conversation.title }))) {
      return notice(TEXT.noRoom, null, 'import');
    }
    sum[before ? 'copied' : 'added'] += 1;
  }
  const parts = TEXT.importedParts(sum.added, sum.there, sum.copied).filter(Boolean).join(', ');
  notice(TEXT.imported(file.name, parts), null, 'import');
}

const fingerprint = ({ title, turns }) => JSON.stringify([title, turns.map(({ question, answer, model, at }) => [question, answer, model, at])]);

class Fault extends Error {}

/** The conversations of an export. Throws a `Fault` that names the wrong field. */
function checked(file) {
  if (file?.format !== FORMAT) throw new Fault(TEXT.notOurs);
  if (file.version !== VERSION) throw new Fault(TEXT.otherVersion(file.version, VERSION));
  const all = demand(Array.isArray, file.conversations, 'conversations', 'a list');
  return all.map((one, place) => {
    const where = `conversations[${place}]`;
    demand(isObject, one, where, 'an object');
    const turns = demand(Array.isArray, one.turns, `${where}.turns`, 'a list').map((turn, at) => incomingTurn(turn, `${where}.turns[${at}]`));
    const aside = demand(Array.isArray, one.aside ?? [], `${where}.aside`, 'a list').map((branch, at) => {
      const here = `${where}.aside[${at}]`;
      demand(isObject, branch, here, 'an object');
      const those = demand(Array.isArray, branch.turns, `${here}.turns`, 'a list').map((turn, which) => incomingTurn(turn, `${here}.turns[${which}]`));
      return { id: crypto.getRandomValues(new Uint32Array(2)).join('-'), after: turns[branch.after]?.key ?? null, at: demand(isTime, branch.at, `${here}.at`, 'a time'), turns: those };
    });
    return {
      id: demand(isText, one.id, `${where}.id`, 'text'), title: demand(isText, one.title, `${where}.title`, 'text'),
      at: demand(isTime, one.at, `${where}.at`, 'a time'), system: demand(isText, one.system ?? '', `${where}.system`, 'text'), turns, aside,
    };
  });
}

function incomingTurn(turn, where) {
  demand(isObject, turn, where, 'an object');
  const made = {
    // No key of a purchase: an imported answer can be read, and never asked for.
    key: `imported-${crypto.getRandomValues(new Uint32Array(3)).join('-')}`, ledger: null,
    question: demand(isText, turn.question, `${where}.question`, 'text'),
    answer: turn.answer === null ? null : demand(isText, turn.answer, `${where}.answer`, 'text or null'),
    model: demand(isText, turn.model, `${where}.model`, 'text'),
    costMicros: demand(isAmount, turn.costMicros ?? turn.tollMicros, `${where}.costMicros`, 'a whole number of micro-dollars'),
    at: demand(isTime, turn.at, `${where}.at`, 'a time'),
    state: demand((state) => STATES.includes(state), turn.state, `${where}.state`, `one of ${STATES.join(', ')}`),
    problem: null,
  };
  if (made.state === 'done') return { ...made, answer: demand(isText, turn.answer, `${where}.answer`, 'text') };
  if (made.state === 'unknown' || !isText(turn.problem?.code)) return { ...made, ...NOT_KNOWN };
  return { ...made, problem: { code: turn.problem.code, charged: made.state === 'refused' ? 'no' : 'yes' } };
}

function demand(holds, value, where, wanted) {
  if (holds(value)) return value;
  throw new Fault(TEXT.expected(where, wanted));
}

const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
const isText = (value) => typeof value === 'string';
const isAmount = (value) => Number.isSafeInteger(value) && value >= 0;
const isTime = (value) => Number.isSafeInteger(value) && !Number.isNaN(new Date(value).getTime());

/** The file as a part of a message: `{text}`, or `{trouble}` if it is no text or too large. */
export async function inlined(file, mostBytes) {
  if (file.size > mostBytes) return { trouble: TEXT.fileTooLarge(file.name) };
  let text;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    return { trouble: TEXT.notText(file.name) };
  }
  if (text.includes('\0')) return { trouble: TEXT.notText(file.name) };
  // The fence is longer than any in the file.
  const longest = (text.match(/`{3,}/g) ?? []).reduce((most, { length }) => Math.max(most, length), 2);
  const fence = '`'.repeat(longest + 1);
  const language = /\.([a-z0-9]{1,10})$/i.exec(file.name)?.[1] ?? '';
  return { text: `${file.name}:\n${fence}${language}\n${text.replace(/\r\n?/g, '\n').replace(/\n$/, '')}\n${fence}\n` };
}
