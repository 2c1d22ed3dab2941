/** One conversation: messages are bought, settled, edited, set aside, and asked again. */

import { canAskAgain, commit, draft, follow, serverRemembers, whenSettled } from '../core/buying.js';
import { announce, byId, hush, readOut } from '../core/dom.js';
import { price } from '../core/format.js';
import { sentence } from '../core/problems.js';
import { conversations, purchases, whenChangedElsewhere } from '../core/store.js';
import { draw } from './turns.js';

/**
 * A turn: `{key, question, answer, model, costMicros, at, ledger, state, problem}`, its state that of its purchase
 * (`sent` while waiting) or `left`: the person stopped waiting. A conversation is `{id, title, at, turns,
 * aside}`; `aside` holds what was replaced by editing: `{id, after: key of the turn before it, at, turns}`.
 * A conversation is only ever changed by `change`, turns are found by their key: another tab may be writing to it.
 */
const WAITING = 'sent';
const UNTRACEABLE = { state: 'unknown', problem: { code: 'untraceable', charged: 'unknown' } };

/** Purchases that another tab works on. */
const elsewhere = new Set();

let catalog, composer, current = fresh();
/** The turn that is in the composer. */
let editing = null;

/** `view`: `{catalog, picked(), write(text), showList()}`. */
export function start(view) {
  ({ catalog } = view);
  composer = view;
  serverRemembers(catalog.replay);
  whenSettled('chat', settle, (record) => {
    elsewhere.add(record.key);
    show();
  });
  whenChangedElsewhere(refresh);
}

/** A conversation in which nothing is said yet. */
export function fresh() {
  return { id: `${Date.now()}-${Math.random()}`, title: '', at: Date.now(), turns: [], aside: [] };
}

/** The one that is shown. */
export const now = () => current;
export const isEditing = () => editing !== null;
/** The turn whose answer is being waited for. */
export const waiting = () => current.turns.find((turn) => turn.state === WAITING);
const everyTurn = ({ turns, aside = [] }) => [...turns, ...aside.flatMap((branch) => branch.turns)];

/** Takes a conversation up. */
export async function take(conversation) {
  current = conversation;
  editing = null;
  byId('editing').hidden = true;
  hush();
  for (const turn of everyTurn(conversation)) await reconcile(turn);
  show();
}

/** How many bytes sending this now would take. */
export const sizeOf = (text) => new TextEncoder().encode(JSON.stringify(payload(text, composer.picked(), editing))).length;

/** Sends a message; the one that is being edited, and what came after it, is set aside for it. */
export function say(text) {
  const instead = editing;
  edit(null);
  return buyTurn(current, text, composer.picked(), instead);
}

/** What the model is told: the turns before `until` with an answer, and the question. */
function payload(question, model, until = null) {
  const end = current.turns.findIndex((turn) => turn.key === until);
  const said = current.turns.slice(0, end < 0 ? undefined : end).filter((turn) => turn.state === 'done');
  return {
    model: model.id,
    messages: [...said.flatMap((turn) => [
      { role: 'user', content: turn.question },
      { role: 'assistant', content: turn.answer },
    ]), { role: 'user', content: question }],
  };
}

/** Buys an answer; `instead` names the turn that this one takes the place of. */
async function buyTurn(conversation, question, model, instead = null) {
  const record = draft({
    kind: 'chat', payload: payload(question, model, instead),
    costMicros: model.price_micros, about: { conversation: conversation.id },
  });
  const turn = {
    key: record.key, question, answer: null, model: model.id, costMicros: model.price_micros,
    at: record.at, ledger: null, state: WAITING, problem: null,
  };
  await change(conversation, (latest) => {
    if (latest.turns.some((one) => one.key === turn.key)) return;
    setAside(latest, latest.turns.findIndex((one) => one.key === instead));
    latest.turns.push(turn);
    latest.title ||= [...question.trim().split('\n', 1)[0]].slice(0, 60).join('');
    latest.at = record.at;
  });
  show();
  bringIntoView();
  announce(`Sent to ${model.id}. Waiting for the answer.`);
  void composer.showList();
  await commit(record);
}

/** Takes the turns from this place on out of the way. What is only refusals is not worth keeping. */
function setAside(conversation, from) {
  if (from < 0) return;
  const turns = conversation.turns.splice(from);
  if (turns.every(({ state }) => state === 'refused')) return;
  conversation.aside ??= [];
  conversation.aside.push({ id: turns[0].key, after: conversation.turns.at(-1)?.key ?? null, at: Date.now(), turns });
}

/** Puts a branch that was set aside back, and what is there now aside. */
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
  announce('Brought back. What stood here is set aside.');
  byId('chat-heading').focus();
}

