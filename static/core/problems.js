/** Says what went wrong like a receipt: first whether it cost money, then one sentence, then one next step. */

import { announce, button, element, twice } from './dom.js';

/**
 * The sentence of each problem, and its next step: `again` buys (`retry`: at two presses), `same` asks for the first purchase's
 * answer with its own key, `atRisk` sends that key although the service may have forgotten it, `edit` puts the text
 * back, `drop` removes it from the list. Where the budget is short, `cheaper` buys from another model and `more` asks
 * an admin, as their `label`s say.
 */
const PROBLEMS = {
  offline: ['You are offline, so nothing was sent.', 'again'],
  unkept: ['This browser cannot save anything right now (full disk or private window). Nothing was sent, because its answer could be lost.', 'again'],
  unsettled: ['It was sent earlier, and its outcome is not known yet.', 'same'],
  forgotten: ['The answer was lost, and the service may have forgotten this purchase. If you send it again, you may pay twice.', 'atRisk'],
  unsent: ['The page was closed before this was sent.', 'same'],
  untraceable: ['This browser no longer knows the outcome.', 'edit'],
  between: ['Something between this page and the service answered instead.', 'same'],
  connection_lost: ['The connection was lost before the answer arrived.', 'same'],
  unreachable: ['The service cannot be reached.', 'again'],
  unreadable: ['An answer arrived, but it cannot be read.', 'same'],
  unshowable: ['It went through, but its answer cannot be shown.', 'again'],
  stranger: ['Someone else is signed in now. Only the person who paid gets the answer.', 'same'],
  refused: ['The AI gateway rejected this request.', 'edit'],
  malformed_request: ['The service could not read the request.', 'again'],
  malformed_json: ['The service could not read the request.', 'again'],
  invalid_idempotency_key: ['The service rejected the key of this purchase.', 'again'],
  login_expired: ['This sign-in has expired.', 'again'],
  missing_credentials: ['Please sign in first.', 'again'],
  invalid_credentials: ['Your sign-in has ended. Please sign in again.', 'again'],
  budget_exhausted: ['Your budget does not cover this.', 'edit'],
  insufficient_credit: ['The prepaid credit is used up. Please tell your admin.', 'again'],
  origin_not_allowed: ['This address may not use the service.', 'reload'],
  forbidden: ['You are not allowed to do this.', 'edit'],
  model_not_allowed: ['You are not allowed to use this model.', 'edit'],
  proof_required: ['This browser could not finish the check before the purchase.', 'again'],
  unknown_endpoint: ['The service does not offer this.', 'reload'],
  not_found: ['There is nothing at this address.', 'reload'],
  job_not_found: ['The service does not know this video.', 'none'],
  purchase_not_found: ['The service has no record of this purchase.', 'again'],
  method_not_allowed: ['The service does not offer this.', 'reload'],
  request_timeout: ['Sending took too long.', 'again'],
  still_running: ['The first attempt is still running.', 'same'],
  attempt_superseded: ['A later attempt was answered first.', 'again'],
  ledger_changed: ['The service’s records were replaced or restored, so nothing was sent.', 'again'],
  payload_too_large: ['This conversation is too long. Start a new one or shorten the message.', 'edit'],
  unsupported_media_type: ['The service could not read the request.', 'again'],
  misdirected_request: ['The service is not set up for this address.', 'reload'],
  invalid_request: ['This needs a change before it can be sent.', 'edit'],
  idempotency_key_reused: ['The key of this purchase was already used for something else.', 'again'],
  outcome_unknown: ['The answer was lost or could not be read.', 'same'],
  rate_limited: ['You are sending too fast.', 'again'],
  internal: ['The service failed before it sent anything.', 'again'],
  gateway_unreachable: ['The AI gateway cannot be reached.', 'again'],
  gateway_key_rejected: ['The AI gateway rejected the service’s key. Please tell your admin.', 'again'],
  gateway_busy: ['The AI gateway is busy.', 'again'],
  overloaded: ['The service is busy.', 'again'],
  draining: ['The service is restarting.', 'again'],
  login_unavailable: ['The login service cannot sign you in.', 'again'],
  ledger_unavailable: ['Spending cannot be recorded right now, so nothing was sent.', 'again'],
};

const TEXT = {
  charged: { no: 'Not charged', yes: 'Charged', unknown: 'May be charged' },
  again: 'Try again',
  same: 'Check again, free',
  atRisk: 'Send it again',
  edit: 'Edit and resend',
  reload: 'Reload the page',
  drop: 'Dismiss',
  unsent: 'Send it now',
  spend: (cost) => `Yes, spend ${cost}`,
  payTwice: (cost) => `Really? You may pay ${cost} twice`,
  budgets: 'Your budgets',
  details: 'Details',
  latest: (words) => `Last reply: ${words}`,
  request: (id) => `Request ${id}`,
  code: (code) => `Code ${code}`,
  checked: (time) => `Last checked ${time}.`,
  wait: (seconds) => `Please wait ${seconds} more seconds`,
  waiting: (label, seconds) => `${label} (in ${seconds} s)`,
  unknown: 'Something went wrong.',
  fields: { prompt: 'Prompt', model: 'Model', duration: 'Length', aspect_ratio: 'Shape', image_url: 'Picture' },
};

/** The row of a problem. Of one code it can depend on the cost. */
function rowOf({ code, charged, status }) {
  if (code === 'refused' && charged !== 'no') return PROBLEMS.between;
  if (code === 'refused' && status === 402) return PROBLEMS.insufficient_credit;
  if (code === 'connection_lost' && charged === 'no') return PROBLEMS.unreachable;
  if (code === 'outcome_unknown' && charged === 'yes') return PROBLEMS.unshowable;
  return PROBLEMS[code];
}

