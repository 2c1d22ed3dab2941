/** One stream of events for all jobs that are open, and the word when there can be none. */

import { Refusal } from './api.js';

/** As many jobs as one stream takes. */
const MOST = 50;

let stream = null;
let followed = '';

/**
 * Follows these jobs and no others from now on. Each call takes the place of the one before.
 * @param {string[]} ids
 * @param {{told: (id: string, body: any) => void, failed: (id: string, problem: Refusal) => void, lost: () => void}} listener
 */
export function follow(ids, { told, failed, lost }) {
  const query = ids.slice(-MOST).map((id) => `request_id=${encodeURIComponent(id)}`).join('&');
  if (query === followed) return;
  stream?.close();
  followed = query;
  stream = query ? new EventSource(`/bff/events?${query}`) : null;
  if (!stream) return;
  const mine = stream;
  mine.addEventListener('job', ({ data }) => {
    const { request_id: id, status } = JSON.parse(data);
    if (status) told(id, status);
  });
  mine.addEventListener('problem', ({ data }) => {
    const { request_id: id, ...facts } = JSON.parse(data);
    // A problem that names no job is the stream's own: it says when to come again, and the browser does.
    if (id) failed(id, new Refusal(facts));
  });
  mine.addEventListener('error', () => {
    // While it connects again by itself, nothing is lost.
    if (mine.readyState !== EventSource.CLOSED || mine !== stream) return;
    stream = null;
    followed = '';
    lost();
  });
}
