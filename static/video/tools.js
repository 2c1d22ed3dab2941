/** Narrows and selects the listed videos. Loaded when there are many, or when somebody selects. */

import { announce, button, byId, element, icon, twice } from '../core/dom.js';
import { t } from '../core/format.js';

/** Between two downloads of a selection, in milliseconds: browsers drop faster ones. */
const BETWEEN = 400;
const DAY = 24 * 60 * 60 * 1000;

/** What "Show" offers: a test of an entry. */
const KINDS = {
  all: () => true,
  open: ({ phase }) => ['open', 'left'].includes(phase),
  finished: ({ phase }) => phase === 'finished',
  other: ({ phase }) => ['failed', 'gone'].includes(phase),
};

let list, star, filters, isSelecting = false;
const fields = {};

/** The choices of each field, besides the models and shapes that there are. */
const CHOICES = { filter: Object.keys(KINDS), model: [''], shape: [''], date: ['', 'today', 'd7', 'd31'], sort: ['newest', 'oldest'] };
const choices = (name) => Object.fromEntries(CHOICES[name].map((value) => [value, t(`choice.${name}.${value}`)]));

/** Adds the fields. `narrow()` is called when something else is wanted, `arrange()` draws the list; `drop(id)` removes a video. */
export function startTools(gallery) {
  list = gallery;
  const row = (name) => {
    fields[name] = element('select', { id: `jobs-${name}`, change: list.narrow });
    offer(name, choices(name));
    return [element('label', { for: `jobs-${name}`, text: t(`video.tool.${name}`) }), fields[name]];
  };
  fields.search = element('input', {
    id: 'jobs-search', type: 'search', dir: 'auto', placeholder: t('page.search'), 'aria-label': t('video.tool.search'), input: list.narrow,
  });
  const favourites = t('video.tool.favourites');
  star = element('button', { type: 'button', class: 'quiet', 'aria-pressed': 'false', 'aria-label': favourites, title: favourites, click: () => {
    star.ariaPressed = String(star.ariaPressed !== 'true');
    list.narrow();
  } }, icon('star'));
  filters = element('button', { type: 'button', class: 'quiet', popovertarget: 'jobs-filters' });
  const panel = element('div', { id: 'jobs-filters', class: 'panel pop filters', popover: 'auto' }, ['filter', 'model', 'shape', 'date', 'sort'].flatMap(row));
  panel.addEventListener('beforetoggle', () => {
    const { bottom, right } = filters.getBoundingClientRect();
    panel.style.setProperty('--x', `${document.documentElement.clientWidth - right}px`);
    panel.style.setProperty('--y', `${bottom + 4}px`);
  });
  byId('jobs-tools').replaceChildren(fields.search, star, filters, panel);
  byId('jobs').addEventListener('change', showPicked);
  byId('jobs').addEventListener('click', pick, { capture: true });
  addEventListener('keydown', ({ key }) => key === 'Escape' && isSelecting && !document.querySelector(':popover-open, dialog[open]') && select());
}

/** What is wanted now: a test of an entry, and 1 if newer ones come first, else -1. */
export function wanted() {
  const words = fields.search.value.trim().toLowerCase().split(/\s+/);
  const { filter, model, shape, date, sort } = fields;
  const since = date.value === 'today' ? new Date().setHours(0, 0, 0, 0) : date.value ? Date.now() - date.value.slice(1) * DAY : 0;
  return {
    isWanted: (entry) => KINDS[filter.value](entry) && entry.at >= since && (star.ariaPressed !== 'true' || entry.job.favourite)
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
    offer(name, { ...choices(name), ...Object.fromEntries(values.map((value) => [value, value])) });
    fields[name].hidden = fields[name].previousSibling.hidden = values.length < 2;
  }
  const set = ['filter', 'model', 'shape', 'date', 'sort'].filter((name) => fields[name].selectedIndex > 0).length;
  filters.textContent = t('video.tool.filters', set);
  filters.classList.toggle('set', set > 0);
  showPicked();
}

function offer(name, values) {
  const select = fields[name];
  if (Object.keys(values).join() === [...select.options].map(({ value }) => value).join()) return;
  const before = select.value;
  select.replaceChildren(...Object.entries(values).map(([value, text]) => element('option', { value, text })));
  if (before in values) select.value = before;
}

/** Begins to select videos, or ends it. Meanwhile a bar with what can be done stands in place of the form. */
export function select() {
  isSelecting = !isSelecting;
  byId('jobs').classList.toggle('selecting', isSelecting);
  byId('jobs-select').textContent = isSelecting ? t('video.done') : t('video.select');
  byId('jobs-select').ariaPressed = String(isSelecting);
  byId('video-form').hidden = isSelecting;
  byId('jobs-picked').hidden = !isSelecting;
  if (!isSelecting) for (const box of byId('jobs').querySelectorAll('.pick:checked')) box.checked = false;
  list.arrange();
  if (!isSelecting) byId('jobs-select').focus();
}

/** In the middle of a selection, a press anywhere on a tile selects it. */
function pick(event) {
  const box = isSelecting && event.target.closest('.frame')?.parentNode.querySelector('.pick');
  if (!box) return;
  event.stopPropagation();
  box.click();
}

function showPicked() {
  if (!isSelecting) return;
  const items = list.shownItems().filter((item) => item.querySelector('.pick:checked'));
  const facts = items.map(({ dataset }) => dataset.id).join();
  const bar = byId('jobs-picked');
  if (bar.dataset.facts === facts && bar.firstChild) return;
  bar.dataset.facts = facts;
  const hadFocus = bar.contains(document.activeElement);
  const some = (act) => () => (items.length ? act() : announce(t('video.nothingPicked')));
  const drop = async () => {
    for (const { dataset } of items) await list.drop(dataset.id);
    select();
    byId('video-heading').focus();
  };
  bar.replaceChildren(
    element('strong', { role: 'status', text: t('video.picked', items.length) }),
    button(t('video.pickAll'), pickAll, 'quiet small'),
    button(t('video.downloadPicked', items.length), some(() => void download(items)), 'quiet small'),
    items.length ? twice(t('video.removePicked', items.length), t('video.removePickedSure', items.length), drop, { kind: 'quiet small' })
      : button(t('video.removePicked', 0), some(drop), 'quiet small'),
    button(t('page.cancel'), select, 'quiet small'));
  for (const made of [...bar.children].slice(2, 4)) made.ariaDisabled = items.length ? null : 'true';
  if (hadFocus) bar.querySelector('button').focus();
}

function pickAll() {
  for (const item of list.shownItems()) {
    const box = item.querySelector('.pick:not(:disabled)');
    if (box) box.checked = true;
  }
  showPicked();
}

async function download(items) {
  for (const item of items) {
    item.querySelector('a[download][href]')?.click();
    await new Promise((done) => { setTimeout(done, BETWEEN); });
  }
}
