/** The video view: a form that follows the picked model's rules, and a purchase that is confirmed first. studio.js lists the videos. */

import { byId, styled, unbroken, unrepeated } from '../core/dom.js';
import { price } from '../core/format.js';
import { canSpend, read, whenCanSpend } from '../core/site.js';
import { isNobody, jobs, purchases, whenChangedElsewhere } from '../core/store.js';
import { clearPrompt, fillIn, isComplete, payload, picked, startForm } from './form.js';
import { TEXT } from './strings.js';

let catalog;

/** Fills the view in and goes on watching the jobs that are kept. */
export async function start(prices) {
  catalog = prices;
  byId('video-body').hidden = false;
  startForm(catalog, { changed: askedNothing, usual: (model) => listed?.usualTime(model)?.time, complain });
  startConfirm();
  whenCanSpend(showOrderable);
  keepFiles();
  // The form is about to be filled in: then the order itself waits for no module.
  byId('video-form').addEventListener('focusin', () => void studio().then(({ ordering }) => ordering()).catch(() => {}), { once: true });
  whenChangedElsewhere(() => void followElsewhere());
  if (await hasAny()) await studio();
  document.addEventListener('visibilitychange', look);
}

/** Comes into sight. `#video?prompt=…&model=…` fills the form in, and never orders. */
export function shown() {
  void look();
  const [name, query] = location.hash.slice(1).split('?', 2);
  const { prompt, model } = Object.fromEntries(new URLSearchParams(query ?? ''));
  if (name !== 'video' || !prompt) return;
  history.replaceState(null, '', '#video');
  reuse({ prompt, model });
}

/** The list of videos and orders, once there is something to list; `listed` when it is loaded. */
let list = null, listed = null;

function studio() {
  list ??= Promise.all([import('./studio.js'), styled('video/studio.css')]).then(async ([module]) => {
    await module.start(catalog, { reuse, again, look });
    listed = module;
    return module;
  }).catch((error) => {
    list = null;
    throw error;
  });
  return list;
}

const hasAny = async () => (await jobs.some()) || (await purchases.all()).some(({ kind }) => kind === 'video');

/** Another tab was the first to order. */
async function followElsewhere() {
  if (!list && (await hasAny())) await (await studio()).follow();
}

/** Lists videos that were ordered elsewhere. A failure is ignored: the next look lists them. */
async function look() {
  if (document.hidden || byId('view-video').hidden) return;
  try {
    const rows = isNobody() ? [] : (await read('/bff/jobs')).jobs;
    if (rows.length || list) await (await studio()).takeListed(rows);
    else byId('jobs-empty').hidden = false;
  } catch { /* as said */ }
}

function startConfirm() {
  // The second and third of several fast clicks were not meant for the button that came under them.
  const meant = (act) => (event) => event.detail > 1 || act();
  byId('video-generate').addEventListener('click', meant(ask));
  byId('video-yes').addEventListener('click', meant(buy));
  const cancel = () => {
    askedNothing();
    byId('video-generate').focus();
  };
  byId('video-cancel').addEventListener('click', cancel);
  byId('video-confirm').addEventListener('keydown', (event) => event.key === 'Escape' && cancel());
  unrepeated(byId('video-yes'));
}

/** A file that is dropped beside the form would make the browser leave the page. */
function keepFiles() {
  for (const kind of ['dragover', 'drop']) {
    document.addEventListener(kind, (event) => {
      if (!byId('view-video').hidden && event.dataTransfer?.types.includes('Files')) event.preventDefault();
    });
  }
}

/** “Generate” looks disabled where the money left does not cover it; pressed, it says why. */
function showOrderable() {
  byId('video-generate').ariaDisabled = canSpend() < picked().price_micros ? 'true' : null;
}

const complain = (text) => { byId('video-fault').textContent = text; };

/** Loads what carries an order to its end; says so if that fails. */
async function ordering() {
  try {
    return await (await studio()).ordering();
  } catch {
    complain(TEXT.notLoaded);
    return null;
  }
}

/** First click: either what is missing, or what it will cost. */
async function ask() {
  if (!isComplete()) return;
  complain('');
  if (catalog.pictures && (await (await import('./pictures.js')).isGone(payload().image_url))) return;
  const orders = await ordering();
  if (!orders) return;
  if (canSpend() < picked().price_micros) {
    const { shortOf } = await import('../core/short.js');
    const why = await shortOf(picked().price_micros);
    if (why) return complain(why);
  }
  const wanted = payload();
  const cost = price(picked().price_micros);
  byId('video-confirm-text').replaceChildren(...unbroken(TEXT.sure(wanted.duration, wanted.model, cost), wanted.model));
  byId('video-confirm-duplicate').textContent = orders.duplicate(wanted);
  byId('video-yes').textContent = TEXT.spend(cost);
  byId('video-confirm').hidden = false;
  byId('video-actions').hidden = true;
  // Not on "Yes": a second Enter must not spend.
  byId('video-cancel').focus();
  byId('video-confirm').scrollIntoView({ block: 'nearest' });
}

function askedNothing() {
  complain('');
  showOrderable();
  byId('video-confirm').hidden = true;
  byId('video-actions').hidden = false;
}

/** Second click: buys. */
async function buy() {
  const wanted = payload();
  const { price_micros: amount } = picked();
  askedNothing();
  byId('video-generate').focus();
  const orders = await ordering();
  if (!orders) return;
  const ordered = orders.order(wanted, amount);
  clearPrompt();
  await ordered;
}

/** Leaves the selection of videos, which hides the form. */
async function showForm() {
  if (byId('jobs-select')?.ariaPressed !== 'true') return;
  byId('jobs-select').click();
  await new Promise((done) => { setTimeout(done); });
}

/** Puts an earlier order's wishes back into the form. */
async function reuse(wishes) {
  await showForm();
  fillIn(wishes);
  byId('video-prompt').focus();
}

/** The same, and on to the question whether to buy. */
async function again(wishes) {
  await showForm();
  fillIn(wishes);
  void ask();
}
