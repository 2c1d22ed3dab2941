/** Starts the page: prices and who is there first, then the view that the address names, then whatever was left open. */

import { announce, button, byId, element, hush, notice } from './core/dom.js';
import { nameOfBudget, price } from './core/format.js';
import { post, read, whenSignedOut } from './core/site.js';
import { choice, jobs, keepFor, purchases, whenChanged } from './core/store.js';

/**
 * The views, in the order of their links. A view is a row here, a `<section id="view-NAME">` in index.html with a
 * heading `NAME-heading`, and a module that is loaded when it is first needed, with the style sheet `look`, if there is
 * one: `start(catalog)` fills the view in, and `shown()`, if there is one, is called each time it comes into sight.
 * `offered(me)` hides what is not for this caller; `me` is what `GET /bff/me` says, null as long as nothing is known.
 */
const VIEWS = {
  chat: { title: 'Chat', load: () => import('./chat/chat.js') },
  video: { title: 'Video', load: () => import('./video/video.js'), look: 'video/video.css' },
  usage: { title: 'Usage', load: () => import('./usage/usage.js'), look: 'usage/usage.css' },
  admin: { title: 'Admin', load: () => import('./admin/admin.js'), look: 'usage/usage.css', offered: (who) => who?.caller.role === 'admin' },
};
const FIRST = 'chat';
const service = document.title;

const reload = () => button('Reload the page', () => location.reload());

let catalog = null, me = null, owner = null, signingIn = null;
/** Tells the other tabs who has signed in here; '' is nobody. */
const people = new BroadcastChannel('tollgate people');

async function start() {
  followTheme();
  followTop();
  followNetwork();
  // Another tab signed in or out: this one shows nobody what is another's.
  people.addEventListener('message', ({ data }) => {
    if (signingIn || (owner !== null && data !== owner)) location.reload();
  });
  byId('title').textContent = service;
  showLinks();
  const asked = read('/bff/me').catch((problem) => problem);
  try {
    catalog = await read('/bff/catalog');
  } catch (problem) {
    notice(`The price list could not be loaded. ${problem.message}.`, reload());
    return;
  }
  // Where nobody signs in, nothing waits to hear who it is, which can take as long as the account takes.
  const isOpen = catalog.access === 'open';
  if (!isOpen) await meet(await asked);
  // As long as nobody can say who it is, it is whom this browser saw last.
  owner = isOpen ? '' : me ? ownerOf(me) : choice.get('owner') ?? '';
  choice.set('owner', owner);
  keepFor(owner);
  whenSignedOut(() => void signIn('Your sign-in has ended. Sign in again; what you wrote is still here.'));
  showPerson();
  showMode();
  whenChanged((shelf) => shelf === 'purchases' && void showSpent());
  void showSpent();
  addEventListener('hashchange', () => show(true));
  await show(false);
  whenChanged((shelf) => shelf === 'purchases' && soonShowLeft());
  // What was left open is settled for whoever bought it, and for nobody else.
  if (isOpen) {
    const answer = await asked;
    if (!me) await meet(answer);
    if (me && ownerOf(me) !== owner) return location.reload();
  }
  if (me) showMe();
  else void showLeft();
  await resume();
}

/** Takes in what `GET /bff/me` said. */
async function meet(answer) {
  if (answer.status === 401) return signIn();
  if (!answer.caller) return;
  me = answer;
}

/** Links to the views that this caller is offered. */
function showLinks() {
  byId('views').replaceChildren(...Object.entries(VIEWS).filter(([name]) => isOffered(name))
    .map(([name, { title }]) => element('a', { href: `#${name}`, text: title, 'aria-current': name === viewed() && 'page' })));
}

const isOffered = (name) => VIEWS[name].offered?.(me) ?? true;

/** The view that the address names: `#video`, or `#chat?prompt=…`. */
function viewed() {
  const name = location.hash.slice(1).split('?', 1)[0];
  return Object.hasOwn(VIEWS, name) && isOffered(name) ? name : FIRST;
}

