/** Shows one video large, with its facts. Loaded when it is first opened. */

import { announce, button, copyButton, element, icon, twice } from '../core/dom.js';
import { clock, inWords, locale, price, t } from '../core/format.js';
import { all, fileName, markFavourite, remove } from './jobs.js';
import { contentOf, outside, playableOf, shortened, words } from './tile.js';

/** A longer status body is cut. */
const LONGEST_BODY = 20_000;

let box = null, stage, side, shown = null, how = null;

/** Opens the video with this id. `options`: `catalog`, `ids()` in the order of the list, and `reuse(payload)`, which fills the form in. */
export function openLarge(id, options) {
  how = options;
  box ??= build();
  grow(document.querySelector(`#jobs [data-id="${CSS.escape(id)}"] video`), () => {
    draw(id);
    if (!box.open) {
      box.showModal();
      // A step of its own: the browser's Back closes it.
      history.pushState('large', '');
    }
    box.querySelector('video')?.focus();
    return stage.querySelector('video');
  });
}

/** The clip of the tile grows into the one that `act()` shows and returns, where motion is wanted. */
function grow(tile, act) {
  if (!tile || !document.startViewTransition || isStill()) return act();
  const name = (clip, text) => clip?.style.setProperty('view-transition-name', text);
  let clip = null;
  name(tile, 'clip');
  const transition = document.startViewTransition(() => {
    name(tile, '');
    clip = act();
    name(clip, 'clip');
  });
  // It is skipped in a tab that nobody sees.
  transition.ready.catch(() => {});
  void transition.finished.then(() => name(clip, ''));
}

const isStill = () => matchMedia('(prefers-reduced-motion: reduce)').matches;

export function refresh(job) {
  if (box?.open && job.id === shown && !stage.querySelector('video')) draw(job.id);
}

function build() {
  stage = element('div', { class: 'stage' });
  side = element('div', { class: 'facts' });
  const made = element('dialog', {
    class: 'lightbox', 'aria-label': t('video.large'), keydown: steer, click: ({ target }) => target === made && made.close(), close: leave,
  },
    stage, side,
    element('button', { type: 'button', class: 'close', 'aria-label': t('page.close'), title: t('page.close'), click: () => made.close() }, icon('close')),
    element('div', { class: 'lightbox-bar' },
      element('button', { type: 'button', class: 'quiet small', text: t('video.previous'), 'aria-keyshortcuts': 'ArrowLeft K', click: () => go(-1) }),
      element('button', { type: 'button', class: 'quiet small', text: t('video.next'), 'aria-keyshortcuts': 'ArrowRight J', click: () => go(1) })));
  document.body.append(made);
  addEventListener('popstate', () => made.close());
  return made;
}

function leave() {
  stage.replaceChildren();
  if (history.state === 'large') history.back();
}

