/** The usage view: the caller's own spending by day and by model, as charts and as a table. */

import { saveFile } from '../chat/transfer.js';
import { announce, button, byId, element } from '../core/dom.js';
import { nameOfBudget, price } from '../core/format.js';
import { sentence } from '../core/problems.js';
import { read } from '../core/site.js';
import { whenChanged } from '../core/store.js';
import { byDay, furnish, lastDays, ranking, roomFor, SERVICES, table } from './pictures.js';

const TEXT = {
  title: 'Your spending',
  announced: (amount, days) => `${amount} in ${days} days`,
  failed: 'Could not load your spending. ',
  retry: 'Try again',
  total: (count, days) => ` for ${count} ${count === 1 ? 'purchase' : 'purchases'} in the last ${days} days`,
  empty: 'No purchases in this period.',
  byModel: 'By model',
  details: 'By day and model',
  save: 'Download CSV',
  days: 'Days are in UTC. Pending and unknown purchases count as spent.',
  budgets: 'Budgets',
  left: (left, limit) => `${left} of ${limit} left`,
  used: (name) => `${name}, used`,
  renews: (when) => `Renews ${when}`,
  table: 'Spending by day and model',
  columns: ['Day', 'Model', 'Kind', '>Purchases', '>Spent'],
};

let shownAs = null, stale = true;

/** Fills the view in. */
export async function start() {
  furnish('usage', TEXT.title, { load, redraw: () => shownAs && draw(shownAs) });
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
    announce(TEXT.announced(price(total), days));
  } catch (problem) {
    stale = true;
    shownAs = null;
    byId('usage-body').replaceChildren(element('div', { class: 'problem', role: 'alert' },
      element('p', {}, element('strong', { text: TEXT.failed }), sentence(problem)),
      problem.detail ? element('p', { class: 'hint', text: problem.detail }) : null,
      element('div', { class: 'actions' }, button(TEXT.retry, () => void load()))));
  }
}

function draw(usage) {
  shownAs = usage;
  const { rows, total, days, budgets } = usage;
  const count = rows.reduce((sum, row) => sum + row.count, 0);
  const lead = element('p', { class: 'total' }, element('strong', { text: price(total) }),
    TEXT.total(count, days));
  if (!rows.length) {
    return byId('usage-body').replaceChildren(lead, limits(budgets) ?? '', element('p', { class: 'empty', text: TEXT.empty }));
  }
  const room = roomFor(byId('usage-body'), 2);
  byId('usage-body').replaceChildren(lead, limits(budgets) ?? '',
    element('div', { class: 'pictures' }, byDay(rows, days, room), ranking(TEXT.byModel, rows, ({ model }) => model, room)),
    element('div', { class: 'usage-head' }, element('h3', { text: TEXT.details }),
      button(TEXT.save, () => saveFile(csv(rows), `spending-${lastDays(1)[0]}.csv`, 'text/csv'), 'quiet small')),
    asTable(rows, total),
    element('p', { class: 'hint', text: TEXT.days }));
}

/** Lists the caller's budgets: how much is used, and when each renews. */
function limits(budgets) {
  if (!budgets.length) return null;
  return element('ul', { class: 'limits card', 'aria-label': TEXT.budgets }, budgets.map((budget) => element('li', {},
    element('strong', { text: nameOfBudget(budget) }),
    element('span', { text: TEXT.left(price(budget.left_micros), price(budget.limit_micros)) }),
    element('progress', { max: budget.limit_micros, value: budget.spent_micros, 'aria-label': TEXT.used(nameOfBudget(budget)) }),
    element('span', { class: 'hint', text: TEXT.renews(new Date(budget.renews).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' })) }))));
}

function asTable(rows, total) {
  const latestFirst = [...rows].sort((one, other) => (other.day > one.day ? 1 : other.day < one.day ? -1 : 0));
  return table(TEXT.table, TEXT.columns, latestFirst.map((row) =>
    [row.day, row.model, SERVICES[row.service] ?? row.service, String(row.count), price(row.spent_micros)]), price(total));
}

function csv(rows) {
  // A cell that begins like a formula would be run by a spreadsheet.
  const safe = (text) => `"${String(text).replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
  const lines = rows.map((row) => [row.day, safe(row.service), safe(row.model), row.count, row.spent].join(','));
  return `${['day,service,model,count,spent_usd', ...lines].join('\r\n')}\r\n`;
}
