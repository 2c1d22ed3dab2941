//! `/bff/…` and the few other endpoints that are tollgate's own: jobs, reports, logins, documents.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HeaderName, LINK, SET_COOKIE};
use http::request::Parts;
use http::{HeaderValue, StatusCode};

use super::{Context, assets, purchases};
use crate::access::Shown;
use crate::access::cookie::unmeant;
use crate::answer::{self, Answer, Body};
use crate::jobs::events::{self, Listener};
use crate::problem::{ALL, Charged, FORBIDDEN, Kind, NOT_FOUND, Problem};
use crate::reports::jobs;
use crate::validate;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Where programs find the whole API (RFC 8631).
const DESCRIBED_BY: &str = "</bff/openapi.json>; rel=\"service-desc\"";

pub(super) async fn jobs(cx: Context) -> Result<Answer, Problem> {
    let named = validate::job_ids(cx.query())?;
    jobs::list(&cx.handlers.jobs, &cx.call.caller, named).await
}

pub(super) async fn events(cx: Context) -> Result<Answer, Problem> {
    let named = validate::job_ids(cx.query())?;
    let call = &cx.call;
    let last = call.head.headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
    let last_event_id = last.unwrap_or_default();
    let (caller, standing, id) = (&call.caller, &call.standing, call.id.as_str());
    let listener = Listener { caller, standing, last_event_id, id };
    events::stream(&cx.handlers.jobs, listener, named).await
}

/// `GET /bff/catalog`. It is asked for anew each time: prices and mode can change with a restart.
pub(super) async fn catalog(cx: Context) -> Result<Answer, Problem> {
    let mut answer = answer::with(document(&cx.handlers.catalog), [(LINK, DESCRIBED_BY)]);
    let name = cx.handlers.ledger_name.clone();
    answer.headers_mut().insert(purchases::TOLLGATE_LEDGER, name);
    Ok(answer)
}

pub(super) async fn openapi(cx: Context) -> Result<Answer, Problem> {
    let answer = document(&cx.handlers.openapi);
    Ok(answer::with(answer, answer::FOR_ANY_PAGE))
}

fn document(json: &Bytes) -> Answer {
    let answer = answer::bytes_of(StatusCode::OK, "application/json", json.clone());
    answer::with(answer, [(CACHE_CONTROL, "no-cache")])
}

pub(super) async fn usage(cx: Context) -> Result<Answer, Problem> {
    let query = validate::since(cx.query())?;
    cx.report(cx.handlers.reports.usage(&cx.call.caller, query)).await
}

pub(super) async fn admin_usage(cx: Context) -> Result<Answer, Problem> {
    let query = validate::everybody(cx.query())?;
    cx.report(cx.handlers.reports.usage_of_all(query)).await
}

pub(super) async fn log_in(cx: Context) -> Result<Answer, Problem> {
    let (access, call) = (&cx.handlers.access, &cx.call);
    access.roll()?;
    if !call.way.is_safe() {
        return Err(Problem::new(&FORBIDDEN).detail(
            "nobody signs in over plain http, where others can read along: open the page by https. \
             Behind a TLS front-end, list it in server.trusted_proxies, and have it set \
             X-Forwarded-Proto",
        ));
    }
    let asked = validate::log_in(&call.body)?;
    // It ends the login that the browser has.
    let carried = carried(&cx)?;
    let admit = |member: &_| cx.handlers.me.limiter.log_in(member);
    let opened = access.log_in(asked.get(), carried, &call.caller, admit).await?;
    Ok(done(call.way.set(&opened.value, opened.lasts)))
}

pub(super) async fn log_out(cx: Context) -> Result<Answer, Problem> {
    cx.handlers.access.roll()?;
    if let Some(value) = carried(&cx)? {
        cx.handlers.access.log_out(value).await?;
    }
    Ok(done(cx.call.way.clear()))
}

/// The login that the request carries; whoever has a cookie must mean what it asks for.
fn carried(cx: &Context) -> Result<Option<&str>, Problem> {
    let headers = &cx.call.head.headers;
    let shown = cx.call.way.carried(headers);
    match unmeant(headers) {
        Some(problem) if shown != Shown::Nothing => Err(problem),
        // Nobody can say which of several was this browser's login.
        Some(_) | None => Ok(if let Shown::Login(value) = shown { Some(value) } else { None }),
    }
}

fn done(cookie: Option<HeaderValue>) -> Answer {
    let mut answer = answer::with(Answer::new(Body::empty()), [(CACHE_CONTROL, "no-store")]);
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer.headers_mut().extend(cookie.map(|cookie| (SET_COOKIE, cookie)));
    answer
}

pub(super) fn alive() -> Answer {
    answer::bytes_of(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".into())
}

/// `GET /problems/{code}`: what a problem's `type` leads to.
pub(super) fn problem(path: &str) -> Result<Answer, Problem> {
    let code = path.rsplit('/').next().unwrap_or_default();
    let kind = ALL.iter().find(|kind| kind.code == code);
    let kind = kind.ok_or_else(|| Problem::new(&NOT_FOUND))?;
    Ok(answer::bytes_of(StatusCode::OK, "text/html; charset=utf-8", problem_page(kind).into()))
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

pub(super) fn shared_file(head: &Parts) -> Result<Answer, Problem> {
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
