//! The second listener: what operators and probes ask. It never shares a port with callers.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request, StatusCode};
use tower::Service;

use crate::answer;
use crate::answer::Answer;
use crate::metrics::Metrics;
use crate::problem::{DRAINING, METHOD_NOT_ALLOWED, NOT_FOUND, Problem};

/// Answers `/healthz`, `/readyz` and `/metrics`.
#[derive(Clone)]
pub struct Admin {
    metrics: Arc<Metrics>,
    ready: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Admin {
    /// `ready` says whether new calls are welcome.
    pub fn new(metrics: Arc<Metrics>, ready: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { metrics, ready: Arc::new(ready) }
    }

    fn answer(&self, method: &Method, path: &str) -> Result<Answer, Problem> {
        if !matches!(path, "/healthz" | "/readyz" | "/metrics") {
            return Err(Problem::new(&NOT_FOUND));
        }
        if method != Method::GET && method != Method::HEAD {
            return Err(Problem::new(&METHOD_NOT_ALLOWED).allow("GET, HEAD"));
        }
        match path {
            "/metrics" => {
                let media_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                Ok(answer::bytes_of(StatusCode::OK, media_type, self.metrics.text().into()))
            }
            "/readyz" if !(self.ready)() => {
                Err(Problem::new(&DRAINING).retry_after(Duration::from_secs(5)))
            }
            _ => Ok(alive()),
        }
    }
}

/// The answer of a probe that finds us well.
pub(super) fn alive() -> Answer {
    answer::bytes_of(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".into())
}

impl<B> Service<Request<B>> for Admin {
    type Response = Answer;
    type Error = Infallible;
    type Future = Ready<Result<Answer, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let answer = self.answer(request.method(), request.uri().path());
        ready(Ok(answer.unwrap_or_else(|problem| answer::refusal(problem, ""))))
    }
}
