//! Refuses heads that two parsers could read differently, before anybody acts on them.
//!
//! hyper has refused the worst (two lengths, obs-fold, bare CR). What it lets through and we do not:
//! more or fewer than one `Host`, a target that is not a path, transfer codings other than `chunked`,
//! bodies where none belongs.

use http::header::{HOST, TRANSFER_ENCODING};
use http::{Method, Version};

use super::step::{Onward, Step};
use super::{Arrival, Refusable, check};
use crate::problem::{MALFORMED_REQUEST, Problem};

/// Refuses heads that are not plain.
pub fn layer<B: http_body::Body>()
-> Step<impl Fn(Arrival<B>) -> Onward<Arrival<B>> + Clone + use<B>> {
    check(|request: &Arrival<B>| match fault(request) {
        None => Ok(()),
        Some(expected) => Err(Problem::new(&MALFORMED_REQUEST).detail(expected)),
    })
}

/// Returns what was expected instead of this head.
fn fault<B: http_body::Body>(request: &Arrival<B>) -> Option<&'static str> {
    let headers = request.headers();
    let uri = request.uri();
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        // HTTP/1.0 has none; `host` decides.
        (None, _) if request.version() == Version::HTTP_10 => {}
        (None, _) => return Some("expected a Host header"),
        (Some(_), Some(_)) => return Some("expected one Host header, not several"),
        (Some(_), None) => {}
    }
    if uri.scheme().is_some() || uri.authority().is_some() || !uri.path().starts_with('/') {
        return Some("expected a target that is a path, such as /api/v1/chat");
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next()
        && (codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return Some("expected Transfer-Encoding to be chunked, if anything");
    }
    let bodyless = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if bodyless && request.has_body() {
        return Some("expected no body with this method");
    }
    None
}
