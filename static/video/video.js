/** The video view: a bar that follows the picked model's rules, and a purchase that is confirmed first. studio.js lists the videos. */

import { byId, element, once, unbroken, unrepeated } from '../core/dom.js';
import { clock, price, remark, t } from '../core/format.js';
import { canSpend, choice, isNobody, jobs, purchases, read, whenCanSpend, whenChangedElsewhere } from '../core/site.js';

/** A draft beyond this many characters is not kept; the service takes far fewer. */
const LONGEST_DRAFT = 20_000;

let catalog, model;

export async function start(prices) {
  catalog = prices;
  byId('video-body').hidden = false;
  startForm();
  startConfirm();
  whenCanSpend(showOrderable);
  keepFiles();
  // The form is about to be filled in: then the order itself waits for no module.
  byId('video-form').addEventListener('focusin', () => void studio().then(({ ordering }) => ordering()).catch(() => {}), { once: true });
  whenChangedElsewhere(() => void followElsewhere());
  if (await hasAny()) await studio();
  document.addEventListener('visibilitychange', look);
}

/** Comes into sight. `#video?prompt=…&model=…` fills the form in, and never orders. */
export function shown() {
  void look();
  const [name, query] = location.hash.slice(1).split('?', 2);
  const { prompt, model } = Object.fromEntries(new URLSearchParams(query ?? ''));
  if (name !== 'video' || !prompt) return;
  history.replaceState(null, '', '#video');
  reuse({ prompt, model });
}

/** The list of videos and orders, once there is something to list; `listed` when it is loaded. */
let listed = null;

const studio = once(async () => {
  const module = await import('./studio.js');
  await module.start(catalog, { reuse, again, look, showSamples });
  listed = module;
  return module;
});

const hasAny = async () => (await jobs.some()) || (await purchases.all()).some(({ kind }) => kind === 'video');

async function followElsewhere() {
  if (!studio.part && (await hasAny())) await (await studio()).follow();
}

/** Lists videos that were ordered elsewhere. After a failure, the next look lists them. */
async function look() {
  if (document.hidden || byId('view-video').hidden) return;
  try {
    const rows = isNobody() ? [] : (await read('/bff/jobs')).rows;
    if (rows.length || studio.part) await (await studio()).takeListed(rows);
    else await showSamples();
  } catch { /* as said */ }
}

/** Before there are videos: what could be made. */
async function showSamples() {
  if (!byId('jobs-empty').hidden) return;
  byId('jobs-empty').hidden = false;
  (await import('./samples.js')).showSamples((prompt) => void reuse({ ...asked(), prompt }));
}

function startConfirm() {
  // The second and third of several fast clicks were not meant for the button that came under them.
  const meant = (act) => (event) => event.detail > 1 || act();
  byId('video-generate').addEventListener('click', meant(ask));
  byId('video-yes').addEventListener('click', meant(buy));
  const cancel = () => {
    askedNothing();
    byId('video-generate').focus();
  };
  byId('video-cancel').addEventListener('click', cancel);
  byId('video-confirm').addEventListener('keydown', (event) => event.key === 'Escape' && cancel());
  unrepeated(byId('video-yes'));
}

/** A file that is dropped beside the form would make the browser leave the page. */
function keepFiles() {
  for (const kind of ['dragover', 'drop']) {
    document.addEventListener(kind, (event) => {
      if (!byId('view-video').hidden && event.dataTransfer?.types.includes('Files')) event.preventDefault();
    });
  }
}

/** “Generate” looks disabled where the money left does not cover it; pressed, it says why. */
function showOrderable() {
  byId('video-generate').ariaDisabled = canSpend() < model.price_micros ? 'true' : null;
}

const complain = (text) => { byId('video-fault').textContent = text; };

async function ordering() {
  try {
    return await (await studio()).ordering();
  } catch {
    complain(t('video.notLoaded'));
    return null;
  }
}

