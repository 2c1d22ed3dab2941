/** One conversation: buys answers, settles and shows them, and keeps older versions of edited messages. */

import { canAskAgain, commit, draft, follow, keepsKey, serverRemembers, whenSettled } from '../core/buying.js';
import { announce, button, byId, clearReadOut, copyButton, element, notice, readOut } from '../core/dom.js';
import { price } from '../core/format.js';
import { complete, prose } from '../core/markdown.js';
import { problemCard, spoken } from '../core/problems.js';
import { choice, conversations, purchases, whenChangedElsewhere } from '../core/store.js';
import { TEXT } from './chat.js';

/**
 * A turn: `{key, question, answer, model, costMicros, at, ledger, state, problem}`, its state that of its purchase
 * (`sent` while waiting) or `left`: the person stopped waiting. A conversation is `{id, title, at,
 * system, turns, aside}`; `system` is its instructions; `aside` holds what was replaced by editing: `{id, after: key of the turn before it, at, turns}`.
 * A conversation is only ever changed by `change`, turns are found by their key: another tab may be writing to it.
 */
const WAITING = 'sent';
const UNTRACEABLE = { state: 'unknown', problem: { code: 'untraceable', charged: 'unknown' } };

/** Purchases that another tab works on. */
const elsewhere = new Set();

let catalog, composer, current = fresh();
let editing = null;

const sentAt = new Map();

/** `view`: `{catalog, picked(), write(text), showList(), changed(), pickModel(choose)}`; `changed` is called after each drawing. */
export function start(view) {
  ({ catalog } = view);
  composer = view;
  serverRemembers(catalog.replay);
  whenSettled('chat', settle, (record) => {
    elsewhere.add(record.key);
    show();
  });
  whenChangedElsewhere(refresh);
  setInterval(tick, 1000);
}

export function fresh() {
  return { id: `${Date.now()}-${Math.random()}`, title: '', at: Date.now(), system: choice.get('new-system') ?? '', turns: [], aside: [] };
}

export const now = () => current;
export const isEditing = () => editing !== null;
export const waiting = () => current.turns.find((turn) => turn.state === WAITING);
const everyTurn = ({ turns, aside = [] }) => [...turns, ...aside.flatMap((branch) => branch.turns)];

export const system = () => current.system ?? '';

export async function setSystem(text) {
  if (current.turns.length) {
    await change(current, (latest) => { latest.system = text; });
  } else {
    current.system = text;
    // They outlive a reload, as the draft does.
    choice.set('new-system', text);
  }
  show();
}

export async function take(conversation) {
  current = conversation;
  editing = null;
  byId('editing').hidden = true;
  clearReadOut();
  for (const turn of everyTurn(conversation)) await reconcile(turn);
  show();
}

/** The size of the request that would send this now, in bytes. */
export const sizeOf = (text) => new TextEncoder().encode(JSON.stringify(payload(text, composer.picked(), editing))).length;

/** Sends a message. If one is being edited, this starts a new version. */
export function say(text) {
  const instead = editing;
  edit(null);
  return buyTurn(current, text, composer.picked(), instead);
}

/** The request: the answered turns before `until`, and the question. */
function payload(question, model, until = null) {
  const end = current.turns.findIndex((turn) => turn.key === until);
  const said = current.turns.slice(0, end < 0 ? undefined : end).filter((turn) => turn.state === 'done');
  return {
    model: model.id,
    messages: [...(current.system ? [{ role: 'system', content: current.system }] : []), ...said.flatMap((turn) => [
      { role: 'user', content: turn.question },
      { role: 'assistant', content: turn.answer },
    ]), { role: 'user', content: question }],
  };
}

/** Buys an answer. `instead`: the key of the turn that it replaces. */
async function buyTurn(conversation, question, model, instead = null) {
  const record = draft({
    kind: 'chat', payload: payload(question, model, instead),
    costMicros: model.price_micros, about: { conversation: conversation.id },
  });
  const turn = {
    key: record.key, question, answer: null, model: model.id, costMicros: model.price_micros,
    at: record.at, ledger: null, state: WAITING, problem: null,
  };
  if (!conversation.turns.length) choice.set('new-system', '');
  await change(conversation, (latest) => {
    if (latest.turns.some((one) => one.key === turn.key)) return;
    setAside(latest, latest.turns.findIndex((one) => one.key === instead));
    latest.turns.push(turn);
    latest.title ||= [...question.trim().split('\n', 1)[0]].slice(0, 60).join('');
    latest.at = record.at;
  });
  show();
  bringIntoView();
  announce(TEXT.sent(model.id));
  void composer.showList();
  sentAt.set(record.key, Date.now());
  await commit(record);
  sentAt.delete(record.key);
}

