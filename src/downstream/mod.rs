//! What every HTTP request meets before an endpoint sees it, in the order of `pipeline.rs`.
//!
//! Invariant: a layer here refuses before anything is bought, so every refusal is `charged: no`.

pub mod after;
pub mod body;
pub mod call;
pub mod caller;
pub mod catch;
pub mod cors;
mod credentials;
pub mod cross_site;
pub mod csrf;
pub mod dialect;
pub mod forwarded;
pub mod head;
mod hint;
pub mod host;
pub mod observe;
pub mod rate;
pub mod refusal_log;
pub mod route;
pub mod unlisted;

pub use call::{Call, RequestId};

use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue};

use crate::answer::{self, Answer};
use crate::config::blot;
use crate::problem::Problem;

/// A header that is refused, as a person may read it: escaped, cut, and without any key.
fn shown(value: Option<&HeaderValue>) -> String {
    const MOST: usize = 100;
    let text = String::from_utf8_lossy(value.map(HeaderValue::as_bytes).unwrap_or_default());
    let cut: String = blot(&text).chars().take(MOST).collect();
    cut.escape_debug().to_string()
}

/// A refusal of a request whose body, if it has one, was not read: the connection closes after it,
/// because what follows on it cannot be told apart from that body.
fn refuse<B: http_body::Body>(problem: Problem, headers: &HeaderMap, body: &B) -> Answer {
    let id = RequestId::of(headers);
    let mut refusal = answer::refusal(problem, id.as_str());
    if !body.is_end_stream() {
        refusal.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    refusal
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
