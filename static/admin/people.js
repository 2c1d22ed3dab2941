/** The settings that admins change: the tabs of members and groups, requests for more budget, unknown outcomes, and the log of changes. */

import { announce, button, element, notice, noticeDone } from '../core/dom.js';
import { price, utcDay } from '../core/format.js';
import { amountField, askFor, confirmField, limitFields, showToken, untilField } from '../core/forms.js';
import { sentence } from '../core/problems.js';
import { read, send } from '../core/site.js';
import { newKey } from '../core/transport.js';
import { table } from '../usage/usage.js';
import { plainName, when } from './admin.js';

const TEXT = {
  members: { label: 'Members', columns: ['Name', 'Role', 'Group', 'Today', 'Other periods', 'Last seen'] },
  search: 'Search members',
  found: (some, all) => `${some} of ${all} members`,
  noMembers: 'No members yet.',
  noMatches: 'No members match.',
  used: (spent, limit) => `${spent} of ${limit}`,
  extra: (amount, until) => `${amount} extra each through ${until}`,
  bar: (name) => `Budget of ${name}, used today`,
  periods: { week: 'this week', month: 'this month', ever: 'in all' },
  add: 'Add a member',
  edit: (name) => `Edit ${name}`,
  facts: (added, prefix) => `Added ${added}. The token begins with ${prefix}`,
  never: 'Not lately',
  name: 'Name',
  roles: { member: 'Member', admin: 'Admin' },
  none: 'None',
  asSettings: 'As the settings say',
  changed: (term) => `${term} changed`,
  save: 'Save',
  saved: (name) => `${name} is saved`,
  raise: 'Raise for a while',
  raiseOf: (name) => `Raise the budgets of ${name}`,
  aboutRaise: 'Each of its limits is raised by this amount through that day (UTC).',
  token: 'New token',
  tokenOf: (name) => `Token of ${name}`,
  aboutToken: 'The present token stops working at once.',
  makeToken: 'Make a new token',
  revoke: 'Revoke',
  revokeOf: (name) => `Revoke ${name}`,
  aboutRevoke: 'The token stops working at once, for good. The spending stays in the reports.',
  end: 'End a user’s sign-ins',
  user: 'User',
  userHint: 'The name as in Overview.',
  aboutEnd: 'All sessions and API tokens of this user end at once. The user can sign in again.',
  ended: 'The user is signed out everywhere.',
  asks: (name, amount) => `${name} asks for ${amount} more`,
  grant: 'Grant',
  decline: 'Decline',
  declineOf: (name) => `Decline the request of ${name}`,
  settle: 'Settle',
  settleOf: (model, amount) => `Settle ${model}, ${amount}`,
  aboutSettle: (caller, at, id) => `Bought by ${caller}, ${at}. Find out in the gateway’s account whether it was charged. ID: ${id}`,
  outcome: 'Outcome',
  outcomes: { charged: 'Charged', released: 'Not charged: the money is free again' },
  settled: 'The purchase is settled.',
  groups: { label: 'Groups', columns: ['Name', '>Members', 'Today', 'Other periods'] },
  aboutGroups: 'The members of a group share its budgets.',
  noGroups: 'No groups yet.',
  addGroup: 'Add a group',
  remove: 'Remove',
  removeOf: (name) => `Remove the group ${name}`,
  audit: { label: 'Changes', columns: ['Time', 'By', 'Change', 'Caller', 'Before', 'After'] },
  acts: {
    'member.add': 'Member added', 'member.revoke': 'Member revoked', 'member.extra': 'Budget raised', 'token.rotate': 'Token replaced',
    'token.add': 'API token made', 'token.revoke': 'API token revoked', 'subject.revoke': 'Sign-ins ended', 'purchase.resolve': 'Purchase settled', 'request.grant': 'Request granted', 'request.decline': 'Request declined',
    'group.add': 'Group added', 'group.budget': 'Group budget changed', 'group.remove': 'Group removed',
  },
  noChanges: 'No changes yet.',
  older: 'Show older ones',
};

let wanted = '';

/** The label of a term: `May buy` for `may_buy`. */
const labelOf = (name) => `${name[0].toUpperCase()}${name.slice(1).replaceAll('_', ' ')}`;

const dayOf = (moment) => new Date(moment).toLocaleDateString([], { dateStyle: 'medium' });

/** A link of a table that opens a form. After the view was drawn afresh, the focus finds it by its id. */
const opener = (name, open) => ({
  node: element('button', { type: 'button', id: `edit ${name}`, class: 'link edit', text: name, 'aria-label': TEXT.edit(name), click: open }), by: name,
});

/** Opens a form whose success is announced, and draws the view afresh. An answer with a token shows it. */
const ask = ({ reload }, name, form) => askFor({
  ...form,
  done: async (answer) => {
    announce(TEXT.saved(name));
    await reload();
    if (answer?.token) showToken(TEXT.tokenOf(answer.member?.name ?? name), answer.token, true);
  },
});