/** Moves the turns from this place on to an older version. One of refusals only is dropped. */
function setAside(conversation, from) {
  if (from < 0) return;
  const turns = conversation.turns.splice(from);
  if (turns.every(({ state }) => state === 'refused')) return;
  conversation.aside ??= [];
  conversation.aside.push({ id: turns[0].key, after: conversation.turns.at(-1)?.key ?? null, at: Date.now(), turns });
}

/** Swaps an older version in, and the current one out. */
async function bringBack(id) {
  await change(current, (latest) => {
    const branch = latest.aside.find((one) => one.id === id);
    if (!branch) return;
    latest.aside = latest.aside.filter((one) => one !== branch);
    const from = latest.turns.findIndex((turn) => turn.key === branch.after) + 1;
    if (from < latest.turns.length) setAside(latest, from);
    latest.turns.push(...branch.turns);
  });
  show();
}

/** The versions of what follows the turn `after`: the keys of their first turns, oldest first, the place of the shown one, and `show(id, by)`. */
function versions(after) {
  const here = current.turns[current.turns.findIndex(({ key }) => key === after) + 1];
  const all = (current.aside ?? []).filter((branch) => branch.after === after).map(({ id, turns }) => ({ id, at: turns[0]?.at ?? 0 }));
  if (here) all.push({ id: here.key, at: here.at });
  const ids = all.sort((one, other) => one.at - other.at).map(({ id }) => id);
  const switchTo = async (id, by) => {
    if (waiting()) return announce(TEXT.waitFirst);
    await bringBack(id);
    announce(TEXT.versionShown(ids.indexOf(id) + 1, ids.length));
    const shown = current.turns[current.turns.findIndex(({ key }) => key === after) + 1];
    [...byId('turns').children].find((item) => item.dataset.key === shown?.key)?.querySelector(`[data-step="${by}"]`)?.focus();
  };
  return { ids, place: here ? ids.indexOf(here.key) : -1, show: switchTo };
}

/** Takes in the outcome of a purchase, also after a reload. */
async function settle(record) {
  elsewhere.delete(record.key);
  const before = await conversations.one(record.about.conversation);
  if (!before || !everyTurn(before).some((one) => one.key === record.key)) return;
  const news = newsOf(record);
  if (record.state === 'done' && sentAt.has(record.key)) {
    news.took = Date.now() - sentAt.get(record.key);
    learnTime(record.payload.model, news.took);
  }
  const conversation = await changeTurn(before, record.key, news);
  const turn = everyTurn(conversation).find((one) => one.key === record.key);
  if (!turn) return;
  void composer.showList();
  if (conversation.id !== current.id) return announce(TEXT.receivedElsewhere(conversation.title));
  show(turn);
  if (turn === conversation.turns.at(-1)) bringIntoView();
  if (turn.state !== 'done') return announce(spoken(turn.problem));
  announce(TEXT.received(price(turn.costMicros)));
  readOut(wordsOf(turn.key));
}

/** How long the last answers of each model took, in milliseconds. */
const times = () => choice.object('chat-times');

function learnTime(model, took) {
  const all = times();
  all[model] = [...(all[model] ?? []), took].slice(-9);
  choice.set('chat-times', JSON.stringify(all));
}

/** The median time of a model's answers in this browser, in milliseconds; 0 if none is known. */
function usual(model) {
  const known = (times()[model] ?? []).sort((one, other) => one - other);
  return known[Math.floor(known.length / 2)] ?? 0;
}

/** The cost of this conversation with its older versions, in micro-dollars. */
export function cost() {
  const sum = { charged: 0, open: 0 };
  for (const { state, costMicros } of everyTurn(current)) {
    if (state === 'done' || state === 'charged') sum.charged += costMicros;
    else if (state !== 'refused') sum.open += costMicros;
  }
  return sum;
}

function newsOf({ state, problem, costMicros, at, ledger, repeats, reply }) {
  const news = { state, problem, costMicros, at, ledger, repeats };
  const content = reply?.message?.content;
  if (state === 'done') news.answer = typeof content === 'string' ? content : `\`\`\`json\n${JSON.stringify(reply.raw, null, 2)}\n\`\`\``;
  return news;
}

/** Edits the latest version of a conversation, whichever tab wrote it, and shows that version. */
export async function change(conversation, alter) {
  const latest = await conversations.change(conversation.id, alter, conversation);
  if (latest.id === current.id) current = latest;
  return latest;
}

const changeTurn = (conversation, key, news) => change(conversation, (latest) => {
  Object.assign(everyTurn(latest).find((one) => one.key === key) ?? {}, news);
});

