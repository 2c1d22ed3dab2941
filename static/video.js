/** The video view: a form that follows the picked model's rules, and a purchase that is confirmed first. */

import { offerVideoModels, price } from './catalog.js';
import { announce, byId, element } from './dom.js';
import { startJobs, takeIn } from './jobs.js';
import { problemCard, sentence } from './problems.js';
import { canAskAgain, commit, draft, forget, whenSettled } from './purchase.js';
import { choice, purchases } from './store.js';

let catalog;
let ordering = false;

/** Fills the view in and goes on watching the jobs that are kept. */
export async function start(prices) {
  catalog = prices;
  whenSettled('video', settle, (record) => showOrder(record, element('p', { class: 'pending', text: 'Another tab is waiting for this order' })));
  offerVideoModels(byId('video-model'), catalog.video);
  const wanted = choice.get('video-model') ?? catalog.defaults.video_model;
  byId('video-model').value = catalog.video.some((model) => model.id === wanted) ? wanted : catalog.video[0].id;
  byId('video-model').addEventListener('change', () => {
    choice.set('video-model', picked().id);
    followModel();
  });
  const form = byId('video-form');
  // Enter in a field would submit: it must never buy.
  form.addEventListener('submit', (event) => event.preventDefault());
  form.addEventListener('input', () => {
    askedNothing();
    showCount();
  });
  byId('video-generate').addEventListener('click', ask);
  byId('video-cancel').addEventListener('click', () => {
    askedNothing();
    byId('video-generate').focus();
  });
  byId('video-yes').addEventListener('click', order);
  // A key held down repeats its click; only a fresh press may spend.
  byId('video-yes').addEventListener('keydown', (event) => event.repeat && event.preventDefault());
  refuseFiles(form);
  followModel();
  showCount();
  await startJobs(catalog.jobs, { reuse });
  for (const record of await purchases.all()) {
    if (record.kind === 'video' && !['done', 'forgotten'].includes(record.state)) await settle(record, true);
  }
}

const picked = () => catalog.video.find((model) => model.id === byId('video-model').value);
const checked = (name) => byId('video-form').querySelector(`input[name="${name}"]:checked`)?.value;

/** Shows what this model takes, and only that. */
function followModel() {
  const model = picked();
  byId('video-generate').textContent = `Generate · ${price(model.toll_micros)}`;
  byId('video-model-hint').textContent = model.remarks;
  showDurations(model);
  showAspect(model);
  const required = model.image === 'required';
  byId('video-image-label').textContent = `Picture to start from (${required ? 'required' : 'optional'})`;
  byId('video-image').required = required;
  askedNothing();
}

function showDurations({ durations }) {
  const box = byId('video-duration');
  const before = Number(checked('duration') ?? byId('video-seconds')?.value ?? catalog.defaults.duration);
  const legend = element('legend', { text: 'Length' });
  if (durations.kind === 'one_of') {
    const preset = durations.values.includes(before) ? before : nearest(durations.values, catalog.defaults.duration);
    box.replaceChildren(legend, element('div', { class: 'choices' }, ...durations.values.map((value) =>
      radio('duration', value, `${value} s`, value === preset))));
    return;
  }
  const { min, max } = durations;
  const value = Math.min(max, Math.max(min, before));
  const shown = element('output', { for: 'video-seconds', text: `${value} s` });
  const range = element('input', {
    id: 'video-seconds', type: 'range', min, max, step: 1, value, 'aria-label': 'Length in seconds',
    input: () => { shown.textContent = `${range.value} s`; },
  });
  box.replaceChildren(legend, element('div', { class: 'range' }, range, shown), element('p', {
    class: 'hint',
    text: durations.kind === 'unstated'
      ? `The price list does not say which lengths this model makes; ${min} to ${max} s is what the service takes overall.`
      : `${min} to ${max} seconds`,
  }));
}

const nearest = (values, wanted) => values.reduce((best, value) =>
  (Math.abs(value - wanted) < Math.abs(best - wanted) ? value : best));

function showAspect({ aspect_ratio: aspect }) {
  const names = { '16:9': 'Landscape 16:9', '9:16': 'Portrait 9:16' };
  const box = byId('video-aspect');
  box.hidden = aspect === 'ignored';
  const before = checked('aspect') ?? catalog.defaults.aspect_ratio;
  box.replaceChildren(element('legend', { text: 'Shape' }), element('div', { class: 'choices' },
    ...catalog.aspect_ratios.map((ratio) => radio('aspect', ratio, names[ratio] ?? ratio, ratio === before))));
}

function radio(name, value, text, on) {
  return element('label', { class: 'choice' }, element('input', { type: 'radio', name, value, checked: on }), ` ${text}`);
}

/** Code points, the unit in which the service counts. */
const lengthOf = (text) => [...text].length;

function showCount() {
  const used = lengthOf(byId('video-prompt').value);
  const most = catalog.limits.prompt_characters;
  byId('video-count').textContent = `${used} of ${most} characters`;
  byId('video-count').classList.toggle('over', used > most);
}

function fault(field, text) {
  byId(`video-${field}-fault`).textContent = text;
  byId(`video-${field}`).toggleAttribute('aria-invalid', Boolean(text));
  if (text) byId(`video-${field}`).setAttribute('aria-invalid', 'true');
  return Boolean(text);
}

