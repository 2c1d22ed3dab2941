/** The list of videos, a tile for each. Loaded when there is one, or when a person begins to order. */

import { announce, button, byId, element, notice, once, say, twice } from '../core/dom.js';
import { clock, price } from '../core/format.js';
import { sentence } from '../core/problems.js';
import { purchases, whenChangedElsewhere } from '../core/store.js';
import { promised } from './video.js';
import { alertOfEnd, all, fileName, markFavourite, reason, remove, standing, startAlerts, startJobs, takeUp, usualTime, watchJob } from './jobs.js';
import { TEXT } from './strings.js';

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
    return void notice(TEXT.notLoaded);
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
  else cards.set(job.id, card(job));
  large?.refresh(job);
  const { phase } = standing(job);
  place(id, {
    item: cards.get(job.id).item, job, at: job.at, rank: phase === 'open' ? 1 : 2, phase, text: `${prompt} ${model} ${job.id}`.toLowerCase(),
    left: () => leftOf(job),
  });
  if (!ended) return;
  const text = phase === 'finished' ? TEXT.finishedNews : TEXT.failedNews;
  announce(text);
  alertOfEnd(job, text, first);
}

function showConnection(problem) {
  const text = !problem ? ''
    : problem.code === 'offline' ? TEXT.offline
      : problem.code === 'connection_lost' ? TEXT.unreachable
        : TEXT.connection(sentence(problem));
  say('jobs-connection', text);
}

// The list: running ones first, then the newest; shown in parts. tools.js narrows it and selects from it.

/** As many are shown at once, and added by a click. */
const PART = 24;
/** From so many on there is something to search. */
const MANY = 7;

