/** Speaks to tollgate: one way to read, one way to buy, and errors that say what they cost. */

import { micros } from './catalog.js';

/** A refusal that came back as a reply: nothing is unclear about it but what `charged` says. */
export class Refusal extends Error {
  /** @param {object} facts status, code, title, detail, charged, errors, retryAfter (seconds or null), requestId, ledger */
  constructor(facts) {
    super(facts.detail || facts.title || facts.code);
    Object.assign(this, facts);
  }
}

/** No reply that can be read. Of a purchase, nobody here knows whether it was charged. */
export class Lost extends Error {
  code = 'lost';
  charged = 'unknown';
}

/** The browser knows that it is offline, so nothing was sent. */
export class Offline extends Error {
  code = 'offline';
  charged = 'no';
}

/** The server forgets keys, or has forgotten this one: sending it again could buy a second time. */
export class Forgotten extends Error {
  code = 'forgotten';
  charged = 'unknown';
}

/** A new Idempotency-Key: one per purchase, made before the first attempt and kept for all others. */
export function newKey() {
  if (crypto.randomUUID) return crypto.randomUUID();
  // Plain http beyond loopback has no randomUUID.
  return [...crypto.getRandomValues(new Uint8Array(16))]
    .map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** What goes with whatever changes something: no page of somebody else can send it along with the cookie of a login. */
const MEANT = { 'x-tollgate': '1' };
/** What a 401 says of the credentials; a gateway's own 401 says nothing of them. */
const SIGNED_OUT = ['missing_credentials', 'invalid_credentials'];

let tellSignedOut = () => {};

/** Calls `tell(code)` whenever a reply says that nobody is signed in, or not any more. */
export function whenSignedOut(tell) {
  tellSignedOut = tell;
}

/** Sends what buys nothing, such as a login. Throws as `read` does. */
export async function post(path, payload) {
  await ask(path, { method: 'POST', headers: { ...MEANT, 'content-type': 'application/json' }, body: JSON.stringify(payload) });
}

/** Reads a JSON document. Throws `Refusal`, `Lost` or `Offline`. */
export async function read(path) {
  return (await ask(path, { headers: { accept: 'application/json' } })).body;
}

const ATTEMPTS = 3;
const PATIENCE = 60;
const FORGOTTEN = 'The service may no longer know this purchase';
/** Decided only after a key was looked up, so that a "no" also speaks of earlier attempts. */
const AFTER_LOOKUP = ['gateway_unreachable', 'gateway_key_rejected', 'window_exhausted', 'budget_exhausted', 'insufficient_credit'];

/**
 * Buys. The same `key` and payload on every attempt: a lost reply is asked for again, and a first
 * call that still runs is joined. Refusals are never sent again from here.
 *
 * Once an attempt may have gone through, a refusal of a later one says nothing of it, unless it was
 * raised behind the lookup of the key: it is thrown as `unsettled`, with its own code as `reason`.
 * Every attempt names the ledger that the key belongs to. If the server has another one, it refuses the attempt
 * (412), and a key that may have been sent before is never sent again from here.
 * @param {object} options
 *   remembered: resolves whether the server still knows the key; asked before every attempt but the first.
 *   ledger: returns the ledger's name, if one is known. ledgerChanged(name, inDoubt): is told of another one, and
 *   resolves whether the purchase may be sent there.
 *   sentBefore: an earlier page or click may have sent it. forgotten: and under a memory that is gone.
 * @returns {Promise<{body: any, tollMicros?: number, replayed: boolean, requestId?: string}>}
 */
export async function buy(path, payload, key, { remembered, ledger, ledgerChanged, sentBefore = false, forgotten = false }) {
  const request = () => ({
    method: 'POST',
    headers: {
      ...MEANT, 'content-type': 'application/json', accept: 'application/json', 'idempotency-key': key,
      ...(ledger() && { 'tollgate-ledger': ledger() }),
    },
    body: JSON.stringify(payload),
  });
  let inDoubt = sentBefore;
  for (let lost = 0, waited = 0, changes = 0; ;) {
    try {
      if (inDoubt && !(await remembered())) throw new Forgotten(FORGOTTEN);
      return await ask(path, request());
    } catch (error) {
      if (error.code === 'ledger_changed') {
        const mayBeSent = await ledgerChanged(error.ledger, inDoubt);
        if (inDoubt) throw new Forgotten(FORGOTTEN);
        if (!mayBeSent || ++changes > 1) throw error;
        continue;
      }
      if (error instanceof Lost && ++lost < ATTEMPTS) await pause(lost);
      else if (error.code === 'still_running' && ++waited < PATIENCE) await pause(error.retryAfter ?? 2);
      else throw inDoubt ? unsettled(error, forgotten) : error;
    }
    inDoubt = true;
  }
}

function unsettled(error, forgotten) {
  const speaksOfAll = !forgotten && (error.isGateways || AFTER_LOOKUP.includes(error.code));
  // Not even the question whether the key is known came through.
  if (error.code === 'refused' && !error.isGateways) error.code = 'between';
  if (error.charged !== 'no' || speaksOfAll) return error;
  return Object.assign(error, { reason: error.code, code: 'unsettled', charged: 'unknown' });
}

/** Resolves after this many seconds. */
export const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

async function ask(path, request) {
  if (navigator.onLine === false) throw new Offline('You are offline');
  let response, text;
  try {
    response = await fetch(path, { ...request, redirect: 'error', cache: 'no-store' });
    text = await response.text();
  } catch {
    throw new Lost('The connection was lost before an answer came');
  }
  const body = parsed(text);
  if (response.status === 401 && SIGNED_OUT.includes(body?.code)) tellSignedOut(body.code);
  if (!response.ok) throw refusal(response, body, text, request.method === 'POST');
  if (body === undefined && response.status !== 204) throw new Lost('The answer came, but it cannot be read');
  return {
    body,
    tollMicros: micros(response.headers.get('tollgate-toll')),
    replayed: response.headers.get('idempotent-replayed') === 'true',
    requestId: response.headers.get('x-request-id'),
  };
}

function refusal(response, body, text, buying) {
  const problem = typeof body?.code === 'string' && typeof body?.charged === 'string';
  // The gateway's own refusal is passed on uncharged, and with this header. What is neither that nor a
  // problem of tollgate's comes from something in between, which may have swallowed the true answer.
  const isGateways = !problem && response.status < 500 && response.headers.has('tollgate-toll');
  return new Refusal({
    status: response.status,
    isGateways,
    code: problem ? body.code : isGateways || !buying ? 'refused' : 'between',
    title: problem ? body.title : `It was refused (${response.status})`,
    detail: problem ? body.detail : text.slice(0, 500),
    charged: problem ? body.charged : isGateways ? 'no' : 'unknown',
    errors: problem && Array.isArray(body.errors) ? body.errors : [],
    retryAfter: seconds(response.headers.get('retry-after')),
    requestId: response.headers.get('x-request-id'),
    ledger: response.headers.get('tollgate-ledger'),
  });
}

function seconds(header) {
  return /^\d{1,6}$/.test(header ?? '') ? Math.max(1, Number(header)) : null;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
