//! The id, span, metrics and log lines of each request.
//!
//! Logs hold the endpoint's path as the table has it, never the path, query, headers or body. The exceptions are the
//! refused value in [`RefusalLog`] and the caller's name.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use http::Request;
use http::header::{CONNECTION, STRICT_TRANSPORT_SECURITY};
use tracing::field::Empty;
use tracing::{Span, debug, info, info_span, warn};

use super::route::{Class, Route};
use super::source::Source;
use super::trace::TraceContext;
use super::{DownstreamConfig, RequestId, X_REQUEST_ID, rate};
use crate::clock::{self, Instant};
use crate::gate::log_limit::LogLimit;
use crate::gate::problem::{
    BUDGET_EXHAUSTED, INTERNAL, INVALID_CREDENTIALS, LEDGER_UNAVAILABLE, LOGIN_UNAVAILABLE,
    MISDIRECTED_REQUEST, ORIGIN_NOT_ALLOWED, Problem,
};
use crate::gate::response::{self, HandlerResult, Response, SERVER_TIMING};
use crate::ledger::Caller;
use crate::metrics::Metrics;

pub struct RequestScope {
    pub id: RequestId,
    trace: Option<TraceContext>,
    pub source: Option<Source>,
    pub route: Result<&'static Route, Problem>,
    has_unread_body: AtomicBool,
    started: Instant,
    /// Known once the caller is looked at.
    client: OnceLock<IpAddr>,
}

impl RequestScope {
    pub fn new<B: http_body::Body>(
        config: &DownstreamConfig,
        source: Option<Source>,
        request: &Request<B>,
    ) -> Self {
        Self {
            id: RequestId::from_headers(request.headers()),
            trace: TraceContext::of(request.headers()),
            source,
            route: config.routes.find(request.method(), request.uri().path()),
            has_unread_body: AtomicBool::new(!request.body().is_end_stream()),
            started: clock::now(),
            client: OnceLock::new(),
        }
    }

    /// Notes the client's address, for the log line of a refusal.
    pub fn set_client(&self, address: IpAddr) {
        let _ = self.client.set(address);
    }

    /// Notes that the body was read, so a refusal leaves the connection open.
    pub fn mark_body_read(&self) {
        self.has_unread_body.store(false, Ordering::Relaxed);
    }

    fn endpoint(&self) -> &'static str {
        self.route.as_ref().map_or("none", |route| route.path)
    }

    pub fn span(&self) -> Span {
        let client_id = self.id.client_id();
        let endpoint = self.endpoint();
        let trace_id = self.trace.as_ref().map(TraceContext::trace_id);
        let parent_id = self.trace.as_ref().map(TraceContext::parent_id);
        let id = self.id.unique();
        info_span!("request", id, client_id, trace_id, parent_id, endpoint, caller = Empty)
    }

    /// Closes the connection if the request has a body that was not read.
    pub fn refuse(&self, problem: Problem) -> Response {
        let refusal = response::from_problem(problem, self.id.as_str());
        if self.has_unread_body.load(Ordering::Relaxed) {
            response::with_headers(refusal, [(CONNECTION, "close")])
        } else {
            refusal
        }
    }

    /// Turns a panic into a 500. Purchases are not affected: they run in tasks of their own.
    ///
    /// It is not an `async fn`, which would hold the future twice.
    pub fn catch_panic(
        &self,
        handling: impl Future<Output = HandlerResult>,
    ) -> impl Future<Output = Response> {
        AssertUnwindSafe(handling).catch_unwind().map(|ended| match ended {
            Ok(response) => response.unwrap_or_else(|problem| self.refuse(problem)),
            // The payload may hold secrets, so it is dropped. The hook has logged the location.
            Err(_panic) => response::from_problem(Problem::new(&INTERNAL), self.id.as_str()),
        })
    }

    pub fn finish(&self, config: &DownstreamConfig, mut response: Response) -> Response {
        let status = response.status().as_u16();
        let elapsed = clock::now().duration_since(self.started);
        config.metrics.request(self.endpoint(), status, elapsed);
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let problem = response.extensions().get::<Problem>();
        if let Some(problem) = problem {
            config.refusal_log.count(problem);
        }
        let code = problem.map(|problem| problem.kind().code);
        match (status, problem) {
            // The ledger logs its failure once: more lines would fill a disk that is already full.
            (424 | 500..=599, Some(problem)) if *problem.kind() == LEDGER_UNAVAILABLE => {}
            (424 | 500..=599, _) if is_anonymous(&response) => {
                if config.refusal_log.is_due("failed", self.endpoint().as_bytes()) {
                    warn!(status, code, "request failed");
                }
            }
            (424 | 500..=599, _) => {
                let model = problem.and_then(Problem::model);
                warn!(status, code, model, elapsed_ms, "request failed");
            }
            (_, Some(problem)) if self.is_refusal_logged(problem) => {
                config.refusal_log.log(problem, self.client.get());
            }
            _ => debug!(status, code, elapsed_ms, "request finished"),
        }
        response.headers_mut().insert(X_REQUEST_ID, self.id.header());
        if response.headers().contains_key(SERVER_TIMING) {
            response::add_timing(&mut response, [("total", elapsed)]);
        }
        let is_tls = self.source.as_ref().is_some_and(|source| source.tls.is_some());
        if let Some(hsts) = config.hsts.as_ref().filter(|_| is_tls) {
            response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, hsts.clone());
        }
        response
    }

    fn is_refusal_logged(&self, problem: &Problem) -> bool {
        // A line with the refused value is logged where it is refused.
        if [&MISDIRECTED_REQUEST, &ORIGIN_NOT_ALLOWED].contains(&problem.kind()) {
            return false;
        }
        let is_paid = self.route.as_ref().is_ok_and(|route| route.class == Class::Paid);
        is_paid || *problem.kind() == INVALID_CREDENTIALS
    }
}

