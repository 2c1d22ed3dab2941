/** Draws the turns of a conversation: each question, its answer or problem, and their actions. */

import { button, copy, element } from '../core/dom.js';
import { price } from '../core/format.js';
import { problemCard } from '../core/problems.js';
import { TEXT } from './chat.js';
import { render } from './markdown.js';

/** Longer questions are folded at first. */
const LONG = 1200;

/** The list's items by slot: `{sign, item}`. Only changed ones are rebuilt, so that focus and selection stay. */
let shown = new Map();
let drawn = null;

/**
 * Brings `list`, an `<ol>`, to what `conversation` is now.
 * @param {object} how news: key of the turn that has just changed; edited: key of the one in the composer;
 *   elsewhere: keys that another tab works on; offers(turn): what can be done; priceOf(turn): what asking again
 *   costs; bringBack(id): takes up what was set aside
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
  const branches = (after) => (conversation.aside ?? []).filter((branch) => branch.after === after)
    .map((branch) => item(`aside ${branch.id}`, branch.turns, () => aside(branch, how)));
  const items = conversation.turns.flatMap((turn) => {
    const { key, state, problem, answer: text } = turn;
    const offers = how.offers(turn);
    const isEdited = how.edited === key;
    return [
      item(`question ${key}`, [Boolean(offers.edit), isEdited], () => question(turn, offers, isEdited)),
      item(`answer ${key}`, [state, problem, text?.length, Object.keys(offers), how.elsewhere.has(key)], () => answer(turn, offers, how)),
      ...branches(key),
    ];
  });
  items.unshift(...branches(null));
  items.forEach((one, place) => {
    if (list.children[place] !== one) list.insertBefore(one, list.children[place] ?? null);
  });
  while (list.children.length > items.length) list.lastChild.remove();
}

const act = (text, does) => button(text, does, 'link small');

function question(turn, { edit }, isEdited) {
  const text = element('p', { class: 'plain', text: turn.question });
  const foot = element('footer', {}, act(TEXT.copy, () => copy(turn.question)), edit && act(TEXT.edit, edit));
  if (turn.question.length > LONG) {
    text.classList.add('folded');
    const more = act(TEXT.showAll, () => {
      more.textContent = text.classList.toggle('folded') ? TEXT.showAll : TEXT.showLess;
    });
    foot.prepend(more);
  }
  return element('li', { class: isEdited ? 'mine edited' : 'mine' }, element('article', { 'aria-label': isEdited ? TEXT.youEdited : TEXT.you }, text, foot));
}

function answer(turn, offers, { news, elsewhere, priceOf }) {
  const body = element('article', { 'aria-label': turn.model, 'aria-busy': turn.state === 'sent' && 'true' });
  const cost = turn.state === 'refused' ? '' : ` · ${price(turn.tollMicros)}`;
  const foot = (...more) => element('footer', {}, element('span', { text: `${turn.model}${cost}` }), when(turn.at), ...more);
  if (turn.state === 'done') {
    body.append(prose(turn.answer),
      foot(act(TEXT.copy, () => copy(turn.answer)), offers.again && act(TEXT.again(priceOf(turn)), offers.again)));
  } else if (turn.state === 'sent') {
    const text = elsewhere.has(turn.key) ? TEXT.elsewhere : TEXT.answering(turn.model);
    body.append(element('p', { class: 'pending', text }));
  } else if (turn.state === 'left') {
    body.append(element('p', { class: 'pending still', text: TEXT.stopped }));
  } else {
    body.append(problemCard(turn.problem, offers, { fresh: news === turn.key, priceText: priceOf(turn) }), foot());
  }
  return element('li', { class: 'theirs' }, body);
}

/** A model's answer. Its headings may skip levels; for screen readers, none is skipped. */
function prose(text) {
  const made = element('div', { class: 'prose' }, render(text));
  let above = 2;
  for (const heading of made.querySelectorAll('h3, h4, h5, h6')) {
    const level = Math.min(Number(heading.tagName[1]), above + 1);
    if (level !== Number(heading.tagName[1])) heading.setAttribute('aria-level', level);
    above = level;
  }
  return made;
}

function when(at) {
  const time = new Date(at);
  return element('time', {
    datetime: time.toISOString(), title: time.toLocaleString(),
    text: time.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' }),
  });
}

/** An older version, folded: it can be read and shown again. */
function aside({ id, turns, at }, { bringBack }) {
  const list = element('ol', { class: 'turns' }, turns.flatMap((turn) => [
    element('li', { class: 'mine' }, element('article', { 'aria-label': TEXT.you }, element('p', { class: 'plain', text: turn.question }))),
    element('li', { class: 'theirs' }, element('article', { 'aria-label': turn.model }, turn.answer === null
      ? element('p', { class: 'pending still', text: turn.problem ? TEXT.noAnswer : TEXT.mayStillCome })
      : prose(turn.answer))),
  ]));
  return element('li', { class: 'aside' }, element('details', {},
    element('summary', { text: TEXT.aside(turns.length, new Date(at).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' })) }),
    button(TEXT.bringBack, () => bringBack(id), 'quiet small'), list));
}
