/** Starts the page: prices first, then the view that the address names, then whatever was left open. */

import { read } from './api.js';
import { price } from './catalog.js';
import { announce, button, byId, element, notice } from './dom.js';
import { sentence } from './problems.js';
import { open, serverRemembers, settleOpen, spent, whenChanged } from './purchase.js';
import { jobs } from './store.js';

/** Views are loaded when they are first needed; each exports `start(catalog)`. */
const VIEWS = {
  chat: { load: () => import('./chat.js'), title: 'Chat' },
  video: { load: () => import('./video.js'), title: 'Video' },
};
const service = document.title;

let catalog = null;

async function start() {
  byId('title').textContent = service;
  whenChanged(showSpent);
  void showSpent();
  try {
    catalog = await read('/bff/catalog');
  } catch (problem) {
    notice(`The price list could not be loaded. ${sentence(problem)}`, button('Reload the page', () => location.reload()));
    return;
  }
  serverRemembers(catalog.replay);
  showMode();
  addEventListener('hashchange', () => show(true));
  await show(false);
  whenChanged(soonShowLeft);
  void showLeft();
  await resume();
}

/** Shows the view that the address names; after a click the focus goes to its heading. */
async function show(moveFocus) {
  const name = location.hash.slice(1) in VIEWS ? location.hash.slice(1) : 'chat';
  for (const other of Object.keys(VIEWS)) {
    byId(`view-${other}`).hidden = other !== name;
    byId(`to-${other}`).toggleAttribute('aria-current', false);
  }
  byId(`to-${name}`).setAttribute('aria-current', 'page');
  document.title = `${VIEWS[name].title} · ${service}`;
  await begin(name);
  if (!moveFocus) return;
  scrollTo(0, 0);
  byId(`${name}-heading`).focus({ preventScroll: true });
}

function begin(name) {
  const view = VIEWS[name];
  view.started ??= view.load().then((module) => module.start(catalog)).catch((error) => {
    view.started = null;
    console.warn(error);
    notice('This part of the page could not be loaded; the service may have been updated.',
      button('Reload the page', () => location.reload()));
  });
  return view.started;
}

/** Takes up what an earlier page left: open purchases, and videos that are being made. */
async function resume() {
  const left = await open();
  const pending = (await jobs.all()).some((job) => job.open);
  if (left.some((record) => record.kind === 'chat')) await begin('chat');
  if (pending || left.some((record) => record.kind === 'video')) await begin('video');
  await settleOpen();
}

async function showSpent() {
  const sum = await spent();
  byId('spent').textContent = price(sum.spent);
  byId('unsettled').textContent = sum.unsettled ? ` + ${price(sum.unsettled)} open` : '';
}

/** What is left in the account and of the budgets, as far as this caller may see it. */
async function showLeft() {
  let me;
  try {
    me = await read('/bff/me');
  } catch {
    return; // What is shown stays; whatever is bought says itself what is wrong.
  }
  const { balance, budgets } = me;
  const cheapest = Math.min(...catalog.video.map((model) => model.toll_micros));
  const low = Math.min(balance?.amount_micros ?? Infinity, ...budgets.map((budget) => budget.left_micros)) < cheapest;
  const at = balance?.stale ? ` at ${new Date(balance.as_of).toLocaleTimeString()}` : '';
  const parts = [
    balance && `Balance ${price(balance.amount_micros)}${at}`,
    ...budgets.map(({ scope, period, left_micros }) =>
      `${scope === 'total' ? 'Everybody’s' : 'Your'} ${period}: ${price(left_micros)} left`),
    low && 'less than one video',
  ].filter(Boolean);
  const shown = byId('left');
  if (low && !shown.classList.contains('low')) announce('Less than one video is left');
  shown.classList.toggle('low', low);
  shown.textContent = parts.join(' · ');
  shown.hidden = parts.length === 0;
}

let soon = null;

/** A purchase changes its state several times in a row; asking once after that is enough. */
function soonShowLeft() {
  clearTimeout(soon);
  soon = setTimeout(showLeft, 300);
}

/** Sandbox or live, unmistakably; in the sandbox, the words that change how it answers. */
function showMode() {
  if (catalog.mode !== 'sandbox') {
    byId('mode').replaceChildren(element('p', { class: 'badge live', text: 'Live: real money' }));
    return;
  }
  const moods = element('dl', {}, ...catalog.sandbox_moods.flatMap(({ word, does }) =>
    [element('dt', {}, element('code', { text: word })), element('dd', { text: does })]));
  byId('mode').replaceChildren(element('details', { class: 'moods' },
    element('summary', { class: 'badge', text: 'Sandbox: play money' }),
    element('div', { class: 'card' },
      element('p', { text: 'Nothing here costs real money. These words in a message or prompt make the sandbox misbehave:' }),
      moods)));
}

await start();
