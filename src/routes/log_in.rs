//! `POST /bff/login` and `POST /bff/logout`: a member's token becomes a browser's cookie, and ends.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, SET_COOKIE};
use http::{HeaderValue, StatusCode};

use crate::access::cookie::unmeant;
use crate::access::{Access, Admit, Shown};
use crate::answer::{Answer, Body};
use crate::downstream::Call;
use crate::problem::{FORBIDDEN, Problem};
use crate::validate;

/// Opens a login for the holder of the token in the body, as often as `admit` lets it.
pub(super) async fn open(
    access: &Access,
    admit: &Admit,
    call: &Call<Bytes>,
) -> Result<Answer, Problem> {
    access.logins()?;
    if !call.way.is_safe() {
        return Err(Problem::new(&FORBIDDEN).detail(
            "nobody signs in over plain http, where others can read along: open the page by https. \
             Behind a TLS front-end, list it in server.trusted_proxies, and have it set \
             X-Forwarded-Proto",
        ));
    }
    let asked = validate::log_in(&call.body)?;
    let shown = call.way.carried(&call.head.headers);
    if shown != Shown::Nothing
        && let Some(problem) = unmeant(&call.head.headers)
    {
        // It would end the login that the browser has.
        return Err(problem);
    }
    // If there are several, nobody can say which of them was this browser's login.
    let carried = if let Shown::Login(value) = shown { Some(value) } else { None };
    let opened = access.log_in(&asked.get().token, carried, &call.caller, admit).await?;
    Ok(done(call.way.set(&opened.value, opened.lasts)))
}

/// Ends the login that the browser carries, if it carries one.
pub(super) async fn end(access: &Access, call: &Call<Bytes>) -> Result<Answer, Problem> {
    access.logins()?;
    let headers = &call.head.headers;
    let carried = call.way.carried(headers);
    if carried != Shown::Nothing
        && let Some(problem) = unmeant(headers)
    {
        return Err(problem);
    }
    if let Shown::Login(value) = carried {
        access.log_out(value).await?;
    }
    Ok(done(call.way.clear()))
}

fn done(cookie: Option<HeaderValue>) -> Answer {
    let mut answer = Answer::new(Body::empty());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.extend(cookie.map(|cookie| (SET_COOKIE, cookie)));
    answer
}
