/** Shows one video as a tile: first its progress, then the clip in its true shape, which plays while it is pointed at. */

import { button, element, twice } from '../core/dom.js';
import { clock, price } from '../core/format.js';
import { markFavourite, remove, standing, usualTime, watchJob } from './jobs.js';
import { fileName, reason } from './status.js';
import { TEXT } from './strings.js';

/**
 * A tile for this job, which is drawn again by `draw(job)` and goes on counting by `tick()`.
 * @param {object} job
 * @param {object} options mediaOrigins: where clips may be played from; isSandbox; promised(model): the time that the price list
 *   names, in milliseconds, or 0; reuse(payload): fills the form in; open(id): shows it large
 */
export function card(job, { mediaOrigins, isSandbox, promised, reuse, open }) {
  const { payload, costMicros, at } = job;
  const prompt = payload.prompt || TEXT.noPrompt;
  const parts = {
    chip: element('span', { class: 'chip' }), time: element('span', { class: 'elapsed' }), took: element('span'),
    expected: element('p', { class: 'hint' }), frame: element('div', { class: 'frame' }), said: element('div', { class: 'said' }),
    actions: element('div', { class: 'actions' }),
    star: element('button', { type: 'button', class: 'star', 'aria-label': TEXT.favouriteOf(start(prompt, 60)), click: () => void markFavourite(job.id) }),
    pick: element('input', { type: 'checkbox', class: 'pick', 'aria-label': TEXT.pick(start(prompt, 60)) }),
  };
  const item = element('li', { 'data-id': job.id }, element('article', { class: 'card job', 'aria-label': TEXT.videoBy(payload.model, start(prompt, 60)) },
    parts.frame, parts.star, parts.pick,
    element('div', { class: 'about' },
      element('p', { class: 'state' }, parts.chip, ' ', parts.took, ' ', day(at)),
      element('p', { class: payload.prompt ? 'plain clamp' : 'hint', dir: 'auto', title: payload.prompt, text: prompt }),
      element('p', { class: 'hint' }, `${payload.model} · ${payload.duration ? `${payload.duration} s · ` : ''}${price(costMicros)}`),
      parts.said, parts.actions)));
  let current = job, media = null, bar = null, offered = null;

  function draw(latest) {
    current = latest;
    const said = playableOf(current, mediaOrigins);
    item.firstChild.dataset.phase = said.phase;
    parts.chip.textContent = TEXT.states[said.phase];
    parts.pick.disabled = said.phase === 'open';
    parts.star.hidden = said.phase === 'open' || parts.frame.hidden;
    parts.star.ariaPressed = String(Boolean(current.favourite));
    parts.star.textContent = current.favourite ? '★' : '☆';
    drawFrame(said);
    parts.said.replaceChildren(...words(current, said, isSandbox));
    drawActions(said);
    tick();
  }

  /** The frame is rebuilt only when it shows something else: a clip may be playing in it. */
  function drawFrame({ phase, address, percent, playable }) {
    const isClip = phase === 'finished' && playable;
    const wanted = phase === 'finished' ? `${playable} ${address}` : phase;
    if (phase === 'open') bar ??= element('progress', { max: 100 });
    if (wanted !== media) {
      if (isClip) parts.frame.replaceChildren(clip(current, parts.frame), element('button', { type: 'button', class: 'enlarge', 'aria-label': TEXT.enlarge(start(prompt, 60)), click: () => open(current.id) }));
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
      button(TEXT.details, () => open(current.id), 'quiet small'),
      phase !== 'open' && twice(TEXT.remove, TEXT.removeSure, () => remove(current.id), { kind: 'quiet small' }),
    ].filter(Boolean);
    // A button that has the focus, or was pressed once of twice, stays.
    const kinds = `${phase} ${playable} ${address}`;
    if (kinds === offered) return;
    offered = kinds;
    const hadFocus = parts.actions.contains(document.activeElement);
    parts.actions.replaceChildren(...wanted);
    if (hadFocus) wanted[0].focus();
  }

  /** One clock: the time that is left, by the reported share or by the usual time of the model. */
  function tick() {
    if (!current.open) {
      const { phase } = standing(current);
      parts.took.textContent = current.took > 0 ? (phase === 'finished' ? TEXT.madeIn : TEXT.after)(clock(current.took)) : '';
      return;
    }
    parts.took.textContent = '';
    const elapsed = Date.now() - at;
    const learnt = usualTime(payload.model)?.time;
    const usual = learnt ?? promised(payload.model);
    const percent = bar.dataset.percent;
    const left = timeLeft(elapsed, usual, Number(percent));
    parts.time.textContent = left > 0 ? TEXT.left(clock(left)) : clock(elapsed);
    parts.expected.textContent = !usual ? TEXT.timeUnknown : elapsed > usual ? TEXT.late(clock(usual)) : (learnt ? TEXT.usually : TEXT.promised)(clock(usual));
    const [value, most, label] = percent ? [percent, 100, TEXT.progress.reported(percent)]
      : left > 0 ? [elapsed, elapsed + left, TEXT.progress.byTime(clock(elapsed), clock(elapsed + left))]
        : [null, 100, TEXT.progress.unknown];
    bar.max = most;
    if (value === null) bar.removeAttribute('value');
    else bar.value = value;
    bar.ariaLabel = label;
  }

  draw(job);
  return { item, wishes: JSON.stringify(payload), draw, tick };
}

