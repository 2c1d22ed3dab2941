/** The tab of the gateway's account: its balance, now and over time. */

import { element } from '../core/dom.js';
import { price, t } from '../core/format.js';
import { dayName } from '../usage/period.js';
import { figure, figures } from '../usage/usage.js';
import { when } from './admin.js';

export function account({ billing: { account: said, stale, checkpoints } }) {
  const points = checkpoints.map(({ at, balance_micros: micros }) => ({ at: Date.parse(at), micros })).reverse();
  return [
    said ? figures([[t('funds.account'), price(said.balance_micros), t('account.asOf', when(said.at), stale)], [t('account.spent'), price(said.spent_micros), '']])
      : element('p', { text: t('account.noBalance') }),
    points.length > 1 ? trend(points) : element('p', { class: 'hint', text: t('account.noBalances') }),
  ];
}

function trend(points) {
  const most = Math.max(1, ...points.map(({ micros }) => micros));
  const [first, last] = [points[0], points.at(-1)];
  const span = Math.max(1, last.at - first.at);
  const place = ({ at, micros }) => `${((at - first.at) / span) * 1000},${Math.round(200 - (Math.max(0, micros) / most) * 200)}`;
  const day = ({ at }) => dayName(new Date(at).toISOString().slice(0, 10));
  const shape = (tag, attributes, ...children) => {
    const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const label = `${t('account.balances')}: ${day(first)} ${price(first.micros)}, ${day(last)} ${price(last.micros)}`;
  return figure(t('account.balances'),
    element('p', { class: 'scale', 'aria-hidden': 'true', text: price(most) }),
    shape('svg', { viewBox: '0 0 1000 200', preserveAspectRatio: 'none', class: 'line', role: 'img', 'aria-label': label },
      shape('polyline', { points: points.map(place).join(' '), class: 'trend', 'vector-effect': 'non-scaling-stroke' })),
    element('p', { class: 'ends', 'aria-hidden': 'true' }, element('span', { text: day(first) }), element('span', { text: day(last) })));
}
