/** Draws spending as charts, each with a text for screen readers, and as tables. */

import { byId, element } from '../core/dom.js';
import { price } from '../core/format.js';

export const SERVICES = { chat: 'Chats', video: 'Videos' };
const TEXT = {
  days: (count) => ` ${count} days`,
  range: 'Period',
  byDay: 'By day',
  total: 'Total',
};
const RANGES = [7, 31];
const DAY = 24 * 60 * 60 * 1000;
const SVG = 'http://www.w3.org/2000/svg';

/** Fills a view of spending in: its heading, how far back, and a body whose pictures fit into it. */
export function furnish(view, title, { load, redraw }) {
  const choice = (days) => element('label', { class: 'choice' },
    element('input', { type: 'radio', name: `${view}-range`, value: days, checked: days === RANGES[0] }), TEXT.days(days));
  const body = element('div', { id: `${view}-body`, class: 'usage-body' });
  byId(`view-${view}`).replaceChildren(
    element('div', { class: 'usage-head' },
      element('h2', { id: `${view}-heading`, tabindex: '-1', text: title }),
      element('fieldset', { id: `${view}-range`, class: 'choices', change: () => void load() },
        element('legend', { class: 'unseen', text: TEXT.range }), RANGES.map(choice))),
    body);
  // Pictures are drawn in the width there is, so that their words keep their size.
  let width = 0;
  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width && Math.abs(contentRect.width - width) > 8) redraw();
    width = contentRect.width;
  }).observe(body);
}

/** The last days in UTC, oldest first: `2026-01-31`. */
export function lastDays(count) {
  return Array.from({ length: count }, (_, place) => new Date(Date.now() - (count - 1 - place) * DAY).toISOString().slice(0, 10));
}

/** The width of one of `side` pictures side by side in `body`, or of one below the other where there is less room. */
export function roomFor(body, side) {
  const whole = body.clientWidth || 600;
  return Math.max(200, (whole >= 720 ? (whole - 24 * (side - 1)) / side : whole) - 38);
}

const sumOf = (rows) => rows.reduce((sum, row) => sum + row.spent_micros, 0);
const servicesIn = (rows) => Object.keys(SERVICES).filter((service) => rows.some((row) => row.service === service));

/** A picture on a card, with its title. */
export function figure(title, drawing, legend = null) {
  return element('figure', { class: 'card' }, element('figcaption', {}, element('h3', { text: title }), legend), drawing);
}

/** Bars of the last `count` days. Rows are `{day, service, spent_micros}`. */
export function byDay(rows, count, width) {
  const days = lastDays(count).map((day) => ({ day, rows: rows.filter((row) => row.day === day) }));
  const most = Math.max(1, ...days.map((one) => sumOf(one.rows)));
  const services = servicesIn(rows);
  const [height, foot, top] = [200, 24, 22];
  const step = width / count;
  const scale = (height - foot - top) / most;
  const parts = [
    shape('line', { x1: 0, x2: width, y1: top, y2: top, class: 'grid' }),
    shape('line', { x1: 0, x2: width, y1: height - foot, y2: height - foot, class: 'grid' }),
    words(price(most), { x: 0, y: top - 7 }),
  ];
  days.forEach(({ day, rows: those }, place) => {
    let bottom = height - foot;
    for (const service of services) {
      const tall = sumOf(those.filter((row) => row.service === service)) * scale;
      if (!tall) continue;
      // What was spent is seen, however little it is beside a video.
      const seen = Math.max(tall, 2);
      bottom -= seen;
      parts.push(shape('rect', { x: step * (place + 0.15), y: bottom, width: step * 0.7, height: seen, rx: Math.min(2, seen / 2), class: service },
        shape('title', {}, `${day}: ${SERVICES[service]} ${price(sumOf(those.filter((row) => row.service === service)))}`)));
    }
    const every = Math.ceil(70 / step);
    const middle = step * (place + 0.5);
    // No name runs over the edge.
    const anchor = middle + 24 > width ? { x: width, 'text-anchor': 'end' } : middle < 24 ? { x: 0 } : { x: middle, 'text-anchor': 'middle' };
    if ((count - 1 - place) % every === 0) parts.push(words(dayName(day), { ...anchor, y: height - 6 }));
  });
  const said = days.filter((one) => one.rows.length).map((one) => `${dayName(one.day)} ${price(sumOf(one.rows))}`).join(', ');
  const legend = element('p', { class: 'legend' }, services.map((service) => element('span', { class: service, text: SERVICES[service] })));
  return figure(TEXT.byDay, picture(width, height, `${TEXT.byDay}: ${said}`, parts), legend);
}

/** One bar for each name, the dearest first, with a part for each service. */
export function ranking(title, rows, nameOf, width) {
  const all = [...Map.groupBy(rows, nameOf)].map(([name, those]) => ({ name, rows: those, spent: sumOf(those) }))
    .sort((one, other) => other.spent - one.spent);
  const most = Math.max(1, all[0].spent);
  const line = 40;
  const parts = all.flatMap(({ name, rows: those, spent }, place) => {
    const bar = (x, wide, kind) => shape('rect', { x, y: place * line + 20, width: wide, height: 8, rx: 4, class: kind });
    let end = 0;
    return [
      words(name, { x: 0, y: place * line + 14 }),
      words(price(spent), { x: width, y: place * line + 14, 'text-anchor': 'end' }),
      bar(0, width, 'trough'),
      ...servicesIn(those).map((service) => {
        const wide = Math.max(4, width * (sumOf(those.filter((row) => row.service === service)) / most));
        end += wide;
        return bar(end - wide, wide, service);
      }),
    ];
  });
  const said = all.map(({ name, spent }) => `${name} ${price(spent)}`).join(', ');
  return figure(title, picture(width, all.length * line - 10, `${title}: ${said}`, parts));
}

/** `31 Jan` */
export function dayName(day) {
  return new Date(`${day}T00:00:00Z`).toLocaleDateString([], { day: 'numeric', month: 'short', timeZone: 'UTC' });
}

/** An image of this size that is called `label`. */
export const picture = (width, height, label, parts) =>
  shape('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': label }, ...parts);
export const words = (text, attributes) => shape('text', attributes, text);

export function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A table of texts that scrolls by itself. A column whose name begins with `>` is of numbers; `total` stands below the last. */
export function table(label, columns, rows, total = null) {
  const kinds = columns.map((name) => (name.startsWith('>') ? 'right' : null));
  const head = columns.map((name, place) => element('th', { scope: 'col', text: name.replace('>', ''), class: kinds[place] }));
  const body = rows.map((row) => element('tr', {}, row.map((text, place) => element('td', { text, class: kinds[place] }))));
  const foot = total && element('tfoot', {}, element('tr', {},
    element('th', { scope: 'row', colspan: columns.length - 1, text: TEXT.total }), element('td', { class: 'right', text: total })));
  return element('div', { class: 'table', tabindex: '0', role: 'group', 'aria-label': label },
    element('table', {}, element('thead', {}, element('tr', {}, head)), element('tbody', {}, body), foot));
}
