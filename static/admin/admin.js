/** The admin view: everyone's spending, members, videos and the account, in tabs. The server answers admins only. */

import { announce, button, byId, element, saveFile } from '../core/dom.js';
import { price } from '../core/format.js';
import { read } from '../core/site.js';
import { TEXT as SPENDING, aboutDays, buildView, byDay, countOf, dayName, daysOf, failure, figure, figures, lastDays, lastDaysQuery, ranking, SERVICES, sumOf, table } from '../usage/usage.js';

const TEXT = {
  title: 'Admin',
  tabs: { overview: 'Overview', members: 'Members', groups: 'Groups', videos: 'Videos', account: 'Account', audit: 'Audit' },
  asked: (count) => `Members (${count})`,
  sections: 'Admin',
  announced: (amount, days) => `${amount} in ${days} days by everyone`,
  failed: 'Could not load this view.',
  open: 'Unknown outcomes',
  byMember: 'By caller',
  byGroup: 'By group',
  noGroup: 'No group',
  details: 'By caller, day and model',
  spending: { label: 'Spending by caller, day and model', columns: ['Caller', 'Day', 'Model', 'Kind', '>Purchases', '>Spent'] },
  unknown: (count, more, amount) => (count === 1 && !more
    ? `1 purchase (${amount}) has an unknown outcome. ` : `${more ? 'More than ' : ''}${count} purchases (${amount}) have an unknown outcome. `),
  settle: (count) => `${count === 1 ? 'It counts' : 'They count'} as spent until settled. To settle, run on the server: `,
  // The sandbox has no account to compare with.
  command: { live: 'tollgate reconcile', sandbox: 'tollgate purchase resolve ID charged' },
  which: 'Show them',
  unknowns: { label: 'Unknown outcomes', columns: ['Time', 'Caller', 'Model', '>Price', 'ID'] },
  balance: 'Account balance',
  spentSoFar: 'Spent so far',
  asOf: (at, stale) => `as of ${at}${stale ? '; the gateway has not answered since' : ''}`,
  noBalance: 'The gateway has not reported a balance yet.',
  balances: 'Balance',
  noBalances: 'A chart of the balance appears after two reconciliations.',
  videos: { label: 'Latest videos', columns: ['Ordered', 'Caller', 'Model', 'State', '>Price'] },
  noVideos: 'No videos yet.',
  more: (count) => `Show ${count} more`,
};

const JOBS = 20;
const TABS = { overview, members: people('members'), groups: people('groups'), videos, account, audit: people('audit') };

let loaded = null, access = null, mode = null, tab = 'overview', jobsShown = JOBS;

export function start(catalog) {
  ({ access, mode } = catalog);
  return buildView('admin', TEXT.title, load);
}

/** Called each time the view comes into sight: others spend meanwhile. */
export const shown = () => load();

async function load() {
  const days = daysOf('admin');
  try {
    const [usage, { rows: requests }, { rows: jobs }, billing] = await Promise.all([
      read(`/bff/admin/usage${lastDaysQuery(days)}`), read('/bff/admin/budget-requests'), read('/bff/admin/jobs'), read('/bff/admin/billing')]);
    const rows = usage.rows.map((row) => ({ ...row, spent_micros: spentOf(row), caller: plainName(row.caller) }));
    loaded = { rows, total: spentOf(usage.total), saved: usage.total.saved_micros, requests, jobs, billing, days };
    await draw();
    announce(TEXT.announced(price(loaded.total), days));
  } catch (problem) {
    loaded = null;
    byId('admin-body').replaceChildren(failure(TEXT.failed, problem, () => void load()));
  }
}

/** A tab of people.js, which is loaded at first need. */
function people(name) {
  return async ({ requests }) => {
    try {
      return await (await import('./people.js'))[name]({ requests, access, reload: load });
    } catch (problem) {
      return [failure(TEXT.failed, problem, () => void load())];
    }
  };
}

/** What counts against budgets: charged, pending, or unknown. */
const spentOf = (row) => row.charged_micros + row.unknown_micros + row.held_micros;
/** `ann` for `member:ann`; an address or a subject keeps its kind. */
export const plainName = (caller) => caller.replace(/^member:/, '');
export const when = (moment) => new Date(moment).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' });
const money = (micros) => ({ text: price(micros), by: micros });
const time = (moment) => ({ text: when(moment), by: moment });

/** Draws the tabs, and the panel of the one that is chosen. The focus stays on what has the same id. */
async function draw() {
  const names = Object.keys(TABS);
  const choose = (name) => {
    tab = name;
    byId(`admin-tab-${name}`).focus();
    void draw();
  };
  const keys = (event) => {
    const at = names.indexOf(tab);
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: names.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    choose(names[(next + names.length) % names.length]);
  };
  byId('admin-range').hidden = tab !== 'overview';
  const drawn = tab;
  const panel = await TABS[tab](loaded);
  // Another one may be chosen by now.
  if (drawn !== tab) return;
  const { requests } = loaded;
  const held = byId('admin-body').contains(document.activeElement) && document.activeElement.id;
  byId('admin-body').replaceChildren(
    element('div', { class: 'tabs', role: 'tablist', 'aria-label': TEXT.sections, keydown: keys }, names.map((name) => element('button', {
      type: 'button', id: `admin-tab-${name}`, role: 'tab', class: 'link', text: name === 'members' && requests.length ? TEXT.asked(requests.length) : TEXT.tabs[name],
      click: () => choose(name),
      'aria-selected': String(name === tab), 'aria-controls': name === tab && 'admin-panel', tabindex: name === tab ? '0' : '-1',
    }))),
    element('div', { id: 'admin-panel', class: 'usage-body', role: 'tabpanel', 'aria-labelledby': `admin-tab-${tab}` }, panel));
  if (held !== false) (byId(held) ?? byId(`admin-tab-${tab}`)).focus();
}

