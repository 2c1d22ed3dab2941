/** The usage view: the caller's own spending by day and by model. Its charts and tables also serve the admin view. */

import { announce, button, byId, element, noticeDone, saveFile } from '../core/dom.js';
import { amountLeft, isEnglish, locale, price, t, utcDay } from '../core/format.js';
import { amountField, askFor } from '../core/forms.js';
import { funds } from '../core/funds.js';
import { sentence } from '../core/problems.js';
import { post, read, whenChanged } from '../core/site.js';
import { aboutDays, buildView, dayName, isUtc, periodOf, today } from './period.js';

const SERVICES = ['chat', 'video'];

export const serviceOf = ({ service }) => t(`service.${service}`) ?? service;

let isStale = true;

export async function start() {
  buildView('usage', t('usage.title'), load);
  whenChanged((shelf) => {
    if (shelf !== 'purchases') return;
    isStale = true;
    if (!byId('view-usage').hidden) void load();
  });
}

export function shown() {
  if (isStale) void load();
}

async function load() {
  const period = periodOf('usage');
  isStale = false;
  try {
    const [{ rows: all, saved_micros: saved }, { budgets, may_ask: mayAsk }] = await Promise.all([read(`/bff/usage${period.query}`), read('/bff/me')]);
    const rows = all.filter(({ day }) => day <= period.days.at(-1));
    draw({ rows, total: sumOf(rows), saved: period.isUpToDate && saved, period, budgets, mayAsk });
    announce(t('usage.announced', price(sumOf(rows)), period.days.length));
  } catch (problem) {
    isStale = true;
    byId('usage-body').replaceChildren(failure(t('usage.failed'), problem, () => void load()));
  }
}

function draw({ rows, total, saved, period, budgets, mayAsk }) {
  const limits = budgets.length ? element('div', { class: 'card limits' }, funds({ budgets }), mayAsk ? element('p', {}, button(t('usage.ask'), askForMore)) : null) : '';
  if (!rows.length) return byId('usage-body').replaceChildren(limits, element('p', { class: 'empty', text: t('usage.empty') }));
  byId('usage-body').replaceChildren(summary({ rows, total, saved, period, budgets }), limits,
    element('div', { class: 'pictures' }, byDay(rows, period.days), ranking(t('usage.byModel'), rows, ({ model }) => model)),
    element('div', { class: 'usage-head' }, element('h3', { text: t('usage.details') }),
      button(t('usage.save'), () => saveFile(csv(rows), `spending-${period.days.at(-1)}.csv`, 'text/csv'), 'quiet small')),
    asTable(rows, total), aboutDays());
}

export function askForMore() {
  askFor({
    title: t('usage.ask'), about: t('usage.aboutAsk'), label: t('usage.ask'), fields: [amountField('amount'), { name: 'reason', label: t('usage.reason'), dir: 'auto' }],
    send: (request) => post('/bff/budget-requests', request), done: () => noticeDone(t('usage.asked')),
  });
}

/** The sums that people ask for first. A budget of a day is one of a UTC day. */
function summary({ rows, total, saved, period: { name, days, isUpToDate }, budgets }) {
  const now = rows.filter(({ day }) => day === today());
  const limit = budgets.find(({ scope, period }) => scope === 'caller' && period === 'day')?.limit_micros;
  const [dearest] = [...Map.groupBy(rows, ({ model }) => model)].sort(([, one], [, other]) => sumOf(other) - sumOf(one));
  return figures([
    [name, price(total), t('usage.purchases', countOf(rows))],
    ...(isUpToDate && days.length > 1 ? [[t('column.today'), price(sumOf(now)), limit === undefined || !isUtc() ? t('usage.purchases', countOf(now)) : t('usage.ofLimit', price(limit))]] : []),
    ...(days.length > 1 ? [[t('usage.perDay'), amountLeft(rounded(total / days.length)), '']] : []),
    [t('usage.dearest'), dearest[0], price(sumOf(dearest[1]))],
    ...(saved ? [[t('usage.saved'), price(saved), t('usage.savedBy')]] : []),
  ]);
}

/** Rounds to what `amountLeft` shows. */
function rounded(amount) {
  const unit = amount >= 1_000_000 ? 10_000 : 1_000;
  return Math.round(amount / unit) * unit;
}

