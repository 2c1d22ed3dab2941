/** The list of videos and orders. Loaded once there is something to list, or somebody begins to order. */

import { announce, notice, say, styled } from '../core/dom.js';
import { sentence } from '../core/problems.js';
import { purchases, whenChangedElsewhere } from '../core/store.js';
import { card, timeLeft } from './card.js';
import { promised } from './form.js';
import { arrange, place, showMaking, shownIds, startGallery, unplace } from './gallery.js';
import { all, loadStream, remove, standing, startJobs, takeUp, usualTime } from './jobs.js';
import { TEXT } from './strings.js';

const cards = new Map();

export { usualTime };

let catalog, acts;

/**
 * Lists what is kept, and goes on watching the open jobs.
 * @param {object} listener `reuse(payload)` fills the form in, `again(payload)` also asks whether to buy, `look()` lists what was
 *   ordered elsewhere
 */
export async function start(prices, listener) {
  [catalog, acts] = [prices, listener];
  startGallery({ remove });
  await startJobs(catalog.jobs, { changed: show, connection: showConnection });
  setInterval(() => {
    cards.forEach(({ tick }) => tick());
    showMaking();
  }, 1000);
  if (await hasOrders()) await ordering();
  whenChangedElsewhere((name) => name === 'purchases' && void follow());
}

const hasOrders = async () => (await purchases.all()).some(({ kind, state }) => kind === 'video' && !['done', 'forgotten'].includes(state));

/** orders.js, once something is ordered. */
let orders = null;

export function ordering() {
  orders ??= Promise.all([import('./orders.js'), loadStream()]).then(async ([module]) => {
    await module.startOrders(catalog, acts);
    return module;
  }).catch((error) => {
    orders = null;
    throw error;
  });
  return orders;
}

/** Another tab has bought something, or learned what became of it. */
export async function follow() {
  if (orders || (await hasOrders())) await (await ordering()).refresh();
}

/** Takes up what this caller has ordered elsewhere. While an order is on its way from here, a listed one may be that very one. */
export async function takeListed(rows) {
  if (!orders || (await orders).areSettled()) await takeUp(rows);
  arrange();
}

const how = () => ({ mediaOrigins: catalog.jobs.media_origins ?? [], isSandbox: catalog.mode === 'sandbox' });

/** lightbox.js, once it is needed. */
let large = null;

async function openLarge(id) {
  try {
    [large] = await Promise.all([import('./lightbox.js'), styled('video/lightbox.css')]);
  } catch {
    return void notice(TEXT.notLoaded);
  }
  large.openLarge(id, { ...how(), catalog, ids: shownIds, reuse: acts.reuse });
}

/** alerts.js, once something is being made. */
let alerts = null;

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
  if (job.open) {
    alerts ??= import('./alerts.js').then((module) => {
      module.startAlerts();
      return module;
    }).catch(() => { alerts = null; });
  }
  const { prompt, model } = job.payload;
  const before = cards.get(job.id);
  // The wishes are learned when an order turns out to be the one that made it.
  if (before?.wishes === JSON.stringify(job.payload)) before.draw(job);
  else cards.set(job.id, card(job, { ...how(), promised, reuse: acts.reuse, open: openLarge }));
  large?.refresh(job);
  const { phase } = standing(job);
  place(id, {
    item: cards.get(job.id).item, job, at: job.at, rank: phase === 'open' ? 1 : 2, phase, text: `${prompt} ${model} ${job.id}`.toLowerCase(),
    left: () => leftOf(job),
  });
  if (!ended) return;
  const text = phase === 'finished' ? TEXT.finishedNews : TEXT.failedNews;
  announce(text);
  void alerts?.then((module) => module?.alertOfEnd(job, text, first));
}

function showConnection(problem) {
  const text = !problem ? ''
    : problem.code === 'offline' ? TEXT.offline
      : problem.code === 'connection_lost' ? TEXT.unreachable
        : TEXT.connection(sentence(problem));
  say('jobs-connection', text);
}
