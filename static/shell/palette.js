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
  kinds: { view: 'View', conversation: 'Conversation', model: 'Model', action: 'Action', prompt: 'Prompt' },
  untitled: 'Untitled',
  model: (id) => `Chat with ${id}`,
  newConversation: 'New conversation',
  themes: { '': 'Theme: system', light: 'Theme: light', dark: 'Theme: dark' },
  help: 'Keyboard shortcuts',
  signOut: 'Sign out',
  prompts: 'Prompts',
  promptsField: 'Find a prompt',
  savePrompt: 'Save this message as a prompt',
  promptSaved: 'Saved as a prompt. Type / in an empty message to find it.',
  removePrompt: 'Remove a prompt',
  promptRemoved: 'The prompt is removed.',
  close: 'Close',
  singleKeys: 'Use single-key shortcuts',
  shortcuts: [
    [['Ctrl K'], 'Go to a view, a conversation or an action (⌘K on a Mac)'],
    [['1', '…'], 'Go to the first view, the second, …'],
    [['N'], 'Start a new conversation'],
    [['/'], 'Search your conversations; in an empty message: find a prompt'],
    [['?'], 'Show this list'],
    [['Enter'], 'Send the message'],
    [['Shift Enter'], 'Start a new line in the message'],
    [['↑'], 'Edit your last message, while the field is empty'],
    [['↑', '↓'], 'In the list of conversations: go to another one'],
    [['F2', 'Delete'], 'In the list of conversations: rename or delete it'],
    [['J', 'K'], 'Among the videos: go to the next or the previous one'],
    [['F', 'D', 'I'], 'In a large video: mark it as a favourite, download it, hide its details'],
    [['Esc'], 'Close what is open, or stop editing'],
  ],
};

/** The most results that are listed. */
const MAX_RESULTS = 40;

/** The most prompts that are kept. */
const MAX_PROMPTS = 100;

/** Opens the palette. `page` is `{catalog, views, go(view, focus), openConversation(id)}`. */
export const palette = (page) => choose({ label: TEXT.palette, hint: TEXT.field, none: TEXT.none }, entries(page), () => kept(page));

/** Opens the list of prompts; the chosen one is written into the message. Escape writes the `/` that opened it. */
export async function prompts(page) {
  await choose({ label: TEXT.prompts, hint: TEXT.promptsField, none: TEXT.none }, promptEntries(page));
  byId('palette').addEventListener('cancel', () => insert('/'));
}

/** Opens a list to search and choose from. `more()` resolves to further entries. */
async function choose(text, all, more = null) {
  const field = element('input', {
    type: 'text', role: 'combobox', placeholder: text.hint, autocomplete: 'off', spellcheck: 'false',
    'aria-label': text.label, 'aria-expanded': 'true', 'aria-controls': 'palette-list', 'aria-autocomplete': 'list',
  });
  const list = element('ul', { id: 'palette-list', role: 'listbox', 'aria-label': TEXT.results });
  const none = element('p', { class: 'hint', text: text.none, hidden: true });
  const dialog = open('palette', text.label, field, list, none);
  let shown = [], at = 0;

  const mark = () => {
    [...list.children].forEach((item, place) => item.setAttribute('aria-selected', place === at));
    const chosen = list.children[at];
    if (chosen) field.setAttribute('aria-activedescendant', chosen.id);
    else field.removeAttribute('aria-activedescendant');
    chosen?.scrollIntoView({ block: 'nearest' });
  };
  const take = (entry) => {
    dialog.close();
    entry?.act();
  };
  const draw = () => {
    const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = all.filter(({ name, kind }) => wanted.every((word) => `${kind} ${name}`.toLowerCase().includes(word))).slice(0, MAX_RESULTS);
    at = 0;
    none.hidden = shown.length > 0;
    list.hidden = !shown.length;
    list.replaceChildren(...shown.map((entry, place) => element('li', { id: `palette-${place}`, role: 'option', click: () => take(entry) },
      icon(entry.icon), element('span', { text: entry.name }), element('span', { class: 'hint', text: entry.side ?? entry.kind }))));
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
    } else if (event.key === 'Enter' && !event.repeat) take(shown[at]);
  });
  draw();
  field.focus();
  if (!more) return;
  const rest = await more();
  // Some before the models.
  all.splice(all.findIndex(({ side }) => side), 0, ...rest.splice(0, 5));
  all.push(...rest);
  if (!dialog.open) return;
  const marked = shown[at];
  draw();
  at = Math.max(shown.indexOf(marked), 0);
  mark();
}

const action = (name, glyph, act) => ({ kind: TEXT.kinds.action, name, icon: glyph, act });

/** Everything except conversations. */
function entries(page) {
  const { catalog, go, views } = page;
  return [
    ...views.map(({ name, title }) => ({ kind: TEXT.kinds.view, name: title, icon: name, act: () => go(name) })),
    action(TEXT.newConversation, 'plus', () => byId('new-conversation').click()),
    ...catalog.chat.map(({ id, price_micros: micros }) => ({
      kind: TEXT.kinds.model, name: TEXT.model(id), side: price(micros), icon: 'chat', act: () => pick(go, id),
    })),
    ...Object.entries(TEXT.themes).map(([value, name]) => action(name, 'more', () => {
      byId('theme').value = value;
      byId('theme').dispatchEvent(new Event('change'));
      announce(name);
    })),
    ...promptEntries(page),
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

/** The prompts that this browser keeps, and what can be done with them. */
function promptEntries({ go }) {
  const saved = savedPrompts();
  const keep = (all, text) => {
    choice.set('prompts', JSON.stringify(all.slice(0, MAX_PROMPTS)));
    announce(text);
  };
  const list = (act) => saved.map((text) => ({ kind: TEXT.kinds.prompt, name: text.slice(0, 200), icon: 'edit', act: () => act(text) }));
  const write = (text) => {
    insert(text);
    go('chat', 'chat-text');
  };
  const remove = () => choose({ label: TEXT.removePrompt, hint: TEXT.promptsField, none: TEXT.none },
    list((text) => keep(saved.filter((other) => other !== text), TEXT.promptRemoved)));
  const draft = byId('chat-text').value.trim();
  return [
    ...list(write),
    ...(draft && !saved.includes(draft) ? [action(TEXT.savePrompt, 'plus', () => keep([draft, ...saved], TEXT.promptSaved))] : []),
    ...(saved.length ? [action(TEXT.removePrompt, 'bin', () => void remove())] : []),
  ];
}

/** Writes into the message, where the caret is. */
function insert(text) {
  const field = byId('chat-text');
  field.setRangeText(text, field.selectionStart, field.selectionEnd, 'end');
  field.dispatchEvent(new Event('input', { bubbles: true }));
}

function savedPrompts() {
  try {
    const all = JSON.parse(choice.get('prompts'));
    return Array.isArray(all) ? all.map(String) : [];
  } catch {
    return [];
  }
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
