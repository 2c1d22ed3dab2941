/** Watches the videos that are being made, across reloads, and shows each as a card. */

import { Refusal, pause, read } from './api.js';
import { price } from './catalog.js';
import { announce, button, byId, clock, element } from './dom.js';
import { sentence } from './problems.js';
import { jobs } from './store.js';
import { follow } from './stream.js';

/** Seconds between two looks: soon at first, then patiently. */
const FIRST = 2, LONGEST = 10, GROWTH = 1.4;

const ENDED = { finished: true, failed: true };

let words, whenReused;
const cards = new Map();

/** Shows all jobs that are kept and goes on watching the open ones. `jobWords`: the catalog's `jobs`. */
export async function startJobs(jobWords, { reuse }) {
  words = jobWords;
  whenReused = reuse;
  for (const job of (await jobs.all()).sort((one, other) => one.at - other.at)) show(job);
  watchOpen();
  setInterval(() => cards.forEach(({ job, elapsed }) => {
    if (job.open) elapsed.textContent = clock(Date.now() - job.at);
  }), 1000);
}

/** Makes a job of an accepted order; the same order twice is one job. */
export async function takeIn({ reply, payload, tollMicros, at }) {
  const id = typeof reply?.request_id === 'string' ? reply.request_id : null;
  if (id && (await jobs.one(id))) return;
  const job = {
    id: id ?? `unnamed-${at}`, payload, tollMicros, at, open: Boolean(id), body: id ? null : reply,
    trouble: id ? null : 'The order was accepted, but the answer names no job to ask after.',
  };
  await jobs.put(job);
  show(job);
  watchOpen();
}

/**
 * Reads a status body, whose shape the contract does not show, by the words that are configured.
 * @returns {{state: string | null, phase: 'finished' | 'failed' | 'open', percent: number | null, address: string | null}}
 */
export function understand(body, { finished, failed, result }) {
  const field = (wanted) => Object.entries(body ?? {}).find(([name]) => name.toLowerCase() === wanted)?.[1];
  const state = [field('status'), field('state')].find((value) => typeof value === 'string') ?? null;
  const address = result.map((pointer) => at(body, pointer)).map(webAddress).find(Boolean) ?? null;
  const word = state?.toLowerCase();
  const phase = among(finished, word) || (state === null && address) ? 'finished' : among(failed, word) ? 'failed' : 'open';
  return { state, phase, percent: percentOf(field('progress')), address };
}

const among = (words, word) => words.some((one) => one.toLowerCase() === word);

/** What a JSON pointer leads to (RFC 6901). */
function at(body, pointer) {
  return pointer.split('/').slice(1).map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'))
    .reduce((value, part) => (value !== null && typeof value === 'object' && Object.hasOwn(value, part) ? value[part] : undefined), body);
}

function webAddress(value) {
  if (typeof value !== 'string' || !value || !URL.canParse(value, location.href)) return null;
  const { protocol, href } = new URL(value, location.href);
  return protocol === 'https:' || protocol === 'http:' ? href : null;
}

/** Below 1 it is a share of one, from 1 on a percentage: while something runs, 1 is not all of it. */
function percentOf(progress) {
  if (typeof progress !== 'number' || !(progress >= 0 && progress <= 100)) return null;
  return Math.round(progress < 1 ? progress * 100 : progress);
}

function show(job) {
  const said = element('div');
  const elapsed = element('span', { class: 'elapsed' });
  const { payload, tollMicros, id } = job;
  const remove = async () => {
    cards.get(id)?.item.remove();
    cards.delete(id);
    job.open = false;
    watchOpen();
    byId('jobs-empty').hidden = byId('jobs').children.length > 0;
    await jobs.delete(id);
    byId('jobs-heading').focus();
  };
  const item = element('li', {}, element('article', { class: 'card job', 'aria-label': `Video by ${payload.model}` },
    element('p', { class: 'plain clamp', text: payload.prompt }),
    element('p', { class: 'hint' }, `${payload.model} · ${payload.duration} s · ${price(tollMicros)} · `, elapsed),
    said,
    element('div', { class: 'actions' }, button('Use this prompt again', () => whenReused(payload)), button('Remove from this list', remove))));
  cards.get(id)?.item.remove();
  cards.set(id, { job, item, said, elapsed });
  byId('jobs').prepend(item);
  byId('jobs-empty').hidden = true;
  elapsed.textContent = job.open ? clock(Date.now() - job.at) : job.took ? `took ${clock(job.took)}` : '';
  draw(job);
}

