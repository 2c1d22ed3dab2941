/** The list of conversations: search, rename, delete with undo, export and import. */

import { announce, button, byId, element, notice } from '../core/dom.js';
import { conversations } from '../core/store.js';
import { TEXT } from './chat.js';

const DAY = 24 * 60 * 60 * 1000;
/** Older ones are found by search only. */
const MOST = 300;
/** How many rows are made at a time. */
const STEP = 12;

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
  const transfer = (act) => () => import('./transfer.js').then(act).catch(() => notice(TEXT.notLoaded));
  byId('export-all').addEventListener('click', transfer(async ({ saveJson }) => saveJson(await sorted(), TEXT.fileNames.all)));
  byId('export-json').addEventListener('click', transfer(({ saveJson }) => saveJson([chat.current()], chat.current().title)));
  byId('import-file').addEventListener('change', transfer(async ({ importFile }) => {
    const [file] = byId('import-file').files;
    if (file) await importFile(file);
    byId('import-file').value = '';
    await showList();
  }));
  byId('export-markdown').addEventListener('click', transfer(({ saveMarkdown }) => saveMarkdown(chat.current())));
  byId('share').hidden = !navigator.share;
  byId('share').addEventListener('click', transfer(({ share }) => share(chat.current())));
}

/** Lists the conversations of this browser. */
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
    setTimeout(goOn);
  };
  setTimeout(goOn);
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
  actOf(found().findIndex(({ id }) => id === conversation.id), 2)?.focus();
  announce((pinned ? TEXT.pinnedNow : TEXT.unpinned)(nameOf(conversation)));
}

async function take(conversation) {
  chat.closeDrawer();
  await chat.open((await conversations.one(conversation.id)) ?? conversation);
  byId('chat-heading').focus({ preventScroll: true });
}

function rename(conversation, item) {
  const field = element('input', { type: 'text', value: conversation.title, 'aria-label': TEXT.newName(nameOf(conversation)), maxlength: 200 });
  const end = async () => {
    renaming = null;
    await showList();
    actOf(found().findIndex(({ id }) => id === conversation.id), 0)?.focus();
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
    byId('chat-text').focus();
  });
  const shown = notice(TEXT.deleted(nameOf(kept), waits), undo, 'deleted');
  if (wasOpen) await chat.open(chat.fresh());
  await showList();
  (actOf(Math.min(place, found().length - 1), 1) ?? byId('new-conversation')).focus();
}

/** An action of the row at this place: 0 renames, 1 deletes, 2 pins. */
function actOf(place, which) {
  const rows = byId('conversations').getElementsByTagName('li');
  if (place >= rows.length) makeRest();
  return rows[place]?.querySelector('.acts')?.children[which];
}
