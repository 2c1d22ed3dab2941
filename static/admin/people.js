/** The settings that admins change: the tabs of members and groups, requests for more budget, unknown outcomes, and the log of changes. */

import { announce, button, element, notice, noticeDone } from '../core/dom.js';
import { locale, price, t, utcDay } from '../core/format.js';
import { amountField, askFor, confirmField, limitFields, showToken, untilField } from '../core/forms.js';
import { sentence } from '../core/problems.js';
import { read, send } from '../core/site.js';
import { newKey } from '../core/transport.js';
import { table } from '../usage/usage.js';
import { plainName, when } from './admin.js';

let wanted = '';

const dayOf = (moment) => new Date(moment).toLocaleDateString(locale, { dateStyle: 'medium' });

/** A link of a table that opens a form. After the view was drawn afresh, the focus finds it by its id. */
const opener = (name, open) => ({
  node: element('button', { type: 'button', id: `edit ${name}`, class: 'link edit', text: name, 'aria-label': t('people.edit', name), click: open }), by: name,
});

/** Opens a form whose success is announced, and draws the view afresh. An answer with a token shows it. */
const ask = ({ reload }, name, form) => askFor({
  ...form,
  done: async (answer) => {
    announce(t('people.saved', name));
    await reload();
    if (answer?.token) showToken(t('people.tokenOf', answer.member?.name ?? name), answer.token, true);
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

const used = (row) => (limitOf(row) === null ? price(row.spent_micros) : t('people.used', price(row.spent_micros), price(limitOf(row))));

/**
 * The cells of budgets: today, with a bar once something is spent, then the month and what else has a limit. A limit of all callers is
 * not repeated in each row.
 */
function budgetCells({ name, budgets, extra_micros: extra, extra_until: until }) {
  const today = budgets.find(({ period }) => period === 'day');
  const bar = limitOf(today) && today.spent_micros > 0 && element('progress', { max: limitOf(today), value: today.spent_micros, 'aria-label': t('people.bar', name) });
  const others = budgets.filter(({ period, limit_micros: own, spent_micros: spent }) => period !== 'day' && (own !== null || (period === 'month' && spent)));
  const lines = others.map((row) => `${row.limit_micros === null ? price(row.spent_micros) : used(row)} ${t(`period.${row.period}`)}`);
  if (extra) lines.push(t('people.extra', price(extra), utcDay(until)));
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
    place.replaceChildren(some.length ? table(t('tab.members'), ['name', 'role', 'group', 'today', 'others', 'seen'], some.map((one) => member(view, one, fields)), { cards: true, sorted: 0 })
      : element('p', { class: 'empty', text: people.length ? t('people.noMatches') : t('people.noMembers') }));
    return some.length;
  };
  list();
  const field = element('input', {
    type: 'search', placeholder: t('people.search'), 'aria-label': t('people.search'), value: wanted, autocomplete: 'off',
    input: () => {
      wanted = field.value;
      announce(t('people.found', list(), people.length));
    },
  });
  const add = () => ask(view, t('tab.members'), {
    title: t('people.add'), label: t('people.add'), fields: [{ name: 'name', label: t('column.name') }, ...fields({})],
    send: poster('/bff/admin/members'),
  });
  const end = () => askFor({
    title: t('people.end'), about: t('people.aboutEnd'), label: t('people.end'), fields: [{ name: 'user', label: t('people.user'), hint: t('people.userHint') }],
    send: ({ user = '-' }) => send('DELETE', `/bff/admin/users/${encodeURIComponent(user.replace(/^subject:/, ''))}/logins`),
    done: () => noticeDone(t('people.ended')),
  });
  const act = { members: [t('people.add'), add], oidc: [t('people.end'), end] }[view.access];
  return [element('div', { class: 'usage-head' }, element('div', { class: 'find' }, field), act ? adder(...act) : null), place];
}

/** The label of a term: `May buy` for `may_buy`. */
const termLabel = (name) => t(`column.${name}`) ?? `${name[0].toUpperCase()}${name.slice(1).replaceAll('_', ' ')}`;

/** The fields for the terms of a member, as the server lists them. */
const termFields = (terms, one, groups) => terms.flatMap(({ name, kind, help }) => {
  const [field, value, hint] = [{ name, label: termLabel(name) }, one[name] ?? '', t(`hint.${name}`) ?? help];
  if (kind === 'role') return { ...field, options: { member: t('role.member'), admin: t('role.admin') }, value: value || 'member' };
  if (kind === 'limits') return limitFields(one.budgets);
  if (kind === 'list') return { ...field, hint, isList: true, value: value && value.join(' ') };
  if (name !== 'group') return { ...field, hint, value };
  return { ...field, options: Object.fromEntries([['', t('page.none')], ...groups.map((group) => [group.name, group.name])]), value };
});

function member(view, one, fields) {
  const { name, role, state, group, last_seen_at: seen } = one;
  return [{ ...(state === 'revoked' ? { text: name } : opener(name, () => editMember(view, one, fields))), by: name },
    (t(`role.${role}`) ?? role) + (state === 'active' ? '' : `, ${t(`state.${state}`) ?? state}`), group ?? '',
    ...budgetCells(one), { text: seen ? dayOf(seen) : t('people.never'), by: seen ?? '' }];
}

function editMember(view, one, fields) {
  const { name, added_at: added, token_prefix: prefix } = one;
  const path = `/bff/admin/members/${encodeURIComponent(name)}`;
  const form = (rest) => ask(view, name, rest);
  form({
    title: name, about: t('people.facts', dayOf(added), `${prefix}…`), label: t('page.save'), fields: fields(one), send: patch(path),
    more: [
      [t('people.raise'), () => form({
        title: t('people.raiseOf', name), about: t('people.aboutRaise'), label: t('people.raise'), fields: [amountField('amount'), untilField(7)],
        send: poster(`${path}/extra`),
      })],
      [t('token.make'), () => form({ title: t('people.tokenOf', name), about: t('people.aboutToken'), label: t('people.makeToken'), send: () => send('POST', `${path}/token`) })],
      [t('people.revoke'), () => form({
        title: t('people.revokeOf', name), about: t('people.aboutRevoke'), label: t('people.revoke'), fields: [confirmField(name)], send: () => send('DELETE', path),
      })],
    ],
  });
}

/** A request for more budget, which can be granted or declined. */
function request(view, { id, caller, amount_micros: micros, reason, at }) {
  const name = plainName(caller);
  const answer = (body) => send('POST', `/bff/admin/budget-requests/${encodeURIComponent(id)}`, body);
  const grant = () => ask(view, name, {
    title: t('people.raiseOf', name), about: t('people.aboutRaise'), label: t('people.grant'), fields: [amountField('grant', micros), untilField(7)], send: answer,
  });
  const decline = () => ask(view, name, { title: t('people.declineOf', name), label: t('people.decline'), send: () => answer({ decline: true }) });
  return element('div', { class: 'card' },
    element('p', {}, element('strong', { text: t('people.asks', name, price(micros)) }), element('span', { class: 'hint', text: ` ${when(at)}` })),
    reason ? element('p', { text: reason, dir: 'auto' }) : null,
    element('div', { class: 'actions' }, button(t('people.grant'), grant, 'primary'), button(t('people.decline'), decline)));
}

/** Asks for the outcome of a purchase: only a person can find out what the gateway did. */
export const settle = ({ id, at, caller, model, price_micros: cost }, reload) => askFor({
  title: t('people.settleOf', model, price(cost)), about: t('people.aboutSettle', plainName(caller), when(at), id), label: t('admin.settle'),
  fields: [{ name: 'outcome', label: t('column.outcome'), options: { charged: t('people.charged'), released: t('people.released') }, initial: 'charged' }],
  send: (request) => send('POST', `/bff/admin/purchases/${encodeURIComponent(id)}`, request),
  done: async () => {
    await reload();
    noticeDone(t('people.settled'));
  },
});

export async function groups(view) {
  const { rows: all } = await read('/bff/admin/groups');
  const add = () => ask(view, t('tab.groups'), {
    title: t('people.addGroup'), label: t('people.addGroup'), fields: [{ name: 'name', label: t('column.name') }, ...limitFields()],
    send: poster('/bff/admin/groups'),
  });
  const rows = all.map((one) => [opener(one.name, () => editGroup(view, one)), { text: String(one.members), by: one.members }, ...budgetCells(one)]);
  return [element('div', { class: 'usage-head' }, element('p', { class: 'hint', text: t('people.aboutGroups') }), adder(t('people.addGroup'), add)),
    all.length ? table(t('tab.groups'), ['name', '>members', 'today', 'others'], rows, { cards: true, sorted: 0 }) : element('p', { class: 'empty', text: t('people.noGroups') })];
}

function editGroup(view, { name, budgets }) {
  const path = `/bff/admin/groups/${encodeURIComponent(name)}`;
  ask(view, name, {
    title: name, label: t('page.save'), fields: limitFields(budgets), send: patch(path),
    more: [[t('people.remove'), () => ask(view, name, { title: t('people.removeOf', name), label: t('people.remove'), fields: [confirmField(name)], send: () => send('DELETE', path) })]],
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
      [{ text: when(at), by: at }, plainName(by), t(`act.${act}`) ?? t('people.changed', termLabel(act.replace('member.', ''))), group ?? plainName(caller), old ?? '', next ?? '']);
    place.replaceChildren(rows.length ? table(t('people.changes'), ['time', 'by', 'change', 'caller', 'before', 'after'], rows, { cards: true }) : element('p', { class: 'empty', text: t('people.noChanges') }));
    if (more) place.append(element('p', {}, button(t('people.older'), () => void load(all.at(-1).id).catch(notify))));
  };
  const notify = (problem) => notice(sentence(problem));
  await load();
  return [place];
}
