/** Dialogs: the palette, which finds everything; prompts, models, instructions, shortcuts. */

import { announce, button, byId, element, icon, openSheet } from '../core/dom.js';
import { price } from '../core/format.js';
import { choice, conversations } from '../core/store.js';

const TEXT = {
  palette: 'Search or go to …',
  field: 'Search, or type where to go',
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
  tokens: 'API tokens',
  prompts: 'Prompts',
  promptsField: 'Find a prompt',
  savePrompt: 'Save this message as a prompt',
  promptSaved: 'Saved as a prompt. Type / in an empty message to find it.',
  removePrompt: 'Remove a prompt',
  promptRemoved: 'The prompt is removed.',
  models: 'Models',
  searchModels: 'Search models',
  noModels: 'No models match.',
  lately: 'Recently used',
  tiers: { standard: 'Standard', budget: 'Budget', unstated: 'Price not published', added: 'Added here' },
  instructions: 'Instructions',
  aboutInstructions: 'The model follows them in this conversation. They are sent with each message.',
  example: 'For example: Answer briefly.',
  presets: 'Presets',
  nothing: 'None',
  use: 'Use',
  cancel: 'Cancel',
  singleKeys: 'Use single-key shortcuts',
  shortcuts: [
    [['Ctrl K'], 'Go to a view, a conversation or an action (⌘K on a Mac)'],
    [['1', '…'], 'Go to the first view, the second, …'],
    [['N'], 'Start a new conversation'],
    [['/'], 'Search; in an empty message: find a prompt'],
    [['?'], 'Show this list'],
    [['Enter'], 'Send the message'],
    [['Shift Enter'], 'Start a new line in the message'],
    [['↑'], 'Edit your last message, while the field is empty'],
    [['↑', '↓'], 'In the list of conversations: go to another one'],
    [['F2', 'Delete'], 'In the list of conversations: rename or delete it'],
    [['J', 'K'], 'Among the videos: go to the next or the previous one'],
    [['←', '→'], 'In a large video: go to the previous or the next one'],
    [['F', 'D', 'I'], 'In a large video: mark it as a favourite, download it, hide its details'],
    [['Esc'], 'Close what is open, or stop editing'],
  ],
};

const MAX_RESULTS = 30;
/** For how long the texts to search are prepared at a time, in milliseconds. */
const STEP = 8;
/** How much of a text is shown before and after the words that were found in it. */
const AROUND = [30, 90];

const MAX_PROMPTS = 100;

/** How many of the models that were used last stand on top. */
const LATELY = 3;

/** Opens the palette. `page` is `{catalog, views, go(view, focus), openConversation(id)}`. */
export const palette = (page) => choose({ title: TEXT.palette, hint: TEXT.field }, entries(page), () => kept(page));

/** Opens the list of prompts; the chosen one is written into the message. Escape writes the `/` that opened it. */
export async function prompts(page) {
  await choose({ title: TEXT.prompts, hint: TEXT.promptsField }, promptEntries(page));
  byId('palette').addEventListener('cancel', () => insert('/'));
}

/** Opens the sheet of models; `done(model)` takes the choice. `current` is the id of the picked model. A model may name its `group`. */
export function pickModel(catalog, current, done) {
  const recent = lately();
  const groupOf = (model) => model.group ?? `${TEXT.tiers[model.tier] ?? model.tier} · ${price(model.price_micros)}`;
  const first = recent.map((id) => catalog.chat.find((one) => one.id === id)).filter(Boolean);
  const row = (group) => (model) => ({
    kind: '', name: model.id, model: model.id, side: price(model.price_micros), note: model.best_for, group, isCurrent: model.id === current,
    act: () => done(model),
  });
  const rest = Map.groupBy(catalog.chat.filter((model) => !first.includes(model)), groupOf);
  const rows = [...first.map(row(TEXT.lately)), ...[...rest].flatMap(([group, models]) => models.map(row(group)))];
  void choose({ title: TEXT.models, hint: TEXT.searchModels, label: TEXT.searchModels, none: TEXT.noModels, kind: 'model-sheet' }, rows);
}

export function noteUse(id) {
  choice.set('chat-lately', JSON.stringify([id, ...lately().filter((other) => other !== id)].slice(0, LATELY)));
}

const lately = () => choice.list('chat-lately');

/**
 * Opens a list of entries, `{kind, name, act, icon?, note?, text?, group?, side?}`, to search and choose from. `text` is only searched; what
 * is found there stands below the others, with the words around it. `more()` resolves to further entries.
 */