function overview({ rows, total, saved, days, billing }) {
  const today = rows.filter(({ day }) => day === lastDays(1)[0]);
  const head = [
    figures([
      [SPENDING.sum(days), price(total), SPENDING.purchases(countOf(rows))],
      [SPENDING.today, price(sumOf(today)), SPENDING.purchases(countOf(today))],
      [TEXT.open, String(billing.unknown.count) + (billing.unknown.more ? '+' : ''), price(billing.unknown.price_micros)],
      ...(saved ? [[SPENDING.saved, price(saved), SPENDING.savedBy]] : []),
    ]), ...unknown(billing.unknown)];
  if (!rows.length) return [...head, element('p', { class: 'empty', text: SPENDING.empty })];
  const sorted = [...rows].sort((one, other) => other.day.localeCompare(one.day) || other.spent_micros - one.spent_micros);
  return [...head,
    element('div', { class: 'pictures' }, byDay(rows, days),
      ranking(TEXT.byMember, rows, ({ caller }) => caller), ranking(SPENDING.byModel, rows, ({ model }) => model),
      rows.some(({ group }) => group) ? ranking(TEXT.byGroup, rows, ({ group }) => group ?? TEXT.noGroup) : null),
    element('div', { class: 'usage-head' }, element('h3', { text: TEXT.details }), button(SPENDING.save, () => void saveCsv(days), 'quiet small')),
    table(TEXT.spending.label, TEXT.spending.columns, sorted.map((row) => [
      row.caller, row.day, row.model, SERVICES[row.service] ?? row.service, { text: String(row.count), by: row.count }, money(row.spent_micros)]),
    { total: price(total) }),
    aboutDays(() => void load()),
  ];
}

/** Saves the server's own file; it is fetched here, so that an error is shown in words. */
async function saveCsv(days) {
  const response = await fetch(`/bff/admin/usage${lastDaysQuery(days)}&format=csv`, { cache: 'no-store' }).catch(() => null);
  if (!response?.ok) return void load();
  saveFile(await response.text(), `everyone-${lastDays(1)[0]}.csv`, 'text/csv');
}

function unknown({ count, more, price_micros: prices, rows }) {
  if (!count) return [];
  return [element('div', { class: 'problem', 'data-charged': 'unknown' },
    element('p', {}, element('strong', { text: TEXT.unknown(count, more, price(prices)) }),
      TEXT.settle(count), element('code', { text: TEXT.command[mode] })),
    element('details', {}, element('summary', { text: TEXT.which }),
      table(TEXT.unknowns.label, TEXT.unknowns.columns,
        rows.map(({ at, caller, model, price_micros: cost, id }) => [time(at), plainName(caller), model, money(cost), id]))))];
}

function account({ billing: { account: said, stale, checkpoints } }) {
  const points = checkpoints.map(({ at, balance_micros: micros }) => ({ at: Date.parse(at), micros })).reverse();
  return [
    said ? figures([[TEXT.balance, price(said.balance_micros), TEXT.asOf(when(said.at), stale)], [TEXT.spentSoFar, price(said.spent_micros), '']])
      : element('p', { text: TEXT.noBalance }),
    points.length > 1 ? trend(points) : element('p', { class: 'hint', text: TEXT.noBalances }),
  ];
}

function trend(points) {
  const most = Math.max(1, ...points.map(({ micros }) => micros));
  const [first, last] = [points[0], points.at(-1)];
  const span = Math.max(1, last.at - first.at);
  const place = ({ at, micros }) => `${((at - first.at) / span) * 1000},${Math.round(200 - (Math.max(0, micros) / most) * 200)}`;
  const day = ({ at }) => dayName(new Date(at).toISOString().slice(0, 10));
  const shape = (tag, attributes, ...children) => {
    const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const label = `${TEXT.balances}: ${day(first)} ${price(first.micros)}, ${day(last)} ${price(last.micros)}`;
  return figure(TEXT.balances,
    element('p', { class: 'scale', 'aria-hidden': 'true', text: price(most) }),
    shape('svg', { viewBox: '0 0 1000 200', preserveAspectRatio: 'none', class: 'line', role: 'img', 'aria-label': label },
      shape('polyline', { points: points.map(place).join(' '), class: 'trend', 'vector-effect': 'non-scaling-stroke' })),
    element('p', { class: 'ends', 'aria-hidden': 'true' }, element('span', { text: day(first) }), element('span', { text: day(last) })));
}

function videos({ jobs }) {
  if (!jobs.length) return [element('p', { class: 'empty', text: TEXT.noVideos })];
  const rest = jobs.length - jobsShown;
  return [table(TEXT.videos.label, TEXT.videos.columns, jobs.slice(0, jobsShown).map((job) =>
    [time(job.at), plainName(job.caller), job.model, job.state, money(job.price_micros)]), { cards: true }),
  rest > 0 ? button(TEXT.more(rest), () => {
    jobsShown = Infinity;
    void draw();
  }) : null];
}
