//! Lets the pages of listed origins call us and read our answers, and keeps those of other sites from spending
//! and from reading. tower-http's layers judge; what they do not know is around them.
//!
//! A page of another site cannot read the answer to its read, but the read would use up the user's limits and,
//! through a passthrough, the account's rate limit.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_REQUEST_HEADERS as ASKED_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HOST, HeaderName, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_http::cors::{AllowCredentials, AllowHeaders, AllowOrigin, CorsLayer};
use tower_http::csrf::{CsrfLayer, ProtectionError};

use super::DownstreamConfig;
use super::observe::RefusalKind;
use super::route::{CrossOrigin, is_api_path};
use crate::problem::{ORIGIN_NOT_ALLOWED, Problem};
use crate::response::Response;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

const PREFLIGHT_MAX_AGE: Duration = Duration::from_secs(7_200);
const ALLOWED_HEADERS: &[&str] = &[
    "content-type",
    "authorization",
    "idempotency-key",
    "last-event-id",
    "x-request-id",
    "x-tollgate",
    "tollgate-ledger",
    "tollgate-replay",
    // The stock SDKs name themselves by it; browsers other than Chromium let them, and ask first.
    "user-agent",
    // What they send where their settings say so. It is read by nobody here.
    "openai-organization",
    "openai-project",
    "openai-beta",
];
/// A family of headers that stock SDKs add to every call.
const SDK_HEADER_PREFIX: &str = "x-stainless-";
/// What a script of another origin may read; anything else is `null` to it.
const EXPOSED_HEADERS: &[&str] = &[
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "idempotent-replayed",
    "x-request-id",
    "tollgate-cost",
    "tollgate-ignored",
    "tollgate-ledger",
    "openai-poll-after-ms",
    "x-should-retry",
];

#[derive(Clone, Debug)]
pub struct Origins {
    listed: Arc<[String]>,
    cors: CorsLayer,
    csrf: CsrfLayer,
}

impl Origins {
    /// Scripts of the `listed` origins read answers, and send the cookie of a login where there are logins.
    pub fn new(listed: &[String], has_logins: bool) -> Self {
        let allowed: Vec<_> =
            listed.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect();
        let readable: Vec<_> =
            EXPOSED_HEADERS.iter().map(|name| HeaderName::from_static(name)).collect();
        let same = allowed.clone();
        let credentials = move |origin: &HeaderValue, _: &_| has_logins && same.contains(origin);
        let cors = CorsLayer::new()
            .allow_origin(AllowOrigin::list(allowed))
            .allow_credentials(AllowCredentials::predicate(credentials))
            .allow_methods([Method::GET, Method::HEAD, Method::POST])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(readable)
            .max_age(PREFLIGHT_MAX_AGE)
            .vary([ORIGIN]);
        let csrf = listed.iter().fold(CsrfLayer::new(), |rules, origin| {
            // An origin that the layer cannot take stays unlisted, which is the safe side.
            rules.clone().add_trusted_origin(origin).unwrap_or(rules)
        });
        Self { listed: listed.into(), cors, csrf }
    }
}

/// Lets the listed origins read what `next` answers, refusals included, and answers their preflights.
///
/// Only a true preflight is answered here, with 204: any other `OPTIONS` is a method like the rest. The headers
/// that it may ask for are a list and one family, where tower-http's layer knows lists only.
pub async fn cors<B, F: Future<Output = Response>>(
    config: &DownstreamConfig,
    mut request: Request<B>,
    next: impl Fn(Request<B>) -> F,
) -> Response {
    let headers = request.headers();
    let is_options = request.method() == Method::OPTIONS;
    let is_preflight = is_options
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if is_options && !is_preflight {
        // No page can send one, and no cache may mix them up.
        let mut answer = next(request).await;
        answer.headers_mut().append(VARY, HeaderValue::from_static("origin"));
        return answer;
    }
    let unlisted = unlisted_origin(&request);
    if is_preflight {
        retain_allowed_headers(&mut request);
    }
    let inner = service_fn(|request| next(request).map(Ok::<_, Infallible>));
    let Ok(mut answer) = config.origins.cors.layer(inner).oneshot(request).await;
    if is_preflight {
        *answer.status_mut() = StatusCode::NO_CONTENT;
    }
    if let Some((origin, asked)) = unlisted
        && !answer.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN)
    {
        config.refusal_log.log(RefusalKind::Origin(asked), Some(&origin));
    }
    answer
}

/// Of the headers that a preflight asks for, leaves those that may be sent, to be mirrored.
fn retain_allowed_headers<B>(request: &mut Request<B>) {
    let asked = request.headers_mut().remove(ASKED_HEADERS);
    let Some(asked) = asked.as_ref().and_then(|value| value.to_str().ok()) else { return };
    let known: Vec<_> = asked
        .split(',')
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| {
            ALLOWED_HEADERS.contains(&name.as_str()) || name.starts_with(SDK_HEADER_PREFIX)
        })
        .collect();
    if let Ok(value) = HeaderValue::from_str(&known.join(", ")) {
        request.headers_mut().insert(ASKED_HEADERS, value);
    }
}

