/**
 * Two elements to put into any page: `<script type="module" src="https://your-tollgate/bff/elements.js"></script>`, then
 * `<tollgate-chat></tollgate-chat>` or `<tollgate-video></tollgate-video>`.
 *
 * Attributes: `base-url` (where tollgate is; where this file came from by default), `model` (no picker then), and of a chat `system` (its
 * first message). Properties: `token` (a member's token or a JWT, or a function that gives one). Each tells what it bought by an event,
 * `tollgate-reply` or `tollgate-video`, with the client's answer as `detail`. Font, colour and scheme are the page's own; these are theirs:
 * `--tollgate-accent`, `--tollgate-on-accent` (text on it), `--tollgate-trouble`, `--tollgate-radius`.
 */

import { Purchasing, labelled, make, price } from './purchasing.js';

class TollgateChat extends Purchasing {
  /** What was asked, with the reply if there is one, and where it stands. */
  #turns = [];
  kind = 'chat';

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
      if (this.isBusy()) return;
      if (!text.value.trim()) { this.said.textContent = 'Write a message first.'; text.focus(); return; }
      this.ask(text.value, picked().id);
      text.value = '';
    } } }, ...(isFixed ? [] : [labelled('Model', select)]), labelled('Message', text), make('div', { class: 'row' }, send, this.said));
    this.shadowRoot.replaceChildren(this.list, form);
  }

  ask(content, model) {
    const turn = this.#add(content);
    const system = this.getAttribute('system');
    const said = this.#turns.flatMap(({ asked, reply }) => [{ role: 'user', content: asked }, ...(reply === undefined ? [] : [{ role: 'assistant', content: reply }])]);
    void this.go(this.fresh({ model, messages: [...(system ? [{ role: 'system', content: system }] : []), ...said] }), turn);
  }

  buy(client, request, options) {
    return client.chat(request, options);
  }

  took(answer, record, turn) {
    this.#reply(turn, answer.message.content);
    this.settled(record, answer);
    this.tell('tollgate-reply', answer);
  }

  place(card, turn) {
    this.#show(card, turn.end);
  }

  /** Its conversation goes on from the one that is there, or else is shown below it. */
  async wasLeft(record) {
    const turns = [];
    for (const { role, content } of record.request.messages) {
      if (role === 'user') turns.push({ asked: content });
      else if (role === 'assistant' && turns.length) turns.at(-1).reply = content;
    }
    const isSame = this.#turns.every(({ asked }, place) => asked === turns[place]?.asked);
    for (const { asked, reply } of turns.slice(isSame ? this.#turns.length : 0)) {
      const turn = this.#add(asked);
      if (reply !== undefined) this.#reply(turn, reply);
    }
    if (record.answer) this.took(record.answer, record, this.#turns.at(-1));
    else await this.resume(record, this.#turns.at(-1));
  }

  #add(asked) {
    const turn = { asked, reply: undefined, end: this.#show(make('article', { class: 'mine', text: asked })) };
    this.#turns.push(turn);
    return turn;
  }

  #reply(turn, content) {
    turn.reply = content;
    turn.end = this.#show(make('article', { text: content }), turn.end);
  }

  /** Shows it behind this entry, or last. */
  #show(article, before = this.list.lastElementChild) {
    const entry = make('li', {}, article);
    if (before) before.after(entry);
    else this.list.append(entry);
    entry.scrollIntoView({ block: 'nearest' });
    return entry;
  }
}

class TollgateVideo extends Purchasing {
  /** The videos that are being made, and where they are shown. */
  #followed = new Map();
  kind = 'video';

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
      if (this.isBusy()) return;
      if (!prompt.value.trim()) { this.said.textContent = 'Say what the video should show.'; prompt.focus(); return; }
      if (!picture.reportValidity()) return;
      const yes = make('button', { class: 'main', type: 'button', text: `Yes, spend ${price(picked())}`, on: { click: () => {
        if (this.isBusy()) return;
        begin();
        order.focus();
        const request = {
          prompt: prompt.value, model: picked().id, duration: Number(length.value),
          ...(!shapes.hidden && { aspect_ratio: shape.value }), ...(picture.value && { image_url: picture.value }),
        };
        void this.go(this.fresh(request), this.#add(request.prompt));
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

  buy(client, request, options) {
    return client.video.create(request, options);
  }

  /** It stays kept until it was seen to be made. */
  took(answer, record, card) {
    this.kept.put(Object.assign(record, { answer }));
    void this.#follow(record, card);
  }

  place(trouble, card) {
    card.parentElement.append(trouble);
  }

  async wasLeft(record) {
    const card = this.#add(record.request.prompt);
    if (record.answer) void this.#follow(record, card);
    else await this.resume(record, card);
  }

  isBack() {
    const { signal } = this.stop;
    for (const [record, card] of this.#followed) {
      // It may have been moved again meanwhile: then that move goes on with it.
      void this.holds(record.key).then((isHeld) => isHeld && !signal.aborted && this.#follow(record, card));
    }
  }

  #add(prompt) {
    const card = make('article', {}, prompt);
    this.list.prepend(make('li', {}, card));
    return card;
  }

  async #follow(record, card) {
    const { signal } = this.stop;
    const { requestId } = record.answer;
    const state = make('p', { class: 'small', role: 'status', text: 'It is being made.' });
    card.append(state);
    this.#followed.set(record, card);
    try {
      for await (const word of this.client.video.watch(requestId, { signal })) {
        if (word.state === 'open') continue;
        if (word.state === 'finished') {
          const clip = URL.createObjectURL(await this.client.video.content(requestId, { signal }));
          card.append(make('video', { src: clip, controls: true, 'aria-label': 'The finished video' }));
        }
        state.textContent = word.state === 'finished' ? 'It is ready.' : 'The service could not make it.';
        this.#followed.delete(record);
        this.settled(record, record.answer);
        if (word.state === 'finished') this.tell('tollgate-video', { ...record.answer, status: word.status });
        return;
      }
    } catch (error) {
      state.remove();
      // Out of the page, nobody watches; back in it, it goes on.
      if (signal.aborted) return;
      this.#followed.delete(record);
      this.place(this.card(error.message, 'yes', this.way('Look again', () => void this.#follow(record, card)), this.forget(record)), card);
    }
  }
}

for (const [name, element] of [['tollgate-chat', TollgateChat], ['tollgate-video', TollgateVideo]]) {
  if (!customElements.get(name)) customElements.define(name, element);
}
