/** One stream of events for all open videos of all tabs; where there can be none, a look at each now and then. */

import { read } from '../core/site.js';
import { TollgateError } from '../core/transport.js';

/** As many jobs as one stream takes. */
const MOST = 50;
/** Seconds between two rounds of looks: soon at first, then patiently. */
const FIRST = 2, LONGEST = 15, GROWTH = 1.4;
/** Seconds of looks before a stream is tried again, doubled by each further refusal. */
const AGAIN = 60, AGAIN_AT_MOST = 480;
/** So many connections in a row that brought nothing: something on the way does not let streams through. */
const BARREN = 3;
/** Refusals of the moment, not of the job. */
const PASSING = [401, 408, 409, 424, 429];

/** Whether a later look can bring something else: only a definite refusal says something of the job itself. */
const isPassing = ({ status }) => !(status >= 400 && status < 500) || PASSING.includes(status);

/** Between two looks at the clock; a gap of this many says that the computer slept. */
const TICK = 15_000, SLEPT = 10;
/** The server ends each stream after five minutes: one that is older has died without a word. */
const OLDEST = 6 * 60_000;

const pause = (seconds) => new Promise((done) => { setTimeout(done, seconds * 1000); });

let ids = [];
let listener = null;
let stream = null, named = '', barren = 0, begun = 0;
let isLooking = false, again = AGAIN;

/**
 * Follows these jobs and no others from now on. Each call takes the place of the one before.
 * `received(id, body)` takes the latest status body of a job, `failed(id, problem, isPassing)` what is wrong with one job and whether a later
 * look can bring something else, and `connection(problem)` why no updates arrive, or null if they do.
 */
export function follow(wanted, handlers) {
  ids = wanted.slice(-MOST);
  listener = handlers;
  if (!isLooking) connect();
}

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
    listener.connection(null);
    const { request_id: id, status } = JSON.parse(data);
    if (status) listener.received(id, status);
  });
  mine.addEventListener('problem', ({ data }) => {
    if (mine !== stream) return;
    const { request_id: id, ...facts } = JSON.parse(data);
    if (id) {
      const about = new TollgateError(facts);
      return listener.failed(id, about, isPassing(about));
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
  listener.connection({ code: 'offline' });
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

/** Looks at each job until none is open any more, or it is time to try a stream again. */
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
      listener.connection(null);
      listener.received(id, body);
    } catch (problem) {
      if (!isPassing(problem)) {
        listener.failed(id, problem, false);
        continue;
      }
      // The next one would fare no better.
      listener.connection(problem);
      return problem.retryAfter ?? 0;
    }
  }
  return 0;
}

/** Whether the browser was offline and has come back. */
async function backOnline() {
  if (navigator.onLine !== false) return false;
  listener.connection({ code: 'offline' });
  await new Promise((online) => addEventListener('online', online, { once: true }));
  again = AGAIN;
  listener.connection(null);
  return true;
}