/** First click: either what is missing, or what it will cost. */
async function ask() {
  if (!isComplete()) return;
  complain('');
  if (catalog.pictures && (await (await import('./pictures.js')).isGone(payload().image_url))) return;
  const orders = await ordering();
  if (!orders) return;
  if (canSpend() < model.price_micros) {
    const { shortOf } = await import('../core/funds.js');
    const why = await shortOf(model.price_micros);
    if (why) return complain(why);
  }
  const wanted = payload();
  const cost = price(model.price_micros);
  byId('video-confirm-text').replaceChildren(...unbroken(t('video.sure', wanted.duration, wanted.model, cost), wanted.model));
  byId('video-confirm-duplicate').textContent = orders.duplicate(wanted);
  byId('video-yes').textContent = t('receipt.spend', cost);
  showConfirm(true);
  // Not on "Yes": a second Enter must not spend.
  byId('video-cancel').focus();
  // On a low screen, the bar is not always in sight.
  if (getComputedStyle(byId('video-form')).position !== 'sticky') byId('video-confirm').scrollIntoView({ block: 'nearest' });
}

/** The question takes the place of the options. */
function showConfirm(isAsked) {
  byId('video-confirm').hidden = !isAsked;
  byId('video-actions').hidden = isAsked;
  byId('video-form').classList.toggle('confirming', isAsked);
}

function askedNothing() {
  complain('');
  byId('video-confirm-duplicate').textContent = '';
  showOrderable();
  showConfirm(false);
}

/** Second click: buys. */
async function buy() {
  const wanted = payload();
  const { price_micros: amount } = model;
  askedNothing();
  byId('video-generate').focus();
  const orders = await ordering();
  if (!orders) return;
  const ordered = orders.order(wanted, amount);
  clearPrompt();
  await ordered;
}

/** Leaves the selection of videos, which hides the form. */
async function showForm() {
  if (byId('jobs-select')?.ariaPressed !== 'true') return;
  byId('jobs-select').click();
  await new Promise((done) => { setTimeout(done); });
}

async function reuse(wishes) {
  await showForm();
  fillIn(wishes);
  byId('video-prompt').focus();
}

/** The same, and on to the question whether to buy. */
async function again(wishes) {
  await showForm();
  fillIn(wishes);
  void ask();
}

// The form: shows the picked model's options, says what is missing, and survives a reload.

function startForm() {
  const form = byId('video-form');
  // Enter in a field would submit: it must never buy.
  form.addEventListener('submit', (event) => event.preventDefault());
  byId('video-model').addEventListener('click', () => void pickAnother());
  form.addEventListener('input', () => {
    showCount();
    showChosen();
    mark([]);
    keepDraft();
    askedNothing();
  });
  if (catalog.pictures) {
    const tell = (text) => {
      mark([['image', text]]);
      byId('video-picture').showPopover();
    };
    import('./pictures.js').then(({ startPictures }) => startPictures(catalog.pictures, tell), () => complain(t('video.notLoaded')));
  } else refuseFiles(form);
  showChips();
  for (const panel of form.querySelectorAll('[popover]')) placeAbove(panel, form);
  fillIn(choice.object('video-draft'));
}

function payload() {
  const { prompt, duration, aspect_ratio, image_url } = asked();
  return {
    prompt, model: model.id, duration,
    ...(model.aspect_ratio !== 'ignored' && { aspect_ratio }),
    ...(image_url && { image_url }),
  };
}

/** A panel opens above the bar, over the button that opened it. A press on a choice closes it; the arrow keys do not. */
function placeAbove(panel, form) {
  panel.addEventListener('beforetoggle', ({ newState }) => {
    if (newState !== 'open') return;
    const opener = form.querySelector(`[popovertarget="${panel.id}"]`);
    panel.style.setProperty('--x', `${opener.getBoundingClientRect().left}px`);
    panel.style.setProperty('--y', `${document.documentElement.clientHeight - form.getBoundingClientRect().top + 8}px`);
  });
  panel.addEventListener('click', ({ target, pointerType }) => {
    if (pointerType && target.closest('.choice')) setTimeout(() => panel.hidePopover(), 150);
  });
}

/** The pills say what is chosen. */
function showChosen() {
  const { duration, aspect_ratio: shape, image_url: picture } = asked();
  byId('video-length').textContent = t('video.seconds', duration);
  byId('video-length').ariaLabel = t('video.lengthIs', duration);
  byId('video-shape').textContent = shape;
  byId('video-shape').ariaLabel = t('video.shapeIs', t(`video.shape.${shape}`) ?? shape);
  byId('video-slot').ariaLabel = byId('video-slot').title = t('video.picture', model.image === 'required');
  byId('video-slot').classList.toggle('set', Boolean(picture));
}

