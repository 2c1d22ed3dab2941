/** The turns as they are shown: each question, its answer or problem, and their actions. */

import { announce, button, byId, copy, element, icon } from '../core/dom.js';
import { locale, price, t } from '../core/format.js';
import { prose } from '../core/markdown.js';
import { problemCard } from '../core/problems.js';

/** Longer questions are folded at first. */
const LONG = 1200;
/** How long a copied text is marked, in milliseconds. */
const MARKED = 1500;

/** The list's items by slot: `{sign, item}`. Only changed ones are rebuilt, so that focus and selection stay. */
let shown = new Map();
let drawn = null;
/** The purchases that are retried or checked: until when the page waits, and what it says meanwhile. */
const retries = new Map();

/**
 * Brings the list to the state of a conversation. `view`: `{editing, elsewhere, offers(turn), versions(after), modelOf(turn), usual(model)}`,
 * as in talk.js; `news`: the key of the turn that has just changed.
 */
export function draw(conversation, view, news) {
  const before = drawn === conversation.id ? shown : new Map();
  drawn = conversation.id;
  shown = new Map();
  const item = (slot, facts, make) => {
    const sign = JSON.stringify(facts);
    const known = before.get(slot);
    const made = known?.sign === sign ? known.item : make();
    shown.set(slot, { sign, item: made });
    return made;
  };
  let after = null;
  const items = conversation.turns.flatMap((turn) => {
    const { key, state, problem, answer: text } = turn;
    const offered = view.offers(turn);
    const isEdited = view.editing === key;
    const others = view.versions(after);
    after = key;
    return [
      item(`question ${key}`, [Boolean(offered.edit), isEdited, others.ids], () => question(turn, offered, isEdited, others)),
      item(`answer ${key}`, [state, problem, text?.length, Object.keys(offered), view.elsewhere.has(key)], () => answer(turn, offered, view, news)),
    ];
  });
  // Older versions of what is not there any more.
  const rest = view.versions(after);
  const list = byId('turns');
  if (rest.ids.length) items.push(item(`rest ${after}`, rest.ids, () => element('li', { class: 'mine' }, switcher(rest))));
  items.forEach((one, place) => {
    if (list.children[place] !== one) list.insertBefore(one, list.children[place] ?? null);
  });
  while (list.children.length > items.length) list.lastChild.remove();
}

/** Shows from now on that the page sends this purchase, perhaps again, in so many seconds. `why` is a key of the table of texts. */
export function retryIn(key, seconds, why) {
  const say = (left) => t(why, left);
  const isSaid = why === 'page.proving' && retries.get(key)?.why === why;
  retries.set(key, { until: Date.now() + seconds * 1000, why, say });
  if (!isSaid) announce(say(Math.ceil(seconds)));
  tick();
}

/** Brings the clocks of answers that are on their way up to date. */
export function tick() {
  for (const box of byId('turns').querySelectorAll('.waiting-answer')) {
    const { key, model, since, usual } = box.dataset;
    const { until = 0, say } = retries.get(key) ?? {};
    const wait = Math.ceil((until - Date.now()) / 1000);
    const [text, clock] = box.children;
    const said = wait > 0 ? say(wait) : t('talk.answering', model);
    if (text.textContent !== said) text.textContent = said;
    clock.hidden = wait > 0;
    clock.textContent = t('talk.waited', Math.max(0, Math.round((Date.now() - Number(since)) / 1000)), usual);
  }
}

/** Returns the words of an answer as far as it is shown, without its buttons and Markdown signs. */
export function wordsOf(key) {
  const whole = shown.get(`answer ${key}`)?.item.querySelector('.prose');
  if (!whole) return '';
  const words = whole.cloneNode(true);
  for (const one of words.querySelectorAll('button')) one.remove();
  for (const block of words.querySelectorAll('p, li, th, td, pre, h3, h4, h5, h6')) block.append('\n');
  return words.textContent;
}

/** The voices of this device: others send the text to their maker. */
const voices = () => globalThis.speechSynthesis?.getVoices().filter(({ localService }) => localService) ?? [];
const showVoices = () => byId('turns').classList.toggle('voiced', voices().length > 0);

// A browser loads its voices once they are first asked for.
showVoices();
globalThis.speechSynthesis?.addEventListener?.('voiceschanged', showVoices);

/** Reads an answer aloud, or stops reading. */
function readAloud(key) {
  const isReading = speechSynthesis.speaking;
  speechSynthesis.cancel();
  if (isReading) return;
  const speech = new SpeechSynthesisUtterance(wordsOf(key));
  speech.voice = voices().find(({ lang }) => lang.startsWith(navigator.language.slice(0, 2))) ?? voices()[0];
  speechSynthesis.speak(speech);
}

