//! The id, span, metrics and log lines of each request.
//!
//! Logs hold the route's template, never the path, query, headers or body. The exceptions are the
//! refused value in [`RefusalLog`] and the caller's name.

use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt;
use http::header::CONNECTION;
use http::{HeaderValue, Request};
use tracing::field::Empty;
use tracing::{Span, debug, info, info_span, warn};

use super::caller::Peer;
use super::route::Route;
use super::{DownstreamConfig, RequestId, X_REQUEST_ID, rate};
use crate::clock::{self, Instant};
use crate::problem::{INTERNAL, LEDGER_UNAVAILABLE, Problem};
use crate::response::{self, HandlerResult, Response};
use crate::sync::lock;

pub struct RequestScope {
    pub id: RequestId,
    pub peer: Option<Peer>,
    pub route: Result<&'static Route, Problem>,
    has_body: bool,
    started: Instant,
}

impl RequestScope {
    pub fn new<B: http_body::Body>(
        config: &DownstreamConfig,
        peer: Option<Peer>,
        request: &Request<B>,
    ) -> Self {
        Self {
            id: RequestId::from_headers(request.headers()),
            peer,
            route: config.routes.find(request.method(), request.uri().path()),
            has_body: !request.body().is_end_stream(),
            started: clock::now(),
        }
    }

    fn route_label(&self) -> &'static str {
        self.route.as_ref().map_or("none", |route| route.path)
    }

    pub fn span(&self) -> Span {
        info_span!("request", id = self.id.as_str(), route = self.route_label(), caller = Empty)
    }

    /// Closes the connection if the request has a body, because its rest was not read.
    pub fn refuse(&self, problem: Problem) -> Response {
        let refusal = response::from_problem(problem, self.id.as_str());
        if self.has_body {
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
        config.metrics.request(self.route_label(), status, elapsed);
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        // The ledger logs its failure once: more lines would fill a disk that is already full.
        let problem = response.extensions().get::<Problem>();
        let is_ledger = problem.is_some_and(|problem| *problem.kind() == LEDGER_UNAVAILABLE);
        match status {
            424 | 500..=599 if is_ledger => {}
            // It failed before the caller was counted, for example during authentication.
            424 | 500..=599 if !response.headers().contains_key(rate::RATELIMIT_POLICY) => {
                let route = HeaderValue::from_static(self.route_label());
                if config.refusal_log.is_due("failed", Some(&route)) {
                    warn!(status, "request failed");
                }
            }
            424 | 500..=599 => warn!(status, elapsed_ms, "request failed"),
            _ => debug!(status, elapsed_ms, "request finished"),
        }
        response.headers_mut().insert(X_REQUEST_ID, self.id.0.clone());
        response
    }
}

const MAX_LINES: usize = 10;
const PERIOD: Duration = Duration::from_secs(60);

/// Bounds the log lines of refusals before the limiter.
///
/// Such requests need no credentials, so a line for each would let anyone fill the disk.
#[derive(Debug, Default)]
pub struct RefusalLog(Mutex<LogPeriod>);

#[derive(Debug, Default)]
struct LogPeriod {
    started: Option<Instant>,
    logged: Vec<(&'static str, HeaderValue)>,
    suppressed: u64,
}

impl RefusalLog {
    /// Logs the number of suppressed lines once their minute is over.
    pub fn flush(&self, now: Instant) {
        let rest = lock(&self.0).take_suppressed(now);
        log_suppressed(rest);
    }

    /// Whether to log a refused value: not if it was logged within this minute, or if the minute's
    /// lines are used up.
    pub(super) fn is_due(&self, kind: &'static str, value: Option<&HeaderValue>) -> bool {
        let now = clock::now();
        let mut minute = lock(&self.0);
        let rest = minute.take_suppressed(now);
        minute.started.get_or_insert(now);
        let value = value.cloned().unwrap_or(HeaderValue::from_static(""));
        let line = (kind, value);
        let is_due = minute.logged.len() < MAX_LINES && !minute.logged.contains(&line);
        if is_due {
            minute.logged.push(line);
        } else {
            minute.suppressed = minute.suppressed.saturating_add(1);
        }
        drop(minute);
        log_suppressed(rest);
        is_due
    }
}

impl LogPeriod {
    fn take_suppressed(&mut self, now: Instant) -> u64 {
        let is_over =
            self.started.is_some_and(|began| now.saturating_duration_since(began) >= PERIOD);
        if is_over { std::mem::take(self).suppressed } else { 0 }
    }
}

fn log_suppressed(count: u64) {
    if count > 0 {
        info!(count, "refusal log lines suppressed");
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
            peer: None,
            route: Err(Problem::new(&INTERNAL)),
            has_body: false,
            started: clock::now(),
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

    fn value(number: usize) -> HeaderValue {
        HeaderValue::try_from(format!("{number}.example")).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_log_writes_ten_lines_a_minute_and_counts_the_rest() {
        let (refusals, begin) = (RefusalLog::default(), clock::now());
        let logged = |kind, numbers: std::ops::Range<usize>| {
            let is_due = |n: &usize| refusals.is_due(kind, Some(&value(*n)));
            numbers.filter(is_due).count()
        };
        assert_eq!(logged("host", 0..1), 1);
        assert_eq!(logged("host", 0..1), 0, "it was logged before");
        assert_eq!(logged("origin", 0..4), 4, "another kind of value");
        assert_eq!(logged("origin", 0..4), 0, "the same value");
        assert_eq!(logged("host", 0..1_000), 5, "ten in all");
        tokio::time::advance(PERIOD - Duration::from_millis(1)).await;
        assert_eq!(logged("host", 2_000..2_100), 0);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(lock(&refusals.0).suppressed, 1 + 4 + 995 + 100);
        assert_eq!(lock(&refusals.0).take_suppressed(begin + PERIOD), 1_100);
        assert_eq!(logged("host", 0..100), MAX_LINES);
        assert!(!refusals.is_due("host", None));
    }
}
