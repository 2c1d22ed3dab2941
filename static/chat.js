/** The chat view: conversations, the composer with its price, and what became of each message. */

import { offerChatModels, price } from './catalog.js';
import { announce, button, byId, copy, element, readOut } from './dom.js';
import { render } from './markdown.js';
import { problemCard, sentence } from './problems.js';
import { canAskAgain, commit, draft, follow, whenSettled } from './purchase.js';
import { choice, conversations, purchases, whenChangedElsewhere } from './store.js';

/**
 * A turn: `{key, question, answer, model, tollMicros, at, ledger, state, problem}`, its state that of its purchase
 * (`sent` while waiting) or `left`: sent, and the person stopped waiting. A conversation is only ever changed by
 * `change`, turns are found by their key: another tab may be writing to the same one.
 */
const WAITING = 'sent';

/** Purchases that another tab works on. */
const elsewhere = new Set();

let catalog, current;

/** Fills the view in and takes the last conversation up. */
export async function start(prices) {
  catalog = prices;
  whenSettled('chat', settle, (record) => {
    elsewhere.add(record.key);
    show();
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
    // While an input method composes, Enter ends the word, not the message (229: Safari says it so).
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    if (!event.repeat) void send();
  });
  byId('chat-text').addEventListener('input', () => fault(''));
  byId('chat-stop').addEventListener('click', stopWaiting);
  byId('new-conversation').addEventListener('click', () => {
    open(fresh());
    byId('chat-text').focus();
  });
  byId('conversations-fold').open = matchMedia('(min-width: 60rem)').matches;
  showPrice();
  const [latest] = await sorted();
  await open(latest ?? fresh());
}

const picked = () => catalog.chat.find((model) => model.id === byId('chat-model').value);
const fresh = () => ({ id: `${Date.now()}-${Math.random()}`, title: '', at: Date.now(), turns: [] });
const waiting = () => current.turns.find((turn) => turn.state === WAITING);

function showPrice() {
  const model = picked();
  byId('chat-send').textContent = `Send · ${price(model.toll_micros)}`;
  byId('chat-model-hint').textContent = model.best_for ? `Best for: ${model.best_for}.` : '';
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
  const payload = { model: picked().id, messages: [...said(current), { role: 'user', content: text }] };
  const size = new TextEncoder().encode(JSON.stringify(payload)).length;
  if (size > catalog.limits.chat_body_bytes) {
    return refuse('With all that was said before, this is more than one request may carry. Start a new conversation, or shorten it.');
  }
  byId('chat-text').value = '';
  fault('');
  await buyTurn(current, text, payload, picked());
}

/** What the model is told of the conversation: the turns that came to an answer. */
function said(conversation) {
  return conversation.turns.filter((turn) => turn.state === 'done').flatMap((turn) => [
    { role: 'user', content: turn.question },
    { role: 'assistant', content: turn.answer },
  ]);
}

async function buyTurn(conversation, question, payload, model) {
  const record = draft({
    kind: 'chat', path: '/api/v1/chat', payload, tollMicros: model.toll_micros, about: { conversation: conversation.id },
  });
  const turn = {
    key: record.key, question, answer: null, model: model.id, tollMicros: model.toll_micros,
    at: record.at, ledger: null, state: WAITING, problem: null,
  };
  await change(conversation, (latest) => {
    if (!latest.turns.some((one) => one.key === turn.key)) latest.turns.push(turn);
    latest.title ||= [...question.trim().split('\n', 1)[0]].slice(0, 60).join('');
    latest.at = record.at;
  });
  show();
  bringIntoView();
  announce(`Sent to ${model.id}. Waiting for the answer.`);
  void showList();
  await commit(record);
}

/** Takes in what a purchase brought, whenever that is: also after a reload, or after waiting was stopped. */
async function settle(record) {
  elsewhere.delete(record.key);
  const before = await conversations.one(record.about.conversation);
  if (!before?.turns.some((one) => one.key === record.key)) return;
  const { state, reply, problem, tollMicros, at, ledger } = record;
  const content = reply?.message?.content;
  const news = { state, problem, tollMicros, at, ledger };
  if (state === 'done') news.answer = typeof content === 'string' ? content : `\`\`\`json\n${JSON.stringify(reply, null, 2)}\n\`\`\``;
  const conversation = await changeTurn(before, record.key, news);
  const turn = conversation.turns.find((one) => one.key === record.key);
  if (!turn) return;
  if (conversation.id !== current.id) return announce(`An answer came in another conversation: ${conversation.title}`);
  show(turn);
  if (turn === conversation.turns.at(-1)) bringIntoView();
  if (state !== 'done') return announce(sentence(problem));
  announce(`Answer received, ${price(turn.tollMicros)}`);
  readOut(turn.answer);
}

/** Edits the latest version of a conversation, whoever wrote it; what is shown becomes that version, too. */
async function change(conversation, edit) {
  const latest = await conversations.change(conversation.id, edit, conversation);
  if (latest.id === current.id) current = latest;
  return latest;
}

const changeTurn = (conversation, key, news) => change(conversation, (latest) => {
  Object.assign(latest.turns.find((one) => one.key === key) ?? {}, news);
});

