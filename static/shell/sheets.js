/** Dialogs: the palette, which finds everything; prompts, models, instructions, shortcuts. */

import { announce, button, byId, element, icon, openSheet } from '../core/dom.js';
import { price, remark, t } from '../core/format.js';
import { choice, conversations } from '../core/site.js';

/** The keys, and the text that says what they do. */
const SHORTCUTS = [
  [['Ctrl K'], 'go'], [['1', '…'], 'view'], [['N'], 'new'], [['/'], 'search'], [['?'], 'help'], [['Enter'], 'send'], [['Shift Enter'], 'line'],
  [['↑'], 'last'], [['↑', '↓'], 'list'], [['F2', 'Delete'], 'rename'], [['J', 'K'], 'videos'], [['←', '→'], 'large'], [['F', 'D', 'I'], 'mark'],
  [['Esc'], 'close'],
];

const MAX_RESULTS = 30;
/** For how long the texts to search are prepared at a time, in milliseconds. */
const STEP = 8;
/** How much of a text is shown before and after the words that were found in it. */
const AROUND = [30, 90];

const MAX_PROMPTS = 100;

/** How many of the models that were used last stand on top. */
const LATELY = 3;

/** Opens the palette. `page` is `{catalog, views, go(view, focus), openConversation(id)}`. */
export const palette = (page) => choose({ title: t('sheet.palette'), hint: t('sheet.field') }, entries(page), () => kept(page));

/** Opens the list of prompts; the chosen one is written into the message. Escape writes the `/` that opened it. */
export async function prompts(page) {
  await choose({ title: t('sheet.prompts'), hint: t('sheet.promptsField') }, promptEntries(page));
  byId('palette').addEventListener('cancel', () => insert('/'));
}

/** Opens the sheet of models; `done(model)` takes the choice. `current` is the id of the picked model. A model may name its `group`. */
export function pickModel(catalog, current, done) {
  const recent = lately();
  const groupOf = (model) => model.group ?? `${t(`sheet.tier.${model.tier}`) ?? model.tier} · ${price(model.price_micros)}`;
  const first = recent.map((id) => catalog.chat.find((one) => one.id === id)).filter(Boolean);
  const row = (group) => (model) => ({
    kind: '', name: model.id, model: model.id, side: price(model.price_micros), note: remark(model.best_for), group, isCurrent: model.id === current,
    act: () => done(model),
  });
  const rest = Map.groupBy(catalog.chat.filter((model) => !first.includes(model)), groupOf);
  const rows = [...first.map(row(t('sheet.lately'))), ...[...rest].flatMap(([group, models]) => models.map(row(group)))];
  void choose({ title: t('sheet.models'), hint: t('sheet.searchModels'), label: t('sheet.searchModels'), none: t('sheet.noModels'), kind: 'model-sheet' }, rows);
}

export function noteUse(id) {
  choice.set('chat-lately', JSON.stringify([id, ...lately().filter((other) => other !== id)].slice(0, LATELY)));
}

const lately = () => choice.list('chat-lately');

/**
 * Opens a list of entries, `{kind, name, act, icon?, note?, text?, group?, side?}`, to search and choose from. `text` is only searched; what
 * is found there stands below the others, with the words around it. `more()` resolves to further entries.
 */
