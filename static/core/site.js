/** Speaks to the server that this page came from: with the cookie of a login, and at once if the browser is offline. */

import { TollgateError, createClient } from './transport.js';

/** What a 401 says of the credentials; a gateway's own 401 says nothing of them. */
const SIGNED_OUT = ['missing_credentials', 'invalid_credentials'];

let tellSignedOut = () => {};

/** Calls `tell(code)` whenever a reply says that nobody is signed in, or not any more. */
export function whenSignedOut(tell) {
  tellSignedOut = tell;
}

async function fetchHere(address, request) {
  if (navigator.onLine === false) throw new TollgateError({ code: 'offline', charged: 'no', detail: 'You are offline' });
  // No page of another site can send this header along with the cookie.
  const headers = { ...request.headers, 'x-tollgate': '1' };
  const response = await fetch(address, { ...request, headers, credentials: 'same-origin' });
  if (response.status === 401) {
    const problem = await response.clone().json().catch(() => null);
    if (SIGNED_OUT.includes(problem?.code)) tellSignedOut(problem.code);
  }
  return response;
}

/** Buys. A person waits in front of it: a refusal that asks for a longer wait is shown with a countdown. */
export const shop = createClient({ fetch: fetchHere, attempts: 3, patience: 10 });

const once = createClient({ fetch: fetchHere, attempts: 1 });

/** Reads a JSON document, once: the view that shows it has a button to try again. Throws a `TollgateError`. */
export const read = (path) => once.ask(path);

/** Sends what buys nothing, such as a login. Throws as `read` does. */
export const post = (path, body) => once.ask(path, { body });
