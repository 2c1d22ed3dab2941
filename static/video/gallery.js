/** The list of videos: running ones first, then the newest; searchable, filtered, selectable, shown in parts. */

import { byId, element, say, twice } from '../core/dom.js';
import { clock } from '../core/format.js';
import { TEXT } from './strings.js';

/** As many are shown at once, and added by a click. */
const PART = 24;
/** From so many on there is something to search. */
const MANY = 7;
/** Between two downloads of a selection, in milliseconds: browsers drop faster ones. */
const BETWEEN = 400;

/**
 * By id: `{item, at, rank, phase, text, model, shape, left(), needsAttention}`. `rank` 0 stands before 1, `text` is searched;
 * `left()`: the time until it is made; an order that needs attention stands in the drawer above.
 */
const entries = new Map();
let most = PART, drop = null, isSelecting = false;

/** Begins with an empty list; `arrange` says so once it is known to be empty. `remove(id)` removes a video. */
export function startGallery({ remove }) {
  drop = remove;
  byId('jobs-search').addEventListener('input', narrow);
  for (const id of ['jobs-filter', 'jobs-model', 'jobs-shape', 'jobs-sort']) byId(id).addEventListener('change', narrow);
  byId('jobs-more').addEventListener('click', () => {
    const next = shownItems()[most - 1];
    most += PART;
    arrange();
    // The button moves away from under the focus: on to the first of the new ones.
    next?.nextElementSibling?.querySelector('button, a, summary, video')?.focus();
  });
  byId('jobs').addEventListener('keydown', steer);
  byId('jobs').addEventListener('change', showPicked);
  byId('jobs-select').addEventListener('click', () => select(!isSelecting));
}

/** J and K go to the next and the previous tile. */
function steer(event) {
  if (!['j', 'k'].includes(event.key) || event.ctrlKey || event.metaKey || event.altKey || event.target.matches('input')) return;
  const items = shownItems();
  const next = items[items.indexOf(event.target.closest('#jobs > li')) + (event.key === 'j' ? 1 : -1)];
  next?.querySelector('button, a')?.focus();
}

/** Puts an entry into the list, in place of the one that had its id. */
export function place(id, entry) {
  const before = entries.get(id);
  entries.set(id, entry);
  if (before && before.item !== entry.item) {
    const hadFocus = before.item.contains(document.activeElement);
    if (Boolean(before.needsAttention) === Boolean(entry.needsAttention)) before.item.replaceWith(entry.item);
    else before.item.remove();
    if (hadFocus) entry.item.querySelector('button, a')?.focus();
  }
  if (entry.needsAttention === 'now') byId('attention').open = true;
  arrange();
}

/** Takes an entry out of the list; the focus, if it was there, goes to the heading. */
export function unplace(id) {
  const entry = entries.get(id);
  if (!entry) return;
  const hadFocus = entry.item.contains(document.activeElement);
  entries.delete(id);
  entry.item.remove();
  arrange();
  if (hadFocus) byId('video-heading').focus();
}

/** The videos that are listed now, in this order. */
export const shownIds = () => shownItems().map(({ dataset }) => dataset.id).filter(Boolean);

function narrow() {
  most = PART;
  arrange();
}

/** The filter's choices, by the phases that they show. */
const SHOWN = { all: null, open: ['open', 'left'], finished: ['finished'], other: ['failed', 'gone'] };

