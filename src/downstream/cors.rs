//! Lets the listed web origins read our answers, refusals included, and answers their preflights.
//!
//! tower-http's layer does the work. Around it: only a true preflight is answered here (any other
//! `OPTIONS` is a method like the rest), with 204; and the headers that it may ask for are a list and
//! one family (`x-stainless-*`, which the stock SDKs add), where the layer knows lists only.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::Either;
use http::header::{self, HOST, HeaderName, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use tower::layer::layer_fn;
use tower::{Layer, Service};
use tower_http::cors;

use super::DownstreamConfig;
use super::refusal_log::Refused;
use super::route::is_reserved;
use super::step::{After, Finish};
use crate::answer::Answer;

const MAX_AGE: Duration = Duration::from_secs(7_200);
const ASKED_HEADERS: HeaderName = header::ACCESS_CONTROL_REQUEST_HEADERS;
/// What a script of another origin may send.
const MAY_SEND: &[&str] = &[
    "content-type",
    "authorization",
    "idempotency-key",
    "last-event-id",
    "x-request-id",
    "x-tollgate",
    "tollgate-ledger",
    // The stock SDKs name themselves by it; browsers other than Chromium let them, and ask first.
    "user-agent",
    // What they send where their settings say so. It is read by nobody here.
    "openai-organization",
    "openai-project",
    "openai-beta",
];
/// A family of headers that stock SDKs add to every call.
const SDK_FAMILY: &str = "x-stainless-";
/// What a script of another origin may read; anything else is `null` to it.
const MAY_READ: &[&str] = &[
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "idempotent-replayed",
    "x-request-id",
    "tollgate-toll",
    "tollgate-ignored",
    "tollgate-ledger",
    "openai-poll-after-ms",
    "x-should-retry",
];

#[derive(Clone, Debug)]
pub struct Cors<S> {
    cross: cors::Cors<S>,
    plain: S,
    config: Arc<DownstreamConfig>,
}

/// Lets scripts of the listed origins read answers, and send the cookie of a login where there are logins.
pub fn layer<S: Clone>(
    config: &Arc<DownstreamConfig>,
) -> impl Layer<S, Service = Cors<S>> + Clone + use<S> {
    let origins = config.origins.iter();
    let allowed: Vec<_> = origins.filter_map(|origin| HeaderValue::from_str(origin).ok()).collect();
    let readable: Vec<_> = MAY_READ.iter().map(|name| HeaderName::from_static(name)).collect();
    let (has_logins, listed) = (config.access.has_logins(), allowed.clone());
    let credentials =
        cors::AllowCredentials::predicate(move |origin, _| has_logins && listed.contains(origin));
    let rules = cors::CorsLayer::new()
        .allow_origin(cors::AllowOrigin::list(allowed))
        .allow_credentials(credentials)
        .allow_methods([Method::GET, Method::HEAD, Method::POST])
        .allow_headers(cors::AllowHeaders::mirror_request())
        .expose_headers(readable)
        .max_age(MAX_AGE)
        .vary([ORIGIN]);
    let config = Arc::clone(config);
    layer_fn(move |inner: S| Cors {
        cross: rules.layer(inner.clone()),
        plain: inner,
        config: Arc::clone(&config),
    })
}

impl<S, B> Service<Request<B>> for Cors<S>
where
    S: Service<Request<B>, Response = Answer, Error = Infallible>,
{
    type Response = Answer;
    type Error = Infallible;
    type Future =
        Either<After<S::Future, LastTouch>, After<cors::ResponseFuture<S::Future>, LastTouch>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.plain.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let headers = request.headers();
        let is_options = request.method() == Method::OPTIONS;
        let is_preflight = is_options
            && headers.contains_key(ORIGIN)
            && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if is_options && !is_preflight {
            return Either::Left(After::new(self.plain.call(request), LastTouch::Uncached));
        }
        let unlisted = Unlisted::watch(&request, &self.config);
        let touch = match is_preflight {
            true => LastTouch::Preflight(unlisted),
            false => LastTouch::Look(unlisted),
        };
        if is_preflight {
            keep_known_headers(&mut request);
        }
        Either::Right(After::new(self.cross.call(request), touch))
    }
}

/// Of the headers that a preflight asks for, leaves those that may be sent, to be mirrored.
fn keep_known_headers<B>(request: &mut Request<B>) {
    let asked = request.headers_mut().remove(ASKED_HEADERS);
    let Some(asked) = asked.as_ref().and_then(|value| value.to_str().ok()) else { return };
    let known: Vec<_> = asked
        .split(',')
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| MAY_SEND.contains(&name.as_str()) || name.starts_with(SDK_FAMILY))
        .collect();
    if let Ok(value) = HeaderValue::from_str(&known.join(", ")) {
        request.headers_mut().insert(ASKED_HEADERS, value);
    }
}

/// What tower-http's layer leaves to do.
#[derive(Debug)]
pub enum LastTouch {
    /// A preflight's 200 without a body becomes a 204.
    Preflight(Option<Unlisted>),
    /// An `OPTIONS` that is no preflight: no page can send one, and no cache may mix them up.
    Uncached,
    /// Any other request.
    Look(Option<Unlisted>),
}

impl Finish for LastTouch {
    fn finish(self, mut answer: Answer) -> Answer {
        let unlisted = match self {
            Self::Preflight(unlisted) => {
                *answer.status_mut() = StatusCode::NO_CONTENT;
                unlisted
            }
            Self::Uncached => {
                answer.headers_mut().append(header::VARY, HeaderValue::from_static("origin"));
                None
            }
            Self::Look(unlisted) => unlisted,
        };
        if let Some(unlisted) = unlisted
            && !answer.headers().contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN)
        {
            let refused = Refused::Origin(unlisted.asked);
            unlisted.config.refusals.log(refused, Some(&unlisted.origin));
        }
        answer
    }
}

/// A read or preflight of another site. If its page cannot read the answer, the log names the origin: nothing
/// else would tell an operator which one to list.
#[derive(Debug)]
pub struct Unlisted {
    origin: HeaderValue,
    asked: &'static str,
    config: Arc<DownstreamConfig>,
}

impl Unlisted {
    /// Returns what to look at again when the answer is there. `cross_site` logs methods that spend.
    fn watch<B>(request: &Request<B>, config: &Arc<DownstreamConfig>) -> Option<Self> {
        let origin = request.headers().get(ORIGIN)?;
        let asked = match request.method() {
            &Method::OPTIONS => "a preflight",
            &Method::GET | &Method::HEAD => "a read",
            _ => return None,
        };
        let is_other = is_reserved(request.uri().path()) && !is_own(origin, request.headers());
        let config = Arc::clone(config);
        is_other.then(|| Self { origin: origin.clone(), asked, config })
    }
}

/// Whether the page is our own: by the browser's word, or else by the name that it was reached under.
fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin" || site == "none";
    }
    let name = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    name.is_some_and(|(_, name)| host.is_some_and(|host| host.eq_ignore_ascii_case(name)))
}