function asTable(rows, total) {
  const latestFirst = [...rows].sort((one, other) => other.day.localeCompare(one.day));
  return table(t('usage.table'), ['day', 'model', 'kind', '>purchases', '>spent'], latestFirst.map((row) => [
    { text: utcDay(row.day), by: row.day }, row.model, serviceOf(row),
    { text: String(row.count), by: row.count }, { text: price(row.spent_micros), by: row.spent_micros }]), { total: price(total) });
}

function csv(rows) {
  // A spreadsheet would run what begins like a formula, after whatever it takes for a separator.
  const safe = (text) => `"${String(text).replace(/(^|[\s\p{Cc},;:|"])([=+\-@＝＋－＠])/gu, "$1'$2").replaceAll('"', '""')}"`;
  const lines = rows.map((row) => [row.day, safe(row.service), safe(row.model), row.count, row.spent].join(','));
  return `${['day,service,model,count,spent_usd', ...lines].join('\r\n')}\r\n`;
}

// Charts whose bars can be reached by keyboard, and tables that can be sorted.

/** Says why a view cannot be shown, with a button to try again. */
export function failure(text, problem, retry) {
  return element('div', { class: 'problem', role: 'alert' },
    element('p', {}, element('strong', { text: `${text} ` }), sentence(problem)),
    isEnglish && problem.detail ? element('p', { class: 'hint', text: problem.detail }) : null,
    element('div', { class: 'actions' }, button(t('offer.again'), retry)));
}

export const sumOf = (rows) => rows.reduce((sum, row) => sum + row.spent_micros, 0);
export const countOf = (rows) => rows.reduce((sum, row) => sum + row.count, 0);
const servicesIn = (rows) => SERVICES.filter((service) => rows.some((row) => row.service === service));

/** Figures side by side: `[name, value, note]` each. */
export function figures(rows) {
  return element('dl', { class: 'figures' }, rows.map(([name, value, note]) => element('div', { class: 'card' },
    element('dt', { text: name }), element('dd', {}, element('strong', { text: value }), note ? element('span', { class: 'hint', text: note }) : null))));
}

export function figure(title, ...children) {
  return element('figure', { class: 'card' }, element('figcaption', {}, element('h3', { text: title })), children);
}

/** Charts of these days, one for each service: a chat costs too little to be seen beside a video. Each bar is stacked by `partOf`, the model by default. */
export const byDay = (rows, days, partOf = ({ model }) => model) =>
  servicesIn(rows).map((service) => oneService(service, rows.filter((row) => row.service === service), days, partOf));

/** The parts that a chart names, the highest sum first; more of them are one part. */
const MAX_PARTS = 4;

function partsOf(rows, partOf) {
  const names = [...Map.groupBy(rows, partOf)].sort(([, one], [, other]) => sumOf(other) - sumOf(one)).map(([name]) => name);
  const first = names.slice(0, names.length > MAX_PARTS ? MAX_PARTS - 1 : MAX_PARTS);
  const parts = first.map((name) => ({ name, has: (row) => partOf(row) === name }));
  return first.length < names.length ? [...parts, { name: t('usage.others'), has: (row) => !first.includes(partOf(row)) }] : parts;
}

function oneService(service, rows, all, partOf) {
  const days = all.map((day) => ({ day, those: rows.filter((row) => row.day === day) }));
  const most = Math.max(1, ...days.map(({ those }) => sumOf(those)));
  const every = Math.ceil(all.length / 7);
  const parts = partsOf(rows, partOf);
  const items = days.map(({ day, those }, place) => {
    const spent = sumOf(those);
    const text = those.length ? t('usage.bar', dayName(day), price(spent), countOf(those)) : t('usage.noneOn', dayName(day));
    const bar = element('span', { class: `day-bar ${service}` }, parts.map(({ has }) => {
      const part = element('span');
      part.style.flexGrow = sumOf(those.filter(has));
      part.hidden = !those.some(has);
      return part;
    }));
    // A bar can be seen, however short it is.
    bar.style.height = those.length ? `max(3px, ${(spent / most) * 100}%)` : '0';
    const isNamed = (all.length - 1 - place) % every === 0;
    return element('li', {},
      element('span', { class: 'column', role: 'img', 'aria-label': text, tabindex: place === all.length - 1 ? '0' : '-1' },
        bar, element('span', { class: 'tip', text })),
      element('span', { class: 'tick', 'aria-hidden': 'true', text: isNamed ? dayName(day) : '' }));
  });
  const title = t(`service.${service}ByDay`);
  const list = element('ol', { class: 'bars', 'aria-label': `${title}. ${t('usage.keys')}`, keydown: followKeys }, items);
  return figure(title, element('p', { class: 'scale', 'aria-hidden': 'true', text: price(most) }), list,
    parts.length > 1 ? element('ul', { class: `legend ${service}` }, parts.map(({ name }) => element('li', { text: name }))) : null);
}

