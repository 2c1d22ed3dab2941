/** The list of videos: running ones first, then the newest; searchable, shown in parts. */

import { byId, say } from '../core/dom.js';
import { TEXT } from './strings.js';

/** As many as are shown at once, and added by a click. */
const PART = 12;
/** From so many on there is something to search. */
const MANY = 7;

/** `{item, at, rank, phase, text}` by id; `rank` 0 stands before 1, `text` is what is searched. */
const entries = new Map();
let most = PART;

/** Begins with an empty list; `arrange` says so once it is known to be empty. */
export function startGallery() {
  byId('jobs-search').addEventListener('input', narrow);
  byId('jobs-filter').addEventListener('change', narrow);
  byId('jobs-more').addEventListener('click', () => {
    const next = shownItems()[most - 1];
    most += PART;
    arrange();
    // The button moves away from under the focus: on to the first of the new ones.
    next?.nextElementSibling?.querySelector('button, a, summary, video')?.focus();
  });
}

/** Puts an entry into the list, in place of the one that had its id. */
export function place(id, entry) {
  const before = entries.get(id);
  entries.set(id, entry);
  if (before && before.item !== entry.item) {
    const hadFocus = before.item.contains(document.activeElement);
    before.item.replaceWith(entry.item);
    if (hadFocus) entry.item.querySelector('button, a')?.focus();
  }
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
  if (hadFocus) byId('jobs-heading').focus();
}

function narrow() {
  most = PART;
  arrange();
}

/** The filter's choices, by the phases that they show. */
const SHOWN = { all: null, open: ['open', 'left'], finished: ['finished'], other: ['failed', 'gone'] };

/** Shows what there is, or that there is nothing. */
export function arrange() {
  const search = byId('jobs-search').value.trim().toLowerCase();
  const phases = entries.size < MANY ? null : SHOWN[byId('jobs-filter').value];
  const wanted = ({ text, phase }) => (!phases || !phase || phases.includes(phase))
    && (entries.size < MANY || !text || search.split(/\s+/).every((word) => text.includes(word)));
  const sorted = [...entries.values()].sort((one, other) => one.rank - other.rank || other.at - one.at);
  const matching = sorted.filter(wanted);
  const visible = new Set(matching.slice(0, most));
  order(byId('jobs'), sorted.map(({ item }) => item));
  for (const entry of sorted) entry.item.hidden = !visible.has(entry);
  byId('jobs-empty').hidden = entries.size > 0;
  byId('jobs-tools').hidden = entries.size < MANY;
  byId('jobs-none').hidden = entries.size === 0 || matching.length > 0;
  byId('jobs-more').hidden = matching.length <= most;
  byId('jobs-more').textContent = TEXT.showMore(Math.min(PART, matching.length - most));
  say('jobs-count', entries.size === 0 ? '' : TEXT.count(matching.length, entries.size));
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
