/** Starts the page: loads prices and the caller, shows the view that the address names, then resumes what was left open. */

import { announce, button, byId, clearReadOut, element, icon, notice, styled } from './core/dom.js';
import { amountLeft, faultOf, inWords, price, t } from './core/format.js';
import { canSpend, choice, jobs, keepFor, learnFunds, post, purchases, read, whenChanged, whenSignedOut } from './core/site.js';

/**
 * The views, in the order of their links. Each is a row here, a `<section id="view-NAME">` in index.html with a heading
 * `NAME-heading`, and a module that is loaded at first need, with its style sheet `look` if it has one. The module exports
 * `start(catalog)`, which fills the view in, and may export `shown()`, which is called whenever the view is shown.
 * `offered(me)` says whether this caller may see it, else whether the price list has something for it; `me` is the answer of
 * `GET /bff/me`, or null while it is not known.
 */
const VIEWS = {
  chat: { title: t('view.chat'), load: () => import('./chat/chat.js') },
  video: { title: t('view.video'), load: () => import('./video/video.js'), look: 'video/video.css' },
  usage: { title: t('view.usage'), load: () => import('./usage/usage.js'), look: 'usage/usage.css' },
  admin: { title: t('view.admin'), load: () => import('./admin/admin.js'), look: 'usage/usage.css', offered: (who) => who?.caller.role === 'admin' },
};

const service = document.title;
const reload = () => button(t('shell.reload'), () => location.reload());

const INVITE = /^#(?:sign-in\?token=(tg_[\w-]+)|t=(tgl_[\w-]+))$/;

let invite, link, catalog = null, me = null, owner = null, signingIn = null, focusNext = null, running = 0;
/** Tells the other tabs who has signed in here; '' if nobody is. */
const people = new BroadcastChannel('tollgate people');

/** Takes the token of an invite, or of a link, out of the address, whose fragment no server sees. */
function takeToken() {
  [, invite, link] = INVITE.exec(location.hash) ?? [];
  if (invite || link) history.replaceState(null, '', location.pathname + location.search);
}

/** Asks who is signed in. If nobody is, a link signs its holder in. */
async function askMe() {
  const answer = await read('/bff/me').catch((problem) => problem);
  if (!link || answer.caller) return answer;
  const [token, { openLink }] = [link, await import('./sign-in.js')];
  link = null;
  return openLink(token);
}

async function start() {
  takeToken();
  writeTexts();
  followTheme();
  followLanguage();
  followDrawer();
  followPurse();
  followKeys();
  followNetwork();
  // If another member signs in in another tab, this one must not show what belongs to the first.
  people.addEventListener('message', ({ data }) => {
    if (signingIn || (owner !== null && data !== owner)) location.reload();
  });
  byId('title').textContent = service;
  showLeftAs(price(0), t('shell.spent'));
  byId('spent').textContent = price(0);
  addLinks();
  showLinks();
  const asked = askMe();
  if (link) await asked; // The prices depend on who it is.
  try {
    catalog = await read('/bff/catalog');
  } catch (problem) {
    notice(t('shell.noPrices', inWords(`problem.${problem.code}`, problem.message)), reload());
    return;
  }
  // In open mode the page does not wait for `me`: it may take as long as the account takes to answer.
  const isOpen = catalog.access === 'open';
  if (!isOpen) await takeCaller(await asked);
  // While the caller is not known, assume the one that this browser saw last.
  owner = isOpen ? '' : me ? ownerOf(me) : choice.get('owner') ?? '';
  choice.set('owner', owner);
  keepFor(owner);
  // Whoever comes back from the login service has signed in for the other tabs, too.
  if (me && catalog.login) people.postMessage(owner);
  whenSignedOut(() => void signIn(t('shell.signedOut')));
  showPerson();
  showMode();
  whenChanged((shelf) => shelf === 'purchases' && void showSpent());
  whenChanged((shelf) => shelf === 'jobs' && void showRunning());
  void showSpent();
  void showRunning();
  addEventListener('hashchange', () => (INVITE.test(location.hash) ? location.reload() : show(true)));
  if ((invite || link) && me) notice(t('shell.signedInAlready'));
  await show(false);
  if (viewed() !== first()) void begin(first());
  whenChanged((shelf) => shelf === 'purchases' && soonShowLeft());
  // Open purchases are settled only for the caller who made them.
  if (isOpen) {
    const answer = await asked;
    if (!me) await takeCaller(answer);
    if (me && ownerOf(me) !== owner) return location.reload();
  }
  if (me) showMe();
  else void showLeft();
  await resume();
}

/**
 * Writes the texts of the markup. `data-t` names them: `page.close` is the text of its element, `page.close@title` an attribute. Until then,
 * the page is not shown (theme.js).
 */
