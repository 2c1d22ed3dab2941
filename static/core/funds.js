/** What is left: each budget with its bar and the time it renews, the account's balance, and why they do not cover a price. */

import { element } from './dom.js';
import { amountLeft, nameOfBudget, price, utcDay } from './format.js';
import { canSpend, learnFunds, read } from './site.js';

const TEXT = {
  all: 'Show all budgets',
  unknown: 'No budget applies to you, and the balance is not shown here.',
  left: (left, limit) => `${left} of ${limit} left`,
  bar: (name) => `${name}, left`,
  renews: (when, hours) => `Renews ${when}${hours === null ? '' : hours < 1 ? ', in less than an hour' : `, in ${hours} h`}`,
  never: 'Does not renew',
  extra: (amount, until) => `, with ${amount} extra through ${until}`,
  account: 'Account balance',
  asOf: (time) => `As of ${time}; the gateway has not answered since.`,
  budget: (name, left, cost, renews) => `This costs ${cost}. ${name}: ${left} left; it ${renews ? `renews ${renews}` : 'does not renew'}.`,
  never: (name, cost) => `This costs ${cost}. The budget (${name}) never covers it.`,
  balance: (cost) => `The prepaid credit does not cover ${cost}. Please tell your admin.`,
};

const HOUR = 3_600_000;
/** Whose budgets are listed first. */
const NEAREST = ['token', 'caller', 'group'];
const dateOf = (time) => new Date(time).toLocaleDateString([], { dateStyle: 'medium' });

/** The caller's budgets and the balance, from an answer of `GET /bff/me`. What all callers share is shown at a press, if there is more. */
export function funds({ balance, budgets }) {
  const [shared, own] = [budgets.filter(({ scope }) => scope === 'total'), budgets.filter(({ scope }) => scope !== 'total')];
  own.sort((one, other) => NEAREST.indexOf(one.scope) - NEAREST.indexOf(other.scope));
  const rows = [...(own.length ? own : shared).map(budget), ...(balance ? [account(balance)] : [])];
  if (!rows.length) return element('p', { class: 'hint', text: TEXT.unknown });
  const list = element('ul', { class: 'funds' }, rows);
  return own.length && shared.length ? element('div', {}, list, element('details', { class: 'all' },
    element('summary', { text: TEXT.all }), element('ul', { class: 'funds' }, shared.map(budget)))) : list;
}

function budget(one) {
  const extra = one.extra_micros ? TEXT.extra(price(one.extra_micros), utcDay(one.extra_until)) : '';
  return element('li', {}, head(nameOfBudget(one), TEXT.left(amountLeft(one.left_micros), price(one.limit_micros))),
    element('progress', { max: Math.max(1, one.limit_micros), value: one.left_micros, 'aria-label': TEXT.bar(nameOfBudget(one)) }),
    element('span', { class: 'hint', text: renewal(one.renews_at) + extra }));
}

const head = (name, amount) => element('div', { class: 'head' }, element('strong', { text: name }), element('span', { text: amount }));

function renewal(time) {
  if (!time) return TEXT.never;
  const away = Date.parse(time) - Date.now();
  const hours = away < 48 * HOUR ? Math.floor(away / HOUR) : null;
  return TEXT.renews(hours === null ? dateOf(time) : new Date(time).toLocaleTimeString([], { hour: 'numeric', minute: '2-digit' }), hours);
}

function account({ amount_micros: amount, at, stale }) {
  return element('li', {}, head(TEXT.account, amountLeft(amount)),
    stale ? element('span', { class: 'hint', text: TEXT.asOf(new Date(at).toLocaleTimeString()) }) : null);
}

/** Asks the server, since a budget may have been renewed. Resolves to why the money does not cover this, or null if it does. */
export async function shortOf(amount) {
  let me;
  try {
    me = await read('/bff/me');
  } catch {
    return null; // The purchase itself says what is wrong.
  }
  learnFunds(me);
  if (canSpend() >= amount) return null;
  // Of several, the one that renews last is in the way the longest.
  const end = ({ renews_at: renews }) => (renews ? Date.parse(renews) : Infinity);
  const [least] = me.budgets.filter(({ left_micros: left }) => left < amount).sort((one, other) => (end(one) < end(other) ? 1 : -1));
  if (!least) return TEXT.balance(price(amount));
  if (least.limit_micros < amount) return TEXT.never(nameOfBudget(least), price(amount));
  const isFar = ['month', 'week'].includes(least.period);
  const renews = least.renews_at && new Date(least.renews_at).toLocaleString([], { weekday: 'short', hour: 'numeric', minute: '2-digit', ...(isFar && { day: 'numeric', month: 'short' }) });
  return TEXT.budget(nameOfBudget(least), amountLeft(least.left_micros), price(amount), renews);
}
