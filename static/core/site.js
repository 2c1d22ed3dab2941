/** Speaks to the server that this page came from: with the cookie of a login, and at once if the browser is offline. */

import { RETRIES, TollgateError, createClient } from './transport.js';

const TEXT = { offline: 'You are offline' };

/** The codes of a 401 about the caller's credentials. A 401 of the gateway has another code. */
const SIGNED_OUT = ['missing_credentials', 'invalid_credentials'];

/** What the caller can still spend, in micro-dollars: the least of its budgets and the balance. Infinity while it is not known. */
let spendable = Infinity;
let asks = false;
const watchers = [];

export const canSpend = () => spendable;

/** Whether the caller can ask an admin for more budget. */
export const mayAsk = () => asks;

/** Calls `changed()` when {@link canSpend} has changed. */
export const whenCanSpend = (changed) => watchers.push(changed);

export function learnFunds({ balance, budgets, may_ask: may }) {
  const before = spendable;
  asks = Boolean(may);
  spendable = Math.min(balance?.amount_micros ?? Infinity, ...budgets.map((budget) => budget.left_micros));
  if (spendable !== before) for (const changed of watchers) changed();
}

let tellSignedOut = () => {};

/** Calls `tell(code)` when a reply says that the caller is not signed in. */
export function whenSignedOut(tell) {
  tellSignedOut = tell;
}

async function fetchHere(address, request) {
  if (navigator.onLine === false) throw new TollgateError({ code: 'offline', charged: 'no', detail: TEXT.offline });
  // A page of another site cannot send this header with the cookie.
  const headers = { ...request.headers, 'x-tollgate': '1' };
  const response = await fetch(address, { ...request, headers, credentials: 'same-origin' });
  if (response.status === 401) {
    const problem = await response.clone().json().catch(() => null);
    if (SIGNED_OUT.includes(problem?.code)) tellSignedOut(problem.code);
  }
  return response;
}

/** Buys. If the server asks for a wait longer than 10 seconds, the refusal is shown with a countdown instead. */
export const shop = createClient({ fetch: fetchHere, ...RETRIES.page });

const once = createClient({ fetch: fetchHere, attempts: 1 });

/** Each sends one request that buys nothing, without retries. Throws a `TollgateError`. */
export const read = (path) => once.ask(path);
export const post = (path, body) => once.ask(path, { body });
export const send = (method, path, body, headers) => once.ask(path, { method, body, headers });
