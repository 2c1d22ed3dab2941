/** The chat view: the composer with its price. talk.js sends the messages and takes their answers in. */

import { announce, byId, element, notice } from '../core/dom.js';
import { price } from '../core/format.js';
import { canSpend, whenCanSpend } from '../core/site.js';
import { choice, conversations, whenChangedElsewhere } from '../core/store.js';

export const TEXT = {
  // The composer
  send: (cost) => `Send · ${cost}`,
  model: (id) => `Model: ${id}`,
  preset: { none: 'Instructions', own: 'Custom instructions', button: (name) => `Instructions: ${name}` },
  notText: (name) => `“${name}” is not a text file.`,
  fileTooLarge: (name) => `“${name}” is too large for one message.`,
  attached: (name) => `Added ${name} to the message.`,
  latest: 'Latest ↓',
  cost: (charged, open) => `This conversation: ${charged}${open ? ` + ${open} pending` : ''}`,
  notHere: 'This conversation is not in this browser.',
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
  edit: 'Edit',
  again: (cost) => `Ask again · ${cost}`,
  showAll: 'Show all',
  showLess: 'Show less',
  answering: (model) => `${model} is answering`,
  elsewhere: 'Another tab is waiting for this answer. It will appear here, too.',
  stopped: 'You stopped waiting. If the answer still comes, it appears here.',
  versions: 'Versions',
  previousVersion: 'Previous version',
  nextVersion: 'Next version',
  versionOf: (place, count) => `Version ${place} of ${count}`,
  waited: (seconds, usual) => `${seconds} s${usual ? `, usually ${usual} s` : ''}`,
  tookAt: (time, seconds) => `${time}, answered in ${seconds} s`,
  otherModel: 'With another model',
  readAloud: 'Read aloud',
  noVoice: 'This device has no voice to read with.',

  // Announced to screen readers
  sent: (model) => `Sent to ${model}. Waiting for the answer.`,
  sentAgain: (model) => `Sent again to ${model}.`,
  checking: 'Checking for the answer. This is free.',
  received: (cost) => `Answer received, ${cost}`,
  receivedElsewhere: (title) => `An answer came in another conversation: ${title}`,
  stoppedWaiting: 'Stopped waiting. If the answer still comes, it appears here.',
  versionShown: (place, count) => `Version ${place} of ${count} is shown.`,

  // Conversations
  fresh: 'New conversation',
  noneYet: 'Your conversations are kept in this browser and listed here.',
  noMatches: 'No conversations match.',
  untitled: 'Untitled',
  older: (count) => `${count} older conversations are not listed. Search finds them.`,
  found: (some, all) => `${some} of ${all} conversations`,
  today: 'Today',
  yesterday: 'Yesterday',
  week: 'Last seven days',
  pinned: 'Pinned',
  pin: 'Pin',
  pinOf: (name) => `Pin ${name}`,
  pinnedNow: (name) => `${name} is pinned.`,
  unpinned: (name) => `${name} is no longer pinned.`,
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
  fileNames: { all: 'conversations', one: 'conversation' },
  exported: {
    untitled: 'Conversation', question: (time) => `You, ${time}`, answer: (model, cost) => `${model}, ${cost}`,
    noAnswer: '*No answer was received.*', copyOf: (title) => `${title} (imported)`,
  },
  notShared: 'This browser could not share it. Export it instead.',
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

let catalog, model;
let talk = null;
/** Resolves when the last conversation is open. */
let takenUp;
let isTakenUp = false;
/** Whether the person asked for a new conversation before that. */
let wantsFresh = false;

export async function start(prices) {
  catalog = prices;
  model = [choice.get('chat-model'), catalog.defaults.chat_model].map(modelNamed).find(Boolean) ?? cheapest();
  byId('chat-model').addEventListener('click', () => pickModel(use, model.id));
  byId('chat-preset').addEventListener('click', () => void editPreset());
  // The palette picks by value.
  byId('chat-model').addEventListener('change', () => use(modelNamed(byId('chat-model').value) ?? model));
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
  showPreset();
  whenCanSpend(showSendable);
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
  for (const kind of ['pointerdown', 'keydown', 'input']) byId('chat-text').addEventListener(kind, () => void talking().catch(() => null));
  for (const kind of ['drop', 'paste']) byId('composer').addEventListener(kind, takeFiles);
  byId('composer').addEventListener('dragover', (event) => event.dataTransfer?.types.includes('Files') && event.preventDefault());
  byId('chat-attach').addEventListener('click', () => byId('chat-file').click());
  byId('chat-file').addEventListener('change', () => void attach([...byId('chat-file').files]).then(() => { byId('chat-file').value = ''; }));
  byId('chat-latest').addEventListener('click', () => scrollTo({ top: document.documentElement.scrollHeight }));
  addEventListener('scroll', followScroll, { passive: true });
  const sizes = new ResizeObserver(followScroll);
  for (const id of ['turns', 'composer']) sizes.observe(byId(id));
  addEventListener('online', () => fault(''));
  byId('chat-stop').addEventListener('click', () => talk?.stopWaiting());
  byId('editing-cancel').addEventListener('click', leaveEditing);
}

export async function openById(id) {
  await takenUp;
  const kept = await conversations.one(id);
  if (!kept) return;
  await talking();
  await open(kept);
}

export function shown() {
  if (isTakenUp && namedId() && namedId() !== talk?.now().id) return void openNamed();
  showAddress();
  talk?.bringIntoView();
}

async function takeUp() {
  const kept = (await conversations.all()).sort((one, other) => other.at - one.at);
  const named = kept.find(({ id }) => id === namedId());
  if (namedId() && !named) notice(TEXT.notHere, null, 'not here');
  const first = namedId() ? named : kept[0];
  try {
    if (first) {
      await talking();
      if (!wantsFresh) await talk.take(first);
      // The person asked for it meanwhile.
      if (wantsFresh) await talk.take(talk.fresh());
    }
  } finally {
    isTakenUp = true;
    showAddress();
    // The person may have typed meanwhile.
    fill(byId('chat-text').value);
  }
  await showList();
}

async function talking() {
  const module = await import('./talk.js');
  if (!talk) module.start({ catalog, picked, write, showList, changed, pickModel });
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

async function open(conversation) {
  const taken = talk.take(conversation);
  showAddress(true);
  fault('');
  fill();
  await taken;
  talk.bringIntoView();
  // Many conversations take longer to read than the open one to show.
  void showList();
}

/** The conversation that the address names: `#chat?c=…`. */
const namedId = () => (location.hash.startsWith('#chat?') ? new URLSearchParams(location.hash.slice(6)).get('c') : null);

/** Opens the conversation that the address names, as after “Back”. */
async function openNamed() {
  const id = namedId();
  const wanted = await conversations.one(id);
  if (!wanted) return void notice(TEXT.notHere, null, 'not here');
  await talking();
  await open(wanted);
}

/** Names the shown conversation in the address. `isNew`: “Back” leads to the one before. */
function showAddress(isNew = false) {
  if (byId('view-chat').hidden || !isTakenUp || location.hash.includes('prompt=')) return;
  const hash = talk?.now().turns.length ? `#chat?c=${encodeURIComponent(talk.now().id)}` : '#chat';
  if (location.hash === hash || (!location.hash && hash === '#chat')) return;
  history[isNew ? 'pushState' : 'replaceState'](null, '', hash);
}

function changed() {
  showAddress();
  const { charged, open: unknown } = talk.cost();
  byId('chat-cost').textContent = charged || unknown ? TEXT.cost(price(charged), unknown && price(unknown)) : '';
  showSendable();
  showPreset();
  if (!talk.waiting() && byId('chat-fault').textContent === TEXT.waitFirst) fault('');
  followScroll();
}

let isFollowing = false;

/** Offers a way to the end while it is hidden. */
function followScroll() {
  if (isFollowing) return;
  isFollowing = true;
  requestAnimationFrame(() => {
    isFollowing = false;
    const last = byId('turns').lastElementChild;
    byId('chat-latest').hidden = !last || last.getBoundingClientRect().bottom <= byId('composer').getBoundingClientRect().top;
  });
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

const picked = () => model;
const modelNamed = (id) => catalog.chat.find((one) => one.id === id);
const cheapest = () => catalog.chat.reduce((best, one) => (one.price_micros < best.price_micros ? one : best));

/** Opens the sheet of models. Loaded when it is first needed. */
async function pickModel(choose, current = null) {
  try {
    const sheets = await import('../shell/sheets.js');
    sheets.pickModel(catalog, current, (chosen) => {
      sheets.noteUse(chosen.id);
      choose(chosen);
    });
  } catch {
    notice(TEXT.notLoaded);
  }
}

async function editPreset() {
  try {
    const [{ editInstructions }] = await Promise.all([import('../shell/sheets.js'), talking()]);
    editInstructions(catalog, talk.system(), (text) => void talk.setSystem(text).then(() => byId('chat-text').focus()));
  } catch {
    notice(TEXT.notLoaded);
  }
}

function showPreset() {
  const text = talk ? talk.system() : choice.get('new-system') ?? '';
  const name = (catalog.presets ?? []).find(({ system }) => system === text)?.name ?? (text ? TEXT.preset.own : '');
  byId('chat-preset-name').textContent = name || TEXT.preset.none;
  byId('chat-preset').ariaLabel = name ? TEXT.preset.button(name) : TEXT.preset.none;
  byId('chat-preset').classList.toggle('set', Boolean(text));
}

function use(chosen) {
  model = chosen;
  choice.set('chat-model', model.id);
  showPrice();
  byId('chat-text').focus();
}

/** “Send” looks disabled if it would refuse; pressed, it says why. */
function showSendable() {
  byId('chat-send').ariaDisabled = talk?.waiting() || canSpend() < model.price_micros ? 'true' : null;
}

function showPrice() {
  showSendable();
  byId('chat-send').textContent = TEXT.send(price(model.price_micros));
  byId('chat-model').textContent = byId('chat-model').value = model.id;
  byId('chat-model').ariaLabel = TEXT.model(model.id);
}

/** Takes dropped or pasted files; the browser would leave the page for a dropped one. */
function takeFiles(event) {
  const files = [...((event.dataTransfer ?? event.clipboardData)?.files ?? [])];
  if (!files.length) return;
  event.preventDefault();
  void attach(files);
}

async function attach(files) {
  const { inlined } = await import('./conversations.js');
  for (const file of files) {
    const { text, trouble } = await inlined(file, catalog.limits.chat_body_bytes);
    if (trouble) return fault(trouble);
    const before = byId('chat-text').value;
    write(`${before}${before && !before.endsWith('\n') ? '\n\n' : ''}${text}`);
    announce(TEXT.attached(file.name));
  }
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

const drafts = new Map(Object.entries(choice.object('drafts')));

const draftName = () => (talk?.now().turns.length ? talk.now().id : 'new');

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
  if (canSpend() < model.price_micros) {
    const { shortOf } = await import('../core/funds.js');
    const why = await shortOf(model.price_micros);
    if (why) return refuse(why);
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
