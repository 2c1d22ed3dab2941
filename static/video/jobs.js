/** Keeps ordered videos across tabs and reloads, follows the open ones by one stream, and notifies when they end. */

import { announce, byId } from '../core/dom.js';
import { t } from '../core/format.js';
import { sentence } from '../core/problems.js';
import { choice, isNobody, jobs as shelf, own, read, send, whenChangedElsewhere } from '../core/site.js';
import { TollgateError } from '../core/transport.js';

/**
 * A job: `{id, payload, costMicros, at, open, left, body, trouble, took, favourite}`. `open`: watched; `left`: hidden by the
 * person; `took`: milliseconds in the making, by the server's clock. A removed job is `{id, removed: true}`.
 */
const known = new Map();
const unkept = new Set();
/** The server's last word on the videos that it keeps, by the id of the job: `{kept, notKept}`, where `notKept` is why. */
const onServer = new Map();

let words, tell, whenConnected;
let leads = false;
/** Counts this tab's changes, so that an older read is noticed. */
let changes = 0;

/**
 * Loads the kept jobs and watches the open ones. `jobWords` is the catalog's `jobs`. The listener has `connection(problem)` and
 * `changed(job, {ended, removed, first})`, where `first` means that no other tab knows yet.
 */
export async function startJobs(jobWords, { changed, connection }) {
  [words, tell, whenConnected] = [jobWords, changed, connection];
  await refresh();
  whenChangedElsewhere((name) => name === 'jobs' && void refresh());
  lead(() => {
    leads = true;
    watchOpen();
  });
}

export const all = () => [...known.values()];

/** Makes a job of an accepted order; the same order twice is one job. */
export async function takeIn({ reply, payload, costMicros, at }) {
  const id = typeof reply?.requestId === 'string' ? reply.requestId : null;
  const before = id && (known.get(id) ?? (await shelf.one(id)));
  if (before?.removed || before?.payload.duration) return;
  await keep({
    id: id ?? `unnamed-${at}`, costMicros, at, open: Boolean(id), left: false, body: id ? null : reply.raw, took: null,
    trouble: id ? null : t('video.noJob'), ...before, payload,
  }, {});
  watchOpen();
}

/** Adds the server's `rows` that this browser does not have. */
export async function takeUp(rows) {
  const held = new Set((await shelf.all()).map(({ id }) => id));
  for (const row of rows) {
    // Removed in another browser.
    if (row.removed) {
      await drop(row.request_id);
      continue;
    }
    const { request_id: id, model, price_micros: costMicros, at, status: body, prompt = '' } = row;
    const open = row.state === 'open';
    const job = { id, payload: { model, prompt }, costMicros, at: Date.parse(at), open, left: false, body, trouble: null, took: open ? null : tookOf(row) };
    // Another tab's newer record stays.
    if (!held.has(id)) await shelf.change(id, () => {}, job);
  }
  rows.filter(({ removed }) => !removed).forEach(learn);
  await refresh();
}

function learn({ request_id: id, kept, not_kept: notKept }) {
  onServer.set(id, { kept, notKept });
  if (known.has(id)) tell(known.get(id), {});
}

/**
 * Removes a job from the list, and its video from the server. It is marked, because the server may list it again, and shown until the
 * mark is stored.
 */
export async function remove(id) {
  // If the server cannot be reached, the video stays there until it is too old.
  if (known.has(id)) void send('DELETE', `/bff/video?request_id=${encodeURIComponent(id)}`).catch(() => {});
  await drop(id);
}

async function drop(id) {
  const job = known.get(id);
  if (!job) return;
  changes += 1;
  known.delete(id);
  watchOpen();
  await (isNobody() ? shelf.delete(id) : shelf.put({ id, removed: true }));
  tell(job, { removed: true });
}

/** Stops or resumes watching a job. Nothing can cancel the job itself. */
export async function watchJob(id, wanted) {
  await keep({ ...known.get(id), open: wanted, left: !wanted, trouble: null }, {});
  watchOpen();
}

/** Marks a job as a favourite, or not any more. Resolves to whether it is one now. */
export async function markFavourite(id) {
  const job = await shelf.change(id, (kept) => { kept.favourite = !kept.favourite; }, known.get(id));
  changes += 1;
  known.set(id, job);
  tell(job, {});
  return job.favourite;
}

