/** The admin view: what everybody spends and makes, and how the account is. The server shows it to admins alone. */

import { saveFile } from '../chat/transfer.js';
import { announce, button, byId, element } from '../core/dom.js';
import { price } from '../core/format.js';
import { sentence } from '../core/problems.js';
import { read } from '../core/site.js';
import { byDay, dayName, figure, furnish, lastDays, picture, ranking, roomFor, shape, SERVICES, table, words } from '../usage/pictures.js';

/** As many of the latest jobs are listed at once. */
const JOBS = 20;

let shownAs = null, jobsShown = JOBS;

/** Fills the view in. */
export const start = () => furnish('admin', 'Everybody’s spending', { load, redraw: () => shownAs && draw(shownAs) });

/** Called each time the view comes into sight: others spend meanwhile. */
export const shown = () => load();

async function load() {
  const days = Number(byId('admin-range').querySelector(':checked').value);
  try {
    const [usage, { members }, { jobs }, billing] = await Promise.all([
      read(`/bff/admin/usage?since=${days}d`), read('/bff/admin/members'), read('/bff/admin/jobs'), read('/bff/admin/billing')]);
    const rows = usage.rows.map((row) => ({ ...row, spent_micros: spentOf(row), caller: plainName(row.caller) }));
    draw({ rows, total: usage.total, members, jobs, billing, days });
    announce(`${price(spentOf(usage.total))} by all in ${days} days`);
  } catch (problem) {
    shownAs = null;
    byId('admin-body').replaceChildren(element('div', { class: 'problem', role: 'alert' },
      element('p', {}, element('strong', { text: 'This cannot be shown. ' }), sentence(problem)),
      problem.detail ? element('p', { class: 'hint', text: problem.detail }) : null,
      element('div', { class: 'actions' }, button('Try again', () => void load()))));
  }
}

/** What counts against budgets: charged, under way, or not known. */
const spentOf = (row) => row.charged_micros + row.unknown_micros + row.held_micros;
/** `ann` for `member:ann`; an address or a subject keeps its kind. */
const plainName = (caller) => caller.replace(/^member:/, '');
const when = (moment) => new Date(moment).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' });
const heading = (text) => element('h3', { text });

function draw(all) {
  shownAs = all;
  const { rows, total, days, members, jobs, billing } = all;
  byId('admin-body').replaceChildren(
    element('p', { class: 'total' }, element('strong', { text: price(spentOf(total)) }),
      ` for ${total.count} ${total.count === 1 ? 'purchase' : 'purchases'} in the last ${days} days`),
    ...unknown(billing.unknown), ...spending(rows, total, days), ...account(billing), ...people(members), ...videos(jobs));
}

function spending(rows, total, days) {
  if (!rows.length) return [element('p', { class: 'empty', text: 'Nothing was bought in these days.' })];
  const body = byId('admin-body');
  const sorted = [...rows].sort((one, other) => other.day.localeCompare(one.day) || other.spent_micros - one.spent_micros);
  return [
    element('div', { class: 'pictures' },
      ranking('By member', rows, ({ caller }) => caller, roomFor(body, 2)), ranking('By model', rows, ({ model }) => model, roomFor(body, 2))),
    byDay(rows, days, roomFor(body, 1)),
    element('div', { class: 'usage-head' }, heading('Each member, day and model'), button('Export as CSV', () => void saveCsv(days), 'quiet small')),
    table('Spending by member, day and model', ['Member', 'Day', 'Model', 'What', '>Count', '>Spent'], sorted.map((row) =>
      [row.caller, row.day, row.model, SERVICES[row.service] ?? row.service, String(row.count), price(row.spent_micros)]), price(spentOf(total))),
    element('p', { class: 'hint', text: 'Days are those of UTC. What is under way or not known yet counts as spent.' }),
  ];
}

