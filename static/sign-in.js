/** The sign-in: a member's token is sent once, and becomes a cookie that no script can read. */

import { announce, byId, element } from './core/dom.js';
import { sentence } from './core/problems.js';
import { post, read } from './core/site.js';

/** Asks until somebody has signed in; resolves with what `GET /bff/me` says. `why`: what ended the last one. */
export async function askWho(why) {
  const place = byId('sign-in');
  const isOffered = await offersLogins();
  return new Promise((done) => {
    const heading = element('h2', { id: 'sign-in-heading', tabindex: '-1', text: isOffered ? 'Sign in' : 'Not signed in' });
    const reason = element('p', { role: 'alert' });
    place.replaceChildren(element('div', { class: 'card' }, heading, reason, isOffered ? form(welcome) : elsewhere()));
    place.hidden = false;
    // An alert is heard when its words come, not when it comes with them.
    reason.textContent = why;
    reason.hidden = !why;
    (byId('token') ?? heading).focus();

    function welcome(me) {
      place.hidden = true;
      place.replaceChildren();
      announce(`Signed in as ${me.caller.name}`);
      done(me);
    }
  });
}

/** Ends a login that holds no more, if there is one; a server that knows no logins says so. */
async function offersLogins() {
  try {
    await post('/bff/logout', {});
  } catch (problem) {
    return problem.status !== 404;
  }
  return true;
}

function elsewhere() {
  return element('p', { text: 'This server expects the login of the web app that it belongs to. Sign in there; this page has no login of its own.' });
}

function form(welcome) {
  const field = element('input', {
    id: 'token', type: 'password', autocomplete: 'current-password', spellcheck: 'false', maxlength: 200,
    'aria-describedby': 'token-hint token-fault', input: () => say(''),
  });
  const fault = element('p', { id: 'token-fault', class: 'fault', role: 'alert' });
  const press = element('button', { type: 'submit', class: 'primary', text: 'Sign in' });
  const say = (text) => {
    fault.textContent = text;
    field.ariaInvalid = text ? 'true' : null;
  };
  let isAsking = false;
  const submit = async (event) => {
    event.preventDefault();
    if (isAsking) return;
    isAsking = true;
    press.textContent = 'Signing in …';
    try {
      const token = field.value.trim();
      const why = token ? await trouble(token, welcome) : 'Paste your token first.';
      if (!why) return;
      say(why);
      field.focus();
      field.select();
    } finally {
      isAsking = false;
      press.textContent = 'Sign in';
    }
  };
  return element('form', { novalidate: true, submit },
    element('div', { class: 'field' },
      element('label', { for: 'token', text: 'Your token' }), field,
      element('p', { id: 'token-hint', class: 'hint' }, 'It begins with ', element('code', { text: 'tg_' }),
        '. Whoever runs this service gives you one, and a new one if yours is lost. It is not kept in this browser.'), fault),
    press);
}

/** Signs in; what went wrong, in words, or null. */
async function trouble(token, welcome) {
  try {
    await post('/bff/login', { token });
  } catch (problem) {
    if (problem.code === 'invalid_credentials' || problem.code === 'invalid_request') {
      return 'No member has this token. Look whether all of it was copied; it may also have been revoked.';
    }
    if (problem.code === 'rate_limited') return `Too many tokens were wrong. Try again in ${problem.retryAfter ?? 60} seconds.`;
    return [sentence(problem), problem.detail].filter(Boolean).join(' ');
  }
  try {
    welcome(await read('/bff/me'));
  } catch (problem) {
    return problem.status === 401 ? 'This browser did not keep the sign-in: it takes no cookies from this address.' : sentence(problem);
  }
  return null;
}
