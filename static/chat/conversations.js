/** The list of conversations, with export and import; and text files in messages. */

import { announce, button, byId, element, notice, saveFile } from '../core/dom.js';
import { locale, price, t } from '../core/format.js';
import { conversations } from '../core/site.js';

const DAY = 24 * 60 * 60 * 1000;
/** Older ones are found by search only. */
const MOST = 300;
/** How many rows are made at a time. */
const STEP = 8;

let chat = null, renaming = null;
/** The conversations as they are listed, once they are read. */
let all = null;
/** How many rows there is time for, and the rows by conversation: `{sign, item}`. */
let room = STEP, rows = new Map();

/** `chat`: `{current(), open(conversation), fresh(), change(conversation, edit), closeDrawer()}`; called again, it changes nothing. */
export function start(view) {
  if (chat) return;
  chat = view;
  byId('export-all').hidden = false;
  byId('conversations').addEventListener('keydown', followKeys);
  byId('export-all').addEventListener('click', async () => {
    byId('menu').hidePopover();
    saveJson(await sorted(), t('talk.file.all'));
  });
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

/** Reads and lists all, or lists the one that has `changed`: reading many takes longer than anything else here. */
export async function showList(changed = null) {
  if (changed && all) all = inOrder([changed, ...all.filter(({ id }) => id !== changed.id)]);
  else all = await sorted();
  draw();
}

/** Marks the open conversation. */
export const showCurrent = () => all && draw();

/** Pinned ones first, then the newest. */
const inOrder = (some) => some.sort((one, other) => Boolean(other.pinned) - Boolean(one.pinned) || other.at - one.at);
const sorted = async () => inOrder(await conversations.all());

/** Brings the list up to date. Only rows that have changed are made again, so that the focus stays and a long list costs little. */
function draw() {
  const list = byId('conversations');
  // Another tab's change does not interrupt the typing of a name.
  if (renaming && list.contains(document.activeElement)) return;
  const { activeElement: focused } = document;
  const held = list.contains(focused) && focused.closest('li');
  const place = held ? [...held.querySelectorAll('button')].indexOf(focused) : -1;
  const listed = all.slice(0, Math.min(room, MOST));
  const before = rows;
  rows = new Map(listed.map((one) => [one.id, rowOf(one, before.get(one.id))]));
  const groups = Map.groupBy(listed, (one) => (one.pinned ? t('talk.pinned') : ageOf(one.at)));
  const parts = [...groups].flatMap(([age, those]) => {
    const known = [...list.querySelectorAll('h3')].find(({ textContent }) => textContent === age);
    const group = known?.nextSibling ?? element('ul');
    arrange(group, those.map(({ id }) => rows.get(id).item));
    return [known ?? element('h3', { text: age }), group];
  });
  const hint = all.length > MOST ? t('talk.older', all.length - MOST) : all.length ? '' : t('chat.noneYet');
  arrange(list, [...parts, ...(hint ? [element('p', { class: 'hint', text: hint })] : [])]);
  // A row that has moved, or was made again, has lost the focus.
  if (held && document.activeElement === document.body) {
    const { item } = rows.get(held.dataset.id) ?? {};
    (item?.querySelectorAll('button')[place] ?? item?.querySelector('button'))?.focus({ preventScroll: true });
  }
  if (room < Math.min(all.length, MOST)) makeMore();
}

let isMaking = false;

/** Makes the rest of the rows, a few per frame: the browser lays out all that it finds at once. */
function makeMore() {
  if (isMaking) return;
  isMaking = true;
  requestAnimationFrame(() => setTimeout(() => {
    isMaking = false;
    room += STEP;
    draw();
  }));
}

/** Makes these the children of `parent`, and moves only those that stand elsewhere. */
function arrange(parent, children) {
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  children.forEach((child, at) => {
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] ?? null);
  });
}

const months = new Intl.DateTimeFormat(locale, { month: 'long', year: 'numeric' });

function ageOf(at) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (at >= midnight) return t('talk.today');
  if (at >= midnight - DAY) return t('talk.yesterday');
  return at >= midnight - 7 * DAY ? t('talk.week') : months.format(at);
}

const nameOf = ({ title }) => title || t('talk.untitled');

/** The row of a conversation: the `known` one if it says the same. */
function rowOf(conversation, known) {
  const name = nameOf(conversation);
  const isCurrent = conversation.id === chat.current().id;
  const sign = `${conversation.pinned ? 'pinned' : ''} ${name}`;
  const { item } = known?.sign === sign ? known : { item: row(conversation, name) };
  if (item.classList.contains('current') !== isCurrent) {
    item.classList.toggle('current', isCurrent);
    item.firstChild.ariaCurrent = isCurrent ? 'true' : null;
  }
  return { sign, item };
}