/** Opens the sheet of models: what each costs, makes and needs. Loaded when it is first opened. */
async function pickAnother() {
  try {
    const { pickModel } = await import('../shell/sheets.js');
    const rows = catalog.video.map((one) => ({ ...one, group: t('video.perVideo', price(one.price_micros)), best_for: factsOf(one) }));
    pickModel({ chat: rows }, model.id, ({ id }) => {
      const wishes = asked();
      model = catalog.video.find((one) => one.id === id);
      followModel(wishes);
      keepDraft();
    });
  } catch {
    complain(t('video.notLoaded'));
  }
}

/** What a model makes, how long that takes here, and what it needs. */
function factsOf({ id, durations: { values, min, max }, remarks }) {
  const usual = listed?.usualTime(id)?.time;
  return [values ? t('video.oneOf', values) : t('video.lengths', min, max), usual && t('video.usuallyHere', clock(usual)), remark(remarks)].filter(Boolean).join(' · ');
}

/** The time that the price list names for a model, in milliseconds; 0 if it names none. */
export function promised(id) {
  const remarks = catalog.video.find((one) => one.id === id)?.remarks ?? '';
  return Number(/about (\d{1,4}) seconds/.exec(remarks)?.[1] ?? 0) * 1000;
}

function showChips() {
  const add = (word) => {
    const before = byId('video-prompt').value.trim();
    byId('video-prompt').value = before ? `${before.replace(/[,.]$/, '')}, ${word}` : word;
    byId('video-prompt').dispatchEvent(new Event('input', { bubbles: true }));
  };
  byId('video-chips').replaceChildren(...['camera', 'style'].flatMap((name) => [element('strong', { text: t(`chip.${name}`) }),
    element('div', { class: 'choices' }, [1, 2, 3, 4, 5, 6, 7].map((place) => t(`chip.${name}.${place}`)).map((word) => element('button', { type: 'button', class: 'quiet', text: word, click: () => add(word) })))]));
}

/** Puts wishes into the form; what is not said is as the price list has it. */
function fillIn(wishes) {
  const wanted = wishes.model ?? catalog.defaults.video_model;
  model = catalog.video.find(({ id }) => id === wanted) ?? catalog.video[0];
  byId('video-prompt').value = wishes.prompt ?? '';
  byId('video-image').value = wishes.image_url ?? '';
  byId('video-image').dispatchEvent(new Event('change'));
  followModel(wishes);
  showCount();
  keepDraft();
}

/** Clears the prompt after an order. The options stay: the next video is often like the last. */
function clearPrompt() {
  byId('video-prompt').value = '';
  showCount();
  keepDraft();
}

/** Shows what is missing and leads there; whether nothing is. */
function isComplete() {
  const faults = ['prompt', 'image'].map((name) => [name, MISSING[name](byId(`video-${name}`).value.trim())]).filter(([, text]) => text);
  mark(faults);
  if (faults[0]?.[0] === 'image') byId('video-picture').showPopover();
  if (faults.length) byId(`video-${faults[0][0]}`).focus();
  return faults.length === 0;
}

const checked = (name) => byId('video-form').querySelector(`input[name="${name}"]:checked`)?.value;

/** The whole form, also what only other models take. */
function asked() {
  return {
    model: model.id,
    prompt: byId('video-prompt').value,
    duration: Number(checked('duration') ?? byId('video-seconds')?.value ?? catalog.defaults.duration),
    aspect_ratio: checked('aspect') ?? catalog.defaults.aspect_ratio,
    image_url: byId('video-image').value.trim(),
  };
}

function keepDraft() {
  const text = JSON.stringify(asked());
  if (text.length <= LONGEST_DRAFT) choice.set('video-draft', text);
}

/** Shows what this model takes, and only that. */
function followModel({ duration, aspect_ratio: aspect }) {
  const required = model.image === 'required';
  mark([]);
  byId('video-generate').textContent = t('video.generate', price(model.price_micros));
  byId('video-model').textContent = model.id;
  byId('video-model').ariaLabel = t('chat.model', model.id);
  byId('video-image-label').textContent = t('video.picture', required);
  byId('video-image').required = required;
  showDurations(model, duration ?? catalog.defaults.duration);
  showAspect(model, aspect ?? catalog.defaults.aspect_ratio);
  showChosen();
  askedNothing();
}

