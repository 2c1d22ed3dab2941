/** The chat view: the composer with its price. talk.js sends the messages and takes their answers in. */

import { announce, button, byId, element, icon, notice, styled } from '../core/dom.js';
import { faultOf, price, t } from '../core/format.js';
import { canSpend, choice, conversations, mayAsk, whenCanSpend, whenChangedElsewhere } from '../core/site.js';

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
    byId('menu').hidePopover();
    await listing();
    byId('import-file').click();
  });
  whenChangedElsewhere((shelf) => shelf === 'conversations' && void showList());
  showPrice();
  showPreset();
  whenCanSpend(showSendable);
  showStart();
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
  if (namedId() && !named) notice(t('chat.notHere'), null, 'not here');
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
  const [module] = await Promise.all([import('./talk.js'), styled('chat/talk.css')]);
  if (!talk) module.start({ catalog, picked, write, showList, changed, pickModel, waysOut });
  talk = module;
}

async function listing() {
  await talking();
  const module = await import('./conversations.js');
  module.start({ current: talk.now, open, fresh: talk.fresh, change: talk.change, closeDrawer });
  return module;
}

/** Lists the conversations again, or only the one that has changed. */
async function showList(changedOne = null) {
  if (changedOne || await conversations.some()) return (await listing()).showList(changedOne);
  byId('conversations').replaceChildren(element('p', { class: 'hint', text: t('chat.noneYet') }));
}

async function open(conversation) {
  const taken = talk.take(conversation);
  showAddress(true);
  fault('');
  fill();
  await taken;
  talk.bringIntoView();
  (await listing()).showCurrent();
}

/** The conversation that the address names: `#chat?c=…`. */
const namedId = () => (location.hash.startsWith('#chat?') ? new URLSearchParams(location.hash.slice(6)).get('c') : null);

/** Opens the conversation that the address names, as after “Back”. */
async function openNamed() {
  const id = namedId();
  const wanted = await conversations.one(id);
  if (!wanted) return void notice(t('chat.notHere'), null, 'not here');
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
  byId('chat-cost').replaceChildren(...(charged || unknown ? [element('span', { class: 'unseen', text: t('chat.costOf') }), [charged && price(charged), unknown && t('chat.pending', price(unknown))].filter(Boolean).join(' + ')] : []));
  showSendable();
  showPreset();
  if (!talk.waiting() && byId('chat-fault').textContent === t('chat.waitFirst')) fault('');
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
    notice(t('chat.notLoaded'));
  }
}

async function editPreset() {
  try {
    const [{ editInstructions }] = await Promise.all([import('../shell/sheets.js'), talking()]);
    editInstructions(catalog, talk.system(), (text) => void talk.setSystem(text).then(() => byId('chat-text').focus()));
  } catch {
    notice(t('chat.notLoaded'));
  }
}

function showPreset() {
  const text = talk ? talk.system() : choice.get('new-system') ?? '';
  const name = (catalog.presets ?? []).find(({ system }) => system === text)?.name ?? (text ? t('chat.ownInstructions') : '');
  byId('chat-preset-name').textContent = name || t('chat.instructions');
  byId('chat-preset').ariaLabel = name ? t('chat.preset', name) : t('chat.instructions');
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
  byId('chat-send').textContent = t('chat.send', price(model.price_micros));
  byId('chat-model').textContent = byId('chat-model').value = model.id;
  byId('chat-model').ariaLabel = t('chat.model', model.id);
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
    announce(t('chat.attached', file.name));
  }
}

/** Suggestions for the first message. A click fills in the composer; only the user sends it. */
function showStart() {
  const isTest = catalog.mode === 'sandbox';
  if (isTest) [byId('chat-lead').textContent, byId('chat-about').textContent] = [t('chat.try.lead'), t('chat.try.about')];
  const ideas = ['1', '2', '3'].map((place) => t(`chat.idea.${place}`)).map((text) => element('button', { type: 'button', class: 'quiet', text, click: () => write(text) }));
  byId('ideas').replaceChildren(...(isTest ? cards() : ideas).map((one) => element('li', {}, one)));
  byId('ideas').classList.toggle('cards', isTest);
  byId('chat-empty').classList.add('ready');
}

