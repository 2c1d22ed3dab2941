/** The chat view: the composer with its price, and what becomes of each message that is sent. */

import { offerChatModels, price } from './catalog.js';
import { announce, byId, element, notice, readOut } from './dom.js';
import { sentence } from './problems.js';
import { canAskAgain, commit, draft, follow, whenSettled } from './purchase.js';
import { choice, conversations, purchases, whenChangedElsewhere } from './store.js';

/**
 * A turn: `{key, question, answer, model, tollMicros, at, ledger, state, problem}`, its state that of its purchase
 * (`sent` while waiting) or `left`: sent, and the person stopped waiting. A conversation is `{id, title, at, turns,
 * aside}`; `aside` holds what was replaced by editing: `{id, after: key of the turn before it, at, turns}`.
 * A conversation is only ever changed by `change`, turns are found by their key: another tab may be writing to it.
 */
const WAITING = 'sent';
const UNTRACEABLE = { state: 'unknown', problem: { code: 'untraceable', charged: 'unknown' } };

/** Purchases that another tab works on. */
const elsewhere = new Set();

let catalog, current, editing = null;

/** Fills the view in and takes the last conversation up. */
export async function start(prices) {
  catalog = prices;
  whenSettled('chat', settle, (record) => {
    elsewhere.add(record.key);
    void show();
  });
  whenChangedElsewhere(refresh);
  offerChatModels(byId('chat-model'), catalog.chat);
  const wanted = choice.get('chat-model');
  if (catalog.chat.some((model) => model.id === wanted)) byId('chat-model').value = wanted;
  byId('chat-model').addEventListener('change', () => {
    choice.set('chat-model', picked().id);
    showPrice();
  });
  byId('composer').addEventListener('submit', (event) => {
    event.preventDefault();
    void send();
  });
  byId('chat-text').addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && editing) return leaveEditing();
    // While an input method composes, Enter ends the word, not the message (229: Safari says it so).
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    if (!event.repeat) void send();
  });
  byId('chat-text').addEventListener('input', () => {
    fault('');
    keepDraft();
  });
  byId('chat-text').addEventListener('focus', () => void drawing().catch(() => null));
  addEventListener('online', () => fault(''));
  byId('chat-stop').addEventListener('click', stopWaiting);
  byId('editing-cancel').addEventListener('click', leaveEditing);
  // Where there is room for the drawer beside the messages, it is no drawer.
  matchMedia('(min-width: 60rem)').addEventListener('change', closeDrawer);
  for (const id of ['new-conversation', 'new-here']) byId(id).addEventListener('click', begin);
  byId('import').addEventListener('click', async () => {
    await listing();
    byId('import-file').click();
  });
  showPrice();
  showIdeas();
  const latest = (await conversations.all()).reduce((last, one) => (last && last.at > one.at ? last : one), null);
  await open(latest ?? fresh());
  prefill();
  addEventListener('hashchange', prefill);
}

// What only conversations need is loaded when there is one.
const drawing = () => import('./turns.js');
const listing = async () => {
  const module = await import('./conversations.js');
  module.start({ current: () => current, open, fresh, change, closeDrawer });
  return module;
};

const picked = () => catalog.chat.find((model) => model.id === byId('chat-model').value);
const fresh = () => ({ id: `${Date.now()}-${Math.random()}`, title: '', at: Date.now(), turns: [], aside: [] });
const waiting = () => current.turns.find((turn) => turn.state === WAITING);
const everyTurn = ({ turns, aside = [] }) => [...turns, ...aside.flatMap((branch) => branch.turns)];

function closeDrawer() {
  if (byId('drawer').matches(':popover-open')) byId('drawer').hidePopover();
}

async function begin() {
  closeDrawer();
  await open(fresh());
  byId('chat-text').focus();
}

function showPrice() {
  const model = picked();
  byId('chat-send').textContent = `Send · ${price(model.toll_micros)}`;
  byId('chat-model-hint').textContent = model.best_for ? `Best for: ${model.best_for}.` : '';
}

/** Something to begin with; it is written into the composer, and sent by the person alone. */
function showIdeas() {
  const ideas = catalog.mode === 'sandbox'
    ? ['Show me the price list as a table', 'Write some code to copy', 'Tell me a long story']
    : ['Explain something to me in three steps', 'Improve the wording of a text', 'Compare two options in a table'];
  byId('ideas').replaceChildren(...ideas.map((text) => element('li', {}, element('button', {
    type: 'button', class: 'quiet', text, click: () => write(text),
  }))));
}

