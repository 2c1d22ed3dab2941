/** The list of conversations: searched, renamed, deleted and brought back, exported and imported. */

import { announce, button, byId, element, notice } from '../core/dom.js';
import { conversations } from '../core/store.js';

const DAY = 24 * 60 * 60 * 1000;
/** As many are listed before the person asks for more. */
const AT_ONCE = 300;

let chat = null, all = [], renaming = null, searching = null;

/** `chat`: `{current(), open(conversation), fresh(), change(conversation, edit), closeDrawer()}`; called again, it changes nothing. */
export function start(view) {
  if (chat) return;
  chat = view;
  for (const id of ['search-field', 'export-all']) byId(id).hidden = false;
  byId('search').addEventListener('input', () => {
    clearTimeout(searching);
    searching = setTimeout(() => {
      draw();
      announce(`${found().length} of ${all.length} conversations`);
    }, 150);
  });
  const transfer = (act) => () => import('./transfer.js').then(act).catch(() => notice('This could not be loaded. Try again when the service can be reached.'));
  byId('export-all').addEventListener('click', transfer(async ({ saveJson }) => saveJson(await sorted(), 'conversations')));
  byId('export-json').addEventListener('click', transfer(({ saveJson }) => saveJson([chat.current()], chat.current().title)));
  byId('import-file').addEventListener('change', transfer(async ({ importFile }) => {
    const [file] = byId('import-file').files;
    if (file) await importFile(file);
    byId('import-file').value = '';
    await showList();
  }));
  byId('export-markdown').addEventListener('click', transfer(({ saveMarkdown }) => saveMarkdown(chat.current())));
}

/** Lists what there is now. */
export async function showList() {
  all = await sorted();
  draw();
}

const sorted = async () => (await conversations.all()).sort((one, other) => other.at - one.at);

/** Those that the search finds, by title and by what was said. */
function found() {
  const wanted = byId('search').value.trim().toLowerCase();
  if (!wanted) return all;
  const has = (text) => text?.toLowerCase().includes(wanted);
  return all.filter(({ title, turns }) => has(title) || turns.some((turn) => has(turn.question) || has(turn.answer)));
}

function draw() {
  // A name that is being typed is not torn away by what another tab does.
  if (renaming && byId('conversations').contains(document.activeElement)) return;
  const listed = found();
  const groups = Map.groupBy(listed.slice(0, AT_ONCE), ({ at }) => ageOf(at));
  const parts = [...groups].flatMap(([age, those]) => [element('h3', { text: age }), element('ul', {}, those.map(row))]);
  if (!listed.length) parts.push(element('p', { class: 'hint', text: all.length ? 'Nothing was found.' : 'What you ask is kept in this browser and listed here.' }));
  if (listed.length > AT_ONCE) parts.push(element('p', { class: 'hint', text: `And ${listed.length - AT_ONCE} older ones: search for them.` }));
  byId('conversations').replaceChildren(...parts);
}

function ageOf(at) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (at >= midnight) return 'Today';
  if (at >= midnight - DAY) return 'Yesterday';
  return at >= midnight - 7 * DAY ? 'Last seven days' : new Date(at).toLocaleDateString([], { month: 'long', year: 'numeric' });
}

const nameOf = ({ title }) => title || 'Untitled';

function row(conversation) {
  const name = nameOf(conversation);
  const isCurrent = conversation.id === chat.current().id;
  const item = element('li', { class: isCurrent && 'current' });
  item.append(
    element('button', { type: 'button', class: 'link', text: name, title: name, 'aria-current': isCurrent && 'true', click: () => take(conversation) }),
    element('span', { class: 'acts' },
      element('button', { type: 'button', class: 'link icon pen', title: 'Rename', 'aria-label': `Rename ${name}`, click: () => rename(conversation, item) }),
      element('button', { type: 'button', class: 'link icon bin', title: 'Delete', 'aria-label': `Delete ${name}`, click: () => remove(conversation) })));
  return item;
}

async function take(conversation) {
  chat.closeDrawer();
  await chat.open((await conversations.one(conversation.id)) ?? conversation);
  byId('chat-heading').focus({ preventScroll: true });
}

function rename(conversation, item) {
  const field = element('input', { type: 'text', value: conversation.title, 'aria-label': `New name of ${nameOf(conversation)}`, maxlength: 200 });
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
    if (title) announce(`Renamed to ${title}`);
  };
  renaming = conversation.id;
  item.replaceChildren(element('form', { class: 'rename', submit: save },
    field, element('button', { type: 'submit', class: 'quiet small', text: 'Save' })));
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
  const undo = button('Undo', async () => {
    shown.remove();
    await conversations.put(kept);
    await (wasOpen ? chat.open(kept) : showList());
    announce(`${nameOf(kept)} is back.`);
    byId('chat-text').focus();
  });
  const shown = notice(`Deleted “${nameOf(kept)}”.${waits ? ' An answer was still on its way to it.' : ''}`, undo, 'deleted');
  if (wasOpen) await chat.open(chat.fresh());
  await showList();
  (actOf(Math.min(place, found().length - 1), 1) ?? byId('new-conversation')).focus();
}

/** The first or second button for what can be done with the row at this place. */
const actOf = (place, which) => byId('conversations').querySelectorAll('li')[place]?.querySelector('.acts')?.children[which];
