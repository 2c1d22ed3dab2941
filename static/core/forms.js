/** Dialogs with a form that is made from a list of fields, and one that shows a new token, once. */

import { button, copyButton, element, openSheet } from './dom.js';
import { decimal, inWords, t, typedAmount } from './format.js';
import { sentence } from './problems.js';

const DAY = 24 * 60 * 60 * 1000;
const dayIn = (days) => new Date(Date.now() + days * DAY).toISOString().slice(0, 10);

const typed = (micros) => (micros === null || micros === undefined ? '' : typedAmount(micros));
/** A limit without what raises it for a while. */
const ownLimit = ({ limit_micros: limit = null, extra_micros: extra = 0 } = {}) => limit && limit - extra;

/** The periods that can have a limit, and those that rarely have one. */
const PERIODS = ['day', 'week', 'month', 'ever'];
const RARE = ['week', 'ever'];

/** Fields for the limits of all periods; `budgets` are the rows of a report. */
export const limitFields = (budgets = []) => PERIODS.map((period) => ({
  name: `budget/${period}`, label: t(`form.limit.${period}`), isAmount: true, inputmode: 'decimal', placeholder: t('form.noLimit'), isRare: RARE.includes(period),
  value: typed(ownLimit(budgets.find((row) => row.period === period))),
}));

export const amountField = (name, micros) => ({ name, label: t('form.amount'), isAmount: true, inputmode: 'decimal', initial: typed(micros) });
export const untilField = (days) => ({ name: 'until', label: t('form.until'), type: 'date', min: dayIn(1), initial: dayIn(days) });
/** A field into which `word` has to be typed before anything is sent. */
export const confirmField = (word) => ({ name: 'confirm', label: t('form.retype', word), word });

/**
 * Opens a dialog with a form. `send(changed)` sends it; then the dialog closes, and `done(answer)` is called. A refusal is shown at the
 * fields that it names. A field is `{name, label, hint, value, initial, options, isList, isAmount, isRare}` and attributes: `name` is its place in the
 * request (`budget/day`), `value` what the server has, `initial` what is suggested. Only changes are sent, an emptied field as null.
 * A field with `isRare` is shown at a press, unless it has a value. `more`: further buttons.
 */
export function askFor({ title, about, fields = [], label, send, done, more = [] }) {
  const fault = element('p', { class: 'fault', role: 'alert' });
  const rows = fields.map(control);
  let isSending = false;
  const submit = async (event) => {
    event.preventDefault();
    if (isSending) return;
    const wrong = rows.find(({ word, input }) => word && input.value.trim() !== word);
    for (const row of rows) row.say(row === wrong ? row.label : '');
    fault.textContent = '';
    if (wrong) return wrong.input.focus();
    isSending = true;
    try {
      const answer = await send(changed(rows));
      made.close();
      await done(answer);
    } catch (problem) {
      refuse(problem);
    }
    isSending = false;
  };
  /** Faults are shown at their fields, the others below the form. */
  const refuse = (problem) => {
    const said = (one) => inWords(one === problem ? `problem.${one.code}` : `fault.${one.code}`, one.detail);
    const rest = (problem.errors?.length ? problem.errors : [problem]).filter((one) => {
      const row = rows.find(({ name }) => `${one.pointer}/`.startsWith(`/${name}/`));
      row?.say(said(one));
      details.open ||= rare.includes(row);
      return !row;
    });
    fault.textContent = rest.map((one) => (one === problem && !problem.status ? '' : said(one)) || sentence(problem)).join(' ');
    rows.find(({ input }) => input.ariaInvalid)?.input.focus();
  };
  const [rare, often] = [rows.filter(({ isRare }) => isRare), rows.filter(({ isRare }) => !isRare)];
  const details = element('details', { class: 'all', open: rare.some(({ value }) => value) },
    element('summary', { text: t('form.moreLimits') }), element('div', { class: 'fields' }, rare.map(({ node }) => node)));
  const made = openSheet(title, { class: 'form' }, element('form', { submit, novalidate: true, autocomplete: 'off' },
    about ? element('p', { text: about }) : null,
    element('div', { class: 'fields' }, often.map(({ node }) => node)), rare.length ? details : null, fault,
    element('div', { class: 'actions' }, more.map(([text, act]) => button(text, () => {
      made.close();
      act();
    }, 'link small')), element('button', { type: 'submit', class: 'primary', text: label }))));
  rows[0]?.input.focus();
  return made;
}

/** A field with its label and hint, and the place for what is wrong with it. */
function control({ name, label, hint, value = '', initial = value, options, word, isList, isAmount, isRare, ...properties }, place) {
  const id = `form-${place}`;
  const input = options
    ? element('select', { id }, Object.entries(options).map(([of, text]) => element('option', { value: of, text, selected: of === initial })))
    : element('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', value: initial, ...properties, id });
  const wrong = element('p', { id: `${id}-fault`, class: 'fault', role: 'alert' });
  input.setAttribute('aria-describedby', `${id}-fault ${id}-hint`);
  const node = element('div', { class: 'field' }, element('label', { for: id, text: label }), input,
    element('p', { id: `${id}-hint`, class: 'hint', text: hint }), wrong);
  const say = (text) => {
    wrong.textContent = text;
    input.ariaInvalid = text ? 'true' : null;
  };
  return { name, label, value, word, isList, isAmount, isRare, input, node, say };
}

/** The request: what differs from what the server has, by its place. */
function changed(rows) {
  const request = {};
  for (const { name, value, word, isList, isAmount, input } of rows) {
    const now = input.value.trim();
    if (word || now === value) continue;
    const [place, inner] = name.split('/');
    const sent = now && isList ? now.split(/[\s,]+/).filter(Boolean) : (isAmount ? decimal(now) : now) || null;
    if (inner) (request[place] ??= {})[inner] = sent;
    else request[place] = sent;
  }
  return request;
}

/**
 * Shows a new token, and for a member a link that brings it to the sign-in, in the fragment: no server and no other site sees that. A
 * press beside the dialog does not close it: the token would be lost.
 */
export function showToken(title, token, isMember = false) {
  const secret = (label, value) => element('div', { class: 'secret' }, element('input', { type: 'text', readonly: true, value, 'aria-label': label }), copyButton(() => value, 'primary'));
  const link = new URL(`./#sign-in?token=${token}`, document.baseURI).href;
  const made = openSheet(title, { class: 'form' }, element('p', { text: t('form.once') }), secret(t('form.token'), token),
    isMember ? [element('p', { text: t('form.aboutLink') }), secret(t('form.link'), link)] : null);
  made.addEventListener('click', (event) => event.target === made && event.stopImmediatePropagation(), { capture: true });
  made.querySelector('input').select();
}