/** Another tab wrote something: shows it, and waits for the answers that it waits for. */
async function refresh(shelf) {
  if (shelf === 'jobs') return;
  const before = JSON.stringify(current);
  const latest = await conversations.one(current.id);
  if (shelf === 'conversations') void showList();
  if (!latest || latest.id !== current.id) return;
  for (const { key, state } of latest.turns) if (state === WAITING) void follow(key);
  if (JSON.stringify(latest) === before) return;
  current = latest;
  show();
}

async function stopWaiting() {
  const turn = waiting();
  if (!turn) return;
  await changeTurn(current, turn.key, { state: 'left' });
  show();
  announce('Stopped waiting. If the answer still comes, it appears here.');
  byId('chat-text').focus();
}

/** Shows the current conversation; `news` is the turn that has just changed. */
function show(news = null) {
  byId('chat-empty').hidden = current.turns.length > 0;
  byId('turns').replaceChildren(...current.turns.flatMap((turn) => [question(turn), answer(turn, turn === news)]));
  byId('chat-stop').hidden = !waiting();
}

/** The latest question on top, with as much of its answer as there is room for. */
function bringIntoView() {
  const latest = byId('turns').children[byId('turns').children.length - 2];
  latest?.scrollIntoView({ block: 'start' });
}

function question(turn) {
  return element('li', { class: 'mine' }, element('article', { 'aria-label': 'You' },
    element('p', { class: 'plain', text: turn.question })));
}

function answer(turn, fresh) {
  const body = element('article', { 'aria-label': turn.model, 'aria-busy': turn.state === WAITING && 'true' });
  const foot = (text, ...more) => element('footer', {}, element('span', { text }), ...more);
  if (turn.state === 'done') {
    body.append(element('div', { class: 'prose' }, render(turn.answer)),
      foot(`${turn.model} · ${price(turn.tollMicros)}`, button('Copy', () => copy(turn.answer))));
  } else if (turn.state === WAITING) {
    const text = elsewhere.has(turn.key) ? 'Another tab is waiting for this answer; it will appear here, too.' : `${turn.model} is answering`;
    body.append(element('p', { class: 'pending', text }));
  } else if (turn.state === 'left') {
    body.append(element('p', { class: 'pending still', text: 'You stopped waiting. If the answer still comes, it appears here.' }));
  } else {
    body.append(problemCard(turn.problem, offers(turn), { fresh, priceText: price(turn.tollMicros) }), foot(turn.model));
  }
  return element('li', { class: 'theirs' }, body);
}

function offers(turn) {
  const edit = async () => {
    await drop(turn);
    byId('chat-text').value = turn.question;
    byId('chat-text').focus();
  };
  const again = async () => {
    const model = catalog.chat.find((one) => one.id === turn.model) ?? picked();
    await drop(turn);
    const messages = [...said(current), { role: 'user', content: turn.question }];
    void buyTurn(current, turn.question, { model: model.id, messages }, model);
  };
  const send = async (how, text) => {
    const record = await purchases.one(turn.key);
    await changeTurn(current, turn.key, record ? { state: WAITING } : UNTRACEABLE);
    show();
    if (!record) return;
    announce(text);
    await commit(record, how);
  };
  const same = () => send({}, 'Asking for the answer. It is not bought twice.');
  const atRisk = () => send({ atRisk: true }, `Sent again to ${turn.model}.`);
  if (turn.state !== 'unknown' || turn.problem.code === 'untraceable') return { edit, again };
  return canAskAgain({ ...turn, kind: 'chat' }) ? { edit, again, same } : { edit, again, atRisk };
}

async function drop(turn) {
  await change(current, (latest) => {
    latest.turns = latest.turns.filter((one) => one.key !== turn.key);
  });
  show();
}

async function sorted() {
  return (await conversations.all()).sort((one, other) => other.at - one.at);
}

async function open(conversation) {
  current = conversation;
  for (const turn of current.turns) await reconcile(turn);
  show();
  await showList();
}

const UNTRACEABLE = { state: 'unknown', problem: { code: 'untraceable', charged: 'unknown' } };

/** A turn that waits for a purchase that this browser no longer knows will wait for ever. */
async function reconcile(turn) {
  if ((turn.state === WAITING || turn.state === 'left') && !(await purchases.one(turn.key))) {
    Object.assign(turn, UNTRACEABLE);
  }
}

async function showList() {
  byId('conversations').replaceChildren(...(await sorted()).map((conversation) => {
    const title = conversation.title || 'Untitled';
    const go = element('button', {
      type: 'button', class: 'link', text: title, 'aria-current': conversation.id === current.id && 'true', click: () => open(conversation),
    });
    let sure = false;
    const remove = element('button', {
      type: 'button', class: 'quiet small', 'aria-label': `Delete ${title}`, text: 'Delete',
      click: async () => {
        if (!sure) {
          sure = true;
          remove.textContent = 'Really?';
          remove.setAttribute('aria-label', `Really delete ${title}?`);
          return;
        }
        await conversations.delete(conversation.id);
        await open(conversation.id === current.id ? (await sorted())[0] ?? fresh() : current);
        byId('new-conversation').focus();
      },
      blur: () => {
        sure = false;
        remove.textContent = 'Delete';
        remove.setAttribute('aria-label', `Delete ${title}`);
      },
    });
    return element('li', {}, go, remove);
  }));
}
