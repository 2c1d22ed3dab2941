/** The chat view: the composer with its price. talk.js sends the messages and takes their answers in. */

import { byId, element } from '../core/dom.js';
import { offerChatModels, price } from '../core/format.js';
import { choice, conversations, whenChangedElsewhere } from '../core/store.js';

/** What the chat says, in all of its modules. */
export const TEXT = {
  // The composer
  send: (cost) => `Send · ${cost}`,
  bestFor: (praise) => `Best for: ${praise}.`,
  ideas: {
    sandbox: ['Show me the price list as a table', 'Write some code to copy', 'Tell me a long story'],
    live: ['Explain something to me in three steps', 'Improve the wording of a text', 'Compare two options in a table'],
  },
  writeFirst: 'Write a message first.',
  waitFirst: 'Wait for the answer first, or stop waiting.',
  tooLong: 'This conversation is too long. Start a new one or shorten the message.',
  offline: 'You are offline, so it was not sent. Your message stays here until you are back.',
  unreachable: 'The service cannot be reached, so it was not sent. If this lasts, reload the page: your message is kept.',
  editing: (after) => `You are editing an earlier message. Sending it starts a new version${
    after ? ' without what came after it' : ''}. The old version stays.`,

  // Messages
  you: 'You',
  youEdited: 'You, being edited',
  copy: 'Copy',
  edit: 'Edit',
  again: (cost) => `Ask again · ${cost}`,
  showAll: 'Show all',
  showLess: 'Show less',
  answering: (model) => `${model} is answering`,
  elsewhere: 'Another tab is waiting for this answer. It will appear here, too.',
  stopped: 'You stopped waiting. If the answer still comes, it appears here.',
  mayStillCome: 'If the answer still comes, it appears here.',
  noAnswer: 'There is no answer to this.',
  aside: (count, time) => `${count === 1 ? '1 message' : `${count} messages`} of another version, ${time}`,
  bringBack: 'Show this version',

  // Announced to screen readers
  sent: (model) => `Sent to ${model}. Waiting for the answer.`,
  sentAgain: (model) => `Sent again to ${model}.`,
  checking: 'Checking for the answer. This is free.',
  received: (cost) => `Answer received, ${cost}`,
  receivedElsewhere: (title) => `An answer came in another conversation: ${title}`,
  stoppedWaiting: 'Stopped waiting. If the answer still comes, it appears here.',
  broughtBack: 'This version is shown now.',

  // Conversations
  fresh: 'New conversation',
  noneYet: 'Your conversations are kept in this browser and listed here.',
  noMatches: 'No conversations match.',
  untitled: 'Untitled',
  older: (count) => `${count} older ones are not listed. Search finds them.`,
  found: (some, all) => `${some} of ${all} conversations`,
  today: 'Today',
  yesterday: 'Yesterday',
  week: 'Last seven days',
  rename: 'Rename',
  renameOf: (name) => `Rename ${name}`,
  newName: (name) => `New name of ${name}`,
  renamed: (name) => `Renamed to ${name}`,
  save: 'Save',
  delete: 'Delete',
  deleteOf: (name) => `Delete ${name}`,
  deleted: (name, waits) => `Deleted “${name}”.${waits ? ' It was still waiting for an answer.' : ''}`,
  undo: 'Undo',
  restored: (name) => `${name} is back.`,
  notLoaded: 'This part of the page could not be loaded. Try again when the service can be reached.',

  // Export and import
  saved: (name) => `Saved as ${name}`,
  fileNames: { all: 'conversations', one: 'conversation' },
  exported: {
    untitled: 'Conversation', question: (time) => `You, ${time}`, answer: (model, cost) => `${model}, ${cost}`,
    noAnswer: '*This page has no answer.*', copyOf: (title) => `${title} (imported)`,
  },
  notImported: (file, why) => `“${file}” was not imported: ${why} Nothing was changed.`,
  imported: (file, parts) => `Imported “${file}”: ${parts}.`,
  importedParts: (added, there, copied) => [
    `${added} added`, there && `${there} already here`, copied && `${copied} added as copies, because they differ from what is here`,
  ],
  tooLarge: 'it is too large.',
  notJson: 'it is not JSON.',
  notOurs: 'it is not an export of this page.',
  otherVersion: (theirs, ours) => `it has version ${theirs}, and this page reads version ${ours}.`,
  expected: (where, wanted) => `expected ${where} to be ${wanted}.`,
  noRoom: 'This browser has no room for all of it. The conversations imported so far last until this tab is closed.',
};

