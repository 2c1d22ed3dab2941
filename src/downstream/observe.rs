//! Gives every request its id, its row, its span, its place in the metrics and its line in the log.
//!
//! Nothing of a caller's text is recorded here: the route's template, never the path; no query, no
//! headers, no bodies. `refusal_log` names the one value that `host`, `cors` or `cross_site` refuses, and
//! `caller` adds the name that the credentials have.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, Request};
use tower::layer::layer_fn;
use tower::{Layer, Service};
use tracing::field::Empty;
use tracing::instrument::{Instrument, Instrumented};
use tracing::{Span, debug, info_span, warn};

use super::refusal_log::Refused;
use super::step::{After, Finish};
use super::{Arrived, DownstreamConfig, RequestId, X_REQUEST_ID, rate};
use crate::answer::Answer;
use crate::clock;
use crate::problem::LEDGER_UNAVAILABLE;

#[derive(Clone, Debug)]
pub struct Observe<S> {
    inner: S,
    config: Arc<DownstreamConfig>,
}

/// Counts and logs every request, and looks its row up.
pub fn layer<S>(
    config: &Arc<DownstreamConfig>,
) -> impl Layer<S, Service = Observe<S>> + Clone + use<S> {
    let config = Arc::clone(config);
    layer_fn(move |inner| Observe { inner, config: Arc::clone(&config) })
}

impl<S, B> Service<Request<B>> for Observe<S>
where
    S: Service<Request<Arrived<B>>, Response = Answer, Error = Infallible>,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Instrumented<After<S::Future, Seen>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let id = RequestId::adopt(request.headers());
        let route = self.config.routes.find(request.method(), request.uri().path());
        let label = route.as_ref().map_or("none", |route| route.path.template());
        let span = info_span!("request", id = id.as_str(), route = label, caller = Empty);
        let config = Arc::clone(&self.config);
        let seen = Seen { id: id.clone(), route: label, started: clock::now(), config };
        let request = request.map(|body| Arrived { id, route, body });
        let future = span.in_scope(|| After::new(self.inner.call(request), seen));
        future.instrument(span)
    }
}

/// Records how the request ended, and puts its id on the answer.
#[derive(Debug)]
pub struct Seen {
    id: RequestId,
    route: &'static str,
    started: clock::Instant,
    config: Arc<DownstreamConfig>,
}

impl Finish for Seen {
    fn finish(self, mut answer: Answer) -> Answer {
        let status = answer.status().as_u16();
        let elapsed = clock::now().duration_since(self.started);
        self.config.metrics.request(self.route, status, elapsed);
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        // The ledger logs this itself, once: a full disk must not fill up with lines.
        let is_ledger = answer.body().problem().is_some_and(|it| *it.kind() == LEDGER_UNAVAILABLE);
        match status {
            424 | 500..=599 if is_ledger => {}
            424 | 500..=599 if !rate::has_counted(&answer) => {
                let route = HeaderValue::from_static(self.route);
                self.config.refusals.log(Refused::Failed(status), Some(&route));
            }
            424 | 500..=599 => warn!(parent: &Span::current(), status, millis, "answered"),
            _ => debug!(parent: &Span::current(), status, millis, "answered"),
        }
        answer.headers_mut().insert(X_REQUEST_ID, self.id.to_header());
        answer
    }
}
