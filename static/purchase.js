/**
 * Carries a purchase from the click to its end, and across reloads, without ever buying it twice.
 *
 * draft → intent (kept, before anything is sent) → sent → done | refused | charged (without a result) | unknown | forgotten (dismissed)
 *
 * A record: `{key, kind: 'chat' | 'video', path, payload, tollMicros, about, session, at, state, reply, problem}`.
 */

import { buy, newKey } from './api.js';
import { purchases, session } from './store.js';

/** How long after the click an open purchase is settled without asking: a person still wants it then. */
const FRESH = 60 * 60 * 1000;
/** How long the server remembers a key at least; later the same key could buy anew, so it is not sent. */
const REMEMBERED = 23 * 60 * 60 * 1000;

const keepers = new Map();
const watchers = [];
let replays = true;

/** Whether the server remembers keys; without that nothing is ever sent a second time from here. */
export function serverRemembersKeys(yes) {
  replays = yes;
}

/**
 * `keep(record)` takes in what a purchase of this kind brought. It is awaited before the purchase counts
 * as ended, so that a crash in between asks again rather than losing an answer; it may see a record twice.
 */
export function whenSettled(kind, keep) {
  keepers.set(kind, keep);
}

/** Calls `changed()` whenever a purchase begins or ends. */
export function whenChanged(changed) {
  watchers.push(changed);
}

/** A purchase with its own key, not yet kept and not yet sent. */
export function draft({ kind, path, payload, tollMicros, about }) {
  return {
    key: newKey(), kind, path, payload, tollMicros, about,
    session: session(), at: Date.now(), state: 'draft', reply: null, problem: null,
  };
}

/** Keeps the intent, sends it, and keeps how it ended. Resolves with the record; it never throws. */
export function commit(record) {
  return alone(record.key, async () => {
    await move(record, 'intent');
    await move(record, 'sent');
    try {
      const { body, tollMicros, requestId } = await buy(record.path, record.payload, record.key,
        { attempts: replays ? undefined : 1 });
      Object.assign(record, { reply: body, problem: null, requestId });
      record.tollMicros = tollMicros ?? record.tollMicros;
      await end(record, 'done');
    } catch (error) {
      record.problem = plain(error);
      await end(record, { no: 'refused', yes: 'charged' }[error.charged] ?? 'unknown');
    }
    return record;
  });
}

/** Whether asking again with the same key can only ever bring the first purchase's answer. */
export function canAskAgain(record) {
  return replays && record.state !== 'refused' && Date.now() - record.at < REMEMBERED;
}

/** The person does not want to see it any more, whatever became of it. */
export async function forget(record) {
  await move(record, 'forgotten');
}

/** Purchases whose end is not known. */
export async function open() {
  return (await purchases.all()).filter((record) => OPEN.includes(record.state));
}

/** Settles what an earlier page left open, by asking again with the same key. */
export async function settleOpen() {
  for (const record of await purchases.all()) {
    if (!OPEN.includes(record.state) && Date.now() - record.at > REMEMBERED) await purchases.delete(record.key);
  }
  for (const record of await open()) {
    const fresh = Date.now() - record.at < FRESH;
    if (fresh && canAskAgain(record)) void commit(record);
    else void alone(record.key, () => leave(record));
  }
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

/** Too old, or the server forgets keys: shown as unknown, for the person to decide. */
async function leave(record) {
  record.problem ??= { code: 'lost', charged: 'unknown', message: 'The page was closed before an answer came' };
  await end(record, 'unknown');
}

async function end(record, state) {
  record.state = state;
  await keepers.get(record.kind)?.(record);
  await move(record, state);
}

async function move(record, state) {
  record.state = state;
  await purchases.put(record);
  for (const changed of watchers) changed();
}

/** What of an error outlives a reload. */
function plain(error) {
  const { code, status, title, detail, charged, errors, retryAfter, requestId, message } = error;
  // A fault of the page itself after sending is no refusal.
  return { code: code ?? 'lost', status, title, detail, charged: charged ?? 'unknown', errors, retryAfter, requestId, message, at: Date.now() };
}

/** One tab at a time works on a purchase; a second one leaves it to the first. */
function alone(key, work) {
  if (!navigator.locks) return work();
  return navigator.locks.request(`purchase ${key}`, { ifAvailable: true }, (lock) => lock && work());
}