/** Shows the changes of another tab, and waits for the same answers. */
async function refresh(shelf) {
  if (shelf !== 'conversations' && shelf !== 'purchases') return;
  const before = JSON.stringify(current);
  const latest = await conversations.one(current.id);
  if (!latest || latest.id !== current.id) return;
  for (const { key, state } of latest.turns) if (state === WAITING) void follow(key);
  if (JSON.stringify(latest) === before) return;
  current = latest;
  show();
}

/** The person stops waiting; the answer may still come. */
export async function stopWaiting() {
  const turn = waiting();
  if (!turn) return;
  await changeTurn(current, turn.key, { state: 'left' });
  show();
  announce(TEXT.stoppedWaiting);
  byId('chat-text').focus();
}

/** Shows the current conversation; `news` is the turn that has just changed. */
function show(news = null) {
  byId('chat-heading').textContent = current.title || TEXT.fresh;
  byId('chat-empty').hidden = everyTurn(current).length > 0;
  for (const id of ['keep', 'new-here']) byId(id).hidden = everyTurn(current).length === 0;
  byId('chat-stop').hidden = !waiting();
  composer.changed();
  draw(news?.key);
  tick();
}

/** Scrolls the latest question to the top with the next frame, which lays the page out anyway. */
export function bringIntoView() {
  requestAnimationFrame(() => [...byId('turns').querySelectorAll(':scope > .mine')].at(-1)?.scrollIntoView({ block: 'start' }));
}

const modelOf = (turn) => catalog.chat.find((model) => model.id === turn.model) ?? composer.picked();

/** Puts the last message into the composer, and returns whether there is one. */
export function editLast() {
  const last = current.turns.at(-1);
  const { edit: rewrite } = last && !editing ? offers(last) : {};
  rewrite?.();
  return Boolean(rewrite);
}

function offers(turn) {
  const rewrite = () => {
    if (waiting()) return announce(TEXT.waitFirst);
    edit(turn.key);
    composer.write(turn.question);
  };
  const isLast = () => turn.key === current.turns.at(-1)?.key;
  const repeat = async (model = modelOf(turn)) => {
    if (waiting()) return announce(TEXT.waitFirst);
    const instead = turn.state === 'done' || isLast() ? turn.key : null;
    if (!instead && turn.state === 'refused') {
      await change(current, (latest) => { latest.turns = latest.turns.filter((one) => one.key !== turn.key); });
    }
    await buyTurn(current, turn.question, model, instead);
  };
  const again = () => (keepsKey({ ...turn, kind: 'chat' }) ? send({ again: true }, TEXT.sentAgain(turn.model)) : repeat());
  const other = () => composer.pickModel((model) => repeat(model));
  const send = async (how, text) => {
    const record = await purchases.one(turn.key);
    await changeTurn(current, turn.key, record ? { state: WAITING } : UNTRACEABLE);
    show();
    if (!record) return;
    announce(text);
    await commit(record, how);
  };
  if (turn.state === 'done') return { edit: rewrite, again, other };
  if (turn.state === WAITING || turn.state === 'left') return {};
  const same = () => send({}, TEXT.checking);
  const atRisk = () => send({ atRisk: true }, TEXT.sentAgain(turn.model));
  if (turn.state !== 'unknown' || turn.problem.code === 'untraceable') return { edit: rewrite, again };
  return canAskAgain({ ...turn, kind: 'chat' }) ? { same } : { atRisk };
}

/** Puts an earlier message into the composer, or none, and says what sending it does. */
export function edit(key) {
  editing = key;
  const place = current.turns.findIndex((turn) => turn.key === key);
  const after = place < 0 ? 0 : current.turns.length - place - 1;
  byId('editing').hidden = !key;
  byId('editing-text').textContent = TEXT.editing(after);
  show();
}

/** Updates a turn whose purchase has ended meanwhile or is lost. */
async function reconcile(turn) {
  if (turn.state !== WAITING && turn.state !== 'left') return;
  const record = await purchases.one(turn.key);
  if (!record) Object.assign(turn, UNTRACEABLE);
  else if (!['draft', 'intent', 'sent'].includes(record.state)) Object.assign(turn, newsOf(record));
}

// The turns as they are shown: each question, its answer or problem, and their actions.

/** Longer questions are folded at first. */
const LONG = 1200;

/** The list's items by slot: `{sign, item}`. Only changed ones are rebuilt, so that focus and selection stay. */
let shown = new Map();
let drawn = null;

