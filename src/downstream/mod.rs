//! What every HTTP request meets before an endpoint sees it, in the order of `pipeline.rs`.
//!
//! Invariant: a layer here refuses before anything is bought, so every refusal is `charged: no`.

pub mod body;
pub mod call;
pub mod caller;
pub mod catch;
pub mod cors;
pub mod cross_site;
pub mod dialect;
pub mod forwarded;
pub mod head;
pub mod host;
pub mod observe;
pub mod rate;
pub mod refusal_log;
pub mod route;
pub mod step;

use std::sync::Arc;

use http::header::CONNECTION;
use http::{HeaderValue, Request};

pub use call::{Arrived, Call, RequestId};

use self::step::{Onward, Step, Unchanged};
use crate::access::Access;
use crate::answer::{self, Answer};
use crate::config::{Network, blot};
use crate::metrics::Metrics;
use crate::problem::Problem;

/// What the layers know before a request comes; shared by every core.
#[derive(Clone, Debug)]
pub struct DownstreamConfig {
    /// `access.allowed_origins`
    pub origins: Arc<[String]>,
    pub hosts: Arc<host::Hosts>,
    /// `server.trusted_proxies`
    pub trusted: Arc<[Network]>,
    pub access: Arc<Access>,
    pub routes: Arc<route::Table>,
    pub limiter: Arc<rate::Limiter>,
    pub bodies: body::Limits,
    pub memory: Arc<body::Memory>,
    /// What was refused before its caller was counted.
    pub refusals: Arc<refusal_log::RefusalLog>,
    pub metrics: Arc<Metrics>,
}

/// A request on its way to `caller`.
pub type Arrival<B> = Request<Arrived<B>>;

/// A request that can be refused before its body was read.
pub(super) trait Refusable {
    fn id(&self) -> &RequestId;
    /// Whether it has a body, read or not.
    fn has_body(&self) -> bool;
}

impl<B: http_body::Body> Refusable for Arrival<B> {
    fn id(&self) -> &RequestId {
        &self.body().id
    }

    fn has_body(&self) -> bool {
        !self.body().body.is_end_stream()
    }
}

impl<B: http_body::Body> Refusable for Call<B> {
    fn id(&self) -> &RequestId {
        &self.id
    }

    fn has_body(&self) -> bool {
        !self.body.is_end_stream()
    }
}

/// A refusal of a request whose body, if it has one, was not read.
fn refuse(problem: Problem, request: &impl Refusable) -> Answer {
    let refusal = answer::refusal(problem, request.id().as_str());
    if request.has_body() { closing(refusal) } else { refusal }
}

/// The answer, after which the connection closes: what follows on it cannot be told apart from the unread body.
fn closing(answer: Answer) -> Answer {
    answer::with(answer, [(CONNECTION, "close")])
}

/// A layer that passes requests on unchanged, but for those that `check` refuses.
fn check<R: Refusable>(
    check: impl Fn(&R) -> Result<(), Problem> + Clone,
) -> Step<impl Fn(R) -> Onward<R> + Clone> {
    Step(move |request| match check(&request) {
        Ok(()) => Ok((request, Unchanged)),
        Err(problem) => Err(Box::new(refuse(problem, &request))),
    })
}

/// A header that is refused, as a person may read it: escaped, cut, and without any key.
fn shown(value: Option<&HeaderValue>) -> String {
    const MOST: usize = 100;
    let text = String::from_utf8_lossy(value.map(HeaderValue::as_bytes).unwrap_or_default());
    let cut: String = blot(&text).chars().take(MOST).collect();
    cut.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_a_header_is_short_moves_no_cursor_and_holds_no_key() {
        let long = "x".repeat(101);
        for (value, expected) in [
            (&b"evil.example"[..], "evil.example"),
            (b"a\"b\\c", "a\\\"b\\\\c"),
            (b"\xff\t", "\u{fffd}\\t"),
            (b"\xc2\x9b31m", "\\u{9b}31m"),
            (b"https://svc_sk_secret.example", "https://svc_sk_\u{2026}"),
            (long.as_bytes(), &long[..100]),
        ] {
            let value = HeaderValue::from_bytes(value).unwrap();
            assert_eq!(shown(Some(&value)), expected);
        }
        assert_eq!(shown(None), "");
    }
}
