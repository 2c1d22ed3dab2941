/** Orders that are not jobs yet: on their way, refused, or of unknown outcome. */

import { canAskAgain, commit, draft, follow, forget, serverRemembers, whenSettled } from '../core/buying.js';
import { announce, button, element } from '../core/dom.js';
import { price } from '../core/format.js';
import { problemCard, sentence } from '../core/problems.js';
import { read } from '../core/site.js';
import { isNobody, purchases, whenChangedElsewhere } from '../core/store.js';
import { place, unplace } from './gallery.js';
import { takeIn, takeUp } from './jobs.js';

/** What stands in the list, by key. */
const shown = new Map();
/** Those that this tab waits for no more. */
const left = new Set();

let putBack, askAnew;

/** Takes up the orders that are kept. `reuse(payload)` fills the form in, `again(payload)` also asks whether to buy. */
export async function startOrders({ replay }, { reuse, again }) {
  [putBack, askAnew] = [reuse, again];
  serverRemembers(replay);
  whenSettled('video', settle, (record) => wait(record, 'Another tab is waiting for this order'));
  whenChangedElsewhere((name) => name === 'purchases' && void refresh());
  for (const record of await purchases.all()) {
    if (record.kind === 'video' && !OVER.includes(record.state)) await settle(record, true);
  }
}

const NAMES = { refused: 'Not ordered', charged: 'Charged, without a video', unknown: 'Outcome unknown' };
const UNKNOWN = 'Do not order it anew before this is known. Asking is safe; this page also asks by itself when it is opened or back online. '
  + 'If it was accepted, it becomes a video here.';
const OVER = ['done', 'forgotten'];

/** Buys one video. */
export async function order(payload, costMicros) {
  const record = draft({ kind: 'video', payload, costMicros, about: {} });
  wait(record, `Ordering from ${payload.model}`);
  announce('Ordering the video.');
  await commit(record);
}

/** Takes up what this caller has ordered elsewhere. While an order is on its way from here, a listed one may be that very one. */
export async function lookElsewhere() {
  if (isNobody()) return;
  const { jobs } = await read('/bff/jobs');
  if ([...shown.values()].every(({ problem }) => problem)) await takeUp(jobs);
}

/** Orders of exactly this that are on their way or of unknown outcome. */
export function openTwins(payload) {
  return [...shown.values()].filter((record) => record.state !== 'refused' && JSON.stringify(record.payload) === JSON.stringify(payload));
}

/** Another tab has bought something, or learned what became of it. */
async function refresh() {
  for (const record of await purchases.all()) {
    if (record.kind !== 'video') continue;
    if (OVER.includes(record.state)) clear(record.key);
    else if (['intent', 'sent'].includes(record.state)) void follow(record.key);
    else if (shown.get(record.key)?.state !== record.state) await settle(record, true);
  }
}

/** Takes in how an order ended; an accepted one becomes a job. */
async function settle(record, old = false) {
  if (record.state === 'forgotten') return clear(record.key);
  if (record.state === 'done') {
    clear(record.key);
    await takeIn(record);
    lookElsewhere().catch(() => {});
    return announce(`Ordered for ${price(record.costMicros)}. The video is being made.`);
  }
  if (!record.problem) return wait(record, 'Asking what became of this order');
  left.delete(record.key);
  const problem = problemCard(record.problem, offers(record), { fresh: !old, cost: price(record.costMicros) });
  const advice = record.state === 'unknown' ? element('p', { class: 'hint', text: UNKNOWN }) : null;
  show(record, element('div', {}, problem, advice), !old);
  if (!old) announce(sentence(record.problem));
}

function wait(record, text) {
  const stop = () => {
    left.add(record.key);
    wait(record, '');
    announce('You stopped waiting for this order.');
  };
  show(record, left.has(record.key)
    ? element('p', { class: 'pending still', text: 'You stopped waiting. It cannot be cancelled and may be charged: if it was accepted, the video appears here' })
    : element('div', {}, element('p', { class: 'pending', text }),
      element('div', { class: 'actions' }, button('Stop waiting (it may still be charged)', stop, 'quiet small'))));
}

function show(record, content, inView = false) {
  shown.set(record.key, { ...record });
  const item = element('li', { id: `order-${record.key}`, class: 'order' }, element('article', { class: 'card', 'aria-label': `Order from ${record.payload.model}` },
    element('p', { class: 'state' }, element('span', { class: `chip ${record.state}`, text: NAMES[record.state] ?? 'On its way' })),
    element('p', { class: 'plain clamp', text: record.payload.prompt }),
    element('p', { class: 'hint', text: `${record.payload.model} · ${record.payload.duration} s · ${price(record.costMicros)}` }),
    content));
  place(item.id, { item, at: record.at, rank: 0 });
  if (inView) item.scrollIntoView({ block: 'nearest' });
}

function clear(key) {
  shown.delete(key);
  left.delete(key);
  unplace(`order-${key}`);
}

function offers(record) {
  // A dear purchase is never repeated by one click: its text goes back into the form, with its price.
  const back = (put) => () => {
    if (record.state === 'refused') void drop();
    put(record.payload);
  };
  const drop = async () => {
    clear(record.key);
    await forget(record);
  };
  const same = async () => {
    wait(record, 'Asking what became of this order. It is not bought twice.');
    await commit(record);
  };
  const atRisk = async () => {
    wait(record, `Ordering again from ${record.payload.model}`);
    await commit(record, { atRisk: true });
  };
  const settled = record.state === 'unknown' && (canAskAgain(record) ? { same } : { atRisk });
  return { edit: back(putBack), again: back(askAnew), ...settled, drop };
}