function write(text) {
  byId('chat-text').value = text;
  fault('');
  keepDraft();
  byId('chat-text').focus();
}

/** `#chat?prompt=…` writes a message and never sends it. */
function prefill() {
  const [name, query] = location.hash.slice(1).split('?', 2);
  const text = new URLSearchParams(query ?? '').get('prompt');
  if (name !== 'chat' || !text) return;
  history.replaceState(null, '', '#chat');
  write(text);
}

const drafts = new Map(keptDrafts());

function keptDrafts() {
  try {
    return Object.entries(JSON.parse(choice.get('drafts') ?? '{}'));
  } catch {
    return [];
  }
}

/** What is written and not yet sent outlives a reload, for each conversation of its own. */
function keepDraft() {
  const name = current.turns.length ? current.id : 'new';
  drafts.delete(name);
  if (byId('chat-text').value && !editing) drafts.set(name, byId('chat-text').value);
  choice.set('drafts', JSON.stringify(Object.fromEntries([...drafts].slice(-20))));
}

function fault(text) {
  byId('chat-fault').textContent = text;
}

async function send() {
  const text = byId('chat-text').value;
  const refuse = (why) => {
    fault(why);
    byId('chat-text').focus();
  };
  if (!text.trim()) return refuse('Write a message first.');
  if (waiting()) return refuse('Wait for the answer first, or stop waiting for it.');
  if (navigator.onLine === false) return refuse('You are offline, so it was not sent. It stays here until you are back.');
  const size = new TextEncoder().encode(JSON.stringify(payload(text, picked(), editing))).length;
  if (size > catalog.limits.chat_body_bytes) {
    return refuse('With all that was said before, this is more than one request may carry. Start a new conversation, or shorten it.');
  }
  const instead = editing;
  byId('chat-text').value = '';
  fault('');
  showEditing(null);
  keepDraft();
  const why = await buyTurn(current, text, picked(), instead);
  if (!why) return;
  if (!byId('chat-text').value) write(text);
  refuse(why);
}

/** What the model is told: the turns before `until` that came to an answer, and the question. */
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

/** Buys an answer; `instead` names the turn that this one takes the place of. Returns why it did not, if so. */
async function buyTurn(conversation, question, model, instead = null) {
  try {
    await drawing();
  } catch {
    return 'The service cannot be reached, so it was not sent. If it stays so, reload the page: what you wrote is kept.';
  }
  const record = draft({
    kind: 'chat', path: '/api/v1/chat', payload: payload(question, model, instead),
    tollMicros: model.toll_micros, about: { conversation: conversation.id },
  });
  const turn = {
    key: record.key, question, answer: null, model: model.id, tollMicros: model.toll_micros,
    at: record.at, ledger: null, state: WAITING, problem: null,
  };
  await change(conversation, (latest) => {
    if (latest.turns.some((one) => one.key === turn.key)) return;
    setAside(latest, latest.turns.findIndex((one) => one.key === instead));
    latest.turns.push(turn);
    latest.title ||= [...question.trim().split('\n', 1)[0]].slice(0, 60).join('');
    latest.at = record.at;
  });
  await show();
  bringIntoView();
  announce(`Sent to ${model.id}. Waiting for the answer.`);
  void showList();
  await commit(record);
  return null;
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
  await show();
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
  void showList();
  if (conversation.id !== current.id) return announce(`An answer came in another conversation: ${conversation.title}`);
  await show(turn);
  if (turn === conversation.turns.at(-1)) bringIntoView();
  if (turn.state !== 'done') return announce(sentence(turn.problem));
  announce(`Answer received, ${price(turn.tollMicros)}`);
  readOut(turn.answer);
}

function newsOf({ state, problem, tollMicros, at, ledger, reply }) {
  const news = { state, problem, tollMicros, at, ledger };
  const content = reply?.message?.content;
  if (state === 'done') news.answer = typeof content === 'string' ? content : `\`\`\`json\n${JSON.stringify(reply, null, 2)}\n\`\`\``;
  return news;
}

/** Edits the latest version of a conversation, whoever wrote it; what is shown becomes that version, too. */
async function change(conversation, edit) {
  const latest = await conversations.change(conversation.id, edit, conversation);
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
  if (shelf === 'conversations') void showList();
  if (!latest || latest.id !== current.id) return;
  for (const { key, state } of latest.turns) if (state === WAITING) void follow(key);
  if (JSON.stringify(latest) === before) return;
  current = latest;
  await show();
}