/**
 * By id: `{item, job, at, rank, phase, text, left(), needsAttention}`. `rank` 0 stands before 1, `text` is searched; `left()`: the time
 * until it is made; an order that needs attention has no job and stands in the drawer above.
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
  byId('jobs-select').addEventListener('click', () => void narrowing().then(({ select }) => select(), () => notice(TEXT.notLoaded)));
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
function showMaking() {
  const open = [...entries.values()].filter(({ phase }) => phase === 'open');
  const left = Math.max(0, ...open.map((entry) => entry.left?.() ?? 0));
  say('jobs-making', open.length ? TEXT.making(open.length, left > 0 ? clock(left) : '') : '');
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

// The tile of a video: first its progress, then the clip in its true shape, which plays while it is pointed at.

function card(job) {
  const { payload, costMicros, at } = job;
  const prompt = payload.prompt || TEXT.noPrompt;
  const parts = {
    chip: element('span', { class: 'chip' }), time: element('span', { class: 'elapsed' }), took: element('span'),
    expected: element('p', { class: 'hint' }), frame: element('div', { class: 'frame' }), said: element('div', { class: 'said' }),
    actions: element('div', { class: 'actions' }),
    star: element('button', { type: 'button', class: 'star', 'aria-label': TEXT.favouriteOf(shortened(prompt, 60)), click: () => void markFavourite(job.id) }),
    pick: element('input', { type: 'checkbox', class: 'pick', 'aria-label': TEXT.pick(shortened(prompt, 60)) }),
  };
  const item = element('li', { 'data-id': job.id }, element('article', { class: 'card job', 'aria-label': TEXT.videoBy(payload.model, shortened(prompt, 60)) },
    parts.frame, parts.star, parts.pick,
    element('div', { class: 'about' },
      element('p', { class: 'state' }, parts.chip, ' ', parts.took, ' ', day(at)),
      element('p', { class: payload.prompt ? 'plain clamp' : 'hint', dir: 'auto', title: payload.prompt, text: prompt }),
      element('p', { class: 'hint' }, `${payload.model} · ${payload.duration ? `${payload.duration} s · ` : ''}${price(costMicros)}`),
      parts.said, parts.actions)));
  let current = job, media = null, bar = null, offered = null;

  function draw(latest) {
    current = latest;
    const said = playableOf(current);
    item.firstChild.dataset.phase = said.phase;
    parts.chip.textContent = TEXT.states[said.phase];
    parts.pick.disabled = said.phase === 'open';
    drawFrame(said);
    // It stands on the clip.
    parts.star.hidden = said.phase === 'open' || parts.frame.hidden;
    parts.star.ariaPressed = String(Boolean(current.favourite));
    parts.star.textContent = current.favourite ? '★' : '☆';
    parts.said.replaceChildren(...words(current, said));
    drawActions(said);
    tick();
  }

  /** The frame is rebuilt only when it shows something else: a clip may be playing in it. */
  function drawFrame({ phase, address, percent, playable }) {
    const isClip = phase === 'finished' && playable;
    const wanted = phase === 'finished' ? `${playable} ${address}` : phase;
    if (phase === 'open') bar ??= element('progress', { max: 100 });
    if (wanted !== media) {
      if (isClip) parts.frame.replaceChildren(clip(current, parts.frame), element('button', { type: 'button', class: 'enlarge', 'aria-label': TEXT.enlarge(shortened(prompt, 60)), click: () => openLarge(current.id) }));
      else parts.frame.replaceChildren(...(phase === 'open' ? [element('div', { class: 'waiting' }, parts.time, bar, parts.expected)] : []));
      parts.frame.hidden = phase !== 'open' && !isClip;
      media = wanted;
    }
    if (phase === 'open') bar.dataset.percent = percent ?? '';
  }

  function drawActions({ phase, address, playable }) {
    const wanted = [
      phase === 'finished' && playable && element('a', {
        href: contentOf(current.id), download: fileName(current, address), text: TEXT.download,
      }),
      address && !playable && phase !== 'failed' && outside(address),
      ['left', 'gone'].includes(phase) && !current.id.startsWith('unnamed-') && button(TEXT.watchAgain, () => watchJob(current.id, true), 'quiet small'),
      payload.prompt && button(TEXT.useAgain, () => acts.reuse(payload), 'quiet small'),
      phase === 'open' && titled(button(TEXT.hide, () => watchJob(current.id, false), 'quiet small'), TEXT.hideHint(price(costMicros))),
      button(TEXT.details, () => openLarge(current.id), 'quiet small'),
      phase !== 'open' && twice(TEXT.remove, TEXT.removeSure, () => remove(current.id), { kind: 'quiet small' }),
    ].filter(Boolean);
    // A button that has the focus, or was pressed once of twice, stays.
    const kinds = `${phase} ${playable} ${address}`;
    if (kinds === offered) return;
    offered = kinds;
    const hadFocus = parts.actions.contains(document.activeElement);
    parts.actions.replaceChildren(...wanted);
    if (hadFocus) wanted[0].focus();
  }

  /** One clock: the time that is left, by the reported share or by the usual time of the model. */
  function tick() {
    if (!current.open) {
      const { phase } = standing(current);
      parts.took.textContent = current.took > 0 ? (phase === 'finished' ? TEXT.madeIn : TEXT.after)(clock(current.took)) : '';
      return;
    }
    parts.took.textContent = '';
    const elapsed = Date.now() - at;
    const learnt = usualTime(payload.model)?.time;
    const usual = learnt ?? promised(payload.model);
    const percent = bar.dataset.percent;
    const left = timeLeft(elapsed, usual, Number(percent));
    parts.time.textContent = left > 0 ? TEXT.left(clock(left)) : clock(elapsed);
    parts.expected.textContent = !usual ? TEXT.timeUnknown : elapsed > usual ? TEXT.late(clock(usual)) : (learnt ? TEXT.usually : TEXT.promised)(clock(usual));
    const [value, most, label] = percent ? [percent, 100, TEXT.progress.reported(percent)]
      : left > 0 ? [elapsed, elapsed + left, TEXT.progress.byTime(clock(elapsed), clock(elapsed + left))]
        : [null, 100, TEXT.progress.unknown];
    bar.max = most;
    if (value === null) bar.removeAttribute('value');
    else bar.value = value;
    bar.ariaLabel = label;
  }

  draw(job);
  return { item, wishes: JSON.stringify(payload), draw, tick };
}

