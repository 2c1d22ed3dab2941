/** Shows one video as a card: first its progress, then the clip and its file. */

import { button, element, twice } from '../core/dom.js';
import { clock, price } from '../core/format.js';
import { remove, standing, usualTime, watchJob } from './jobs.js';
import { fileName, reason } from './status.js';
import { TEXT } from './strings.js';

/** Beyond this, a status body is cut: it is shown for people. */
const LONGEST_BODY = 20_000;

/**
 * A card for this job, which is drawn anew by `draw(job)` and goes on counting by `tick()`.
 * @param {object} job
 * @param {{mediaOrigins: string[], isSandbox: boolean, reuse: (payload: object) => void}} options
 */
export function card(job, { mediaOrigins, isSandbox, reuse }) {
  const parts = {
    chip: element('span', { class: 'chip' }), time: element('span', { class: 'elapsed' }), took: element('span'),
    expected: element('p', { class: 'hint' }), frame: element('div', { class: 'frame' }), said: element('div', { class: 'said' }),
    actions: element('div', { class: 'actions' }), details: element('details', {}, element('summary', { text: TEXT.details })),
  };
  const { payload, costMicros, at } = job;
  const prompt = payload.prompt || TEXT.noPrompt;
  const item = element('li', {}, element('article', { class: 'card job', 'aria-label': TEXT.videoBy(payload.model, start(prompt, 60)) },
    parts.frame,
    element('div', { class: 'about' },
      element('p', { class: 'state' }, parts.chip, ' ', parts.took),
      element('p', { class: payload.prompt ? 'plain clamp' : 'hint', text: prompt }),
      element('p', { class: 'hint' }, `${payload.model} · ${payload.duration ? `${payload.duration} s · ` : ''}${price(costMicros)} · `, day(at)),
      parts.said, parts.actions, parts.details)));
  let current = job, media = null, bar = null, offered = null;

  function draw(latest) {
    current = latest;
    const said = standing(current);
    said.playable = said.address && mediaOrigins.includes(new URL(said.address).origin);
    item.firstChild.dataset.phase = said.phase;
    parts.chip.textContent = TEXT.states[said.phase];
    drawFrame(said);
    parts.said.replaceChildren(...words(current, said, isSandbox));
    drawActions(said);
    drawDetails(said);
    tick();
  }

  /** The frame is made anew only when it is to show something else: a clip may be playing in it. */
  function drawFrame({ phase, address, percent, playable }) {
    const isClip = phase === 'finished' && playable;
    const wanted = phase === 'finished' ? `${playable} ${address}` : phase;
    if (phase === 'open') bar ??= element('progress', { max: 100 });
    if (wanted !== media) {
      if (isClip) parts.frame.replaceChildren(clip(current, address));
      else parts.frame.replaceChildren(...(phase === 'open' ? [element('div', { class: 'waiting' }, parts.time, bar, parts.expected)] : []));
      parts.frame.hidden = phase !== 'open' && !isClip;
      media = wanted;
    }
    if (phase === 'open') bar.dataset.percent = percent ?? '';
  }

  function drawActions({ phase, address, playable }) {
    const wanted = [
      phase === 'finished' && playable && element('a', {
        href: contentOf(current.id), download: fileName(current, address), text: TEXT.download,
      }),
      address && !playable && phase !== 'failed' && outside(address),
      ['left', 'gone'].includes(phase) && !current.id.startsWith('unnamed-') && button(TEXT.watchAgain, () => watchJob(current.id, true), 'quiet small'),
      payload.prompt && button(TEXT.useAgain, () => reuse(payload), 'quiet small'),
      phase === 'open' && titled(button(TEXT.hide, () => watchJob(current.id, false), 'quiet small'), TEXT.hideHint(price(costMicros))),
      phase !== 'open' && twice(TEXT.remove, TEXT.removeSure, () => remove(current.id), { kind: 'quiet small' }),
    ].filter(Boolean);
    // A button that somebody is on, or has pressed once of twice, is not taken from under them.
    const kinds = `${phase} ${playable} ${address}`;
    if (kinds === offered) return;
    offered = kinds;
    const hadFocus = parts.actions.contains(document.activeElement);
    parts.actions.replaceChildren(...wanted);
    if (hadFocus) wanted[0].focus();
  }

  function drawDetails({ address }) {
    const facts = [
      [TEXT.facts.ordered, new Date(at).toLocaleString()],
      current.took > 0 && [TEXT.facts.took, clock(current.took)],
      payload.aspect_ratio && [TEXT.facts.shape, payload.aspect_ratio],
      payload.image_url && [TEXT.facts.startedFrom, payload.image_url],
      [TEXT.facts.request, current.id],
    ].filter(Boolean);
    parts.details.replaceChildren(...[
      parts.details.firstChild,
      payload.prompt && element('p', { class: 'plain whole', text: payload.prompt }),
      element('dl', {}, ...facts.flatMap(([name, value]) => [element('dt', { text: name }), element('dd', { text: value })])),
      address && element('p', {}, outside(address)),
      current.body && element('p', { class: 'hint', text: TEXT.rawReply }),
      current.body && element('pre', { tabindex: '0', text: start(JSON.stringify(current.body, null, 2), LONGEST_BODY) }),
    ].filter(Boolean));
  }

  /** Time is what is known of progress; a percentage is shown only where the service reports one. */
  function tick() {
    if (!current.open) {
      const { phase } = standing(current);
      parts.took.textContent = current.took > 0 ? (phase === 'finished' ? TEXT.madeIn : TEXT.after)(clock(current.took)) : '';
      return;
    }
    parts.took.textContent = '';
    const elapsed = Date.now() - at;
    const usual = usualTime(payload.model);
    const late = usual && elapsed > usual.time;
    parts.time.textContent = clock(elapsed);
    parts.expected.textContent = !usual ? TEXT.timeUnknown : (late ? TEXT.late : TEXT.usually)(clock(usual.time));
    const percent = bar.dataset.percent;
    const [value, most, label] = percent ? [percent, 100, TEXT.progress.reported(percent)]
      : usual && !late ? [elapsed, usual.time, TEXT.progress.byTime(clock(elapsed), clock(usual.time))]
        : [null, 100, TEXT.progress.unknown];
    bar.max = most;
    if (value === null) bar.removeAttribute('value');
    else bar.value = value;
    bar.ariaLabel = label;
  }

  draw(job);
  return { item, prompt: payload.prompt, draw, tick };
}

