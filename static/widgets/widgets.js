/**
 * Two widgets to put into any page: `<script type="module" src="https://your-tollgate/bff/widgets.js"></script>`, then
 * `<tollgate-chat></tollgate-chat>` or `<tollgate-video></tollgate-video>`.
 *
 * Attributes: `base-url` (where tollgate is; where this file came from by default), `model` (no picker then), and of a chat `system` (its
 * first message). Properties: `token` (a member's token or a JWT, or a function that gives one). Each tells what it bought by an event,
 * `tollgate-reply` or `tollgate-video`, with the client's answer as `detail`, and by `tollgate-sign-in` that it needs a token. Slots:
 * `sign-in` (what is shown meanwhile) and `empty` (in a chat without messages). Font, colour and scheme are the page's own; these are
 * theirs: `--tollgate-height` (of a chat), `--tollgate-accent`, `--tollgate-on-accent` (text on it), `--tollgate-surface`,
 * `--tollgate-border`, `--tollgate-trouble`, `--tollgate-radius`.
 */

import { button, element, unbroken, unrepeated } from './widgets/dom.js';
import { inWords, price, t } from './widgets/format.js';
import { PurchaseWidget, bones, pill } from './widgets/base.js';

/** The pixels above a question that was scrolled to the top. */
const GAP = 12;

class TollgateChat extends PurchaseWidget {
  /** The questions, with their replies if there are any, and their places in the list. */
  #turns = [];
  kind = 'chat';

  draw() {
    const { select, isFixed } = this.models(this.catalog.chat, 'best_for');
    const picked = () => this.catalog.chat.find((row) => row.id === select.value);
    const send = element('button', { class: 'main', type: 'submit' });
    const label = () => { send.textContent = t('chat.send', price(picked().price_micros)); };
    select.addEventListener('change', label);
    label();
    this.list = element('ol', { 'aria-label': t('widget.conversation'), 'aria-live': 'polite' });
    const empty = element('div', { class: 'empty' }, element('slot', { name: 'empty' }, element('p', { text: t('chat.lead') }), element('p', { class: 'small', text: t('widget.priceIsShown') })));
    this.view = element('div', { class: 'scroll', tabindex: '0', role: 'group', 'aria-label': t('widget.conversation') }, this.list, empty);
    const text = element('textarea', { rows: 2, placeholder: t('chat.write'), 'aria-label': t('chat.message'), enterkeyhint: 'send', dir: 'auto', keydown: (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.form.requestSubmit();
    } });
    this.form = element('form', { input: () => this.clearRemark(), submit: (event) => {
      event.preventDefault();
      if (this.isBusy()) return;
      if (!text.value.trim()) { this.said.textContent = t('chat.writeFirst'); text.focus(); return; }
      this.ask(text.value, picked().id);
      text.value = '';
    } }, element('div', { class: 'field' }, text, element('div', { class: 'row' }, isFixed ? null : pill(t('column.model'), select), send)), this.said, this.left);
    this.show(this.view, this.gate, this.form);
  }

  /** The field of the message has the focus, not the conversation above it. */
  focus(options) {
    (this.form && !this.form.hidden ? this.form.querySelector('textarea') : this.view)?.focus(options);
  }

  ask(content, model) {
    const turn = this.#add(content);
    const system = this.getAttribute('system');
    const said = this.#turns.flatMap(({ asked, reply }) => [{ role: 'user', content: asked }, ...(reply === undefined ? [] : [{ role: 'assistant', content: reply }])]);
    void this.go(this.fresh({ model, messages: [...(system ? [{ role: 'system', content: system }] : []), ...said] }), turn);
  }

  received(record, turn) {
    this.#reply(turn, record.reply.message.content);
    this.settled(record);
    this.emit('tollgate-reply', record.reply);
  }

  place(card, turn) {
    this.#show(card, turn.end);
    this.#scrollTo(turn);
  }

  /** Lines shimmer below the question until its outcome is known. */
  begun(turn) {
    const lines = element('li', {}, bones());
    turn.end.after(lines);
    this.#scrollTo(turn);
    return () => lines.remove();
  }

