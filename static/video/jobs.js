/** Keeps every ordered video, across tabs and reloads, and follows the open ones. */

import { sentence } from '../core/problems.js';
import { read } from '../core/site.js';
import { isNobody, jobs as shelf, own, whenChangedElsewhere } from '../core/store.js';
import { understand } from './status.js';
import { TEXT } from './strings.js';

/**
 * A job: `{id, payload, costMicros, at, open, left, body, trouble, took, favourite}`. `open`: it is being watched; `left`: the
 * person stopped watching it; `took`: how long it was in the making, by the server's clock, in milliseconds. Of one
 * that was ordered elsewhere, the length is not known, and the prompt only if the server keeps it. What is kept of one that was removed is `{id, removed: true}`.
 */
const known = new Map();
/** Before stream.js is asked for again, in milliseconds. */
const RETRY = 5_000;
/** Those that only this tab remembers, since the browser keeps nothing. */
const unkept = new Set();

let words, tell, whenConnected;
let leads = false;
/** Counts what this tab has changed: what was read before is older. */
let changes = 0;

/**
 * Takes up all jobs that are kept and goes on watching the open ones.
 * @param {object} jobWords the catalog's `jobs`
 * @param {{changed: (job: object, news: {ended?: boolean, removed?: boolean, first?: boolean}) => void,
 *   connection: (problem: Error | null) => void}} listener `ended`: just now; `first`: this tab is the first to know
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

/** All of them, as this tab knows them. */
export const all = () => [...known.values()];

/** Makes a job of an accepted order; the same order twice is one job. */
export async function takeIn({ reply, payload, costMicros, at }) {
  const id = typeof reply?.requestId === 'string' ? reply.requestId : null;
  const before = id && (known.get(id) ?? (await shelf.one(id)));
  if (before?.removed || before?.payload.duration) return;
  await keep({
    id: id ?? `unnamed-${at}`, costMicros, at, open: Boolean(id), left: false, body: id ? null : reply.raw, took: null,
    trouble: id ? null : TEXT.noJob, ...before, payload,
  }, {});
  watchOpen();
}

/** Takes in those of the server's `rows` that this browser does not hold: another one, or a program, ordered them. */
export async function takeUp(rows) {
  const held = new Set((await shelf.all()).map(({ id }) => id));
  for (const row of rows) {
    const { request_id: id, model, price_micros: costMicros, ordered_at: at, status: body, prompt = '' } = row;
    const open = row.state === 'open';
    const job = { id, payload: { model, prompt }, costMicros, at: Date.parse(at), open, left: false, body, trouble: null, took: open ? null : tookOf(row) };
    // Another tab's newer record stays.
    if (!held.has(id)) await shelf.change(id, () => {}, job);
  }
  await refresh();
}

/**
 * Forgets a job; what it cost stays spent. One that the server may list is marked, or it would come back. It is shown until that is kept:
 * a reload cuts off what is still being written, and the job would come back.
 */
export async function remove(id) {
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

/** The parsed status of a job. `phase` can also be `left` (hidden by the person) and `gone` (not followed any more). */
export function standing(job) {
  const said = understand(job.body, words);
  if (said.phase !== 'open' || job.open) return said;
  return { ...said, phase: job.left ? 'left' : 'gone' };
}

/** How long videos of this model took here: the median, and of how many. Null where none is known. */
export function usualTime(model) {
  const times = all().filter((job) => job.payload.model === model && job.took > 0 && understand(job.body, words).phase === 'finished')
    .map((job) => job.took).sort((one, other) => one - other);
  return times.length ? { time: times[Math.floor(times.length / 2)], count: times.length } : null;
}

/** Takes in what other tabs wrote. */
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

/** Calls `begin()` once this tab is to follow the jobs of all tabs: now, or when the one that does is closed. */
function lead(begin) {
  // Plain http beyond loopback has no locks: each tab follows them there.
  if (!navigator.locks) return begin();
  void navigator.locks.request(own('stream'), () => {
    begin();
    return new Promise(() => {});
  });
}

/** stream.js, once there is something to follow. */
let stream = null;

/** Loads what follows a job, so that an order need not wait for it. */
export function loadStream() {
  stream ??= import('./stream.js').catch((error) => {
    stream = null;
    throw error;
  });
  return stream;
}

/** One tab follows the jobs of all tabs; jobs that only this tab remembers are followed here. */
async function watchOpen() {
  const mine = () => all().filter((job) => job.open && (leads || unkept.has(job.id))).map(({ id }) => id);
  if (!stream && !mine().length) return;
  try {
    const { follow } = await loadStream();
    follow(mine(), { received, failed: stumbled, connection: whenConnected });
  } catch {
    whenConnected({ code: navigator.onLine === false ? 'offline' : 'connection_lost' });
    setTimeout(watchOpen, RETRY);
  }
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
  const trouble = goesOn ? TEXT.goesOn(sentence(problem)) : sentence(problem);
  await keep({ ...job, trouble, open: goesOn }, {});
  watchOpen();
}

/** How long it took, by one clock: this computer may have slept when it was finished. */
async function measure(id) {
  let row;
  try {
    row = (await read(`/bff/jobs?request_id=${encodeURIComponent(id)}`)).jobs.find((one) => one.request_id === id);
  } catch {
    return; // It is only missing from the usual times.
  }
  const took = tookOf(row);
  const job = known.get(id);
  if (job && took > 0) await keep({ ...job, took }, {});
}

const tookOf = (row) => Date.parse(row?.at) - Date.parse(row?.ordered_at);

async function keep(job, news) {
  changes += 1;
  known.set(job.id, job);
  tell(job, news);
  if (await shelf.put(job)) unkept.delete(job.id);
  else unkept.add(job.id);
}
