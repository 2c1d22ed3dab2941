/**
 * Carries a purchase from the click to its end, and across reloads, without ever buying it twice.
 *
 * draft → intent (kept, before anything is sent) → sent → done | refused | charged (without a result) | unknown | forgotten (dismissed)
 *
 * A record: `{key, kind: 'chat' | 'video', path, payload, tollMicros, about, session, at, state, reply, problem,
 * ledger (the server's memory that it was sent under), forgotten (sent again, at the person's risk)}`.
 */

import { buy, newKey, read } from './api.js';
import { purchases, session } from './store.js';

/** How long after the click an open purchase is settled without asking: a person still wants it then. */
const FRESH = 60 * 60 * 1000;
/** The same for one that, as far as is known, was never sent. */
const FRESH_UNSENT = 60 * 1000;
/** How much of the time for which the server remembers a key is relied upon. */
const SAFE_SHARE = 0.9;
/** How long ended purchases are kept here. */
const KEPT = 24 * 60 * 60 * 1000;

const keepers = new Map();
const watchers = [];
const working = new Set();
let memory = null;

/**
 * What the server remembers (the catalog's `replay`): `{chat_seconds, video_seconds, ledger}`, `ledger` being
 * another once keys were forgotten. Without it, nothing is ever sent a second time by itself.
 */
export function serverRemembers(replay) {
  memory = replay ?? null;
}

/**
 * `keep(record)` takes in what a purchase of this kind brought. It is awaited before the purchase counts
 * as ended, so that a crash in between asks again rather than losing an answer; it may see a record twice.
 * `wait(record)` is told that another tab is at it, whose end is taken in here, too.
 */
export function whenSettled(kind, keep, wait) {
  keepers.set(kind, { keep, wait });
}

/** Calls `changed()` whenever a purchase begins or ends. */
export function whenChanged(changed) {
  watchers.push(changed);
}

/** A purchase with its own key, not yet kept and not yet sent. */
export function draft({ kind, path, payload, tollMicros, about }) {
  return {
    key: newKey(), kind, path, payload, tollMicros, about,
    session: session(), at: Date.now(), state: 'draft', reply: null, problem: null, ledger: null, forgotten: false,
  };
}

/**
 * Keeps the intent, sends it, and keeps how it ended. Resolves with the record; it never throws.
 * `atRisk`: the person was told that it could be bought a second time, and wants it sent again.
 */
export function commit(record, { atRisk = false } = {}) {
  return alone(record, () => send(record, atRisk));
}

/** Whether asking again with the same key can only ever bring the first purchase's answer. */
export function canAskAgain({ kind, ledger, at }) {
  if (!memory || !ledger || ledger !== memory.ledger) return false;
  return isWithin(at, memory[`${kind}_seconds`] * 1000 * SAFE_SHARE);
}

/** The person does not want to see it any more, whatever became of it. */
export async function forget(record) {
  await move(record, 'forgotten');
}

/** Purchases whose end is not known. */
export async function open() {
  return (await purchases.all()).filter((record) => OPEN.includes(record.state));
}

/** Settles what an earlier page left open, where that is safe and wanted; the rest is for the person to decide. */
export async function settleOpen() {
  for (const record of await purchases.all()) {
    if (!OPEN.includes(record.state) && !isWithin(record.at, KEPT)) await purchases.delete(record.key);
  }
  for (const record of await open()) void settle(record);
}

/** Takes in how a purchase ends that another tab has under way; should that tab close, it is settled here. */
export async function follow(key) {
  if (working.has(key)) return;
  const record = await purchases.one(key);
  if (record && !working.has(key)) await settle(record);
}

/** Micro-dollars of this session: what is spent, and what may yet turn out to be. */
export async function spent() {
  const sum = { spent: 0, unsettled: 0 };
  for (const record of await purchases.all()) {
    if (record.session !== session()) continue;
    if (SPENT.includes(record.state)) sum.spent += record.tollMicros;
    else if (OPEN.includes(record.state)) sum.unsettled += record.tollMicros;
  }
  return sum;
}

const OPEN = ['intent', 'sent', 'unknown'];
const SPENT = ['done', 'charged'];

