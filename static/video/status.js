/** Reads what the service says of a video. The contract does not show that body: its words are settings, and guesses. */

/**
 * @param {any} body the status body, as it came
 * @param {{finished: string[], failed: string[], result: string[]}} words the catalog's `jobs`
 * @returns {{state: string | null, phase: 'finished' | 'failed' | 'open', percent: number | null, address: string | null}}
 */
export function understand(body, { finished, failed, result }) {
  const state = [field(body, 'status'), field(body, 'state')].find((value) => typeof value === 'string') ?? null;
  const address = result.map((pointer) => at(body, pointer)).map(webAddress).find(Boolean) ?? null;
  const word = state?.toLowerCase();
  // An unknown word counts as still running, never as failed.
  const phase = among(finished, word) || (state === null && address) ? 'finished' : among(failed, word) ? 'failed' : 'open';
  return { state, phase, percent: percentOf(field(body, 'progress')), address };
}

/** Why it failed, where the body has a text for that, or null. */
export function reason(body) {
  const texts = [field(body, 'error'), field(body, 'message'), field(body, 'reason')]
    .flatMap((value) => [value, field(value, 'message')]);
  return texts.find((text) => typeof text === 'string' && text.trim())?.slice(0, 500) ?? null;
}

/** The name of the file: the first words of the prompt, the day, and the extension of its address. */
export function fileName({ payload, at: ordered }, address) {
  const words = payload.prompt.toLowerCase().match(/[\p{L}\p{N}\p{M}]+/gu) ?? [];
  const start = [...words.slice(0, 8).join('-')].slice(0, 60).join('').replace(/-$/, '') || 'video';
  // Swedes write a day like this: 2026-01-31.
  const day = new Date(ordered).toLocaleDateString('sv');
  const ending = /\.(mp4|webm|mov|m4v|ogv|gif)$/i.exec(new URL(address).pathname)?.[1].toLowerCase() ?? 'mp4';
  return `${start}-${day}.${ending}`;
}

const isObject = (value) => value !== null && typeof value === 'object';

/** The value of the outermost field of this name, in any case of letters. */
function field(body, wanted) {
  return isObject(body) ? Object.entries(body).find(([name]) => name.toLowerCase() === wanted)?.[1] : undefined;
}

const among = (words, word) => words.some((one) => one.toLowerCase() === word);

/** The value at a JSON pointer (RFC 6901). */
function at(body, pointer) {
  return pointer.split('/').slice(1).map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'))
    .reduce((value, part) => (isObject(value) && Object.hasOwn(value, part) ? value[part] : undefined), body);
}

/** A whole address: a relative one would lead to this page's own host. */
function webAddress(value) {
  if (typeof value !== 'string' || !URL.canParse(value)) return null;
  const { protocol, href } = new URL(value);
  return protocol === 'https:' || protocol === 'http:' ? href : null;
}

/** Below 1 it is a share of one, from 1 on a percentage: while something runs, 1 is not all of it. */
function percentOf(progress) {
  if (typeof progress !== 'number' || !(progress >= 0 && progress <= 100)) return null;
  return Math.round(progress < 1 ? progress * 100 : progress);
}