/** The status in words. */
function words({ body, trouble, costMicros }, { state, phase, percent, address, playable }, isSandbox) {
  const said = [];
  if (phase === 'open') {
    said.push(element('p', { class: 'pending', text: state ? TEXT.status(state, percent) : TEXT.firstStatus }));
  } else if (phase === 'finished' && !address) {
    said.push(element('p', { text: TEXT.noAddress }));
  } else if (phase === 'finished' && !playable) {
    // Each run of the sandbox serves its clips from a port of its own.
    said.push(element('p', { class: 'hint', text: isSandbox ? TEXT.sandboxGone : TEXT.notPlayable(new URL(address).origin) }));
  } else if (phase === 'failed') {
    const why = reason(body);
    said.push(element('p', { class: 'fault', text: TEXT.failed(state) }),
      why && element('p', { text: TEXT.gatewaySays(why) }),
      element('p', { text: TEXT.failedCost(price(costMicros)) }));
  } else if (phase === 'left') {
    said.push(element('p', { text: TEXT.hidden(state, price(costMicros)) }));
  } else if (phase === 'gone' && state) {
    said.push(element('p', { text: TEXT.lastStatus(state) }));
  }
  if (trouble) said.push(element('p', { class: 'hint', text: trouble }));
  return said.filter(Boolean);
}

function titled(made, title) {
  made.title = title;
  return made;
}

const contentOf = (id) => `/bff/video/content?request_id=${encodeURIComponent(id)}`;

/** A clip begins to load when it comes near the view: of forty, most are never looked at. */
const soon = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    soon.unobserve(target);
    target.preload = 'metadata';
    target.src = target.dataset.src;
  }
}, { rootMargin: '600px' });

function clip(job, address) {
  const box = element('div', { class: 'clip' });
  const load = () => {
    const video = element('video', {
      // Some phones show no picture before the first second unless they are told where to be.
      'data-src': `${contentOf(job.id)}#t=0.001`, controls: true, playsinline: true, preload: 'none',
      'aria-label': start(job.payload.prompt || TEXT.noPrompt, 200),
      error: () => box.replaceChildren(element('div', { class: 'broken' },
        element('p', { text: TEXT.clipBroken }), button(TEXT.tryAgain, load, 'quiet small'))),
    });
    box.replaceChildren(video);
    soon.observe(video);
  };
  load();
  return box;
}

function outside(address) {
  return element('a', { href: address, target: '_blank', rel: 'noopener noreferrer', title: new URL(address).origin, text: TEXT.openClip });
}

function day(at) {
  const date = new Date(at);
  return element('time', { datetime: date.toISOString(), text: date.toLocaleString([], { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' }) });
}

const start = (text, most) => (text.length > most ? `${[...text].slice(0, most).join('')}…` : text);