/** Takes in what a purchase brought, whenever that is: also after a reload, or after waiting was stopped. */
async function settle(record) {
  elsewhere.delete(record.key);
  const before = await conversations.one(record.about.conversation);
  if (!before || !everyTurn(before).some((one) => one.key === record.key)) return;
  const conversation = await changeTurn(before, record.key, newsOf(record));
  const turn = everyTurn(conversation).find((one) => one.key === record.key);
  if (!turn) return;
  void composer.showList();
  if (conversation.id !== current.id) return announce(`An answer came in another conversation: ${conversation.title}`);
  show(turn);
  if (turn === conversation.turns.at(-1)) bringIntoView();
  if (turn.state !== 'done') return announce(sentence(turn.problem));
  announce(`Answer received, ${price(turn.costMicros)}`);
  readOut(turn.answer);
}

function newsOf({ state, problem, costMicros, at, ledger, reply }) {
  const news = { state, problem, costMicros, at, ledger };
  const content = reply?.message?.content;
  if (state === 'done') news.answer = typeof content === 'string' ? content : `\`\`\`json\n${JSON.stringify(reply.raw, null, 2)}\n\`\`\``;
  return news;
}

/** Edits the latest version of a conversation, whoever wrote it; what is shown becomes that version, too. */
export async function change(conversation, alter) {
  const latest = await conversations.change(conversation.id, alter, conversation);
  if (latest.id === current.id) current = latest;
  return latest;
}

const changeTurn = (conversation, key, news) => change(conversation, (latest) => {
  Object.assign(everyTurn(latest).find((one) => one.key === key) ?? {}, news);
});

/** Another tab wrote something: shows it, and waits for the answers that it waits for. */
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

/** The person waits no more; the answer may still come. */
export async function stopWaiting() {
  const turn = waiting();
  if (!turn) return;
  await changeTurn(current, turn.key, { state: 'left' });
  show();
  announce('Stopped waiting. If the answer still comes, it appears here.');
  byId('chat-text').focus();
}

/** Shows the current conversation; `news` is the turn that has just changed. */
function show(news = null) {
  byId('chat-heading').textContent = current.title || 'New conversation';
  byId('chat-empty').hidden = everyTurn(current).length > 0;
  for (const id of ['keep', 'new-here']) byId(id).hidden = everyTurn(current).length === 0;
  byId('chat-stop').hidden = !waiting();
  draw(byId('turns'), current, {
    news: news?.key, edited: editing, elsewhere, offers, bringBack,
    priceOf: (turn) => price(modelOf(turn).price_micros),
  });
}

/** The latest question on top, with as much of its answer as there is room for. */
export function bringIntoView() {
  const latest = [...byId('turns').querySelectorAll(':scope > .mine')].at(-1);
  latest?.scrollIntoView({ block: 'start' });
}

const modelOf = (turn) => catalog.chat.find((model) => model.id === turn.model) ?? composer.picked();

/** What a person may do with a turn. */
function offers(turn) {
  const mend = () => {
    if (waiting()) return announce('Wait for the answer first, or stop waiting for it.');
    edit(turn.key);
    composer.write(turn.question);
  };
  const isLast = () => turn.key === current.turns.at(-1)?.key;
  const anew = async () => {
    if (waiting()) return announce('Wait for the answer first, or stop waiting for it.');
    const instead = isLast() ? turn.key : null;
    if (!instead && turn.state === 'refused') {
      await change(current, (latest) => { latest.turns = latest.turns.filter((one) => one.key !== turn.key); });
    }
    await buyTurn(current, turn.question, modelOf(turn), instead);
  };
  const send = async (how, text) => {
    const record = await purchases.one(turn.key);
    await changeTurn(current, turn.key, record ? { state: WAITING } : UNTRACEABLE);
    show();
    if (!record) return;
    announce(text);
    await commit(record, how);
  };
  if (turn.state === 'done') return isLast() ? { edit: mend, again: anew } : { edit: mend };
  if (turn.state === WAITING || turn.state === 'left') return {};
  const same = () => send({}, 'Asking for the answer. It is not bought twice.');
  const atRisk = () => send({ atRisk: true }, `Sent again to ${turn.model}.`);
  if (turn.state !== 'unknown' || turn.problem.code === 'untraceable') return { edit: mend, again: anew };
  return canAskAgain({ ...turn, kind: 'chat' }) ? { edit: mend, again: anew, same } : { edit: mend, again: anew, atRisk };
}

/** An earlier message is in the composer, or none: says what sending it does to what came after. */
export function edit(key) {
  editing = key;
  const place = current.turns.findIndex((turn) => turn.key === key);
  const after = place < 0 ? 0 : current.turns.length - place - 1;
  byId('editing').hidden = !key;
  byId('editing-text').textContent = `You are editing an earlier message. Once it is sent, the old one${
    after ? ` and the ${after === 1 ? 'message' : `${after} messages`} after it` : ''} will be set aside, where you can bring it back.`;
  show();
}

/** A turn that waits for a purchase that this browser no longer knows, or that has ended meanwhile. */
async function reconcile(turn) {
  if (turn.state !== WAITING && turn.state !== 'left') return;
  const record = await purchases.one(turn.key);
  if (!record) Object.assign(turn, UNTRACEABLE);
  else if (!['draft', 'intent', 'sent'].includes(record.state)) Object.assign(turn, newsOf(record));
}
