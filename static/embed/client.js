/**
 * A client for tollgate: `import { createClient } from 'https://your-tollgate/bff/client.js'`.
 *
 * Every purchase gets one Idempotency-Key, made before its first attempt and sent with each repeat, so that a
 * lost reply is asked for again and never bought again. What cannot be settled that way is thrown, and says
 * whether money moved. A server keeps keys in its ledger: under another ledger a repeat would be a new purchase, and is not sent.
 */

/** Where this file came from: the default address of the API. */
const HOME = new URL('/', import.meta.url).href;
const ATTEMPTS = 5;
/** How long a server may make us wait before we say so instead, in seconds. */
const LONGEST_WAIT = 60;
/** Refusals that cost nothing, or that the same key answers later: sent again where they say when. */
const SENT_AGAIN = [409, 429, 503];
/** How much of the time for which the server knows a key is relied upon. */
const SAFE_SHARE = 0.9;
const FORGOTTEN = 'The answer was lost, and the service no longer knows this purchase. Sent again, it may be bought a second time';

/** A refusal, or a call whose outcome nobody here knows. */
export class TollgateError extends Error {
  /**
   * `code`: the problem's, or `connection_lost`, `unreadable`, `refused`, `forgotten`, or `token_failed`, `retry_failed` where the page's
   * own function threw (`cause`). `charged`: `no`, `yes` or `unknown`. `errors`: faults of the payload. `retryAfter`: seconds.
   * `idempotencyKey`: of a purchase; calling again with it settles what is unknown.
   */
  constructor(facts) {
    super(facts.detail || facts.title || facts.code);
    this.name = 'TollgateError';
    const nothing = { status: 0, title: '', detail: '', errors: [], retryAfter: null, requestId: null, idempotencyKey: null };
    Object.assign(this, nothing, facts);
  }
}

/**
 * @param {object} options
 *   baseUrl: tollgate's address, this file's by default. token: a member's token or a JWT, or a function that
 *   gives one (it may be async). attempts: how often a call is tried at most. fetch: another one.
 */
export function createClient({ baseUrl = HOME, token = null, attempts = ATTEMPTS, fetch = globalThis.fetch.bind(globalThis) } = {}) {
  const wire = { base: new URL(baseUrl, HOME), token, attempts: attempts >= 1 ? attempts : 1, fetch, sent: new Map() };
  const read = async (path, options) => (await call(wire, path, options)).body;
  return Object.freeze({
    chat: async (request, options = {}) => {
      const { body, ...paid } = await buy(wire, '/api/v1/chat', request, options);
      return { message: body?.message, ...paid, raw: body };
    },
    video: Object.freeze({
      create: async (request, options = {}) => {
        const { body, ...paid } = await buy(wire, '/api/v1/video', request, options);
        return { requestId: body?.request_id, ...paid, raw: body };
      },
      status: (requestId, options) => read(`/api/v1/video/status?${named([requestId])}`, options),
      watch: (requestId, options = {}) => watch(wire, requestId, options),
      content: async (requestId, options) => {
        const path = `/bff/video/content?${named([requestId])}`;
        return (await call(wire, path, options, (response) => response.blob())).body;
      },
    }),
    catalog: (options) => read('/bff/catalog', options),
    me: (options) => read('/bff/me', options),
    jobs: (options) => read('/bff/jobs', options),
    usage: (since = '7d', options = {}) => read(`/bff/usage?since=${encodeURIComponent(since)}`, options),
  });
}

