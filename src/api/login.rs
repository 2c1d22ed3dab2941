//! `GET /bff/login` and its callback: signs browsers in at a login service. Failures are pages.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_TYPE, HeaderName, LOCATION, REFERRER_POLICY, SET_COOKIE,
};
use http::{HeaderValue, StatusCode};

use super::HandlerContext;
use crate::access::Credentials;
use crate::access::cookie::Transport;
use crate::access::oidc::{LOGIN_COOKIE_LIFETIME, LoginCallback};
use crate::api::validate;
use crate::gate::problem::{FORBIDDEN, INTERNAL, Problem};
use crate::gate::response::{self, Body, HandlerResult, Response};
use crate::gate::route::public_base;

pub(super) const LOGIN: &str = "/bff/login";
pub(super) const CALLBACK: &str = "/bff/login/callback";

pub(super) const NEEDS_HTTPS: &str = "sign-in needs https, because plain http would expose the token. Behind a TLS proxy, \
     list it in server.trusted_proxies and have it set X-Forwarded-Proto";

/// Sends the browser to the login service.
pub(super) async fn begin(cx: HandlerContext) -> HandlerResult {
    Ok(try_begin(&cx).await.unwrap_or_else(|problem| failure_page(&cx, problem)))
}

async fn try_begin(cx: &HandlerContext) -> HandlerResult {
    let call = &cx.call;
    let prefix = &cx.handlers.prefix;
    let redirect_uri = redirect_uri(cx)?;
    let return_path = validate::login_return(cx.query(), prefix)?;
    let cookie = call.transport.login_cookie(&call.head.headers);
    let start = cx.handlers.access.begin_login(cookie, &return_path, &redirect_uri).await?;
    let cookie = call.transport.set_login_cookie(&start.cookie, LOGIN_COOKIE_LIFETIME);
    see_other(&start.location, [cookie])
}

/// Opens a session for a user who comes back from the login service.
pub(super) async fn finish(cx: HandlerContext) -> HandlerResult {
    Ok(try_finish(&cx).await.unwrap_or_else(|problem| failure_page(&cx, problem)))
}

async fn try_finish(cx: &HandlerContext) -> HandlerResult {
    let call = &cx.call;
    let handlers = &cx.handlers;
    let headers = &call.head.headers;
    let redirect_uri = redirect_uri(cx)?;
    let callback = LoginCallback {
        query: cx.query().unwrap_or_default(),
        cookie: call.transport.login_cookie(headers),
        redirect_uri: &redirect_uri,
    };
    // The session of another user in this browser ends, if the cookie came along: after a redirect
    // from another site, browsers hold it back.
    let current = match call.transport.credentials(headers) {
        Credentials::Cookie(value) => Some(value),
        Credentials::Missing
        | Credentials::Token(_)
        | Credentials::User(_)
        | Credentials::Malformed => None,
    };
    let admit = |user: &_| handlers.me.limiter.take_login(user);
    let session = handlers.access.finish_login(&callback, current, &call.caller, admit).await?;
    let cookie = call.transport.set_cookie(&session.cookie, session.lifetime);
    see_other(&session.return_path, [cookie])
}

/// Returns the address that is registered at the login service.
fn redirect_uri(cx: &HandlerContext) -> Result<String, Problem> {
    let call = &cx.call;
    if call.transport == Transport::Plain {
        return Err(Problem::new(&FORBIDDEN).detail(NEEDS_HTTPS));
    }
    let is_https = call.transport == Transport::Https;
    let prefix = &*cx.handlers.prefix;
    let public_url = cx.handlers.public_url.as_deref();
    Ok(public_base(public_url, (prefix, is_https), &call.head.headers) + CALLBACK)
}

/// Clears the cookie of sign-ins that have begun.
pub(super) fn clear_login_cookie(transport: Transport) -> Option<HeaderValue> {
    transport.set_login_cookie("", Duration::ZERO)
}

fn see_other<const N: usize>(location: &str, cookies: [Option<HeaderValue>; N]) -> HandlerResult {
    let location = HeaderValue::try_from(location).map_err(|_| Problem::new(&INTERNAL))?;
    let mut response = response::with_headers(Response::default(), NOT_KEPT);
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(LOCATION, location);
    for cookie in cookies.into_iter().flatten() {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    Ok(response)
}

/// The address of a callback has a code, which no other site may see.
const NOT_KEPT: [(HeaderName, &str); 2] =
    [(CACHE_CONTROL, "no-store"), (REFERRER_POLICY, "no-referrer")];

/// Shows a problem to a person, with a way to try again.
fn failure_page(cx: &HandlerContext, problem: Problem) -> Response {
    let kind = problem.kind();
    let detail = problem.detail_text().unwrap_or(kind.title);
    let page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Not signed in</title>\
         <h1>You are not signed in</h1><p>{}.</p><p>{}</p>\
         <p><a href=\"{prefix}/bff/login\">Try again</a> · <a href=\"{prefix}/\">Back to the start</a></p>\
         <p><small><code>{}</code> · request {}</small></p></html>\n",
        capitalized(detail),
        kind.advice,
        kind.code,
        cx.call.id.as_str(),
        prefix = cx.handlers.prefix,
    );
    let response = response::from_problem(problem, cx.call.id.as_str());
    let response = response.map(|_| Body::from(Bytes::from(page)));
    let response = response::with_headers(response, NOT_KEPT);
    response::with_headers(response, [(CONTENT_TYPE, "text/html; charset=utf-8")])
}

/// Details are our own sentences, without markup.
fn capitalized(detail: &str) -> String {
    let mut letters = detail.trim_end_matches('.').chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}
