//! Gives every request its id, its span, its place in the metrics and its line in the log.
//!
//! Nothing of a caller's text is recorded here: the route's template, never the path; no query, no
//! headers, no bodies. `host`, `csrf` and `unlisted` log the one value that they refuse, and of who asks, `caller` adds
//! the name that its credentials have.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, Request};
use tower::layer::layer_fn;
use tower::{Layer, Service};
use tracing::field::Empty;
use tracing::{Span, debug, info_span, warn};

use super::after::{After, Finish};
use super::call::X_REQUEST_ID;
use super::refusal_log::{RefusalLog, Refused};
use super::route::{self, Further};
use super::{RequestId, rate};
use crate::answer::Answer;
use crate::clock;
use crate::metrics::Metrics;
use crate::problem::LEDGER_UNAVAILABLE;

/// See the file's documentation.
#[derive(Clone, Debug)]
pub struct Observe<S> {
    inner: S,
    metrics: Arc<Metrics>,
    refusals: Arc<RefusalLog>,
    further: Arc<[Further]>,
}

/// Counts into `metrics`; `further` are the rows that settings add. What fails before anybody is counted is
/// named in `refusals`.
pub fn layer<S>(
    metrics: Arc<Metrics>,
    refusals: Arc<RefusalLog>,
    further: Arc<[Further]>,
) -> impl Layer<S, Service = Observe<S>> + Clone {
    layer_fn(move |inner| Observe {
        inner,
        metrics: Arc::clone(&metrics),
        refusals: Arc::clone(&refusals),
        further: Arc::clone(&further),
    })
}

impl<S, B> Service<Request<B>> for Observe<S>
where
    S: Service<Request<B>, Response = Answer, Error = Infallible>,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = tracing::instrument::Instrumented<After<S::Future, Seen>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let id = RequestId::adopt(request.headers());
        // The id travels in the request's own header: every layer can read it, and a caller cannot
        // slip in another one.
        request.headers_mut().insert(X_REQUEST_ID, id.to_header());
        let route = route::find(request.method(), request.uri().path(), &self.further)
            .map_or("none", |route| route.path.template());
        let span = info_span!("request", id = id.as_str(), route, caller = Empty);
        let (metrics, refusals) = (Arc::clone(&self.metrics), Arc::clone(&self.refusals));
        let seen = Seen { id, route, started: clock::now(), metrics, refusals };
        let future = span.in_scope(|| After::new(self.inner.call(request), seen));
        tracing::Instrument::instrument(future, span)
    }
}

/// Records how the request ended and tells the caller its name.
#[derive(Debug)]
pub struct Seen {
    id: RequestId,
    route: &'static str,
    started: clock::Instant,
    metrics: Arc<Metrics>,
    refusals: Arc<RefusalLog>,
}

impl Finish for Seen {
    fn finish(self, mut answer: Answer) -> Answer {
        let status = answer.status().as_u16();
        let elapsed = clock::now().duration_since(self.started);
        self.metrics.request(self.route, status, elapsed);
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        // The ledger says so itself, once: a full disk must not fill up with lines.
        let is_ledger = answer.body().problem().is_some_and(|it| *it.kind() == LEDGER_UNAVAILABLE);
        match status {
            424 | 500..=599 if is_ledger => {}
            424 | 500..=599 if !rate::has_counted(&answer) => {
                self.refusals
                    .log(Refused::Failed(status), Some(&HeaderValue::from_static(self.route)));
            }
            424 | 500..=599 => warn!(parent: &Span::current(), status, millis, "answered"),
            _ => debug!(parent: &Span::current(), status, millis, "answered"),
        }
        answer.headers_mut().insert(X_REQUEST_ID, self.id.to_header());
        answer
    }
}