/** A button with an icon; `name` is what it does, `text` what stands beside the icon. */
const act = (glyph, name, does, { text = '', ...more } = {}) => element('button', {
  type: 'button', class: 'link small act', title: name, 'aria-label': name, click: does, ...more,
}, glyph && icon(glyph), text);

/** A button that copies `text()`, and shows a tick for a moment. */
function copyAct(text) {
  let timer = null;
  const mark = (glyph, name) => {
    made.replaceChildren(icon(glyph));
    made.ariaLabel = made.title = name;
  };
  const made = act('copy', t('page.copy'), async () => {
    if (!(await copy(text()))) return;
    clearTimeout(timer);
    mark('tick', t('page.copied'));
    timer = setTimeout(() => mark('copy', t('page.copy')), MARKED);
  });
  return made;
}

function question(turn, { edit: rewrite }, isEdited, others) {
  const text = element('p', { class: 'plain', dir: 'auto', text: turn.question });
  const bubble = element('div', { class: 'bubble' }, text);
  if (turn.question.length > LONG) {
    text.classList.add('folded');
    const more = button(t('talk.showAll'), () => {
      more.textContent = text.classList.toggle('folded') ? t('talk.showAll') : t('talk.showLess');
    }, 'link small');
    bubble.append(more);
  }
  return element('li', { class: isEdited ? 'mine edited' : 'mine', 'data-key': turn.key },
    element('article', { 'aria-label': isEdited ? t('talk.youEdited') : t('talk.you') }, bubble,
      element('footer', {}, copyAct(() => turn.question), rewrite && act('edit', t('talk.edit'), rewrite)), others.ids.length > 1 ? switcher(others) : null));
}

/** `‹ 2/3 ›`: the versions of a message, with what followed each. */
function switcher({ ids, place, show: switchTo }) {
  const step = (by, text, name) => element('button', {
    type: 'button', class: 'link small', text, 'aria-label': name, 'data-step': by,
    'aria-disabled': ids[place + by] === undefined && 'true', click: () => ids[place + by] !== undefined && switchTo(ids[place + by], by),
  });
  return element('span', { class: 'versions', role: 'group', 'aria-label': t('talk.versions') },
    step(-1, '‹', t('talk.previousVersion')),
    element('span', { 'aria-label': t('talk.versionOf', place + 1, ids.length), role: 'img', text: `${place + 1}/${ids.length}` }),
    step(1, '›', t('talk.nextVersion')));
}

function answer(turn, offers, view, news) {
  const body = element('article', { 'aria-label': turn.model, 'aria-busy': turn.state === 'sent' && 'true' });
  const again = price(view.modelOf(turn).price_micros);
  const cost = turn.state === 'refused' ? '' : ` · ${price(turn.costMicros)}`;
  const foot = (...acts) => element('footer', {}, acts, element('span', { class: 'facts' }, `${turn.model}${cost} `, when(turn)));
  if (turn.state === 'done') {
    body.append(prose(turn.answer), foot(copyAct(() => turn.answer),
      offers.again && element('span', { class: 'split' }, act('again', t('talk.again', again), offers.again, { text: again }), act(null, t('talk.otherModel'), offers.other, { text: '▾', 'aria-haspopup': 'dialog' })),
      act('sound', t('talk.readAloud'), () => readAloud(turn.key), { class: 'link small act aloud' })));
  } else if (turn.state === 'sent') {
    body.append(view.elsewhere.has(turn.key) ? element('p', { class: 'pending', text: t('talk.elsewhere') }) : pending(turn, view.usual(turn.model)));
  } else if (turn.state === 'left') {
    body.append(element('p', { class: 'pending still', text: t('talk.stopped') }));
  } else {
    body.append(problemCard(turn.problem, offers, { fresh: news === turn.key, priceText: again, cost: price(turn.costMicros) }), foot());
  }
  return element('li', { class: 'theirs' }, body);
}

/** `usual`: how long an answer of the model usually takes, in milliseconds; 0 if that is not known. */
function pending({ key, model, at }, usual) {
  return element('div', { class: 'waiting-answer', 'data-key': key, 'data-model': model, 'data-since': at, 'data-usual': usual ? Math.max(1, Math.round(usual / 1000)) : '' },
    element('p', { class: 'pending', text: t('talk.answering', model) }),
    element('p', { class: 'waited', 'aria-hidden': 'true' }),
    element('div', { class: 'skeleton', 'aria-hidden': 'true' }, element('span'), element('span'), element('span')));
}

function when({ at, took }) {
  const time = new Date(at);
  return element('time', {
    datetime: time.toISOString(), title: took > 0 ? t('talk.tookAt', time.toLocaleString(locale), Math.max(1, Math.round(took / 1000))) : time.toLocaleString(locale),
    text: time.toLocaleTimeString(locale, { hour: 'numeric', minute: '2-digit' }),
  });
}
