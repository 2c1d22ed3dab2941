/** Writes amounts and times as people read them. */

const TEXT = {
  scopes: { caller: 'You', group: 'Your group', total: 'Everyone', token: 'This token' },
  periods: { day: 'today', week: 'this week', month: 'this month', ever: 'in all' },
};

const dollars = new Intl.NumberFormat('en-US', { style: 'currency', currency: 'USD', maximumFractionDigits: 0 });

/** Formats micro-dollars exactly: `$0.006`, `$5.00`, `$1,234.50`. Uses integers only, so nothing is rounded. */
export function price(amount) {
  if (amount < 0) return `-${price(-amount)}`;
  const rest = String(amount % 1_000_000).padStart(6, '0').replace(/0{1,4}$/, '');
  return `${dollars.format(Math.floor(amount / 1_000_000))}.${rest}`;
}

/**
 * Formats what is left: whole cents from a dollar on and for nothing, else three decimals. It rounds down, so that it never promises more than
 * there is.
 */
export function amountLeft(amount) {
  const [unit, digits] = amount >= 1_000_000 || amount === 0 ? [10_000, 2] : [1_000, 3];
  const rest = Math.floor((amount % 1_000_000) / unit);
  return `${dollars.format(Math.floor(amount / 1_000_000))}.${String(rest).padStart(digits, '0')}`;
}

/** Parses a decimal text such as `0.006000` as micro-dollars; null if it is none. */
export function micros(text) {
  const match = /^(\d{1,9})(?:\.(\d{1,6}))?$/.exec(text ?? '');
  return match && Number(match[1]) * 1_000_000 + Number((match[2] ?? '').padEnd(6, '0'));
}

/** Renames the fields that a kept record has from an earlier version; returns it. */
export function withCurrentNames(record) {
  if ('anew' in record) {
    record.mayBuyAgain = record.anew;
    delete record.anew;
  }
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

/** Formats a time span: `1:05` for 65 seconds. */
export function clock(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  const two = (number) => String(number).padStart(2, '0');
  return (hours ? `${hours}:${two(minutes)}` : String(minutes)) + `:${two(seconds % 60)}`;
}

/** Formats a day that begins and ends in UTC, such as the last one of an extra: `Nov 30, 2026`. */
export const utcDay = (day) => new Date(day).toLocaleDateString([], { dateStyle: 'medium', timeZone: 'UTC' });

/** Returns the name of a budget of `GET /bff/me`: `You, today`. */
export const nameOfBudget = ({ scope, period }) => `${TEXT.scopes[scope] ?? scope}, ${TEXT.periods[period] ?? period}`;
