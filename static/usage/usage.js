/** The usage view: the caller's own spending by day and by model, as pictures with the table behind them. */

import { saveFile } from '../chat/transfer.js';
import { announce, button, byId, element } from '../core/dom.js';
import { nameOfBudget, price } from '../core/format.js';
import { sentence } from '../core/problems.js';
import { read } from '../core/site.js';
import { whenChanged } from '../core/store.js';
import { byDay, furnish, lastDays, ranking, roomFor, SERVICES, table } from './pictures.js';

let shownAs = null, stale = true;

/** Fills the view in. */
export async function start() {
  furnish('usage', 'Your spending', { load, redraw: () => shownAs && draw(shownAs) });
  whenChanged((shelf) => {
    if (shelf !== 'purchases') return;
    stale = true;
    if (!byId('view-usage').hidden) void load();
  });
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
      problem.detail ? element('p', { class: 'hint', text: problem.detail }) : null,
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
  const room = roomFor(byId('usage-body'), 2);
  byId('usage-body').replaceChildren(lead, limits(budgets) ?? '',
    element('div', { class: 'pictures' }, byDay(rows, days, room), ranking('By model', rows, ({ model }) => model, room)),
    element('div', { class: 'usage-head' }, element('h3', { text: 'Each day and model' }),
      button('Download as CSV', () => saveFile(csv(rows), `spending-${lastDays(1)[0]}.csv`, 'text/csv'), 'quiet small')),
    asTable(rows, total),
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

function asTable(rows, total) {
  const latestFirst = [...rows].sort((one, other) => (other.day > one.day ? 1 : other.day < one.day ? -1 : 0));
  return table('Spending by day and model', ['Day', 'Model', 'What', '>Count', '>Spent'], latestFirst.map((row) =>
    [row.day, row.model, SERVICES[row.service] ?? row.service, String(row.count), price(row.spent_micros)]), price(total));
}

function csv(rows) {
  // A cell that begins like a formula would be run by a spreadsheet.
  const safe = (text) => `"${String(text).replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
  const lines = rows.map((row) => [row.day, safe(row.service), safe(row.model), row.count, row.spent].join(','));
  return `${['day,service,model,count,spent_usd', ...lines].join('\r\n')}\r\n`;
}