/**
 * The parsed status of a job, with `kept` and `notKept`. `phase` can also be `left` (hidden by the person) and `gone` (not followed any
 * more).
 */
export function standing(job) {
  const said = { ...understand(job.body, words), ...onServer.get(job.id) };
  if (said.phase !== 'open' || job.open) return said;
  return { ...said, phase: job.left ? 'left' : 'gone' };
}

/** How long videos of this model took here: the median, and of how many. Null where none is known. */
export function usualTime(model) {
  const times = all().filter((job) => job.payload.model === model && job.took > 0 && understand(job.body, words).phase === 'finished')
    .map((job) => job.took).sort((one, other) => one - other);
  return times.length ? { time: times[Math.floor(times.length / 2)], count: times.length } : null;
}

async function refresh() {
  const before = changes;
  const latest = new Map((await shelf.all()).filter(({ removed }) => !removed).map((job) => [job.id, job]));
  if (changes !== before) return refresh();
  for (const [id, job] of known) {
    if (latest.has(id)) continue;
    known.delete(id);
    tell(job, { removed: true });
  }
  for (const job of [...latest.values()].sort((one, other) => one.at - other.at)) {
    const older = known.get(job.id);
    if (older && JSON.stringify(older) === JSON.stringify(job)) continue;
    known.set(job.id, job);
    tell(job, { ended: Boolean(older?.open) && !job.open && !job.left });
  }
  watchOpen();
}

/** Calls `begin()` when this tab becomes the one that follows the jobs of all tabs. */
function lead(begin) {
  // Plain http beyond loopback has no locks: each tab follows them there.
  if (!navigator.locks) return begin();
  void navigator.locks.request(own('stream'), () => {
    begin();
    return new Promise(() => {});
  });
}

/** Follows the jobs of all tabs in one tab, and those that only this tab remembers. */
function watchOpen() {
  ids = all().filter((job) => job.open && (leads || unkept.has(job.id))).map(({ id }) => id).slice(-MOST);
  if (!isLooking) connect();
}

async function received(id, body) {
  const job = known.get(id);
  if (!job?.open) return;
  const ended = understand(body, words).phase !== 'open';
  await keep({ ...job, body, trouble: null, open: !ended }, { ended, first: true });
  if (!ended) return;
  watchOpen();
  await measure(id);
}

async function stumbled(id, problem, goesOn) {
  const job = known.get(id);
  if (!job?.open) return;
  const trouble = goesOn ? t('video.goesOn', sentence(problem)) : sentence(problem);
  await keep({ ...job, trouble, open: goesOn }, {});
  watchOpen();
}

/** How long it took, by the server's clock: this computer may have slept. */
async function measure(id) {
  let row;
  try {
    row = (await read(`/bff/jobs?request_id=${encodeURIComponent(id)}`)).rows.find((one) => one.request_id === id);
  } catch {
    return; // It is only missing from the usual times.
  }
  if (row) learn(row);
  const took = tookOf(row);
  const job = known.get(id);
  if (job && took > 0) await keep({ ...job, took }, {});
}

const tookOf = (row) => Date.parse(row?.status_at) - Date.parse(row?.at);

async function keep(job, news) {
  changes += 1;
  known.set(job.id, job);
  tell(job, news);
  if (await shelf.put(job)) unkept.delete(job.id);
  else unkept.add(job.id);
}

// The stream. Where there can be none, each job is looked at now and then.

const MOST = 50;
/** Seconds between two rounds of looks: soon at first, then patiently. */
const FIRST = 2, LONGEST = 15, GROWTH = 1.4;
/** Seconds of looks before a stream is tried again, doubled by each further refusal. */
const AGAIN = 60, AGAIN_AT_MOST = 480;
/** After this many connections without an event, something in between blocks streams. */
const BARREN = 3;
/** Refusals of the moment, not of the job. */
const PASSING = [401, 408, 409, 424, 429];

/** Whether a later look may succeed: only a definite refusal concerns the job itself. */
const isPassing = ({ status }) => !(status >= 400 && status < 500) || PASSING.includes(status);

/** A longer gap between two ticks means that the computer slept. */
const TICK = 15_000, SLEPT = 10;
/** The server ends each stream after five minutes, so an older one is dead. */
const OLDEST = 6 * 60_000;

