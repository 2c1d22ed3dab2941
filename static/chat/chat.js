/** The chat view: the composer with its price. What becomes of a message is in talk.js. */

import { byId, element } from '../core/dom.js';
import { offerChatModels, price } from '../core/format.js';
import { choice, conversations, whenChangedElsewhere } from '../core/store.js';

let catalog;
/** talk.js, once it is needed. */
let talk = null;
/** Resolves when the last conversation was taken up. */
let takenUp;
let isTakenUp = false;
/** Whether a new conversation was asked for before that. */
let beginsAnew = false;

/** Fills the view in and takes the last conversation up. */
export async function start(prices) {
  catalog = prices;
  offerChatModels(byId('chat-model'), catalog.chat);
  const wanted = choice.get('chat-model');
  if (catalog.chat.some((model) => model.id === wanted)) byId('chat-model').value = wanted;
  byId('chat-model').addEventListener('change', () => {
    choice.set('chat-model', picked().id);
    showPrice();
  });
  startComposer();
  // Where there is room for the drawer beside the messages, it is no drawer.
  matchMedia('(min-width: 60rem)').addEventListener('change', closeDrawer);
  for (const id of ['new-conversation', 'new-here']) byId(id).addEventListener('click', begin);
  byId('import').addEventListener('click', async () => {
    await listing();
    byId('import-file').click();
  });
  whenChangedElsewhere((shelf) => shelf === 'conversations' && void showList());
  showPrice();
  showIdeas();
  takenUp = takeUp();
  await takenUp;
  prefill();
  addEventListener('hashchange', prefill);
}

function startComposer() {
  byId('composer').addEventListener('submit', (event) => {
    event.preventDefault();
    void send();
  });
  byId('chat-text').addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && talk?.isEditing()) return leaveEditing();
    // While an input method composes, Enter ends the word, not the message (229: Safari says it so).
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    if (!event.repeat) void send();
  });
  byId('chat-text').addEventListener('input', () => {
    fault('');
    keepDraft();
  });
  byId('chat-text').addEventListener('focus', () => void talking().catch(() => null));
  addEventListener('online', () => fault(''));
  byId('chat-stop').addEventListener('click', () => talk?.stopWaiting());
  byId('editing-cancel').addEventListener('click', leaveEditing);
}

/** Called when the view comes into sight. */
export const shown = () => talk?.bringIntoView();

async function takeUp() {
  const [latest] = (await conversations.all()).sort((one, other) => other.at - one.at);
  try {
    if (latest) {
      await talking();
      if (!beginsAnew) await talk.take(latest);
      // Asked for meanwhile.
      if (beginsAnew) await talk.take(talk.fresh());
    }
  } finally {
    isTakenUp = true;
    // What was typed meanwhile is not lost.
    fill(byId('chat-text').value);
  }
  await showList();
}

// What only conversations need is loaded when there is one.
async function talking() {
  const module = await import('./talk.js');
  if (!talk) module.start({ catalog, picked, write, showList });
  talk = module;
}

async function listing() {
  await talking();
  const module = await import('./conversations.js');
  module.start({ current: talk.now, open, fresh: talk.fresh, change: talk.change, closeDrawer });
  return module;
}

async function showList() {
  if (await conversations.some()) return (await listing()).showList();
  byId('conversations').replaceChildren(element('p', { class: 'hint', text: 'What you ask is kept in this browser and listed here.' }));
}

/** Takes a conversation up, with what was written for it and not sent. */
async function open(conversation) {
  const taken = talk.take(conversation);
  fault('');
  fill();
  await taken;
  talk.bringIntoView();
  await showList();
}

async function begin() {
  closeDrawer();
  if (!isTakenUp) beginsAnew = true;
  else if (talk) await open(talk.fresh());
  byId('chat-text').focus();
}

function closeDrawer() {
  if (byId('drawer').matches(':popover-open')) byId('drawer').hidePopover();
}

const picked = () => catalog.chat.find((model) => model.id === byId('chat-model').value);

function showPrice() {
  const model = picked();
  byId('chat-send').textContent = `Send · ${price(model.price_micros)}`;
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

/** What is not sent yet, by conversation. */
const drafts = new Map(keptDrafts());

function keptDrafts() {
  try {
    return Object.entries(JSON.parse(choice.get('drafts') ?? '{}'));
  } catch {
    return [];
  }
}

const draftName = () => (talk?.now().turns.length ? talk.now().id : 'new');

/** What is not sent yet outlives a reload. */
function keepDraft() {
  // Before that, nobody knows where it belongs.
  if (!isTakenUp) return;
  drafts.delete(draftName());
  if (byId('chat-text').value && !talk?.isEditing()) drafts.set(draftName(), byId('chat-text').value);
  choice.set('drafts', JSON.stringify(Object.fromEntries([...drafts].slice(-20))));
}

/** Puts back what was written and not sent, and below it what is `typed` already. */
function fill(typed = '') {
  const text = [drafts.get(draftName()), typed].filter(Boolean).join('\n');
  // Setting the same again would move the caret.
  if (byId('chat-text').value !== text) byId('chat-text').value = text;
  keepDraft();
}

function leaveEditing() {
  talk.edit(null);
  byId('chat-text').value = drafts.get(draftName()) ?? '';
  byId('chat-text').focus();
}

function fault(text) {
  byId('chat-fault').textContent = text;
}

async function send() {
  const refuse = (why) => {
    fault(why);
    byId('chat-text').focus();
  };
  const text = byId('chat-text').value;
  if (!text.trim()) return refuse('Write a message first.');
  if (navigator.onLine === false) return refuse('You are offline, so it was not sent. It stays here until you are back.');
  try {
    await takenUp;
    await talking();
  } catch {
    return refuse('The service cannot be reached, so it was not sent. If it stays so, reload the page: what you wrote is kept.');
  }
  // It was sent by an earlier press, or is no more what the person saw.
  if (byId('chat-text').value !== text) return;
  if (talk.waiting()) return refuse('Wait for the answer first, or stop waiting for it.');
  if (talk.sizeOf(text) > catalog.limits.chat_body_bytes) {
    return refuse('With all that was said before, this is more than one request may carry. Start a new conversation, or shorten it.');
  }
  const sent = talk.say(text);
  byId('chat-text').value = '';
  fault('');
  keepDraft();
  await sent;
}
