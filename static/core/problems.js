/** Says what went wrong like a receipt: first whether it cost money, then one sentence, then one next step. */

import { announce, button, element, twice } from './dom.js';
import { inWords, isEnglish, locale, t } from './format.js';

/**
 * The next step of each problem, where it is not `again`, which buys (`retry`: at two presses). `same` asks for the first purchase's
 * answer with its own key, `atRisk` sends that key although the service may have forgotten it, `edit` puts the text
 * back, `drop` removes it from the list. Where the budget is short, `cheaper` buys from another model and `more` asks
 * an admin, as their `label`s say. Its sentence is `problem.CODE` in the table of texts.
 */
const STEPS = {
  unsettled: 'same',
  unsent: 'same',
  between: 'same',
  connection_lost: 'same',
  unreadable: 'same',
  stranger: 'same',
  still_running: 'same',
  outcome_unknown: 'same',
  forgotten: 'atRisk',
  untraceable: 'edit',
  refused: 'edit',
  budget_exhausted: 'edit',
  forbidden: 'edit',
  model_not_allowed: 'edit',
  payload_too_large: 'edit',
  invalid_request: 'edit',
  origin_not_allowed: 'reload',
  unknown_endpoint: 'reload',
  not_found: 'reload',
  method_not_allowed: 'reload',
  misdirected_request: 'reload',
  job_not_found: 'none',
};

/** The name of a problem. Of one code it can depend on the cost. */
function nameOf({ code, charged, status }) {
  if (code === 'refused' && charged !== 'no') return 'between';
  if (code === 'refused' && status === 402) return 'insufficient_credit';
  if (code === 'connection_lost' && charged === 'no') return 'unreachable';
  if (code === 'outcome_unknown' && charged === 'yes') return 'unshowable';
  return code;
}

const stepOf = (problem) => STEPS[nameOf(problem)] ?? 'again';

/** Whether only a retry was refused: the outcome of the first attempt is not known yet. */
const isUnsettled = (problem) => problem.charged === 'unknown' && !['same', 'atRisk'].includes(stepOf(problem)) && problem.code !== 'untraceable';
const words = (problem) => t(`problem.${nameOf(problem)}`) ?? problem.title ?? t('receipt.unknown');

export function sentence(problem) {
  return isUnsettled(problem) ? t('problem.unsettled') : words(problem);
}

/** Whether it cost money, and the sentence: for a screen reader. */
export const spoken = (problem) => `${moneyOf(problem)}. ${sentence(problem)}`;

const moneyOf = ({ charged }) => t(`receipt.charged.${charged}`) ?? t('receipt.charged.unknown');

/**
 * The receipt of a problem, with a button for each of `offers` that makes sense for it.
 * `fresh`: announce it; `priceText`: the price of buying again at one press; `cost`: the price of the purchase itself.
 */
export function problemCard(problem, offers = {}, { fresh = false, priceText = '', cost = priceText } = {}) {
  const best = isUnsettled(problem) ? 'same' : stepOf(problem);
  const all = { ...offers, ...(best === 'reload' && { reload: () => location.reload() }) };
  const charged = t(`receipt.charged.${problem.charged}`) ? problem.charged : 'unknown';
  const offered = wanted(problem, best, all);
  const buttons = offered.map((offer) => offerButton(offer, all[offer], problem, { priceText, cost }));
  return element('div', { class: 'problem', 'data-charged': charged, role: fresh ? 'alert' : 'group' },
    element('p', { class: 'verdict' }, element('strong', { text: moneyOf(problem) }), charged === 'no' || !cost ? null : element('span', { text: cost })),
    element('p', { text: offered.includes('atRisk') ? t('problem.forgotten') : sentence(problem) }),
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
  if (offer === 'atRisk') return twice(`${t('offer.atRisk')} · ${cost}`, t('receipt.payTwice', cost), act);
  if (offer === 'same' && problem.code === 'unsent') return twice(`${t('receipt.unsent')} · ${cost}`, t('receipt.spend', cost), act);
  if (offer === 'retry') return twice(`${t('offer.again')} · ${cost}`, t('receipt.spend', cost), act);
  if (act.label) return button(act.label, act);
  const label = offer === 'again' && (priceText || cost) ? `${t('offer.again')} · ${priceText || cost}` : offer === 'reload' ? t('shell.reload') : t(`offer.${offer}`);
  const made = button(label, act);
  return ['edit', 'reload', 'drop'].includes(offer) ? made : countdown(made, label, problem);
}

/** The detail as a sentence, with the time when the budget renews in the person's own time. */
function sentenceOf({ detail, renewsAt }) {
  const time = renewsAt && new Date(renewsAt).toLocaleString(locale, { dateStyle: 'medium', timeStyle: 'short' });
  return detail[0].toUpperCase() + (time ? detail.replace(renewsAt, time) : detail).slice(1);
}

/** The faults of each field, or which budget it is and when it renews: a person needs them for the next step. */
function remarks(problem) {
  const { code, errors, detail, charged, at } = problem;
  if (errors?.length) {
    return element('ul', {}, ...errors.map(({ pointer, detail: wrong, code: fault }) => {
      const field = pointer?.split('/')[1];
      return element('li', { text: `${field ? `${t(`field.${field}`) ?? field}: ` : ''}${inWords(`fault.${fault}`, wrong) ?? fault}` });
    }));
  }
  if (code === 'budget_exhausted' && detail) return element('p', { class: 'hint' }, isEnglish ? `${sentenceOf(problem)} ` : null, element('a', { href: '#usage', text: t('receipt.budgets') }));
  if (charged === 'unknown' && at) return element('p', { class: 'hint', text: t('receipt.checked', new Date(at).toLocaleTimeString(locale)) });
  return null;
}

/** Folded away: for who has to find the cause. */
function details(problem) {
  const { code, detail, requestId, errors } = problem;
  const isShown = errors?.length || (code === 'budget_exhausted' && isEnglish);
  const lines = [
    isUnsettled(problem) && t('receipt.latest', words(problem)),
    !isShown && detail && sentenceOf(problem),
    requestId && t('receipt.code', code),
    requestId && t('receipt.request', requestId),
  ].filter(Boolean);
  if (!lines.length) return null;
  return element('details', {}, element('summary', { text: t('page.details') }), ...lines.map((text) => element('p', { class: 'hint', text })));
}

/** Counts down to the next possible attempt. The button stays a button and says how long. */
function countdown(made, label, { retryAfter, at }) {
  if (!retryAfter) return made;
  const from = (at ?? Date.now()) + retryAfter * 1000;
  const left = () => Math.ceil((from - Date.now()) / 1000);
  made.addEventListener('click', (event) => {
    if (left() <= 0) return;
    event.stopImmediatePropagation();
    announce(t('receipt.wait', left()));
  }, { capture: true });
  const tick = () => {
    made.textContent = left() > 0 ? t('receipt.waiting', label, left()) : label;
    if (left() > 0) setTimeout(tick, 1000);
  };
  tick();
  return made;
}
