/** The sign-in: by a login service, or by a member's token, which is sent once for a cookie that scripts cannot read. */

import { announce, button, byId, element } from './core/dom.js';
import { isEnglish, t } from './core/format.js';
import { sentence } from './core/problems.js';
import { post, read } from './core/site.js';

/**
 * Shows the form until a member has signed in; resolves with the answer of `GET /bff/me`. `why` says why the last session ended,
 * `contact` who hands out tokens, `invite` the token of an invite link. `login` is the host of the login service, which sends people back to this page.
 */
export async function askWho(why, { contact, login, invite }) {
  const place = byId('sign-in');
  const isOffered = login || await offersLogins();
  return new Promise((done) => {
    const heading = element('h2', { id: 'sign-in-heading', tabindex: '-1', text: isOffered ? t('signIn.signIn') : t('signIn.notSignedIn') });
    const reason = element('p', { role: 'alert' });
    place.replaceChildren(element('div', { class: 'card' }, heading, reason,
      login ? button(t('signIn.signInWith', login), toLogin, 'primary') : isOffered ? form(welcome, contact, invite) : elsewhere()));
    place.hidden = false;
    // A screen reader announces an alert when its text changes, not when it is added.
    reason.textContent = why;
    reason.hidden = !why;
    ((invite ? null : byId('token')) ?? place.querySelector('.primary') ?? heading).focus();

    function welcome(me) {
      place.hidden = true;
      place.replaceChildren();
      announce(t('signIn.signedIn', me.caller.name));
      done(me);
    }
  });
}

/** Signs the holder of a link in. Returns the answer of `GET /bff/me`, or a problem that tells the person `why`. */
export async function openLink(token) {
  try {
    await post('/bff/login', { token });
    return await read('/bff/me');
  } catch (problem) {
    return Object.assign(problem, { why: problem.detail ? t('signIn.notOpened', problem.detail) : problem.message });
  }
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
  return element('p', { text: t('signIn.elsewhere') });
}

function form(welcome, contact, invite) {
  const field = element('input', {
    id: 'token', type: 'password', autocomplete: 'current-password', spellcheck: 'false', maxlength: 200, value: invite,
    'aria-describedby': 'token-hint token-fault', input: () => say(''),
  });
  const reveal = button(t('signIn.show'), () => {
    field.type = field.type === 'password' ? 'text' : 'password';
    reveal.textContent = field.type === 'password' ? t('signIn.show') : t('signIn.hide');
  }, 'quiet small');
  const fault = element('p', { id: 'token-fault', class: 'fault', role: 'alert' });
  const press = element('button', { type: 'submit', class: 'primary', text: t('signIn.signIn') });
  const say = (text) => {
    fault.textContent = text;
    field.ariaInvalid = text ? 'true' : null;
  };
  let isAsking = false;
  const submit = async (event) => {
    event.preventDefault();
    if (isAsking) return;
    isAsking = true;
    press.textContent = t('signIn.signingIn');
    try {
      const token = field.value.trim();
      const why = token ? await trouble(token, welcome) : t('signIn.noToken');
      if (!why) return;
      say(why);
      field.focus();
      field.select();
    } finally {
      isAsking = false;
      press.textContent = t('signIn.signIn');
    }
  };
  return element('form', { novalidate: true, submit },
    invite ? element('p', { text: t('signIn.invited') }) : null,
    element('div', { class: 'field' },
      element('label', { for: 'token', text: t('signIn.token') }), element('div', { class: 'secret' }, field, reveal),
      element('p', { id: 'token-hint', class: 'hint' },
        t('signIn.begins'), element('code', { text: 'tg_' }), t('signIn.unkept'), ' ', t('signIn.contact', contact || undefined)), fault),
    press);
}

/** Signs in. Returns what went wrong, in words, or null. */
async function trouble(token, welcome) {
  try {
    await post('/bff/login', { token });
  } catch (problem) {
    if (problem.code === 'invalid_credentials' || problem.code === 'invalid_request') {
      return t('signIn.wrongToken');
    }
    if (problem.code === 'rate_limited') return t('signIn.tooMany', problem.retryAfter ?? 60);
    return [sentence(problem), isEnglish && problem.detail].filter(Boolean).join(' ');
  }
  try {
    welcome(await read('/bff/me'));
  } catch (problem) {
    return problem.status === 401 ? t('signIn.noCookie') : sentence(problem);
  }
  return null;
}
