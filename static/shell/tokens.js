/** The dialog of a person's own tokens, with which programs act for that person. */

import { button, element, openSheet } from '../core/dom.js';
import { askFor, limitFields, showToken, untilField } from '../core/forms.js';
import { utcDay } from '../core/format.js';
import { funds } from '../core/funds.js';
import { sentence } from '../core/problems.js';
import { read, send } from '../core/site.js';

const TEXT = {
  title: 'API tokens',
  about: 'A token lets a program chat and make videos for you, on your budget.',
  none: 'No tokens yet.',
  facts: (prefix, created, used, until) => `${prefix}…, made ${created}, ${used ? `last used ${used}` : 'never used'}, valid through ${until}`,
  make: 'New token',
  name: 'Name',
  nameHint: 'The program that will use it.',
  tokenOf: (name) => `Token ${name}`,
  revoke: 'Revoke',
  revokeOf: (name) => `Revoke ${name}`,
  aboutRevoke: 'Programs that use it are refused at once.',
};

export async function tokens() {
  try {
    const { rows: all } = await read('/bff/tokens');
    show(all.length ? element('ul', { class: 'funds' }, all.map(row)) : element('p', { class: 'hint', text: TEXT.none }), button(TEXT.make, make, 'primary'));
  } catch (problem) {
    show(element('p', { class: 'fault', role: 'alert', text: sentence(problem) }));
  }
}

const show = (...parts) => openSheet(TEXT.title, {}, element('p', { text: TEXT.about }), parts);

const row = ({ name, prefix, added_at: added, last_used_at: used, until, budgets }) => element('li', {},
  element('strong', { text: name }),
  element('button', { type: 'button', class: 'quiet small', text: TEXT.revoke, 'aria-label': TEXT.revokeOf(name), click: () => revoke(name) }),
  element('span', { class: 'hint', text: TEXT.facts(prefix, utcDay(added), used && utcDay(used), utcDay(until)) }),
  budgets.length ? funds({ budgets }) : null);

const make = () => askFor({
  title: TEXT.make, label: TEXT.make, fields: [{ name: 'name', label: TEXT.name, hint: TEXT.nameHint }, untilField(30), ...limitFields()],
  send: (request) => send('POST', '/bff/tokens', request),
  done: async ({ name, token }) => {
    await tokens();
    showToken(TEXT.tokenOf(name), token);
  },
});

const revoke = (name) => askFor({
  title: TEXT.revokeOf(name), about: TEXT.aboutRevoke, label: TEXT.revoke, send: () => send('DELETE', `/bff/tokens/${encodeURIComponent(name)}`), done: tokens,
});
