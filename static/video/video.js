/** The video view: a form that follows the picked model's rules, a purchase that is confirmed first, and what became of each. */

import { announce, byId, say, unbroken, unrepeated } from '../core/dom.js';
import { clock, price } from '../core/format.js';
import { sentence } from '../core/problems.js';
import { canSpend, whenCanSpend } from '../core/site.js';
import { alertOfEnd, startAlerts } from './alerts.js';
import { card, timeLeft } from './card.js';
import { clearPrompt, fillIn, isComplete, payload, picked, startForm } from './form.js';
import { arrange, place, showMaking, shownIds, startGallery, unplace } from './gallery.js';
import { all, remove, standing, startJobs, usualTime } from './jobs.js';
import { lookElsewhere, openDuplicates, order, startOrders } from './orders.js';
import { TEXT } from './strings.js';

/** For so long after an order, an equal one is remarked on: it may be a mistake. */
const RECENT = 24 * 60 * 60 * 1000;

let catalog;
const cards = new Map();

/** Fills the view in and goes on watching the jobs that are kept. */
export async function start(prices) {
  catalog = prices;
  byId('video-body').hidden = false;
  startForm(catalog, { changed: askedNothing });
  startConfirm();
  startGallery({ remove });
  whenCanSpend(showOrderable);
  keepFiles();
  startAlerts();
  await startJobs(catalog.jobs, { changed: show, connection: showConnection });
  setInterval(() => {
    cards.forEach(({ tick }) => tick());
    showMaking();
  }, 1000);
  await startOrders(catalog, { reuse, again });
  document.addEventListener('visibilitychange', look);
}

/** Comes into sight. `#video?prompt=…&model=…` fills the form in, and never orders. */
export function shown() {
  look();
  const [name, query] = location.hash.slice(1).split('?', 2);
  const { prompt, model } = Object.fromEntries(new URLSearchParams(query ?? ''));
  if (name !== 'video' || !prompt) return;
  history.replaceState(null, '', '#video');
  reuse({ prompt, model });
}

/** Lists videos that were ordered elsewhere. A failure is ignored: the next look lists them. */
function look() {
  if (!document.hidden && !byId('view-video').hidden) lookElsewhere().then(arrange, () => {});
}

function startConfirm() {
  // The second and third of several fast clicks were not meant for the button that came under them.
  const meant = (act) => (event) => event.detail > 1 || act();
  byId('video-generate').addEventListener('click', meant(ask));
  byId('video-yes').addEventListener('click', meant(buy));
  const cancel = () => {
    askedNothing();
    byId('video-generate').focus();
  };
  byId('video-cancel').addEventListener('click', cancel);
  byId('video-confirm').addEventListener('keydown', (event) => event.key === 'Escape' && cancel());
  unrepeated(byId('video-yes'));
}

/** A file that is dropped beside the form would make the browser leave the page. */
function keepFiles() {
  for (const kind of ['dragover', 'drop']) {
    document.addEventListener(kind, (event) => {
      if (!byId('view-video').hidden && event.dataTransfer?.types.includes('Files')) event.preventDefault();
    });
  }
}

/** “Generate” looks disabled where the money left does not cover it; pressed, it says why. */
function showOrderable() {
  byId('video-generate').ariaDisabled = canSpend() < picked().price_micros ? 'true' : null;
}

/** First click: either what is missing, or what it will cost. */
async function ask() {
  if (!isComplete()) return;
  const wanted = payload();
  const { price_micros: amount } = picked();
  const cost = price(amount);
  byId('video-fault').textContent = '';
  if (canSpend() < amount) {
    const { shortOf } = await import('../core/short.js');
    const why = await shortOf(amount);
    if (why) {
      byId('video-fault').textContent = why;
      return;
    }
  }
  byId('video-confirm-text').replaceChildren(...unbroken(TEXT.sure(wanted.duration, wanted.model, cost), wanted.model));
  byId('video-confirm-duplicate').textContent = duplicate(wanted);
  byId('video-yes').textContent = TEXT.spend(cost);
  byId('video-confirm').hidden = false;
  byId('video-actions').hidden = true;
  // Not on "Yes": a second Enter must not spend.
  byId('video-cancel').focus();
  byId('video-confirm').scrollIntoView({ block: 'nearest' });
}

/** That exactly this was ordered already, if it was. */
function duplicate(wanted) {
  if (openDuplicates(wanted).length) return TEXT.duplicateOpen;
  const text = JSON.stringify(wanted);
  const before = all().filter((job) => Date.now() - job.at < RECENT && JSON.stringify(job.payload) === text).at(-1);
  if (!before) return '';
  return TEXT.duplicate(clock(Date.now() - before.at), before.open);
}

function askedNothing() {
  byId('video-fault').textContent = '';
  showOrderable();
  byId('video-confirm').hidden = true;
  byId('video-actions').hidden = false;
}

/** Second click: buys. */
async function buy() {
  const wanted = payload();
  const { price_micros: amount } = picked();
  askedNothing();
  byId('video-generate').focus();
  const ordered = order(wanted, amount);
  clearPrompt();
  await ordered;
}

/** Puts an earlier order's wishes back into the form. */
function reuse(wishes) {
  fillIn(wishes);
  byId('video-prompt').focus();
}

/** The same, and on to the question whether to buy. */
function again(wishes) {
  fillIn(wishes);
  ask();
}

const how = () => ({ mediaOrigins: catalog.jobs.media_origins ?? [], isSandbox: catalog.mode === 'sandbox' });

/** lightbox.js, once it is needed. */
let large = null;

async function openLarge(id) {
  large ??= await import('./lightbox.js');
  large.openLarge(id, { ...how(), ids: shownIds, reuse });
}

/** The time that the price list names for a model, in milliseconds; 0 if it names none. */
function promised(id) {
  const remarks = catalog.video.find((model) => model.id === id)?.remarks ?? '';
  return Number(/about (\d{1,4}) seconds/.exec(remarks)?.[1] ?? 0) * 1000;
}

/** The time until a video is made, in milliseconds; 0 if it is not known. */
function leftOf({ id, at, payload: { model } }) {
  const { percent } = standing(all().find((job) => job.id === id) ?? { body: null });
  return timeLeft(Date.now() - at, usualTime(model)?.time ?? promised(model), percent ?? 0);
}

/** Something is new of a job. */
function show(job, { ended, removed, first }) {
  const id = `job-${job.id}`;
  if (removed) {
    cards.delete(job.id);
    return unplace(id);
  }
  const { prompt, model } = job.payload;
  const before = cards.get(job.id);
  // The prompt of a video is learned when an order turns out to be the one that made it.
  if (before?.prompt === prompt) before.draw(job);
  else cards.set(job.id, card(job, { ...how(), promised, reuse, open: openLarge }));
  large?.refresh(job);
  const { phase } = standing(job);
  place(id, {
    item: cards.get(job.id).item, at: job.at, rank: phase === 'open' ? 1 : 2, phase, text: `${prompt} ${model} ${job.id}`.toLowerCase(),
    model, shape: job.payload.aspect_ratio, left: () => leftOf(job),
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
