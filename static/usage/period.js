/** The period that a view of spending shows, and the days it consists of. */

import { byId, element } from '../core/dom.js';
import { askFor } from '../core/forms.js';
import { choice } from '../core/store.js';

const TEXT = {
  period: 'Period',
  ranges: { 7: '7 days', 31: '31 days', month: 'This month' },
  sum: (days) => (days === 1 ? 'Today' : `Last ${days} days`),
  custom: 'Custom',
  from: 'From',
  through: 'Through',
  zone: 'Days',
  zones: { local: 'Local time', utc: 'UTC' },
  show: 'Show',
  needsBoth: 'Give both days, or neither.',
  backwards: 'This is before the first day.',
  outside: (days) => `Pick one of the last ${days} days.`,
  days: { local: 'Days are in your local time.', utc: 'Days are in UTC, like those of budgets.' },
  pending: ' Pending and unknown purchases count as spent.',
};

const DAY = 24 * 60 * 60 * 1000;
/** As many as the server reports. */
const MAX_DAYS = { usage: 31, admin: 366 };
const UTC = 'UTC';
/** The periods that were chosen by their first and last day, by view. */
const custom = {};

const localZone = () => Intl.DateTimeFormat().resolvedOptions().timeZone;
const timeZone = () => (choice.get('days') === 'utc' ? UTC : localZone());

export const isUtc = () => timeZone() === UTC;

/** Builds a view of spending: its heading, the choice of a period, and an empty body. */
export function buildView(view, title, load) {
  const option = ([range, name], place) => element('label', { class: 'choice' },
    element('input', { type: 'radio', name: `${view}-range`, value: range, checked: place === 0 }), ` ${name}`);
  const button = element('button', { type: 'button', class: 'quiet', 'aria-haspopup': 'dialog', 'aria-pressed': 'false', text: TEXT.custom, click: () => choose(view, show) });
  const show = () => {
    const chosen = custom[view];
    button.textContent = chosen ? name(chosen) : TEXT.custom;
    button.ariaPressed = String(Boolean(chosen));
    if (chosen) for (const input of byId(`${view}-range`).querySelectorAll(':checked')) input.checked = false;
    void load();
  };
  const change = () => {
    custom[view] = null;
    show();
  };
  byId(`view-${view}`).replaceChildren(
    element('div', { class: 'usage-head' },
      element('h2', { id: `${view}-heading`, tabindex: '-1', text: title }),
      element('div', { id: `${view}-range`, class: 'period' }, element('fieldset', { class: 'choices', change },
        element('legend', { class: 'unseen', text: TEXT.period }), Object.entries(TEXT.ranges).map(option)), button)),
    element('div', { id: `${view}-body`, class: 'usage-body' }));
}

/** Asks for the first and the last day, and which days these are, unless local ones are those of UTC. */
function choose(view, show) {
  const { from, through } = custom[view] ?? {};
  const [first] = lastDays(MAX_DAYS[view]);
  const day = (name, initial) => ({ name, label: TEXT[name], type: 'date', min: first, max: today(), initial: initial ?? '' });
  const zone = { name: 'zone', label: TEXT.zone, options: TEXT.zones, value: isUtc() ? 'utc' : 'local' };
  askFor({
    title: TEXT.period, label: TEXT.show, fields: [day('from', from), day('through', through), ...(localZone() === UTC ? [] : [zone])],
    send: async (asked) => {
      if (Boolean(asked.from) !== Boolean(asked.through)) throw fault(asked.from ? 'through' : 'from', TEXT.needsBoth);
      const outside = ['from', 'through'].find((field) => asked[field] && (asked[field] < first || asked[field] > today()));
      if (outside) throw fault(outside, TEXT.outside(MAX_DAYS[view]));
      if (asked.through < asked.from) throw fault('through', TEXT.backwards);
      return asked;
    },
    done: (asked) => {
      if (asked.zone) choice.set('days', asked.zone);
      if (asked.from) custom[view] = { from: asked.from, through: asked.through };
      show();
    },
  });
}

const fault = (field, detail) => ({ errors: [{ pointer: `/${field}`, detail }] });
const name = ({ from, through }) => (from === through ? dayName(from) : `${dayName(from)} – ${dayName(through)}`);

/** Returns `{days, query, name, isUpToDate}`: the days, the oldest first, and the query for them and those up to today. */
export function periodOf(view) {
  const chosen = custom[view];
  const count = chosen ? daysSince(chosen.from, MAX_DAYS[view]) : rangeOf(byId(`${view}-range`).querySelector(':checked').value);
  const days = lastDays(count).filter((day) => !chosen || day <= chosen.through);
  return {
    days, query: `?since=${count}d&time_zone=${encodeURIComponent(timeZone())}`,
    name: chosen ? name(chosen) : TEXT.sum(count), isUpToDate: days.at(-1) === today(),
  };
}

const rangeOf = (value) => Number(value === 'month' ? today().slice(-2) : value);
const daysSince = (day, most) => Math.min(most, Math.max(1, (Date.parse(today()) - Date.parse(day)) / DAY + 1));

/** `2026-01-31`. Swedish dates are those of ISO 8601. */
export const today = () => new Date().toLocaleDateString('sv', { timeZone: timeZone() });

function lastDays(count) {
  const last = Date.parse(today());
  return Array.from({ length: count }, (_, place) => new Date(last - (count - 1 - place) * DAY).toISOString().slice(0, 10));
}

/** Says which days these are. */
export const aboutDays = () => element('p', { class: 'hint', text: TEXT.days[isUtc() ? 'utc' : 'local'] + TEXT.pending });

/** `Jan 31` in the browser's language. */
export const dayName = (day) => new Date(`${day}T00:00:00Z`).toLocaleDateString([], { day: 'numeric', month: 'short', timeZone: 'UTC' });
