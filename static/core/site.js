/**
 * The page's own things: the server that it came from, to which it speaks with the cookie of a login, and what it keeps for a person in
 * this browser. If IndexedDB fails, that is kept in memory, and the page says so. One file, because the first view needs all of it.
 */

import { notice } from './dom.js';
import { t, withCurrentNames } from './format.js';
import { RETRIES, TollgateError, createClient } from './transport.js';

/** The codes of a 401 about the caller's credentials. A 401 of the gateway has another code. */
const SIGNED_OUT = ['missing_credentials', 'invalid_credentials'];

/** What the caller can still spend, in micro-dollars: the least of its budgets and the balance. Infinity while it is not known. */
let spendable = Infinity;
let asks = false;
const watchers = [];

export const canSpend = () => spendable;

/** Whether the caller can ask an admin for more budget. */
export const mayAsk = () => asks;

/** Calls `changed()` when {@link canSpend} has changed. */
export const whenCanSpend = (changed) => watchers.push(changed);

export function learnFunds({ balance, budgets, may_ask: may }) {
  const before = spendable;
  asks = Boolean(may);
  spendable = Math.min(balance?.amount_micros ?? Infinity, ...budgets.map((budget) => budget.left_micros));
  if (spendable !== before) for (const changed of watchers) changed();
}

let tellSignedOut = () => {};

/** Calls `tell(code)` when a reply says that the caller is not signed in. */
export function whenSignedOut(tell) {
  tellSignedOut = tell;
}

async function fetchHere(address, request) {
  if (navigator.onLine === false) throw new TollgateError({ code: 'offline', charged: 'no', detail: t('page.offline') });
  // A page of another site cannot send this header with the cookie.
  const headers = { ...request.headers, 'x-tollgate': '1' };
  const response = await fetch(address, { ...request, headers, credentials: 'same-origin' });
  if (response.status === 401) {
    const problem = await response.clone().json().catch(() => null);
    if (SIGNED_OUT.includes(problem?.code)) tellSignedOut(problem.code);
  }
  return response;
}

/** Buys. If the server asks for a wait longer than 10 seconds, the refusal is shown with a countdown instead. */
export const shop = createClient({ fetch: fetchHere, ...RETRIES.page });

const once = createClient({ fetch: fetchHere, attempts: 1 });

/** Each sends one request that buys nothing, without retries. Throws a `TollgateError`. */
export const read = (path) => once.ask(path);
export const post = (path, body) => once.ask(path, { body });
export const send = (method, path, body, headers) => once.ask(path, { method, body, headers });

// Conversations, purchases, jobs and choices that this browser keeps.

const NAME = 'tollgate';
const VERSION = 2;
/** Choices that everyone at this browser shares. */
const SHARED = ['theme', 'language', 'rail', 'owner'];
const KEPT = ['conversations', 'purchases', 'jobs'];

/** Conversations: `{id, title, at, turns, aside}`, as in chat.js. */
export const conversations = shelf('conversations');
/** Purchases by their Idempotency-Key, as in purchases.js. */
export const purchases = shelf('purchases');
export const jobs = shelf('jobs');

let owner = '', channel = null;
/** How often other tabs have written, and the shelves that are held whole: reading many conversations again takes long. */
let written = 0;
const whole = new Set();

/**
 * Keeps the records of `whose` (`member:ann`) from now on, apart from those of everyone else: a database, drafts and
 * choices of its own. In open mode it is ''. Called once, before anything is kept.
 */
export function keepFor(whose) {
  owner = whose;
  // Tells this person's other tabs that something of a shelf has changed.
  channel = new BroadcastChannel(own(NAME));
  channel.addEventListener('message', ({ data }) => {
    written += 1;
    whole.delete(data);
  });
}

/** Whether only their address distinguishes callers: an address is not one person. */
export const isNobody = () => !owner;

/** A name that is this person's own. */
export const own = (name) => (owner ? `${name} ${owner}` : name);

/** The key under which this tab's purchases count as one session; it survives a reload. */
export function session() {
  try {
    const kept = sessionStorage.getItem('session') ?? String(Date.now()) + Math.random();
    sessionStorage.setItem('session', kept);
    return kept;
  } catch {
    return 'this page';
  }
}

/** The person's choices, such as a model; lost if the browser keeps nothing. */
export const choice = {
  get(name) {
    try { return localStorage.getItem(placeOf(name)); } catch { return null; }
  },
  set(name, value) {
    try { localStorage.setItem(placeOf(name), value); } catch { /* a default does as well */ }
  },
  /** One that is kept as JSON: an object, empty if there is none. */
  object(name) {
    try { return Object(JSON.parse(choice.get(name))); } catch { return {}; }
  },
  list: (name) => [choice.object(name)].flat().filter((one) => typeof one === 'string'),
};
const placeOf = (name) => `choice:${SHARED.includes(name) ? name : own(name)}`;

