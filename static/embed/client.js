/**
 * A client for tollgate: `import { createClient } from 'https://your-tollgate/bff/client.js'`.
 *
 * Every purchase gets one Idempotency-Key, made before its first attempt and sent with each repeat, so that a
 * lost reply is asked for again and never bought again. What cannot be settled that way is thrown, and says
 * whether money moved. A key means one purchase to one caller and one ledger of the server: a repeat by or to another would be a new
 * purchase, and is not sent. Every purchase names its ledger (`Tollgate-Ledger`), so that the server refuses a repeat to another.
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
/** How many ended purchases a client remembers. */
const MAX_ENDED = 1000;
const FORGOTTEN = 'The answer was lost, and the service no longer knows this purchase. Sent again, it may be bought a second time';
const STRANGER = 'Somebody else is signed in now. Its answer is only for who bought it';

/** A refusal, or a call whose outcome nobody here knows. */
export class TollgateError extends Error {
  /**
   * `code`: the problem's, or `connection_lost`, `unreadable`, `refused`, `forgotten`, `stranger`, or `token_failed`, `retry_failed` where
   * the page's own function threw (`cause`). `charged`: `no`, `yes` or `unknown`. `errors`: faults of the payload. `retryAfter`: seconds.
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
  const wire = { base: new URL(baseUrl, HOME), token, attempts: attempts >= 1 ? attempts : 1, fetch, met: null, sent: new Notes() };
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

/** What was sent under each key. Of the purchases that have ended, only the last `MAX_ENDED` are remembered. */
class Notes {
  #open = new Map();
  #ended = new Map();

  get = (key) => this.#open.get(key) ?? this.#ended.get(key);

  set(key, note) {
    this.delete(key);
    this.#open.set(key, note);
  }