async function choose({ title, hint, label = title, none: nothing = t('sheet.none'), kind = 'palette' }, all, more = null) {
  const field = element('input', {
    type: 'text', role: 'combobox', placeholder: hint, autocomplete: 'off', spellcheck: 'false', dir: 'auto',
    'aria-label': label, 'aria-expanded': 'true', 'aria-controls': 'palette-list', 'aria-autocomplete': 'list',
  });
  const list = element('div', { id: 'palette-list', role: 'listbox', 'aria-label': t('sheet.results') });
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
    announce(t('sheet.found', shown.length));
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

const action = (name, glyph, act) => ({ kind: t('sheet.kind.action'), name, icon: glyph, act });

function entries(page) {
  const { catalog, go, views } = page;
  return [
    ...views.map(({ name, title }) => ({ kind: t('sheet.kind.view'), name: title, icon: name, act: () => go(name) })),
    action(t('talk.fresh'), 'plus', () => byId('new-conversation').click()),
    ...catalog.chat.map(({ id, price_micros: micros }) => ({
      kind: t('sheet.kind.model'), name: t('sheet.model', id), side: price(micros), icon: 'chat', act: () => pick(go, id),
    })),
    ...['', 'light', 'dark'].map((value) => action(t(`sheet.theme.${value}`), 'more', () => {
      byId('theme').value = value;
      byId('theme').dispatchEvent(new Event('change'));
      announce(t(`sheet.theme.${value}`));
    })),
    ...promptEntries(page),
    action(t('sheet.help'), 'help', help),
    ...(byId('tokens').hidden ? [] : [action(t('token.title'), 'file', () => byId('tokens').click())]),
    ...(byId('sign-out').hidden ? [] : [action(t('sheet.signOut'), 'out', () => byId('sign-out').click())]),
  ];
}

/** The conversations with their texts, prepared in steps. */
async function kept({ openConversation }) {
  const made = [];
  let end = performance.now() + STEP;
  for (const { id, title, turns } of (await conversations.all()).sort((one, other) => other.at - one.at)) {
    const entry = {
      kind: t('sheet.kind.conversation'), name: title || t('talk.untitled'), icon: 'chat', act: () => void openConversation(id),
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
  const list = (act) => saved.map((text) => ({ kind: t('sheet.kind.prompt'), name: text.slice(0, 200), icon: 'edit', act: () => act(text) }));
  const write = (text) => {
    insert(text);
    go('chat', 'chat-text');
  };
  const remove = () => choose({ title: t('sheet.removePrompt'), hint: t('sheet.promptsField') },
    list((text) => keep(saved.filter((other) => other !== text), t('sheet.promptRemoved'))));
  const draft = byId('chat-text').value.trim();
  return [
    ...list(write),
    ...(draft && !saved.includes(draft) ? [action(t('sheet.savePrompt'), 'plus', () => keep([draft, ...saved], t('sheet.promptSaved')))] : []),
    ...(saved.length ? [action(t('sheet.removePrompt'), 'bin', () => void remove())] : []),
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
    element('dt', {}, keys.flatMap((key, place) => [place ? ' ' : null, element('kbd', { text: key.replace(/Ctrl|Shift|Delete/, (label) => t(`key.label.${label.toLowerCase()}`)) })])), element('dd', { text: t(`key.${text}`) })];
  const box = element('input', { type: 'checkbox', checked: choice.get('keys') !== 'off', change: () => choice.set('keys', box.checked ? 'on' : 'off') });
  openSheet(t('sheet.help'), { class: 'shortcuts' },
    element('dl', {}, SHORTCUTS.flatMap(row)),
    element('label', { class: 'row' }, box, t('sheet.singleKeys')));
}

/** Opens the instructions of a conversation: a preset of the operator, or a text of one's own. `take(text)` gets them, '' for none. */
export function editInstructions(catalog, current, take) {
  const mark = () => {
    for (const one of choices.children) one.ariaPressed = String(one.dataset.system === field.value.trim());
  };
  const choices = element('div', { class: 'choices', role: 'group', 'aria-label': t('sheet.presets') },
    [{ name: t('page.none'), system: '' }, ...catalog.presets ?? []].map(({ name, system }) => element('button', {
      type: 'button', class: 'quiet small', text: name, 'data-system': system, click: () => {
        field.value = system;
        mark();
      },
    })));
  const field = element('textarea', { 'aria-label': t('chat.instructions'), rows: 5, dir: 'auto', placeholder: t('sheet.example'), maxlength: 20000, input: mark });
  const save = (event) => {
    event.preventDefault();
    made.close();
    take(field.value.trim());
  };
  const made = openSheet(t('chat.instructions'), { class: 'form' }, element('form', { submit: save },
    element('p', { class: 'hint', text: t('sheet.aboutInstructions') }), choices, field,
    element('div', { class: 'actions' }, button(t('page.cancel'), () => made.close()), element('button', { type: 'submit', class: 'primary', text: t('sheet.use') }))));
  field.value = current;
  mark();
  field.focus();
}
