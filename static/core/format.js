/** Writes texts, amounts and times in the language of the person. The page and the widgets use it. */

/** The languages that there is a table of texts in, `../text/LANGUAGE.js`. theme.js begins to load the page's. */
const LANGUAGES = ['en', 'de'];

const isIn = (language) => (tag) => tag.split('-')[0] === language;

/** The language of the document, if there is a table in it, else the first of the person's languages that has one. */
export const language = [document.documentElement.lang, ...navigator.languages].map((tag) => LANGUAGES.find((one) => isIn(one)(tag))).find(Boolean) ?? 'en';

/** In which dates are written: the person's own variant of the language, such as `de-AT`. */
export const locale = navigator.languages.find(isIn(language)) ?? language;

const { default: TABLE } = await import(`../text/${language}.js`);

/** The text of a key; `values` fill it in. Undefined if the table has none. */
export function t(key, ...values) {
  const text = TABLE[key];
  return typeof text === 'function' ? text(...values) : text;
}

export const isEnglish = language === 'en';

/** Returns `said`, words of the server or the client, in the person's language: the table's text of this key, if it has one. Their English says more. */
export const inWords = (key, said) => (isEnglish && said) || t(key) || said;

/** The effect of a word that provokes a fault in the sandbox. */
export const faultOf = (word, does) => inWords(word.replace(':', '.'), does);

/** The price list's description of a model. */
export const remark = (text) => text?.split(/([,;] )/).map((part) => t(`remark.${part}`) ?? part).join('');

const formats = new Map();

/** Writes whole dollars and their fraction. Only the whole ones are a number, so nothing is rounded. */
function dollars(whole, fraction) {
  const { length } = fraction;
  const options = { style: 'currency', currency: 'USD', minimumFractionDigits: length, maximumFractionDigits: length };
  if (!formats.has(length)) formats.set(length, new Intl.NumberFormat(language, options));
  return formats.get(length).formatToParts(whole).map(({ type, value }) => (type === 'fraction' ? fraction : value)).join('');
}

/** Formats micro-dollars exactly: `$0.006`, `$5.00`, `$1,234.50`; in German `0,006 $`. */
export function price(amount) {
  if (amount < 0) return `-${price(-amount)}`;
  const rest = String(amount % 1_000_000).padStart(6, '0').replace(/0{1,4}$/, '');
  return dollars(Math.floor(amount / 1_000_000), rest);
}

/**
 * Formats what is left: whole cents from a dollar on and for nothing, else three decimals. It rounds down, so that it never promises more than
 * there is.
 */
export function amountLeft(amount) {
  const [unit, digits] = amount >= 1_000_000 || amount === 0 ? [10_000, 2] : [1_000, 3];
  const rest = Math.floor((amount % 1_000_000) / unit);
  return dollars(Math.floor(amount / 1_000_000), String(rest).padStart(digits, '0'));
}

const [POINT] = new Intl.NumberFormat(language).format(0.5).match(/[.,]/);

/** An amount as it is typed into a field: `1234.50`, or `1234,50`. */
export function typedAmount(amount) {
  return POINT === '.' ? price(amount).replace(/[^\d.]/g, '') : price(amount).replace(/[^\d,]/g, '');
}

/** The decimal that was typed, as the server reads it. Anything else stays as it is: the server says what is wrong with it. */
export function decimal(text) {
  const isGerman = POINT === ',' && /^(\d+|[1-9]\d{0,2}(\.\d{3})+)(,\d+)?$/.test(text);
  return isGerman ? text.replaceAll('.', '').replace(',', '.') : text;
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
export const utcDay = (day) => new Date(day).toLocaleDateString(locale, { dateStyle: 'medium', timeZone: 'UTC' });

/** Returns the name of a budget of `GET /bff/me`: `You, today`. */
export const nameOfBudget = ({ scope, period }) => `${t(`budget.${scope}`) ?? scope}, ${t(`period.${period}`) ?? period}`;
