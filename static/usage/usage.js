/** The usage view: the caller's own spending by day and by model, as charts and as a table. */

import { saveFile } from '../chat/transfer.js';
import { announce, button, byId, element } from '../core/dom.js';
import { amountLeft, nameOfBudget, price } from '../core/format.js';
import { read } from '../core/site.js';
import { whenChanged } from '../core/store.js';
import { aboutDays, byDay, countOf, daysOf, failure, figures, buildView, lastDays, ranking, SERVICES, sumOf, table, utcOffset } from './pictures.js';

const TEXT = {
  title: 'Your spending',
  announced: (amount, days) => `${amount} in ${days} days`,
  failed: 'Could not load your spending.',
  purchases: (count) => `${count} ${count === 1 ? 'purchase' : 'purchases'}`,
  sum: (days) => (days === 1 ? 'Today' : `Last ${days} days`),
  today: 'Today',
  ofLimit: (limit) => `of ${limit}`,
  perDay: 'Average per day',
  dearest: 'Most spent on',
  saved: 'Saved',
  savedBy: 'by repeats that were not charged again',
  empty: 'No purchases in this period.',
  byModel: 'By model',
  details: 'By day and model',
  save: 'Download CSV',
  budgets: 'Budgets',
  left: (left, limit) => `${left} of ${limit} left`,
  used: (name) => `${name}, used`,
  renews: (when) => `Renews ${when}`,
  table: 'Spending by day and model',
  columns: ['Day', 'Model', 'Kind', '>Purchases', '>Spent'],
};

let isStale = true;

/** Fills the view in. */
export async function start() {
  buildView('usage', TEXT.title, load);
  whenChanged((shelf) => {
    if (shelf !== 'purchases') return;
    isStale = true;
    if (!byId('view-usage').hidden) void load();
  });
}

/** Called each time the view comes into sight. */
export function shown() {
  if (isStale) void load();
}

async function load() {
  const days = daysOf('usage');
  isStale = false;
  try {
    const [{ rows, total_micros: total, saved_micros: saved }, { budgets }] = await Promise.all([read(`/bff/usage?since=${days}d&utc_offset=${utcOffset()}`), read('/bff/me')]);
    draw({ rows, total, saved, days, budgets });
    announce(TEXT.announced(price(total), days));
  } catch (problem) {
    isStale = true;
    byId('usage-body').replaceChildren(failure(TEXT.failed, problem, () => void load()));
  }
}

function draw({ rows, total, saved, days, budgets }) {
  const head = [summary({ rows, total, saved, days, budgets }), limits(budgets) ?? ''];
  if (!rows.length) return byId('usage-body').replaceChildren(...head, element('p', { class: 'empty', text: TEXT.empty }));
  byId('usage-body').replaceChildren(...head,
    element('div', { class: 'pictures' }, byDay(rows, days), ranking(TEXT.byModel, rows, ({ model }) => model)),
    element('div', { class: 'usage-head' }, element('h3', { text: TEXT.details }),
      button(TEXT.save, () => saveFile(csv(rows), `spending-${lastDays(1)[0]}.csv`, 'text/csv'), 'quiet small')),
    asTable(rows, total),
    aboutDays(() => void load()));
}

/** The sums that people ask for first. A budget of a day is one of a UTC day. */
function summary({ rows, total, saved, days, budgets }) {
  const today = rows.filter(({ day }) => day === lastDays(1)[0]);
  const limit = budgets.find(({ scope, period }) => scope === 'caller' && period === 'day')?.limit_micros;
  const [dearest] = [...Map.groupBy(rows, ({ model }) => model)].sort(([, one], [, other]) => sumOf(other) - sumOf(one));
  return figures([
    [TEXT.sum(days), price(total), TEXT.purchases(countOf(rows))],
    [TEXT.today, price(sumOf(today)), limit === undefined || utcOffset() ? TEXT.purchases(countOf(today)) : TEXT.ofLimit(price(limit))],
    [TEXT.perDay, amountLeft(rounded(total / days)), ''],
    ...(dearest ? [[TEXT.dearest, dearest[0], price(sumOf(dearest[1]))]] : []),
    ...(saved ? [[TEXT.saved, price(saved), TEXT.savedBy]] : []),
  ]);
}

/** Rounds to what `amountLeft` shows. */
function rounded(amount) {
  const unit = amount >= 1_000_000 ? 10_000 : 1_000;
  return Math.round(amount / unit) * unit;
}

/** Lists the caller's budgets: how much is used, and when each renews. */
function limits(budgets) {
  if (!budgets.length) return null;
  return element('ul', { class: 'limits card', 'aria-label': TEXT.budgets }, budgets.map((budget) => element('li', {},
    element('strong', { text: nameOfBudget(budget) }),
    element('span', { text: TEXT.left(amountLeft(budget.left_micros), price(budget.limit_micros)) }),
    element('progress', { max: budget.limit_micros, value: budget.spent_micros, 'aria-label': TEXT.used(nameOfBudget(budget)) }),
    element('span', { class: 'hint', text: TEXT.renews(new Date(budget.renews).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' })) }))));
}

function asTable(rows, total) {
  const latestFirst = [...rows].sort((one, other) => other.day.localeCompare(one.day));
  return table(TEXT.table, TEXT.columns, latestFirst.map((row) => [
    row.day, row.model, SERVICES[row.service] ?? row.service,
    { text: String(row.count), by: row.count }, { text: price(row.spent_micros), by: row.spent_micros }]), { total: price(total) });
}

function csv(rows) {
  // A spreadsheet would run a cell that begins like a formula.
  const safe = (text) => `"${String(text).replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
  const lines = rows.map((row) => [row.day, safe(row.service), safe(row.model), row.count, row.spent].join(','));
  return `${['day,service,model,count,spent_usd', ...lines].join('\r\n')}\r\n`;
}
