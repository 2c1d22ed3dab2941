//! CORS for listed origins and protection from other sites, on top of tower-http's layers.
//!
//! Reads are protected too: a page could not see the response, but would use up the user's limits.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD,
    HeaderName, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_http::cors::{AllowCredentials, AllowHeaders, AllowOrigin, CorsLayer};
use tower_http::csrf::{CsrfLayer, ProtectionError};
use tracing::info;

use super::route::{CrossOrigin, is_api_path};
use super::{DownstreamConfig, bytes, sanitize};
use crate::gate::problem::{ORIGIN_NOT_ALLOWED, Problem};
use crate::gate::response::{HandlerResult, Response, SERVER_TIMING};

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

const TIMING_ALLOW_ORIGIN: HeaderName = HeaderName::from_static("timing-allow-origin");

const PREFLIGHT_MAX_AGE: Duration = Duration::from_secs(7_200);
const ALLOWED_HEADERS: &[&str] = &[
    "content-type",
    "authorization",
    "idempotency-key",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "x-request-id",
    "x-tollgate",
    "tollgate-ledger",
    "tollgate-proof",
    "tollgate-replay",
    "traceparent",
    // Further trace headers that agents in pages add to every call, ignored here.
    "tracestate",
    "baggage",
    "sentry-trace",
    "b3",
    "newrelic",
    "elastic-apm-traceparent",
    "request-id",
    "request-context",
    // OpenAI's SDKs set it; browsers other than Chromium send a preflight for it.
    "user-agent",
    // Optional headers of OpenAI's SDKs, ignored here.
    "openai-organization",
    "openai-project",
    "openai-beta",
];
/// OpenAI's SDKs and agents for traces add headers with these prefixes to every call.
const ALLOWED_PREFIXES: &[&str] = &["x-stainless-", "x-b3-", "x-datadog-"];
const EXPOSED_HEADERS: [&str; 11] = [
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "idempotent-replayed",
    "x-request-id",
    "tollgate-cost",
    "tollgate-ignored",
    "tollgate-ledger",
    "tollgate-purchase",
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
    /// Scripts of `listed` origins may read responses and, with cookies, send them.
    pub fn new(listed: &[String], has_cookies: bool) -> Self {
        let allowed: Vec<_> =
            listed.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect();
        let same = allowed.clone();
        let credentials = move |origin: &HeaderValue, _: &_| has_cookies && same.contains(origin);
        let cors = CorsLayer::new()
            .allow_origin(AllowOrigin::list(allowed))
            .allow_credentials(AllowCredentials::predicate(credentials))
            .allow_methods([Method::GET, Method::HEAD, Method::POST])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(EXPOSED_HEADERS.map(HeaderName::from_static))
            .max_age(PREFLIGHT_MAX_AGE)
            .vary([ORIGIN]);
        let csrf = listed.iter().fold(CsrfLayer::new(), |rules, origin| {
            // An origin that the layer rejects stays unlisted.
            rules.clone().add_trusted_origin(origin).unwrap_or(rules)
        });
        Self { listed: listed.into(), cors, csrf }
    }
}

/// Adds CORS headers to responses, including refusals, and answers preflights with 204.
///
/// tower-http's layer also answers an `OPTIONS` that is no preflight, and allows no header prefix.
pub async fn cors<B, F: Future<Output = Response>>(
    config: &DownstreamConfig,
    mut request: Request<B>,
    next: impl Fn(Request<B>) -> F,
) -> Response {
    let headers = request.headers();
    let is_options = request.method() == Method::OPTIONS;
    let has_origin = headers.contains_key(ORIGIN);
    let is_preflight =
        is_options && has_origin && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    // Without an `Origin`, the layer would only add headers that no client uses.
    if !has_origin || (is_options && !is_preflight) {
        let mut response = next(request).await;
        response.headers_mut().append(VARY, HeaderValue::from_static("origin"));
        return response;
    }
    let origin = headers.get(ORIGIN).filter(|_| is_preflight && is_api_path(request.uri().path()));
    let origin = origin.cloned();
    if is_preflight {
        retain_allowed_headers(&mut request);
    }
    let inner = service_fn(|request| next(request).map(Ok::<_, Infallible>));
    // Boxed, so that all other requests do not move the layer's future.
    let Ok(mut response) = Box::pin(config.origins.cors.layer(inner).oneshot(request)).await;
    if response.headers().contains_key(SERVER_TIMING)
        && let Some(allowed) = response.headers().get(ACCESS_CONTROL_ALLOW_ORIGIN).cloned()
    {
        response.headers_mut().insert(TIMING_ALLOW_ORIGIN, allowed);
    }
    if is_preflight {
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    if origin.is_some() && !response.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
        log_refusal(config, "preflight", origin.as_ref());
    }
    response
}

