/** Exports conversations as JSON or Markdown, and imports JSON. */

import { announce, notice } from '../core/dom.js';
import { price } from '../core/format.js';
import { conversations } from '../core/store.js';
import { TEXT } from './chat.js';

const FORMAT = 'tollgate-conversations';
const VERSION = 1;
/** Larger files are rejected. In bytes. */
const LARGEST = 200 * 1024 * 1024;
const STATES = ['done', 'refused', 'charged', 'unknown'];
const NOT_KNOWN = { state: 'unknown', problem: { code: 'untraceable', charged: 'unknown' } };

/** Saves these conversations as a file, without the keys of purchases: a key gives access to its answer. */
export function saveJson(all, name) {
  const plain = all.map(({ id, title, at, system, turns, aside = [] }) => ({
    id, title, at, ...(system && { system }), turns: turns.map(outgoing),
    aside: aside.map((branch) => ({ at: branch.at, after: turns.findIndex(({ key }) => key === branch.after), turns: branch.turns.map(outgoing) })),
  }));
  save(JSON.stringify({ format: FORMAT, version: VERSION, exported: new Date().toISOString(), conversations: plain }, null, 1), name, 'json');
}

const outgoing = ({ question, answer, model, costMicros, at, state, problem }) => ({
  question, answer, model, costMicros, at, state: STATES.includes(state) ? state : 'unknown',
  problem: problem ? { code: problem.code, charged: problem.charged } : null,
});

/** Saves one conversation to be read. */
export const saveMarkdown = (conversation) => save(asMarkdown(conversation), conversation.title, 'md');

/** Hands one conversation to another app, if the person picks one. */
export async function share(conversation) {
  try {
    await navigator.share({ title: conversation.title || TEXT.exported.untitled, text: asMarkdown(conversation) });
  } catch (error) {
    if (error.name !== 'AbortError') notice(TEXT.notShared);
  }
}

/** One conversation with the model and the price of each answer. */
function asMarkdown({ title, turns }) {
  const parts = turns.flatMap(({ question, answer, model, costMicros, at }) => [
    `## ${TEXT.exported.question(new Date(at).toLocaleString())}`, question,
    `## ${TEXT.exported.answer(model, price(costMicros))}`, answer ?? TEXT.exported.noAnswer,
  ]);
  return `${[`# ${title || TEXT.exported.untitled}`, ...parts].join('\n\n')}\n`;
}

function save(text, name, ending) {
  const plain = (name || TEXT.fileNames.one).replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60) || TEXT.fileNames.one;
  saveFile(text, `${plain}.${ending}`, ending === 'md' ? 'text/markdown' : 'application/json');
}

/** Hands a text to the browser as a download. */
export function saveFile(text, name, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement('a');
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
  announce(TEXT.saved(name));
}

/** Imports a file's conversations and says how many. It overwrites nothing. */
export async function importFile(file) {
  const refuse = (why) => notice(TEXT.notImported(file.name, why), null, 'import');
  if (file.size > LARGEST) return refuse(TEXT.tooLarge);
  let incoming;
  try {
    incoming = checked(JSON.parse(await file.text()));
  } catch (error) {
    return refuse(error instanceof Fault ? error.message : TEXT.notJson);
  }
  const sum = { added: 0, there: 0, copied: 0 };
  for (const conversation of incoming) {
    const before = await conversations.one(conversation.id);
    const isSame = before && fingerprint(before) === fingerprint(conversation);
    if (isSame) {
      sum.there += 1;
      continue;
    }
    const id = before ? `${Date.now()}-${Math.random()}` : conversation.id;
    if (!(await conversations.put({ ...conversation, id, title: before ? TEXT.exported.copyOf(conversation.title) : conversation.title }))) {
      return notice(TEXT.noRoom, null, 'import');
    }
    sum[before ? 'copied' : 'added'] += 1;
  }
  const parts = TEXT.importedParts(sum.added, sum.there, sum.copied).filter(Boolean).join(', ');
  notice(TEXT.imported(file.name, parts), null, 'import');
}

const fingerprint = ({ title, turns }) => JSON.stringify([title, turns.map(({ question, answer, model, at }) => [question, answer, model, at])]);

class Fault extends Error {}

/** The conversations of an export. Throws a `Fault` that names the wrong field. */
function checked(file) {
  if (file?.format !== FORMAT) throw new Fault(TEXT.notOurs);
  if (file.version !== VERSION) throw new Fault(TEXT.otherVersion(file.version, VERSION));
  const all = demand(Array.isArray, file.conversations, 'conversations', 'a list');
  return all.map((one, place) => {
    const where = `conversations[${place}]`;
    demand(isObject, one, where, 'an object');
    const turns = demand(Array.isArray, one.turns, `${where}.turns`, 'a list').map((turn, at) => incomingTurn(turn, `${where}.turns[${at}]`));
    const aside = demand(Array.isArray, one.aside ?? [], `${where}.aside`, 'a list').map((branch, at) => {
      const here = `${where}.aside[${at}]`;
      demand(isObject, branch, here, 'an object');
      const those = demand(Array.isArray, branch.turns, `${here}.turns`, 'a list').map((turn, which) => incomingTurn(turn, `${here}.turns[${which}]`));
      return { id: crypto.getRandomValues(new Uint32Array(2)).join('-'), after: turns[branch.after]?.key ?? null, at: demand(isTime, branch.at, `${here}.at`, 'a time'), turns: those };
    });
    return {
      id: demand(isText, one.id, `${where}.id`, 'text'), title: demand(isText, one.title, `${where}.title`, 'text'),
      at: demand(isTime, one.at, `${where}.at`, 'a time'), system: demand(isText, one.system ?? '', `${where}.system`, 'text'), turns, aside,
    };
  });
}

function incomingTurn(turn, where) {
  demand(isObject, turn, where, 'an object');
  const made = {
    // No key of a purchase: an imported answer can be read, and never asked for.
    key: `imported-${crypto.getRandomValues(new Uint32Array(3)).join('-')}`, ledger: null,
    question: demand(isText, turn.question, `${where}.question`, 'text'),
    answer: turn.answer === null ? null : demand(isText, turn.answer, `${where}.answer`, 'text or null'),
    model: demand(isText, turn.model, `${where}.model`, 'text'),
    costMicros: demand(isAmount, turn.costMicros ?? turn.tollMicros, `${where}.costMicros`, 'a whole number of micro-dollars'),
    at: demand(isTime, turn.at, `${where}.at`, 'a time'),
    state: demand((state) => STATES.includes(state), turn.state, `${where}.state`, `one of ${STATES.join(', ')}`),
    problem: null,
  };
  if (made.state === 'done') return { ...made, answer: demand(isText, turn.answer, `${where}.answer`, 'text') };
  if (made.state === 'unknown' || !isText(turn.problem?.code)) return { ...made, ...NOT_KNOWN };
  return { ...made, problem: { code: turn.problem.code, charged: made.state === 'refused' ? 'no' : 'yes' } };
}

function demand(holds, value, where, wanted) {
  if (holds(value)) return value;
  throw new Fault(TEXT.expected(where, wanted));
}

const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
const isText = (value) => typeof value === 'string';
const isAmount = (value) => Number.isSafeInteger(value) && value >= 0;
const isTime = (value) => Number.isSafeInteger(value) && !Number.isNaN(new Date(value).getTime());
