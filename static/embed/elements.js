/**
 * Two elements to put into any page: `<script type="module" src="https://your-tollgate/bff/elements.js"></script>`, then
 * `<tollgate-chat></tollgate-chat>` or `<tollgate-video></tollgate-video>`.
 *
 * Attributes: `base-url` (where tollgate is; where this file came from by default), `model` (no picker then), and of a chat `system` (its
 * first message). Properties: `token` (a member's token or a JWT, or a function that gives one). Each tells what it bought by an event,
 * `tollgate-reply` or `tollgate-video`, with the client's answer as `detail`. Font, colour and scheme are the page's own; these are theirs:
 * `--tollgate-accent`, `--tollgate-on-accent` (text on it), `--tollgate-trouble`, `--tollgate-radius`.
 */

import { TollgateError, createClient, newKey } from './client.js';

const STYLE = `
:host { display: block; font: inherit; --accent: var(--tollgate-accent, #2f6f4f); --radius: var(--tollgate-radius, .5rem); }
:host([hidden]) { display: none; }
form { display: grid; gap: .6rem; }
label { display: grid; gap: .2rem; font-size: .9em; }
textarea, select, input, button { font: inherit; color: inherit; padding: .5rem .6rem; border: 1px solid color-mix(in srgb, currentColor 45%, transparent); border-radius: var(--radius); background: transparent; }
textarea { resize: vertical; min-height: 4.5rem; }
button { min-height: 2.4rem; cursor: pointer; justify-self: start; }
button.main { background: var(--accent); border-color: var(--accent); color: var(--tollgate-on-accent, #fff); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
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

/** An element with its properties, listeners and children. */
function make(tag, { text, on = {}, ...properties } = {}, ...children) {
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

const labelled = (name, field) => make('label', {}, name, field);
const price = (model) => `$${Number(model.toll).toFixed(3).replace(/0$/, '')}`;
const choice = (model, remark) => make('option', { value: model.id, text: `${model.id} · ${price(model)}${remark ? ` · ${remark}` : ''}` });

/** What both elements share: the client, the price list, one purchase at a time, its words. */
class Purchasing extends HTMLElement {
  #style = new CSSStyleSheet();

  constructor() {
    super();
    /** A token, or a function that gives one. The page may have set it before this file was there. */
    this.token ??= null;
    this.#style.replaceSync(STYLE);
    this.attachShadow({ mode: 'open', delegatesFocus: true }).adoptedStyleSheets = [this.#style];
    this.said = make('p', { class: 'small', role: 'status' });
  }

  async connectedCallback() {
    if (this.client) return;
    this.client = createClient({
      baseUrl: this.getAttribute('base-url') ?? undefined,
      token: async () => (typeof this.token === 'function' ? this.token() : this.token),
    });
    await this.begin();
  }

  /** Asks for the price list, and draws what it says. */
  async begin() {
    try {
      this.catalog = await this.client.catalog();
    } catch (error) {
      this.shadowRoot.replaceChildren(this.trouble(error, 'Try again', () => { this.shadowRoot.replaceChildren(); void this.begin(); }));
      return;
    }
    this.draw();
    const open = this.pending();
    if (open) this.wasLeft(open);
  }

  /** What was sent and not answered when the page was closed: kept before it is sent, for this tab. */
  pending(record) {
    const name = `${this.localName} ${this.getAttribute('base-url') ?? ''} ${this.id}`;
    try {
      if (record === undefined) return JSON.parse(sessionStorage.getItem(name));
      if (record) sessionStorage.setItem(name, JSON.stringify(record));
      else sessionStorage.removeItem(name);
    } catch { /* No storage here: a reload in the middle is not picked up. */ }
    return null;
  }

  /** Buys once. `bought(answer)` takes it in; trouble is shown with a way on that never buys twice unasked. */
  async purchase(buy, record, bought, place) {
    if (this.busy) return;
    this.busy = true;
    this.pending(record);
    this.said.textContent = 'Sent; waiting for the answer.';
    try {
      const answer = await buy(record.request, { idempotencyKey: record.key, onRetry: () => { this.said.textContent = 'Asking again; it is not bought twice.'; } });
      this.pending(null);
      this.said.textContent = `Received for ${price(answer)}.`;
      bought(answer);
    } catch (error) {
      const isOpen = !(error instanceof TollgateError) || error.charged === 'unknown';
      if (!isOpen) this.pending(null);
      this.said.textContent = '';
      const again = () => { this.busy = false; void this.purchase(buy, record, bought, place); };
      place(this.trouble(error, isOpen ? 'Ask what became of it (not bought twice)' : 'Try again', again));
    } finally {
      this.busy = false;
    }
  }

  trouble(error, way, act) {
    const words = [error.message, ...(error.errors ?? []).slice(1).map(({ pointer, detail }) => `${pointer}: ${detail}`)].join('\n');
    const card = make('article', { class: 'trouble', role: 'alert' }, words, make('p', { class: 'small', text: MONEY[error.charged] ?? MONEY.unknown }));
    card.append(make('button', { type: 'button', text: way, on: { click: () => { card.remove(); act(); } } }));
    return card;
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

class TollgateChat extends Purchasing {
  #messages = [];

  draw() {
    const { select, isFixed } = this.models(this.catalog.chat, 'best_for');
    const picked = () => this.catalog.chat.find((row) => row.id === select.value);
    const send = make('button', { class: 'main', type: 'submit' });
    const label = () => { send.textContent = `Send · ${price(picked())}`; };
    select.addEventListener('change', label);
    label();
    this.list = make('ol', { 'aria-label': 'Conversation', 'aria-live': 'polite' });
    const text = make('textarea', { rows: 3, on: { keydown: (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    } } });
    const form = make('form', { on: { submit: (event) => {
      event.preventDefault();
      if (this.busy) { this.said.textContent = 'Wait for the answer to the last message.'; return; }
      if (!text.value.trim()) { this.said.textContent = 'Write a message first.'; text.focus(); return; }
      this.ask(text.value, picked().id);
      text.value = '';
    } } }, ...(isFixed ? [] : [labelled('Model', select)]), labelled('Message', text), make('div', { class: 'row' }, send, this.said));
    this.shadowRoot.replaceChildren(this.list, form);
  }

  ask(content, model) {
    this.#messages.push({ role: 'user', content });
    this.show(content, 'mine');
    const system = this.getAttribute('system');
    const messages = [...(system ? [{ role: 'system', content: system }] : []), ...this.#messages];
    this.go({ key: newKey(), request: { model, messages } });
  }

  go(record) {
    void this.purchase(this.client.chat, record, (answer) => {
      this.#messages = [...record.request.messages.filter(({ role }) => role !== 'system'), { role: 'assistant', content: answer.message.content }];
      this.show(answer.message.content, '');
      this.tell('tollgate-reply', answer);
    }, (card) => this.list.append(make('li', {}, card)));
  }

  wasLeft(record) {
    this.#messages = record.request.messages.filter(({ role }) => role !== 'system');
    for (const { role, content } of this.#messages) this.show(content, role === 'user' ? 'mine' : '');
    this.go(record);
  }

  show(content, kind) {
    this.list.append(make('li', {}, make('article', { class: kind, text: content })));
    this.list.lastElementChild.scrollIntoView({ block: 'nearest' });
  }
}

class TollgateVideo extends Purchasing {
  draw() {
    const { select, isFixed } = this.models(this.catalog.video, 'remarks');
    const picked = () => this.catalog.video.find((row) => row.id === select.value);
    const prompt = make('textarea', { rows: 3, maxLength: 2 * this.catalog.limits.prompt_characters });
    const length = make('select');
    const shape = make('select', {}, ...this.catalog.aspect_ratios.map((ratio) => make('option', { value: ratio, text: ratio })));
    const picture = make('input', { type: 'url', placeholder: 'https://' });
    const [lengths, shapes, pictures] = [labelled('Seconds', length), labelled('Shape', shape), labelled('Picture to start from', picture)];
    const order = make('button', { class: 'main', type: 'button' });
    const sure = make('div', { class: 'row', hidden: true });
    const begin = () => {
      sure.hidden = true;
      order.hidden = false;
    };
    const follow = () => {
      const { durations, image, aspect_ratio: ratio } = picked();
      const values = durations.values ?? Array.from({ length: durations.max - durations.min + 1 }, (_, step) => durations.min + step);
      length.replaceChildren(...values.map((value) => make('option', { value, text: value })));
      length.value = values.includes(this.catalog.defaults.duration) ? this.catalog.defaults.duration : values[0];
      shapes.hidden = ratio === 'ignored';
      picture.required = image === 'required';
      order.textContent = `Generate · ${price(picked())}`;
      begin();
    };
    select.addEventListener('change', follow);
    order.addEventListener('click', () => {
      if (this.busy) { this.said.textContent = 'Wait for the answer to the last order.'; return; }
      if (!prompt.value.trim()) { this.said.textContent = 'Say what the video should show.'; prompt.focus(); return; }
      if (!picture.reportValidity()) return;
      const yes = make('button', { class: 'main', type: 'button', text: `Yes, spend ${price(picked())}`, on: { click: () => {
        begin();
        order.focus();
        const request = {
          prompt: prompt.value, model: picked().id, duration: Number(length.value),
          ...(!shapes.hidden && { aspect_ratio: shape.value }), ...(picture.value && { image_url: picture.value }),
        };
        this.go({ key: newKey(), request });
      }, keydown: (event) => event.repeat && event.preventDefault() } });
      const no = make('button', { type: 'button', text: 'Keep editing', on: { click: () => { begin(); order.focus(); } } });
      sure.replaceChildren('It cannot be cancelled once it is ordered.', no, yes);
      sure.hidden = false;
      order.hidden = true;
      no.focus();
    });
    follow();
    this.list = make('ol', { 'aria-label': 'Videos' });
    const form = make('form', { on: { submit: (event) => event.preventDefault() } },
      ...(isFixed ? [] : [labelled('Model', select)]), labelled('What should it show?', prompt),
      make('div', { class: 'row' }, lengths, shapes), pictures, order, sure, this.said);
    this.shadowRoot.replaceChildren(form, this.list);
  }

  go(record) {
    const card = make('article', {}, record.request.prompt);
    const entry = make('li', {}, card);
    this.list.prepend(entry);
    void this.purchase(this.client.video.create, record, (accepted) => void this.follow(accepted, card), (trouble) => entry.append(trouble));
  }

  wasLeft(record) {
    this.go(record);
  }

  async follow(accepted, card) {
    const state = make('p', { class: 'small', role: 'status', text: 'It is being made.' });
    card.append(state);
    try {
      for await (const word of this.client.video.watch(accepted.requestId)) {
        if (word.state === 'failed') { state.textContent = 'The service could not make it.'; return; }
        if (word.state !== 'finished') continue;
        const clip = URL.createObjectURL(await this.client.video.content(accepted.requestId));
        state.textContent = 'It is ready.';
        card.append(make('video', { src: clip, controls: true, 'aria-label': 'The finished video' }));
        this.tell('tollgate-video', { ...accepted, status: word.status });
        return;
      }
    } catch (error) {
      card.append(this.trouble(Object.assign(error, { charged: 'yes' }), 'Look again', () => void this.follow(accepted, card)));
    }
  }
}

for (const [name, element] of [['tollgate-chat', TollgateChat], ['tollgate-video', TollgateVideo]]) {
  if (!customElements.get(name)) customElements.define(name, element);
}