/// Removes all other headers from the preflight's list, which the CORS layer mirrors.
fn retain_allowed_headers<B>(request: &mut Request<B>) {
    let requested = request.headers_mut().remove(ACCESS_CONTROL_REQUEST_HEADERS);
    let Some(requested) = requested.as_ref().and_then(|value| value.to_str().ok()) else { return };
    let is_allowed = |name: &String| {
        ALLOWED_HEADERS.contains(&name.as_str())
            || ALLOWED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let names = requested.split(',').map(|name| name.trim().to_ascii_lowercase());
    let allowed: Vec<_> = names.filter(is_allowed).collect();
    if let Ok(value) = HeaderValue::from_str(&allowed.join(", ")) {
        request.headers_mut().insert(ACCESS_CONTROL_REQUEST_HEADERS, value);
    }
}

/// Refuses unsafe methods from unlisted origins, by `Sec-Fetch-Site` or, without it, by `Origin`.
pub async fn csrf<B, F: Future<Output = HandlerResult>>(
    config: &DownstreamConfig,
    request: Request<B>,
    next: impl Fn(Request<B>) -> F,
) -> HandlerResult {
    // Neither header: no browser, which the layer lets through.
    let Some(page) = origin_or_site(request.headers()).cloned() else {
        return next(request).await;
    };
    let response = Box::pin(config.origins.csrf.layer(service_fn(next)).oneshot(request)).await?;
    if response.extensions().get::<ProtectionError>().is_none() {
        return Ok(response);
    }
    log_refusal(config, "write", Some(&page));
    Err(Problem::new(&ORIGIN_NOT_ALLOWED))
}

pub fn check_read<B>(
    config: &DownstreamConfig,
    allowed: CrossOrigin,
    request: &Request<B>,
) -> Result<(), Problem> {
    let headers = request.headers();
    if !request.method().is_safe() || !is_api_path(request.uri().path()) {
        return Ok(());
    }
    let Some(detail) = read_refusal(allowed, headers, &config.origins.listed) else {
        return Ok(());
    };
    log_refusal(config, "read", origin_or_site(headers));
    Err(Problem::new(&ORIGIN_NOT_ALLOWED).detail(detail))
}

fn log_refusal(config: &DownstreamConfig, request: &str, origin: Option<&HeaderValue>) {
    if config.refusal_log.is_due("origin", bytes(origin)) {
        let code = ORIGIN_NOT_ALLOWED.code;
        info!(code, origin = sanitize(origin), request, "unlisted origin refused");
    }
}

fn origin_or_site(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get(ORIGIN).or_else(|| headers.get(SITE))
}

/// Returns whether a page of another origin sends this.
pub(super) fn is_foreign(headers: &HeaderMap) -> bool {
    // Browsers send it over https and to loopback; other clients never do.
    headers.get(SITE).is_some_and(|site| site != "same-origin" && site != "none")
}

fn read_refusal(
    allowed: CrossOrigin,
    headers: &HeaderMap,
    origins: &[String],
) -> Option<&'static str> {
    let is = |name: &HeaderName, value: &str| headers.get(name).is_some_and(|v| v == value);
    let is_navigation = is(&MODE, "navigate");
    if is_navigation && allowed == CrossOrigin::Scripts {
        return Some("a browser cannot navigate to this endpoint: call it with fetch()");
    }
    let is_listed = || origins.iter().any(|origin| is(&ORIGIN, origin));
    let is_document = is_navigation && is(&DEST, "document");
    let is_refused =
        is_foreign(headers) && allowed != CrossOrigin::Any && !is_document && !is_listed();
    is_refused.then_some(
        "pages of other sites may not read this, unless access.allowed_origins lists them and \
         the browser sends an Origin (fetch, EventSource, <video crossorigin=\"anonymous\">)",
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