function row({ id, pinned }, name) {
  const now = () => all.find((one) => one.id === id);
  const act = (kind, title, label, does, more) => element('button', { type: 'button', class: `link icon ${kind}`, tabindex: '-1', title, 'aria-label': label, click: does, ...more });
  const item = element('li', { 'data-id': id },
    element('button', { type: 'button', class: 'link', dir: 'auto', text: name, title: name, 'aria-keyshortcuts': 'F2 Delete', click: () => take(now()) }),
    element('span', { class: 'acts' },
      act('pen', t('talk.rename'), t('talk.renameOf', name), () => rename(now(), item)),
      act('bin', t('talk.delete'), t('talk.deleteOf', name), () => remove(now())),
      act('pin', t('talk.pin'), t('talk.pinOf', name), () => pin(now()), { 'aria-pressed': pinned ? 'true' : 'false' })));
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

async function pin(conversation) {
  const latest = await chat.change(conversation, (one) => { one.pinned = !one.pinned; });
  await showList(latest);
  if (!hasMovedOn()) actOf(latest.id, 2)?.focus();
  announce(t(latest.pinned ? 'talk.pinnedNow' : 'talk.unpinned', nameOf(conversation)));
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
  const field = element('input', { type: 'text', value: conversation.title, 'aria-label': t('talk.newName', nameOf(conversation)), maxlength: 200 });
  const end = async () => {
    // The form stands in the row, so the row is made again.
    rows.delete(conversation.id);
    renaming = null;
    await showList();
    if (!hasMovedOn()) actOf(conversation.id, 0)?.focus();
  };
  const save = async (event) => {
    event.preventDefault();
    const title = field.value.trim();
    renaming = null;
    if (title) await chat.change(conversation, (latest) => { latest.title = title; });
    if (title && conversation.id === chat.current().id) byId('chat-heading').textContent = title;
    field.blur();
    await end();
    if (title) announce(t('talk.renamed', title));
  };
  renaming = conversation.id;
  item.replaceChildren(element('form', { class: 'rename', submit: save },
    field, element('button', { type: 'submit', class: 'quiet small', text: t('page.save') })));
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
  const place = all.findIndex(({ id }) => id === conversation.id);
  const kept = (await conversations.one(conversation.id)) ?? conversation;
  await conversations.delete(conversation.id);
  const wasOpen = conversation.id === chat.current().id;
  const waits = kept.turns.some(({ state }) => state === 'sent' || state === 'left');
  const undo = button(t('talk.undo'), async () => {
    shown.remove();
    await conversations.put(kept);
    if (wasOpen) await chat.open(kept);
    await showList();
    announce(t('talk.restored', nameOf(kept)));
    if (!hasMovedOn()) byId('chat-text').focus();
  });
  const shown = notice(t('talk.deleted', nameOf(kept), waits), undo, 'deleted');
  if (wasOpen) await chat.open(chat.fresh());
  await showList();
  if (!hasMovedOn()) (actOf(all[Math.min(place, all.length - 1)]?.id, 1) ?? byId('new-conversation')).focus();
}

/** An action of a conversation's row: 0 renames, 1 deletes, 2 pins. */
function actOf(id, which) {
  if (id && !rows.has(id)) {
    room = MOST;
    draw();
  }
  return rows.get(id)?.item.querySelector('.acts')?.children[which];
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
    await navigator.share({ title: conversation.title || t('talk.exported.untitled'), text: asMarkdown(conversation) });
  } catch (error) {
    if (error.name !== 'AbortError') notice(t('talk.notShared'));
  }
}

/** One conversation with the model and the price of each answer. */
function asMarkdown({ title, turns }) {
  const parts = turns.flatMap(({ question, answer, model, costMicros, at }) => [
    `## ${t('talk.exported.question', new Date(at).toLocaleString(locale))}`, question,
    `## ${model}, ${price(costMicros)}`, answer ?? t('talk.exported.noAnswer'),
  ]);
  return `${[`# ${title || t('talk.exported.untitled')}`, ...parts].join('\n\n')}\n`;
}

function save(text, name, ending) {
  const plain = (name || t('talk.file.one')).replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60) || t('talk.file.one');
  saveFile(text, `${plain}.${ending}`, ending === 'md' ? 'text/markdown' : 'application/json');
}

