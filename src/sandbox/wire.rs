//! How the make-believe gateway's answers and refusals look on the wire.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;

use crate::contract::wire::{INVALID_API_KEY, MISSING_API_KEY};

/// What goes back.
pub(super) type Answer = Response<Full<Bytes>>;
/// An answer, or why there is none of the usual kind.
pub(super) type Reply = Result<Answer, Stop>;

/// What ends a call early.
#[derive(Debug)]
pub(super) enum Stop {
    /// It is refused, uncharged.
    Refused(Box<Answer>),
    /// The connection is closed without a reply.
    Dropped,
}

/// A kind of refusal. Only the two of 401 are the contract's (7); it shows no other error, so the
/// rest are guesses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal(StatusCode, &'static str);

pub(super) const NO_KEY: Refusal = Refusal(StatusCode::UNAUTHORIZED, MISSING_API_KEY);
pub(super) const BAD_KEY: Refusal = Refusal(StatusCode::UNAUTHORIZED, INVALID_API_KEY);
/// Guess.
pub(super) const INVALID: Refusal = Refusal(StatusCode::BAD_REQUEST, "invalid_request");
/// Guess.
pub(super) const NO_CREDIT: Refusal = Refusal(StatusCode::PAYMENT_REQUIRED, "insufficient_credits");
/// Guess.
pub(super) const NOT_FOUND: Refusal = Refusal(StatusCode::NOT_FOUND, "not_found");
/// Guess.
pub(super) const BAD_METHOD: Refusal =
    Refusal(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed");
/// Guess.
pub(super) const TOO_LARGE: Refusal = Refusal(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large");
/// Guess.
pub(super) const NOT_JSON: Refusal =
    Refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type");
const LIMITED: Refusal = Refusal(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded");

/// "Shape of the error body: not shown" (7). Guess: these two fields.
#[derive(Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
    message: &'a str,
}

/// An answer of 200 with a JSON body.
pub(super) fn json(body: &impl Serialize) -> Answer {
    answer(StatusCode::OK, "application/json", to_bytes(body))
}

/// An answer with this body.
pub(super) fn answer(status: StatusCode, media_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    answer
}

/// A refusal, with what is particular to this request.
pub(super) fn refuse(Refusal(status, error): Refusal, message: &str) -> Stop {
    let body = to_bytes(&ErrorBody { error, message });
    Stop::Refused(Box::new(answer(status, "application/json", body)))
}

/// The refusal of a full window. Guess: a 429 that says when to return, in whole seconds.
pub(super) fn limited(wait: Duration) -> Stop {
    let whole = (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1);
    let mut stop = refuse(LIMITED, &format!("Too many requests: try again in {whole} s"));
    if let Stop::Refused(answer) = &mut stop {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(whole));
    }
    stop
}

fn to_bytes(body: &impl Serialize) -> Bytes {
    // Plain structs of strings and numbers, for which this cannot fail.
    serde_json::to_vec(body).unwrap_or_default().into()
}
