//! Leaves a trace in the log of pages that may not read our answers: their browsers only ask first
//! (preflights) or read, and nothing else would tell an operator which origin to list.

use std::sync::Arc;

use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, HOST, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request};

use super::refusal_log::{RefusalLog, Refused};
use super::route::is_reserved;
use crate::answer::Answer;

/// A request of another site, whose answer tells whether it may be read.
#[derive(Debug)]
pub struct Trace {
    origin: HeaderValue,
    asked: &'static str,
    refusals: Arc<RefusalLog>,
}

/// What to look at again when the answer is there, where another site asks for something of the API.
/// Methods that spend are not looked at: `csrf` refuses them, and says so.
pub(super) fn watch<B>(request: &Request<B>, refusals: &Arc<RefusalLog>) -> Option<Trace> {
    let origin = request.headers().get(ORIGIN)?;
    let asked = match request.method() {
        &Method::OPTIONS => "a preflight",
        &Method::GET | &Method::HEAD => "a read",
        _ => return None,
    };
    let is_other = is_reserved(request.uri().path()) && !is_own(origin, request.headers());
    is_other.then(|| Trace { origin: origin.clone(), asked, refusals: Arc::clone(refusals) })
}

impl Trace {
    /// Names the origin where its page cannot read this answer.
    pub(super) fn judge(self, answer: &Answer) {
        if !answer.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            self.refusals.log(Refused::Origin(self.asked), Some(&self.origin));
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
