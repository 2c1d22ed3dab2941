/** Draws the turns of a conversation: each question, its answer or problem, and their actions. */

import { button, copyButton, element, notice } from '../core/dom.js';
import { price } from '../core/format.js';
import { complete, prose } from '../core/markdown.js';
import { problemCard } from '../core/problems.js';
import { TEXT } from './chat.js';

/** Longer questions are folded at first. */
const LONG = 1200;

/** The list's items by slot: `{sign, item}`. Only changed ones are rebuilt, so that focus and selection stay. */
let shown = new Map();
let drawn = null;

/**
 * Brings `list`, an `<ol>`, to the state of `conversation`.
 * @param {object} how news: key of the turn that has just changed; edited: key of the one in the composer;
 *   elsewhere: keys that another tab works on; offers(turn): its actions; priceOf(turn): the price of asking again;
 *   usual(model): how long its answers take, in milliseconds; versions(after): the versions that follow a turn
 */
export function draw(list, conversation, how) {
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
    const offers = how.offers(turn);
    const isEdited = how.edited === key;
    const versions = how.versions(after);
    after = key;
    return [
      item(`question ${key}`, [Boolean(offers.edit), isEdited, versions.ids], () => question(turn, offers, isEdited, versions)),
      item(`answer ${key}`, [state, problem, text?.length, Object.keys(offers), how.elsewhere.has(key)], () => answer(turn, offers, how)),
    ];
  });
  // Older versions of what is not there any more.
  const rest = how.versions(after);
  if (rest.ids.length) items.push(item(`rest ${after}`, rest.ids, () => element('li', { class: 'mine' }, switcher(rest))));
  items.forEach((one, place) => {
    if (list.children[place] !== one) list.insertBefore(one, list.children[place] ?? null);
  });
  while (list.children.length > items.length) list.lastChild.remove();
}

/** Counts the seconds of an answer that is on its way. */
export function tick(list) {
  for (const clock of list.querySelectorAll('.waited')) {
    const seconds = Math.max(0, Math.round((Date.now() - Number(clock.dataset.since)) / 1000));
    clock.textContent = TEXT.waited(seconds, clock.dataset.usual);
  }
}

/** Returns the words of a shown answer, without its buttons and Markdown signs. */
export function wordsOf(key) {
  const whole = shown.get(`answer ${key}`)?.item.querySelector('.prose');
  if (!whole) return '';
  complete(whole);
  const words = whole.cloneNode(true);
  for (const one of words.querySelectorAll('button')) one.remove();
  for (const block of words.querySelectorAll('p, li, th, td, pre, h3, h4, h5, h6')) block.append('\n');
  return words.textContent;
}

// A browser loads its voices once they are first asked for.
globalThis.speechSynthesis?.getVoices();

/** Reads an answer aloud, or stops reading. Uses only voices of this device: others send the text to their maker. */
function readAloud(key) {
  const isReading = speechSynthesis.speaking;
  speechSynthesis.cancel();
  if (isReading) return;
  const voices = speechSynthesis.getVoices().filter(({ localService }) => localService);
  if (!voices.length) return void notice(TEXT.noVoice, null, 'voice');
  const speech = new SpeechSynthesisUtterance(wordsOf(key));
  speech.voice = voices.find(({ lang }) => lang.startsWith(navigator.language.slice(0, 2))) ?? voices[0];
  speechSynthesis.speak(speech);
}

const act = (text, does, kind = 'link small') => button(text, does, kind);

function question(turn, { edit }, isEdited, versions) {
  const text = element('p', { class: 'plain', dir: 'auto', text: turn.question });
  const foot = element('footer', {}, versions.ids.length > 1 ? switcher(versions) : null, copyButton(() => turn.question), edit && act(TEXT.edit, edit));
  if (turn.question.length > LONG) {
    text.classList.add('folded');
    const more = act(TEXT.showAll, () => {
      more.textContent = text.classList.toggle('folded') ? TEXT.showAll : TEXT.showLess;
    });
    foot.prepend(more);
  }
  return element('li', { class: isEdited ? 'mine edited' : 'mine', 'data-key': turn.key },
    element('article', { 'aria-label': isEdited ? TEXT.youEdited : TEXT.you }, text, foot));
}

/** `‹ 2/3 ›`: the versions of a message, with what followed each. */
function switcher({ ids, place, show }) {
  const step = (by, text, name) => element('button', {
    type: 'button', class: 'link small', text, 'aria-label': name, 'data-step': by,
    'aria-disabled': ids[place + by] === undefined && 'true', click: () => ids[place + by] !== undefined && show(ids[place + by], by),
  });
  return element('span', { class: 'versions', role: 'group', 'aria-label': TEXT.versions },
    step(-1, '‹', TEXT.previousVersion),
    element('span', { 'aria-label': TEXT.versionOf(place + 1, ids.length), role: 'img', text: `${place + 1}/${ids.length}` }),
    step(1, '›', TEXT.nextVersion));
}

function answer(turn, offers, { news, elsewhere, priceOf, usual }) {
  const body = element('article', { 'aria-label': turn.model, 'aria-busy': turn.state === 'sent' && 'true' });
  const cost = turn.state === 'refused' ? '' : ` · ${price(turn.costMicros)}`;
  const foot = (...more) => element('footer', {}, element('span', { text: `${turn.model}${cost}` }), when(turn), ...more);
  if (turn.state === 'done') {
    body.append(prose(turn.answer), foot(copyButton(() => turn.answer),
      globalThis.speechSynthesis && act(TEXT.readAloud, () => readAloud(turn.key)),
      offers.again && act(TEXT.again(priceOf(turn)), offers.again), offers.other && act(TEXT.otherModel, offers.other)));
  } else if (turn.state === 'sent') {
    body.append(elsewhere.has(turn.key) ? element('p', { class: 'pending', text: TEXT.elsewhere }) : waiting(turn, usual(turn.model)));
  } else if (turn.state === 'left') {
    body.append(element('p', { class: 'pending still', text: TEXT.stopped }));
  } else {
    body.append(problemCard(turn.problem, offers, { fresh: news === turn.key, priceText: priceOf(turn), cost: price(turn.costMicros) }), foot());
  }
  return element('li', { class: 'theirs' }, body);
}

/** Three lines where the answer will be, and for how long it has been on its way. */
function waiting({ model, at }, usual) {
  return element('div', { class: 'waiting-answer' },
    element('p', { class: 'pending', text: TEXT.answering(model) }),
    element('p', { class: 'waited', 'aria-hidden': 'true', 'data-since': at, 'data-usual': usual ? Math.max(1, Math.round(usual / 1000)) : '' }),
    element('div', { class: 'skeleton', 'aria-hidden': 'true' }, element('span'), element('span'), element('span')));
}

function when({ at, took }) {
  const time = new Date(at);
  return element('time', {
    datetime: time.toISOString(), title: took > 0 ? TEXT.tookAt(time.toLocaleString(), Math.max(1, Math.round(took / 1000))) : time.toLocaleString(),
    text: time.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' }),
  });
}