function showDurations({ durations }, wanted) {
  const legend = element('legend', { text: t('video.length') });
  if (durations.kind === 'one_of') {
    const preset = durations.values.includes(wanted) ? wanted : nearest(durations.values, wanted);
    return byId('video-duration').replaceChildren(legend, element('div', { class: 'choices' }, ...durations.values.map((value) =>
      radio('duration', value, t('video.seconds', value), value === preset))));
  }
  const { min, max } = durations;
  const value = Math.min(max, Math.max(min, wanted));
  const shown = element('output', { for: 'video-seconds', text: t('video.seconds', value) });
  const range = element('input', {
    id: 'video-seconds', type: 'range', min, max, step: 1, value, 'aria-label': t('video.lengthInSeconds'), 'aria-describedby': 'video-seconds-hint',
    input: () => { shown.textContent = t('video.seconds', range.value); },
  });
  byId('video-duration').replaceChildren(legend, element('div', { class: 'range' }, range, shown), element('p', {
    id: 'video-seconds-hint', class: 'hint', text: t('video.lengths', min, max) + (durations.kind === 'unstated' ? t('video.unstated') : ''),
  }));
}

const nearest = (values, wanted) => values.reduce((best, value) =>
  (Math.abs(value - wanted) < Math.abs(best - wanted) ? value : best));

function showAspect({ aspect_ratio: rule }, wanted) {
  byId('video-shape').hidden = rule === 'ignored';
  byId('video-aspect').replaceChildren(element('legend', { text: t('video.shape') }), element('div', { class: 'choices' },
    ...catalog.aspect_ratios.map((ratio) => radio('aspect', ratio, t(`video.shape.${ratio}`) ?? ratio, ratio === wanted))));
}

function radio(name, value, text, on) {
  return element('label', { class: 'choice' }, element('input', { type: 'radio', name, value, checked: on }), text);
}

/** From this share of the longest prompt on, its length is shown. */
const NEARLY = 0.85;

/** Code points, the unit in which the service counts. */
const lengthOf = (text) => [...text].length;

function showCount() {
  const used = lengthOf(byId('video-prompt').value);
  const most = catalog.limits.prompt_characters;
  byId('video-count').textContent = used > most * NEARLY ? t('video.characters', used, most) : '';
  byId('video-count').classList.toggle('over', used > most);
}

/** The commonest hosts that are not public. The server knows all. */
const CLOSED = /^[^.:]+\.?$|\.(local|localhost|internal|lan|home|corp)\.?$|^(0|10|127|169\.254|192\.168)\.[\d.]+$|^\[(::|f)/;

const MISSING = {
  prompt: (text) => {
    if (!text) return t('video.sayWhat');
    const over = lengthOf(byId('video-prompt').value) - catalog.limits.prompt_characters;
    return over > 0 ? t('video.shorten', over) : '';
  },
  image: (text) => {
    if (byId('video-image').ariaBusy) return t('video.uploading');
    if (!text) return model.image === 'required' ? t('video.needsPicture', model.id) : '';
    if (!/^https?:\/\//i.test(text) || !URL.canParse(text)) return t('video.notAnAddress');
    const { hostname } = new URL(text);
    return CLOSED.test(hostname) ? t('video.notPublic', hostname) : '';
  },
};

/** Shows these faults, `[field, text]`, and no others. */
function mark(faults) {
  for (const name of Object.keys(MISSING)) {
    const text = faults.find(([wrong]) => wrong === name)?.[1] ?? '';
    byId(`video-${name}-fault`).textContent = text;
    byId(`video-${name}`).ariaInvalid = text ? 'true' : null;
  }
}

/** A dropped file would make the browser leave the page; a pasted one would vanish silently. */
function refuseFiles(form) {
  const refuse = (event, { files } = {}) => {
    if (!files?.length) return;
    event.preventDefault();
    mark([['image', t('video.noFiles')]]);
    byId('video-picture').showPopover();
    byId('video-image').focus();
  };
  form.addEventListener('dragover', (event) => event.dataTransfer?.types.includes('Files') && event.preventDefault());
  form.addEventListener('drop', (event) => refuse(event, event.dataTransfer ?? {}));
  form.addEventListener('paste', (event) => refuse(event, event.clipboardData ?? {}));
}
