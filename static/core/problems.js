/** Says in human words what went wrong, whether it cost anything, and what to do now. */

import { announce, button, element, twice } from './dom.js';

/**
 * What to offer: `again` buys anew with a new key, `same` asks for the first purchase's answer with its own key,
 * `atRisk` sends that although it may be forgotten, `edit` puts the text back, `drop` takes it out of sight.
 */
const PROBLEMS = {
  offline: ['You are offline, so it was not sent.', 'again'],
  unkept: ['This browser keeps nothing right now (full disk or private window), so it was not sent: its answer could be lost.', 'again'],
  unsettled: ['It was sent before, and what became of it is not known yet.', 'same'],
  forgotten: ['The answer was lost, and the service may no longer know this purchase.', 'atRisk'],
  unsent: ['The page was closed before this was sent, as far as is known.', 'same'],
  untraceable: ['This browser no longer knows what became of it.', 'edit'],
  between: ['Something on the way answered in the service’s place.', 'same'],
  connection_lost: ['The connection was lost before an answer came. It may have arrived all the same.', 'same'],
  unreachable: ['The service cannot be reached.', 'again'],
  unreadable: ['An answer came, but it cannot be read.', 'same'],
  stranger: ['Somebody else is signed in now. The answer is only for the person who bought it.', 'same'],
  refused: ['The gateway refused this.', 'edit'],
  malformed_request: ['The server could not read the request.', 'again'],
  malformed_json: ['The server could not read the request.', 'again'],
  invalid_idempotency_key: ['The server did not take this purchase’s key.', 'again'],
  missing_credentials: ['You have to sign in first.', 'again'],
  invalid_credentials: ['Your sign-in has ended. Sign in again.', 'again'],
  budget_exhausted: ['Your budget does not cover this. Wait until it renews, or pick a cheaper model.', 'edit'],
  insufficient_credit: ['The account’s prepaid credit is used up. Whoever runs this service has to add some.', 'again'],
  origin_not_allowed: ['This page’s address may not call the service.', 'reload'],
  forbidden: ['You may not do this.', 'edit'],
  unknown_endpoint: ['The service does not offer this.', 'reload'],
  not_found: ['There is nothing at this address.', 'reload'],
  job_not_found: ['The service knows no such video.', 'none'],
  purchase_not_found: ['It was not bought: the service knows no such purchase.', 'again'],
  method_not_allowed: ['The service does not offer this.', 'reload'],
  request_timeout: ['Sending took too long.', 'again'],
  still_running: ['The first attempt is still being worked on.', 'same'],
  ledger_changed: ['The service keeps its purchases in a new place, so it was not sent.', 'again'],
  payload_too_large: ['This is more text than one request may carry. Start a new conversation, or shorten it.', 'edit'],
  unsupported_media_type: ['The server could not read the request.', 'again'],
  misdirected_request: ['The service does not know itself by this address.', 'reload'],
  invalid_request: ['Something in it has to be changed first.', 'edit'],
  idempotency_key_reused: ['This purchase’s key was used before, for something else.', 'again'],
  outcome_unknown: ['It was sent, and the answer was lost on its way back.', 'same'],
  rate_limited: ['You are faster than the service allows.', 'again'],
  internal: ['The service broke down before buying anything.', 'again'],
  gateway_unreachable: ['The service behind this one cannot be reached.', 'again'],
  gateway_key_rejected: ['The service behind this one refuses its key. Whoever runs this service has to renew it.', 'again'],
  gateway_busy: ['The service behind this one has no room right now.', 'again'],
  overloaded: ['Too much is going on right now.', 'again'],
  draining: ['The service is restarting.', 'again'],
  ledger_unavailable: ['Spending cannot be recorded right now, so nothing is bought.', 'again'],
};

const CHARGED = { no: 'Not charged.', yes: 'It was charged.', unknown: 'It may have been charged.' };
/** What the fields of an order are called here. */
const FIELDS = { prompt: 'Prompt', model: 'Model', duration: 'Length', aspect_ratio: 'Shape', image_url: 'Picture' };

const LABELS = {
  again: 'Try again',
  same: 'Ask for the answer (not charged twice)',
  atRisk: 'Send it again',
  edit: 'Change it',
  reload: 'Reload the page',
  drop: 'Remove from this list',
};

/** The row of a problem. Of one code it can depend on what it cost. */
function rowOf({ code, charged }) {
  if (code === 'refused' && charged !== 'no') return PROBLEMS.between;
  if (code === 'connection_lost' && charged === 'no') return PROBLEMS.unreachable;
  return PROBLEMS[code];
}

