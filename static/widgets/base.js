/**
 * What the widgets of `widgets.js` share: the client, the price list, one purchase at a time, and what is kept of it.
 *
 * A purchase is kept in the tab from just before it is sent. Its key stands for it only with one caller and in one ledger of the server,
 * so it is sent again under these alone, by itself or at a press of a button. In another ledger, only a person sends it, after a warning
 * that it may be bought a second time.
 *
 * Several widgets of a tab may find the same kept purchase. One of them holds it, and it alone shows and sends it: from when it sends it
 * or takes it up until it is settled, or until the element leaves the page with no purchase running. The others wait until it is released.
 */

import { callerName, createClient, newKey } from '../client.js';
import { announceBy, button, element, twice } from './dom.js';
import { amountLeft, inWords, isEnglish, language, nameOfBudget, price, remark, t, withCurrentNames } from './format.js';
import { Purchases, draft, isForgotten } from './purchases.js';
import { STYLE } from './style.js';

// The widgets speak through status regions of their own: the page around them is not theirs.
announceBy(() => {});

/** The codes of a 401 about the caller's credentials. */
const SIGNED_OUT = ['missing_credentials', 'invalid_credentials'];

/** What went wrong, for people. The gateway's own refusal is not always a sentence. */
function sentence({ code, status, title, message }) {
  if (SIGNED_OUT.includes(code)) return t('problem.missing_credentials');
  if (code === 'refused' && status === 402) return t('widget.noCredit');
  return inWords(`problem.${code}`, code === 'refused' && /^\s*[<{[]/.test(message) ? title : message);
}

/** A select in the shape of a pill, which shows `text()` of what is chosen. After a change by a script, call `update()`. */
export function pill(name, select, text = () => select.value) {
  const shown = element('span', { 'aria-hidden': 'true' });
  const update = () => { shown.textContent = text(); };
  select.setAttribute('aria-label', name);
  select.addEventListener('change', update);
  update();
  return Object.assign(element('span', { class: 'pill' }, shown, select), { update });
}

/** Lines that shimmer where a text will be. */
export const bones = (...shapes) => element('div', { class: 'bones', 'aria-hidden': 'true' }, (shapes.length ? shapes : ['', '', '']).map((shape) => element('span', { class: shape || null })));

const option = (model, note) => element('option', { value: model.id, text: `${model.id} · ${price(model.price_micros)}${note ? ` · ${note}` : ''}` });

/**
 * Keeps the tab's purchases in `sessionStorage`, in the order in which they were sent: those whose caller is known and that are not
 * settled. If the browser keeps nothing, a reload in the middle is not picked up.
 */
class TabStore {
  #name;

  constructor(name) {
    this.#name = name;
  }

  all() {
    try {
      const list = JSON.parse(sessionStorage.getItem(this.#name));
      return Array.isArray(list) ? list.map(withCurrentNames) : [];
    } catch {
      return [];
    }
  }

  one(key) {
    return this.all().find((record) => record.key === key);
  }

  put(record) {
    if (!record.caller || ['refused', 'charged', 'forgotten'].includes(record.state)) return this.#drop(record);
    const list = this.all();
    const place = list.findIndex(({ key }) => key === record.key);
    list.splice(place < 0 ? list.length : place, 1, record);
    this.#write(list);
  }

  #drop(record) {
    this.#write(this.all().filter(({ key }) => key !== record.key));
  }

  #write(list) {
    try {
      sessionStorage.setItem(this.#name, JSON.stringify(list));
    } catch { /* No storage here. */ }
  }
}

/**
 * An element has a `kind` of purchase. `draw()` shows its form and makes `list`, `received(record, spot)` shows an answer and
 * `place(card, spot)` an error, `takeUpKept(record)` resumes a kept purchase, and `whenReattached()` what stopped when the element left
 * the page.
 */
export class PurchaseWidget extends HTMLElement {
  #style = new CSSStyleSheet();
  #store;
  #purchases;
  /** Keys that this element shows; and records that were settled while it was in no page. */
  #shown = new Set();
  #unseen = [];
  /** What releases each purchase that this element holds; and what resolves once it does, of those that it waits for. */
  #held = new Map();
  #waiting = new Map();
  #token = null;
  /** The entry that says that the caller could not be checked. */
  #unchecked;

  constructor() {
    super();
    // The page may have set it before this file was there.
    const { token } = this;
    delete this.token;
    this.token = token;
    this.#style.replaceSync(STYLE);
    this.attachShadow({ mode: 'open', delegatesFocus: true }).adoptedStyleSheets = [this.#style];
    this.said = element('p', { class: 'small', role: 'status' });
    this.left = element('p', { class: 'small' });
    // The page around it may put its own way to sign in there.
    this.gate = element('div', { class: 'sign-in', hidden: true }, element('slot', { name: 'sign-in' }, element('p', { text: t('problem.missing_credentials') })));
  }

  /** A token, or a function that gives one. */
  get token() {
    return this.#token;
  }

  set token(token) {
    this.#token = token;
    if (this.catalog && this.isConnected) void this.#showSold();
  }

  async connectedCallback() {
    this.stop = new AbortController();
    if (this.client) {
      for (const record of this.#unseen.splice(0)) await this.drop(record);
      for (const key of this.#shown) if (this.#store.one(key)) void this.holds(key);
      this.whenReattached();
      // Another widget may have released something while this one was out of the page.
      if (this.catalog) void this.#showOwn();
      return;
    }
    const baseUrl = this.getAttribute('base-url') ?? undefined;
    // An application that embeds tollgate knows its users by a session of its own. Elsewhere, only the token counts.
    const send = (url, options) => fetch(url, { ...options, credentials: this.catalog && this.catalog.access !== 'host' ? 'omit' : 'same-origin' });
    this.client = createClient({ baseUrl, fetch: send, token: () => (typeof this.token === 'function' ? this.token() : this.token) });
    this.#store = new TabStore(`${this.localName} ${baseUrl ?? ''} ${this.id}`);
    this.#purchases = new Purchases({ store: this.#store, transport: this.client, locks: navigator.locks });
    await this.begin();
  }

  disconnectedCallback() {
    this.stop.abort();
    // An element that is only moved is back at once.
    queueMicrotask(() => this.#letGo());
  }

  /** Releases everything except a running purchase, if the element is in no page. */
  #letGo() {
    if (this.isConnected) return;
    for (const key of this.#held.keys()) if (key !== this.busy) this.#release(key);
  }

  #release(key) {
    this.#held.get(key)?.();
    this.#held.delete(key);
  }

  /** Resolves to whether this element holds the purchase; unless `ifFree` is set, it waits until others have released it. */
  async holds(key, ifFree = false) {
    if (this.#held.has(key)) return true;
    if (!this.#waiting.has(key)) this.#waiting.set(key, this.#wait(key, ifFree));
    return this.#waiting.get(key);
  }

  async #wait(key, ifFree) {
    const release = await this.#purchases.hold(key, ifFree);
    this.#waiting.delete(key);
    if (!release) return false;
    this.#held.set(key, release);
    // It may have left the page while it waited.
    this.#letGo();
    return this.#held.has(key);
  }

  /** Forgets a purchase that is settled or not wanted any more. */
  async drop(record) {
    await this.#purchases.forget(record);
    this.#release(record.key);
  }

  /** Called when the element is back in a page. */
  whenReattached() {}

  /** Loads the price list and draws the form. From the first failed attempt on, it shows why there is none. */
  async begin() {
    // Reading costs nothing; what an earlier page has sent may have.
    const charged = this.#store.all().length ? 'unknown' : 'no';
    const say = (error, ...actions) => this.show(element('div', { class: 'scroll' }, this.card(inWords(`problem.${error.code}`, error.message), charged, ...actions)));
    this.show(element('div', { class: 'box loading', 'aria-hidden': 'true' }, bones(), element('div', { class: 'field' })));
    try {
      this.catalog = await this.client.catalog({ onRetry: (error) => say(error) });
    } catch (error) {
      say(error, this.action(t('offer.again'), () => void this.begin()));
      return;
    }
    this.#purchases.remember(this.catalog.replay);
    this.#drawSold();
    await this.#showOwn();
  }

  /** Shows these parts in the frame of the widget, or the frame that is given. */
  show(...parts) {
    this.shadowRoot.replaceChildren(parts[0].matches('.box') ? parts[0] : element('div', { class: 'box', lang: language }, parts));
  }

  #drawSold() {
    if (this.catalog[this.kind].length) this.draw();
    else this.show(element('p', { class: 'scroll', text: t('widget.nothingSold') }));
  }

  /** Shows the form to those who are signed in. The others are asked to, and the page around is told. */
  #admit() {
    const isIn = ['open', 'host'].includes(this.catalog.access) || Boolean(this.token);
    if (!isIn && this.gate.hidden) this.askToSignIn();
    this.gate.hidden = isIn;
    this.form.hidden = !isIn;
  }

  /** The page around may answer by setting a token. */
  askToSignIn() {
    this.emit('tollgate-sign-in', null);
  }

  /** Another caller may buy from other models. */
  async #showSold() {
    const sold = () => JSON.stringify(this.catalog[this.kind]);
    const before = sold();
    try {
      this.catalog = await this.client.catalog();
    } catch {
      // The last list stays; an order reports its own errors.
    }
    if (sold() !== before) this.#drawSold();
    await this.#showOwn();
  }

  /** Shows what is the caller's own. */
  async #showOwn() {
    if (!this.catalog[this.kind].length) return;
    this.#admit();
    this.left.textContent = '';
    void this.showLeft();
    await this.takeUp();
  }

  /** Shows the caller's tightest budget, if it can be read. */
  async showLeft() {
    const { token } = this;
    if (!['open', 'host'].includes(this.catalog.access) && !token) return;
    let budgets;
    try {
      ({ budgets } = await this.client.me());
    } catch {
      return;
    }
    if (token !== this.token) return;
    const [least] = [...budgets].sort((one, other) => one.left_micros - other.left_micros);
    this.left.textContent = least ? t('widget.left', nameOfBudget(least), amountLeft(least.left_micros)) : '';
  }

  /** Resumes the caller's own purchases that an earlier page left. Shows nothing until the caller is known. */
  async takeUp() {
    const left = this.#store.all().filter(({ key }) => !this.#shown.has(key));
    if (!left.length) return;
    const { token } = this;
    const { caller, error } = await this.client.me().then((me) => ({ caller: callerName(me.caller) })).catch((thrown) => ({ error: thrown }));
    // Whoever set another token takes them up.
    if (token !== this.token) return;
    this.#unchecked?.remove();
    if (error) {
      const card = this.card(t('widget.unchecked', inWords(`problem.${error.code}`, error.message)), 'unknown', this.action(t('widget.check'), () => void this.takeUp()));
      this.#unchecked = element('li', {}, card);
      this.list.append(this.#unchecked);
      return;
    }
    for (const { key, caller: whose } of left) {
      // While an earlier one was fetched, somebody else may have signed in.
      if (token !== this.token) return;
      if (whose !== caller || this.#shown.has(key)) continue;
      if (await this.holds(key, true)) await this.#takeUpHeld(key);
      else void this.#follow(key);
    }
  }

  async #takeUpHeld(key) {
    const record = this.#store.one(key);
    // Another element has settled it.
    if (!record) return this.#release(key);
    if (this.#shown.has(key)) return;
    this.#shown.add(key);
    await this.takeUpKept(record);
  }

  /** Waits for the element that holds a purchase. If it is released unsettled, this one resumes it for the same caller. */
  async #follow(key) {
    if (!(await this.holds(key))) return;
    if (this.#store.one(key)) await this.takeUp();
    else this.#release(key);
  }

  /** Resends a purchase that is still wanted and known; asks about any other. */
  async resume(record, spot) {
    if (this.#purchases.isWanted(record) && !this.busy && !record.mayBuyAgain) await this.go(record, spot);
    else this.place(this.#purchases.canAskAgain(record) ? this.#unknown(record, spot, t('widget.pending')) : this.#atRisk(record, spot), spot);
  }

  /** Makes a purchase that is not sent yet. */
  fresh(payload) {
    const record = draft({ key: newKey(), kind: this.kind, payload });
    this.#shown.add(record.key);
    return record;
  }

  isBusy() {
    if (this.busy) this.said.textContent = t('widget.waitFirst');
    return Boolean(this.busy);
  }

  /** Takes back what was said about the form, which has changed since. */
  clearRemark() {
    if (!this.busy) this.said.textContent = '';
  }

  /** Buys once, or asks for what was bought. While another purchase runs, it says so and returns `false`. */
  go(record, spot, how = {}) {
    if (this.isBusy()) return false;
    if (record.state !== 'draft' && !this.#held.has(record.key)) {
      this.said.textContent = t('widget.shownElsewhere');
      return false;
    }
    this.busy = record.key;
    const rest = this.begun(spot);
    return this.#run(record, spot, how, rest).finally(() => {
      this.busy = false;
      this.#letGo();
    });
  }

  /** Called when a purchase is sent. What it returns is called when its outcome is known. */
  begun() {
    return () => {};
  }

  async #run(record, spot, how, rest) {
    await this.holds(record.key);
    this.said.textContent = t('widget.waiting');
    const onRetry = () => { this.said.textContent = record.mayBuyAgain ? t('widget.retrying') : t('widget.retryingFree'); };
    const onProof = (seconds) => { this.said.textContent = seconds ? t('page.proving', seconds) : t('widget.waiting'); };
    await this.#purchases.send(record, { ...how, onRetry, onProof }).finally(rest);
    if (record.state === 'done') {
      this.said.textContent = t('widget.received', price(record.costMicros));
      void this.showLeft();
      this.received(record, spot);
    } else {
      this.said.textContent = '';
      this.place(await this.#ended(record, spot), spot);
    }
  }

  /** Drops an answer that was shown. If this element is in no page, the answer is kept for another one. */
  settled(record) {
    if (this.isConnected) void this.drop(record);
    else this.#unseen.push(record);
  }

  async #ended(record, spot) {
    const { charged, errors } = record.problem;
    // In English, the sentence is about the first one.
    const rest = (errors ?? []).slice(isEnglish ? 1 : 0);
    const words = [sentence(record.problem), ...rest.map((one) => `${one.pointer}: ${inWords(`fault.${one.code}`, one.detail)}`)].join('\n');
    if (charged === 'unknown') return isForgotten(record) ? this.#atRisk(record, spot) : this.#unknown(record, spot, words);
    if (SIGNED_OUT.includes(record.problem.code)) this.askToSignIn();
    const cost = this.#cost(record);
    const keepsKey = this.#purchases.keepsKey(record);
    if (!keepsKey) await this.drop(record);
    const again = () => (keepsKey ? this.go(record, spot, { again: true }) : this.go(this.fresh(record.payload), spot));
    if (charged === 'yes') return this.card(words, charged, this.twice(t('widget.buyAgain', cost), t('widget.buyAgainSure', cost), again));
    return this.card(words, charged, this.kind === 'video' ? this.twice(t('widget.tryAgain', cost), t('receipt.spend', cost), again) : this.action(t('widget.tryAgain', cost), again));
  }

  #unknown(record, spot, words) {
    const label = record.mayBuyAgain ? t('widget.check') : t('offer.same');
    return this.card(words, 'unknown', this.action(label, () => this.go(record, spot)), this.forget(record));
  }

  #atRisk(record, spot) {
    const cost = this.#cost(record);
    const send = () => this.go(record, spot, { atRisk: true });
    return this.card(t('problem.forgotten'), 'unknown', this.twice(t('widget.sendAgain', cost), t('receipt.payTwice', cost), send), this.forget(record));
  }

  #cost({ payload }) {
    const row = this.catalog[this.kind].find(({ id }) => id === payload.model);
    return row ? price(row.price_micros) : t('widget.itsPrice');
  }

  card(words, charged, ...actions) {
    return element('div', { class: 'trouble', role: 'alert' }, words, element('p', { class: 'small', text: `${t(`receipt.charged.${charged}`) ?? t('receipt.charged.unknown')}.` }), element('div', { class: 'row' }, ...actions));
  }

  /** A button of a card, which closes once `act` has begun. */
  action(text, act) {
    const made = button(text, () => this.#close(made, act));
    return made;
  }

  /** The same for a button that spends, at its second press only. */
  twice(text, sure, act) {
    const made = twice(text, sure, () => this.#close(made, act), { say: (words) => { this.said.textContent = words; } });
    return made;
  }

  #close(made, act) {
    const card = made.closest('.trouble');
    if (act() !== false) card.remove();
  }

  forget(record) {
    return this.action(t('page.dismiss'), () => void this.drop(record));
  }

  models(rows, about) {
    const wanted = this.getAttribute('model');
    const select = element('select', {}, rows.map((row) => option(row, remark(row[about]))));
    const preset = this.catalog.defaults[`${this.kind}_model`];
    if (rows.some((row) => row.id === (wanted ?? preset))) select.value = wanted ?? preset;
    return { select, isFixed: select.value === wanted };
  }

  emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }
}