/** Shows the entries, or that there are none. */
export function arrange() {
  const search = byId('jobs-search').value.trim().toLowerCase();
  const isNarrowed = entries.size >= MANY;
  const phases = isNarrowed ? SHOWN[byId('jobs-filter').value] : null;
  const [model, shape] = ['jobs-model', 'jobs-shape'].map((id) => (isNarrowed ? byId(id).value : ''));
  const isWanted = (entry) => (!phases || !entry.phase || phases.includes(entry.phase))
    && (!model || entry.model === model) && (!shape || entry.shape === shape)
    && (!isNarrowed || !entry.text || search.split(/\s+/).every((word) => entry.text.includes(word)));
  const newer = byId('jobs-sort').value === 'oldest' ? -1 : 1;
  const all = [...entries.values()];
  const urgent = all.filter(({ needsAttention }) => needsAttention).sort((one, other) => other.at - one.at);
  const sorted = all.filter(({ needsAttention }) => !needsAttention).sort((one, other) => one.rank - other.rank || newer * (other.at - one.at));
  const matching = sorted.filter(isWanted);
  const visible = new Set(matching.slice(0, most));
  order(byId('attention-list'), urgent.map(({ item }) => item));
  order(byId('jobs'), sorted.map(({ item }) => item));
  for (const entry of sorted) entry.item.hidden = !visible.has(entry);
  byId('attention').hidden = urgent.length === 0;
  say('attention-count', urgent.length ? TEXT.attention(urgent.length) : '');
  byId('jobs-empty').hidden = entries.size > 0;
  byId('jobs-tools').hidden = !isNarrowed;
  byId('jobs-select').hidden = sorted.length < 2 && !isSelecting;
  byId('jobs-none').hidden = sorted.length === 0 || matching.length > 0;
  byId('jobs-more').hidden = matching.length <= most;
  byId('jobs-more').textContent = TEXT.showMore(Math.min(PART, matching.length - most));
  say('jobs-count', entries.size === 0 ? '' : TEXT.count(matching.length, sorted.length));
  offer('jobs-model', sorted.map((entry) => entry.model), TEXT.anyModel);
  offer('jobs-shape', sorted.map((entry) => entry.shape), TEXT.anyShape);
  showMaking();
  showPicked();
}

/** Offers these values, each once, and all of them. */
function offer(id, values, anyText) {
  const wanted = ['', ...new Set(values.filter(Boolean).sort())];
  const select = byId(id);
  if (wanted.join() === [...select.options].map(({ value }) => value).join()) return;
  const before = select.value;
  select.replaceChildren(...wanted.map((value) => element('option', { value, text: value || anyText })));
  select.value = wanted.includes(before) ? before : '';
  select.hidden = wanted.length < 3;
}

/** How many are being made, and until when. */
export function showMaking() {
  const open = [...entries.values()].filter(({ phase }) => phase === 'open');
  const left = Math.max(0, ...open.map((entry) => entry.left?.() ?? 0));
  const text = open.length ? TEXT.making(open.length, left > 0 ? clock(left) : '') : '';
  if (byId('jobs-making').textContent !== text) byId('jobs-making').textContent = text;
}

function select(wanted) {
  isSelecting = wanted;
  byId('jobs').classList.toggle('selecting', wanted);
  byId('jobs-select').textContent = wanted ? TEXT.doneSelecting : TEXT.select;
  byId('jobs-select').ariaPressed = String(wanted);
  if (!wanted) for (const box of byId('jobs').querySelectorAll('.pick:checked')) box.checked = false;
  showPicked();
}

const pickedItems = () => shownItems().filter((item) => item.querySelector('.pick:checked'));

/** The actions of the selected videos. */
function showPicked() {
  const items = isSelecting ? pickedItems() : [];
  const facts = items.map(({ dataset }) => dataset.id).join();
  const bar = byId('jobs-picked');
  bar.hidden = items.length === 0;
  if (bar.dataset.facts === facts) return;
  bar.dataset.facts = facts;
  bar.replaceChildren(
    element('button', { type: 'button', class: 'quiet small', text: TEXT.downloadPicked(items.length), click: () => void download(items) }),
    twice(TEXT.removePicked(items.length), TEXT.removePickedSure(items.length), async () => {
      for (const { dataset } of items) await drop(dataset.id);
      select(false);
      byId('video-heading').focus();
    }, { kind: 'quiet small' }));
}

async function download(items) {
  for (const item of items) {
    item.querySelector('a[download]')?.click();
    await new Promise((done) => { setTimeout(done, BETWEEN); });
  }
}

/**
 * Brings the list into this order. What stands where it should is left alone, since a clip that is moved stops playing. So is the item
 * with the focus: moved, it would lose it, and a button that was pressed once of twice would be as before.
 */
function order(list, items) {
  const still = items.find((item) => item.contains(document.activeElement)) ?? items[0];
  if (!still) return;
  if (still.parentNode !== list) list.prepend(still);
  const place = items.indexOf(still);
  items.slice(place).reduce((before, item) => {
    if (before !== item && before.nextElementSibling !== item) before.after(item);
    return item;
  });
  items.slice(0, place + 1).reduceRight((after, item) => {
    if (after !== item && after.previousElementSibling !== item) after.before(item);
    return item;
  });
}

const shownItems = () => [...byId('jobs').children].filter((item) => !item.hidden);
