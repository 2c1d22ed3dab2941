/** The list of videos, a tile for each. Loaded when there is one, or when a person begins to order. */

import { announce, byId, notice, once, say } from '../core/dom.js';
import { clock, price, t } from '../core/format.js';
import { sentence } from '../core/problems.js';
import { purchases, whenChangedElsewhere } from '../core/site.js';
import { promised } from './video.js';
import { alertOfEnd, all, canNotify, remove, standing, startAlerts, startJobs, takeUp, usualTime } from './jobs.js';
import { startTiles, tile, timeLeft } from './tile.js';

const cards = new Map();

export { usualTime };

let catalog, acts;

/**
 * Lists the kept videos and watches the open ones. `reuse(payload)` fills the form in, `again(payload)` also asks whether to buy, and
 * `look()` lists videos ordered elsewhere.
 */
export async function start(prices, listener) {
  [catalog, acts] = [prices, listener];
  startList();
  startTiles({ mediaOrigins: catalog.jobs.media_origins ?? [], isSandbox: catalog.mode === 'sandbox', reuse: acts.reuse, openLarge });
  await startJobs(catalog.jobs, { changed: show, connection: showConnection });
  setInterval(() => {
    cards.forEach(({ tick }) => tick());
    showMaking();
  }, 1000);
  if (await hasOrders()) await ordering();
  whenChangedElsewhere((name) => name === 'purchases' && void follow());
}

const hasOrders = async () => (await purchases.all()).some(({ kind, state }) => kind === 'video' && !['done', 'forgotten'].includes(state));

export const ordering = once(async () => {
  const orders = await import('./orders.js');
  await orders.startOrders(catalog, acts);
  return orders;
});

/** Another tab has changed a purchase. */
export async function follow() {
  if (ordering.part || (await hasOrders())) await (await ordering()).refresh();
}

/** Lists videos ordered elsewhere. During an order from here, a listed video may be that one. */
export async function takeListed(rows) {
  if (!ordering.part || (await ordering()).areSettled()) await takeUp(rows);
  arrange();
}

let large = null;

async function openLarge(id) {
  try {
    large = await import('./lightbox.js');
  } catch {
    return void notice(t('video.notLoaded'));
  }
  large.openLarge(id, { catalog, ids: shownIds, reuse: acts.reuse });
}

/** The time until a video is made, in milliseconds; 0 if it is not known. */
function leftOf({ id, at, payload: { model } }) {
  const { percent } = standing(all().find((job) => job.id === id) ?? { body: null });
  return timeLeft(Date.now() - at, usualTime(model)?.time ?? promised(model), percent ?? 0);
}

function show(job, { ended, removed, first }) {
  const id = `job-${job.id}`;
  if (removed) {
    cards.delete(job.id);
    return unplace(id);
  }
  if (job.open) startAlerts();
  const { prompt, model } = job.payload;
  const before = cards.get(job.id);
  // The wishes are learned when an order turns out to be the one that made it.
  if (before?.wishes === JSON.stringify(job.payload)) before.draw(job);
  else cards.set(job.id, tile(job));
  large?.refresh(job);
  const { phase } = standing(job);
  place(id, {
    item: cards.get(job.id).item, job, at: job.at, rank: phase === 'open' ? 1 : 2, phase, text: `${prompt} ${model} ${job.id}`.toLowerCase(),
    left: () => leftOf(job),
  });
  if (!ended) return;
  const text = phase === 'finished' ? t('video.finishedNews') : t('video.failedNews');
  announce(text);
  alertOfEnd(job, text, first);
}

function showConnection(problem) {
  const text = !problem ? ''
    : problem.code === 'offline' ? t('video.offline')
      : problem.code === 'connection_lost' ? t('video.unreachable')
        : t('video.connection', sentence(problem));
  say('jobs-connection', text);
}

// The list: running ones first, then the newest; shown in parts. tools.js narrows it and selects from it.

/** As many are shown at once, and added by a click. */
const PART = 24;
/** From so many on there is something to search. */
const MANY = 7;

/**
 * By id: `{item, job, at, rank, phase, text, left(), needsAttention, risk}`. `rank` 0 stands before 1, `text` is searched; `left()`: the
 * time until it is made; an order that needs attention has no job and stands above, with what may be charged for it, `risk`.
 */
const entries = new Map();
let most = PART;

/** Begins with an empty list; `arrange` says so once it is known to be empty. */
function startList() {
  byId('jobs-more').addEventListener('click', () => {
    const next = shownItems()[most - 1];
    most += PART;
    arrange();
    // The button moves away from under the focus: on to the first of the new ones.
    next?.nextElementSibling?.querySelector('button, a, summary, video')?.focus();
  });
  byId('jobs').addEventListener('keydown', steer);
  byId('jobs-select').addEventListener('click', () => void narrowing().then(({ select }) => select(), () => notice(t('video.notLoaded'))));
}

let tools = null;

const narrowing = once(async () => {
  tools = await import('./tools.js');
  tools.startTools({ narrow, arrange, shownItems, drop: remove });
  return tools;
});

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
    if (hadFocus) entry.item.querySelector('button, a, summary')?.focus();
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
  if (hadFocus) byId('video-heading').focus();
}

const shownIds = () => shownItems().map(({ dataset }) => dataset.id).filter(Boolean);

function narrow() {
  most = PART;
  arrange();
}

function arrange() {
  const all = [...entries.values()];
  const isMany = all.length >= MANY;
  if (isMany && !narrowing.part) void narrowing().then(arrange, () => {});
  const { isWanted, newer } = (isMany && tools?.wanted()) || { isWanted: () => true, newer: 1 };
  const urgent = all.filter(({ needsAttention }) => needsAttention).sort((one, other) => other.at - one.at);
  const sorted = all.filter(({ needsAttention }) => !needsAttention).sort((one, other) => one.rank - other.rank || newer * (other.at - one.at));
  const matching = sorted.filter((entry) => !entry.job || isWanted(entry));
  const visible = new Set(matching.slice(0, most));
  order(byId('attention-list'), urgent.map(({ item }) => item));
  order(byId('jobs'), sorted.map(({ item }) => item));
  for (const entry of sorted) entry.item.hidden = !visible.has(entry);
  byId('attention').hidden = urgent.length === 0;
  const atRisk = urgent.reduce((sum, { risk }) => sum + risk, 0);
  say('attention-count', urgent.length ? t('video.attention', urgent.length, atRisk ? price(atRisk) : '') : '');
  if (entries.size) byId('jobs-empty').hidden = true;
  else acts.showSamples();
  byId('jobs-select').hidden = sorted.length < 2 && byId('jobs-select').ariaPressed !== 'true';
  byId('jobs-none').hidden = sorted.length === 0 || matching.length > 0;
  byId('jobs-more').hidden = matching.length <= most;
  byId('jobs-more').textContent = t('page.more', Math.min(PART, matching.length - most));
  say('jobs-count', t('video.count', matching.length, sorted.length));
  tools?.show(sorted, isMany);
  showMaking();
}

/** How many are being made, and until when. */
function showMaking() {
  const open = [...entries.values()].filter(({ phase }) => phase === 'open');
  const left = Math.max(0, ...open.map((entry) => entry.left?.() ?? 0));
  say('jobs-making', open.length ? t('video.making', open.length, left > 0 ? clock(left) : '') : '');
  byId('jobs-notify').hidden = !open.length || !canNotify;
}

/** Sorts the list. A moved clip stops, and a moved item loses the focus, so those in place stay. */
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
