/** One conversation: buys answers, settles and shows them, and keeps older versions of edited messages. */

import { canAskAgain, commit, draft, follow, keepsKey, serverRemembers, whenSettled } from '../core/buying.js';
import { announce, byId, clearReadOut, readOut } from '../core/dom.js';
import { price, t } from '../core/format.js';
import { spoken } from '../core/problems.js';
import { choice, conversations, purchases, whenChangedElsewhere } from '../core/site.js';
import { draw, retryIn, tick, wordsOf } from './turns.js';

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

/**
 * `view`: `{catalog, picked(), write(text), showList(conversation), changed(), pickModel(choose), waysOut(model, buy)}`; `changed` is called
 * after each drawing, `waysOut` returns what can be done if the budget does not cover a model.
 */
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
  const latest = await change(conversation, (one) => {
    if (one.turns.some(({ key }) => key === turn.key)) return;
    setAside(one, one.turns.findIndex(({ key }) => key === instead));
    one.turns.push(turn);
    one.title ||= [...question.trim().split('\n', 1)[0]].slice(0, 60).join('');
    one.at = record.at;
  });
  show();
  bringIntoView();
  announce(t('talk.sent', model.id));
  void composer.showList(latest);
  sentAt.set(record.key, Date.now());
  await buy(record);
  sentAt.delete(record.key);
}

/** Sends a purchase, and shows how long the page waits before it tries again. */
const buy = (record, how = {}) => commit(record, {
  ...how,
  onRetry: ({ code }, seconds) => retryIn(record.key, seconds, code === 'connection_lost' ? 'talk.lost' : 'talk.busy'),
  onProof: (seconds) => retryIn(record.key, seconds, 'page.proving'),
});

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
    if (waiting()) return announce(t('chat.waitFirst'));
    await bringBack(id);
    announce(t('talk.versionShown', ids.indexOf(id) + 1, ids.length));
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
  void composer.showList(conversation);
  if (conversation.id !== current.id) return announce(t('talk.receivedElsewhere', conversation.title));
  show(turn);
  if (turn === conversation.turns.at(-1)) bringIntoView();
  if (turn.state !== 'done') return announce(spoken(turn.problem));
  announce(t('talk.received', price(turn.costMicros)));
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
  announce(t('talk.stoppedWaiting'));
  byId('chat-text').focus();
}

/** Shows the current conversation; `news` is the turn that has just changed. */
function show(news = null) {
  byId('chat-heading').textContent = current.title || t('talk.fresh');
  byId('chat-empty').hidden = everyTurn(current).length > 0;
  for (const id of ['keep', 'new-here']) byId(id).hidden = everyTurn(current).length === 0;
  byId('chat-stop').hidden = !waiting();
  composer.changed();
  draw(current, { editing, elsewhere, offers, versions, modelOf, usual }, news?.key);
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
    if (waiting()) return announce(t('chat.waitFirst'));
    edit(turn.key);
    composer.write(turn.question);
  };
  const isLast = () => turn.key === current.turns.at(-1)?.key;
  const repeat = async (model = modelOf(turn)) => {
    if (waiting()) return announce(t('chat.waitFirst'));
    const instead = turn.state === 'done' || isLast() ? turn.key : null;
    if (!instead && turn.state === 'refused') {
      await change(current, (latest) => { latest.turns = latest.turns.filter((one) => one.key !== turn.key); });
    }
    await buyTurn(current, turn.question, model, instead);
  };
  const again = () => (keepsKey({ ...turn, kind: 'chat' }) ? send({ again: true }, t('talk.sentAgain', turn.model)) : repeat());
  const other = () => composer.pickModel((model) => repeat(model));
  const send = async (how, text) => {
    const record = await purchases.one(turn.key);
    await changeTurn(current, turn.key, record ? { state: WAITING } : UNTRACEABLE);
    show();
    if (!record) return;
    announce(text);
    await buy(record, how);
  };
  if (turn.state === 'done') return { edit: rewrite, again, other };
  if (turn.state === WAITING || turn.state === 'left') return {};
  const same = () => send({}, t('talk.checking'));
  const atRisk = () => send({ atRisk: true }, t('talk.sentAgain', turn.model));
  const offered = { edit: rewrite, again, ...(turn.problem?.code === 'budget_exhausted' && composer.waysOut(modelOf(turn), repeat)) };
  if (turn.state !== 'unknown' || turn.problem.code === 'untraceable') return offered;
  return canAskAgain({ ...turn, kind: 'chat' }) ? { same } : { atRisk };
}

/** Puts an earlier message into the composer, or none, and says what sending it does. */
export function edit(key) {
  editing = key;
  const place = current.turns.findIndex((turn) => turn.key === key);
  const after = place < 0 ? 0 : current.turns.length - place - 1;
  byId('editing').hidden = !key;
  byId('editing-text').textContent = t('talk.editing', after);
  show();
}

/** Updates a turn whose purchase has ended meanwhile or is lost. */
async function reconcile(turn) {
  if (turn.state !== WAITING && turn.state !== 'left') return;
  const record = await purchases.one(turn.key);
  if (!record) Object.assign(turn, UNTRACEABLE);
  else if (!['draft', 'intent', 'sent'].includes(record.state)) Object.assign(turn, newsOf(record));
}