function writeTexts() {
  for (const one of document.querySelectorAll('[data-t]')) {
    for (const entry of one.dataset.t.split(' ')) {
      const [key, attribute] = entry.split('@');
      if (attribute) one.setAttribute(attribute, t(key));
      else one.textContent = t(key);
    }
  }
  delete document.documentElement.dataset.texts;
}

/** Takes in an answer of `GET /bff/me`. */
async function takeCaller(answer) {
  if (answer.status === 401) return signIn(answer.why);
  if (answer.caller) me = answer;
}

function addLinks() {
  byId('views').append(...Object.entries(VIEWS).map(([name, { title }]) =>
    element('a', { href: `#${name}`, title, hidden: true }, icon(name), element('span', { text: title }))));
}

/** Shows the links to the views that this caller is offered. They stay in place: one may have the focus. */
function showLinks() {
  for (const [at, name] of Object.keys(VIEWS).entries()) {
    const link = byId('views').children[at];
    link.hidden = !isOffered(name);
    link.ariaCurrent = name === viewed() ? 'page' : null;
    if (name === 'video' && running) link.dataset.count = running;
    else delete link.dataset.count;
  }
  // On a phone the links and the menu share the width.
  byId('side').style.setProperty('--tab-count', Object.keys(VIEWS).filter(isOffered).length + 1);
}

const isOffered = (name) => VIEWS[name].offered?.(me) ?? catalog?.[name]?.length !== 0;
const first = () => Object.keys(VIEWS).find(isOffered);

/** The view that the address names: `#video`, or `#chat?prompt=…`. */
function viewed() {
  const name = location.hash.slice(1).split('?', 1)[0];
  return Object.hasOwn(VIEWS, name) && isOffered(name) ? name : first();
}

/** Shows the view that the address names. `moveFocus`: the focus goes to its heading, or to `focusNext`. */
async function show(moveFocus) {
  if (signingIn) return;
  const name = viewed();
  for (const other of Object.keys(VIEWS)) byId(`view-${other}`).hidden = other !== name;
  document.body.dataset.view = name;
  showLinks();
  document.title = `${VIEWS[name].title} · ${service}`;
  if (me) showFunds();
  // Unless that would bring up a keyboard on the screen, a person can type at once.
  if (!moveFocus && name === 'chat' && !matchMedia('(pointer: coarse)').matches) {
    requestAnimationFrame(() => document.activeElement === document.body && byId('chat-text').focus({ preventScroll: true }));
  }
  const module = await begin(name);
  if (name !== viewed() || signingIn) return;
  if (moveFocus) {
    scrollTo(0, 0);
    byId(focusNext ?? `${name}-heading`).focus({ preventScroll: true });
    focusNext = null;
  }
  module?.shown?.();
}

function go(name, focus = null) {
  focusNext = focus;
  if (viewed() === name) void show(true);
  else location.hash = name;
}

function begin(name) {
  if (!isOffered(name)) return null;
  const view = VIEWS[name];
  view.started ??= Promise.all([view.load(), view.look && styled(view.look)]).then(async ([module]) => {
    await module.start(catalog);
    return module;
  }).catch((error) => {
    view.started = null;
    console.warn(error);
    notice(t('shell.noView'), reload());
  });
  return view.started;
}

/** Returns `member:ann`, or '' in open mode, where an address does not identify a person. */
const ownerOf = ({ caller }) => (caller.name ? `${caller.kind}:${caller.name}` : '');

/** Shows the sign-in form instead of the views, which keep their state. */
function signIn(why = '') {
  // The application that embeds tollgate signs people in.
  if (catalog.access === 'host') {
    notice(t('shell.signInFirst'), reload());
    return new Promise(() => {});
  }
  signingIn ??= (async () => {
    for (const name of Object.keys(VIEWS)) byId(`view-${name}`).hidden = true;
    document.body.classList.add('signed-out');
    delete document.body.dataset.view;
    for (const panel of document.querySelectorAll(':popover-open')) panel.hidePopover();
    document.querySelector('dialog[open]')?.close();
    clearReadOut();
    announce('');
    document.title = `${t('signIn.signIn')} · ${service}`;
    const { askWho } = await import('./sign-in.js');
    await takeCaller(await askWho(why, { ...catalog, invite }));
    invite = null;
    people.postMessage(ownerOf(me));
    // The same member goes on; another one starts with a fresh page.
    if (owner !== null && ownerOf(me) !== owner) return location.reload();
    document.body.classList.remove('signed-out');
    signingIn = null;
    if (owner === null) {
      catalog = await read('/bff/catalog');
      return;
    }
    showPerson();
    showMe();
    void show(true).then(async () => (await buying())?.settleOpen());
  })().catch((error) => {
    console.warn(error);
    notice(t('shell.noSignIn'), reload());
    return new Promise(() => {});
  });
  return signingIn;
}