/** One Tab stop for a chart; arrow keys, Home and End go from bar to bar. */
function followKeys(event) {
  const bars = [...event.currentTarget.querySelectorAll('.column')];
  const at = bars.indexOf(event.target);
  const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: bars.length - 1 }[event.key];
  if (next === undefined || !bars[next]) return;
  event.preventDefault();
  bars.forEach((bar, place) => bar.setAttribute('tabindex', place === next ? '0' : '-1'));
  bars[next].focus();
}

/** One bar for each name, the highest sum first, with a part for each service. */
export function ranking(title, rows, nameOf) {
  const all = [...Map.groupBy(rows, nameOf)].map(([name, those]) => ({ name, those, spent: sumOf(those) }))
    .sort((one, other) => other.spent - one.spent);
  const most = Math.max(1, all[0].spent);
  const parts = ({ those }) => servicesIn(those).map((service) => {
    const part = element('span', { class: service });
    part.style.width = `max(4px, ${(sumOf(those.filter((row) => row.service === service)) / most) * 100}%)`;
    return part;
  });
  return figure(title, element('ol', { class: 'ranking', role: 'list', 'aria-label': title }, all.map((one) => element('li', {},
    element('span', { class: 'model', text: one.name }), element('strong', { text: price(one.spent) }),
    element('span', { class: 'trough' }, parts(one))))));
}

/** How many rows a table shows at first. */
const ROWS = 50;

/**
 * A table that scrolls by itself and is sorted by a click on a column. `columns`: their keys; one that begins with `>` is of
 * numbers. A cell is a text, a node, or `{text | node, by}`, where `by` is what it is sorted by. `total` stands below the last column.
 * `sorted`: the column that it is sorted by at first. Of many rows, the rest is shown at a press.
 */
export function table(label, columns, rows, { total = null, cards = false, sorted = null } = {}) {
  const names = columns.map((name) => t(`column.${name.replace('>', '')}`));
  const kind = (place) => (columns[place].startsWith('>') ? 'right' : null);
  const body = element('tbody');
  const more = element('div', { class: 'more' });
  const heads = names.map((text, place) => element('th', { scope: 'col', class: kind(place) },
    element('button', { type: 'button', class: 'sort', text, click: () => sort(place) })));
  const cellOf = (cell, place) => {
    const { node, text } = cell?.by === undefined ? { node: cell } : cell;
    return element('td', { class: kind(place), 'data-label': names[place] }, node ?? text);
  };
  const keyOf = (cell) => cell?.by ?? cell;
  let shown = ROWS;
  const fill = (all) => {
    body.replaceChildren(...all.slice(0, shown).map((row) => element('tr', {}, row.map(cellOf))));
    const rest = all.length - shown;
    more.hidden = rest <= 0;
    more.replaceChildren(button(t('page.more', rest), () => {
      shown = Infinity;
      fill(all);
    }));
  };
  const sort = (place) => {
    const isUp = heads[place].ariaSort !== 'ascending';
    for (const head of heads) head.ariaSort = null;
    heads[place].ariaSort = isUp ? 'ascending' : 'descending';
    const compare = (one, other) => (typeof one === 'number' ? one - other : String(one).localeCompare(String(other), locale, { numeric: true }));
    fill([...rows].sort((one, other) => (isUp ? 1 : -1) * compare(keyOf(one[place]), keyOf(other[place]))));
  };
  if (sorted === null) fill(rows);
  else sort(sorted);
  const foot = total && element('tfoot', {}, element('tr', {},
    element('th', { scope: 'row', colspan: columns.length - 1, text: t('usage.total') }), element('td', { class: 'right', text: total })));
  return element('div', { class: cards ? 'table cards' : 'table', tabindex: '0', role: 'group', 'aria-label': label },
    element('table', {}, element('thead', {}, element('tr', {}, heads)), body, foot), more);
}