const patch = (path) => (changed) => (Object.keys(changed).length ? send('PATCH', path, changed) : null);

/** Posts what a form asks for. If it is sent twice, it is done once. */
function poster(path) {
  const keys = {};
  return (body) => send('POST', path, body, { 'idempotency-key': keys[JSON.stringify(body)] ??= newKey() });
}

const adder = (label, add) => element('button', { type: 'button', id: 'admin-add', class: 'primary', text: label, click: add });

/** The limit that applies: for a member, the lower one of its own and of the setting for all. */
const limitOf = ({ limit_micros: own, effective_micros: limit = own }) => limit;

const used = (row) => (limitOf(row) === null ? price(row.spent_micros) : TEXT.used(price(row.spent_micros), price(limitOf(row))));

/**
 * The cells of budgets: today, with a bar once something is spent, then the month and what else has a limit. A limit of all callers is
 * not repeated in each row.
 */
function budgetCells({ name, budgets, extra_micros: extra, extra_until: until }) {
  const today = budgets.find(({ period }) => period === 'day');
  const bar = limitOf(today) && today.spent_micros > 0 && element('progress', { max: limitOf(today), value: today.spent_micros, 'aria-label': TEXT.bar(name) });
  const others = budgets.filter(({ period, limit_micros: own, spent_micros: spent }) => period !== 'day' && (own !== null || (period === 'month' && spent)));
  const lines = others.map((row) => `${row.limit_micros === null ? price(row.spent_micros) : used(row)} ${TEXT.periods[row.period]}`);
  if (extra) lines.push(TEXT.extra(price(extra), utcDay(until)));
  return [{ node: element('span', { class: 'budget' }, used(today), bar || null), by: today.spent_micros },
    { node: lines.length ? element('span', { class: 'budget' }, lines.map((text) => element('span', { text }))) : null, by: others[0]?.spent_micros ?? 0 }];
}

/** The requests for more budget, a card each. */
export const requests = (view) => view.requests.map((one) => request(view, one));


