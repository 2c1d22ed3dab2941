//! `/bff/…` and tollgate's other own endpoints.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HeaderName, LINK, SET_COOKIE};
use http::{HeaderValue, StatusCode};
use serde_json::json;

use super::{HandlerContext, login, purchases, tokens};
use crate::access::cookie::{Transport, check_csrf_header};
use crate::access::{Credentials, LOGIN_LIFETIME};
use crate::api::reports::jobs;
use crate::api::validate;
use crate::gate::Call;
use crate::gate::problem::{ALL, Charged, FORBIDDEN, Kind, NOT_FOUND, Problem};
use crate::gate::response::{self, HandlerResult, Response};
use crate::gateway::contract::member::Role;
use crate::video::events::{self, EventsRequest};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Links to the API description (RFC 8631).
const SERVICE_DESC: &str = "rel=\"service-desc\"";

pub(super) async fn jobs(cx: HandlerContext) -> HandlerResult {
    let ids = validate::job_ids(cx.query())?;
    jobs::list(&cx.handlers.jobs, &cx.call.caller, ids).await
}

pub(super) async fn events(cx: HandlerContext) -> HandlerResult {
    let named = validate::job_ids(cx.query())?;
    let Call { caller, session, head, id, .. } = &cx.call;
    let last_event_id = head.headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
    let last_event_id = last_event_id.unwrap_or_default();
    let request_id = id.as_str();
    let prefix = &*cx.handlers.prefix;
    let request = EventsRequest { caller, session, last_event_id, named, request_id, prefix };
    events::stream(&cx.handlers.jobs, request).await
}

pub(super) async fn remove_video(cx: HandlerContext) -> HandlerResult {
    let request_id = validate::video_status(cx.query())?;
    let is_admin = cx.call.session.role == Role::Admin;
    cx.handlers.jobs.remove_video(&request_id, &cx.call.caller, is_admin).await?;
    Ok(no_content([]))
}

pub(super) async fn catalog(cx: HandlerContext) -> HandlerResult {
    let ledger = cx.handlers.ledger_name.text();
    let document = cx.handlers.catalog.document(cx.may_buy(), Some(&ledger));
    let mut response = cx.for_this_caller(json_document(&document));
    if cfg!(feature = "openapi") {
        let link = format!("<{}/bff/openapi.json>; {SERVICE_DESC}", cx.handlers.prefix);
        response.headers_mut().extend(HeaderValue::try_from(link).map(|link| (LINK, link)));
    }
    let name = cx.handlers.ledger_name.header();
    response.headers_mut().insert(purchases::TOLLGATE_LEDGER, name);
    Ok(response)
}

pub(super) fn json_document(json: &Bytes) -> Response {
    let response = response::from_bytes(StatusCode::OK, "application/json", json.clone());
    response::with_headers(response, [(CACHE_CONTROL, "no-cache")])
}

pub(super) async fn me(cx: HandlerContext) -> HandlerResult {
    cx.handlers.me.report(&cx.call.caller, &cx.call.session).await
}

pub(super) async fn usage(cx: HandlerContext) -> HandlerResult {
    let query = validate::usage_days(cx.query())?;
    cx.report(cx.handlers.reports.usage(&cx.call.caller, query)).await
}

pub(super) async fn log_in(cx: HandlerContext) -> HandlerResult {
    let access = &cx.handlers.access;
    let call = &cx.call;
    if access.links().is_err() {
        access.members()?;
    }
    if call.transport == Transport::Plain {
        return Err(Problem::new(&FORBIDDEN).detail(login::NEEDS_HTTPS));
    }
    let login = validate::log_in(&call.body)?;
    // The new session replaces the browser's current one.
    let current = session_cookie(&cx)?;
    if access.is_link(login.get()) {
        tokens::admit(&cx)?;
        let opened = access.open_link(login.get(), current, &call.caller).await?;
        return Ok(no_content([call.transport.set_cookie(&opened.cookie, opened.lifetime)]));
    }
    let admit = |member: &_| cx.handlers.me.limiter.take_login(member);
    let cookie = access.log_in(login.get(), current, &call.caller, admit).await?;
    Ok(no_content([call.transport.set_cookie(&cookie, LOGIN_LIFETIME)]))
}

pub(super) async fn log_out(cx: HandlerContext) -> HandlerResult {
    let access = &cx.handlers.access;
    if !access.has_logins() {
        access.members()?;
    }
    let end = match session_cookie(&cx)? {
        Some(value) => access.log_out(value).await?,
        None => None,
    };
    let transport = cx.call.transport;
    let session = transport.set_cookie("", Duration::ZERO);
    let login = access.members().is_err().then(|| login::clear_login_cookie(transport)).flatten();
    let mut response = no_content([session, login]);
    if let Some(address) = end {
        let mut body = response::json(StatusCode::OK, &json!({ "continue": address }));
        body.headers_mut().extend(response.headers_mut().drain());
        response = body;
    }
    Ok(response)
}

/// Returns the session cookie, which needs the CSRF header beside it.
fn session_cookie(cx: &HandlerContext) -> Result<Option<&str>, Problem> {
    let headers = &cx.call.head.headers;
    let credentials = cx.call.transport.credentials(headers);
    if credentials != Credentials::Missing {
        check_csrf_header(headers)?;
    }
    // With several cookies, none counts.
    Ok(if let Credentials::Cookie(value) = credentials { Some(value) } else { None })
}

pub(super) fn no_content<const N: usize>(cookies: [Option<HeaderValue>; N]) -> Response {
    let mut response = response::with_headers(Response::default(), [(CACHE_CONTROL, "no-store")]);
    *response.status_mut() = StatusCode::NO_CONTENT;
    for cookie in cookies.into_iter().flatten() {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}

pub(super) fn healthz() -> Response {
    response::from_bytes(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".into())
}

pub(super) async fn serve_healthz(_: HandlerContext) -> HandlerResult {
    Ok(healthz())
}

/// Serves the page of one problem code, which is the `type` of its problems.
pub(super) async fn problem_page(cx: HandlerContext) -> HandlerResult {
    problem(cx.call.head.uri.path())
}

fn problem(path: &str) -> HandlerResult {
    let code = path.rsplit('/').next().unwrap_or_default();
    let kind = ALL.iter().find(|kind| kind.code == code);
    let kind = kind.ok_or_else(|| Problem::new(&NOT_FOUND))?;
    Ok(response::from_bytes(StatusCode::OK, "text/html; charset=utf-8", describe(kind).into()))
}

fn describe(kind: &Kind) -> String {
    let charged = match kind.charged {
        Charged::No => "Nothing was charged.",
        Charged::Yes => "It was charged.",
        Charged::Unknown => "It may have been charged.",
    };
    let Kind { status, code, title, advice, .. } = kind;
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{code}</title>\
         <h1>{code}</h1><p>{title}. Status {}. {charged}</p><p>{advice}</p></html>\n",
        status.as_u16()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_code_has_a_page_and_others_have_none() {
        for kind in ALL {
            assert!(problem(&format!("/problems/{}", kind.code)).is_ok());
        }
        for path in ["/problems/", "/problems/x", "/problems/internal/../x"] {
            assert!(problem(path).is_err(), "{path}");
        }
    }
}