  end(key, note) {
    if (this.#open.get(key) !== note) return;
    this.#open.delete(key);
    this.#ended.set(key, note);
    if (this.#ended.size > MAX_ENDED) this.#ended.delete(this.#ended.keys().next().value);
  }

  delete = (key) => this.#open.delete(key) || this.#ended.delete(key);
}

/** A name that no other purchase has: an Idempotency-Key. */
export function newKey() {
  if (crypto.randomUUID) return crypto.randomUUID();
  // Plain http beyond loopback has no randomUUID.
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

const named = (ids) => ids.map((id) => `request_id=${encodeURIComponent(id)}`).join('&');

/**
 * `sentBefore`: whether an earlier call may have sent this key. Of a key that was brought along, nobody here knows better. `known`: what
 * `onSend` told of it.
 */
async function buy(wire, path, request, { idempotencyKey: brought, sentBefore = brought != null, known = null, signal, onRetry, onSend } = {}) {
  const idempotencyKey = brought ?? newKey();
  const headers = { 'content-type': 'application/json', 'idempotency-key': idempotencyKey };
  const look = lookout(wire, idempotencyKey, `${path.split('/').pop()}_seconds`, { known, signal, onSend });
  try {
    const { body, response } = await call(wire, path, { method: 'POST', headers, body: JSON.stringify(request), signal, onRetry, sentBefore, look });
    look.end();
    return {
      body,
      toll: response.headers.get('tollgate-toll'),
      replayed: response.headers.get('idempotent-replayed') === 'true',
      idempotencyKey,
    };
  } catch (error) {
    if (!isOurs(error, signal)) throw error;
    if (error.charged === 'no') look.forget();
    else if (error.charged === 'yes') look.end();
    throw Object.assign(error, { idempotencyKey });
  }
}

/** Whoever aborted may have given any reason, also an error of another call: that is theirs, and stays as it is. */
const isOurs = (error, signal) => error instanceof TollgateError && !(signal?.aborted && error === signal.reason);

/** Sends until there is an answer that another attempt would not change. `take` reads the body of a success. */
async function call(wire, path, { onRetry, look, sentBefore = false, ...request } = {}, take = asJson) {
  let doubt = sentBefore;
  let isRenamed = false;
  const before = look && (async (headers) => { doubt = await look.look(headers, doubt); });
  for (let attempt = 1; ; attempt += 1) {
    try {
      const response = await send(wire, path, request, before);
      return { body: await whole(response, request, take), response };
    } catch (error) {
      if (!isOurs(error, request.signal)) throw error;
      if (look && error.code === 'ledger_changed') {
        if (doubt || look.isElsewhere()) throw stopped('forgotten', FORGOTTEN);
        // The key was never sent: it belongs to the ledger that another look finds.
        if (isRenamed) throw error;
        isRenamed = true;
        attempt -= 1;
        continue;
      }
      // A refusal of a repeat speaks of the repeat: of an earlier attempt that was lost, it says nothing.
      if ((doubt || look?.isElsewhere()) && error.charged === 'no' && !(speaksOfTheKey(error) && !look?.isAnew())) error.charged = 'unknown';
      const isLost = error.code === 'connection_lost';
      const wait = isLost ? Math.min(2 ** (attempt - 1), LONGEST_WAIT) : error.retryAfter;
      const isAgain = isLost || (SENT_AGAIN.includes(error.status) && wait !== null);
      if (!isAgain || attempt >= wire.attempts || wait > LONGEST_WAIT) throw error;
      doubt ||= error.charged !== 'no';
      tellOf(onRetry, doubt, error, wait);
      await pause(wait, request.signal);
    }
  }
}

/**
 * What a purchase looks at before each attempt: whoever repeats it has to be its first caller, and to find the ledger that its key was
 * first sent to, while it is kept there. What was sent, and by whom, is noted for all calls of this client with the key. The attempt
 * names that ledger: should the server change it after the look, the server refuses the attempt.
 */
function lookout(wire, key, kept, { known, signal, onSend }) {
  let own = null;
  let isFirst = true;
  const isElsewhere = () => (wire.sent.get(key) ?? own) !== own;
  const judge = (first, now) => {
    // A page says so of a purchase that may be bought anew.
    if (first.ledger == null) return { ...now, anew: true };
    const age = now.at - first.at;
    const seconds = Math.min(first.seconds ?? now.seconds, now.seconds);
    if (first.ledger !== now.ledger || !(age >= 0 && age < seconds * 1000 * SAFE_SHARE)) throw stopped('forgotten', FORGOTTEN);
    return { ...now, at: first.at, seconds, anew: Boolean(first.anew) };
  };
  const look = async (headers, doubt) => {
    const caller = await callerOf(wire, headers.authorization, doubt, signal);
    const replay = (await glance(wire, '/bff/catalog', { signal }))?.replay;
    if (typeof replay?.ledger !== 'string') throw unreadable('GET', '/bff/catalog names no ledger');
    // From here on, nothing comes between: another call may have sent the key while this one looked.
    const isRepeat = doubt || isElsewhere();
    const now = { caller, ledger: replay.ledger, at: Date.now(), seconds: replay[kept], anew: false };
    const first = own ?? (isRepeat ? known ?? wire.sent.get(key) : null);
    if (first && first.caller !== caller) throw stopped('stranger', STRANGER, isRepeat);
    own = isRepeat && first ? judge(first, now) : now;
    isFirst = !isRepeat;
    wire.sent.set(key, own);
    headers['tollgate-ledger'] = own.ledger;
    tellOf(onSend, isRepeat, { ...own });
    return isRepeat;
  };
  return {
    isElsewhere,
    /** Whether it was sent to a ledger of which nobody knows that it is the first one's: of that one, no refusal speaks. */
    isAnew: () => Boolean(own?.anew),
    look: (headers, doubt) => look(headers, doubt).catch((error) => {
      // Looking has cost nothing; what was sent before may have.
      if ((doubt || isElsewhere()) && isOurs(error, signal)) error.charged = 'unknown';
      throw error;
    }),
    /** Nothing was charged: whoever buys next begins anew. */
    forget: () => isFirst && !isElsewhere() && wire.sent.delete(key),
    /** What became of it is known. */
    end: () => wire.sent.end(key, own),
  };
}

/** Who a caller is, in a word. */
export const callerName = ({ kind, name }) => `${kind} ${name ?? ''}`;

/** Whose token this is, as the server says: asked once, and before a repeat, since a server may be set up anew. */
async function callerOf(wire, authorization, isRepeat, signal) {
  if (isRepeat || !wire.met || wire.met.authorization !== authorization) {
    const caller = (await glance(wire, '/bff/me', { headers: authorization && { authorization }, signal }))?.caller;
    if (typeof caller?.kind !== 'string') throw unreadable('GET', '/bff/me names no caller');
    wire.met = { authorization, name: callerName(caller) };
  }
  return wire.met.name;
}

const glance = async (wire, path, request) => whole(await send({ ...wire, token: null }, path, request), request, asJson);

/** Decided only after the key was looked up: these speak of every attempt with it. So does the gateway's own refusal. */
const AFTER_LOOKUP = ['gateway_unreachable', 'gateway_key_rejected', 'window_exhausted', 'budget_exhausted', 'insufficient_credit'];
const speaksOfTheKey = ({ code }) => code === 'refused' || AFTER_LOOKUP.includes(code);

/** Tells the page of what comes next. Where that throws, it does not come, and the key is not lost with it. */
function tellOf(listener, doubt, ...words) {
  try {
    listener?.(...words);
  } catch (cause) {
    throw failed('retry_failed', cause, doubt ? 'unknown' : 'no');
  }
}

const failed = (code, cause, charged) => new TollgateError({ code, charged, cause, detail: String(cause?.message ?? cause) });
const stopped = (code, detail, isRepeat = true) => new TollgateError({ code, detail, charged: isRepeat ? 'unknown' : 'no' });
const unreadable = (method, detail, status = 200) => new TollgateError({ code: 'unreadable', status, charged: method === 'POST' ? 'unknown' : 'no', detail });

async function send(wire, path, { headers = {}, ...request } = {}, before = null) {
  const all = await signed(wire, headers, request);
  // Last of all: a token may take its time.
  await before?.(all);
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
    const word = typeof token === 'function' ? await unlessStopped(token(), signal) : token;
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
    if (isOurs(error, request.signal)) throw error;
    if (request.signal?.aborted) throw request.signal.reason;
    throw lost(request);
  }
}

async function asJson(response, { method }) {
  const text = await response.text();
  try {
    return JSON.parse(text);
  } catch {
    throw unreadable(method, 'The answer is not JSON', response.status);
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
  try {
    await unlessStopped(new Promise((done) => { timer = setTimeout(done, seconds * 1000); }), signal);
  } finally {
    clearTimeout(timer);
  }
}

/** What comes of it, or the abort. */
async function unlessStopped(work, signal) {
  if (!signal) return work;
  let stop;
  const stopping = new Promise((_, fail) => { stop = () => fail(signal.reason); });
  signal.addEventListener('abort', stop);
  if (signal.aborted) stop();
  try {
    return await Promise.race([work, stopping]);
  } finally {
    signal.removeEventListener('abort', stop);
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
