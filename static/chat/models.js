/** The sheet of models: search, price, strengths, and the ones that were used last. */

import { element } from '../core/dom.js';
import { price } from '../core/format.js';
import { choice } from '../core/store.js';
import { TEXT } from './chat.js';

/** How many of the models that were used last stand on top. */
const LATELY = 3;

let sheet = null, field, list, models, picked, choose;

/**
 * Opens the sheet; `done(model)` takes the choice. `current` is the id of the model that is picked now. A model that names its `group`
 * stands in that one.
 */
export function pickModel(catalog, current, done) {
  [models, picked, choose] = [catalog.chat, current, done];
  sheet ??= build();
  field.value = '';
  sheet.showModal();
  draw();
  field.focus();
}

/** Notes that this model was used. */
export function noteUse(id) {
  choice.set('chat-lately', JSON.stringify([id, ...lately().filter((other) => other !== id)].slice(0, LATELY)));
}

function lately() {
  try {
    const ids = JSON.parse(choice.get('chat-lately'));
    return Array.isArray(ids) ? ids : [];
  } catch {
    return [];
  }
}

function build() {
  list = element('div', { id: 'model-list', role: 'listbox', 'aria-label': TEXT.models.title, class: 'model-list' });
  field = element('input', {
    type: 'search', role: 'combobox', 'aria-expanded': 'true', 'aria-controls': 'model-list', 'aria-autocomplete': 'list', autocomplete: 'off',
    'aria-label': TEXT.models.search, placeholder: TEXT.models.search, dir: 'auto', input: draw, keydown: steer,
  });
  const close = () => made.close();
  const made = element('dialog', { class: 'model-sheet', 'aria-labelledby': 'model-sheet-heading' },
    element('div', { class: 'sheet-head' }, element('h2', { id: 'model-sheet-heading', text: TEXT.models.title }),
      element('button', { type: 'button', class: 'quiet small', text: TEXT.models.close, click: close })),
    field, list);
  // A press beside the sheet closes it.
  made.addEventListener('click', ({ target }) => target === made && close());
  document.body.append(made);
  return made;
}

const options = () => [...list.querySelectorAll('[role=option]')];
const active = () => options().find(({ id }) => id === field.getAttribute('aria-activedescendant'));

function draw() {
  const wanted = field.value.trim().toLowerCase().split(/\s+/);
  const matching = models.filter(({ id, best_for: praise }) => wanted.every((word) => `${id} ${praise}`.toLowerCase().includes(word)));
  const groups = new Map();
  const put = (name, model) => groups.set(name, [...(groups.get(name) ?? []), model]);
  const recent = lately();
  for (const id of recent) {
    const model = matching.find((one) => one.id === id);
    if (model) put(TEXT.models.lately, model);
  }
  for (const model of matching) {
    if (!recent.includes(model.id)) put(model.group ?? `${TEXT.models.tiers[model.tier] ?? model.tier} · ${price(model.price_micros)}`, model);
  }
  list.replaceChildren(...[...groups].map(([name, rows], place) => element('div', { role: 'group', 'aria-labelledby': `model-group-${place}` },
    element('p', { id: `model-group-${place}`, role: 'presentation', class: 'hint', text: name }), ...rows.map(option))));
  if (!matching.length) list.replaceChildren(element('p', { class: 'hint', text: TEXT.models.none }));
  activate(options().find(({ dataset }) => dataset.model === picked) ?? options()[0]);
}

function option(model) {
  const praise = model.best_for;
  return element('div', {
    role: 'option', id: `model-${model.id}`, 'data-model': model.id, 'aria-selected': model.id === picked ? 'true' : 'false', click: () => take(model),
  }, element('strong', { text: model.id }), element('span', { class: 'cost', text: price(model.price_micros) }), praise ? element('span', { class: 'praise', text: praise }) : null);
}

function activate(row) {
  for (const one of options()) one.classList.toggle('active', one === row);
  if (!row) return field.removeAttribute('aria-activedescendant');
  field.setAttribute('aria-activedescendant', row.id);
  row.scrollIntoView({ block: 'nearest' });
}

function steer(event) {
  const rows = options();
  const at = rows.indexOf(active());
  if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
    event.preventDefault();
    activate(rows[(at + (event.key === 'ArrowDown' ? 1 : -1) + rows.length) % rows.length]);
  } else if (event.key === 'Enter' && !event.isComposing) {
    event.preventDefault();
    const model = models.find(({ id }) => id === active()?.dataset.model);
    if (model && !event.repeat) take(model);
  }
}

function take(model) {
  sheet.close();
  choose(model);
}