/// Returns whether the request failed before its caller was counted, for example during
/// authentication, or has no caller yet, like a sign-in.
fn is_anonymous(response: &Response) -> bool {
    let is_sign_in =
        response.extensions().get().is_some_and(|it: &Problem| *it.kind() == LOGIN_UNAVAILABLE);
    is_sign_in || !response.headers().contains_key(rate::RATELIMIT_POLICY)
}

/// Counts refusals by code, and bounds their log lines.
pub struct RefusalLog {
    metrics: Arc<Metrics>,
    /// For requests that need no credentials: a line for each would let anyone fill the disk.
    unlisted: LogLimit,
    /// For refusals of paid requests, and for invalid credentials, by code and address.
    refused: LogLimit,
}

impl RefusalLog {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, unlisted: LogLimit::new(10, 1), refused: LogLimit::new(100, 10) }
    }

    /// Logs the number of suppressed lines once their minute is over.
    pub fn flush(&self, now: Instant) {
        self.unlisted.flush(now);
        self.refused.flush(now);
    }

    /// Whether to log a refused value: not if it was logged within this minute, or if the minute's
    /// lines are used up.
    pub(super) fn is_due(&self, kind: &'static str, value: &[u8]) -> bool {
        self.unlisted.is_due(kind, value)
    }

    fn count(&self, problem: &Problem) {
        self.metrics.refusal(problem.kind().code);
    }

    /// Counts and logs the refusal of a purchase whose response has begun.
    pub fn late(&self, problem: &Problem, caller: &Caller) {
        self.count(problem);
        let kind = problem.kind();
        if matches!(kind.status.as_u16(), 424 | 500..=599) {
            if *kind != LEDGER_UNAVAILABLE {
                let (status, code, model) = (kind.status.as_u16(), kind.code, problem.model());
                warn!(status, code, model, "request failed");
            }
            return;
        }
        let client = if let Caller::Address(address) = caller { Some(address) } else { None };
        self.log(problem, client);
    }

    /// Logs why a request was refused, unless the minute's lines are used up.
    fn log(&self, problem: &Problem, client: Option<&IpAddr>) {
        let kind = problem.kind();
        let is_due = match client {
            None => self.refused.is_due(kind.code, &[]),
            Some(IpAddr::V4(address)) => self.refused.is_due(kind.code, &address.octets()),
            Some(IpAddr::V6(address)) => self.refused.is_due(kind.code, &address.octets()),
        };
        if is_due {
            let address = client.map(ToString::to_string);
            let (status, code, model) = (kind.status.as_u16(), kind.code, problem.model());
            let error = problem.errors().first().map(|error| error.code);
            // Other details may repeat what the caller sent.
            let detail = problem.detail_text().filter(|_| *kind == BUDGET_EXHAUSTED);
            let reason = problem.reason();
            info!(status, code, reason, error, model, address, detail, "request refused");
        }
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn panic_becomes_500_before_and_after_an_await() {
        let scope = RequestScope {
            id: RequestId::new(),
            trace: None,
            source: None,
            route: Err(Problem::new(&INTERNAL)),
            has_unread_body: AtomicBool::new(false),
            started: clock::now(),
            client: OnceLock::new(),
        };
        for is_late in [false, true] {
            let handling = async {
                if is_late {
                    yield_now().await;
                }
                panic!("secret");
            };
            let response = scope.catch_panic(handling).await;
            assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        }
    }
}
