//! Leaves a trace in the log of pages that may not read our answers: their browsers only ask first
//! (preflights) or read, and nothing else would tell an operator which origin to list.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, HOST, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request};
use tracing::info;

use super::route::is_reserved;
use super::shown;
use crate::answer::Answer;
use crate::clock;
use crate::clock::Instant;

/// Origins that are named in a [`PERIOD`], each once: a page asks with every visit, and anybody can make
/// names up.
const MOST_NAMED: usize = 10;
const PERIOD: Duration = Duration::from_secs(60);

/// What was named lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Unlisted(Arc<Mutex<Minute>>);

#[derive(Debug, Default)]
struct Minute {
    began: Option<Instant>,
    named: Vec<HeaderValue>,
}

/// A request of another site, whose answer tells whether it may be read.
#[derive(Debug)]
pub struct Trace {
    origin: HeaderValue,
    asked: &'static str,
    unlisted: Unlisted,
}

impl Unlisted {
    /// What to look at again when the answer is there, where another site asks for something of the API.
    /// Methods that spend are not looked at: `csrf` refuses them, and says so.
    pub(super) fn watch<B>(&self, request: &Request<B>) -> Option<Trace> {
        let origin = request.headers().get(ORIGIN)?;
        let asked = match request.method() {
            &Method::OPTIONS => "a preflight",
            &Method::GET | &Method::HEAD => "a read",
            _ => return None,
        };
        let is_other = is_reserved(request.uri().path()) && !is_own(origin, request.headers());
        is_other.then(|| Trace { origin: origin.clone(), asked, unlisted: self.clone() })
    }

    /// Whether this origin is to be named now.
    fn names(&self, origin: &HeaderValue, now: Instant) -> bool {
        let mut minute = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if minute.began.is_none_or(|began| now.saturating_duration_since(began) >= PERIOD) {
            *minute = Minute { began: Some(now), named: Vec::new() };
        }
        let is_new = minute.named.len() < MOST_NAMED && !minute.named.contains(origin);
        if is_new {
            minute.named.push(origin.clone());
        }
        is_new
    }
}

impl Trace {
    /// Names the origin where its page cannot read this answer.
    pub(super) fn judge(self, answer: &Answer) {
        let may_read = answer.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN);
        if !may_read && self.unlisted.names(&self.origin, clock::now()) {
            let (origin, asked) = (shown(Some(&self.origin)), self.asked);
            info!(origin, asked, "an origin that is not in access.allowed_origins");
        }
    }
}

/// Whether the page is our own: by the browser's word, else by the name that it was reached under.
fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin" || site == "none";
    }
    let name = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    name.is_some_and(|(_, name)| host.is_some_and(|host| host.eq_ignore_ascii_case(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_origin_is_named_once_a_minute_and_ten_of_them_at_most() {
        let (unlisted, begin) = (Unlisted::default(), clock::now());
        let origin = |number: usize| HeaderValue::try_from(format!("https://{number}.example"));
        let named = |now| {
            (0..20).chain(0..20).filter(|n| unlisted.names(&origin(*n).unwrap(), now)).count()
        };
        assert_eq!(named(begin), MOST_NAMED);
        assert_eq!(named(begin + PERIOD - Duration::from_millis(1)), 0);
        assert_eq!(named(begin + PERIOD), MOST_NAMED);
    }
}
