/** The tile of a video: its progress, then its clip, which plays while it is pointed at; and the menu of what can be done with it. */

import { button, byId, element, icon, twice } from '../core/dom.js';
import { clock, price, t } from '../core/format.js';
import { fileName, markFavourite, reason, remove, standing, usualTime, watchJob } from './jobs.js';
import { promised } from './video.js';

/** States that say no more than the progress does. Any other is shown as it is. */
const USUAL_STATES = ['queued', 'pending', 'processing', 'running', 'in_progress', 'generating'];

let page;

/** `listener`: `mediaOrigins` of clips that may be played here, `isSandbox`, `reuse(payload)` and `openLarge(id)`. */
export function startTiles(listener) {
  page = listener;
}

/** Makes a tile: `{item, wishes, draw(job), tick()}`. */
export function tile(job) {
  const { payload, at } = job;
  const prompt = payload.prompt || t('video.noPrompt');
  const short = shortened(prompt, 60);
  const about = element('span'), state = element('span', { class: 'unseen chip' });
  const parts = {
    time: element('p', { class: 'elapsed' }), expected: element('p', { class: 'hint' }), said: element('div'), media: element('div'),
    enlarge: element('button', { type: 'button', class: 'enlarge', 'aria-keyshortcuts': 'J K', click: () => page.openLarge(job.id) }),
    star: iconButton('star', t('video.favouriteOf', short), () => void markFavourite(job.id)),
    file: element('a', { 'aria-label': t('video.download'), title: t('video.download'), tabindex: '-1' }, icon('down')),
    again: iconButton('again', t('video.useAgain'), () => page.reuse(payload)),
    more: iconButton('more', t('video.actions', short), () => openMenu(current, parts.more)),
    pick: element('input', { type: 'checkbox', class: 'pick', 'aria-label': t('video.pick', short) }),
  };
  // What the other icons do is in the menu, too: with the keyboard, a tile is two stops.
  parts.more.tabIndex = 0;
  parts.more.ariaHasPopup = 'true';
  parts.more.title = '';
  parts.again.hidden = !payload.prompt;
  const frame = element('div', { class: 'frame' }, parts.media, parts.enlarge, element('div', { class: 'over' }, parts.star, parts.file, parts.again, parts.more));
  const item = element('li', { 'data-id': job.id }, element('article', { class: 'job', 'aria-label': t('video.videoBy', payload.model, short) },
    frame, parts.pick, element('p', { class: payload.prompt ? 'plain caption' : 'caption hint', dir: 'auto', title: payload.prompt, text: prompt }),
    element('p', { class: 'hint' }, about, ' ', state)));
  for (const sign of ['pointerenter', 'focusin']) item.addEventListener(sign, () => play(item));
  for (const sign of ['pointerleave', 'focusout']) item.addEventListener(sign, () => item.querySelector('video')?.pause());
  let current = job, media = null, bar = null;

  function sayAbout(seconds) {
    about.textContent = [payload.model, seconds && t('video.seconds', seconds)].filter(Boolean).join(' · ');
  }

  function draw(latest) {
    current = latest;
    const said = playableOf(current);
    const isClip = said.phase === 'finished' && Boolean(said.playable);
    item.firstChild.dataset.phase = said.phase;
    parts.pick.disabled = said.phase === 'open';
    parts.enlarge.ariaLabel = t(isClip ? 'video.enlarge' : 'video.detailsOf', short);
    for (const part of [parts.star, parts.file]) part.hidden = !isClip;
    parts.star.ariaPressed = String(Boolean(current.favourite));
    if (isClip) {
      parts.file.href = contentOf(current.id);
      parts.file.download = fileName(current, said.address);
    }
    drawMedia(said, isClip);
    tick();
  }

  /** It is rebuilt only when it shows something else: a clip may be playing in it. */
  function drawMedia({ phase, address, percent, playable, state: word }, isClip) {
    const wanted = phase === 'finished' ? `${playable} ${address}` : phase;
    if (phase === 'open') bar ??= element('progress', { max: 100 });
    if (wanted !== media) {
      media = wanted;
      const made = isClip ? clip(current, sayAbout)
        : phase === 'open' ? element('div', { class: 'waiting' }, parts.time, parts.expected, parts.said, bar) : element('div', { class: 'said' });
      parts.media.replaceWith(made);
      parts.media = made;
    }
    if (phase === 'open') {
      bar.dataset.percent = percent ?? '';
      const isUsual = !word || USUAL_STATES.includes(word.toLowerCase());
      parts.said.replaceChildren(...[!isUsual && t('video.status', word, percent), current.trouble].filter(Boolean).map((text) => element('p', { class: 'hint', text })));
    } else if (!isClip) parts.media.replaceChildren(...words(current, playableOf(current), true));
  }

  /** One clock: the time that is left, by the reported share or by the usual time of the model. */
  function tick() {
    const { phase } = standing(current);
    const took = current.took > 0 && !current.open ? t(phase === 'finished' ? 'video.madeIn' : 'video.after', clock(current.took)) : '';
    state.textContent = [t(`video.phase.${phase}`), took].filter(Boolean).join(', ');
    if (!current.open) return;
    const elapsed = Date.now() - at;
    const learnt = usualTime(payload.model)?.time;
    const usual = learnt ?? promised(payload.model);
    const percent = bar.dataset.percent;
    const left = timeLeft(elapsed, usual, Number(percent));
    parts.time.textContent = left > 0 ? t('video.left', clock(left)) : clock(elapsed);
    parts.expected.textContent = !usual ? (left > 0 ? '' : t('video.phase.open')) : elapsed > usual ? t('video.late', clock(usual)) : t(learnt ? 'video.usually' : 'video.promised', clock(usual));
    const [value, most, label] = percent ? [percent, 100, t('video.progress.reported', percent)]
      : left > 0 ? [elapsed, elapsed + left, t('video.progress.byTime', clock(elapsed), clock(elapsed + left))]
        : [null, 100, t('video.progress.unknown')];
    bar.max = most;
    if (value === null) bar.removeAttribute('value');
    else bar.value = value;
    bar.ariaLabel = label;
  }

  sayAbout(payload.duration);
  draw(job);
  return { item, wishes: JSON.stringify(payload), draw, tick };
}

