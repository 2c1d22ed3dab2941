/** Draws the turns of a conversation: what was asked, what came of it, and what can be done with either. */

import { button, copy, element } from '../core/dom.js';
import { price } from '../core/format.js';
import { problemCard } from '../core/problems.js';
import { render } from './markdown.js';

/** Longer questions are folded at first. */
const LONG = 1200;

/** What is shown, by slot: `{sign, item}`. Only what has changed is made anew, so that focus and selection stay. */
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
  const foot = element('footer', {}, act('Copy', () => copy(turn.question)), edit && act('Edit', edit));
  if (turn.question.length > LONG) {
    text.classList.add('folded');
    const more = act('Show all', () => {
      more.textContent = text.classList.toggle('folded') ? 'Show all' : 'Show less';
    });
    foot.prepend(more);
  }
  return element('li', { class: isEdited ? 'mine edited' : 'mine' }, element('article', { 'aria-label': isEdited ? 'You, being edited' : 'You' }, text, foot));
}

function answer(turn, offers, { news, elsewhere, priceOf }) {
  const body = element('article', { 'aria-label': turn.model, 'aria-busy': turn.state === 'sent' && 'true' });
  const cost = turn.state === 'refused' ? '' : ` · ${price(turn.costMicros)}`;
  const foot = (...more) => element('footer', {}, element('span', { text: `${turn.model}${cost}` }), when(turn.at), ...more);
  if (turn.state === 'done') {
    body.append(prose(turn.answer),
      foot(act('Copy', () => copy(turn.answer)), offers.again && act(`Ask again · ${priceOf(turn)}`, offers.again)));
  } else if (turn.state === 'sent') {
    const text = elsewhere.has(turn.key) ? 'Another tab is waiting for this answer; it will appear here, too.' : `${turn.model} is answering`;
    body.append(element('p', { class: 'pending', text }));
  } else if (turn.state === 'left') {
    body.append(element('p', { class: 'pending still', text: 'You stopped waiting. If the answer still comes, it appears here.' }));
  } else {
    body.append(problemCard(turn.problem, offers, { fresh: news === turn.key, priceText: priceOf(turn) }), foot());
  }
  return element('li', { class: 'theirs' }, body);
}

/** What a model wrote. Its headings may leave levels out; read aloud, none is. */
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

/** What was replaced by editing: folded away, still readable, and brought back by a button. */
function aside({ id, turns, at }, { bringBack }) {
  const count = turns.length === 1 ? 'One message was' : `${turns.length} messages were`;
  const list = element('ol', { class: 'turns' }, turns.flatMap((turn) => [
    element('li', { class: 'mine' }, element('article', { 'aria-label': 'You' }, element('p', { class: 'plain', text: turn.question }))),
    element('li', { class: 'theirs' }, element('article', { 'aria-label': turn.model }, turn.answer === null
      ? element('p', { class: 'pending still', text: turn.problem ? 'There is no answer to this.' : 'If the answer still comes, it appears here.' })
      : prose(turn.answer))),
  ]));
  return element('li', { class: 'aside' }, element('details', {},
    element('summary', { text: `${count} set aside, ${new Date(at).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' })}` }),
    button('Bring back', () => bringBack(id), 'quiet small'), list));
}