/** Whether only a retry was refused: the outcome of the first attempt is not known yet. */
const isUnsettled = (problem) => problem.charged === 'unknown' && !['same', 'atRisk'].includes(rowOf(problem)?.[1]) && problem.code !== 'untraceable';
const words = (problem) => rowOf(problem)?.[0] ?? problem.title ?? TEXT.unknown;

export function sentence(problem) {
  return isUnsettled(problem) ? PROBLEMS.unsettled[0] : words(problem);
}

/** Whether it cost money, and the sentence: for a screen reader. */
export const spoken = (problem) => `${moneyOf(problem)}. ${sentence(problem)}`;

const moneyOf = ({ charged }) => TEXT.charged[charged] ?? TEXT.charged.unknown;

/**
 * The receipt of a problem, with a button for each of `offers` that makes sense for it.
 * `fresh`: announce it; `priceText`: the price of buying again at one press; `cost`: the price of the purchase itself.
 */
export function problemCard(problem, offers = {}, { fresh = false, priceText = '', cost = priceText } = {}) {
  const best = (isUnsettled(problem) ? PROBLEMS.unsettled : rowOf(problem))?.[1] ?? 'again';
  const all = { ...offers, ...(best === 'reload' && { reload: () => location.reload() }) };
  const charged = TEXT.charged[problem.charged] ? problem.charged : 'unknown';
  const offered = wanted(problem, best, all);
  const buttons = offered.map((offer) => offerButton(offer, all[offer], problem, { priceText, cost }));
  return element('div', { class: 'problem', 'data-charged': charged, role: fresh ? 'alert' : 'group' },
    element('p', { class: 'verdict' }, element('strong', { text: moneyOf(problem) }), charged === 'no' || !cost ? null : element('span', { text: cost })),
    element('p', { text: offered.includes('atRisk') ? PROBLEMS.forgotten[0] : sentence(problem) }),
    remarks(problem),
    buttons.length ? element('div', { class: 'actions' }, ...buttons) : null,
    details(problem));
}

/** The offers to show. A second purchase is none of them while the first one may have gone through. */
function wanted(problem, best, all) {
  const isOpen = problem.charged !== 'no';
  const order = [isOpen && 'same', isOpen && 'atRisk', 'cheaper', best, 'edit', 'retry', 'again', 'more', 'drop'];
  const isToSettle = isOpen && (all.same ?? all.atRisk);
  return [...new Set(order)].filter((offer) => all[offer]
    && !(isToSettle && ['edit', 'again'].includes(offer)) && !(offer === 'again' && problem.code === 'invalid_request'));
}

function offerButton(offer, act, problem, { priceText, cost }) {
  if (offer === 'atRisk') return twice(`${TEXT.atRisk} · ${cost}`, TEXT.payTwice(cost), act);
  if (offer === 'same' && problem.code === 'unsent') return twice(`${TEXT.unsent} · ${cost}`, TEXT.spend(cost), act);
  if (offer === 'retry') return twice(`${TEXT.again} · ${cost}`, TEXT.spend(cost), act);
  if (act.label) return button(act.label, act);
  const label = offer === 'again' && (priceText || cost) ? `${TEXT.again} · ${priceText || cost}` : TEXT[offer];
  const made = button(label, act);
  return ['edit', 'reload', 'drop'].includes(offer) ? made : countdown(made, label, problem);
}

/** `it renews at 2026-01-31T00:00:00Z`, in the person's own time. */
function withLocalTimes(text) {
  return text.replace(/\d{4}-\d\d-\d\dT[\d:.]{5,18}Z/g, (time) => new Date(time).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' }));
}

/** The faults of each field, or which budget it is and when it renews: a person needs them for the next step. */
function remarks({ code, errors, detail, charged, at }) {
  if (errors?.length) {
    return element('ul', {}, ...errors.map(({ pointer, detail: said, code: fault }) => {
      const field = pointer?.split('/')[1];
      return element('li', { text: `${field ? `${TEXT.fields[field] ?? field}: ` : ''}${said ?? fault}` });
    }));
  }
  if (code === 'budget_exhausted' && detail) return element('p', { class: 'hint' }, `${capital(withLocalTimes(detail))} `, element('a', { href: '#usage', text: TEXT.budgets }));
  if (charged === 'unknown' && at) return element('p', { class: 'hint', text: TEXT.checked(new Date(at).toLocaleTimeString()) });
  return null;
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** Folded away: for who has to find the cause. */
function details(problem) {
  const { code, detail, requestId, errors } = problem;
  const isShown = errors?.length || code === 'budget_exhausted';
  const lines = [
    isUnsettled(problem) && TEXT.latest(words(problem)),
    !isShown && detail && capital(withLocalTimes(detail)),
    requestId && TEXT.code(code),
    requestId && TEXT.request(requestId),
  ].filter(Boolean);
  if (!lines.length) return null;
  return element('details', {}, element('summary', { text: TEXT.details }), ...lines.map((text) => element('p', { class: 'hint', text })));
}

/** Counts down to the next possible attempt. The button stays a button and says how long. */
function countdown(made, label, { retryAfter, at }) {
  if (!retryAfter) return made;
  const from = (at ?? Date.now()) + retryAfter * 1000;
  const left = () => Math.ceil((from - Date.now()) / 1000);
  made.addEventListener('click', (event) => {
    if (left() <= 0) return;
    event.stopImmediatePropagation();
    announce(TEXT.wait(left()));
  }, { capture: true });
  const tick = () => {
    made.textContent = left() > 0 ? TEXT.waiting(label, left()) : label;
    if (left() > 0) setTimeout(tick, 1000);
  };
  tick();
  return made;
}