/** The server's own file, fetched here so that a refusal is said in words. */
async function saveCsv(days) {
  const response = await fetch(`/bff/admin/usage?since=${days}d&format=csv`, { cache: 'no-store' }).catch(() => null);
  if (!response?.ok) return void load();
  saveFile(await response.text(), `everybody-${lastDays(1)[0]}.csv`, 'text/csv');
}

function unknown({ count, more, price_micros: total, purchases }) {
  if (!count) return [];
  return [element('div', { class: 'problem' },
    element('p', {}, element('strong', { text: `Of ${more ? 'more than ' : ''}${count} ${count === 1 ? 'purchase' : 'purchases'} (${price(total)}), nobody knows the outcome. ` }),
      'They count as spent until they are settled: run ', element('code', { text: 'tollgate reconcile' }), ' where the server runs.'),
    element('details', {}, element('summary', { text: 'Which ones' }),
      table('Unknown outcomes', ['When', 'Member', 'Model', '>Price'], purchases.map((one) => [when(one.at), plainName(one.caller), one.model, price(one.price_micros)]))))];
}

function account({ account: said, stale, checkpoints }) {
  const facts = said
    ? `${price(said.balance_micros)} left, ${price(said.spent_micros)} spent so far; as of ${when(said.as_of)}${stale ? ', and the gateway did not answer since' : ''}.`
    : 'The gateway has not told the balance yet.';
  const points = checkpoints.map(({ at, balance_micros: micros }) => ({ at: Date.parse(at), micros })).reverse();
  return [heading('Account'), element('p', { text: facts }),
    points.length > 1 ? trend(points, roomFor(byId('admin-body'), 1))
      : element('p', { class: 'hint', text: 'How the balance goes is pictured once reconciliation has noted it twice.' })];
}

/** The balance at each checkpoint, as a line. */
function trend(points, width) {
  const [height, top, foot] = [150, 22, 24];
  const most = Math.max(1, ...points.map(({ micros }) => micros));
  const [first, last] = [points[0], points.at(-1)];
  const span = Math.max(1, last.at - first.at);
  const place = ({ at, micros }) => [(at - first.at) / span * width, height - foot - (height - foot - top) * (micros / most)].map(Math.round).join();
  const day = ({ at }) => dayName(new Date(at).toISOString().slice(0, 10));
  const parts = [
    shape('line', { x1: 0, x2: width, y1: height - foot, y2: height - foot, class: 'grid' }),
    shape('polyline', { points: points.map(place).join(' '), class: 'trend' }),
    words(price(most), { x: 0, y: top - 7 }),
    words(day(first), { x: 0, y: height - 6 }),
    words(day(last), { x: width, y: height - 6, 'text-anchor': 'end' }),
  ];
  return figure('Balance', picture(width, height, `Balance: ${day(first)} ${price(first.micros)}, ${day(last)} ${price(last.micros)}`, parts));
}

function people(members) {
  if (!members.length) return [];
  const budget = ({ budgets }, wanted) => {
    const { limit_micros: limit, spent_micros: spent } = budgets.find(({ period }) => period === wanted);
    return limit === null ? price(spent) : `${price(spent)} of ${price(limit)}`;
  };
  return [heading('Members'), table('Members', ['Name', 'Role', 'State', 'Token', '>Today', '>This month', 'Added'], members.map((one) =>
    [one.name, one.role, one.state, `${one.token_prefix}…`, budget(one, 'day'), budget(one, 'month'), when(one.added)]))];
}

function videos(jobs) {
  if (!jobs.length) return [];
  const rest = jobs.length - jobsShown;
  return [heading('Latest videos'), table('Latest videos', ['Ordered', 'Member', 'Model', 'State', '>Price'], jobs.slice(0, jobsShown).map((job) =>
    [when(job.ordered_at), plainName(job.owner), job.model, job.state, price(job.price_micros)])),
  rest > 0 ? button(`Show ${rest} more`, () => {
    jobsShown = Infinity;
    draw(shownAs);
  }) : ''];
}
