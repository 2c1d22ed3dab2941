/** The page's purchases: kept in IndexedDB, one tab at a time working on each, and settled after a reload. */

import { Purchases, draft as blank, isOpen, isWithin } from './purchases.js';
import { purchases as shelf, session, shop } from './site.js';
import { newKey } from './transport.js';

/** How long ended purchases are kept here. */
const KEPT = 24 * 60 * 60 * 1000;
/** Between two rounds of asking by itself for what was lost. */
const PAUSE = 30_000;
const SPENT = ['done', 'charged'];

const keepers = new Map();
const working = new Set();

const purchases = new Purchases({
  store: shelf, transport: shop, locks: navigator.locks, ended: (record) => keepers.get(record.kind)?.keep(record),
});

/** Takes in for how long the server keeps keys: the catalog's `replay`. */
export const serverRemembers = (replay) => purchases.remember(replay);

export const canAskAgain = (record) => purchases.canAskAgain(record);

export const keepsKey = (record) => purchases.keepsKey(record);

export const forget = (record) => purchases.forget(record);

/** `keep(record)` takes in each outcome of this kind, perhaps twice. `wait(record)` is called if another tab works on the purchase. */
export function whenSettled(kind, keep, wait) {
  keepers.set(kind, { keep, wait });
}

/** A purchase of this tab's session, with its own key, not yet kept and not yet sent. */
export const draft = (facts) => blank({ key: newKey(), session: session(), ...facts });

/** Keeps the intent, sends it, and keeps its outcome. See `Purchases.send`. */
export const commit = (record, how = {}) => alone(record, () => purchases.send(record, how), how.again);

export const open = async () => (await shelf.all()).filter(isOpen);

/** Settles what an earlier page left open, if that is safe and wanted; the rest is for the person to decide. */
export async function settleOpen() {
  for (const record of await shelf.all()) {
    if (!isOpen(record) && !isWithin(record.at, KEPT)) await shelf.delete(record.key);
  }
  for (const record of await open()) void settle(record);
}

/** Takes in the outcome of a purchase that another tab works on; if that tab closes, it is settled here. */
export async function follow(key) {
  if (working.has(key)) return;
  const record = await shelf.one(key);
  if (record && !working.has(key)) await settle(record);
}

/** Micro-dollars of this session: what is spent, and what may yet turn out to be. */
export async function spent() {
  const sum = { spent: 0, unsettled: 0 };
  for (const record of await shelf.all()) {
    if (record.session !== session()) continue;
    if (SPENT.includes(record.state)) sum.spent += record.costMicros;
    else if (isOpen(record)) sum.unsettled += record.costMicros;
  }
  return sum;
}

const settle = (record) => alone(record, () => (purchases.isWanted(record) ? purchases.send(record) : purchases.leave(record)));

/** One tab at a time works on a purchase; another waits for it, and takes in its outcome. */
async function alone(record, work, again = false) {
  const isNew = record.state === 'draft';
  working.add(record.key);
  let release = await purchases.hold(record.key, true);
  const waited = !release;
  if (waited) keepers.get(record.kind)?.wait?.(record);
  release ??= await purchases.hold(record.key);
  try {
    Object.assign(record, isNew ? null : await shelf.one(record.key));
    // Another tab has just tried it; this one does not try again.
    if (isNew || (again && purchases.keepsKey(record)) || (isOpen(record) && !(waited && record.state === 'unknown'))) return await work();
    await keepers.get(record.kind)?.keep(record);
    return record;
  } finally {
    release();
    working.delete(record.key);
  }
}

let asked = 0;

/** Back online, or back at this tab: asks for lost answers again, with their own keys. */
async function askAgain() {
  if (document.visibilityState !== 'visible' || navigator.onLine === false || Date.now() - asked < PAUSE) return;
  for (const record of await open()) {
    // Its view takes the answer in; until that is opened, the answer would be lost.
    if (!keepers.has(record.kind)) continue;
    // The server itself does not know the outcome yet; asking sooner does not help.
    if (record.state !== 'unknown' || record.problem?.code === 'outcome_unknown' || !purchases.isWanted(record)) continue;
    asked = Date.now();
    void settle(record);
  }
}

addEventListener('online', askAgain);
document.addEventListener('visibilitychange', askAgain);