/** Shows the view that the address names; after a click the focus goes to its heading. */
async function show(moveFocus) {
  if (signingIn) return;
  const name = viewed();
  for (const other of Object.keys(VIEWS)) byId(`view-${other}`).hidden = other !== name;
  showLinks();
  document.title = `${VIEWS[name].title} · ${service}`;
  const module = await begin(name);
  if (name !== viewed() || signingIn) return;
  if (moveFocus) {
    scrollTo(0, 0);
    byId(`${name}-heading`).focus({ preventScroll: true });
  }
  module?.shown?.();
}

function begin(name) {
  const view = VIEWS[name];
  view.started ??= Promise.all([view.load(), view.look && styled(view.look)]).then(async ([module]) => {
    await module.start(catalog);
    return module;
  }).catch((error) => {
    view.started = null;
    console.warn(error);
    notice('This part of the page could not be loaded; the service may have been updated.',
      reload());
  });
  return view.started;
}

const sheets = new Map();

/** Adds one of the page's style sheets; resolves when it is there, or cannot be loaded. */
function styled(name) {
  if (!sheets.has(name)) {
    sheets.set(name, new Promise((done) => {
      document.head.append(element('link', { rel: 'stylesheet', href: new URL(name, import.meta.url), load: done, error: done }));
    }));
  }
  return sheets.get(name);
}

/** `member:ann`; '' where callers are told apart by address, which is nobody's own. */
const ownerOf = ({ caller }) => (caller.name ? `${caller.kind}:${caller.name}` : '');

/** Shows the sign-in in the views' place until somebody has signed in. The views stay as they are behind it. */
function signIn(why = '') {
  signingIn ??= (async () => {
    for (const name of Object.keys(VIEWS)) byId(`view-${name}`).hidden = true;
    for (const id of ['views', 'person', 'money']) byId(id).hidden = true;
    hush();
    announce('');
    document.title = `Sign in · ${service}`;
    const { askWho } = await import('./sign-in.js');
    await meet(await askWho(why));
    people.postMessage(ownerOf(me));
    // The same person goes on; anybody else begins with a page of their own.
    if (owner !== null && ownerOf(me) !== owner) return location.reload();
    byId('views').hidden = byId('money').hidden = false;
    signingIn = null;
    if (owner === null) return;
    showPerson();
    showMe();
    void show(true).then(async () => (await buying())?.settleOpen());
  })().catch((error) => {
    console.warn(error);
    notice('The sign-in could not be loaded.', reload());
    return new Promise(() => {});
  });
  return signingIn;
}

async function signOut() {
  try {
    await post('/bff/logout', {});
  } catch (problem) {
    notice(`You are still signed in. ${problem.message}.`);
    return;
  }
  choice.set('owner', '');
  people.postMessage('');
  history.replaceState(null, '', location.pathname);
  location.reload();
}

/** Who is signed in; in open mode nobody is. */
function showPerson() {
  const { kind, name } = me?.caller ?? {};
  byId('person').hidden = !name;
  byId('person-name').textContent = byId('person-name').title = name ?? '';
  byId('sign-out').hidden = kind !== 'member';
  byId('sign-out').onclick = signOut;
}

/** The module that buys, if anything was bought: a first visit does not wait for it. */
async function buying() {
  if (!(await purchases.some())) return null;
  const module = await import('./core/buying.js');
  module.serverRemembers(catalog.replay);
  return module;
}

/** Takes up what an earlier page left: open purchases, and videos that are being made. */
async function resume() {
  const module = await buying();
  const left = (await module?.open()) ?? [];
  const pending = (await jobs.all()).some((job) => job.open);
  if (left.some((record) => record.kind === 'chat')) await begin('chat');
  if (pending || left.some((record) => record.kind === 'video')) await begin('video');
  await module?.settleOpen();
}

