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
use http::header::{self, HeaderName};
use http::{HeaderValue, Method, Request, StatusCode};
use tower::layer::layer_fn;
use tower::{Layer, Service};
use tower_http::cors;

use super::after::{After, Finish};
use super::refusal_log::RefusalLog;
use super::unlisted::{self, Trace};
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

/// See the file's documentation.
#[derive(Clone, Debug)]
pub struct Cors<S> {
    cross: cors::Cors<S>,
    plain: S,
    refusals: Arc<RefusalLog>,
}

/// `origins` are exact, as browsers write them. Their scripts may send the cookie of a login along,
/// where there is one. Pages of other origins are named in `refusals`.
pub fn layer<S: Clone>(
    origins: &[String],
    has_logins: bool,
    refusals: Arc<RefusalLog>,
) -> impl Layer<S, Service = Cors<S>> + Clone {
    let allowed: Vec<_> =
        origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect();
    let readable: Vec<_> = MAY_READ.iter().map(|name| HeaderName::from_static(name)).collect();
    let listed = allowed.clone();
    let credentials =
        cors::AllowCredentials::predicate(move |origin, _| has_logins && listed.contains(origin));
    let rules = cors::CorsLayer::new()
        .allow_origin(cors::AllowOrigin::list(allowed))
        .allow_credentials(credentials)
        .allow_methods([Method::GET, Method::HEAD, Method::POST])
        .allow_headers(cors::AllowHeaders::mirror_request())
        .expose_headers(readable)
        .max_age(MAX_AGE)
        .vary([header::ORIGIN]);
    layer_fn(move |inner: S| Cors {
        cross: rules.layer(inner.clone()),
        plain: inner,
        refusals: Arc::clone(&refusals),
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
        let headers = request.headers_mut();
        let preflight = headers.contains_key(header::ORIGIN)
            && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        match (request.method() == Method::OPTIONS, preflight) {
            (true, false) => {
                Either::Left(After::new(self.plain.call(request), LastTouch::Uncached))
            }
            (true, true) => {
                keep_known_headers(&mut request);
                let touch = LastTouch::Preflight(unlisted::watch(&request, &self.refusals));
                Either::Right(After::new(self.cross.call(request), touch))
            }
            (false, _) => {
                let touch = LastTouch::Look(unlisted::watch(&request, &self.refusals));
                Either::Right(After::new(self.cross.call(request), touch))
            }
        }
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
    /// A preflight's 200 without a body is a 204; what it says is looked at.
    Preflight(Option<Trace>),
    /// An `OPTIONS` that it never saw: no page can send one, and no cache may mix them up.
    Uncached,
    /// What it says is looked at.
    Look(Option<Trace>),
}

fn judge(trace: Option<Trace>, answer: &Answer) {
    if let Some(trace) = trace {
        trace.judge(answer);
    }
}

impl Finish for LastTouch {
    fn finish(self, mut answer: Answer) -> Answer {
        match self {
            Self::Preflight(trace) => {
                *answer.status_mut() = StatusCode::NO_CONTENT;
                judge(trace, &answer);
            }
            Self::Uncached => {
                answer.headers_mut().append(header::VARY, HeaderValue::from_static("origin"));
            }
            Self::Look(trace) => judge(trace, &answer),
        }
        answer
    }
}
