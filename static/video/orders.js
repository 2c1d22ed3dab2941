/** Orders that are not jobs yet: on their way, refused, or with an unknown outcome. */

import { canAskAgain, commit, draft, follow, forget, keepsKey, serverRemembers, whenSettled } from '../core/buying.js';
import { announce, byId, element } from '../core/dom.js';
import { clock, price, t } from '../core/format.js';
import { problemCard, spoken } from '../core/problems.js';
import { purchases } from '../core/site.js';
import { all, takeIn } from './jobs.js';
import { place, unplace } from './studio.js';

/** The listed orders, by key. */
const shown = new Map();
/** Orders that the person stopped waiting for in this tab. */
const left = new Set();

/** Orders that the person made or tried again on this page: only their trouble opens by itself. */
const made = new Set();

/** For so long after an order, an equal one is remarked on: it may be a mistake. */
const RECENT = 24 * 60 * 60 * 1000;

let acts;

/** Takes up the orders that are kept. `listener` is the one of studio.js. */
export async function startOrders({ replay }, listener) {
  acts = listener;
  serverRemembers(replay);
  whenSettled('video', settle, (record) => wait(record, t('video.orderedElsewhere')));
  for (const record of await purchases.all()) {
    if (record.kind === 'video' && !OVER.includes(record.state)) await settle(record, true);
  }
}

const OVER = ['done', 'forgotten'];

/** Buys one video. */
export async function order(payload, costMicros) {
  const record = draft({ kind: 'video', payload, costMicros, about: {} });
  made.add(record.key);
  wait(record, t('video.orderingFrom', payload.model));
  byId(`order-${record.key}`)?.scrollIntoView({ block: 'nearest' });
  announce(t('video.ordering'));
  const onProof = (seconds) => {
    const line = document.querySelector(`#order-${record.key} .pending`);
    if (line && !left.has(record.key)) line.textContent = seconds ? t('page.proving', seconds) : t('video.orderingFrom', payload.model);
  };
  await commit(record, { onProof });
}

/** Whether none is on its way. */
export const areSettled = () => [...shown.values()].every(({ problem }) => problem);

/** Says that exactly this was ordered already, if it was. */
export function duplicate(wanted) {
  const text = JSON.stringify(wanted);
  const isSame = ({ payload }) => JSON.stringify(payload) === text;
  if ([...shown.values()].some((record) => record.state !== 'refused' && isSame(record))) return t('video.duplicateOpen');
  const before = all().filter((job) => Date.now() - job.at < RECENT && isSame(job)).at(-1);
  return before ? t('video.duplicate', clock(Date.now() - before.at), before.open) : '';
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
    return announce(t('video.ordered', price(record.costMicros)));
  }
  if (!record.problem) return wait(record, t('video.checking'));
  left.delete(record.key);
  const problem = problemCard(record.problem, offers(record), { fresh: !old, cost: price(record.costMicros) });
  // Only where the card offers to check.
  const advice = record.state === 'unknown' && canAskAgain(record) ? element('p', { class: 'hint', text: t('video.doNotReorder') }) : null;
  showReceipt(record, [problem, advice], made.has(record.key));
  if (!old) announce(spoken(record.problem));
}

function wait(record, text) {
  const stop = () => {
    left.add(record.key);
    wait(record, '');
    announce(t('video.stoppedWaiting'));
  };
  const { payload } = record;
  const said = left.has(record.key) ? [element('p', { class: 'pending still', text: t('video.stopped') })]
    : [element('p', { class: 'pending', text }), element('button', { type: 'button', class: 'quiet small', text: t('chat.stop'), title: t('video.stopWaitingHint'), click: stop })];
  show(record, element('article', { class: 'job', 'aria-label': t('video.orderBy', payload.model) },
    element('div', { class: 'frame' }, element('div', { class: 'waiting' }, said)),
    element('p', { class: 'plain caption', dir: 'auto', title: payload.prompt, text: payload.prompt }), element('p', { class: 'hint', text: aboutOf(record) })));
}

const aboutOf = ({ payload, costMicros }) => `${payload.model} · ${t('video.seconds', payload.duration)} · ${price(costMicros)}`;

/** One line for an order that needs attention; it opens the receipt. The line of an order of just now is open. */
function showReceipt(record, content, isFresh) {
  const { key, state, payload, costMicros } = record;
  const isOpen = isFresh || Boolean(document.querySelector(`#order-${key} .receipt[open]`));
  const item = show(record, element('article', { 'aria-label': t('video.orderBy', payload.model) },
    element('details', { class: `receipt ${state}`, open: isOpen },
      element('summary', {}, element('span', { class: `chip ${state}`, text: t(`video.order.${state}`) }),
        element('span', { class: 'plain', dir: 'auto', title: payload.prompt, text: payload.prompt }), element('span', { class: 'hint', text: aboutOf(record) })),
      element('div', {}, content))), { needsAttention: true, risk: state === 'unknown' ? costMicros : 0 });
  if (!isFresh) return;
  byId('attention').open = true;
  item.scrollIntoView({ block: 'nearest' });
}

function show(record, content, facts = {}) {
  shown.set(record.key, { ...record });
  const item = element('li', { id: `order-${record.key}`, class: 'order' }, content);
  place(item.id, { item, at: record.at, rank: 0, ...facts });
  return item;
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
  const tryWith = (text, how) => async () => {
    made.add(record.key);
    wait(record, text);
    await commit(record, how);
  };
  const same = tryWith(t('video.checking'));
  const atRisk = tryWith(t('video.orderingAgain', record.payload.model), { atRisk: true });
  const retry = tryWith(t('video.orderingFrom', record.payload.model), { again: true });
  const once = keepsKey(record) ? { retry } : { again: back(acts.again) };
  const settled = record.state === 'unknown' && (canAskAgain(record) ? { same } : { atRisk });
  return { edit: back(acts.reuse), ...once, ...settled, drop };
}
