/** Makes elements without markup strings, and announces events to assistive technology. The page and the widgets use it. */

import { t } from './format.js';
/** How long a success is shown, in milliseconds. */
const DONE_FOR = 8_000;

/**
 * Makes an element. `text` sets its text, functions become listeners, `true` an empty attribute,
 * `false`, `null` and `undefined` nothing; anything else is an attribute. Children are nodes, texts or lists of them.
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'text') made.textContent = value;
    else if (typeof value === 'function') made.addEventListener(name, value);
    else made.setAttribute(name, value === true ? '' : String(value));
  }
  return fill(made, children.flat());
}

/** Appends one by one: an answer can have more parts than a call may have arguments. */
export function fill(parent, children) {
  for (const child of children) if (child !== null && child !== undefined) parent.append(child);
  return parent;
}

/** Draws an icon of the page's sprite (index.html); it is decoration, so the control needs a text of its own. */
export function icon(name) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  const use = document.createElementNS('http://www.w3.org/2000/svg', 'use');
  made.setAttribute('class', 'i');
  made.setAttribute('aria-hidden', 'true');
  use.setAttribute('href', `#i-${name}`);
  made.append(use);
  return made;
}

export function button(text, act, kind = 'quiet') {
  return element('button', { type: 'button', class: kind, text, click: act });
}

/** A button that does `act` at its second press only. In between it is named `sure`, which `say` tells assistive technology. */
export function twice(label, sure, act, { kind, say: tell = announce } = {}) {
  const made = button(label, (event) => {
    // The second click of a double click is no answer.
    if (event.detail > 1) return;
    if (made.textContent === sure) {
      act();
      return;
    }
    made.textContent = sure;
    tell(sure);
  }, kind);
  made.addEventListener('blur', () => { made.textContent = label; });
  unrepeated(made);
  return made;
}

/** A key that is held down repeats its click. Only a fresh press of this button may spend. */
export function unrepeated(made) {
  made.addEventListener('keydown', (event) => event.repeat && event.preventDefault());
  return made;
}

/** The parts of a text in which `name`, the id of a model, does not break at its hyphens. */
export function unbroken(text, name) {
  const at = text.indexOf(name);
  return at < 0 ? [text] : [text.slice(0, at), element('span', { class: 'model', text: name }), text.slice(at + name.length)];
}

export const byId = (id) => document.getElementById(id);

/** Says it in this place; saying the same again would be read out again. */
export function say(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

// Behind a modal dialog, the page's own status is not read out.
let tell = (text) => { (document.querySelector('dialog[open] [role=status]') ?? byId('status')).textContent = text; };

/** Announces by `how(text)` from now on, instead of the page's status region. */
export function announceBy(how) {
  tell = how;
}

/** Says it once to a screen reader: sent, waiting, received with its cost. */
export function announce(text) {
  tell(text);
}

export const clearReadOut = () => byId('read-aloud').replaceChildren();

/** Reads a finished answer out, once; only the latest is kept. */
export function readOut(text) {
  byId('read-aloud').replaceChildren(element('p', { text }));
}

/**
 * Shows a notice above the view until it is dismissed, and returns it. The same notice is shown once, and
 * one of a `group` takes the place of the one before.
 */
export function notice(text, action = null, group = null) {
  const all = byId('notices');
  for (const shown of [...all.children]) {
    if (shown.dataset.text === text && !group) return shown;
    if (group && shown.dataset.group === group) shown.remove();
  }
  const shown = element('div', { class: 'notice', role: 'alert', 'data-text': text, 'data-group': group },
    element('p', { text }), action, button(t('page.dismiss'), () => shown.remove()));
  all.append(shown);
  return shown;
}

/** Says above the view that something succeeded; it goes by itself. */
export function noticeDone(text) {
  const shown = notice(text, null, 'done');
  setTimeout(() => shown.remove(), DONE_FOR);
}

/** Opens a modal dialog, which is gone once it is closed; the focus goes back to where it was. A press beside it closes it. */
export function openSheet(title, properties, ...children) {
  // Further clicks while a part of the page loads open it again.
  for (const open of document.querySelectorAll('dialog[open]')) if (open.ariaLabel === title) open.close();
  const close = () => made.close();
  const made = element('dialog', {
    ...properties, 'aria-label': title, close: () => made.remove(), click: ({ target }) => target === made && close(),
  }, element('div', { class: 'sheet' },
    element('div', { class: 'sheet-head' }, element('h2', { text: title }), element('button', { type: 'button', class: 'link close', 'aria-label': t('page.close'), text: '✕', click: close })),
    children.flat(), element('p', { class: 'unseen', role: 'status' })));
  document.body.append(made);
  made.showModal();
  return made;
}

/** Copies text and says so, or why not. Resolves to whether it is copied. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    announce(t('page.copied'));
    return true;
  } catch {
    announce(t('page.notCopied'));
    return false;
  }
}

/** A button that copies `text()`, and shows a tick for a moment. */
export function copyButton(text, kind = 'link small') {
  let timer = null;
  const made = button(t('page.copy'), async () => {
    if (!(await copy(text()))) return;
    clearTimeout(timer);
    made.textContent = `${t('page.copied')} ✓`;
    timer = setTimeout(() => { made.textContent = t('page.copy'); }, 1500);
  }, kind);
  return made;
}

/** Returns a function that loads a part of the page, once. Its `part` is that promise; after a failure, the next call tries again. */
export function once(load) {
  const get = () => (get.part ??= load().catch((error) => {
    get.part = null;
    throw error;
  }));
  get.part = null;
  return get;
}

const sheets = new Map();

/** Adds one of the page's style sheets, once; resolves when it is loaded, or cannot be. */
export function styled(name) {
  if (!sheets.has(name)) {
    sheets.set(name, new Promise((done) => {
      document.head.append(element('link', { rel: 'stylesheet', href: new URL(`../${name}`, import.meta.url), load: done, error: done }));
    }));
  }
  return sheets.get(name);
}

/** Hands a text to the browser as a download. */
export function saveFile(text, name, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement('a');
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
  announce(t('page.saved', name));
}
