/** The video view: a form that follows the picked model's rules, a purchase that is confirmed first, and what became of each. */

import { announce, byId, say, unbroken, unrepeated } from '../core/dom.js';
import { clock, price } from '../core/format.js';
import { sentence } from '../core/problems.js';
import { alertOfEnd, startAlerts } from './alerts.js';
import { card } from './card.js';
import { clearPrompt, fillIn, isComplete, payload, picked, startForm } from './form.js';
import { arrange, place, startGallery, unplace } from './gallery.js';
import { all, standing, startJobs } from './jobs.js';
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
  startGallery();
  startAlerts();
  await startJobs(catalog.jobs, { changed: show, connection: showConnection });
  setInterval(() => cards.forEach(({ tick }) => tick()), 1000);
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

/** What cannot be looked up now is looked up the next time; nothing is said of what is not known. */
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

/** First click: either what is missing, or what it will cost. */
function ask() {
  if (!isComplete()) return;
  const wanted = payload();
  const cost = price(picked().price_micros);
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
  byId('video-confirm').hidden = true;
  byId('video-actions').hidden = false;
}

/** Second click: buys. */
async function buy() {
  const wanted = payload();
  const { price_micros: toll } = picked();
  askedNothing();
  byId('video-generate').focus();
  const ordered = order(wanted, toll);
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
  else cards.set(job.id, card(job, { mediaOrigins: catalog.jobs.media_origins ?? [], isSandbox: catalog.mode === 'sandbox', reuse }));
  const { phase } = standing(job);
  place(id, {
    item: cards.get(job.id).item, at: job.at, rank: phase === 'open' ? 1 : 2, phase, text: `${prompt} ${model} ${job.id}`.toLowerCase(),
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
