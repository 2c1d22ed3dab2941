/** The form of a video: shows the picked model's options, says what is missing, and survives a reload. */

import { byId, element } from '../core/dom.js';
import { offerVideoModels, price } from '../core/format.js';
import { choice } from '../core/store.js';
import { TEXT } from './strings.js';

/** A draft beyond this many characters is not kept; the service takes far fewer. */
const LONGEST_DRAFT = 20_000;

let catalog, whenChanged;

/** Fills the form in. `changed()` is called whenever it asks for something else. */
export function startForm(prices, { changed }) {
  [catalog, whenChanged] = [prices, changed];
  offerVideoModels(byId('video-model'), catalog.video);
  const form = byId('video-form');
  // Enter in a field would submit: it must never buy.
  form.addEventListener('submit', (event) => event.preventDefault());
  byId('video-model').addEventListener('change', () => followModel(asked()));
  form.addEventListener('input', () => {
    showCount();
    complain([]);
    keepDraft();
    whenChanged();
  });
  refuseFiles(form);
  showChips();
  byId('video-more').addEventListener('click', () => fold(byId('video-options').classList.contains('open')));
  fillIn(draft());
}

/** The picked model's row of the price list. */
export const picked = () => catalog.video.find((model) => model.id === byId('video-model').value);

/** The order that the form describes, as the API takes it. */
export function payload() {
  const { model, prompt, duration, aspect_ratio, image_url } = asked();
  return {
    prompt, model, duration,
    ...(picked().aspect_ratio !== 'ignored' && { aspect_ratio }),
    ...(image_url && { image_url }),
  };
}

/** Shows or hides the options; on a wide screen they are always there. */
function fold(isFolded) {
  byId('video-options').classList.toggle('open', !isFolded);
  byId('video-more').ariaExpanded = String(!isFolded);
}

/** Words that a click adds to the prompt. */
function showChips() {
  const add = (word) => {
    const before = byId('video-prompt').value.trim();
    byId('video-prompt').value = before ? `${before.replace(/[,.]$/, '')}, ${word}` : word;
    byId('video-prompt').dispatchEvent(new Event('input', { bubbles: true }));
    byId('video-prompt').focus();
  };
  byId('video-chips').replaceChildren(...TEXT.chips.map((word) => element('li', {}, element('button', { type: 'button', class: 'link small', text: `+ ${word}`, click: () => add(word) }))));
}

/** Puts wishes into the form; what is not said is as the price list has it. */
export function fillIn(wishes) {
  const wanted = wishes.model ?? catalog.defaults.video_model;
  byId('video-model').value = catalog.video.some((model) => model.id === wanted) ? wanted : catalog.video[0].id;
  byId('video-prompt').value = wishes.prompt ?? '';
  byId('video-image').value = wishes.image_url ?? '';
  followModel(wishes);
  showCount();
  keepDraft();
}

/** Clears the prompt after an order. The options stay: the next video is often like the last. */
export function clearPrompt() {
  byId('video-prompt').value = '';
  showCount();
  keepDraft();
}

/** Shows what is missing and leads there; whether nothing is. */
export function isComplete() {
  const faults = ['prompt', 'image'].map((name) => [name, MISSING[name](byId(`video-${name}`).value.trim())]).filter(([, text]) => text);
  complain(faults);
  if (faults.some(([name]) => name === 'image')) fold(false);
  if (faults.length) byId(`video-${faults[0][0]}`).focus();
  return faults.length === 0;
}

const checked = (name) => byId('video-form').querySelector(`input[name="${name}"]:checked`)?.value;

/** Everything that the form holds, also what this model does not take: another one may. */
function asked() {
  return {
    model: picked().id,
    prompt: byId('video-prompt').value,
    duration: Number(checked('duration') ?? byId('video-seconds')?.value ?? catalog.defaults.duration),
    aspect_ratio: checked('aspect') ?? catalog.defaults.aspect_ratio,
    image_url: byId('video-image').value.trim(),
  };
}

function draft() {
  try {
    return JSON.parse(choice.get('video-draft')) ?? {};
  } catch {
    return {};
  }
}

function keepDraft() {
  const text = JSON.stringify(asked());
  if (text.length <= LONGEST_DRAFT) choice.set('video-draft', text);
}

