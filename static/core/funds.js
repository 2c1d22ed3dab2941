/** What is left: each budget with its bar and the time it renews, the account's balance, and why they do not cover a price. */

import { element } from './dom.js';
import { amountLeft, locale, nameOfBudget, price, t, utcDay } from './format.js';
import { canSpend, learnFunds, read } from './site.js';

const HOUR = 3_600_000;
/** Whose budgets are listed first. */
const NEAREST = ['token', 'caller', 'group'];
const dateOf = (time) => new Date(time).toLocaleDateString(locale, { dateStyle: 'medium' });

/** The caller's budgets and the balance, from an answer of `GET /bff/me`. What all callers share is shown at a press, if there is more. */
export function funds({ balance, budgets }) {
  const [shared, own] = [budgets.filter(({ scope }) => scope === 'total'), budgets.filter(({ scope }) => scope !== 'total')];
  own.sort((one, other) => NEAREST.indexOf(one.scope) - NEAREST.indexOf(other.scope));
  const rows = [...(own.length ? own : shared).map(budget), ...(balance ? [account(balance)] : [])];
  if (!rows.length) return element('p', { class: 'hint', text: t('funds.unknown') });
  const list = element('ul', { class: 'funds' }, rows);
  return own.length && shared.length ? element('div', {}, list, element('details', { class: 'all' },
    element('summary', { text: t('funds.all') }), element('ul', { class: 'funds' }, shared.map(budget)))) : list;
}

function budget(one) {
  const extra = one.extra_micros ? t('funds.extra', price(one.extra_micros), utcDay(one.extra_until)) : '';
  return element('li', {}, head(nameOfBudget(one), t('funds.left', amountLeft(one.left_micros), price(one.limit_micros))),
    element('progress', { max: Math.max(1, one.limit_micros), value: one.left_micros, 'aria-label': t('funds.bar', nameOfBudget(one)) }),
    element('span', { class: 'hint', text: renewal(one.renews_at) + extra }));
}

const head = (name, amount) => element('div', { class: 'head' }, element('strong', { text: name }), element('span', { text: amount }));

function renewal(time) {
  if (!time) return t('funds.noRenewal');
  const away = Date.parse(time) - Date.now();
  if (away >= 48 * HOUR) return t('funds.renews', dateOf(time));
  return t('funds.renewsIn', new Date(time).toLocaleTimeString(locale, { hour: 'numeric', minute: '2-digit' }), Math.floor(away / HOUR));
}

function account({ amount_micros: amount, at, stale }) {
  return element('li', {}, head(t('funds.account'), amountLeft(amount)),
    stale ? element('span', { class: 'hint', text: t('funds.asOf', new Date(at).toLocaleTimeString(locale)) }) : null);
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
  if (!least) return t('funds.balance', price(amount));
  if (least.limit_micros < amount) return t('funds.never', nameOfBudget(least), price(amount));
  const isFar = ['month', 'week'].includes(least.period);
  const renews = least.renews_at && new Date(least.renews_at).toLocaleString(locale, { weekday: 'short', hour: 'numeric', minute: '2-digit', ...(isFar && { day: 'numeric', month: 'short' }) });
  return t('funds.budget', nameOfBudget(least), amountLeft(least.left_micros), price(amount), renews);
}