  /** Its conversation goes on from the one that is there, or else is shown below it. */
  async takeUpKept(record) {
    const turns = [];
    for (const { role, content } of record.payload.messages) {
      if (role === 'user') turns.push({ asked: content });
      else if (role === 'assistant' && turns.length) turns.at(-1).reply = content;
    }
    const isSame = this.#turns.every(({ asked }, place) => asked === turns[place]?.asked);
    for (const { asked, reply } of turns.slice(isSame ? this.#turns.length : 0)) {
      const turn = this.#add(asked);
      if (reply !== undefined) this.#reply(turn, reply);
    }
    if (record.reply) this.received(record, this.#turns.at(-1));
    else await this.resume(record, this.#turns.at(-1));
  }

  #add(asked) {
    const question = this.#show(element('article', { class: 'mine', text: asked }));
    const turn = { asked, reply: undefined, question, end: question };
    this.#turns.push(turn);
    return turn;
  }

  #reply(turn, content) {
    turn.reply = content;
    // Until its Markdown is rendered, the text is shown as it came, but not read out.
    const article = element('article', { text: content, 'aria-hidden': 'true' });
    turn.end = this.#show(article, turn.end);
    void import('./widgets/markdown.js').then(({ prose }) => article.replaceChildren(prose(content)), () => null).then(() => {
      article.removeAttribute('aria-hidden');
      if (turn === this.#turns.at(-1)) this.#scrollTo(turn);
    });
  }

  /** Shows it behind this entry, or last. */
  #show(article, before = this.list.lastElementChild) {
    const entry = element('li', {}, article);
    if (before) before.after(entry);
    else this.list.append(entry);
    return entry;
  }

  /** Scrolls the conversation, never the page around it: the question comes to the top, so that its answer is read from its start. */
  #scrollTo({ question }) {
    this.view.scrollTop = question.offsetTop - GAP;
  }
}

class TollgateVideo extends PurchaseWidget {
  /** The videos that are being made, and where they are shown. */
  #followed = new Map();
  kind = 'video';