/// The origin of a read or preflight of another site, and which it is. If its page cannot read the answer, the log
/// names the origin: nothing else would tell an operator which one to list. `spending` logs methods that spend.
fn unlisted_origin<B>(request: &Request<B>) -> Option<(HeaderValue, &'static str)> {
    let origin = request.headers().get(ORIGIN)?;
    let asked = match request.method() {
        &Method::OPTIONS => "a preflight",
        &Method::GET | &Method::HEAD => "a read",
        _ => return None,
    };
    let is_other = is_api_path(request.uri().path()) && !is_same_origin(origin, request.headers());
    is_other.then(|| (origin.clone(), asked))
}

/// Whether the page is our own: by the browser's word, or else by the name that it was reached under.
fn is_same_origin(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin" || site == "none";
    }
    let name = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    name.is_some_and(|(_, name)| host.is_some_and(|host| host.eq_ignore_ascii_case(name)))
}

/// Refuses requests of other sites that may spend: 403. tower-http's layer decides by `Sec-Fetch-Site`, then
/// `Origin`.
pub async fn csrf<B, F: Future<Output = Result<Response, Problem>>>(
    config: &DownstreamConfig,
    request: Request<B>,
    next: impl Fn(Request<B>) -> F,
) -> Result<Response, Problem> {
    let page = origin_or_site(request.headers()).cloned();
    let answer = config.origins.csrf.layer(service_fn(next)).oneshot(request).await?;
    if answer.extensions().get::<ProtectionError>().is_none() {
        return Ok(answer);
    }
    config.refusal_log.log(RefusalKind::Origin("a request that may spend"), page.as_ref());
    Err(Problem::new(&ORIGIN_NOT_ALLOWED))
}

pub fn check_read<B>(
    config: &DownstreamConfig,
    pages: CrossOrigin,
    request: &Request<B>,
) -> Result<(), Problem> {
    let is_read = request.method().is_safe() && is_api_path(request.uri().path());
    let headers = request.headers();
    match is_read.then(|| read_refusal(pages, headers, &config.origins.listed)).flatten() {
        None => Ok(()),
        Some(detail) => {
            config.refusal_log.log(RefusalKind::Origin("a read"), origin_or_site(headers));
            Err(Problem::new(&ORIGIN_NOT_ALLOWED).detail(detail))
        }
    }
}

fn origin_or_site(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get(ORIGIN).or_else(|| headers.get(SITE))
}

/// Returns why a read below the reserved paths is refused, if it is.
fn read_refusal(
    pages: CrossOrigin,
    headers: &HeaderMap,
    origins: &[String],
) -> Option<&'static str> {
    let is = |name: &HeaderName, value: &str| headers.get(name).is_some_and(|it| it == value);
    let is_navigation = is(&MODE, "navigate");
    if is_navigation && pages == CrossOrigin::Scripts {
        return Some("a browser's navigation does not reach this endpoint: call it with fetch()");
    }
    // Browsers send it to https and loopback; other clients never do.
    let is_foreign = headers.contains_key(SITE) && !is(&SITE, "same-origin") && !is(&SITE, "none");
    let is_listed = || origins.iter().any(|origin| is(&ORIGIN, origin));
    let is_document = is_navigation && is(&DEST, "document");
    let is_refused = is_foreign && pages != CrossOrigin::Any && !is_document && !is_listed();
    is_refused.then_some(
        "a page of another site may not ask this, unless access.allowed_origins lists it and the \
         browser sends its Origin (fetch, EventSource, <video crossorigin=\"anonymous\">)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_other_sites_are_refused_unless_listed_public_or_a_document() {
        let origins = ["https://app.example".to_owned()];
        let document = &[("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")][..];
        let frame = &[("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")][..];
        let listed = &[("origin", "https://app.example")][..];
        let unlisted = &[("origin", "https://evil.example")][..];
        for (pages, site, more, is_refused) in [
            (CrossOrigin::Listed, None, &[][..], false),
            (CrossOrigin::Listed, None, unlisted, false),
            (CrossOrigin::Listed, Some("same-origin"), &[], false),
            (CrossOrigin::Listed, Some("none"), &[], false),
            (CrossOrigin::Listed, Some("same-site"), &[], true),
            (CrossOrigin::Listed, Some("cross-site"), &[], true),
            (CrossOrigin::Listed, Some("Same-Origin"), &[], true),
            (CrossOrigin::Listed, Some("cross-site"), listed, false),
            (CrossOrigin::Listed, Some("same-site"), listed, false),
            (CrossOrigin::Listed, Some("cross-site"), unlisted, true),
            (CrossOrigin::Listed, Some("cross-site"), document, false),
            (CrossOrigin::Listed, Some("cross-site"), frame, true),
            (CrossOrigin::Any, Some("cross-site"), unlisted, false),
            (CrossOrigin::Any, Some("cross-site"), &[], false),
            (CrossOrigin::Any, Some("cross-site"), &[], false),
            (CrossOrigin::Scripts, Some("same-origin"), &[], false),
            (CrossOrigin::Scripts, Some("cross-site"), &[], true),
            (CrossOrigin::Scripts, Some("cross-site"), document, true),
            (CrossOrigin::Scripts, Some("none"), document, true),
            (CrossOrigin::Scripts, Some("cross-site"), listed, false),
        ] {
            let mut headers = HeaderMap::new();
            let site = site.map(|site| ("sec-fetch-site", site));
            for (name, value) in site.iter().chain(more) {
                headers.insert(*name, value.parse().unwrap());
            }
            let found = read_refusal(pages, &headers, &origins).is_some();
            assert_eq!(found, is_refused, "{pages:?} {headers:?}");
        }
    }
}