/** Examples of the sandbox: an answer, a clip, and each fault. */
function cards() {
  const card = (tag, glyph, name, properties, ...facts) => element(tag, { class: 'quiet', ...properties }, icon(glyph),
    element('strong', { text: t(`chat.try.${name}`) }), element('span', { class: 'hint', text: t(`chat.try.${name}.about`, ...facts) }));
  const list = element('ul', { id: 'faults', class: 'faults', hidden: true }, catalog.sandbox_faults.map(({ word, does }) => element('li', {},
    element('button', { type: 'button', class: 'link', click: () => write(t('chat.try.faults.text') + word) }, element('code', { text: word }), element('span', { class: 'hint', text: faultOf(word, does) })))));
  const open = card('button', 'test', 'faults', { type: 'button', 'aria-expanded': 'false', 'aria-controls': 'faults', click: () => {
    list.hidden = !list.hidden;
    open.ariaExpanded = String(!list.hidden);
  } });
  byId('ideas').after(list);
  const clip = catalog.video.length && card('a', 'video', 'video', { href: '#video' }, price(Math.min(...catalog.video.map((one) => one.price_micros))));
  return [card('button', 'chat', 'ask', { type: 'button', click: () => write(t('chat.try.ask.text')) }), clip, open].filter(Boolean);
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

function fault(text, ...ways) {
  byId('chat-fault').replaceChildren(text, ...ways);
}

/** The ways out if the budget does not cover `than`: `cheaper` buys from a model that it covers, `more` asks an admin. */
function waysOut(than, buy) {
  const covered = catalog.chat.filter(({ price_micros: micros }) => micros < than.price_micros && micros <= canSpend());
  const other = covered.find(({ id }) => id === catalog.defaults.chat_model) ?? covered.find(({ best_for: use }) => use?.includes('chat')) ?? covered[0];
  const more = async () => {
    try {
      (await import('../usage/usage.js')).askForMore();
    } catch {
      notice(t('chat.notLoaded'));
    }
  };
  return {
    ...(other && { cheaper: Object.assign(() => buy(other), { label: t('chat.cheaper', other.id, price(other.price_micros)) }) }),
    ...(mayAsk() && { more: Object.assign(more, { label: t('usage.ask') }) }),
  };
}

async function send() {
  const refuse = (why, ...ways) => {
    fault(why, ...ways.filter(Boolean));
    byId('chat-text').focus();
  };
  const text = byId('chat-text').value;
  // A second Enter, just after the one that sent.
  if (!text.trim()) return talk?.waiting() ? null : refuse(t('chat.writeFirst'));
  if (navigator.onLine === false) return refuse(t('chat.offline'));
  try {
    await takenUp;
    await talking();
  } catch {
    return refuse(t('chat.unreachable'));
  }
  if (canSpend() < model.price_micros) {
    const { shortOf } = await import('../core/funds.js');
    const why = await shortOf(model.price_micros);
    if (why) {
      const { cheaper, more } = waysOut(model, (other) => {
        use(other);
        void send();
      });
      return refuse(why, ...[cheaper, more].map((way) => way && button(way.label, way, 'quiet small')));
    }
  }
  // An earlier press sent it, or the person saw another text.
  if (byId('chat-text').value !== text) return;
  if (talk.waiting()) return refuse(t('chat.waitFirst'));
  if (talk.sizeOf(text) > catalog.limits.chat_body_bytes) {
    return refuse(t('problem.payload_too_large'));
  }
  const sent = talk.say(text);
  byId('chat-text').value = '';
  fault('');
  keepDraft();
  await sent;
}
