/**
 * What the elements of `elements.js` share: the client, the price list, one purchase at a time, and what is kept of it.
 *
 * A purchase is kept in the tab before it is sent: `{key, request, caller, ledger, at, seconds, anew, sent, waived, answer}`. Its key means
 * this purchase to one caller and one memory of the server only, so it is sent again under these alone, by itself or at a press of a
 * button; under another memory, only by a person who was told that it may be bought anew (`waived` once, `anew` from then on).
 *
 * Several elements of a tab may find the same kept purchase. One of them holds it, and it alone shows and sends it: from when it sends it
 * or takes it up until it is settled, or until the element leaves the page and has nothing under way. The others wait for it to let go.
 */

import { TollgateError, callerName, createClient, newKey } from './client.js';

const STYLE = `
:host { display: block; font: inherit; --accent: var(--tollgate-accent, #2f6f4f); --radius: var(--tollgate-radius, .5rem); }
:host([hidden]), [hidden] { display: none !important; }
form { display: grid; grid-template-columns: minmax(0, 1fr); gap: .6rem; }
label { display: grid; grid-template-columns: minmax(0, 1fr); gap: .2rem; font-size: .9em; }
textarea, select, input, button { box-sizing: border-box; max-width: 100%; font: inherit; color: inherit; padding: .5rem .6rem; border: 1px solid color-mix(in srgb, currentColor 45%, transparent); border-radius: var(--radius); background: transparent; }
textarea { resize: vertical; min-height: 4.5rem; }
button { min-height: 2.4rem; cursor: pointer; justify-self: start; }
button.main { background: var(--accent); border-color: var(--accent); color: var(--tollgate-on-accent, #fff); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
li:empty { display: none; }
ol { list-style: none; margin: 0 0 .8rem; padding: 0; display: grid; gap: .6rem; }
article { padding: .6rem .8rem; border-radius: var(--radius); white-space: pre-wrap; overflow-wrap: anywhere; background: color-mix(in srgb, currentColor 7%, transparent); }
article.mine { background: color-mix(in srgb, var(--accent) 16%, transparent); }
article.trouble { border: 1px solid var(--tollgate-trouble, #b3261e); }
.row { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; }
.small { font-size: .85em; opacity: .85; margin: 0; }
video { width: 100%; border-radius: var(--radius); background: #000; }
@media (forced-colors: active) { button.main { forced-color-adjust: auto; } }
`;

const MONEY = { no: 'Nothing was charged.', yes: 'It was charged.', unknown: 'It may have been charged.' };
const UNTOLD = 'Something was sent before this page was loaded, and its answer is not here yet. Who is signed in now could not be told';
const LEFT = 'It was sent, and its answer is not here yet.';
const FORGOTTEN = 'The answer was lost, and the service may no longer know this purchase. Sent again, it may be bought a second time.';

/** How long after it was sent a purchase is asked for without a press of a button: a person still wants it then. */
const FRESH = 60 * 60 * 1000;
/** How much of the time for which the server knows a key is relied upon; the client looks again before it sends. */
const SAFE_SHARE = 0.9;

/** A clock that was set back says nothing about an age. */
const isWithin = (at, span) => Date.now() >= at && Date.now() - at < span;

/** An element with its properties, listeners and children. */
export function make(tag, { text, on = {}, ...properties } = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node && name !== 'list') node[name] = value;
    else node.setAttribute(name, value);
  }
  if (text !== undefined) node.textContent = text;
  for (const [name, listener] of Object.entries(on)) node.addEventListener(name, listener);
  node.append(...children);
  return node;
}

/** A field with its name. */
export const labelled = (name, field) => make('label', {}, name, field);
/** What it costs, in US dollars. */
export const price = ({ toll }) => `$${Number(toll).toFixed(3).replace(/0$/, '')}`;
const choice = (model, remark) => make('option', { value: model.id, text: `${model.id} · ${price(model)}${remark ? ` · ${remark}` : ''}` });

/** The purchases that are held where the browser has no locks (plain http beyond loopback): of this document only. */
const heldHere = new Map();

