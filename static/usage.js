/** The usage view: the caller's own spending by day and by model, as pictures with the table behind them. */

import { read } from './api.js';
import { nameOfBudget, price } from './catalog.js';
import { announce, button, byId, element } from './dom.js';
import { sentence } from './problems.js';
import { whenChanged } from './purchase.js';
import { saveFile } from './transfer.js';

const SERVICES = { chat: 'Chats', video: 'Videos' };
const DAY = 24 * 60 * 60 * 1000;
const SVG = 'http://www.w3.org/2000/svg';

let shownAs = null, stale = true;

/** Fills the view in. */
export function start() {
  byId('usage-range').addEventListener('change', () => void load());
  whenChanged(() => {
    stale = true;
    if (!byId('view-usage').hidden) void load();
  });
  // Pictures are drawn in the width there is, so that their words keep their size.
  let width = 0;
  new ResizeObserver(([{ contentRect }]) => {
    if (shownAs && contentRect.width && Math.abs(contentRect.width - width) > 8) draw(shownAs);
    width = contentRect.width;
  }).observe(byId('usage-body'));
}

/** Called each time the view comes into sight. */
export function shown() {
  if (stale || !shownAs) void load();
}

async function load() {
  const days = Number(byId('usage-range').querySelector(':checked').value);
  stale = false;
  try {
    const [{ rows, total_micros: total }, { budgets }] = await Promise.all([read(`/bff/usage?since=${days}d`), read('/bff/me')]);
    draw({ rows, total, days, budgets });
    announce(`${price(total)} in ${days} days`);
  } catch (problem) {
    stale = true;
    shownAs = null;
    byId('usage-body').replaceChildren(element('div', { class: 'problem', role: 'alert' },
      element('p', {}, element('strong', { text: 'Your spending cannot be shown. ' }), sentence(problem)),
      problem.detail && problem.detail !== problem.title ? element('p', { class: 'hint', text: problem.detail }) : null,
      element('div', { class: 'actions' }, button('Try again', () => void load()))));
  }
}

function draw(usage) {
  shownAs = usage;
  const { rows, total, days, budgets } = usage;
  const count = rows.reduce((sum, row) => sum + row.count, 0);
  const lead = element('p', { class: 'total' }, element('strong', { text: price(total) }),
    ` for ${count} ${count === 1 ? 'purchase' : 'purchases'} in the last ${days} days`);
  if (!rows.length) {
    return byId('usage-body').replaceChildren(lead, limits(budgets) ?? '', element('p', { class: 'empty', text: 'Nothing was bought in these days. What you buy appears here at once.' }));
  }
  byId('usage-body').replaceChildren(lead, limits(budgets) ?? '',
    element('div', { class: 'pictures' }, byDay(rows, days), byModel(rows)),
    element('div', { class: 'usage-head' }, element('h3', { text: 'Each day and model' }),
      button('Download as CSV', () => saveFile(csv(rows), `spending-${lastDays(1)[0]}.csv`, 'text/csv'), 'quiet small')),
    table(rows, total),
    element('p', { class: 'hint', text: 'Days are those of UTC. What is under way or not known yet counts as spent.' }));
}

/** Every budget that holds for this caller, how much of it is used up, and when it renews. */
function limits(budgets) {
  if (!budgets.length) return null;
  return element('ul', { class: 'limits card', 'aria-label': 'Budgets' }, budgets.map((budget) => element('li', {},
    element('strong', { text: nameOfBudget(budget) }),
    element('span', { text: `${price(budget.left_micros)} of ${price(budget.limit_micros)} left` }),
    element('progress', { max: budget.limit_micros, value: budget.spent_micros, 'aria-label': `${nameOfBudget(budget)}, used up` }),
    element('span', { class: 'hint', text: `Renews ${new Date(budget.renews).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' })}` }))));
}

/** The last days in UTC, oldest first: `2026-01-31`. */
function lastDays(count) {
  return Array.from({ length: count }, (_, place) => new Date(Date.now() - (count - 1 - place) * DAY).toISOString().slice(0, 10));
}

const sumOf = (rows) => rows.reduce((sum, row) => sum + row.spent_micros, 0);

function figure(title, drawing, legend = null) {
  return element('figure', { class: 'card' }, element('figcaption', {}, element('h3', { text: title }), legend), drawing);
}