async function signOut() {
  let answer;
  try {
    answer = await post('/bff/logout', {});
  } catch (problem) {
    notice(t('shell.stillSignedIn', inWords(`problem.${problem.code}`, problem.message)));
    return;
  }
  choice.set('owner', '');
  people.postMessage('');
  history.replaceState(null, '', location.pathname);
  // The login service ends its own session there.
  if (answer?.continue) location.assign(answer.continue);
  else location.reload();
}

function showPerson() {
  const { kind, name: id, display_name: name = id } = me?.caller ?? {};
  byId('person-name').textContent = byId('person-name').title = name ?? t('shell.menu');
  byId('menu-open').classList.toggle('unnamed', !name);
  byId('menu-open').ariaLabel = t('shell.menu', name);
  byId('sign-out').hidden = !['member', 'link'].includes(kind) && !catalog.login;
  byId('sign-out').onclick = signOut;
  byId('tokens').hidden = !catalog.login;
  byId('tokens').onclick = showTokens;
}

async function showTokens() {
  byId('menu').hidePopover();
  try {
    await (await import('./shell/tokens.js')).tokens();
  } catch {
    notice(t('shell.noView'), reload());
  }
}

/** Loads the module that buys, if anything was bought: a first visit does not need it. */
async function buying() {
  if (!(await purchases.some())) return null;
  const module = await import('./core/buying.js');
  module.serverRemembers(catalog.replay);
  return module;
}

async function resume() {
  const module = await buying();
  const left = (await module?.open()) ?? [];
  const pending = (await jobs.all()).some((job) => job.open);
  if (left.some((record) => record.kind === 'chat')) await begin('chat');
  if (pending || left.some((record) => record.kind === 'video')) await begin('video');
  await module?.settleOpen();
}

/** Follows the choice of theme. theme.js has applied it already. */
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

/** Follows the choice of language. theme.js and the modules read it as they load, so the page loads again; what is running goes on. */
function followLanguage() {
  byId('language').value = choice.get('language') ?? '';
  if (byId('language').selectedIndex < 0) byId('language').value = '';
  byId('language').addEventListener('change', () => {
    choice.set('language', byId('language').value);
    location.reload();
  });
}

/** Conversations are listed beside every view: choosing one leads to the chat. */
function followDrawer() {
  byId('drawer').addEventListener('click', ({ target }) => {
    if (viewed() === 'chat') return;
    if (target.closest('#new-conversation')) go('chat', 'chat-text');
    else if (target.closest('.conversations li > .link:first-child')) go('chat');
  });
}

/** The panel is filled in while it is open. */
function followPurse() {
  byId('purse').addEventListener('toggle', ({ newState }) => {
    if (newState === 'open') void showPurse();
  });
}

async function showPurse() {
  const { funds } = await import('./core/funds.js');
  if (me) byId('purse-rows').replaceChildren(funds(me));
}

function followNetwork() {
  let shown = null;
  const tell = () => {
    if (navigator.onLine === false) shown ??= notice(t('shell.offline'));
    else if (shown) {
      shown.remove();
      shown = null;
      announce(t('shell.online'));
      if (catalog) void showLeft();
    }
  };
  addEventListener('offline', tell);
  addEventListener('online', tell);
  tell();
}

/** Counts the running videos at the link to their view; the view itself announces them. */
async function showRunning() {
  running = (await jobs.all()).filter((job) => job.open).length;
  showLinks();
}

async function showSpent() {
  const sum = await (await buying())?.spent();
  if (!sum) return;
  byId('spent').textContent = price(sum.spent);
  byId('unsettled').textContent = sum.unsettled ? t('shell.open', price(sum.unsettled)) : '';
  if (!tightest()) showLeftAs(price(sum.spent), t('shell.spent'));
}

async function showLeft() {
  try {
    await takeCaller(await read('/bff/me'));
  } catch {
    return; // The last figures stay; the next purchase reports its own errors.
  }
  if (ownerOf(me) !== owner) return location.reload();
  showPerson();
  showMe();
}

function showMe() {
  showLinks();
  learnFunds(me);
  showFunds();
  if (byId('purse').matches(':popover-open')) void showPurse();
}

/** The budget with the least left, or the balance if that is less: `{left, share, label}`. Null if neither is known. */
function tightest() {
  if (!me) return null;
  const { balance, budgets } = me;
  return [
    ...budgets.map(({ scope, period, left_micros: left, limit_micros: limit }) => ({ left, share: limit && left / limit, label: t(`shell.left.${period}`) + t(`shell.whose.${scope}`) })),
    ...(balance ? [{ left: balance.amount_micros, share: balance.amount_micros ? 1 : 0, label: t('shell.balance') }] : []),
  ].sort((one, other) => one.left - other.left)[0] ?? null;
}

