/** The period that a view of spending shows, and the days it consists of. */

import { byId, element } from '../core/dom.js';
import { locale, t } from '../core/format.js';
import { askFor } from '../core/forms.js';
import { choice } from '../core/site.js';

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
  const option = (range, place) => element('label', { class: 'choice' },
    element('input', { type: 'radio', name: `${view}-range`, value: range, checked: place === 0 }), ` ${t(`days.${range}`)}`);
  const button = element('button', { type: 'button', class: 'quiet', 'aria-haspopup': 'dialog', 'aria-pressed': 'false', text: t('range.custom'), click: () => choose(view, show) });
  const show = () => {
    const chosen = custom[view];
    button.textContent = chosen ? name(chosen) : t('range.custom');
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
        element('legend', { class: 'unseen', text: t('range.period') }), ['7', '31', 'month'].map(option)), button)),
    element('div', { id: `${view}-body`, class: 'usage-body' }));
}

/** Asks for the first and the last day, and which days these are, unless local ones are those of UTC. */
function choose(view, show) {
  const { from, through } = custom[view] ?? {};
  const [first] = lastDays(MAX_DAYS[view]);
  const day = (name, initial) => ({ name, label: t(name === 'from' ? 'range.from' : 'range.through'), type: 'date', min: first, max: today(), initial: initial ?? '' });
  const zone = { name: 'zone', label: t('range.zone'), options: { local: t('range.local'), utc: t('range.utc') }, value: isUtc() ? 'utc' : 'local' };
  askFor({
    title: t('range.period'), label: t('range.show'), fields: [day('from', from), day('through', through), ...(localZone() === UTC ? [] : [zone])],
    send: async (asked) => {
      if (Boolean(asked.from) !== Boolean(asked.through)) throw fault(asked.from ? 'through' : 'from', t('range.needsBoth'));
      const outside = ['from', 'through'].find((field) => asked[field] && (asked[field] < first || asked[field] > today()));
      if (outside) throw fault(outside, t('range.outside', MAX_DAYS[view]));
      if (asked.through < asked.from) throw fault('through', t('range.backwards'));
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
    name: chosen ? name(chosen) : t('range.sum', count), isUpToDate: days.at(-1) === today(),
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
export const aboutDays = () => element('p', { class: 'hint', text: t(`range.about.${isUtc() ? 'utc' : 'local'}`) + t('range.pending') });

/** `Jan 31` in the browser's language. */
export const dayName = (day) => new Date(`${day}T00:00:00Z`).toLocaleDateString(locale, { day: 'numeric', month: 'short', timeZone: 'UTC' });
