/** Speaks to tollgate: one way to read, one way to buy, and errors that say what they cost. */

import { micros } from './catalog.js';

/** A refusal that came back as a reply: nothing is unclear about it but what `charged` says. */
export class Refusal extends Error {
  /** @param {object} facts status, code, title, detail, charged, errors, retryAfter (seconds or null), requestId */
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

/** A new Idempotency-Key: one per purchase, made before the first attempt and kept for all others. */
export function newKey() {
  if (crypto.randomUUID) return crypto.randomUUID();
  // Plain http beyond loopback has no randomUUID.
  return [...crypto.getRandomValues(new Uint8Array(16))]
    .map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** Reads a JSON document. Throws `Refusal`, `Lost` or `Offline`. */
export async function read(path) {
  return (await ask(path, { headers: { accept: 'application/json' } })).body;
}

const ATTEMPTS = 3;
const PATIENCE = 60;

/**
 * Buys. The same `key` and payload on every attempt: a lost reply is asked for again, and a first
 * call that still runs is joined. Refusals are never sent again from here.
 * @returns {Promise<{body: any, tollMicros: number | null, replayed: boolean, requestId: string | null}>}
 */
export async function buy(path, payload, key, { attempts = ATTEMPTS } = {}) {
  const request = {
    method: 'POST',
    headers: { 'content-type': 'application/json', accept: 'application/json', 'idempotency-key': key },
    body: JSON.stringify(payload),
  };
  for (let lost = 0, waited = 0; ;) {
    try {
      return await ask(path, request);
    } catch (error) {
      if (error instanceof Lost && ++lost < attempts) await pause(lost);
      else if (error.code === 'still_running' && ++waited < PATIENCE) await pause(error.retryAfter ?? 2);
      else throw error;
    }
  }
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
  if (!response.ok) throw refusal(response, body, text);
  if (body === undefined) throw new Lost('The answer came, but it cannot be read');
  return {
    body,
    tollMicros: micros(response.headers.get('tollgate-toll')),
    replayed: response.headers.get('idempotent-replayed') === 'true',
    requestId: response.headers.get('x-request-id'),
  };
}

function refusal(response, body, text) {
  const problem = typeof body?.code === 'string' && typeof body?.charged === 'string';
  return new Refusal({
    status: response.status,
    code: problem ? body.code : 'refused',
    title: problem ? body.title : `The gateway refused it (${response.status})`,
    detail: problem ? body.detail : text.slice(0, 500),
    // What is no problem of tollgate's is the gateway's own refusal, which is passed on uncharged; a 5xx
    // that tollgate did not write comes from something between, which may have swallowed the answer.
    charged: problem ? body.charged : response.status < 500 ? 'no' : 'unknown',
    errors: problem && Array.isArray(body.errors) ? body.errors : [],
    retryAfter: seconds(response.headers.get('retry-after')),
    requestId: response.headers.get('x-request-id'),
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