let catalog;
/** talk.js, once it is needed. */
let talk = null;
/** Resolves when the last conversation is open. */
let takenUp;
let isTakenUp = false;
/** Whether the person asked for a new conversation before that. */
let wantsFresh = false;

/** Fills the view in and opens the last conversation. */
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
  // On a wide screen the list stands beside the messages.
  matchMedia('(min-width: 48rem)').addEventListener('change', closeDrawer);
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
    if (event.key === 'ArrowUp' && !event.target.value && !event.isComposing && talk?.editLast()) return event.preventDefault();
    // While an input method composes, Enter ends the word, not the message (Safari: key code 229).
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    if (!event.repeat) void send();
  });
  byId('chat-text').addEventListener('input', () => {
    fault('');
    keepDraft();
  });
  // Not when the page itself puts the focus there: a first visit loads no more than it shows.
  for (const sign of ['focus', 'click', 'input']) byId('chat-text').addEventListener(sign, () => void talking().catch(() => null), { once: true });
  addEventListener('online', () => fault(''));
  byId('chat-stop').addEventListener('click', () => talk?.stopWaiting());
  byId('editing-cancel').addEventListener('click', leaveEditing);
}

/** Opens the conversation with this id, if there is one. */
export async function openById(id) {
  await takenUp;
  const kept = await conversations.one(id);
  if (!kept) return;
  await talking();
  await open(kept);
}

/** Called when the view comes into sight. */
export const shown = () => talk?.bringIntoView();

async function takeUp() {
  const [latest] = (await conversations.all()).sort((one, other) => other.at - one.at);
  try {
    if (latest) {
      await talking();
      if (!wantsFresh) await talk.take(latest);
      // The person asked for it meanwhile.
      if (wantsFresh) await talk.take(talk.fresh());
    }
  } finally {
    isTakenUp = true;
    // The person may have typed meanwhile.
    fill(byId('chat-text').value);
  }
  await showList();
}

/** Loads what only a conversation needs. */
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
  byId('conversations').replaceChildren(element('p', { class: 'hint', text: TEXT.noneYet }));
}

/** Opens a conversation, with its unsent draft. */
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
  if (!isTakenUp) wantsFresh = true;
  else if (talk) await open(talk.fresh());
  byId('chat-text').focus();
}

function closeDrawer() {
  if (byId('drawer').matches(':popover-open')) byId('drawer').hidePopover();
}

const picked = () => catalog.chat.find((model) => model.id === byId('chat-model').value);

function showPrice() {
  const model = picked();
  byId('chat-send').textContent = TEXT.send(price(model.toll_micros));
  byId('chat-model-hint').textContent = model.best_for ? TEXT.bestFor(model.best_for) : '';
}

/** Ideas to begin with. A click writes one into the composer; only the person sends it. */
function showIdeas() {
  const ideas = TEXT.ideas[catalog.mode] ?? TEXT.ideas.live;
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

/** Unsent drafts, by conversation. */
const drafts = new Map(keptDrafts());

function keptDrafts() {
  try {
    return Object.entries(JSON.parse(choice.get('drafts') ?? '{}'));
  } catch {
    return [];
  }
}

const draftName = () => (talk?.now().turns.length ? talk.now().id : 'new');

/** Keeps the draft across reloads. */
function keepDraft() {
  // Before that, its conversation is not known.
  if (!isTakenUp) return;
  drafts.delete(draftName());
  if (byId('chat-text').value && !talk?.isEditing()) drafts.set(draftName(), byId('chat-text').value);
  choice.set('drafts', JSON.stringify(Object.fromEntries([...drafts].slice(-20))));
}

/** Puts the draft back, and what is `typed` already below it. */
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
  // A second Enter, just after the one that sent.
  if (!text.trim()) return talk?.waiting() ? null : refuse(TEXT.writeFirst);
  if (navigator.onLine === false) return refuse(TEXT.offline);
  try {
    await takenUp;
    await talking();
  } catch {
    return refuse(TEXT.unreachable);
  }
  // An earlier press sent it, or the person saw another text.
  if (byId('chat-text').value !== text) return;
  if (talk.waiting()) return refuse(TEXT.waitFirst);
  if (talk.sizeOf(text) > catalog.limits.chat_body_bytes) {
    return refuse(TEXT.tooLong);
  }
  const sent = talk.say(text);
  byId('chat-text').value = '';
  fault('');
  keepDraft();
  await sent;
}
