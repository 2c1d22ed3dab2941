/** The sign-in: by a login service, or by a member's token, which is sent once for a cookie that scripts cannot read. */

import { announce, button, byId, element } from './core/dom.js';
import { sentence } from './core/problems.js';
import { post, read } from './core/site.js';

const TEXT = {
  signIn: 'Sign in',
  signInWith: (host) => `Sign in with ${host}`,
  signingIn: 'Signing in …',
  signedIn: (name) => `Signed in as ${name}`,
  notSignedIn: 'Not signed in',
  elsewhere: 'This server uses the sign-in of another web app. Sign in there, then come back.',
  token: 'Your token',
  show: 'Show',
  hide: 'Hide',
  tokenHint: ['It starts with ', 'tg_', '. This browser does not store it.'],
  invited: 'You are invited. Keep your token or the link: you need it to sign in elsewhere.',
  contact: (name) => `For a token, ask ${name}.`,
  admin: 'your admin',
  noToken: 'Paste your token first.',
  wrongToken: 'No member has this token. Check that you copied all of it. It may also have been revoked.',
  tooMany: (seconds) => `Too many wrong tokens. Try again in ${seconds} seconds.`,
  noCookie: 'This browser blocked the sign-in cookie. Allow cookies for this address and try again.',
};

/**
 * Shows the form until a member has signed in; resolves with the answer of `GET /bff/me`. `why` says why the last session ended,
 * `contact` who hands out tokens, `invite` the token of an invite link. `login` is the host of the login service, which sends people back to this page.
 */
export async function askWho(why, { contact, login, invite }) {
  const place = byId('sign-in');
  const isOffered = login || await offersLogins();
  return new Promise((done) => {
    const heading = element('h2', { id: 'sign-in-heading', tabindex: '-1', text: isOffered ? TEXT.signIn : TEXT.notSignedIn });
    const reason = element('p', { role: 'alert' });
    place.replaceChildren(element('div', { class: 'card' }, heading, reason,
      login ? button(TEXT.signInWith(login), toLogin, 'primary') : isOffered ? form(welcome, contact, invite) : elsewhere()));
    place.hidden = false;
    // A screen reader announces an alert when its text changes, not when it is added.
    reason.textContent = why;
    reason.hidden = !why;
    ((invite ? null : byId('token')) ?? place.querySelector('.primary') ?? heading).focus();

    function welcome(me) {
      place.hidden = true;
      place.replaceChildren();
      announce(TEXT.signedIn(me.caller.name));
      done(me);
    }
  });
}

function toLogin() {
  const { pathname, search, hash } = location;
  location.assign(`bff/login?return=${encodeURIComponent(pathname + search + hash)}`);
}

/** Ends an expired session, if there is one. Returns false if the server has no sign-in of its own. */
async function offersLogins() {
  try {
    await post('/bff/logout', {});
  } catch (problem) {
    return problem.status !== 404;
  }
  return true;
}

function elsewhere() {
  return element('p', { text: TEXT.elsewhere });
}

function form(welcome, contact, invite) {
  const field = element('input', {
    id: 'token', type: 'password', autocomplete: 'current-password', spellcheck: 'false', maxlength: 200, value: invite,
    'aria-describedby': 'token-hint token-fault', input: () => say(''),
  });
  const reveal = button(TEXT.show, () => {
    field.type = field.type === 'password' ? 'text' : 'password';
    reveal.textContent = field.type === 'password' ? TEXT.show : TEXT.hide;
  }, 'quiet small');
  const fault = element('p', { id: 'token-fault', class: 'fault', role: 'alert' });
  const press = element('button', { type: 'submit', class: 'primary', text: TEXT.signIn });
  const say = (text) => {
    fault.textContent = text;
    field.ariaInvalid = text ? 'true' : null;
  };
  let isAsking = false;
  const submit = async (event) => {
    event.preventDefault();
    if (isAsking) return;
    isAsking = true;
    press.textContent = TEXT.signingIn;
    try {
      const token = field.value.trim();
      const why = token ? await trouble(token, welcome) : TEXT.noToken;
      if (!why) return;
      say(why);
      field.focus();
      field.select();
    } finally {
      isAsking = false;
      press.textContent = TEXT.signIn;
    }
  };
  return element('form', { novalidate: true, submit },
    invite ? element('p', { text: TEXT.invited }) : null,
    element('div', { class: 'field' },
      element('label', { for: 'token', text: TEXT.token }), element('div', { class: 'secret' }, field, reveal),
      element('p', { id: 'token-hint', class: 'hint' },
        TEXT.tokenHint[0], element('code', { text: TEXT.tokenHint[1] }), TEXT.tokenHint[2], ' ', TEXT.contact(contact || TEXT.admin)), fault),
    press);
}

/** Signs in. Returns what went wrong, in words, or null. */
async function trouble(token, welcome) {
  try {
    await post('/bff/login', { token });
  } catch (problem) {
    if (problem.code === 'invalid_credentials' || problem.code === 'invalid_request') {
      return TEXT.wrongToken;
    }
    if (problem.code === 'rate_limited') return TEXT.tooMany(problem.retryAfter ?? 60);
    return [sentence(problem), problem.detail].filter(Boolean).join(' ');
  }
  try {
    welcome(await read('/bff/me'));
  } catch (problem) {
    return problem.status === 401 ? TEXT.noCookie : sentence(problem);
  }
  return null;
}
