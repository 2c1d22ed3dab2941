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
pub mod csrf;
pub mod forwarded;
pub mod head;
pub mod host;
pub mod observe;
pub mod rate;
pub mod route;

pub use call::{Call, RequestId};

use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue};

use crate::answer;
use crate::answer::Answer;
use crate::problem::Problem;

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