/** Brings the list to the state of the conversation. `news`: the key of the turn that has just changed. */
function draw(news) {
  const before = drawn === current.id ? shown : new Map();
  drawn = current.id;
  shown = new Map();
  const item = (slot, facts, make) => {
    const sign = JSON.stringify(facts);
    const known = before.get(slot);
    const made = known?.sign === sign ? known.item : make();
    shown.set(slot, { sign, item: made });
    return made;
  };
  let after = null;
  const items = current.turns.flatMap((turn) => {
    const { key, state, problem, answer: text } = turn;
    const offered = offers(turn);
    const isEdited = editing === key;
    const others = versions(after);
    after = key;
    return [
      item(`question ${key}`, [Boolean(offered.edit), isEdited, others.ids], () => question(turn, offered, isEdited, others)),
      item(`answer ${key}`, [state, problem, text?.length, Object.keys(offered), elsewhere.has(key)], () => answer(turn, offered, news)),
    ];
  });
  // Older versions of what is not there any more.
  const rest = versions(after);
  const list = byId('turns');
  if (rest.ids.length) items.push(item(`rest ${after}`, rest.ids, () => element('li', { class: 'mine' }, switcher(rest))));
  items.forEach((one, place) => {
    if (list.children[place] !== one) list.insertBefore(one, list.children[place] ?? null);
  });
  while (list.children.length > items.length) list.lastChild.remove();
}

function tick() {
  for (const clock of byId('turns').querySelectorAll('.waited')) {
    const seconds = Math.max(0, Math.round((Date.now() - Number(clock.dataset.since)) / 1000));
    clock.textContent = TEXT.waited(seconds, clock.dataset.usual);
  }
}

/** Returns the words of a shown answer, without its buttons and Markdown signs. */
function wordsOf(key) {
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

function question(turn, { edit: rewrite }, isEdited, others) {
  const text = element('p', { class: 'plain', dir: 'auto', text: turn.question });
  const foot = element('footer', {}, others.ids.length > 1 ? switcher(others) : null, copyButton(() => turn.question), rewrite && act(TEXT.edit, rewrite));
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
function switcher({ ids, place, show: switchTo }) {
  const step = (by, text, name) => element('button', {
    type: 'button', class: 'link small', text, 'aria-label': name, 'data-step': by,
    'aria-disabled': ids[place + by] === undefined && 'true', click: () => ids[place + by] !== undefined && switchTo(ids[place + by], by),
  });
  return element('span', { class: 'versions', role: 'group', 'aria-label': TEXT.versions },
    step(-1, '‹', TEXT.previousVersion),
    element('span', { 'aria-label': TEXT.versionOf(place + 1, ids.length), role: 'img', text: `${place + 1}/${ids.length}` }),
    step(1, '›', TEXT.nextVersion));
}

function answer(turn, offers, news) {
  const body = element('article', { 'aria-label': turn.model, 'aria-busy': turn.state === 'sent' && 'true' });
  const again = price(modelOf(turn).price_micros);
  const cost = turn.state === 'refused' ? '' : ` · ${price(turn.costMicros)}`;
  const foot = (...more) => element('footer', {}, element('span', { text: `${turn.model}${cost}` }), when(turn), ...more);
  if (turn.state === 'done') {
    body.append(prose(turn.answer), foot(copyButton(() => turn.answer),
      globalThis.speechSynthesis && act(TEXT.readAloud, () => readAloud(turn.key)),
      offers.again && act(TEXT.again(again), offers.again), offers.other && act(TEXT.otherModel, offers.other)));
  } else if (turn.state === 'sent') {
    body.append(elsewhere.has(turn.key) ? element('p', { class: 'pending', text: TEXT.elsewhere }) : pending(turn));
  } else if (turn.state === 'left') {
    body.append(element('p', { class: 'pending still', text: TEXT.stopped }));
  } else {
    body.append(problemCard(turn.problem, offers, { fresh: news === turn.key, priceText: again, cost: price(turn.costMicros) }), foot());
  }
  return element('li', { class: 'theirs' }, body);
}

function pending({ model, at }) {
  const time = usual(model);
  return element('div', { class: 'waiting-answer' },
    element('p', { class: 'pending', text: TEXT.answering(model) }),
    element('p', { class: 'waited', 'aria-hidden': 'true', 'data-since': at, 'data-usual': time ? Math.max(1, Math.round(time / 1000)) : '' }),
    element('div', { class: 'skeleton', 'aria-hidden': 'true' }, element('span'), element('span'), element('span')));
}

function when({ at, took }) {
  const time = new Date(at);
  return element('time', {
    datetime: time.toISOString(), title: took > 0 ? TEXT.tookAt(time.toLocaleString(), Math.max(1, Math.round(took / 1000))) : time.toLocaleString(),
    text: time.toLocaleTimeString([], { hour: 'numeric', minute: '2-digit' }),
  });
}
