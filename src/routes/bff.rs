//! `/bff/…` and the few other endpoints that are tollgate's own: jobs, reports, logins, documents.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HeaderName, LINK, SET_COOKIE};
use http::request::Parts;
use http::{HeaderValue, StatusCode};

use super::{HandlerContext, assets, purchases};
use crate::access::Credentials;
use crate::access::cookie::csrf_header_missing;
use crate::jobs::events::{self, EventStreamRequest};
use crate::problem::{ALL, Charged, FORBIDDEN, Kind, NOT_FOUND, Problem};
use crate::reports::jobs;
use crate::response::{self, Body, Response};
use crate::validate;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Where programs find the whole API (RFC 8631).
const SERVICE_DESC: &str = "</bff/openapi.json>; rel=\"service-desc\"";

pub(super) async fn jobs(cx: HandlerContext) -> Result<Response, Problem> {
    let named = validate::job_ids(cx.query())?;
    jobs::list(&cx.handlers.jobs, &cx.call.caller, named).await
}

pub(super) async fn events(cx: HandlerContext) -> Result<Response, Problem> {
    let named = validate::job_ids(cx.query())?;
    let call = &cx.call;
    let last = call.head.headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
    let last_event_id = last.unwrap_or_default();
    let (caller, standing, id) = (&call.caller, &call.session, call.id.as_str());
    let listener = EventStreamRequest { caller, session: standing, last_event_id, id };
    events::stream(&cx.handlers.jobs, listener, named).await
}

/// `GET /bff/catalog`. It is asked for anew each time: prices and mode can change with a restart.
pub(super) async fn catalog(cx: HandlerContext) -> Result<Response, Problem> {
    let mut answer =
        response::with_headers(json_document(&cx.handlers.catalog), [(LINK, SERVICE_DESC)]);
    let name = cx.handlers.ledger_name.clone();
    answer.headers_mut().insert(purchases::TOLLGATE_LEDGER, name);
    Ok(answer)
}

pub(super) async fn openapi(cx: HandlerContext) -> Result<Response, Problem> {
    let answer = json_document(&cx.handlers.openapi);
    Ok(response::with_headers(answer, response::CROSS_ORIGIN_HEADERS))
}

fn json_document(json: &Bytes) -> Response {
    let answer = response::from_bytes(StatusCode::OK, "application/json", json.clone());
    response::with_headers(answer, [(CACHE_CONTROL, "no-cache")])
}

pub(super) async fn usage(cx: HandlerContext) -> Result<Response, Problem> {
    let query = validate::usage_days(cx.query())?;
    cx.report(cx.handlers.reports.usage(&cx.call.caller, query)).await
}

pub(super) async fn admin_usage(cx: HandlerContext) -> Result<Response, Problem> {
    let query = validate::admin_usage(cx.query())?;
    cx.report(cx.handlers.reports.admin_usage(query)).await
}

pub(super) async fn log_in(cx: HandlerContext) -> Result<Response, Problem> {
    let (access, call) = (&cx.handlers.access, &cx.call);
    access.members()?;
    if !call.transport.allows_cookies() {
        return Err(Problem::new(&FORBIDDEN).detail(
            "nobody signs in over plain http, where others can read along: open the page by https. \
             Behind a TLS front-end, list it in server.trusted_proxies, and have it set \
             X-Forwarded-Proto",
        ));
    }
    let asked = validate::log_in(&call.body)?;
    // It ends the login that the browser has.
    let carried = session_cookie(&cx)?;
    let admit = |member: &_| cx.handlers.me.limiter.take_login(member);
    let opened = access.log_in(asked.get(), carried, &call.caller, admit).await?;
    Ok(no_content(call.transport.set_cookie(&opened.value, opened.max_age)))
}

pub(super) async fn log_out(cx: HandlerContext) -> Result<Response, Problem> {
    cx.handlers.access.members()?;
    if let Some(value) = session_cookie(&cx)? {
        cx.handlers.access.log_out(value).await?;
    }
    Ok(no_content(cx.call.transport.clear_cookie()))
}

/// The login that the request carries; whoever has a cookie must mean what it asks for.
fn session_cookie(cx: &HandlerContext) -> Result<Option<&str>, Problem> {
    let headers = &cx.call.head.headers;
    let shown = cx.call.transport.credentials(headers);
    match csrf_header_missing(headers) {
        Some(problem) if shown != Credentials::Missing => Err(problem),
        // Nobody can say which of several was this browser's login.
        Some(_) | None => {
            Ok(if let Credentials::Cookie(value) = shown { Some(value) } else { None })
        }
    }
}

fn no_content(cookie: Option<HeaderValue>) -> Response {
    let mut answer =
        response::with_headers(Response::new(Body::empty()), [(CACHE_CONTROL, "no-store")]);
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer.headers_mut().extend(cookie.map(|cookie| (SET_COOKIE, cookie)));
    answer
}

pub(super) fn healthz() -> Response {
    response::from_bytes(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".into())
}

/// `GET /problems/{code}`: what a problem's `type` leads to.
pub(super) fn problem(path: &str) -> Result<Response, Problem> {
    let code = path.rsplit('/').next().unwrap_or_default();
    let kind = ALL.iter().find(|kind| kind.code == code);
    let kind = kind.ok_or_else(|| Problem::new(&NOT_FOUND))?;
    Ok(response::from_bytes(StatusCode::OK, "text/html; charset=utf-8", problem_page(kind).into()))
}

fn problem_page(kind: &Kind) -> String {
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

pub(super) fn shared_file(head: &Parts) -> Result<Response, Problem> {
    assets::answer(head).ok_or_else(|| Problem::new(&NOT_FOUND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_leads_somewhere_and_nothing_else_does() {
        for kind in ALL {
            assert!(problem(&format!("/problems/{}", kind.code)).is_ok());
        }
        for path in ["/problems/", "/problems/x", "/problems/internal/../x"] {
            assert!(problem(path).is_err(), "{path}");
        }
    }
}
