/** The dialog of a person's own tokens, with which programs act for that person. */

import { button, element, openSheet } from '../core/dom.js';
import { askFor, limitFields, showToken, untilField } from '../core/forms.js';
import { t, utcDay } from '../core/format.js';
import { funds } from '../core/funds.js';
import { sentence } from '../core/problems.js';
import { read, send } from '../core/site.js';

export async function tokens() {
  try {
    const { rows: all } = await read('/bff/tokens');
    show(all.length ? element('ul', { class: 'funds' }, all.map(row)) : element('p', { class: 'hint', text: t('token.none') }), button(t('token.make'), make, 'primary'));
  } catch (problem) {
    show(element('p', { class: 'fault', role: 'alert', text: sentence(problem) }));
  }
}

const show = (...parts) => openSheet(t('token.title'), {}, element('p', { text: t('token.about') }), parts);

const row = ({ name, prefix, added_at: added, last_used_at: used, until, budgets }) => element('li', {},
  element('strong', { text: name }),
  element('button', { type: 'button', class: 'quiet small', text: t('token.revoke'), 'aria-label': t('token.revokeOf', name), click: () => revoke(name) }),
  element('span', { class: 'hint', text: t('token.facts', prefix, utcDay(added), used && utcDay(used), utcDay(until)) }),
  budgets.length ? funds({ budgets }) : null);

const make = () => askFor({
  title: t('token.make'), label: t('token.make'), fields: [{ name: 'name', label: t('token.name'), hint: t('token.nameHint') }, untilField(30), ...limitFields()],
  send: (request) => send('POST', '/bff/tokens', request),
  done: async ({ name, token }) => {
    await tokens();
    showToken(t('token.tokenOf', name), token);
  },
});

const revoke = (name) => askFor({
  title: t('token.revokeOf', name), about: t('token.aboutRevoke'), label: t('token.revoke'), send: () => send('DELETE', `/bff/tokens/${encodeURIComponent(name)}`), done: tokens,
});