/** Overwrites nothing. */
async function importFile(file) {
  const refuse = (why) => notice(t('talk.notImported', file.name, why), null, 'import');
  if (file.size > LARGEST) return refuse(t('talk.tooLarge'));
  let incoming;
  try {
    incoming = checked(JSON.parse(await file.text()));
  } catch (error) {
    return refuse(error instanceof Fault ? error.message : t('talk.notJson'));
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
    if (!(await conversations.put({ ...conversation, id, title: before ? t('talk.copyOf', conversation.title) : conversation.title }))) {
      return notice(t('talk.noRoom'), null, 'import');
    }
    sum[before ? 'copied' : 'added'] += 1;
  }
  const parts = [t('talk.added', sum.added), sum.there && t('talk.there', sum.there), sum.copied && t('talk.copies', sum.copied)].filter(Boolean).join(', ');
  notice(t('talk.imported', file.name, parts), null, 'import');
}

const fingerprint = ({ title, turns }) => JSON.stringify([title, turns.map(({ question, answer, model, at }) => [question, answer, model, at])]);

class Fault extends Error {}

/** The conversations of an export. Throws a `Fault` that names the wrong field. */
function checked(file) {
  if (file?.format !== FORMAT) throw new Fault(t('talk.notOurs'));
  if (file.version !== VERSION) throw new Fault(t('talk.otherVersion', file.version, VERSION));
  const all = demand(Array.isArray, file.conversations, 'conversations', 'list');
  return all.map((one, place) => {
    const where = `conversations[${place}]`;
    demand(isObject, one, where, 'object');
    const turns = demand(Array.isArray, one.turns, `${where}.turns`, 'list').map((turn, at) => incomingTurn(turn, `${where}.turns[${at}]`));
    const aside = demand(Array.isArray, one.aside ?? [], `${where}.aside`, 'list').map((branch, at) => {
      const here = `${where}.aside[${at}]`;
      demand(isObject, branch, here, 'object');
      const those = demand(Array.isArray, branch.turns, `${here}.turns`, 'list').map((turn, which) => incomingTurn(turn, `${here}.turns[${which}]`));
      return { id: crypto.getRandomValues(new Uint32Array(2)).join('-'), after: turns[branch.after]?.key ?? null, at: demand(isTime, branch.at, `${here}.at`, 'time'), turns: those };
    });
    return {
      id: demand(isText, one.id, `${where}.id`, 'text'), title: demand(isText, one.title, `${where}.title`, 'text'),
      at: demand(isTime, one.at, `${where}.at`, 'time'), system: demand(isText, one.system ?? '', `${where}.system`, 'text'), turns, aside,
    };
  });
}

function incomingTurn(turn, where) {
  demand(isObject, turn, where, 'object');
  const made = {
    // No key of a purchase: an imported answer can be read, and never asked for.
    key: `imported-${crypto.getRandomValues(new Uint32Array(3)).join('-')}`, ledger: null,
    question: demand(isText, turn.question, `${where}.question`, 'text'),
    answer: turn.answer === null ? null : demand(isText, turn.answer, `${where}.answer`, 'textOrNull'),
    model: demand(isText, turn.model, `${where}.model`, 'text'),
    costMicros: demand(isAmount, turn.costMicros ?? turn.tollMicros, `${where}.costMicros`, 'amount'),
    at: demand(isTime, turn.at, `${where}.at`, 'time'),
    state: demand((state) => STATES.includes(state), turn.state, `${where}.state`, 'oneOf'),
    problem: null,
  };
  if (made.state === 'done') return { ...made, answer: demand(isText, turn.answer, `${where}.answer`, 'text') };
  if (made.state === 'unknown' || !isText(turn.problem?.code)) return { ...made, ...NOT_KNOWN };
  return { ...made, problem: { code: turn.problem.code, charged: made.state === 'refused' ? 'no' : 'yes' } };
}

function demand(holds, value, where, wanted) {
  if (holds(value)) return value;
  throw new Fault(t('talk.expected', where, t(`talk.shape.${wanted}`, STATES.join(', '))));
}

const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
const isText = (value) => typeof value === 'string';
const isAmount = (value) => Number.isSafeInteger(value) && value >= 0;
const isTime = (value) => Number.isSafeInteger(value) && !Number.isNaN(new Date(value).getTime());

/** The file as a part of a message: `{text}`, or `{trouble}` if it is no text or too large. */
export async function inlined(file, mostBytes) {
  if (file.size > mostBytes) return { trouble: t('talk.fileTooLarge', file.name) };
  let text;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    return { trouble: t('talk.notText', file.name) };
  }
  if (text.includes('\0')) return { trouble: t('talk.notText', file.name) };
  // The fence is longer than any in the file.
  const longest = (text.match(/`{3,}/g) ?? []).reduce((most, { length }) => Math.max(most, length), 2);
  const fence = '`'.repeat(longest + 1);
  const language = /\.([a-z0-9]{1,10})$/i.exec(file.name)?.[1] ?? '';
  return { text: `${file.name}:\n${fence}${language}\n${text.replace(/\r\n?/g, '\n').replace(/\n$/, '')}\n${fence}\n` };
}