/** Clips are short: the arrows lead to the next one, also where the player has the focus and would seek. */
function steer(event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const act = {
    j: () => go(1), k: () => go(-1), ArrowRight: () => go(1), ArrowLeft: () => go(-1), f: () => side.querySelector('[aria-pressed]').click(), d: () => side.querySelector('a[download]')?.click(), i: () => side.toggleAttribute('hidden'),
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

function go(by) {
  const ids = how.ids();
  const next = ids[ids.indexOf(shown) + by];
  if (!next) return announce(by > 0 ? t('video.lastOne') : t('video.firstOne'));
  draw(next);
  box.querySelector('video')?.focus();
}

function draw(id) {
  const job = all().find((one) => one.id === id);
  if (!job) return box.close();
  shown = id;
  const { payload, costMicros } = job;
  const said = playableOf(job);
  const prompt = payload.prompt || t('video.noPrompt');
  stage.replaceChildren(said.phase === 'finished' && said.playable
    ? element('video', { src: contentOf(id), controls: true, autoplay: !isStill(), loop: true, playsinline: true, tabindex: '0', 'aria-label': shortened(prompt, 200) })
    : element('div', { class: 'said' }, ...words(job, said)));
  const facts = [
    [t('column.model'), payload.model],
    payload.duration && [t('video.length'), t('video.seconds', payload.duration)],
    payload.aspect_ratio && [t('video.shape'), payload.aspect_ratio],
    [t('column.price'), price(costMicros)],
    job.took > 0 && [t('video.fact.took'), clock(job.took)],
    [t('column.ordered'), new Date(job.at).toLocaleString(locale)],
    payload.image_url && [t('video.fact.startedFrom'), payload.image_url],
    [t('video.fact.request'), id],
  ].filter(Boolean);
  const use = (act) => () => {
    box.close();
    act();
  };
  side.replaceChildren(...[
    element('p', { class: 'plain whole', dir: 'auto', text: prompt }),
    element('div', { class: 'actions' }, ...[
      said.phase === 'finished' && said.playable && element('a', { href: contentOf(id), download: fileName(job, said.address), class: 'primary', text: t('video.download') }),
      payload.prompt && copyButton(() => payload.prompt, 'quiet small'),
      payload.prompt && button(t('video.useAgain'), use(() => how.reuse(payload)), 'quiet small'),
      favourite(job),
      how.catalog.pictures && said.phase === 'finished' && said.playable && button(t('video.goOn'), () => void goOn(payload), 'quiet small'),
      said.phase !== 'open' && twice(t('video.remove'), t('video.removeSure'), use(() => remove(id)), { kind: 'quiet small' }),
    ].filter(Boolean)),
    payload.prompt && element('details', {}, element('summary', { text: t('video.variation') }),
      element('div', { class: 'actions' }, changes(payload).map(([text, change]) => button(text, use(() => how.reuse({ ...payload, ...change })), 'quiet small')))),
    element('dl', {}, ...facts.flatMap(([name, value]) => [element('dt', { text: name }), element('dd', { text: value })])),
    said.address && element('p', {}, outside(said.address)),
    job.body && element('details', {}, element('summary', { text: t('video.rawReply') }),
      element('pre', { tabindex: '0', text: shortened(JSON.stringify(job.body, null, 2), LONGEST_BODY) })),
  ].filter(Boolean));
}

function favourite(job) {
  const made = button(t('video.favourite'), async () => show(await markFavourite(job.id)), 'quiet small');
  const show = (isOne) => { made.ariaPressed = String(Boolean(isOne)); };
  show(job.favourite);
  return made;
}

/** What can be changed of an order, one thing at a time, with its text: shape, length or model. */
function changes({ model, duration, aspect_ratio: shape, image_url: picture }) {
  const { video, aspect_ratios: shapes } = how.catalog;
  const { durations, aspect_ratio: rule } = video.find(({ id }) => id === model) ?? {};
  return [
    ...(rule && rule !== 'ignored' ? shapes : []).filter((one) => one !== shape).map((one) => [t(`video.shape.${one}`) ?? one, { aspect_ratio: one }]),
    ...(durations?.values ?? [durations?.min, durations?.max]).filter((one) => one && one !== duration).map((one) => [t('video.seconds', one), { duration: one }]),
    ...video.filter(({ id, image }) => id !== model && (picture || image !== 'required')).map((one) => [`${one.id} · ${price(one.price_micros)}`, { model: one.id }]),
  ];
}

/** Starts an order from the last frame of this clip. */
async function goOn(payload) {
  announce(t('video.goingOn'));
  try {
    const [{ uploadPicture }, frame] = await Promise.all([import('./pictures.js'), lastFrame(stage.querySelector('video'))]);
    const image_url = await uploadPicture(frame);
    box.close();
    how.reuse({ ...payload, prompt: '', image_url });
  } catch (problem) {
    const text = t('video.notGoingOn', inWords(`problem.${problem.code}`, problem.message));
    side.prepend(element('p', { class: 'fault', role: 'alert', text }));
  }
}

/** How much of the end is left out, in seconds: at the very end, some browsers show nothing. */
const END = 0.05;

async function lastFrame(clip) {
  const next = (event) => new Promise((done, failed) => {
    clip.addEventListener(event, done, { once: true });
    clip.addEventListener('error', () => failed(new Error(t('video.clipBroken'))), { once: true });
  });
  clip.pause();
  if (!clip.readyState) await next('loadedmetadata');
  const seeked = next('seeked');
  clip.currentTime = clip.duration - END;
  await seeked;
  const canvas = element('canvas', { width: clip.videoWidth, height: clip.videoHeight });
  canvas.getContext('2d').drawImage(clip, 0, 0);
  return new Promise((done) => { canvas.toBlob(done); });
}