/** One stream tells of all open jobs; where there is none, each is looked after on its own. */
function watchOpen() {
  const open = [...cards.values()].map(({ job }) => job).filter((job) => job.open && !job.polled);
  follow(open.map(({ id }) => id), {
    told: (id, body) => change(id, (job) => heard(job, body)),
    failed: (id, problem) => change(id, (job) => stumbled(job, problem)),
    lost: () => open.forEach((job) => void poll(job)),
  });
}

/** Something is known of a job that may have been removed meanwhile. */
async function change(id, apply) {
  const job = cards.get(id)?.job;
  if (!job?.open) return;
  apply(job);
  await keep(job);
  if (!job.open) watchOpen();
}

/** Looks after one job until it has ended or is removed. */
async function poll(job) {
  if (job.polled) return;
  job.polled = true;
  for (let wait = FIRST; job.open; wait = Math.min(LONGEST, wait * GROWTH)) {
    let longer = 0;
    try {
      heard(job, await read(`/api/v1/video/status?request_id=${encodeURIComponent(job.id)}`));
    } catch (problem) {
      stumbled(job, problem);
      longer = problem.retryAfter ?? 0;
    }
    if (!cards.has(job.id)) return;
    await keep(job);
    if (job.open) await rest(Math.max(wait, longer));
  }
}

function heard(job, body) {
  job.body = body;
  job.trouble = null;
  end(job, understand(body, words));
}

function stumbled(job, problem) {
  const gone = problem instanceof Refusal && problem.status >= 400
    && problem.status < 500 && ![408, 409, 424, 429].includes(problem.status);
  job.trouble = gone ? sentence(problem) : `${sentence(problem)} The video goes on; looking again soon.`;
  if (gone) job.open = false;
}

async function keep(job) {
  const { polled, ...kept } = job;
  await jobs.put(kept);
  if (cards.has(job.id)) draw(job);
}

function end(job, { phase }) {
  if (!ENDED[phase]) return;
  job.open = false;
  job.took = Date.now() - job.at;
  cards.get(job.id).elapsed.textContent = `took ${clock(job.took)}`;
  announce(phase === 'finished' ? 'A video is finished.' : 'A video could not be made.');
}

/** Waits; offline, until the browser is online again. */
async function rest(seconds) {
  await pause(seconds);
  if (navigator.onLine === false) await new Promise((online) => addEventListener('online', online, { once: true }));
}

function draw(job) {
  const { said } = cards.get(job.id);
  const { state, phase, percent, address } = understand(job.body, words);
  const parts = [];
  if (phase === 'finished') {
    parts.push(address ? (plays(address) ? clip(address, job) : elsewhere(address)) : element('p', { text: 'Finished, but the answer names no address that this page knows how to find.' }));
  } else if (phase === 'failed') {
    parts.push(element('p', { class: 'fault', text: `The video could not be made (“${state}”). It was charged when it was ordered.` }));
  } else if (job.open) {
    parts.push(element('p', { class: 'pending', text: state ? `Status: ${state}` : 'Waiting for the first status' }),
      element('progress', { max: 100, value: percent, 'aria-label': 'Progress' }));
    if (address) parts.push(outside(address));
  } else if (state) {
    parts.push(element('p', { text: `Last status: ${state}` }));
  }
  if (job.trouble) parts.push(element('p', { class: 'hint', text: job.trouble }));
  if (job.body && (phase !== 'finished' || !address)) {
    const kept = said.querySelector('details')?.open;
    parts.push(element('details', { open: kept }, element('summary', { text: 'What the service says' }),
      element('pre', { tabindex: '0', text: JSON.stringify(job.body, null, 2).slice(0, 20_000) })));
  }
  said.replaceChildren(...parts);
}

/** Whether the service may fetch the clip for us: this page itself loads nothing from elsewhere. */
function plays(address) {
  return (words.media_origins ?? []).includes(new URL(address).origin);
}

function elsewhere(address) {
  return element('div', {}, element('p', {
    text: `Finished. Whoever runs this service can have it played here by listing ${new URL(address).origin} in page.media_origins.`,
  }), outside(address));
}

function clip(address, job) {
  const box = element('div', { class: 'clip' });
  const video = element('video', {
    src: `/bff/video/content?request_id=${encodeURIComponent(job.id)}`, controls: true, playsinline: true, preload: 'metadata', 'aria-label': job.payload.prompt.slice(0, 200),
    error: () => box.replaceChildren(element('p', {
      text: 'The clip cannot be played right now.',
    }), outside(address)),
  });
  box.append(video, outside(address));
  return box;
}

function outside(address) {
  return element('p', {}, element('a', { href: address, target: '_blank', rel: 'noopener noreferrer', text: 'Open the clip by itself' }));
}