/** A name that no other purchase has: an Idempotency-Key. */
export function newKey() {
  if (crypto.randomUUID) return crypto.randomUUID();
  // Plain http beyond loopback has no randomUUID.
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

const named = (ids) => ids.map((id) => `request_id=${encodeURIComponent(id)}`).join('&');

/** `sentBefore`: whether an earlier call may have sent this key. Of a key that was brought along, nobody here knows better. */
async function buy(wire, path, request, { idempotencyKey: brought, sentBefore = brought != null, signal, onRetry } = {}) {
  const idempotencyKey = brought ?? newKey();
  const headers = { 'content-type': 'application/json', 'idempotency-key': idempotencyKey };
  try {
    const { body, response } = await call(wire, path, { method: 'POST', headers, body: JSON.stringify(request), signal, onRetry, sentBefore });
    return {
      body,
      toll: response.headers.get('tollgate-toll'),
      replayed: response.headers.get('idempotent-replayed') === 'true',
      idempotencyKey,
    };
  } catch (error) {
    if (!(error instanceof TollgateError)) throw error;
    if (error.charged === 'no') wire.sent.delete(idempotencyKey);
    throw Object.assign(error, { idempotencyKey });
  }
}

/** Sends until there is an answer that another attempt would not change. `take` reads the body of a success. */
async function call(wire, path, { onRetry, sentBefore = false, ...request } = {}, take = asJson) {
  const look = lookout(wire, path, request);
  let doubt = sentBefore || look?.isRepeat;
  for (let attempt = 1; ; attempt += 1) {
    try {
      const response = await send(wire, path, request, look && (() => look(doubt)));
      return { body: await whole(response, request, take), response };
    } catch (error) {
      if (!(error instanceof TollgateError)) throw error;
      // A refusal of a repeat speaks of the repeat: of an earlier attempt that was lost, it says nothing.
      if (doubt && error.charged === 'no' && !speaksOfTheKey(error)) error.charged = 'unknown';
      const isLost = error.code === 'connection_lost';
      const wait = isLost ? Math.min(2 ** (attempt - 1), LONGEST_WAIT) : error.retryAfter;
      const isAgain = isLost || (SENT_AGAIN.includes(error.status) && wait !== null);
      if (!isAgain || attempt >= wire.attempts || wait > LONGEST_WAIT) throw error;
      doubt ||= error.charged !== 'no';
      tellOf(onRetry, error, wait, doubt);
      await pause(wait, request.signal);
    }
  }
}

/**
 * What a purchase looks at before each attempt: a repeat has to find the ledger that its key was first sent to, and while it is kept
 * there. Under another one it would be bought anew. What is noted of a key is copied: another call with it may come to another end.
 */
function lookout(wire, path, { headers, signal }) {
  const key = headers?.['idempotency-key'];
  if (!key) return null;
  const note = { ...wire.sent.get(key) };
  const look = async (isRepeat) => {
    const { ledger, [`${path.split('/').pop()}_seconds`]: seconds } = await replayOf(wire, isRepeat, signal);
    const age = Date.now() - note.at;
    // Of a key that was brought along, what is found first is taken.
    if (!isRepeat || !note.ledger) Object.assign(note, { ledger, at: Date.now() });
    else if (!(ledger === note.ledger && age >= 0 && age < seconds * 1000 * SAFE_SHARE)) {
      throw new TollgateError({ code: 'forgotten', charged: 'unknown', detail: FORGOTTEN });
    }
    wire.sent.set(key, note);
  };
  return Object.assign(look, { isRepeat: wire.sent.has(key) });
}

/** For how long keys are known, and by which ledger. */
async function replayOf(wire, isRepeat, signal) {
  try {
    const response = await send({ ...wire, token: null }, '/bff/catalog', { signal });
    const { replay } = await whole(response, { signal }, asJson);
    if (typeof replay?.ledger === 'string') return replay;
    throw new TollgateError({ code: 'unreadable', status: response.status, charged: 'no', detail: '/bff/catalog names no ledger' });
  } catch (error) {
    // Looking has cost nothing; what was sent before may have.
    if (isRepeat && error instanceof TollgateError) error.charged = 'unknown';
    throw error;
  }
}

/** Decided only after the key was looked up: these speak of every attempt with it. So does the gateway's own refusal. */
const AFTER_LOOKUP = ['gateway_unreachable', 'gateway_key_rejected', 'window_exhausted', 'budget_exhausted', 'insufficient_credit'];
const speaksOfTheKey = ({ code }) => code === 'refused' || AFTER_LOOKUP.includes(code);

/** Tells the page of a repeat. Where that throws, there is none, and the key is not lost with it. */
function tellOf(onRetry, error, wait, doubt) {
  try {
    onRetry?.(error, wait);
  } catch (cause) {
    throw failed('retry_failed', cause, doubt ? 'unknown' : 'no');
  }
}

const failed = (code, cause, charged) => new TollgateError({ code, charged, cause, detail: String(cause?.message ?? cause) });

async function send(wire, path, { headers = {}, ...request } = {}, look = null) {
  const all = await signed(wire, headers, request);
  // Last of all: a token may take its time.
  await look?.();
  try {
    return await wire.fetch(new URL(path, wire.base).href, {
      ...request, headers: all, credentials: 'omit', redirect: 'error', cache: 'no-store', referrerPolicy: 'no-referrer',
    });
  } catch {
    // Whoever aborted knows it by its own reason, unchanged: it may be that of other calls, too.
    if (request.signal?.aborted) throw request.signal.reason;
    throw lost(request);
  }
}

/** The headers with the caller's token. Without it, nothing is sent: this attempt has cost nothing. */
async function signed({ token }, headers, { signal }) {
  try {
    const word = typeof token === 'function' ? await token() : token;
    return Object.fromEntries(new Headers({ ...headers, ...(word && { authorization: `Bearer ${word}` }) }));
  } catch (cause) {
    if (signal?.aborted) throw signal.reason;
    throw failed('token_failed', cause, 'no');
  }
}

const lost = ({ method = 'GET' }) => new TollgateError({
  code: 'connection_lost', charged: method === 'POST' ? 'unknown' : 'no', detail: 'The connection was lost before an answer came',
});

/** The body of a success, as `take` reads it; a refusal is thrown. */
async function whole(response, request, take) {
  try {
    if (response.ok) return await take(response, request);
    throw refusal(response, await response.text(), request);
  } catch (error) {
    if (error instanceof TollgateError) throw error;
    if (request.signal?.aborted) throw request.signal.reason;
    throw lost(request);
  }
}

async function asJson(response, { method }) {
  const text = await response.text();
  try {
    return JSON.parse(text);
  } catch {
    throw new TollgateError({ code: 'unreadable', status: response.status, charged: method === 'POST' ? 'unknown' : 'no', detail: 'The answer is not JSON' });
  }
}

function refusal(response, text, { method } = {}) {
  let problem = null;
  try {
    problem = JSON.parse(text);
  } catch { /* Whoever answered, it was not tollgate. */ }
  const isOurs = typeof problem?.code === 'string' && typeof problem?.charged === 'string';
  // Reading costs nothing. The gateway's own refusal comes unchanged, with its toll beside it: nothing.
  const isFree = method !== 'POST' || (response.status < 500 && response.headers.has('tollgate-toll'));
  const after = response.headers.get('retry-after') ?? '';
  return new TollgateError({
    status: response.status,
    code: isOurs ? problem.code : 'refused',
    title: isOurs ? problem.title : `It was refused (${response.status})`,
    detail: isOurs ? problem.detail : text.slice(0, 500),
    charged: isOurs ? problem.charged : isFree ? 'no' : 'unknown',
    errors: isOurs ? problem.errors ?? [] : [],
    retryAfter: /^\d{1,6}$/.test(after) ? Math.max(1, Number(after)) : null,
    requestId: response.headers.get('x-request-id'),
  });
}

async function pause(seconds, signal) {
  signal?.throwIfAborted();
  let timer;
  let stop;
  try {
    await new Promise((done, fail) => {
      timer = setTimeout(done, seconds * 1000);
      stop = () => fail(signal.reason);
      signal?.addEventListener('abort', stop);
    });
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', stop);
  }
}

/**
 * Yields `{requestId, state, status, at}` with each change of a job, the last one with `finished` or `failed`.
 * The stream is opened again where it ends or is lost, and goes on where it was.
 */
async function* watch(wire, requestId, { signal } = {}) {
  const path = `/bff/events?${named([requestId])}`;
  for (let lastId = '', failures = 0; ;) {
    let wait = 3;
    try {
      const headers = { accept: 'text/event-stream', ...(lastId && { 'last-event-id': lastId }) };
      const response = await send(wire, path, { headers, signal });
      if (response.status === 204) return;
      if (!response.ok) throw refusal(response, await response.text().catch(() => ''));
      for await (const { id, event, data } of events(response.body)) {
        lastId = id || lastId;
        failures = 0;
        const word = JSON.parse(data);
        if (event === 'problem' && word.request_id) throw told(word);
        if (event !== 'job') continue;
        yield { requestId: word.request_id, state: word.state, status: word.status, at: word.at };
        if (word.state !== 'open') return;
      }
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      if (!(error instanceof TollgateError)) throw error;
      const isFinal = error.status && !SENT_AGAIN.includes(error.status) && error.status < 500;
      failures += 1;
      if (isFinal || failures >= wire.attempts) throw error;
      wait = error.retryAfter ?? Math.min(30, 2 ** failures);
    }
    await pause(wait, signal);
  }
}

/** A problem that came as an event. */
const told = ({ code, status, title, detail = '', charged }) => new TollgateError({ code, status, title, detail, charged });

/** Server-sent events of a body, as the standard reads them. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let event = { id: '', event: 'message', data: [] };
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(() => { throw lost({}); });
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        const [, field, text] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (line === '') {
          if (event.data.length) yield { ...event, data: event.data.join('\n') };
          event = { id: event.id, event: 'message', data: [] };
        } else if (field === 'data') event.data.push(text);
        else if (field === 'event' || field === 'id') event[field] = text;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
