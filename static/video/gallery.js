/** The list of videos: running ones first, then the newest; shown in parts. tools.js narrows it and selects from it. */

import { byId, notice, say } from '../core/dom.js';
import { clock } from '../core/format.js';
import { TEXT } from './strings.js';

/** As many are shown at once, and added by a click. */
const PART = 24;
/** From so many on there is something to search. */
const MANY = 7;

/**
 * By id: `{item, job, at, rank, phase, text, left(), needsAttention}`. `rank` 0 stands before 1, `text` is searched; `left()`: the time
 * until it is made; an order that needs attention has no job and stands in the drawer above.
 */
const entries = new Map();
let most = PART, drop = null;

/** Begins with an empty list; `arrange` says so once it is known to be empty. `remove(id)` removes a video. */
export function startGallery({ remove }) {
  drop = remove;
  byId('jobs-more').addEventListener('click', () => {
    const next = shownItems()[most - 1];
    most += PART;
    arrange();
    // The button moves away from under the focus: on to the first of the new ones.
    next?.nextElementSibling?.querySelector('button, a, summary, video')?.focus();
  });
  byId('jobs').addEventListener('keydown', steer);
  byId('jobs-select').addEventListener('click', () => void narrowing().then(({ select }) => select(), () => notice(TEXT.notLoaded)));
}

/** tools.js, once there is something to narrow or to select; `tools` when it is loaded. */
let loading = null, tools = null;

function narrowing() {
  loading ??= import('./tools.js').then((module) => {
    tools = module;
    module.startTools({ narrow, arrange, shownItems, drop });
    return module;
  }).catch((error) => {
    loading = null;
    throw error;
  });
  return loading;
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

/** Shows the entries, or that there are none. */
export function arrange() {
  const all = [...entries.values()];
  const isMany = all.length >= MANY;
  if (isMany && !loading) void narrowing().then(arrange, () => {});
  const { isWanted, newer } = (isMany && tools?.wanted()) || { isWanted: () => true, newer: 1 };
  const urgent = all.filter(({ needsAttention }) => needsAttention).sort((one, other) => other.at - one.at);
  const sorted = all.filter(({ needsAttention }) => !needsAttention).sort((one, other) => one.rank - other.rank || newer * (other.at - one.at));
  const matching = sorted.filter((entry) => !entry.job || isWanted(entry));
  const visible = new Set(matching.slice(0, most));
  order(byId('attention-list'), urgent.map(({ item }) => item));
  order(byId('jobs'), sorted.map(({ item }) => item));
  for (const entry of sorted) entry.item.hidden = !visible.has(entry);
  byId('attention').hidden = urgent.length === 0;
  say('attention-count', urgent.length ? TEXT.attention(urgent.length) : '');
  byId('jobs-empty').hidden = entries.size > 0;
  byId('jobs-select').hidden = sorted.length < 2 && byId('jobs-select').ariaPressed !== 'true';
  byId('jobs-none').hidden = sorted.length === 0 || matching.length > 0;
  byId('jobs-more').hidden = matching.length <= most;
  byId('jobs-more').textContent = TEXT.showMore(Math.min(PART, matching.length - most));
  say('jobs-count', entries.size === 0 ? '' : TEXT.count(matching.length, sorted.length));
  tools?.show(sorted, isMany);
  showMaking();
}

/** How many are being made, and until when. */
export function showMaking() {
  const open = [...entries.values()].filter(({ phase }) => phase === 'open');
  const left = Math.max(0, ...open.map((entry) => entry.left?.() ?? 0));
  const text = open.length ? TEXT.making(open.length, left > 0 ? clock(left) : '') : '';
  if (byId('jobs-making').textContent !== text) byId('jobs-making').textContent = text;
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
