/** The admin view: everyone's spending, members, videos and the account. The server answers admins only. */

import { saveFile } from '../chat/transfer.js';
import { announce, button, byId, element } from '../core/dom.js';
import { price } from '../core/format.js';
import { sentence } from '../core/problems.js';
import { read } from '../core/site.js';
import { byDay, dayName, figure, furnish, lastDays, picture, ranking, roomFor, shape, SERVICES, table, words } from '../usage/pictures.js';

const TEXT = {
  title: 'Everyone’s spending',
  announced: (amount, days) => `${amount} in ${days} days by everyone`,
  failed: 'Could not load this view. ',
  retry: 'Try again',
  total: (count, days) => ` for ${count} ${count === 1 ? 'purchase' : 'purchases'} in the last ${days} days`,
  empty: 'No purchases in this period.',
  byMember: 'By member',
  byModel: 'By model',
  details: 'By member, day and model',
  save: 'Download CSV',
  spending: { label: 'Spending by member, day and model', columns: ['Member', 'Day', 'Model', 'Kind', '>Purchases', '>Spent'] },
  days: 'Days are in UTC. Pending and unknown purchases count as spent.',
  unknown: (count, more, amount) => (count === 1 && !more
    ? `1 purchase (${amount}) has an unknown outcome. ` : `${more ? 'More than ' : ''}${count} purchases (${amount}) have an unknown outcome. `),
  settle: (count) => [`${count === 1 ? 'It counts' : 'They count'} as spent until settled. To settle, run `, 'tollgate reconcile', ' on the server.'],
  which: 'Show them',
  unknowns: { label: 'Unknown outcomes', columns: ['Time', 'Member', 'Model', '>Price'] },
  account: 'Account',
  balance: (left, spent, at, stale) => `${left} left, ${spent} spent so far, as of ${at}${stale ? '. The gateway has not answered since' : ''}.`,
  noBalance: 'The gateway has not reported a balance yet.',
  balances: 'Balance',
  noBalances: 'A chart of the balance appears after two reconciliations.',
  members: { label: 'Members', columns: ['Name', 'Role', 'State', 'Token', '>Today', '>This month', 'Added'] },
  budget: (spent, limit) => `${spent} of ${limit}`,
  videos: { label: 'Latest videos', columns: ['Ordered', 'Member', 'Model', 'State', '>Price'] },
  more: (count) => `Show ${count} more`,
};

/** How many of the latest jobs are listed at first. */
const JOBS = 20;

let shownAs = null, jobsShown = JOBS;

/** Fills the view in. */
export const start = () => furnish('admin', TEXT.title, { load, redraw: () => shownAs && draw(shownAs) });

/** Called each time the view comes into sight: others spend meanwhile. */
export const shown = () => load();

async function load() {
  const days = Number(byId('admin-range').querySelector(':checked').value);
  try {
    const [usage, { members }, { jobs }, billing] = await Promise.all([
      read(`/bff/admin/usage?since=${days}d`), read('/bff/admin/members'), read('/bff/admin/jobs'), read('/bff/admin/billing')]);
    const rows = usage.rows.map((row) => ({ ...row, spent_micros: spentOf(row), caller: plainName(row.caller) }));
    draw({ rows, total: usage.total, members, jobs, billing, days });
    announce(TEXT.announced(price(spentOf(usage.total)), days));
  } catch (problem) {
    shownAs = null;
    byId('admin-body').replaceChildren(element('div', { class: 'problem', role: 'alert' },
      element('p', {}, element('strong', { text: TEXT.failed }), sentence(problem)),
      problem.detail ? element('p', { class: 'hint', text: problem.detail }) : null,
      element('div', { class: 'actions' }, button(TEXT.retry, () => void load()))));
  }
}

/** What counts against budgets: charged, under way, or not known. */
const spentOf = (row) => row.settled_micros + row.unknown_micros + row.held_micros;
/** `ann` for `member:ann`; an address or a subject keeps its kind. */
const plainName = (caller) => caller.replace(/^member:/, '');
const when = (moment) => new Date(moment).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' });
const heading = (text) => element('h3', { text });

