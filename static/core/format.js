/** Writes amounts, times and the models of the price list (`GET /bff/catalog`) as people read them. */

import { element } from './dom.js';

/** Micro-dollars as people write them: `$0.006`, `$5.00`. Integers only, so nothing is rounded. */
export function price(amount) {
  const dollars = Math.floor(amount / 1_000_000);
  const rest = String(amount % 1_000_000).padStart(6, '0').replace(/0{1,4}$/, '');
  return `$${dollars}.${rest}`;
}

/** Micro-dollars of a decimal text such as `0.006000`, or null. */
export function micros(text) {
  const match = /^(\d{1,9})(?:\.(\d{1,6}))?$/.exec(text ?? '');
  return match && Number(match[1]) * 1_000_000 + Number((match[2] ?? '').padEnd(6, '0'));
}

/** Gives a kept record whose amounts have the names of an earlier version today's names; returns it. */
export function withCost(record) {
  if ('tollMicros' in record) {
    record.costMicros = record.tollMicros;
    delete record.tollMicros;
  }
  if (record.reply && 'toll' in record.reply) {
    record.reply.cost = record.reply.toll;
    delete record.reply.toll;
  }
  return record;
}

/** `1:05` for 65 seconds. */
export function clock(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  const two = (number) => String(number).padStart(2, '0');
  return (hours ? `${hours}:${two(minutes)}` : String(minutes)) + `:${two(seconds % 60)}`;
}

/** What a budget of `GET /bff/me` is called. */
export function nameOfBudget({ scope, period }) {
  return `${scope === 'total' ? 'Everybody’s' : 'Your'} ${period}`;
}

const TIERS = { standard: 'Standard', budget: 'Budget', unstated: 'No published price, held at', added: 'Added here' };

/** Fills a picker with chat models, grouped by tier and price. */
export function offerChatModels(select, models) {
  offer(select, models, (model) => `${TIERS[model.tier] ?? model.tier} · ${price(model.price_micros)}`,
    (model) => model.best_for);
}

/** Fills a picker with video models, grouped by price. */
export function offerVideoModels(select, models) {
  offer(select, models, (model) => `${price(model.price_micros)} per video`, (model) => model.remarks);
}

function offer(select, models, groupOf, praiseOf) {
  const groups = new Map();
  for (const model of models) {
    const label = groupOf(model);
    if (!groups.has(label)) groups.set(label, element('optgroup', { label }));
    const praise = praiseOf(model);
    groups.get(label).append(element('option', {
      value: model.id,
      text: `${model.id} · ${price(model.price_micros)}${praise ? ` · ${praise}` : ''}`,
    }));
  }
  select.replaceChildren(...groups.values());
}