/**
 * Resolves with a function that lets the purchase go, once no other element in this browser holds it; with `null`, where `isOptional`
 * and another one does.
 */
async function hold(key, isOptional) {
  try {
    return await new Promise((resolve, reject) => {
      const locked = (lock) => lock && new Promise((release) => resolve(release));
      navigator.locks.request(`tollgate ${key}`, { ifAvailable: isOptional }, locked).then(() => resolve(null), reject);
    });
  } catch { /* No locks here, or not for a sandboxed frame. */ }
  while (heldHere.has(key)) {
    if (isOptional) return null;
    await heldHere.get(key);
  }
  let release;
  heldHere.set(key, new Promise((done) => { release = done; }));
  return () => {
    heldHere.delete(key);
    release();
  };
}

/** The purchases whose end is not known or was not seen, by key, in the order in which they were sent. */
class Kept {
  #name;

  constructor(name) {
    this.#name = name;
  }

  all() {
    try {
      const list = JSON.parse(sessionStorage.getItem(this.#name));
      return Array.isArray(list) ? list : [];
    } catch {
      return [];
    }
  }

  one(key) {
    return this.all().find((record) => record.key === key);
  }

  put(record) {
    const list = this.all();
    const place = list.findIndex(({ key }) => key === record.key);
    list.splice(place < 0 ? list.length : place, 1, record);
    this.#write(list);
  }

  drop(record) {
    this.#write(this.all().filter(({ key }) => key !== record.key));
  }

  #write(list) {
    try {
      sessionStorage.setItem(this.#name, JSON.stringify(list));
    } catch { /* No storage here: a reload in the middle is not picked up. */ }
  }
}

/**
 * Of an element, `kind` says what it sells, `draw()` shows its form and makes `list`, `buy(client, request, options)` sends, `took(answer,
 * record, spot)` takes in what came, `place(card, spot)` shows trouble there, `wasLeft(record)` goes on with a kept purchase, `isBack()`
 * with what ended when the element left the page.
 */
export class Purchasing extends HTMLElement {
  #style = new CSSStyleSheet();
  /** Keys that this element shows; and records that were settled while it was in no page. */
  #shown = new Set();
  #unseen = [];
  /** What lets go of each purchase that this element holds; and what resolves once it does, of those that it waits for. */
  #held = new Map();
  #waiting = new Map();

  constructor() {
    super();
    /** A token, or a function that gives one. The page may have set it before this file was there. */
    this.token ??= null;
    this.#style.replaceSync(STYLE);
    this.attachShadow({ mode: 'open', delegatesFocus: true }).adoptedStyleSheets = [this.#style];
    this.said = make('p', { class: 'small', role: 'status' });
  }

  async connectedCallback() {
    this.stop = new AbortController();
    if (this.client) {
      for (const record of this.#unseen.splice(0)) this.drop(record);
      for (const key of this.#shown) if (this.kept.one(key)) void this.holds(key);
      this.isBack();
      // What another element let go of while this one was out of the page.
      if (this.catalog) void this.takeUp();
      return;
    }
    const baseUrl = this.getAttribute('base-url') ?? undefined;
    this.kept = new Kept(`${this.localName} ${baseUrl ?? ''} ${this.id}`);
    this.client = createClient({ baseUrl, token: () => (typeof this.token === 'function' ? this.token() : this.token) });
    await this.begin();
  }

  disconnectedCallback() {
    this.stop.abort();
    // An element that is only moved is back at once.
    queueMicrotask(() => this.#letGo());
  }

  /** Out of the page, it holds only what it has under way. */
  #letGo() {
    if (this.isConnected) return;
    for (const key of this.#held.keys()) if (key !== this.busy) this.#release(key);
  }

  #release(key) {
    this.#held.get(key)?.();
    this.#held.delete(key);
  }

  /** Resolves whether this element holds the purchase; unless `isOptional`, it waits until others have let it go. */
  async holds(key, isOptional = false) {
    if (this.#held.has(key)) return true;
    if (!this.#waiting.has(key)) this.#waiting.set(key, this.#wait(key, isOptional));
    return this.#waiting.get(key);
  }

  async #wait(key, isOptional) {
    const release = await hold(key, isOptional);
    this.#waiting.delete(key);
    if (!release) return false;
    this.#held.set(key, release);
    // Whatever it waited for, it may have left the page meanwhile.
    this.#letGo();
    return this.#held.has(key);
  }

  /** It is settled, or not wanted any more. */
  drop(record) {
    this.kept.drop(record);
    this.#release(record.key);
  }

  /** It was taken out of the page, and is there again. */
  isBack() {}

  /** Whether the server still knows the key, as its price list says. */
  #isKnown({ ledger, at, seconds }) {
    const { ledger: now, [`${this.kind}_seconds`]: most } = this.catalog.replay;
    return ledger === now && isWithin(at, Math.min(seconds ?? most, most) * 1000 * SAFE_SHARE);
  }

  /** Asks for the price list, and draws what it says. */
  async begin() {
    try {
      this.catalog = await this.client.catalog();
    } catch (error) {
      const again = () => { this.shadowRoot.replaceChildren(); void this.begin(); };
      // Reading costs nothing; what an earlier page has sent may have.
      const charged = this.kept.all().length ? 'unknown' : 'no';
      this.shadowRoot.replaceChildren(this.card(error.message, charged, this.way('Try again', again)));
      return;
    }
    this.draw();
    await this.takeUp();
  }

  /** Goes on with what an earlier page has left: the caller's own, and nothing of it is shown before it is known whose it is. */
  async takeUp() {
    const left = this.kept.all().filter(({ key }) => !this.#shown.has(key));
    if (!left.length) return;
    let caller;
    try {
      caller = callerName((await this.client.me()).caller);
    } catch (error) {
      const card = this.card(`${UNTOLD}: ${error.message}`, 'unknown', this.way('Look again', () => void this.takeUp()));
      this.list.append(make('li', {}, card));
      return;
    }
    for (const { key, caller: whose } of left) {
      if (whose !== caller || this.#shown.has(key)) continue;
      if (await this.holds(key, true)) await this.#goOn(key);
      else void this.#follow(key);
    }
  }

  async #goOn(key) {
    const record = this.kept.one(key);
    // Another element has settled it.
    if (!record) return this.#release(key);
    if (this.#shown.has(key)) return;
    this.#shown.add(key);
    await this.wasLeft(record);
  }

  /** Another element holds it: once that lets it go unsettled, it is taken up by whoever is signed in then. */
  async #follow(key) {
    if (!(await this.holds(key))) return;
    if (this.kept.one(key)) await this.takeUp();
    else this.#release(key);
  }

  /** Sends by itself what is still wanted and known; about the rest, it asks. */
  async resume(record, spot) {
    const isKnown = this.#isKnown(record);
    if (isKnown && !this.busy && !record.anew && isWithin(record.at, FRESH)) await this.go(record, spot);
    else this.place(isKnown ? this.#unknown(record, spot, LEFT) : this.#atRisk(record, spot), spot);
  }

  /** A purchase that nobody has sent yet. */
  fresh(request) {
    const record = { key: newKey(), request, sent: false };
    this.#shown.add(record.key);
    return record;
  }

  isBusy() {
    if (this.busy) this.said.textContent = 'Wait for the answer to the last one.';
    return Boolean(this.busy);
  }

  /** Buys once, or asks for what was bought. `false`, and it is said, where another purchase runs; it never buys twice unasked. */
  go(record, spot) {
    if (this.isBusy()) return false;
    if (record.sent && !this.#held.has(record.key)) {
      this.said.textContent = 'It is shown elsewhere on this page.';
      return false;
    }
    this.busy = record.key;
    return this.#run(record, spot).finally(() => {
      this.busy = record.waived = false;
      this.#letGo();
    });
  }

  async #run(record, spot) {
    await this.holds(record.key);
    this.said.textContent = 'Waiting for the answer.';
    const { key: idempotencyKey, sent: sentBefore } = record;
    // A person was told what it may cost, and goes on: to any ledger, but as the same caller.
    const known = record.sent ? { ...record, ledger: record.waived ? null : record.ledger } : null;
    const onSend = (noted) => this.kept.put(Object.assign(record, noted, { sent: true, waived: false }));
    const onRetry = () => { this.said.textContent = record.anew ? 'Asking again.' : 'Asking again; it is not bought twice.'; };
    try {
      const answer = await this.buy(this.client, record.request, { idempotencyKey, sentBefore, known, onSend, onRetry });
      this.said.textContent = `Received for ${price(answer)}.`;
      this.took(answer, record, spot);
    } catch (error) {
      this.said.textContent = '';
      this.place(this.#ended(record, spot, error), spot);
    }
  }

  /** It needs not be asked for again, once it was shown in a page; until then, its answer is kept for another element. */
  settled(record, answer) {
    if (this.isConnected) return this.drop(record);
    this.kept.put(Object.assign(record, { answer }));
    this.#unseen.push(record);
  }

  #ended(record, spot, error) {
    // What is not the client's error may be anything.
    const charged = error instanceof TollgateError ? error.charged : 'unknown';
    const words = [error.message, ...(error.errors ?? []).slice(1).map(({ pointer, detail }) => `${pointer}: ${detail}`)].join('\n');
    if (charged === 'unknown') return error.code === 'forgotten' ? this.#atRisk(record, spot) : this.#unknown(record, spot, words);
    this.drop(record);
    const cost = this.#cost(record);
    const anew = () => this.go(this.fresh(record.request), spot);
    if (charged === 'yes') return this.card(words, charged, this.twice(`Buy it anew · ${cost}`, `Really? It costs ${cost} a second time`, anew));
    const again = `Try again · ${cost}`;
    return this.card(words, charged, this.kind === 'video' ? this.twice(again, `Yes, spend ${cost}`, anew) : this.way(again, anew));
  }

  #unknown(record, spot, words) {
    const way = record.anew ? 'Ask again' : 'Ask what became of it (not bought twice)';
    return this.card(words, 'unknown', this.way(way, () => this.go(record, spot)), this.forget(record));
  }

  #atRisk(record, spot) {
    const cost = this.#cost(record);
    const send = () => this.go(Object.assign(record, { waived: true }), spot);
    return this.card(FORGOTTEN, 'unknown', this.twice(`Send it again · ${cost}`, `Really? It may cost ${cost} a second time`, send), this.forget(record));
  }

  #cost({ request }) {
    const row = this.catalog[this.kind].find(({ id }) => id === request.model);
    return row ? price(row) : 'its price';
  }

  card(words, charged, ...ways) {
    return make('article', { class: 'trouble', role: 'alert' }, words, make('p', { class: 'small', text: MONEY[charged] ?? MONEY.unknown }), make('div', { class: 'row' }, ...ways));
  }

  /** A button of a card, which is gone once `act` has begun. */
  way(text, act) {
    const button = make('button', { type: 'button', text, on: { click: () => {
      const card = button.closest('article');
      if (act() !== false) card.remove();
    } } });
    return button;
  }

  /** One that spends at its second press only. */
  twice(text, sure, act) {
    const button = this.way(text, () => {
      if (button.textContent === sure) return act();
      this.said.textContent = button.textContent = sure;
      return false;
    });
    button.addEventListener('blur', () => { button.textContent = text; });
    // A key held down repeats its click; only a fresh press may spend.
    button.addEventListener('keydown', (event) => event.repeat && event.preventDefault());
    return button;
  }

  forget(record) {
    return this.way('Forget it', () => this.drop(record));
  }

  models(rows, remark) {
    const wanted = this.getAttribute('model');
    const select = make('select', {}, ...rows.map((row) => choice(row, row[remark])));
    if (rows.some((row) => row.id === wanted)) select.value = wanted;
    return { select, isFixed: select.value === wanted };
  }

  tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }
}