function iconButton(name, label, act) {
  return element('button', { type: 'button', class: name, 'aria-label': label, title: label, tabindex: '-1', click: act }, icon(name));
}

let menu = null;

/** All that can be done with a video; one menu serves all tiles. */
function openMenu(job, opener) {
  if (!menu) {
    menu = element('div', { id: 'tile-menu', class: 'panel pop tile-menu', role: 'group', popover: 'auto' });
    byId('view-video').append(menu);
  }
  const { phase, address, playable } = playableOf(job);
  const isClip = phase === 'finished' && playable;
  const act = (name, text, then) => element('button', { type: 'button', click: () => { menu.hidePopover(); then(); } }, icon(name), text);
  menu.ariaLabel = opener.ariaLabel;
  menu.replaceChildren(...[
    act('video', t('page.details'), () => page.openLarge(job.id)),
    isClip && element('a', { href: contentOf(job.id), download: fileName(job, address), click: () => menu.hidePopover() }, icon('down'), t('video.download')),
    isClip && act('star', job.favourite ? t('video.unfavourite') : t('video.favourite'), () => void markFavourite(job.id)),
    job.payload.prompt && act('again', t('video.useAgain'), () => page.reuse(job.payload)),
    address && !playable && phase !== 'failed' && outside(address),
    ['left', 'gone'].includes(phase) && !job.id.startsWith('unnamed-') && act('video', t('video.watchAgain'), () => watchJob(job.id, true)),
    phase === 'open' && act('close', t('video.hide'), () => watchJob(job.id, false)),
    phase === 'open' && element('p', { class: 'hint', text: t('video.hideHint', price(job.costMicros)) }),
    phase !== 'open' && twice(t('video.remove'), t('video.removeSure'), () => {
      menu.hidePopover();
      void remove(job.id);
    }, { kind: 'bin' }),
  ].filter(Boolean));
  const { top, bottom, right } = opener.getBoundingClientRect();
  const height = document.documentElement.clientHeight;
  const isAbove = top > height / 2;
  menu.style.setProperty('--x', `${right - 192}px`);
  menu.style.setProperty('--y', isAbove ? `${height - top + 4}px` : 'auto');
  menu.style.setProperty('--top-y', isAbove ? 'auto' : `${bottom + 4}px`);
  menu.showPopover();
  menu.querySelector('button, a').focus();
}