async function send(record, atRisk) {
  const sentBefore = record.state !== 'draft';
  let waived = atRisk;
  const remembered = async () => {
    serverRemembers((await read('/bff/catalog')).replay);
    if (!waived) return canAskAgain(record);
    waived = false;
    Object.assign(record, { ledger: memory?.ledger ?? null, at: Date.now(), forgotten: true });
    await move(record, 'sent');
    return true;
  };
  /** A key that was never sent goes to the new ledger, once that is kept. */
  const ledgerChanged = async (ledger, inDoubt) => {
    if (memory && ledger) serverRemembers({ ...memory, ledger });
    if (inDoubt || !ledger) return false;
    record.ledger = ledger;
    return move(record, 'sent');
  };
  record.problem = null;
  if (!sentBefore) {
    record.ledger = memory?.ledger ?? null;
    // What this browser could forget in the middle is not begun.
    if (!(await move(record, 'intent')) || !(await move(record, 'sent'))) return refuse(record, UNKEPT);
  } else {
    await move(record, 'sent');
  }
  try {
    const { body, tollMicros, requestId } = await buy(record.path, record.payload, record.key,
      { remembered, ledger: () => record.ledger, ledgerChanged, sentBefore, forgotten: atRisk || record.forgotten });
    Object.assign(record, { reply: body, problem: null, requestId });
    record.tollMicros = tollMicros ?? record.tollMicros;
    await end(record, 'done');
  } catch (error) {
    record.problem = plain(error);
    await end(record, { no: 'refused', yes: 'charged' }[error.charged] ?? 'unknown');
  }
  return record;
}

const settle = (record) => alone(record, () => (maySettle(record) ? send(record, false) : leave(record)));

function maySettle(record) {
  if (!canAskAgain(record)) return false;
  if (record.state === 'intent') return record.kind === 'chat' && isWithin(record.at, FRESH_UNSENT);
  return record.problem?.code !== 'unsent' && isWithin(record.at, FRESH);
}

/** A clock that was set back says nothing about an age. */
function isWithin(at, span) {
  const age = Date.now() - at;
  return age >= 0 && age < span;
}

const UNKEPT = { code: 'unkept', charged: 'no', message: 'This browser does not keep what is bought' };

async function refuse(record, problem) {
  record.problem = { ...problem, at: Date.now() };
  await end(record, 'refused');
  return record;
}

/** Not to be sent again by itself: shown as unknown, for the person to decide. */
async function leave(record) {
  const code = record.state === 'intent' ? 'unsent' : 'lost';
  record.problem ??= { code, charged: 'unknown', message: 'The page was closed before an answer came' };
  await end(record, 'unknown');
  return record;
}

async function end(record, state) {
  record.state = state;
  await keepers.get(record.kind)?.keep(record);
  await move(record, state);
}

/** Whether it is kept beyond this tab's life. */
async function move(record, state) {
  record.state = state;
  const isKept = await purchases.put(record);
  for (const changed of watchers) changed();
  return isKept;
}

/** What of an error outlives a reload. */
function plain(error) {
  const { code, reason, status, title, detail, charged, errors, retryAfter, requestId, message } = error;
  // A fault of the page itself after sending is no refusal.
  return { code: code ?? 'lost', reason, status, title, detail, charged: charged ?? 'unknown', errors, retryAfter, requestId, message, at: Date.now() };
}

/** One tab at a time works on a purchase; another waits for it, and takes in what came of it. */
async function alone(record, work) {
  const name = `purchase ${record.key}`;
  const first = record.state === 'draft';
  const latest = async (waited) => {
    const kept = first ? null : await purchases.one(record.key);
    if (kept) Object.assign(record, kept);
    // What another tab has just tried is not tried again by this one.
    if (first || (OPEN.includes(record.state) && !(waited && record.state === 'unknown'))) return await work();
    await keepers.get(record.kind)?.keep(record);
    return record;
  };
  working.add(record.key);
  try {
    // Plain http beyond loopback has no locks; there, the server alone joins what is the same.
    if (!navigator.locks) return await latest(false);
    const free = await navigator.locks.request(name, { ifAvailable: true }, async (lock) => (lock ? { record: await latest(false) } : null));
    if (free) return free.record;
    keepers.get(record.kind)?.wait?.(record);
    return await navigator.locks.request(name, () => latest(true));
  } finally {
    working.delete(record.key);
  }
}

/** Between two rounds of asking by itself for what was lost. */
const PAUSE = 30_000;
let asked = 0;

/** Back online, or back at this tab: what was lost on the way is asked for again, with its own key. */
async function askAgain() {
  if (!memory || document.visibilityState !== 'visible' || navigator.onLine === false || Date.now() - asked < PAUSE) return;
  for (const record of await open()) {
    // What the server itself does not know, it will not know sooner for being asked.
    if (record.state !== 'unknown' || record.problem?.code === 'outcome_unknown' || !maySettle(record)) continue;
    asked = Date.now();
    void settle(record);
  }
}

addEventListener('online', askAgain);
document.addEventListener('visibilitychange', askAgain);
