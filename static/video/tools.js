/** Narrows and selects the listed videos. Loaded when there are many, or when somebody selects. */

import { byId, element, twice } from '../core/dom.js';
import { TEXT } from './strings.js';

/** Between two downloads of a selection, in milliseconds: browsers drop faster ones. */
const BETWEEN = 400;
const DAY = 24 * 60 * 60 * 1000;

/** What "Show" offers: a test of an entry. */
const KINDS = {
  all: () => true,
  favourite: ({ job }) => job.favourite,
  open: ({ phase }) => ['open', 'left'].includes(phase),
  finished: ({ phase }) => phase === 'finished',
  other: ({ phase }) => ['failed', 'gone'].includes(phase),
};

let list, isSelecting = false;
const fields = {};

/** Adds the fields. `narrow()` is called when something else is wanted, `arrange()` draws the list; `drop(id)` removes a video. */
export function startTools(gallery) {
  list = gallery;
  const select = (name, values) => {
    fields[name] = element('select', { id: `jobs-${name}`, 'aria-label': TEXT.tools[name], change: list.narrow });
    offer(name, values);
    return fields[name];
  };
  fields.search = element('input', {
    id: 'jobs-search', type: 'search', dir: 'auto', placeholder: TEXT.tools.placeholder, 'aria-label': TEXT.tools.search, input: list.narrow,
  });
  byId('jobs-tools').replaceChildren(fields.search, ...['filter', 'model', 'shape', 'date', 'sort'].map((name) => select(name, TEXT.tools.choices[name])));
  byId('jobs').addEventListener('change', showPicked);
}

/** What is wanted now: a test of an entry, and 1 if newer ones come first, else -1. */
export function wanted() {
  const words = fields.search.value.trim().toLowerCase().split(/\s+/);
  const { filter, model, shape, date, sort } = fields;
  const since = date.value === 'today' ? new Date().setHours(0, 0, 0, 0) : date.value ? Date.now() - date.value.slice(1) * DAY : 0;
  return {
    isWanted: (entry) => KINDS[filter.value](entry) && entry.at >= since
      && [[model, 'model'], [shape, 'aspect_ratio']].every(([{ value }, name]) => !value || entry.job.payload[name] === value)
      && words.every((word) => entry.text.includes(word)),
    newer: sort.value === 'oldest' ? -1 : 1,
  };
}

/** Shows the fields if there are many, and what can be done with the selection. */
export function show(entries, isMany) {
  byId('jobs-tools').hidden = !isMany;
  for (const [name, field] of [['model', 'model'], ['shape', 'aspect_ratio']]) {
    const values = [...new Set(entries.map(({ job }) => job?.payload[field]).filter(Boolean))].sort();
    offer(name, { ...TEXT.tools.choices[name], ...Object.fromEntries(values.map((value) => [value, value])) });
    fields[name].hidden = values.length < 2;
  }
  showPicked();
}

function offer(name, values) {
  const select = fields[name];
  if (Object.keys(values).join() === [...select.options].map(({ value }) => value).join()) return;
  const before = select.value;
  select.replaceChildren(...Object.entries(values).map(([value, text]) => element('option', { value, text })));
  if (before in values) select.value = before;
}

export function select() {
  isSelecting = !isSelecting;
  byId('jobs').classList.toggle('selecting', isSelecting);
  byId('jobs-select').textContent = isSelecting ? TEXT.doneSelecting : TEXT.select;
  byId('jobs-select').ariaPressed = String(isSelecting);
  if (!isSelecting) for (const box of byId('jobs').querySelectorAll('.pick:checked')) box.checked = false;
  list.arrange();
}

function showPicked() {
  const items = isSelecting ? list.shownItems().filter((item) => item.querySelector('.pick:checked')) : [];
  const facts = items.map(({ dataset }) => dataset.id).join();
  const bar = byId('jobs-picked');
  bar.hidden = items.length === 0;
  if (bar.dataset.facts === facts) return;
  bar.dataset.facts = facts;
  bar.replaceChildren(
    element('button', { type: 'button', class: 'quiet small', text: TEXT.downloadPicked(items.length), click: () => void download(items) }),
    twice(TEXT.removePicked(items.length), TEXT.removePickedSure(items.length), async () => {
      for (const { dataset } of items) await list.drop(dataset.id);
      select();
      byId('video-heading').focus();
    }, { kind: 'quiet small' }));
}

async function download(items) {
  for (const item of items) {
    item.querySelector('a[download]')?.click();
    await new Promise((done) => { setTimeout(done, BETWEEN); });
  }
}