/** In milliseconds; 0 if it is not known. A share counts once it says something. */
export function timeLeft(elapsed, usual, percent) {
  if (percent >= 5 && percent < 100) return elapsed * (100 - percent) / percent;
  return usual ? Math.max(0, usual - elapsed) : 0;
}

/** The parsed status, and whether its clip may be played here. */
export function playableOf(job) {
  const said = standing(job);
  return { ...said, playable: said.address && page.mediaOrigins.includes(new URL(said.address).origin) };
}

/** What there is to say of a video without a clip. `isShort`: on its tile. */
export function words({ body, trouble, costMicros }, { state, phase, percent, address, playable }, isShort = false) {
  const said = [];
  if (phase === 'open') {
    said.push(element('p', { class: 'pending', text: state ? t('video.status', state, percent) : t('video.firstStatus') }));
  } else if (phase === 'finished' && !address) {
    said.push(element('p', { text: t('video.noAddress') }));
  } else if (phase === 'finished' && !playable) {
    // Each run of the sandbox serves its clips from a port of its own.
    said.push(element('p', { class: 'hint', text: page.isSandbox ? t('video.sandboxGone') : t('video.notPlayable', new URL(address).origin) }));
  } else if (phase === 'failed') {
    const why = reason(body);
    said.push(element('p', { class: 'fault', text: t('video.failed', state) }),
      why && element('p', { text: t('video.gatewaySays', why) }),
      element('p', { text: t('video.failedCost', price(costMicros), isShort) }));
  } else if (phase === 'left') {
    said.push(element('p', { text: t('video.hidden', state, price(costMicros)) }));
  } else if (phase === 'gone' && state) {
    said.push(element('p', { text: t('video.lastStatus', state) }));
  }
  if (trouble) said.push(element('p', { class: 'hint', text: trouble }));
  return said.filter(Boolean);
}

export const contentOf = (id) => `./bff/video/content?request_id=${encodeURIComponent(id)}`;

/** A clip loads when it comes near the view. */
const soon = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    soon.unobserve(target);
    target.preload = 'metadata';
    target.src = target.dataset.src;
  }
}, { rootMargin: '600px' });

/** The clip without sound. `learn(seconds)` is called with its length, if the order does not say it. */
function clip(job, learn) {
  const box = element('div', { class: 'clip' });
  const load = () => {
    const video = element('video', {
      // Some phones show no picture before playing without a start time.
      'data-src': `${contentOf(job.id)}#t=0.001`, playsinline: true, loop: true, preload: 'none',
      'aria-label': shortened(job.payload.prompt || t('video.noPrompt'), 200),
      loadedmetadata: () => job.payload.duration || learn(Math.round(video.duration)),
      loadeddata: () => fillSides(video, box),
      error: () => box.replaceChildren(element('div', { class: 'broken' },
        element('p', { text: t('video.clipBroken') }), button(t('offer.again'), load, 'quiet small'))),
    });
    video.muted = true;
    box.replaceChildren(video);
    soon.observe(video);
  };
  load();
  return box;
}

/** Frames of less than this width by height would be cut too much by a tile of 16 to 9. */
const NARROW = 1.5;

/** Behind a tall clip stands its own picture, blurred. */
function fillSides(video, box) {
  const { videoWidth: width, videoHeight: height } = video;
  if (width >= height * NARROW || box.querySelector('canvas')) return;
  const canvas = element('canvas', { width: 32, height: 18 });
  const cut = width * 9 / 16;
  canvas.getContext('2d').drawImage(video, 0, (height - cut) / 2, width, cut, 0, 0, 32, 18);
  box.prepend(canvas);
}

function play(item) {
  if (!matchMedia('(prefers-reduced-motion: reduce)').matches) item.querySelector('video')?.play().catch(() => {});
}

export function outside(address) {
  return element('a', { href: address, target: '_blank', rel: 'noopener noreferrer', title: new URL(address).origin, text: t('video.openClip') });
}

export const shortened = (text, most) => (text.length > most ? `${[...text].slice(0, most).join('')}…` : text);
