/** Says why the money left does not cover a price. Loaded when it does not seem to. */

import { amountLeft, nameOfBudget, price } from './format.js';
import { canSpend, learnFunds, read } from './site.js';

const TEXT = {
  budget: (name, left, cost, renews) => `${name}: ${left} left. This costs ${cost}. The budget renews ${renews}.`,
  balance: (cost) => `The prepaid credit does not cover ${cost}. Please tell your admin.`,
};

/** Asks the server, since a budget may have been renewed. Resolves to the reason, or null if the money suffices. */
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
  const [budget] = me.budgets.filter(({ left_micros: left }) => left < amount).sort((one, other) => Date.parse(other.renews) - Date.parse(one.renews));
  if (!budget) return TEXT.balance(price(amount));
  const renews = new Date(budget.renews).toLocaleString([], { weekday: 'short', hour: '2-digit', minute: '2-digit', ...(budget.period === 'month' && { day: 'numeric', month: 'short' }) });
  return TEXT.budget(nameOfBudget(budget), amountLeft(budget.left_micros), price(amount), renews);
}