const pause = (seconds) => new Promise((done) => { setTimeout(done, seconds * 1000); });

let ids = [];
let stream = null, named = '', barren = 0, begun = 0;
let isLooking = false, again = AGAIN;

function connect() {
  const query = ids.map((id) => `request_id=${encodeURIComponent(id)}`).join('&');
  if (query === named && (stream || !query)) return;
  close();
  named = query;
  if (!query) return;
  if (navigator.onLine === false) return void look();
  const mine = new EventSource(`./bff/events?${query}`);
  stream = mine;
  begun = Date.now();
  mine.addEventListener('open', () => { begun = Date.now(); });
  mine.addEventListener('job', ({ data }) => {
    if (mine !== stream) return;
    barren = 0;
    again = AGAIN;
    whenConnected(null);
    const { request_id: id, status } = JSON.parse(data);
    if (status) void received(id, status);
  });
  mine.addEventListener('problem', ({ data }) => {
    if (mine !== stream) return;
    const { request_id: id, ...facts } = JSON.parse(data);
    if (id) {
      const about = new TollgateError(facts);
      return void stumbled(id, about, isPassing(about));
    }
    // The stream itself is refused, and a browser would come back for ever.
    void look();
  });
  mine.addEventListener('error', () => {
    if (mine !== stream) return;
    // While the browser connects again by itself, nothing is lost.
    if (mine.readyState === EventSource.CLOSED || ++barren >= BARREN) void look();
  });
}

function close() {
  stream?.close();
  stream = null;
  named = '';
}

addEventListener('offline', () => {
  if (!ids.length) return;
  whenConnected({ code: 'offline' });
  void look();
});

let ticked = Date.now();
setInterval(() => {
  const slept = Date.now() - ticked > TICK * SLEPT;
  ticked = Date.now();
  if (!stream || !(slept || ticked - begun > OLDEST)) return;
  close();
  connect();
}, TICK);

/** Looks at each open job, until it is time to try a stream again. */
async function look() {
  close();
  if (isLooking) return;
  isLooking = true;
  barren = 0;
  const until = Date.now() + again * 1000;
  again = Math.min(AGAIN_AT_MOST, again * 2);
  for (let wait = FIRST; ids.length && Date.now() < until; wait = Math.min(LONGEST, wait * GROWTH)) {
    if (await backOnline()) break;
    const longer = await lookAtAll();
    if (ids.length) await pause(Math.max(wait, longer));
  }
  isLooking = false;
  connect();
}

/** One round; resolves with the seconds for which the service asks to be left alone. */
async function lookAtAll() {
  for (const id of [...ids]) {
    try {
      const body = await read(`/api/v1/video/status?request_id=${encodeURIComponent(id)}`);
      whenConnected(null);
      void received(id, body);
    } catch (problem) {
      if (!isPassing(problem)) {
        void stumbled(id, problem, false);
        continue;
      }
      // The next one would fare no better.
      whenConnected(problem);
      return problem.retryAfter ?? 0;
    }
  }
  return 0;
}

/** Whether the browser was offline and has come back. */
async function backOnline() {
  if (navigator.onLine !== false) return false;
  whenConnected({ code: 'offline' });
  await new Promise((online) => addEventListener('online', online, { once: true }));
  again = AGAIN;
  whenConnected(null);
  return true;
}

// A finished video shows in the title and, if the person wants it, as a notification.

let unseen = 0, isAlerting = false;
const isSeen = () => document.visibilityState === 'visible' && !byId('view-video').hidden;

/** Whether the bell is of use here; it is shown while a video is being made. */
export const canNotify = 'Notification' in globalThis && isSecureContext;

export function startAlerts() {
  if (isAlerting) return;
  isAlerting = true;
  // The shell sets the title without the badge.
  new MutationObserver(badge).observe(document.querySelector('title'), { childList: true });
  new MutationObserver(seen).observe(byId('view-video'), { attributeFilter: ['hidden'] });
  document.addEventListener('visibilitychange', seen);
  byId('jobs-notify').addEventListener('click', turn);
  showToggle();
}

