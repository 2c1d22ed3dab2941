/** The admin view: everyone's spending, members, videos and the account, in tabs. The server answers admins only. */

import { announce, button, byId, element, notice, saveFile } from '../core/dom.js';
import { locale, price, t, utcDay } from '../core/format.js';
import { sentence } from '../core/problems.js';
import { read } from '../core/site.js';
import { aboutDays, buildView, periodOf, today } from '../usage/period.js';
import { byDay, countOf, failure, figures, ranking, serviceOf, sumOf, table } from '../usage/usage.js';

const JOBS = 20;
const TABS = {
  overview, members: people('members'), groups: people('groups'), videos, account: later(() => import('./account.js'), 'account'), audit: people('audit'),
};

let loaded = null, access = null, mode = null, tab = 'overview', jobsShown = JOBS;

export function start(catalog) {
  ({ access, mode } = catalog);
  return buildView('admin', t('view.admin'), load);
}

/** Called each time the view comes into sight: others spend meanwhile. */
export const shown = () => load();

async function load() {
  const period = periodOf('admin');
  try {
    const [usage, { rows: requests }, { rows: jobs }, billing] = await Promise.all([
      read(`/bff/admin/usage${period.query}`), read('/bff/admin/budget-requests'), read('/bff/admin/jobs'), read('/bff/admin/billing')]);
    const rows = usage.rows.filter(({ day }) => day <= period.days.at(-1)).map((row) => ({ ...row, spent_micros: spentOf(row), caller: plainName(row.caller) }));
    loaded = { rows, total: sumOf(rows), saved: period.isUpToDate && usage.total.saved_micros, requests, jobs, billing, period };
    await draw();
    announce(t('admin.announced', price(loaded.total), period.days.length));
  } catch (problem) {
    loaded = null;
    byId('admin-body').replaceChildren(failure(t('admin.failed'), problem, () => void load()));
  }
}

function people(name) {
  return later(() => import('./people.js'), name);
}

/** A tab, or a part of one, of a module that is loaded at first need. */
function later(get, name) {
  return async (all) => {
    try {
      return await (await get())[name]({ ...all, access, reload: load });
    } catch (problem) {
      return [failure(t('admin.failed'), problem, () => void load())];
    }
  };
}

const requestCards = people('requests');

/** What counts against budgets: charged, pending, or unknown. */
const spentOf = (row) => row.charged_micros + row.unknown_micros + row.held_micros;
/** `ann` for `member:ann`; an address or a subject keeps its kind. */
export const plainName = (caller) => caller.replace(/^member:/, '');
export const when = (moment) => new Date(moment).toLocaleString(locale, { dateStyle: 'medium', timeStyle: 'short' });
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
    element('div', { class: 'tabs', role: 'tablist', 'aria-label': t('view.admin'), keydown: keys }, names.map((name) => element('button', {
      type: 'button', id: `admin-tab-${name}`, role: 'tab', class: 'link', text: t(`tab.${name}`),
      ...(name === 'overview' && requests.length && { 'data-count': requests.length, 'aria-label': t('admin.asked', requests.length) }),
      click: () => choose(name),
      'aria-selected': String(name === tab), 'aria-controls': name === tab && 'admin-panel', tabindex: name === tab ? '0' : '-1',
    }))),
    element('div', { id: 'admin-panel', class: 'usage-body', role: 'tabpanel', 'aria-labelledby': `admin-tab-${tab}` }, panel));
  if (held !== false) (byId(held) ?? byId(`admin-tab-${tab}`)).focus();
}

async function overview({ rows, total, saved, period, billing, requests }) {
  const { name, days, isUpToDate } = period;
  const now = rows.filter(({ day }) => day === today());
  const head = [
    ...(requests.length ? await requestCards({ requests }) : []),
    figures([
      [name, price(total), t('usage.purchases', countOf(rows))],
      ...(isUpToDate && days.length > 1 ? [[t('column.today'), price(sumOf(now)), t('usage.purchases', countOf(now))]] : []),
      ...(billing.unknown.count ? [[t('admin.unknownOutcomes'), String(billing.unknown.count) + (billing.unknown.more ? '+' : ''), price(billing.unknown.price_micros)]] : []),
      ...(saved ? [[t('usage.saved'), price(saved), t('usage.savedBy')]] : []),
    ]), ...unknown(billing.unknown)];
  if (!rows.length) return [...head, element('p', { class: 'empty', text: t('usage.empty') })];
  const sorted = [...rows].sort((one, other) => other.day.localeCompare(one.day) || other.spent_micros - one.spent_micros);
  return [...head,
    element('div', { class: 'pictures' }, byDay(rows, days, ({ caller }) => caller),
      ranking(t('admin.byMember'), rows, ({ caller }) => caller), ranking(t('usage.byModel'), rows, ({ model }) => model),
      rows.some(({ group }) => group) ? ranking(t('admin.byGroup'), rows, ({ group }) => group ?? t('admin.noGroup')) : null),
    element('div', { class: 'usage-head' }, element('h3', { text: t('admin.details') }), button(t('usage.save'), () => void saveCsv(period), 'quiet small')),
    table(t('admin.spending'), ['caller', 'day', 'model', 'kind', '>purchases', '>spent'], sorted.map((row) => [
      row.caller, { text: utcDay(row.day), by: row.day }, row.model, serviceOf(row), { text: String(row.count), by: row.count }, money(row.spent_micros)]),
    { total: price(total) }),
    aboutDays(),
  ];
}

/** Saves the server's own file, of the days from the first one of the period up to today; it is fetched here, so that an error is shown in words. */
async function saveCsv({ query, days }) {
  const response = await fetch(`/bff/admin/usage${query}&format=csv`, { cache: 'no-store' }).catch(() => null);
  if (!response?.ok) return void load();
  saveFile(await response.text(), `everyone-since-${days[0]}.csv`, 'text/csv');
}

function unknown({ count, more, price_micros: prices, rows }) {
  if (!count) return [];
  return [element('div', { class: 'problem', 'data-charged': 'unknown' },
    element('p', {}, element('strong', { text: t('admin.unknown', count, more, price(prices)) }), t('admin.open', count),
      ...(mode === 'live' ? [t('admin.reconcile'), element('code', { text: 'tollgate reconcile' })] : [])),
    element('details', {}, element('summary', { text: t('admin.which') }),
      table(t('admin.unknownOutcomes'), ['time', 'caller', 'model', '>price', 'id', 'outcome'],
        rows.map((row) => [time(row.at), plainName(row.caller), row.model, money(row.price_micros), row.id, button(t('admin.settle'), () => void settle(row), 'quiet small')]), { cards: true })))];
}

async function settle(row) {
  try {
    (await import('./people.js')).settle(row, load);
  } catch (problem) {
    notice(sentence(problem));
  }
}

function videos({ jobs }) {
  if (!jobs.length) return [element('p', { class: 'empty', text: t('admin.noVideos') })];
  const rest = jobs.length - jobsShown;
  return [table(t('admin.latestVideos'), ['ordered', 'caller', 'model', 'state', '>price'], jobs.slice(0, jobsShown).map((job) =>
    [time(job.at), plainName(job.caller), job.model, t(`state.${job.state}`) ?? job.state, money(job.price_micros)]), { cards: true }),
  rest > 0 ? button(t('page.more', rest), () => {
    jobsShown = Infinity;
    void draw();
  }) : null];
}