async function choose({ title, hint, label = title, none: nothing = TEXT.none, kind = 'palette' }, all, more = null) {
  const field = element('input', {
    type: 'text', role: 'combobox', placeholder: hint, autocomplete: 'off', spellcheck: 'false', dir: 'auto',
    'aria-label': label, 'aria-expanded': 'true', 'aria-controls': 'palette-list', 'aria-autocomplete': 'list',
  });
  const list = element('div', { id: 'palette-list', role: 'listbox', 'aria-label': TEXT.results });
  const none = element('p', { class: 'hint', text: nothing, hidden: true });
  const dialog = openSheet(title, { id: 'palette', class: kind }, field, list, none);
  let shown = [], options = [], at = 0;

  const mark = () => {
    options.forEach((item, place) => item.setAttribute('aria-selected', place === at));
    const chosen = options[at];
    if (chosen) field.setAttribute('aria-activedescendant', chosen.id);
    else field.removeAttribute('aria-activedescendant');
    chosen?.scrollIntoView({ block: 'nearest' });
  };
  const take = (entry) => {
    dialog.close();
    entry?.act();
  };
  const option = (entry, place) => element('div', { id: `palette-${place}`, role: 'option', 'data-model': entry.model, class: entry.isCurrent && 'current', click: () => take(entry) },
    entry.icon && icon(entry.icon), element('span', { text: entry.name }), element('span', { class: 'hint', text: entry.side ?? entry.kind }),
    entry.note && element('span', { class: 'note', text: entry.note }), snippet(entry, wanted));
  let wanted = [];
  const draw = () => {
    wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const [named, told] = [[], []];
    for (const entry of all) {
      if (isNamed(entry, wanted)) named.push(entry);
      else if (entry.text && wanted.every((word) => lower(entry).includes(word))) told.push(entry);
    }
    shown = [...named, ...told].slice(0, MAX_RESULTS);
    at = Math.max(shown.findIndex(({ isCurrent }) => isCurrent), 0);
    none.hidden = shown.length > 0;
    list.hidden = !shown.length;
    options = shown.map(option);
    const groups = [...Map.groupBy(shown, ({ group }) => group)];
    list.replaceChildren(...groups.flatMap(([group, those], place) => {
      const rows = those.map((entry) => options[shown.indexOf(entry)]);
      return group ? [element('div', { role: 'group', 'aria-labelledby': `palette-group-${place}` },
        element('p', { id: `palette-group-${place}`, role: 'presentation', class: 'hint', text: group }), rows)] : rows;
    }));
    mark();
  };
  field.addEventListener('input', () => {
    draw();
    announce(TEXT.found(shown.length));
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

const isNamed = (entry, wanted) => {
  const name = `${entry.kind} ${entry.name} ${entry.note ?? ''}`.toLowerCase();
  return wanted.every((word) => name.includes(word));
};

/** The text of an entry in lower case, made once. */
const lower = (entry) => (entry.lower ??= entry.text.toLowerCase());

/** The words that were found in the text of an entry, with some around them; null if its name has them. */
function snippet(entry, wanted) {
  if (!entry.text || isNamed(entry, wanted)) return null;
  const whole = wanted.join(' ');
  const found = lower(entry).includes(whole) ? whole : wanted.find((word) => !entry.name.toLowerCase().includes(word));
  const at = lower(entry).indexOf(found);
  // Lower case may have another length in some languages.
  const text = lower(entry).length === entry.text.length ? entry.text : lower(entry);
  const end = at + found.length;
  const plain = (from, to) => text.slice(Math.max(0, from), to).replace(/[\s#*>`|]+/g, ' ');
  return element('span', { class: 'note snippet', dir: 'auto' }, at > AROUND[0] ? '… ' : '', plain(at - AROUND[0], at),
    element('mark', { text: text.slice(at, end) }), plain(end, end + AROUND[1]));
}

const action = (name, glyph, act) => ({ kind: TEXT.kinds.action, name, icon: glyph, act });

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
    ...(byId('tokens').hidden ? [] : [action(TEXT.tokens, 'file', () => byId('tokens').click())]),
    ...(byId('sign-out').hidden ? [] : [action(TEXT.signOut, 'out', () => byId('sign-out').click())]),
  ];
}

/** The conversations with their texts, prepared in steps. */
async function kept({ openConversation }) {
  const made = [];
  let end = performance.now() + STEP;
  for (const { id, title, turns } of (await conversations.all()).sort((one, other) => other.at - one.at)) {
    const entry = {
      kind: TEXT.kinds.conversation, name: title || TEXT.untitled, icon: 'chat', act: () => void openConversation(id),
      text: turns.flatMap(({ question, answer }) => [question, answer ?? '']).join('\n'),
    };
    lower(entry);
    made.push(entry);
    if (performance.now() < end) continue;
    await new Promise((done) => { setTimeout(done); });
    end = performance.now() + STEP;
  }
  return made;
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
  const remove = () => choose({ title: TEXT.removePrompt, hint: TEXT.promptsField },
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

const savedPrompts = () => choice.list('prompts').map(String);

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
  openSheet(TEXT.help, { class: 'shortcuts' },
    element('dl', {}, TEXT.shortcuts.flatMap(row)),
    element('label', { class: 'row' }, box, TEXT.singleKeys));
}

/** Opens the instructions of a conversation: a preset of the operator, or a text of one's own. `take(text)` gets them, '' for none. */
export function editInstructions(catalog, current, take) {
  const mark = () => {
    for (const one of choices.children) one.ariaPressed = String(one.dataset.system === field.value.trim());
  };
  const choices = element('div', { class: 'choices', role: 'group', 'aria-label': TEXT.presets },
    [{ name: TEXT.nothing, system: '' }, ...catalog.presets ?? []].map(({ name, system }) => element('button', {
      type: 'button', class: 'quiet small', text: name, 'data-system': system, click: () => {
        field.value = system;
        mark();
      },
    })));
  const field = element('textarea', { 'aria-label': TEXT.instructions, rows: 5, dir: 'auto', placeholder: TEXT.example, maxlength: 20000, input: mark });
  const save = (event) => {
    event.preventDefault();
    made.close();
    take(field.value.trim());
  };
  const made = openSheet(TEXT.instructions, { class: 'form' }, element('form', { submit: save },
    element('p', { class: 'hint', text: TEXT.aboutInstructions }), choices, field,
    element('div', { class: 'actions' }, button(TEXT.cancel, () => made.close()), element('button', { type: 'submit', class: 'primary', text: TEXT.use }))));
  field.value = current;
  mark();
  field.focus();
}