/** Light or dark: the person's choice, which theme.js has put on already, else the system's. */
function followTheme() {
  const apply = () => {
    const { value } = byId('theme');
    if (value) document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
  };
  byId('theme').value = choice.get('theme') ?? '';
  if (byId('theme').selectedIndex < 0) byId('theme').value = '';
  byId('theme').addEventListener('change', () => {
    choice.set('theme', byId('theme').value);
    apply();
  });
  apply();
}

/** Tells the style sheet how much the top covers, which depends on what is left to say there. */
function followTop() {
  const top = document.querySelector('.top');
  new ResizeObserver(() => {
    const covers = getComputedStyle(top).position === 'sticky' ? top.offsetHeight : 0;
    document.documentElement.style.setProperty('--top', `${covers}px`);
  }).observe(top);
}

/** Says when the network is gone, and when it is back. */
function followNetwork() {
  const gone = 'You are offline. What you write is kept, and can be sent when the network is back.';
  let shown = null;
  const tell = () => {
    if (navigator.onLine === false) shown ??= notice(gone);
    else if (shown) {
      shown.remove();
      shown = null;
      announce('You are online again.');
      if (catalog) void showLeft();
    }
  };
  addEventListener('offline', tell);
  addEventListener('online', tell);
  tell();
}

async function showSpent() {
  const sum = await (await buying())?.spent();
  if (!sum) return;
  byId('spent').textContent = price(sum.spent);
  byId('unsettled').textContent = sum.unsettled ? ` + ${price(sum.unsettled)} open` : '';
}

/** What is left in the account and of the tightest budgets; the usage view has all of them. */
async function showLeft() {
  try {
    await meet(await read('/bff/me'));
  } catch {
    return; // What is shown stays; whatever is bought says itself what is wrong.
  }
  if (ownerOf(me) !== owner) return location.reload();
  showPerson();
  showMe();
}

function showMe() {
  showLinks();
  const { balance, budgets } = me;
  const cheapest = Math.min(...catalog.video.map((model) => model.price_micros));
  const least = Math.min(balance?.amount_micros ?? Infinity, ...budgets.map((budget) => budget.left_micros));
  const low = least < cheapest;
  const at = balance?.stale ? ` at ${new Date(balance.as_of).toLocaleTimeString()}` : '';
  const tightest = [...budgets].sort((one, other) => one.left_micros - other.left_micros).slice(0, 2);
  const parts = [
    balance && `Balance ${price(balance.amount_micros)}${at}`,
    ...budgets.filter((budget) => tightest.includes(budget)).map((budget) => `${nameOfBudget(budget)}: ${price(budget.left_micros)} left`),
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
    byId('mode').replaceChildren(element('p', { class: 'badge live' }, 'Live', element('span', { text: ': real money' })));
    return;
  }
  const faults = element('dl', {}, ...catalog.sandbox_faults.flatMap(({ word, does }) =>
    [element('dt', {}, element('code', { text: word })), element('dd', { text: does })]));
  byId('mode').replaceChildren(element('details', { class: 'menu sandbox-faults' },
    element('summary', { class: 'badge' }, 'Sandbox', element('span', { text: ': play money' })),
    element('div', { class: 'card', tabindex: '0', role: 'group', 'aria-label': 'Words for the sandbox' },
      element('p', { text: 'Nothing here costs real money. These words in a message or prompt make the sandbox misbehave:' }),
      faults)));
}

/** A menu closes when something else is pressed, and by Escape. */
function closeMenus({ type, key, target }) {
  for (const menu of document.querySelectorAll('details.menu[open]')) {
    if (type === 'click' && menu.contains(target) && !target.closest('button')) continue;
    if (type === 'keydown' && key !== 'Escape') continue;
    menu.open = false;
    if (type === 'keydown') menu.querySelector('summary').focus();
  }
}

addEventListener('click', closeMenus);
addEventListener('keydown', closeMenus);
await start();