async function stopWaiting() {
  const turn = waiting();
  if (!turn) return;
  await changeTurn(current, turn.key, { state: 'left' });
  await show();
  announce('Stopped waiting. If the answer still comes, it appears here.');
  byId('chat-text').focus();
}

/** Shows the current conversation; `news` is the turn that has just changed. */
async function show(news = null) {
  byId('chat-heading').textContent = current.title || 'New conversation';
  byId('chat-empty').hidden = everyTurn(current).length > 0;
  for (const id of ['keep', 'new-here']) byId(id).hidden = everyTurn(current).length === 0;
  byId('chat-stop').hidden = !waiting();
  if (!everyTurn(current).length) return byId('turns').replaceChildren();
  const { draw } = await drawing();
  draw(byId('turns'), current, {
    news: news?.key, edited: editing, elsewhere, offers, bringBack,
    priceOf: (turn) => price(modelOf(turn).toll_micros),
  });
}

/** Called when the view comes into sight. */
export const shown = () => bringIntoView();

/** The latest question on top, with as much of its answer as there is room for. */
function bringIntoView() {
  const latest = [...byId('turns').querySelectorAll(':scope > .mine')].at(-1);
  latest?.scrollIntoView({ block: 'start' });
}

const modelOf = (turn) => catalog.chat.find((model) => model.id === turn.model) ?? picked();

/** What a person may do with a turn. */
function offers(turn) {
  const edit = () => {
    if (waiting()) return announce('Wait for the answer first, or stop waiting for it.');
    showEditing(turn.key);
    write(turn.question);
  };
  const isLast = () => turn.key === current.turns.at(-1)?.key;
  const anew = async () => {
    if (waiting()) return announce('Wait for the answer first, or stop waiting for it.');
    const instead = isLast() ? turn.key : null;
    if (!instead && turn.state === 'refused') {
      await change(current, (latest) => { latest.turns = latest.turns.filter((one) => one.key !== turn.key); });
    }
    const why = await buyTurn(current, turn.question, modelOf(turn), instead);
    if (why) notice(why);
  };
  const send = async (how, text) => {
    const record = await purchases.one(turn.key);
    await changeTurn(current, turn.key, record ? { state: WAITING } : UNTRACEABLE);
    await show();
    if (!record) return;
    announce(text);
    await commit(record, how);
  };
  if (turn.state === 'done') return isLast() ? { edit, again: anew } : { edit };
  if (turn.state === WAITING || turn.state === 'left') return {};
  const same = () => send({}, 'Asking for the answer. It is not bought twice.');
  const atRisk = () => send({ atRisk: true }, `Sent again to ${turn.model}.`);
  if (turn.state !== 'unknown' || turn.problem.code === 'untraceable') return { edit, again: anew };
  return canAskAgain({ ...turn, kind: 'chat' }) ? { edit, again: anew, same } : { edit, again: anew, atRisk };
}

/** An earlier message is in the composer: says what sending it does to what came after. */
function showEditing(key) {
  editing = key;
  const place = current.turns.findIndex((turn) => turn.key === key);
  const after = place < 0 ? 0 : current.turns.length - place - 1;
  byId('editing').hidden = !key;
  byId('editing-text').textContent = `You are editing an earlier message. Once it is sent, the old one${
    after ? ` and the ${after === 1 ? 'message' : `${after} messages`} after it` : ''} will be set aside, where you can bring it back.`;
  void show();
}

function leaveEditing() {
  showEditing(null);
  byId('chat-text').value = drafts.get(current.id) ?? '';
  byId('chat-text').focus();
}

/** Takes a conversation up, with what was written for it and not sent. */
async function open(conversation) {
  current = conversation;
  editing = null;
  byId('editing').hidden = true;
  fault('');
  byId('chat-text').value = drafts.get(current.turns.length ? current.id : 'new') ?? '';
  for (const turn of everyTurn(current)) await reconcile(turn);
  await show();
  bringIntoView();
  await showList();
}

/** A turn that waits for a purchase that this browser no longer knows, or that has ended meanwhile. */
async function reconcile(turn) {
  if (turn.state !== WAITING && turn.state !== 'left') return;
  const record = await purchases.one(turn.key);
  if (!record) Object.assign(turn, UNTRACEABLE);
  else if (!['draft', 'intent', 'sent'].includes(record.state)) Object.assign(turn, newsOf(record));
}

async function showList() {
  if (await conversations.some()) return (await listing()).showList();
  byId('conversations').replaceChildren(element('p', { class: 'hint', text: 'What you ask is kept in this browser and listed here.' }));
}