/** A video has just ended. `first`: of several tabs, this one notifies. */
export function alertOfEnd(job, text, first) {
  if (isSeen()) return;
  unseen += 1;
  badge();
  if (!first || !isOn()) return;
  try {
    const note = new Notification(text, { body: job.payload.prompt.slice(0, 120), tag: job.id });
    note.addEventListener('click', () => {
      window.focus();
      location.hash = 'video';
      note.close();
    });
  } catch { /* some phones notify from service workers only; the title has the badge */ }
}

function seen() {
  if (!unseen || !isSeen()) return;
  unseen = 0;
  badge();
}

const BADGE = /^\(\d+\) /;

function badge() {
  const bare = document.title.replace(BADGE, '');
  const wanted = unseen ? `(${unseen}) ${bare}` : bare;
  if (document.title !== wanted) document.title = wanted;
}

const isOn = () => choice.get('notify') === 'on' && globalThis.Notification?.permission === 'granted';

async function turn() {
  if (isOn()) {
    choice.set('notify', 'off');
    announce(t('video.notificationsOff'));
  } else if ((await Notification.requestPermission()) === 'granted') {
    choice.set('notify', 'on');
    announce(t('video.notificationsOn'));
  }
  showToggle();
}

function showToggle() {
  byId('jobs-notify').ariaPressed = isOn();
  const isBlocked = globalThis.Notification?.permission === 'denied';
  byId('jobs-notify-hint').textContent = isBlocked ? t('video.notificationsBlocked') : '';
}

// What the service says of a video. The contract does not show that body: its words are settings, and guesses.

/** Parses a status body by the catalog's `jobs`: `{state, phase, percent, address}`, its phase `finished`, `failed` or `open`. */
export function understand(body, { finished, failed, result }) {
  const state = [field(body, 'status'), field(body, 'state')].find((value) => typeof value === 'string') ?? null;
  const address = result.map((pointer) => at(body, pointer)).map(webAddress).find(Boolean) ?? null;
  const word = state?.toLowerCase();
  // An unknown word counts as still running, never as failed.
  const phase = among(finished, word) || (state === null && address) ? 'finished' : among(failed, word) ? 'failed' : 'open';
  return { state, phase, percent: percentOf(field(body, 'progress')), address };
}

/** Why it failed, where the body has a text for that, or null. */
export function reason(body) {
  const texts = [field(body, 'error'), field(body, 'message'), field(body, 'reason')]
    .flatMap((value) => [value, field(value, 'message')]);
  return texts.find((text) => typeof text === 'string' && text.trim())?.slice(0, 500) ?? null;
}

/** The name of the file: the first words of the prompt, the day, and the extension of its address. */
export function fileName({ payload, at: ordered }, address) {
  const words = payload.prompt.toLowerCase().match(/[\p{L}\p{N}\p{M}]+/gu) ?? [];
  const start = [...words.slice(0, 8).join('-')].slice(0, 60).join('').replace(/-$/, '') || 'video';
  // Swedes write a day like this: 2026-01-31.
  const day = new Date(ordered).toLocaleDateString('sv');
  const ending = /\.(mp4|webm|mov|m4v|ogv|gif)$/i.exec(new URL(address).pathname)?.[1].toLowerCase() ?? 'mp4';
  return `${start}-${day}.${ending}`;
}

const isObject = (value) => value !== null && typeof value === 'object';

/** The outermost field of this name, in any case. */
function field(body, wanted) {
  return isObject(body) ? Object.entries(body).find(([name]) => name.toLowerCase() === wanted)?.[1] : undefined;
}

const among = (words, word) => words.some((one) => one.toLowerCase() === word);

/** The value at a JSON pointer (RFC 6901). */
function at(body, pointer) {
  return pointer.split('/').slice(1).map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'))
    .reduce((value, part) => (isObject(value) && Object.hasOwn(value, part) ? value[part] : undefined), body);
}

/** A whole address: a relative one would lead to this page's own host. */
function webAddress(value) {
  if (typeof value !== 'string' || !URL.canParse(value)) return null;
  const { protocol, href } = new URL(value);
  return protocol === 'https:' || protocol === 'http:' ? href : null;
}

/** Below 1 it is a share of one, from 1 on a percentage: while something runs, 1 is not all of it. */
function percentOf(progress) {
  if (typeof progress !== 'number' || !(progress >= 0 && progress <= 100)) return null;
  return Math.round(progress < 1 ? progress * 100 : progress);
}
