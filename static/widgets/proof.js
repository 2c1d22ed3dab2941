/**
 * Proof of work, for servers with `access.proof`: finds a nonce so that SHA-256 of challenge and nonce begins with zero bits. The client
 * loads this file, served at `/bff/proof.js`, which is also the module worker that computes. SubtleCrypto takes too long for each of many short texts.
 */

const WORKER = 'tollgate-proof';
/** How many nonces are tried between two reports; and, without a worker, between two turns of the page. */
const BATCH = 1 << 15;
const SLICE = 1 << 12;
/** How long a challenge is used, in milliseconds. The server accepts it for at least a minute more. */
const FRESH = 3 * 60 * 1000;
/** Shorter work is not worth a word, and words follow each other that slowly, in seconds. */
const NOTABLE = 0.5;
const PAUSE = 1;

const [START, K] = constants();

/** The first half of SHA-256's constants: the fractions of the roots of the first primes. */
function constants() {
  const primes = [];
  for (let number = 2; primes.length < 64; number += 1) if (primes.every((prime) => number % prime)) primes.push(number);
  const fractions = (power) => Int32Array.from(primes, (prime) => ((prime ** power) % 1) * 2 ** 32);
  return [fractions(1 / 2).subarray(0, 8), fractions(1 / 3)];
}

const W = new Int32Array(64);

/** Adds a block, the first 16 words of `W`, to a state, and writes the sum to `sum`. */
function compress(state, sum) {
  for (let at = 16; at < 64; at += 1) {
    const x = W[at - 15];
    const y = W[at - 2];
    W[at] = W[at - 16] + W[at - 7] + (((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3))
      + (((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10));
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let at = 0; at < 64; at += 1) {
    const one = (h + K[at] + W[at] + (((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7))) + ((e & f) ^ (~e & g))) | 0;
    const two = ((((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10))) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + one) | 0;
    d = c;
    c = b;
    b = a;
    a = (one + two) | 0;
  }
  const added = [a, b, c, d, e, f, g, h];
  for (let at = 0; at < 8; at += 1) sum[at] = state[at] + added[at];
}

/** The two hexadecimal digits of each byte, as half a word of a block. */
const DIGITS = Int32Array.from({ length: 256 }, (_, byte) => [...byte.toString(16).padStart(2, '0')].reduce((half, digit) => (half << 8) | digit.charCodeAt(), 0));

const word = (number) => (DIGITS[(number >>> 8) & 255] << 16) | DIGITS[number & 255];

/**
 * Returns a function that tries the next `count` nonces, and returns one that fits, if any does. A nonce ends in its number, which alone is
 * in the last block: the blocks before it are hashed once.
 */
function search({ challenge, bits }) {
  const fill = '0'.repeat(-challenge.length & 63);
  const text = challenge + fill;
  const state = START.slice();
  const sum = new Int32Array(8);
  for (let block = 0; block < text.length; block += 64) {
    for (let at = 0; at < 16; at += 1) W[at] = [0, 1, 2, 3].reduce((read, byte) => (read << 8) | text.charCodeAt(block + 4 * at + byte), 0);
    compress(state, state);
  }
  let next = 0;
  return (count) => {
    for (const end = next + count; next < end; next += 1) {
      W.fill(0, 3, 15);
      [W[0], W[1], W[2], W[15]] = [word(next >>> 16), word(next), 1 << 31, 8 * (text.length + 8)];
      compress(state, sum);
      if (Math.clz32(sum[0]) >= bits) return fill + next.toString(16).padStart(8, '0');
    }
    return null;
  };
}

if (typeof document === 'undefined' && globalThis.name === WORKER) {
  globalThis.onmessage = ({ data }) => {
    const attempt = search(data);
    for (let nonce = null; !nonce;) {
      nonce = attempt(BATCH);
      globalThis.postMessage(nonce);
    }
  };
}

let script = null;

/**
 * The worker's address. From another site, a browser starts only a text of the page's own, which imports it. The policy of the built-in page
 * lets nothing else name a script.
 */
function workerScript() {
  const here = import.meta.url;
  const isOwn = new URL(here).origin === globalThis.location?.origin;
  const address = isOwn ? here : URL.createObjectURL(new Blob([`import ${JSON.stringify(here)};`], { type: 'text/javascript' }));
  return globalThis.trustedTypes?.createPolicy(WORKER, { createScriptURL: () => address }).createScriptURL('') ?? address;
}

/** Computes in a worker. Rejects if the page's policy allows none. */
async function inWorker(given, { signal, report }) {
  script ??= workerScript();
  const worker = new Worker(script, { type: 'module', name: WORKER });
  return new Promise((found, fail) => {
    worker.onmessage = ({ data: nonce }) => (nonce ? found(nonce) : report(BATCH));
    worker.onerror = fail;
    signal?.addEventListener('abort', fail);
    if (signal?.aborted) fail();
    worker.postMessage(given);
  }).finally(() => worker.terminate());
}

async function inSlices(given, { signal, report }) {
  const attempt = search(given);
  for (;;) {
    signal?.throwIfAborted();
    const nonce = attempt(SLICE);
    if (nonce) return nonce;
    report(SLICE);
    await new Promise((done) => { setTimeout(done); });
  }
}

/** Finds the nonce. `onProof(seconds)` is told how long that takes from now on, on average, and at last 0. */
async function solve({ challenge, bits }, { signal, onProof }) {
  const began = performance.now();
  let tried = 0;
  let saidAt = null;
  const report = (count) => {
    tried += count;
    const took = (performance.now() - began) / 1000;
    const seconds = (2 ** bits / tried) * took;
    if (seconds < NOTABLE || (saidAt !== null && took - saidAt < PAUSE)) return;
    saidAt = took;
    onProof?.(Math.max(1, Math.round(seconds)));
  };
  const how = { signal, report };
  try {
    return await inWorker({ challenge, bits }, how).catch(() => inSlices({ challenge, bits }, how));
  } finally {
    if (saidAt !== null) onProof?.(0);
  }
}

const isFresh = ({ at }) => Date.now() >= at && Date.now() - at < FRESH;

/** Makes the proofs of a client. `read(request)` asks the server for a challenge. */
export class Prover {
  #read;
  #ahead = null;

  constructor(read) {
    this.#read = read;
  }

  /** Asks for the challenge of the next purchase. */
  fetchAhead() {
    this.#ahead = { at: Date.now(), reading: this.#read({}).catch(() => null) };
  }

  /**
   * The proof of an attempt: that of the `last` one while it is valid, else one for the challenge that a refusal `asked` for, or for the
   * next. `value` is `null` if there is nothing to compute.
   */
  async prove({ last, asked, signal, onProof }) {
    if (last && !asked && isFresh(last)) return last;
    const { at, given } = asked ? { at: Date.now(), given: asked } : await this.#next(signal);
    return { at, value: given.bits ? `${given.challenge}.${await solve(given, { signal, onProof })}` : null };
  }

  async #next(signal) {
    const ahead = this.#ahead;
    this.#ahead = null;
    const given = ahead && isFresh(ahead) ? await ahead.reading : null;
    return given ? { at: ahead.at, given } : { at: Date.now(), given: await this.#read({ signal }) };
  }
}