/** Whether it is a refusal of a retry, which says nothing of the first attempt: the outcome of that one is not known yet. */
const isUnsettled = (problem) => problem.charged === 'unknown' && !['same', 'atRisk'].includes(rowOf(problem)?.[1]) && problem.code !== 'untraceable';
const words = (problem) => rowOf(problem)?.[0] ?? problem.title ?? 'Something went wrong.';

/** The sentence for a problem, for people. */
export function sentence(problem) {
  return isUnsettled(problem) ? PROBLEMS.unsettled[0] : words(problem);
}

/**
 * What a problem looks like, with a button for each of `offers` that makes sense for it.
 * @param {object} problem as thrown by transport.js or kept by purchases.js
 * @param {Record<string, () => void>} offers
 * @param {{fresh?: boolean, priceText?: string, cost?: string}} options `fresh`: it is to be announced;
 *   `priceText`: what buying anew costs at once; `cost`: what the purchase itself costs
 */
export function problemCard(problem, offers = {}, { fresh = false, priceText = '', cost = priceText } = {}) {
  const best = (isUnsettled(problem) ? PROBLEMS.unsettled : rowOf(problem))?.[1] ?? 'again';
  const all = { ...offers, ...(best === 'reload' && { reload: () => location.reload() }) };
  // Buying anew is never the first thing to offer while the first purchase may have gone through.
  const settle = all.same ?? all.atRisk;
  const wanted = [problem.charged !== 'no' && 'same', problem.charged !== 'no' && 'atRisk', best, 'edit', 'again', 'drop'].filter((offer, place, those) => all[offer]
    && those.findIndex((other) => all[other] === all[offer]) === place
    && !(offer === 'again' && (problem.code === 'invalid_request' || (problem.charged !== 'no' && settle))));
  const buttons = wanted.map((offer) => {
    if (offer === 'atRisk') return twice(`${LABELS.atRisk} · ${cost}`, `Really? It could cost ${cost} a second time`, all.atRisk);
    if (offer === 'same' && problem.code === 'unsent') return twice(`Send it now · ${cost}`, `Yes, spend ${cost}`, all.same);
    const label = offer === 'again' && priceText ? `${LABELS.again} · ${priceText}` : LABELS[offer];
    const made = button(label, all[offer]);
    return ['edit', 'reload', 'drop'].includes(offer) ? made : countdown(made, label, problem);
  });
  return element('div', { class: 'problem', role: fresh ? 'alert' : 'group' },
    element('p', {}, element('strong', { text: `${sentence(problem)} ` }),
      element('span', { text: CHARGED[problem.charged] ?? CHARGED.unknown })),
    isUnsettled(problem) ? element('p', { text: `The latest answer: ${words(problem)}` }) : null,
    faults(problem),
    wanted.includes('atRisk')
      ? element('p', { text: 'Sent again, it could be bought a second time: the service may have forgotten this purchase.' }) : null,
    buttons.length ? element('div', { class: 'actions' }, ...buttons) : null,
    problem.requestId ? element('p', { class: 'hint', text: `Request ${problem.requestId}` }) : null);
}

/** `it renews at 2026-01-31T00:00:00Z`, in the person's own time. */
function withLocalTimes(text) {
  return text.replace(/\d{4}-\d\d-\d\dT[\d:.]{5,18}Z/g, (time) => new Date(time).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' }));
}

function faults({ errors, detail }) {
  if (errors?.length) {
    return element('ul', {}, ...errors.map(({ pointer, detail: said, code }) => {
      const field = pointer?.split('/')[1];
      return element('li', { text: `${field ? `${FIELDS[field] ?? field}: ` : ''}${said ?? code}` });
    }));
  }
  const said = detail ? withLocalTimes(detail[0].toUpperCase() + detail.slice(1)) : null;
  return said && element('p', { class: 'hint', text: said });
}

/** Counts down to when it may be tried again. The button stays a button and says how long. */
function countdown(made, label, { retryAfter, at }) {
  if (!retryAfter) return made;
  const from = (at ?? Date.now()) + retryAfter * 1000;
  const left = () => Math.ceil((from - Date.now()) / 1000);
  made.addEventListener('click', (event) => {
    if (left() <= 0) return;
    event.stopImmediatePropagation();
    announce(`Please wait ${left()} more seconds`);
  }, { capture: true });
  const tick = () => {
    made.textContent = left() > 0 ? `${label} (in ${left()} s)` : label;
    if (left() > 0) setTimeout(tick, 1000);
  };
  tick();
  return made;
}
