/** Tells a person who looks elsewhere that a video is finished: in the title and, if they want it, by a notification. */

import { announce, byId } from '../core/dom.js';
import { choice } from '../core/store.js';
import { TEXT } from './strings.js';

let unseen = 0;
const isSeen = () => document.visibilityState === 'visible' && !byId('view-video').hidden;

/** Begins; nothing is asked of the person before they click. */
export function startAlerts() {
  // The shell sets the title without the badge.
  new MutationObserver(badge).observe(document.querySelector('title'), { childList: true });
  new MutationObserver(seen).observe(byId('view-video'), { attributeFilter: ['hidden'] });
  document.addEventListener('visibilitychange', seen);
  const toggle = byId('jobs-notify');
  toggle.hidden = !('Notification' in globalThis) || !isSecureContext;
  toggle.addEventListener('click', turn);
  showToggle();
}

/** A video has just ended. `first`: of several tabs, this one notifies. */
export function alertOfEnd(job, text, first) {
  if (isSeen()) return;
  unseen += 1;
  badge();
  if (!first || !isOn()) return;
  try {
    const note = new Notification(text, { body: job.payload.prompt.slice(0, 120), tag: job.id });
    note.addEventListener('click', () => {
      window.focus();
      location.hash = 'video';
      note.close();
    });
  } catch { /* some phones notify from service workers only; the title has the badge */ }
}

function seen() {
  if (!unseen || !isSeen()) return;
  unseen = 0;
  badge();
}

const BADGE = /^\(\d+\) /;

function badge() {
  const bare = document.title.replace(BADGE, '');
  const wanted = unseen ? `(${unseen}) ${bare}` : bare;
  if (document.title !== wanted) document.title = wanted;
}

const isOn = () => choice.get('notify') === 'on' && globalThis.Notification?.permission === 'granted';

async function turn() {
  if (isOn()) {
    choice.set('notify', 'off');
    announce(TEXT.notificationsOff);
  } else if ((await Notification.requestPermission()) === 'granted') {
    choice.set('notify', 'on');
    announce(TEXT.notificationsOn);
  }
  showToggle();
}

function showToggle() {
  byId('jobs-notify').ariaPressed = isOn();
  const isBlocked = globalThis.Notification?.permission === 'denied';
  byId('jobs-notify-hint').textContent = isBlocked ? TEXT.notificationsBlocked : '';
}
