/** The tabs of the admin view that are about people: members, and the log of what admins changed. */

import { announce, button, element } from '../core/dom.js';
import { price } from '../core/format.js';
import { read } from '../core/site.js';
import { table } from '../usage/usage.js';
import { plainName, when } from './admin.js';

const TEXT = {
  members: { label: 'Members', columns: ['Name', 'Role', 'Group', 'Today', 'Other budgets', 'Token', 'Added'] },
  search: 'Search members',
  found: (some, all) => `${some} of ${all} members`,
  noMembers: 'No members yet.',
  noMatches: 'No members match.',
  used: (spent, limit) => `${spent} of ${limit}`,
  extra: (amount, until) => `${amount} more each until ${until}`,
  bar: (name) => `Budget of ${name}, used today`,
  periods: { week: 'this week', month: 'this month', ever: 'in all' },
  roles: { member: 'Member', admin: 'Admin' },
  audit: { label: 'Changes', columns: ['Time', 'By', 'Change', 'Of', 'Before', 'After'] },
  noChanges: 'No changes yet.',
  older: 'Show older ones',
};

let wanted = '';

const dayOf = (moment) => new Date(moment).toLocaleDateString([], { dateStyle: 'medium' });

const used = ({ limit_micros: limit, spent_micros: spent }) => (limit === null ? price(spent) : TEXT.used(price(spent), price(limit)));

/** The cells of budgets: today with a bar, then the month and what else has a limit. */
function budgetCells(name, budgets) {
  const today = budgets.find(({ period }) => period === 'day');
  const bar = today.limit_micros && element('progress', { max: today.limit_micros, value: today.spent_micros, 'aria-label': TEXT.bar(name) });
  const others = budgets.filter(({ period, limit_micros: limit }) => period === 'month' || (period !== 'day' && limit !== null));
  const raised = budgets.find(({ extra_micros: extra }) => extra);
  const lines = others.map((row) => `${used(row)} ${TEXT.periods[row.period]}`);
  if (raised) lines.push(TEXT.extra(price(raised.extra_micros), dayOf(raised.extra_until)));
  return [{ node: element('span', { class: 'budget' }, used(today), bar || null), by: today.spent_micros },
    { node: element('span', { class: 'budget' }, lines.map((text) => element('span', { text }))), by: others[0]?.spent_micros ?? 0 }];
}

export async function members() {
  const { members: people } = await read('/bff/admin/members');
  const place = element('div');
  const list = () => {
    const some = people.filter(({ name, role, state, group }) => `${name} ${role} ${state} ${group ?? ''}`.toLowerCase().includes(wanted.trim().toLowerCase()));
    place.replaceChildren(some.length ? table(TEXT.members.label, TEXT.members.columns, some.map(member), { cards: true })
      : element('p', { class: 'empty', text: people.length ? TEXT.noMatches : TEXT.noMembers }));
    return some.length;
  };
  list();
  const field = element('input', {
    type: 'search', placeholder: TEXT.search, 'aria-label': TEXT.search, value: wanted, autocomplete: 'off',
    input: () => {
      wanted = field.value;
      announce(TEXT.found(list(), people.length));
    },
  });
  return [element('div', { class: 'find' }, field), place];
}

function member({ name, role, state, group, token_prefix: prefix, budgets, added }) {
  return [name, (TEXT.roles[role] ?? role) + (state === 'active' ? '' : `, ${state}`), group ?? '',
    ...budgetCells(name, budgets), `${prefix}…`, { text: dayOf(added), by: added }];
}

/** What admins changed, the latest first. */
export async function audit() {
  const place = element('div');
  let all = [];
  const load = async (before) => {
    const { entries, more } = await read(`/bff/admin/audit${before ? `?before=${before}` : ''}`);
    all = [...all, ...entries];
    const rows = all.map(({ at, by, act, of: whom, old, new: next }) =>
      [{ text: when(at), by: at }, plainName(by), act, plainName(whom ?? ''), old ?? '', next ?? '']);
    place.replaceChildren(rows.length ? table(TEXT.audit.label, TEXT.audit.columns, rows, { cards: true }) : element('p', { class: 'empty', text: TEXT.noChanges }));
    if (more) place.append(element('p', {}, button(TEXT.older, () => void load(all.at(-1).id))));
  };
  await load();
  return [place];
}