/** First click: either what is missing, or what it will cost. */
function ask() {
  const wrong = ['prompt', 'image'].filter((field) => fault(field, MISSING[field](byId(`video-${field}`).value.trim())));
  if (wrong.length) return byId(`video-${wrong[0]}`).focus();
  const { model, duration } = payload();
  const cost = price(picked().toll_micros);
  byId('video-confirm-text').textContent = `One video of ${duration} seconds by ${model} for ${cost}? It cannot be cancelled once it is ordered.`;
  byId('video-yes').textContent = `Yes, spend ${cost}`;
  byId('video-confirm').hidden = false;
  byId('video-actions').hidden = true;
  // Not on "Yes": a second Enter must not spend.
  byId('video-cancel').focus();
  byId('video-confirm').scrollIntoView({ block: 'nearest' });
}

const MISSING = {
  prompt: (text) => {
    if (!text) return 'Say what the video should show.';
    const over = lengthOf(byId('video-prompt').value) - catalog.limits.prompt_characters;
    return over > 0 ? `Shorten it by ${over} characters.` : '';
  },
  image: (text) => {
    if (!text) return picked().image === 'required' ? `${picked().id} needs the web address of a picture.` : '';
    const web = URL.canParse(text) && /^https?:$/.test(new URL(text).protocol);
    return web ? '' : 'A public web address, please: it begins with https:// or http://';
  },
};

function askedNothing() {
  byId('video-confirm').hidden = true;
  byId('video-actions').hidden = false;
  fault('prompt', '');
  fault('image', '');
}

function payload() {
  const model = picked();
  const image = byId('video-image').value.trim();
  return {
    prompt: byId('video-prompt').value,
    model: model.id,
    duration: Number(checked('duration') ?? byId('video-seconds').value),
    ...(model.aspect_ratio !== 'ignored' && { aspect_ratio: checked('aspect') }),
    ...(image && { image_url: image }),
  };
}

/** Second click: buys. */
async function order() {
  if (ordering) return;
  ordering = true;
  const body = payload();
  const record = draft({ kind: 'video', path: '/api/v1/video', payload: body, tollMicros: picked().toll_micros, about: {} });
  askedNothing();
  byId('video-generate').focus();
  announce('Ordering the video.');
  showOrder(record, element('p', { class: 'pending', text: `Ordering from ${body.model}` }));
  try {
    await commit(record);
  } finally {
    ordering = false;
  }
}

/** Takes in how an order ended; an accepted one becomes a job. */
async function settle(record, old = false) {
  if (record.state === 'forgotten') return document.getElementById(`order-${record.key}`)?.remove();
  if (record.state === 'done') {
    document.getElementById(`order-${record.key}`)?.remove();
    await takeIn(record);
    announce(`Ordered for ${price(record.tollMicros)}. The video is being made.`);
    return;
  }
  if (!record.problem) return showOrder(record, element('p', { class: 'pending', text: 'Asking what became of this order' }));
  showOrder(record, problemCard(record.problem, offers(record), { fresh: !old, cost: price(record.tollMicros) }));
  if (!old) announce(sentence(record.problem));
}

function showOrder(record, content) {
  const shown = element('li', { id: `order-${record.key}` }, element('article', { class: 'card job', 'aria-label': 'An order' },
    element('p', { class: 'plain clamp', text: record.payload.prompt }),
    element('p', { class: 'hint', text: `${record.payload.model} · ${record.payload.duration} s · ${price(record.tollMicros)}` }),
    content));
  const before = document.getElementById(shown.id);
  if (before) before.replaceWith(shown);
  else byId('jobs').prepend(shown);
  byId('jobs-empty').hidden = true;
}

function offers(record) {
  // A dear purchase is never repeated by one click: its text goes back into the form, with its price.
  const edit = () => {
    if (record.state === 'refused') void remove(record);
    reuse(record.payload);
  };
  const same = async () => {
    showOrder(record, element('p', { class: 'pending', text: 'Asking what became of this order. It is not bought twice.' }));
    await commit(record);
  };
  const atRisk = async () => {
    showOrder(record, element('p', { class: 'pending', text: `Ordering again from ${record.payload.model}` }));
    await commit(record, { atRisk: true });
  };
  const settled = record.state === 'unknown' && (canAskAgain(record) ? { same } : { atRisk });
  return { edit, again: edit, ...settled, drop: () => remove(record) };
}

async function remove(record) {
  document.getElementById(`order-${record.key}`)?.remove();
  byId('jobs-empty').hidden = byId('jobs').children.length > 0;
  await forget(record);
}

/** Puts an earlier order's wishes back into the form. */
function reuse({ prompt, model, image_url: image }) {
  if (catalog.video.some((one) => one.id === model)) byId('video-model').value = model;
  byId('video-prompt').value = prompt;
  byId('video-image').value = image ?? '';
  followModel();
  showCount();
  byId('video-prompt').focus();
}

/** A dropped file would make the browser leave the page. */
function refuseFiles(form) {
  form.addEventListener('dragover', (event) => event.preventDefault());
  form.addEventListener('drop', (event) => {
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    fault('image', 'A public URL, please: files cannot be uploaded here.');
  });
}