export async function members(view) {
  const [{ rows: people, terms }, { rows: groups }] = await Promise.all([read('/bff/admin/members'), read('/bff/admin/groups')]);
  const place = element('div');
  const fields = (one) => termFields(terms, one, groups);
  const list = () => {
    const some = people.filter(({ name, role, state, group }) => `${name} ${role} ${state} ${group ?? ''}`.toLowerCase().includes(wanted.trim().toLowerCase()));
    place.replaceChildren(some.length ? table(TEXT.members.label, TEXT.members.columns, some.map((one) => member(view, one, fields)), { cards: true, sorted: 0 })
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
  const add = () => ask(view, TEXT.members.label, {
    title: TEXT.add, label: TEXT.add, fields: [{ name: 'name', label: TEXT.name }, ...fields({})],
    send: poster('/bff/admin/members'),
  });
  const end = () => askFor({
    title: TEXT.end, about: TEXT.aboutEnd, label: TEXT.end, fields: [{ name: 'user', label: TEXT.user, hint: TEXT.userHint }],
    send: ({ user = '-' }) => send('DELETE', `/bff/admin/users/${encodeURIComponent(user.replace(/^subject:/, ''))}/logins`),
    done: () => noticeDone(TEXT.ended),
  });
  const act = { members: [TEXT.add, add], oidc: [TEXT.end, end] }[view.access];
  return [element('div', { class: 'usage-head' }, element('div', { class: 'find' }, field), act ? adder(...act) : null), place];
}

/** The fields for the terms of a member, as the server lists them. */
const termFields = (terms, one, groups) => terms.flatMap(({ name, kind, help: hint }) => {
  const [field, value] = [{ name, label: labelOf(name) }, one[name] ?? ''];
  if (kind === 'role') return { ...field, options: TEXT.roles, value: value || 'member' };
  if (kind === 'limits') return limitFields(one.budgets);
  if (kind === 'list') return { ...field, hint, placeholder: TEXT.asSettings, isList: true, value: value && value.join(' ') };
  if (name !== 'group') return { ...field, hint, value };
  return { ...field, options: Object.fromEntries([['', TEXT.none], ...groups.map((group) => [group.name, group.name])]), value };
});

function member(view, one, fields) {
  const { name, role, state, group, last_seen_at: seen } = one;
  return [{ ...(state === 'revoked' ? { text: name } : opener(name, () => editMember(view, one, fields))), by: name },
    (TEXT.roles[role] ?? role) + (state === 'active' ? '' : `, ${state}`), group ?? '',
    ...budgetCells(one), { text: seen ? dayOf(seen) : TEXT.never, by: seen ?? '' }];
}

function editMember(view, one, fields) {
  const { name, added_at: added, token_prefix: prefix } = one;
  const path = `/bff/admin/members/${encodeURIComponent(name)}`;
  const form = (rest) => ask(view, name, rest);
  form({
    title: name, about: TEXT.facts(dayOf(added), `${prefix}…`), label: TEXT.save, fields: fields(one), send: patch(path),
    more: [
      [TEXT.raise, () => form({
        title: TEXT.raiseOf(name), about: TEXT.aboutRaise, label: TEXT.raise, fields: [amountField('amount'), untilField(7)],
        send: poster(`${path}/extra`),
      })],
      [TEXT.token, () => form({ title: TEXT.tokenOf(name), about: TEXT.aboutToken, label: TEXT.makeToken, send: () => send('POST', `${path}/token`) })],
      [TEXT.revoke, () => form({
        title: TEXT.revokeOf(name), about: TEXT.aboutRevoke, label: TEXT.revoke, fields: [confirmField(name)], send: () => send('DELETE', path),
      })],
    ],
  });
}

/** A request for more budget, which can be granted or declined. */
function request(view, { id, caller, amount_micros: micros, reason, at }) {
  const name = plainName(caller);
  const answer = (body) => send('POST', `/bff/admin/budget-requests/${encodeURIComponent(id)}`, body);
  const grant = () => ask(view, name, {
    title: TEXT.raiseOf(name), about: TEXT.aboutRaise, label: TEXT.grant, fields: [amountField('grant', micros), untilField(7)], send: answer,
  });
  const decline = () => ask(view, name, { title: TEXT.declineOf(name), label: TEXT.decline, send: () => answer({ decline: true }) });
  return element('div', { class: 'card' },
    element('p', {}, element('strong', { text: TEXT.asks(name, price(micros)) }), element('span', { class: 'hint', text: ` ${when(at)}` })),
    reason ? element('p', { text: reason, dir: 'auto' }) : null,
    element('div', { class: 'actions' }, button(TEXT.grant, grant, 'primary'), button(TEXT.decline, decline)));
}

/** Asks for the outcome of a purchase: only a person can find out what the gateway did. */
export const settle = ({ id, at, caller, model, price_micros: cost }, reload) => askFor({
  title: TEXT.settleOf(model, price(cost)), about: TEXT.aboutSettle(plainName(caller), when(at), id), label: TEXT.settle,
  fields: [{ name: 'outcome', label: TEXT.outcome, options: TEXT.outcomes, initial: 'charged' }],
  send: (request) => send('POST', `/bff/admin/purchases/${encodeURIComponent(id)}`, request),
  done: async () => {
    await reload();
    noticeDone(TEXT.settled);
  },
});

export async function groups(view) {
  const { rows: all } = await read('/bff/admin/groups');
  const add = () => ask(view, TEXT.groups.label, {
    title: TEXT.addGroup, label: TEXT.addGroup, fields: [{ name: 'name', label: TEXT.name }, ...limitFields()],
    send: poster('/bff/admin/groups'),
  });
  const rows = all.map((one) => [opener(one.name, () => editGroup(view, one)), { text: String(one.members), by: one.members }, ...budgetCells(one)]);
  return [element('div', { class: 'usage-head' }, element('p', { class: 'hint', text: TEXT.aboutGroups }), adder(TEXT.addGroup, add)),
    all.length ? table(TEXT.groups.label, TEXT.groups.columns, rows, { cards: true, sorted: 0 }) : element('p', { class: 'empty', text: TEXT.noGroups })];
}

function editGroup(view, { name, budgets }) {
  const path = `/bff/admin/groups/${encodeURIComponent(name)}`;
  ask(view, name, {
    title: name, label: TEXT.save, fields: limitFields(budgets), send: patch(path),
    more: [[TEXT.remove, () => ask(view, name, { title: TEXT.removeOf(name), label: TEXT.remove, fields: [confirmField(name)], send: () => send('DELETE', path) })]],
  });
}

/** What admins changed, the latest first. */
export async function audit() {
  const place = element('div');
  let all = [];
  const load = async (before) => {
    const { rows: news, more } = await read(`/bff/admin/audit${before ? `?before=${before}` : ''}`);
    all = [...all, ...news];
    const rows = all.map(({ at, by, act, caller, group, old, new: next }) =>
      [{ text: when(at), by: at }, plainName(by), TEXT.acts[act] ?? TEXT.changed(labelOf(act.replace('member.', ''))), group ?? plainName(caller), old ?? '', next ?? '']);
    place.replaceChildren(rows.length ? table(TEXT.audit.label, TEXT.audit.columns, rows, { cards: true }) : element('p', { class: 'empty', text: TEXT.noChanges }));
    if (more) place.append(element('p', {}, button(TEXT.older, () => void load(all.at(-1).id).catch(notify))));
  };
  const notify = (problem) => notice(sentence(problem));
  await load();
  return [place];
}