/** Shows what is tightest, or a warning. */
function showFunds() {
  const least = tightest();
  if (!least) return;
  const low = lowFor(viewed());
  const shown = byId('left');
  if (low && !shown.classList.contains('low')) announce(low);
  shown.classList.toggle('low', Boolean(low));
  byId('ring').setAttribute('stroke-dasharray', `${Math.round(least.share * 100)} 100`);
  showLeftAs(amountLeft(least.left), low || least.label);
}

function showLeftAs(amount, label) {
  byId('left').replaceChildren(element('strong', { text: amount }), ' ', element('span', { text: label }));
}

/** Returns a warning if what is left does not cover the cheapest model of this view, else false. */
function lowFor(name) {
  const kind = name === 'chat' || !catalog.video.length ? 'chat' : 'video';
  return canSpend() < Math.min(...catalog[kind].map((model) => model.price_micros)) && t(`shell.low.${kind}`);
}

let soon = null;

function soonShowLeft() {
  clearTimeout(soon);
  soon = setTimeout(showLeft, 300);
}

/** Shows whether money is real, and the words that provoke faults in the sandbox. */
function showMode() {
  if (catalog.mode !== 'sandbox') {
    byId('mode').replaceChildren(element('p', { class: 'badge live' }, t('shell.live'), element('span', { class: 'unseen', text: t('shell.live.means') })));
    return;
  }
  const faults = element('dl', {}, ...catalog.sandbox_faults.flatMap(({ word, does }) =>
    [element('dt', {}, element('code', { text: word })), element('dd', { text: faultOf(word, does) })]));
  byId('mode').replaceChildren(element('details', { class: 'menu sandbox-faults' },
    element('summary', { class: 'badge' }, icon('test'), element('span', {}, t('shell.sandbox'), element('span', { class: 'unseen', text: t('shell.sandbox.means') }))),
    element('div', { class: 'card', tabindex: '0', role: 'group', 'aria-label': t('shell.faults') },
      element('p', { text: t('shell.aboutFaults') }),
      faults)));
}

/** Closes a menu at a click elsewhere, and at Escape. */
function closeMenus({ type, key, target }) {
  for (const menu of document.querySelectorAll('details.menu[open]')) {
    if (type === 'click' && menu.contains(target) && !target.closest('button')) continue;
    if (type === 'keydown' && key !== 'Escape') continue;
    menu.open = false;
    if (type === 'keydown') menu.querySelector('summary').focus();
  }
}

/** Opens the palette (`palette`), the prompts (`prompts`) or the list of shortcuts (`help`). */
async function openKeys(which) {
  if (!catalog || signingIn || document.querySelector('dialog[open]')) return;
  for (const panel of document.querySelectorAll(':popover-open')) panel.hidePopover();
  try {
    const module = await import('./shell/sheets.js');
    module[which]({ catalog, go, openConversation, views: Object.entries(VIEWS).filter(([name]) => isOffered(name)).map(([name, { title }]) => ({ name, title })) });
  } catch {
    notice(t('shell.noView'), reload());
  }
}

async function openConversation(id) {
  await (await begin('chat'))?.openById(id);
  go('chat');
}

const TYPING = 'input:not([type="radio"], [type="checkbox"], [type="range"]), textarea, select, [contenteditable]';

/** Keyboard shortcuts. Single keys count only where nothing is typed, and can be turned off in the list of shortcuts. */
function followKeys() {
  if (/Mac|iPhone|iPad/.test(navigator.platform)) byId('jump').querySelector('kbd').textContent = '⌘K';
  byId('jump').addEventListener('click', () => void openKeys('palette'));
  byId('help').addEventListener('click', () => void openKeys('help'));
  addEventListener('keydown', (event) => {
    const { key, target } = event;
    if (event.isComposing || event.altKey || signingIn) return;
    if (event.ctrlKey || event.metaKey) {
      if (key.toLowerCase() !== 'k' || event.shiftKey) return;
      event.preventDefault();
      return void openKeys('palette');
    }
    if (event.repeat || choice.get('keys') === 'off') return;
    if (key === '/' && target.id === 'chat-text' && !target.value && choice.get('prompts')?.length > 2 && !document.querySelector('dialog[open]')) {
      event.preventDefault();
      return void openKeys('prompts');
    }
    if (target.closest?.(TYPING) || document.querySelector('dialog[open], :popover-open')) return;
    const act = shortcut(key);
    if (!act) return;
    event.preventDefault();
    act();
  });
}

function shortcut(key) {
  const names = Object.keys(VIEWS).filter(isOffered);
  if (names[key - 1]) return () => go(names[key - 1]);
  return { '?': () => void openKeys('help'), n: () => byId('new-conversation').click(), '/': () => void openKeys('palette') }[key];
}

for (const kind of ['click', 'keydown']) addEventListener(kind, closeMenus);
await start();