/** In milliseconds; 0 if it is not known. A share counts once it says something. */
export function timeLeft(elapsed, usual, percent) {
  if (percent >= 5 && percent < 100) return elapsed * (100 - percent) / percent;
  return usual ? Math.max(0, usual - elapsed) : 0;
}

/** The parsed status, and whether its clip may be played here. */
export function playableOf(job, mediaOrigins) {
  const said = standing(job);
  return { ...said, playable: said.address && mediaOrigins.includes(new URL(said.address).origin) };
}

/** The status in words. */
export function words({ body, trouble, costMicros }, { state, phase, percent, address, playable }, isSandbox) {
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

export const contentOf = (id) => `./bff/video/content?request_id=${encodeURIComponent(id)}`;

/** A clip begins to load when it comes near the view: of forty, most are never looked at. */
const soon = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    soon.unobserve(target);
    target.preload = 'metadata';
    target.src = target.dataset.src;
  }
}, { rootMargin: '600px' });

/** The clip: it plays without sound while its tile is pointed at or has the focus. */
function clip(job, frame) {
  const box = element('div', { class: 'clip' });
  const load = () => {
    const video = element('video', {
      // Some phones show no picture before playing without a start time.
      'data-src': `${contentOf(job.id)}#t=0.001`, playsinline: true, loop: true, preload: 'none',
      'aria-label': start(job.payload.prompt || TEXT.noPrompt, 200),
      error: () => box.replaceChildren(element('div', { class: 'broken' },
        element('p', { text: TEXT.clipBroken }), button(TEXT.tryAgain, load, 'quiet small'))),
    });
    video.muted = true;
    box.replaceChildren(video);
    soon.observe(video);
  };
  const play = () => {
    if (!matchMedia('(prefers-reduced-motion: reduce)').matches) box.querySelector('video')?.play().catch(() => {});
  };
  const stop = () => box.querySelector('video')?.pause();
  for (const sign of ['pointerenter', 'focusin']) frame.addEventListener(sign, play);
  for (const sign of ['pointerleave', 'focusout']) frame.addEventListener(sign, stop);
  load();
  return box;
}

export function outside(address) {
  return element('a', { href: address, target: '_blank', rel: 'noopener noreferrer', title: new URL(address).origin, text: TEXT.openClip });
}

function day(at) {
  const date = new Date(at);
  return element('time', { datetime: date.toISOString(), text: date.toLocaleString([], { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' }) });
}

export const start = (text, most) => (text.length > most ? `${[...text].slice(0, most).join('')}…` : text);