/** The picker has the catalog's remarks; `requires image_url` is said in words. */
const remarksOf = ({ image }) => (image === 'required' ? TEXT.pictureRequired : '');

/** Shows what this model takes, and only that. */
function followModel({ duration, aspect_ratio: aspect }) {
  const model = picked();
  const required = model.image === 'required';
  complain([]);
  byId('video-generate').textContent = TEXT.generate(price(model.price_micros));
  byId('video-model-hint').textContent = remarksOf(model);
  byId('video-image-label').textContent = TEXT.picture(required);
  byId('video-image').required = required;
  showDurations(model, duration ?? catalog.defaults.duration);
  showAspect(model, aspect ?? catalog.defaults.aspect_ratio);
  whenChanged();
}

function showDurations({ durations }, wanted) {
  const legend = element('legend', { text: TEXT.length });
  if (durations.kind === 'one_of') {
    const preset = durations.values.includes(wanted) ? wanted : nearest(durations.values, wanted);
    return byId('video-duration').replaceChildren(legend, element('div', { class: 'choices' }, ...durations.values.map((value) =>
      radio('duration', value, TEXT.seconds(value), value === preset))));
  }
  const { min, max } = durations;
  const value = Math.min(max, Math.max(min, wanted));
  const shown = element('output', { for: 'video-seconds', text: TEXT.seconds(value) });
  const range = element('input', {
    id: 'video-seconds', type: 'range', min, max, step: 1, value, 'aria-label': TEXT.lengthInSeconds, 'aria-describedby': 'video-seconds-hint',
    input: () => { shown.textContent = TEXT.seconds(range.value); },
  });
  byId('video-duration').replaceChildren(legend, element('div', { class: 'range' }, range, shown), element('p', {
    id: 'video-seconds-hint', class: 'hint',
    text: durations.kind === 'unstated'
      ? TEXT.lengthUnstated(min, max) : TEXT.lengthRange(min, max),
  }));
}

const nearest = (values, wanted) => values.reduce((best, value) =>
  (Math.abs(value - wanted) < Math.abs(best - wanted) ? value : best));

function showAspect({ aspect_ratio: rule }, wanted) {
  byId('video-aspect').hidden = rule === 'ignored';
  byId('video-aspect').replaceChildren(element('legend', { text: TEXT.shape }), element('div', { class: 'choices' },
    ...catalog.aspect_ratios.map((ratio) => radio('aspect', ratio, TEXT.shapes[ratio] ?? ratio, ratio === wanted))));
}

function radio(name, value, text, on) {
  return element('label', { class: 'choice' }, element('input', { type: 'radio', name, value, checked: on }), ` ${text}`);
}

/** Code points, the unit in which the service counts. */
const lengthOf = (text) => [...text].length;

function showCount() {
  const used = lengthOf(byId('video-prompt').value);
  const most = catalog.limits.prompt_characters;
  byId('video-count').textContent = TEXT.characters(used, most);
  byId('video-count').classList.toggle('over', used > most);
}

/** The commonest hosts that are not public: bare names, private ones, addresses of private networks. The server knows all. */
const CLOSED = /^[^.:]+\.?$|\.(local|localhost|internal|lan|home|corp)\.?$|^(0|10|127|169\.254|192\.168)\.[\d.]+$|^\[(::|f)/;

const MISSING = {
  prompt: (text) => {
    if (!text) return TEXT.sayWhat;
    const over = lengthOf(byId('video-prompt').value) - catalog.limits.prompt_characters;
    return over > 0 ? TEXT.shorten(over) : '';
  },
  image: (text) => {
    if (!text) return picked().image === 'required' ? TEXT.needsPicture(picked().id) : '';
    if (!/^https?:\/\//i.test(text) || !URL.canParse(text)) return TEXT.notAnAddress;
    const { hostname } = new URL(text);
    return CLOSED.test(hostname) ? TEXT.notPublic(hostname) : '';
  },
};

/** Shows these faults, `[field, text]`, and no others. */
function complain(faults) {
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
    fold(false);
    complain([['image', TEXT.noFiles]]);
    byId('video-image').focus();
  };
  form.addEventListener('dragover', (event) => event.dataTransfer?.types.includes('Files') && event.preventDefault());
  form.addEventListener('drop', (event) => refuse(event, event.dataTransfer ?? {}));
  form.addEventListener('paste', (event) => refuse(event, event.clipboardData ?? {}));
}
