/** The palette, which finds views, conversations, models and actions by their names, and the list of shortcuts. */

import { announce, byId, element, icon } from '../core/dom.js';
import { price } from '../core/format.js';
import { choice, conversations } from '../core/store.js';

const TEXT = {
  palette: 'Go to …',
  field: 'Type a view, a conversation, a model or an action',
  results: 'Results',
  none: 'No matches.',
  found: (count) => (count === 1 ? '1 result' : `${count} results`),
  kinds: { view: 'View', conversation: 'Conversation', model: 'Model', action: 'Action' },
  untitled: 'Untitled',
  model: (id, amount) => `Chat with ${id} · ${amount}`,
  newConversation: 'New conversation',
  themes: { '': 'Theme: system', light: 'Theme: light', dark: 'Theme: dark' },
  help: 'Keyboard shortcuts',
  signOut: 'Sign out',
  close: 'Close',
  singleKeys: 'Use single-key shortcuts',
  shortcuts: [
    [['Ctrl K'], 'Go to a view, a conversation or an action (⌘K on a Mac)'],
    [['1', '…'], 'Go to the first view, the second, …'],
    [['N'], 'Start a new conversation'],
    [['/'], 'Search your conversations'],
    [['?'], 'Show this list'],
    [['Enter'], 'Send the message'],
    [['Shift Enter'], 'Start a new line in the message'],
    [['↑'], 'Edit your last message, while the field is empty'],
    [['↑', '↓'], 'In the list of conversations: go to another one'],
    [['F2', 'Delete'], 'In the list of conversations: rename or delete it'],
    [['Esc'], 'Close what is open, or stop editing'],
  ],
};

/** The most results that are listed. */
const MAX_RESULTS = 40;

/** Opens the palette. `page` is `{catalog, views, go(view, focus), openConversation(id)}`. */
export async function palette(page) {
  const field = element('input', {
    type: 'text', role: 'combobox', placeholder: TEXT.field, autocomplete: 'off', spellcheck: 'false',
    'aria-label': TEXT.palette, 'aria-expanded': 'true', 'aria-controls': 'palette-list', 'aria-autocomplete': 'list',
  });
  const list = element('ul', { id: 'palette-list', role: 'listbox', 'aria-label': TEXT.results });
  const none = element('p', { class: 'hint', text: TEXT.none, hidden: true });
  const dialog = open('palette', TEXT.palette, field, list, none);
  const all = entries(page, []);
  let shown = [], at = 0;

  const mark = () => {
    [...list.children].forEach((item, place) => item.setAttribute('aria-selected', place === at));
    const chosen = list.children[at];
    if (chosen) field.setAttribute('aria-activedescendant', chosen.id);
    else field.removeAttribute('aria-activedescendant');
    chosen?.scrollIntoView({ block: 'nearest' });
  };
  const choose = (entry) => {
    dialog.close();
    entry?.act();
  };
  const draw = () => {
    const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = all.filter(({ name, kind }) => wanted.every((word) => `${kind} ${name}`.toLowerCase().includes(word))).slice(0, MAX_RESULTS);
    at = 0;
    none.hidden = shown.length > 0;
    list.hidden = !shown.length;
    list.replaceChildren(...shown.map((entry, place) => element('li', { id: `palette-${place}`, role: 'option', click: () => choose(entry) },
      icon(entry.icon), element('span', { text: entry.name }), element('span', { class: 'hint', text: entry.kind }))));
    mark();
  };
  field.addEventListener('input', () => {
    draw();
    announceIn(dialog, TEXT.found(shown.length));
  });
  field.addEventListener('keydown', (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.isComposing || (!step && event.key !== 'Enter')) return;
    event.preventDefault();
    if (step && shown.length) {
      at = (at + step + shown.length) % shown.length;
      mark();
    } else if (event.key === 'Enter' && !event.repeat) choose(shown[at]);
  });
  draw();
  field.focus();
  all.push(...await kept(page));
  if (dialog.open) draw();
}

/** What can be chosen, but conversations. */
function entries({ catalog, go, views }) {
  const action = (name, glyph, act) => ({ kind: TEXT.kinds.action, name, icon: glyph, act });
  return [
    ...views.map(({ name, title }) => ({ kind: TEXT.kinds.view, name: title, icon: name, act: () => go(name) })),
    action(TEXT.newConversation, 'plus', () => byId('new-conversation').click()),
    ...catalog.chat.map(({ id, price_micros: micros }) => ({
      kind: TEXT.kinds.model, name: TEXT.model(id, price(micros)), icon: 'chat', act: () => pick(go, id),
    })),
    ...Object.entries(TEXT.themes).map(([value, name]) => action(name, 'more', () => {
      byId('theme').value = value;
      byId('theme').dispatchEvent(new Event('change'));
      announce(name);
    })),
    action(TEXT.help, 'help', help),
    ...(byId('sign-out').hidden ? [] : [action(TEXT.signOut, 'out', () => byId('sign-out').click())]),
  ];
}

/** The conversations, the newest first. */
async function kept({ openConversation }) {
  const all = (await conversations.all()).sort((one, other) => other.at - one.at);
  return all.map(({ id, title }) => ({
    kind: TEXT.kinds.conversation, name: title || TEXT.untitled, icon: 'chat',
    act: () => void openConversation(id),
  }));
}

function pick(go, model) {
  byId('chat-model').value = model;
  byId('chat-model').dispatchEvent(new Event('change'));
  go('chat', 'chat-text');
}

/** Opens the list of shortcuts, where single keys can be turned off. */
export function help() {
  const row = ([keys, text]) => [
    element('dt', {}, keys.flatMap((key, place) => [place ? ' ' : null, element('kbd', { text: key })])), element('dd', { text })];
  const box = element('input', { type: 'checkbox', checked: choice.get('keys') !== 'off', change: () => choice.set('keys', box.checked ? 'on' : 'off') });
  open('shortcuts', TEXT.help,
    element('div', { class: 'sheet-head' }, element('h2', { id: 'shortcuts-heading', text: TEXT.help }),
      element('button', { type: 'button', class: 'quiet small', text: TEXT.close, click: () => byId('shortcuts').close() })),
    element('dl', {}, TEXT.shortcuts.flatMap(row)),
    element('label', { class: 'row' }, box, TEXT.singleKeys));
}

/** Opens a modal dialog, which is gone once it is closed; the focus goes back to where it was. */
function open(id, label, ...children) {
  const dialog = element('dialog', {
    id, class: 'palette', 'aria-label': label,
    close: () => dialog.remove(),
    click: ({ target }) => target === dialog && dialog.close(),
  }, element('div', { class: 'palette-body' }, children, element('p', { class: 'unseen', role: 'status' })));
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Behind a modal dialog, the page's own status is not read out. */
function announceIn(dialog, text) {
  dialog.querySelector('[role=status]').textContent = text;
}
