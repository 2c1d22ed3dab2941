/**
 * A client for tollgate, served at `/bff/client.js`: `const tollgate = createClient()`.
 *
 * Every purchase has one Idempotency-Key, which each retry repeats: a lost reply is asked for again and never bought again. A key stands
 * for its purchase only with one caller and in one ledger of the server. The client checks both before each attempt, and never sends a
 * key that would count as a new purchase. If a retry cannot settle the outcome, it throws an error that says whether money moved.
 *
 * This file has no imports, so that any page can load it; `/bff/proof.js` is loaded if the server asks for proof of work. The built-in page uses
 * both.
 */

/** Where this file came from: the default address of the API. */
const HOME = new URL(/^.*\/(?=(?:bff|_)\/)/.exec(new URL(import.meta.url).pathname)?.[0] ?? '/', import.meta.url).href;

const addressOf = (path, base) => new URL(base.pathname.replace(/\/$/, '') + path, base).href;
/**
 * How often a call is sent at most, and the longest wait that a server may ask for, in seconds: for apps, and for the page, whose user
 * can press a button instead.
 */
export const RETRIES = { app: { attempts: 5, patience: 60 }, page: { attempts: 3, patience: 10 } };
/** The wait after so many lost connections, in seconds. */
const backoff = (lost) => Math.min(2 ** (lost - 1), 60);
/** Refusals that cost nothing, or that the same key answers later. Retried if they say when. */
const RETRYABLE = [409, 429, 503];
/** After these, the server lets no earlier attempt buy. The same holds for the gateway's own refusal. */
const AFTER_LOOKUP = ['gateway_unreachable', 'gateway_key_rejected', 'gateway_busy', 'budget_exhausted', 'insufficient_credit',
  'purchase_not_found'];
/** The share of a key's lifetime on the server that is relied on. */
const SAFE_SHARE = 0.9;
const MAX_ENDED = 1000;
const FORGOTTEN = 'The answer was lost, and the service may have forgotten this purchase. If you send it again, you may pay twice';
const STRANGER = 'Someone else is signed in now. Only the person who paid gets the answer';

/** A refusal, or a call with an unknown outcome. The fields are described in client.d.ts. */
export class TollgateError extends Error {
  constructor(facts) {
    super(facts.detail || facts.title || facts.code);
    this.name = 'TollgateError';
    const nothing = { status: 0, title: '', detail: '', errors: [], renewsAt: null, retryAfter: null, requestId: null, ledger: null, proof: null, idempotencyKey: null };
    Object.assign(this, nothing, facts);
  }
}

/** Makes a client. client.d.ts describes the options and methods. */
export function createClient({
  baseUrl = HOME, token = null, attempts = RETRIES.app.attempts, patience = RETRIES.app.patience, fetch = globalThis.fetch.bind(globalThis),
} = {}) {
  const wire = { base: new URL(baseUrl, HOME), token, attempts: attempts >= 1 ? attempts : 1, patience, fetch, lastCaller: null, prover: null, sent: new SentKeys(), link: { isReached: false } };
  const ask = async (path, { body, method, headers, signal, onRetry } = {}) => {
    const sent = body instanceof Blob ? { headers: { 'content-type': body.type }, body } : { headers: { ...JSON_BODY, ...headers }, body: JSON.stringify(body) };
    const request = body === undefined ? { method, signal, onRetry } : { signal, method: method ?? 'POST', ...sent };
    return (await call(wire, path, request, asReply)).body;
  };
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
      status: (requestId, options) => ask(`/api/v1/video/status?${named([requestId])}`, options),
      watch: (requestId, options = {}) => watch(wire, requestId, options),
      content: async (requestId, { signal } = {}) => {
        const path = `/bff/video/content?${named([requestId])}`;
        return (await call(wire, path, { signal }, (response) => response.blob())).body;
      },
    }),
    ask,
    catalog: (options) => ask('/bff/catalog', options),
    me: (options) => ask('/bff/me', options),
    jobs: (options) => ask('/bff/jobs', options),
    usage: (since = '7d', options = {}) => ask(`/bff/usage?since=${encodeURIComponent(since)}`, options),
  });
}