/** In milliseconds; 0 if it is not known. A share counts once it says something. */
function timeLeft(elapsed, usual, percent) {
  if (percent >= 5 && percent < 100) return elapsed * (100 - percent) / percent;
  return usual ? Math.max(0, usual - elapsed) : 0;
}

/** The parsed status, and whether its clip may be played here. */
export function playableOf(job) {
  const said = standing(job);
  return { ...said, playable: said.address && catalog.jobs.media_origins?.includes(new URL(said.address).origin) };
}

export function words({ body, trouble, costMicros }, { state, phase, percent, address, playable }) {
  const said = [];
  if (phase === 'open') {
    said.push(element('p', { class: 'pending', text: state ? TEXT.status(state, percent) : TEXT.firstStatus }));
  } else if (phase === 'finished' && !address) {
    said.push(element('p', { text: TEXT.noAddress }));
  } else if (phase === 'finished' && !playable) {
    // Each run of the sandbox serves its clips from a port of its own.
    said.push(element('p', { class: 'hint', text: catalog.mode === 'sandbox' ? TEXT.sandboxGone : TEXT.notPlayable(new URL(address).origin) }));
  } else if (phase === 'failed') {
    const why = reason(body);
    said.push(element('p', { class: 'fault', text: TEXT.failed(state) }),
      why && element('p', { text: TEXT.gatewaySays(why) }),
      element('p', { text: TEXT.failedCost(price(costMicros)) }));
  } else if (phase === 'left') {
    said.push(element('p', { text: TEXT.hidden(state, price(costMicros)) }));
  } else if (phase === 'gone' && state) {
    said.push(element('p', { text: TEXT.lastStatus(state) }));
  }
  if (trouble) said.push(element('p', { class: 'hint', text: trouble }));
  return said.filter(Boolean);
}

function titled(made, title) {
  made.title = title;
  return made;
}

export const contentOf = (id) => `./bff/video/content?request_id=${encodeURIComponent(id)}`;

/** A clip loads when it comes near the view. */
const soon = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    soon.unobserve(target);
    target.preload = 'metadata';
    target.src = target.dataset.src;
  }
}, { rootMargin: '600px' });

/** The clip: it plays without sound while its tile is pointed at or has the focus. */
function clip(job, frame) {
  const box = element('div', { class: 'clip' });
  const load = () => {
    const video = element('video', {
      // Some phones show no picture before playing without a start time.
      'data-src': `${contentOf(job.id)}#t=0.001`, playsinline: true, loop: true, preload: 'none',
      'aria-label': shortened(job.payload.prompt || TEXT.noPrompt, 200),
      error: () => box.replaceChildren(element('div', { class: 'broken' },
        element('p', { text: TEXT.clipBroken }), button(TEXT.tryAgain, load, 'quiet small'))),
    });
    video.muted = true;
    box.replaceChildren(video);
    soon.observe(video);
  };
  const play = () => {
    if (!matchMedia('(prefers-reduced-motion: reduce)').matches) box.querySelector('video')?.play().catch(() => {});
  };
  const stop = () => box.querySelector('video')?.pause();
  for (const sign of ['pointerenter', 'focusin']) frame.addEventListener(sign, play);
  for (const sign of ['pointerleave', 'focusout']) frame.addEventListener(sign, stop);
  load();
  return box;
}

export function outside(address) {
  return element('a', { href: address, target: '_blank', rel: 'noopener noreferrer', title: new URL(address).origin, text: TEXT.openClip });
}

function day(at) {
  const date = new Date(at);
  return element('time', { datetime: date.toISOString(), text: date.toLocaleString([], { day: 'numeric', month: 'short', hour: 'numeric', minute: '2-digit' }) });
}

export const shortened = (text, most) => (text.length > most ? `${[...text].slice(0, most).join('')}…` : text);