function byDay(rows, count) {
  const days = lastDays(count).map((day) => ({ day, rows: rows.filter((row) => row.day === day) }));
  const most = Math.max(...days.map((one) => sumOf(one.rows)));
  const services = Object.keys(SERVICES).filter((service) => rows.some((row) => row.service === service));
  const [width, height, foot, top] = [roomFor(2), 200, 24, 22];
  const step = width / count;
  const scale = (height - foot - top) / most;
  const parts = [
    shape('line', { x1: 0, x2: width, y1: top, y2: top, class: 'grid' }),
    shape('line', { x1: 0, x2: width, y1: height - foot, y2: height - foot, class: 'grid' }),
    words(price(most), { x: 0, y: top - 7 }),
  ];
  days.forEach(({ day, rows: those }, place) => {
    let bottom = height - foot;
    for (const service of services) {
      const tall = sumOf(those.filter((row) => row.service === service)) * scale;
      if (!tall) continue;
      // What was spent is seen, however little it is beside a video.
      const seen = Math.max(tall, 2);
      bottom -= seen;
      parts.push(shape('rect', { x: step * (place + 0.15), y: bottom, width: step * 0.7, height: seen, rx: Math.min(2, seen / 2), class: service },
        shape('title', {}, `${day}: ${SERVICES[service]} ${price(sumOf(those.filter((row) => row.service === service)))}`)));
    }
    const every = Math.ceil(70 / step);
    const middle = step * (place + 0.5);
    const anchor = middle + 24 > width ? { x: width, 'text-anchor': 'end' } : { x: middle, 'text-anchor': 'middle' };
    if ((count - 1 - place) % every === 0) parts.push(words(dayName(day), { ...anchor, y: height - 6 }));
  });
  const said = days.filter((one) => one.rows.length).map((one) => `${dayName(one.day)} ${price(sumOf(one.rows))}`).join(', ');
  const legend = element('p', { class: 'legend' }, services.map((service) => element('span', { class: service, text: SERVICES[service] })));
  return figure('By day', picture(width, height, `By day: ${said}`, parts), legend);
}

function byModel(rows) {
  const models = [...Map.groupBy(rows, (row) => row.model)].map(([model, those]) => ({ model, service: those[0].service, spent: sumOf(those) }))
    .sort((one, other) => other.spent - one.spent);
  const most = models[0].spent;
  const [width, line] = [roomFor(2), 40];
  const parts = models.flatMap(({ model, service, spent }, place) => [
    words(model, { x: 0, y: place * line + 14 }),
    words(price(spent), { x: width, y: place * line + 14, 'text-anchor': 'end' }),
    shape('rect', { x: 0, y: place * line + 20, width, height: 8, rx: 4, class: 'trough' }),
    shape('rect', { x: 0, y: place * line + 20, width: Math.max(4, width * (spent / most)), height: 8, rx: 4, class: service }),
  ]);
  const said = models.map(({ model, spent }) => `${model} ${price(spent)}`).join(', ');
  return figure('By model', picture(width, models.length * line - 10, `By model: ${said}`, parts));
}

/** The width of one of `side` pictures side by side, or of one below the other where there is less room. */
function roomFor(side) {
  const whole = byId('usage-body').clientWidth || 600;
  return Math.max(200, (whole >= 720 ? (whole - 24) / side : whole) - 38);
}

function dayName(day) {
  return new Date(`${day}T00:00:00Z`).toLocaleDateString([], { day: 'numeric', month: 'short', timeZone: 'UTC' });
}

const picture = (width, height, label, parts) =>
  shape('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': label }, ...parts);
const words = (text, attributes) => shape('text', attributes, text);

function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function table(rows, total) {
  const cell = (tag, text, kind = null) => element(tag, { text, class: kind, scope: tag === 'th' && 'col' });
  const head = element('tr', {}, cell('th', 'Day'), cell('th', 'Model'), cell('th', 'What'), cell('th', 'Count', 'right'), cell('th', 'Spent', 'right'));
  const body = [...rows].sort((one, other) => (other.day > one.day ? 1 : other.day < one.day ? -1 : 0)).map((row) => element('tr', {},
    cell('td', row.day), cell('td', row.model), cell('td', SERVICES[row.service] ?? row.service),
    cell('td', String(row.count), 'right'), cell('td', price(row.spent_micros), 'right')));
  const foot = element('tr', {}, element('th', { scope: 'row', colspan: 4, text: 'Together' }), cell('td', price(total), 'right'));
  return element('div', { class: 'table', tabindex: '0', role: 'group', 'aria-label': 'Spending by day and model' },
    element('table', {}, element('thead', {}, head), element('tbody', {}, body), element('tfoot', {}, foot)));
}

function csv(rows) {
  // A cell that begins like a formula would be run by a spreadsheet.
  const safe = (text) => `"${String(text).replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
  const lines = rows.map((row) => [row.day, safe(row.service), safe(row.model), row.count, row.spent].join(','));
  return `${['day,service,model,count,spent_usd', ...lines].join('\r\n')}\r\n`;
}