function draw(all) {
  shownAs = all;
  const { rows, total, days, members, jobs, billing } = all;
  byId('admin-body').replaceChildren(
    element('p', { class: 'total' }, element('strong', { text: price(spentOf(total)) }),
      TEXT.total(total.count, days)),
    ...unknown(billing.unknown), ...spending(rows, total, days), ...account(billing), ...people(members), ...videos(jobs));
}

function spending(rows, total, days) {
  if (!rows.length) return [element('p', { class: 'empty', text: TEXT.empty })];
  const body = byId('admin-body');
  const sorted = [...rows].sort((one, other) => other.day.localeCompare(one.day) || other.spent_micros - one.spent_micros);
  return [
    element('div', { class: 'pictures' },
      ranking(TEXT.byMember, rows, ({ caller }) => caller, roomFor(body, 2)), ranking(TEXT.byModel, rows, ({ model }) => model, roomFor(body, 2))),
    byDay(rows, days, roomFor(body, 1)),
    element('div', { class: 'usage-head' }, heading(TEXT.details), button(TEXT.save, () => void saveCsv(days), 'quiet small')),
    table(TEXT.spending.label, TEXT.spending.columns, sorted.map((row) =>
      [row.caller, row.day, row.model, SERVICES[row.service] ?? row.service, String(row.count), price(row.spent_micros)]), price(spentOf(total))),
    element('p', { class: 'hint', text: TEXT.days }),
  ];
}

/** The server's own file, fetched here so that a refusal is said in words. */
async function saveCsv(days) {
  const response = await fetch(`/bff/admin/usage?since=${days}d&format=csv`, { cache: 'no-store' }).catch(() => null);
  if (!response?.ok) return void load();
  saveFile(await response.text(), `everybody-${lastDays(1)[0]}.csv`, 'text/csv');
}

function unknown({ count, more, tolls_micros: tolls, purchases }) {
  if (!count) return [];
  const [before, command, after] = TEXT.settle(count);
  return [element('div', { class: 'problem' },
    element('p', {}, element('strong', { text: TEXT.unknown(count, more, price(tolls)) }),
      before, element('code', { text: command }), after),
    element('details', {}, element('summary', { text: TEXT.which }),
      table(TEXT.unknowns.label, TEXT.unknowns.columns, purchases.map((one) => [when(one.at), plainName(one.caller), one.model, price(one.toll_micros)]))))];
}

function account({ account: said, stale, checkpoints }) {
  const facts = said
    ? TEXT.balance(price(said.balance_micros), price(said.spent_micros), when(said.as_of), stale)
    : TEXT.noBalance;
  const points = checkpoints.map(({ at, balance_micros: micros }) => ({ at: Date.parse(at), micros })).reverse();
  return [heading(TEXT.account), element('p', { text: facts }),
    points.length > 1 ? trend(points, roomFor(byId('admin-body'), 1))
      : element('p', { class: 'hint', text: TEXT.noBalances })];
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
  return figure(TEXT.balances, picture(width, height, `${TEXT.balances}: ${day(first)} ${price(first.micros)}, ${day(last)} ${price(last.micros)}`, parts));
}

function people(members) {
  if (!members.length) return [];
  const budget = ({ budgets }, wanted) => {
    const { limit_micros: limit, spent_micros: spent } = budgets.find(({ period }) => period === wanted);
    return limit === null ? price(spent) : TEXT.budget(price(spent), price(limit));
  };
  return [heading(TEXT.members.label), table(TEXT.members.label, TEXT.members.columns, members.map((one) =>
    [one.name, one.role, one.state, `${one.token_prefix}…`, budget(one, 'day'), budget(one, 'month'), when(one.added)]))];
}

function videos(jobs) {
  if (!jobs.length) return [];
  const rest = jobs.length - jobsShown;
  return [heading(TEXT.videos.label), table(TEXT.videos.label, TEXT.videos.columns, jobs.slice(0, jobsShown).map((job) =>
    [when(job.ordered_at), plainName(job.owner), job.model, job.state, price(job.toll_micros)])),
  rest > 0 ? button(TEXT.more(rest), () => {
    jobsShown = Infinity;
    draw(shownAs);
  }) : ''];
}
