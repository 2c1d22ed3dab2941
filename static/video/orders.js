/** Orders that are not jobs yet: on their way, refused, or with an unknown outcome. */

import { canAskAgain, commit, draft, follow, forget, keepsKey, serverRemembers, whenSettled } from '../core/buying.js';
import { announce, element } from '../core/dom.js';
import { clock, price } from '../core/format.js';
import { problemCard, spoken } from '../core/problems.js';
import { purchases } from '../core/store.js';
import { all, takeIn } from './jobs.js';
import { TEXT } from './strings.js';
import { place, unplace } from './studio.js';

/** The listed orders, by key. */
const shown = new Map();
/** Orders that the person stopped waiting for in this tab. */
const left = new Set();

/** For so long after an order, an equal one is remarked on: it may be a mistake. */
const RECENT = 24 * 60 * 60 * 1000;

let acts;

/** Takes up the orders that are kept. `listener` is the one of studio.js. */
export async function startOrders({ replay }, listener) {
  acts = listener;
  serverRemembers(replay);
  whenSettled('video', settle, (record) => wait(record, TEXT.orderedElsewhere));
  for (const record of await purchases.all()) {
    if (record.kind === 'video' && !OVER.includes(record.state)) await settle(record, true);
  }
}

const OVER = ['done', 'forgotten'];

/** Buys one video. */
export async function order(payload, costMicros) {
  const record = draft({ kind: 'video', payload, costMicros, about: {} });
  wait(record, TEXT.orderingFrom(payload.model));
  document.getElementById(`order-${record.key}`)?.scrollIntoView({ block: 'nearest' });
  announce(TEXT.ordering);
  await commit(record);
}

/** Whether none is on its way. */
export const areSettled = () => [...shown.values()].every(({ problem }) => problem);

/** Says that exactly this was ordered already, if it was. */
export function duplicate(wanted) {
  const text = JSON.stringify(wanted);
  const isSame = ({ payload }) => JSON.stringify(payload) === text;
  if ([...shown.values()].some((record) => record.state !== 'refused' && isSame(record))) return TEXT.duplicateOpen;
  const before = all().filter((job) => Date.now() - job.at < RECENT && isSame(job)).at(-1);
  return before ? TEXT.duplicate(clock(Date.now() - before.at), before.open) : '';
}

export async function refresh() {
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
    acts.look();
    return announce(TEXT.ordered(price(record.costMicros)));
  }
  if (!record.problem) return wait(record, TEXT.checking);
  left.delete(record.key);
  const problem = problemCard(record.problem, offers(record), { fresh: !old, cost: price(record.costMicros) });
  // Only where the card offers to check.
  const advice = record.state === 'unknown' && canAskAgain(record) ? element('p', { class: 'hint', text: TEXT.doNotReorder }) : null;
  // Money may be at stake, or the person has just clicked: then the drawer opens.
  show(record, element('div', {}, problem, advice), !old, !old || record.state !== 'refused' ? 'now' : 'later');
  if (!old) announce(spoken(record.problem));
}

function wait(record, text) {
  const stop = () => {
    left.add(record.key);
    wait(record, '');
    announce(TEXT.stoppedWaiting);
  };
  show(record, left.has(record.key)
    ? element('p', { class: 'pending still', text: TEXT.stopped })
    : element('div', {}, element('p', { class: 'pending', text }),
      element('div', { class: 'actions' }, element('button', { type: 'button', class: 'quiet small', text: TEXT.stopWaiting, title: TEXT.stopWaitingHint, click: stop }))));
}

function show(record, content, inView = false, needsAttention = false) {
  shown.set(record.key, { ...record });
  const item = element('li', { id: `order-${record.key}`, class: 'order' }, element('article', { class: 'card', 'aria-label': TEXT.orderBy(record.payload.model) },
    element('p', { class: 'state' }, element('span', { class: `chip ${record.state}`, text: TEXT.orderStates[record.state] ?? TEXT.onItsWay })),
    element('p', { class: 'plain clamp', text: record.payload.prompt }),
    element('p', { class: 'hint', text: `${record.payload.model} · ${record.payload.duration} s · ${price(record.costMicros)}` }),
    content));
  place(item.id, { item, at: record.at, rank: 0, needsAttention });
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
    wait(record, TEXT.checking);
    await commit(record);
  };
  const atRisk = async () => {
    wait(record, TEXT.orderingAgain(record.payload.model));
    await commit(record, { atRisk: true });
  };
  const retry = async () => {
    wait(record, TEXT.orderingFrom(record.payload.model));
    await commit(record, { again: true });
  };
  const once = keepsKey(record) ? { retry } : { again: back(acts.again) };
  const settled = record.state === 'unknown' && (canAskAgain(record) ? { same } : { atRisk });
  return { edit: back(acts.reuse), ...once, ...settled, drop };
}