  draw() {
    const { select, isFixed } = this.models(this.catalog.video, 'remarks');
    const picked = () => this.catalog.video.find((row) => row.id === select.value);
    const prompt = element('textarea', { rows: 2, maxlength: 2 * this.catalog.limits.prompt_characters, placeholder: t('video.show'), 'aria-label': t('video.show'), dir: 'auto' });
    const length = element('select');
    const shape = element('select', {}, ...this.catalog.aspect_ratios.map((ratio) => element('option', { value: ratio, text: ratio })));
    const picture = element('input', { type: 'url', class: 'picture', placeholder: t('widget.pictureAt'), 'aria-label': t('widget.picture') });
    const [lengths, shapes] = [pill(t('widget.seconds'), length, () => t('video.seconds', length.value)), pill(t('video.shape'), shape)];
    const order = button('', () => ask(), 'main');
    const sure = element('div', { class: 'row', hidden: true });
    const begin = () => {
      sure.hidden = true;
      order.hidden = false;
    };
    const follow = () => {
      const { durations, image, aspect_ratio: ratio } = picked();
      const values = durations.values ?? Array.from({ length: durations.max - durations.min + 1 }, (_, step) => durations.min + step);
      length.replaceChildren(...values.map((value) => element('option', { value, text: value })));
      length.value = values.includes(this.catalog.defaults.duration) ? this.catalog.defaults.duration : values[0];
      lengths.update();
      shapes.hidden = ratio === 'ignored';
      picture.required = image === 'required';
      order.textContent = t('video.generate', price(picked().price_micros));
      begin();
    };
    select.addEventListener('change', follow);
    const ask = () => {
      if (this.isBusy()) return;
      if (!prompt.value.trim()) { this.said.textContent = t('video.sayWhat'); prompt.focus(); return; }
      if (!picture.reportValidity()) return;
      const yes = button(t('receipt.spend', price(picked().price_micros)), () => {
        if (this.isBusy()) return;
        begin();
        order.focus();
        const payload = {
          prompt: prompt.value, model: picked().id, duration: Number(length.value),
          ...(!shapes.hidden && { aspect_ratio: shape.value }), ...(picture.value && { image_url: picture.value }),
        };
        void this.go(this.fresh(payload), this.#add(payload));
      }, 'main');
      const no = button(t('widget.keepEditing'), () => { begin(); order.focus(); });
      this.clearRemark();
      const question = t('video.sure', length.value, picked().id, price(picked().price_micros));
      sure.replaceChildren(element('p', {}, unbroken(question, picked().id)), no, unrepeated(yes));
      sure.hidden = false;
      order.hidden = true;
      no.focus();
    };
    follow();
    this.list = element('ol', { 'aria-label': t('service.video') });
    this.form = element('form', { input: () => this.clearRemark(), submit: (event) => event.preventDefault() },
      element('div', { class: 'field' }, prompt, picture,
        element('div', { class: 'row' }, isFixed ? null : pill(t('column.model'), select), lengths, shapes, order), sure), this.said, this.left);
    this.show(this.gate, this.form, this.list);
  }

  /** It stays kept until it was seen to be made. */
  received(record, card) {
    void this.#follow(record, card);
  }

  place(trouble, card) {
    card.parentElement.append(trouble);
  }

  /** The shape of the clip shimmers until the order's outcome is known. */
  begun(card) {
    const frame = bones('frame');
    card.append(frame);
    return () => frame.remove();
  }

  async takeUpKept(record) {
    const card = this.#add(record.payload);
    if (record.reply) void this.#follow(record, card);
    else await this.resume(record, card);
  }

  whenReattached() {
    const { signal } = this.stop;
    for (const [record, card] of this.#followed) {
      // It may have been moved again meanwhile: then that move goes on with it.
      void this.holds(record.key).then((isHeld) => isHeld && !signal.aborted && this.#follow(record, card));
    }
  }

  #add({ prompt, aspect_ratio: shape }) {
    const card = element('article', { class: 'made' }, element('span', { text: prompt }));
    card.style.setProperty('--shape', (shape ?? '16:9').replace(':', ' / '));
    this.list.prepend(element('li', {}, card));
    return card;
  }

  async #follow(record, card) {
    const { signal } = this.stop;
    const { requestId } = record.reply;
    const state = element('p', { class: 'small', role: 'status' });
    const bar = element('progress', { max: 100, 'aria-label': t('widget.progress') });
    // It has the shape of the clip, so that nothing moves once that is there.
    const frame = bones('frame');
    const began = Date.now();
    let percent = null;
    const tick = () => { state.textContent = t('widget.making', Math.round((Date.now() - began) / 1000), percent); };
    const clock = setInterval(tick, 1000);
    const rest = () => {
      clearInterval(clock);
      bar.remove();
      frame.remove();
    };
    tick();
    card.append(frame, state, bar);
    this.#followed.set(record, card);
    try {
      for await (const word of this.client.video.watch(requestId, { signal })) {
        if (word.state === 'open') {
          percent = percentOf(word.status?.progress);
          if (percent !== null) bar.value = percent;
          continue;
        }
        rest();
        if (word.state === 'finished') {
          const clip = URL.createObjectURL(await this.client.video.content(requestId, { signal }));
          state.before(element('video', {
            class: 'frame',
            // Some phones show no picture before playing without a start time.
            src: `${clip}#t=0.001`, controls: true, playsinline: true, preload: 'metadata', 'aria-label': t('widget.clip'),
          }));
        }
        state.textContent = word.state === 'finished' ? t('widget.ready') : t('widget.failed');
        this.#followed.delete(record);
        this.settled(record);
        if (word.state === 'finished') this.emit('tollgate-video', { ...record.reply, status: word.status });
        return;
      }
    } catch (error) {
      rest();
      state.remove();
      // A widget that is out of the page does not follow its videos; it resumes when it is back.
      if (signal.aborted) return;
      this.#followed.delete(record);
      this.place(this.card(inWords(`problem.${error.code}`, error.message), 'yes', this.action(t('widget.check'), () => void this.#follow(record, card)), this.forget(record)), card);
    }
  }
}

/** Below 1 it is a share of one, from 1 on a percentage. */
function percentOf(progress) {
  if (typeof progress !== 'number' || !(progress >= 0 && progress <= 100)) return null;
  return Math.round(progress < 1 ? progress * 100 : progress);
}

for (const [name, element] of [['tollgate-chat', TollgateChat], ['tollgate-video', TollgateVideo]]) {
  if (!customElements.get(name)) customElements.define(name, element);
}
