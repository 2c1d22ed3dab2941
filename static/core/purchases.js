/**
 * Carries a purchase from the click to its end, also across reloads, and never buys it twice. The page and the widgets pass their own
 * stores.
 *
 * draft → intent → sent → done | refused | charged (without a result) | unknown | forgotten (dismissed)
 *
 * A record: `{key, kind: 'chat' | 'video', payload, costMicros, at, state, reply, problem}`, what the transport noted when it was sent
 * (`Known` in client.d.ts), and whatever else its owner keeps with it.
 */

import { micros } from './format.js';

/** For how long a purchase is asked for without a click. */
const FRESH = 60 * 60 * 1000;
/** The share of a key's lifetime on the server that is relied on; the transport checks it again. */
const SAFE_SHARE = 0.9;

const UNKEPT = Object.assign(new Error('This browser does not keep what is bought'), { code: 'unkept', charged: 'no' });
const FORGOTTEN = Object.assign(new Error('The service may no longer know this purchase'), { code: 'forgotten', charged: 'unknown' });

const BUY = {
  chat: (transport, ...how) => transport.chat(...how),
  video: (transport, ...how) => transport.video.create(...how),
};

export const isOpen = ({ state }) => ['intent', 'sent', 'unknown'].includes(state);

/** Whether the service may have forgotten the purchase. */
export const isForgotten = ({ problem }) => ['forgotten', 'purchase_not_found'].includes(problem?.code);

/** A clock that was set back says nothing about an age. */
export const isWithin = (at, span) => Date.now() >= at && Date.now() - at < span;

/** A purchase with its own key, not yet kept and not yet sent. */
export const draft = (facts) => ({ at: Date.now(), state: 'draft', reply: null, problem: null, caller: null, ledger: null, mayBuyAgain: false, ...facts });

export class Purchases {
  #store;
  #transport;
  #locks;
  #ended;
  #memory = null;

  /**
   * @param {object} options
   *   store: `put(record)`, which resolves to `false` if the record is not kept. transport: a client of transport.js.
   *   locks: `navigator.locks`, if the browser has them. ended: is awaited before a purchase counts as ended; it may
   *   see a record twice.
   */
  constructor({ store, transport, locks = null, ended = null }) {
    [this.#store, this.#transport, this.#locks, this.#ended] = [store, transport, locks, ended];
  }

  /**
   * Takes in what the server remembers: the catalog's `replay`. Until then, nothing is sent a second time by itself. A second call
   * changes nothing.
   */
  remember(replay) {
    this.#memory ??= replay ? { ...replay } : null;
  }

  /** Whether asking again with the same key can only bring the first purchase's answer. */
  canAskAgain(record) {
    return !isForgotten(record) && this.#isKnown(record);
  }

  /** Whether trying again keeps the key: an earlier attempt may still arrive. */
  keepsKey(record) {
    return record.state === 'refused' && record.repeats > 0 && this.#isKnown(record);
  }

  #isKnown({ kind, ledger, at, seconds }) {
    if (!ledger || ledger !== this.#memory?.ledger) return false;
    const kept = this.#memory[`${kind}_seconds`];
    return isWithin(at, Math.min(seconds ?? kept, kept) * 1000 * SAFE_SHARE);
  }

  /** Whether it is asked for without a click: it was sent, and a person still wants it. */
  isWanted(record) {
    return record.state !== 'intent' && record.problem?.code !== 'unsent' && this.#isKnown(record) && isWithin(record.at, FRESH);
  }

  /**
   * Sends a purchase, or asks for the answer to one that was sent, which buys nothing. Resolves with the record in its new state; it
   * does not throw. `again`: buys what was refused. `atRisk`: the person knows that this may buy a second time, and still wants it
   * sent.
   */
  async send(record, { atRisk = false, again = false, onRetry, onProof } = {}) {
    const sentBefore = record.state !== 'draft';
    const replayOnly = sentBefore && !atRisk && !again && record.problem?.code !== 'unsent';
    const { caller, ledger, at, seconds, repeats } = record;
    // `anew` is the field's name in records of earlier versions.
    const mayBuyAgain = record.mayBuyAgain || record.anew;
    const known = sentBefore ? { caller, ledger: atRisk ? null : ledger, at, seconds, mayBuyAgain, repeats } : null;
    record.problem = null;
    const onSend = async (noted) => {
      Object.assign(record, noted);
      if (this.#memory) this.#memory.ledger = noted.ledger;
      if (!(await this.#move(record, 'sent')) && !sentBefore) throw UNKEPT;
    };
    try {
      if (!sentBefore) {
        record.ledger = this.#memory?.ledger ?? null;
        // A purchase that this browser could forget is not started.
        if (!(await this.#move(record, 'intent'))) throw UNKEPT;
      } else if (!ledger && !atRisk) {
        throw FORGOTTEN;
      } else {
        await this.#move(record, 'sent');
      }
      const how = { idempotencyKey: record.key, sentBefore, known, replayOnly, onSend, onRetry, onProof };
      record.reply = await BUY[record.kind](this.#transport, record.payload, how);
      record.costMicros = micros(record.reply.cost) ?? record.costMicros;
      await this.#end(record, 'done');
    } catch (error) {
      record.problem = lasting(error.cause === UNKEPT ? UNKEPT : error);
      await this.#end(record, { no: 'refused', yes: 'charged' }[record.problem.charged] ?? 'unknown');
    }
    return record;
  }

  /** Leaves a purchase to the person: it is not sent by itself. */
  async leave(record) {
    const code = record.state === 'intent' ? 'unsent' : 'connection_lost';
    record.problem ??= { code, charged: 'unknown', message: 'The page was closed before an answer came' };
    await this.#end(record, 'unknown');
    return record;
  }

  async forget(record) {
    await this.#move(record, 'forgotten');
  }

  /** Resolves with a function that releases the purchase, once it is free in this browser; with `null` if `ifFree` and it is held now. */
  async hold(key, ifFree = false) {
    try {
      return await new Promise((resolve, reject) => {
        const locked = (lock) => lock && new Promise((release) => resolve(release));
        this.#locks.request(`tollgate ${key}`, { ifAvailable: ifFree }, locked).then(() => resolve(null), reject);
      });
    } catch { /* No locks over plain http beyond loopback, or in a sandboxed frame. */ }
    while (heldHere.has(key)) {
      if (ifFree) return null;
      await heldHere.get(key);
    }
    let release;
    heldHere.set(key, new Promise((done) => { release = done; }));
    return () => {
      heldHere.delete(key);
      release();
    };
  }

  async #end(record, state) {
    record.state = state;
    await this.#ended?.(record);
    await this.#move(record, state);
  }

  /** Resolves to whether the record is kept beyond this tab's life. */
  async #move(record, state) {
    record.state = state;
    return (await this.#store.put(record)) !== false;
  }
}

/** The purchases that are held in this document, if the browser has no locks. */
const heldHere = new Map();

/** The parts of an error that survive a reload. An error that is not a refusal has an unknown outcome. */
function lasting({ code, status, title, detail, charged = 'unknown', errors, renewsAt, retryAfter, requestId, message }) {
  return {
    code: typeof code === 'string' ? code : 'connection_lost',
    status, title, detail, charged, errors, renewsAt, retryAfter, requestId, message, at: Date.now(),
  };
}