export function newKey() {
  if (crypto.randomUUID) return crypto.randomUUID();
  // Plain http beyond loopback has no randomUUID.
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

export const callerName = ({ kind, name }) => `${kind} ${name ?? ''}`;

const JSON_BODY = { 'content-type': 'application/json' };
const named = (ids) => ids.map((id) => `request_id=${encodeURIComponent(id)}`).join('&');

/** The caller and ledger of each sent key. Of ended purchases, only the last `MAX_ENDED` are kept. */
class SentKeys {
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

/**
 * `sentBefore`: whether an earlier call may have sent this key; assumed of a key that the caller brings. `known`: what `onSend` said of it
 * then. `replayOnly`: asks for the answer of what was bought, and buys nothing.
 */
async function buy(wire, path, request, { idempotencyKey: brought, sentBefore = brought != null, known = null, replayOnly = false, signal, onRetry, onSend, onProof } = {}) {
  const idempotencyKey = brought ?? newKey();
  const headers = { ...JSON_BODY, 'idempotency-key': idempotencyKey, ...(replayOnly && { 'tollgate-replay': 'only' }) };
  const checks = preflight(wire, idempotencyKey, `${path.split('/').pop()}_seconds`, { known, replayOnly, signal, onSend, onProof });
  try {
    const { body, response } = await call(wire, path, { method: 'POST', headers, body: JSON.stringify(request), signal, onRetry, sentBefore, checks });
    checks.end();
    wire.prover?.then((prover) => prover.fetchAhead(), () => {});
    return {
      body,
      cost: response.headers.get('tollgate-cost'),
      replayed: response.headers.get('idempotent-replayed') === 'true',
      idempotencyKey,
    };
  } catch (error) {
    if (!isOurs(error, signal)) throw error;
    if (error.charged === 'no') checks.forget();
    else if (error.charged === 'yes') checks.end();
    throw Object.assign(error, { idempotencyKey });
  }
}

/** Whether the error is this call's own. An abort's reason belongs to the page, even if it is an error of another call. */
const isOurs = (error, signal) => error instanceof TollgateError && !(signal?.aborted && error === signal.reason);

/** Sends until another attempt would not change the answer. `take` reads the body of a success. */
async function call(wire, path, { onRetry, checks, sentBefore = false, ...request } = {}, take = asJson) {
  // A POST that is no purchase has no key, so it is sent once.
  const attempts = checks || !request.method ? wire.attempts : 1;
  let doubt = sentBefore;
  let isRenamed = false;
  let isProved = false;
  const before = checks && (async (headers) => { doubt = await checks.run(headers, doubt); });
  for (let attempt = 1; ; attempt += 1) {
    try {
      const response = await send(wire, path, request, before);
      return { body: await readBody(response, request, take), response };
    } catch (error) {
      if (!isOurs(error, request.signal)) throw error;
      if (checks && error.code === 'ledger_changed') {
        if (doubt || checks.isSentElsewhere()) throw stopped('forgotten', FORGOTTEN);
        // The key was never sent: it belongs to the ledger that there is now.
        if (isRenamed) throw error;
        isRenamed = true;
        checks.follow(error.ledger);
        attempt -= 1;
        continue;
      }
      if (checks && error.code === 'proof_required' && error.proof && !isProved) {
        isProved = true;
        checks.prove(error.proof);
        attempt -= 1;
        continue;
      }
      // A refusal of a retry says nothing of an earlier attempt that was lost.
      const isInDoubt = doubt || checks?.isSentElsewhere();
      if (isInDoubt && error.charged === 'no' && !(settlesKey(error) && !checks?.mayBuyAgain())) error.charged = 'unknown';
      const isLost = error.code === 'connection_lost';
      const wait = isLost ? backoff(attempt) : error.retryAfter;
      const isRetried = isLost || (RETRYABLE.includes(error.status) && wait !== null && wait <= wire.patience);
      if (!isRetried || attempt >= attempts) throw error;
      doubt ||= error.charged !== 'no';
      await notify(onRetry, doubt, error, wait);
      await pause(wait, request.signal);
    }
  }
}

/** Whether a refusal answers for every attempt with its key. */
const settlesKey = ({ code }) => code === 'refused' || AFTER_LOOKUP.includes(code);

/**
 * Checks a purchase before each attempt: a retry needs the caller and the ledger of the first attempt, and a key that is still kept.
 */
function preflight(wire, key, kept, { known, replayOnly, signal, onSend, onProof }) {
  let own = null;
  let isFirst = true;
  let renamed = null;
  let asked = null;
  let proof = null;
  const isSentElsewhere = () => (wire.sent.get(key) ?? own) !== own;
  const checkRepeat = (first, now) => {
    // The page says that the purchase may be bought a second time.
    if (first.ledger == null) return { ...now, mayBuyAgain: true };
    const age = now.at - first.at;
    const seconds = Math.min(first.seconds ?? now.seconds, now.seconds);
    // A clock that was set back says nothing about an age.
    if (first.ledger !== now.ledger || !(age >= 0 && age < seconds * 1000 * SAFE_SHARE)) throw stopped('forgotten', FORGOTTEN);
    // `anew` is the field's name in records of earlier versions.
    return { ...now, at: first.at, seconds, mayBuyAgain: Boolean(first.mayBuyAgain || first.anew) };
  };
  const check = async (headers, doubt) => {
    const catalog = await readNow(wire, '/bff/catalog', { signal });
    const ledger = renamed ?? catalog?.replay?.ledger;
    if (typeof ledger !== 'string') throw unreadable('GET', '/bff/catalog names no ledger');
    renamed = null;
    const caller = catalog.access === 'open' ? ANYONE : await callerOf(wire, headers.authorization, doubt, signal);
    if (asked || (catalog.proof && !replayOnly)) {
      const prover = await proverOf(wire);
      proof = await prover.prove({ last: proof, asked, signal, onProof });
      asked = null;
      if (proof.value) headers['tollgate-proof'] = proof.value;
    }
    // Nothing is awaited until the key is noted, since another call may send it too.
    const isRepeat = doubt || isSentElsewhere();
    const now = { caller, ledger, at: Date.now(), seconds: catalog.replay?.[kept], mayBuyAgain: false, repeats: 0 };
    const first = own ?? (isRepeat ? known ?? wire.sent.get(key) : null);
    if (first && (first.caller ?? caller) !== caller) throw stopped('stranger', STRANGER, isRepeat);
    own = isRepeat && first ? checkRepeat(first, now) : now;
    if (isRepeat) own.repeats = (first?.repeats ?? 0) + 1;
    isFirst = !isRepeat;
    wire.sent.set(key, own);
    headers['tollgate-ledger'] = own.ledger;
    if (own.repeats) headers['x-stainless-retry-count'] = String(own.repeats);
    await notify(onSend, isRepeat, { ...own });
    return isRepeat;
  };
  return {
    run: (headers, doubt) => check(headers, doubt).catch((error) => {
      // The check has cost nothing; what was sent before may have.
      if ((doubt || isSentElsewhere()) && isOurs(error, signal)) error.charged = 'unknown';
      throw error;
    }),
    isSentElsewhere,
    /** Whether the key may have gone to a second ledger: then a refusal says nothing about the first attempt. */
    mayBuyAgain: () => Boolean(own?.mayBuyAgain),
    /** The server has another ledger by now; `null` if it did not say which. */
    follow: (ledger) => { renamed = ledger; },
    /** The server asks for a proof for this challenge. */
    prove: (challenge) => { asked = challenge; },
    /** Nothing was charged: the next call with this key is a first one. */
    forget: () => isFirst && !isSentElsewhere() && wire.sent.delete(key),
    end: () => wire.sent.end(key, own),
  };
}

/** Returns what makes the proofs of this client. Loaded once it is needed. */
function proverOf(wire) {
  wire.prover ??= import(addressOf('/bff/proof.js', wire.base)).then(({ Prover }) => new Prover((request) => readNow(wire, '/bff/proof', request)));
  return wire.prover.catch(() => {
    wire.prover = null;
    throw lost({});
  });
}

/** In open mode, everyone counts as the same caller. */
const ANYONE = callerName({ kind: 'address' });

/** Returns the caller that a token belongs to. Asks once for each token, and before each retry. */
async function callerOf(wire, authorization, isRepeat, signal) {
  if (isRepeat || !wire.lastCaller || wire.lastCaller.authorization !== authorization) {
    const caller = (await readNow(wire, '/bff/me', { headers: authorization && { authorization }, signal }))?.caller;
    if (typeof caller?.kind !== 'string') throw unreadable('GET', '/bff/me names no caller');
    wire.lastCaller = { authorization, name: callerName(caller) };
  }
  return wire.lastCaller.name;
}

const readNow = async (wire, path, request) => readBody(await send({ ...wire, token: null }, path, request), request, asJson);

/** Calls a function of the page. If it throws, nothing more is sent. */
async function notify(listener, doubt, ...values) {
  try {
    await listener?.(...values);
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
    const response = await wire.fetch(addressOf(path, wire.base), {
      ...request, headers: all, credentials: 'omit', redirect: 'error', cache: 'no-store', referrerPolicy: 'no-referrer',
    });
    wire.link.isReached = true;
    return response;
  } catch (error) {
    // An abort is thrown as its own reason, unchanged: other calls may have the same one.
    if (request.signal?.aborted) throw request.signal.reason;
    throw error instanceof TollgateError ? error : lost(request, unreached(wire));
  }
}

/** The headers with the caller's token. Without it nothing is sent. */
async function signed({ token }, headers, { signal }) {
  try {
    const value = typeof token === 'function' ? await unlessStopped(token(), signal) : token;
    return Object.fromEntries(new Headers({ ...headers, ...(value && { authorization: `Bearer ${value}` }) }));
  } catch (cause) {
    if (signal?.aborted) throw signal.reason;
    throw failed('token_failed', cause, 'no');
  }
}

const lost = ({ method = 'GET' }, detail = 'The connection was lost before the answer arrived') => new TollgateError({
  code: 'connection_lost', charged: method === 'POST' ? 'unknown' : 'no', detail,
});

/** What may be wrong if a page of another origin never got an answer. */
function unreached({ base: { origin }, link }) {
  const page = globalThis.location?.origin ?? origin;
  return link.isReached || page === origin ? undefined : `No answer from ${origin}. Is it running, and is ${page} in its access.allowed_origins?`;
}

/** The body of a success, as `take` reads it; a refusal is thrown. */
async function readBody(response, request, take) {
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

/** The same, of what may be answered without a body. */
const asReply = async (response, request) => (response.status === 204 ? null : asJson(response, request));

function refusal(response, text, { method } = {}) {
  let problem = null;
  try {
    problem = JSON.parse(text);
  } catch { /* The answer is not tollgate's. */ }
  const isProblem = typeof problem?.code === 'string' && typeof problem?.charged === 'string';
  // Reading costs nothing. The gateway's own refusal comes unchanged, with its cost: nothing.
  const isFree = method !== 'POST' || (response.status < 500 && response.headers.has('tollgate-cost'));
  const after = response.headers.get('retry-after') ?? '';
  return new TollgateError({
    status: response.status,
    code: isProblem ? problem.code : 'refused',
    title: isProblem ? problem.title : `It was refused (${response.status})`,
    detail: isProblem ? problem.detail ?? '' : messageIn(problem) ?? text.slice(0, 500),
    charged: isProblem ? problem.charged : isFree ? 'no' : 'unknown',
    errors: isProblem && Array.isArray(problem.errors) ? problem.errors : [],
    renewsAt: isProblem ? problem.renews_at ?? null : null,
    retryAfter: /^\d{1,6}$/.test(after) ? Math.max(1, Number(after)) : null,
    requestId: response.headers.get('x-request-id'),
    ledger: response.headers.get('tollgate-ledger'),
    proof: (isProblem && problem.proof) || null,
  });
}

/** The sentence in the gateway's own refusal, if it has one. */
function messageIn(body) {
  const message = body?.message ?? body?.error?.message;
  return typeof message === 'string' && message ? message : null;
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

/** The result of `work`, or the abort. */
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
 * The stream is opened again after it ends or is lost, and goes on where it was.
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
        const update = JSON.parse(data);
        if (event === 'problem' && update.request_id) throw problemOfEvent(update);
        if (event !== 'job') continue;
        yield { requestId: update.request_id, state: update.state, status: update.status, at: update.at };
        if (update.state !== 'open') return;
      }
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      if (!(error instanceof TollgateError)) throw error;
      const isFinal = error.status && !RETRYABLE.includes(error.status) && error.status < 500;
      failures += 1;
      if (isFinal || failures >= wire.attempts) throw error;
      wait = error.retryAfter ?? backoff(failures + 1);
    }
    await pause(wait, signal);
  }
}

const problemOfEvent = ({ code, status, title, detail = '', charged }) => new TollgateError({ code, status, title, detail, charged });

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
