/** The panel with what is left: every budget with its bar and the time it renews, and the account's balance. */

import { element } from '../core/dom.js';
import { amountLeft, nameOfBudget, price } from '../core/format.js';

const TEXT = {
  unknown: 'No budget applies to you, and the balance is not shown here.',
  left: (left, limit) => `${left} of ${limit} left`,
  bar: (name) => `${name}, left`,
  renews: (when, hours) => `Renews ${when}${hours === null ? '' : hours < 1 ? ', in less than an hour' : `, in ${hours} h`}`,
  account: 'Account balance',
  asOf: (time) => `As of ${time}; the gateway has not answered since.`,
};

const HOUR = 3_600_000;

/** Fills the panel in from an answer of `GET /bff/me`. */
export function fill(place, { balance, budgets }) {
  const rows = budgets.map(budget);
  if (balance) rows.push(account(balance));
  place.replaceChildren(...(rows.length ? [element('ul', { class: 'funds' }, rows)] : [element('p', { class: 'hint', text: TEXT.unknown })]));
}

function budget(one) {
  const name = nameOfBudget(one);
  const renews = new Date(one.renews);
  const away = renews - Date.now();
  const hours = away < 48 * HOUR ? Math.floor(away / HOUR) : null;
  const when = renews.toLocaleString([], hours === null ? { dateStyle: 'medium' } : { hour: 'numeric', minute: '2-digit' });
  return element('li', {},
    element('strong', { text: name }),
    element('span', { text: TEXT.left(amountLeft(one.left_micros), price(one.limit_micros)) }),
    element('progress', { max: Math.max(1, one.limit_micros), value: one.left_micros, 'aria-label': TEXT.bar(name) }),
    element('span', { class: 'hint', text: TEXT.renews(when, hours) }));
}

function account({ amount_micros: amount, as_of: asOf, stale }) {
  return element('li', {},
    element('strong', { text: TEXT.account }), element('span', { text: amountLeft(amount) }),
    stale ? element('span', { class: 'hint', text: TEXT.asOf(new Date(asOf).toLocaleTimeString()) }) : null);
}