const listeners = [];

/** Calls `changed(shelf)` whenever this tab has written something; not when it has deleted something. */
export function whenChanged(changed) {
  listeners.push(changed);
}

/** Calls `changed(shelf)` whenever another tab has changed something. */
export function whenChangedElsewhere(changed) {
  channel.addEventListener('message', ({ data }) => changed(data));
}

function tell(shelf, isKept) {
  if (isKept) channel.postMessage(shelf);
  for (const changed of listeners) changed(shelf);
}

/**
 * `put` resolves once the record is kept (`true`: beyond this tab's life). `change` reads, edits and writes
 * in one step, so that no tab undoes what another one wrote; `edit` may be called twice. Everything is also
 * held in memory, so that a full disk or a private window costs history, never an answer that was paid for.
 */
function shelf(name) {
  const held = new Map();
  // Only in memory, and newer than on disk.
  const unsaved = new Set();
  const keyOf = (record) => record.id ?? record.key;
  return {
    async put(record) {
      held.set(keyOf(record), record);
      try {
        await transact(name, 'readwrite', (rows) => rows.put(record));
        // Reading all may have brought the version before back meanwhile.
        held.set(keyOf(record), record);
        unsaved.delete(keyOf(record));
        tell(name, true);
        return true;
      } catch {
        held.set(keyOf(record), record);
        unsaved.add(keyOf(record));
        unkept();
        tell(name, false);
        return false;
      }
    },
    async change(key, edit, start) {
      let record;
      const edited = (before) => {
        record = structuredClone(unsaved.has(key) ? held.get(key) : before);
        edit(record);
        return record;
      };
      try {
        await transact(name, 'readwrite', (rows) => {
          const row = rows.get(key);
          row.onsuccess = () => rows.put(edited(row.result ?? start));
          return row;
        });
        unsaved.delete(key);
        tell(name, true);
      } catch {
        record = edited(held.get(key) ?? start);
        unsaved.add(key);
        unkept();
        tell(name, false);
      }
      held.set(key, record);
      return record;
    },
    async delete(key) {
      held.delete(key);
      unsaved.delete(key);
      await transact(name, 'readwrite', (rows) => rows.delete(key)).catch(unkept);
      held.delete(key);
      channel.postMessage(name);
    },
    async all() {
      const before = written;
      const kept = whole.has(name) ? null : await transact(name, 'readonly', (rows) => rows.getAll()).catch(() => null);
      if (!kept) return [...held.values()];
      // Purchases are always read again: another tab may be buying.
      if (name === 'conversations' && written === before) whole.add(name);
      for (const key of held.keys()) if (!unsaved.has(key)) held.delete(key);
      for (const record of kept) if (!unsaved.has(keyOf(record))) held.set(keyOf(record), record);
      return [...held.values()];
    },
    async one(key) {
      if (unsaved.has(key)) return held.get(key);
      try {
        const kept = await transact(name, 'readonly', (rows) => rows.get(key));
        if (kept) held.set(key, kept);
        else held.delete(key);
        return kept ?? null;
      } catch {
        return held.get(key) ?? null;
      }
    },
    /** Whether there is any record; much cheaper than reading all of them. */
    async some() {
      return held.size > 0 || (await transact(name, 'readonly', (rows) => rows.count()).catch(() => 0)) > 0;
    },
  };
}

function unkept() {
  notice(t('page.unkept'));
}

let opened = null;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(own(NAME), VERSION);
    request.onupgradeneeded = ({ oldVersion }) => {
      for (const name of KEPT) {
        if (oldVersion) rewrite(request.transaction.objectStore(name));
        else request.result.createObjectStore(name, { keyPath: name === 'purchases' ? 'key' : 'id' });
      }
    };
    request.onsuccess = () => {
      // A newer page in another tab must be able to upgrade.
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error('blocked'));
  });
  return opened;
}

/** Version 1 had other names for amounts. */
function rewrite(rows) {
  rows.openCursor().onsuccess = ({ target: { result: cursor } }) => {
    if (!cursor) return;
    const record = cursor.value;
    for (const branch of [record, ...(record.aside ?? [])]) branch.turns?.forEach(withCurrentNames);
    cursor.update(withCurrentNames(record));
    cursor.continue();
  };
}

async function transact(name, mode, work) {
  const base = await database();
  return new Promise((resolve, reject) => {
    const transaction = base.transaction(name, mode, { durability: 'strict' });
    const request = work(transaction.objectStore(name));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}
