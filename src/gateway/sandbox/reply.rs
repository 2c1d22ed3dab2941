//! The sandbox's responses and refusals, and the faults that a word in a prompt causes.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use serde_json::json;

use super::SandboxSettings;
use crate::clock;
use crate::gateway::contract::wire;
use crate::sync::lock;

pub(super) type SandboxResponse = Response<Full<Bytes>>;
pub(super) type SandboxResult = Result<SandboxResponse, Rejection>;

#[derive(Debug)]
pub(super) enum Rejection {
    Refused(Box<SandboxResponse>),
    Dropped,
}

pub(super) fn json(status: StatusCode, body: &impl Serialize) -> SandboxResponse {
    // Cannot fail: plain structs of strings and numbers.
    answer(status, "application/json", serde_json::to_vec(body).unwrap_or_default().into())
}

pub(super) fn answer(status: StatusCode, media_type: &'static str, body: Bytes) -> SandboxResponse {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    answer
}

/// Guess: the contract shows no errors except the two of [`refuse_key`] (7).
pub(super) fn refuse(status: StatusCode, message: &str) -> Rejection {
    let error = match status {
        StatusCode::PAYMENT_REQUIRED => "insufficient_credits",
        StatusCode::NOT_FOUND => "not_found",
        StatusCode::METHOD_NOT_ALLOWED => "method_not_allowed",
        StatusCode::PAYLOAD_TOO_LARGE => "payload_too_large",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "unsupported_media_type",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_exceeded",
        _ => "invalid_request",
    };
    refuse_as(status, error, message)
}

pub(super) fn refuse_key(error: &str, message: &str) -> Rejection {
    refuse_as(StatusCode::UNAUTHORIZED, error, message)
}

/// Guess: the contract does not show the fields of an error (7).
fn refuse_as(status: StatusCode, error: &str, message: &str) -> Rejection {
    Rejection::Refused(Box::new(json(status, &json!({ "error": error, "message": message }))))
}

/// Guess: a 429 has a `Retry-After` in whole seconds.
pub(super) fn limited(wait: Duration) -> Rejection {
    let whole = clock::ceil_seconds(wait).max(1);
    let message = format!("Too many requests: try again in {whole} s");
    refuse_with(StatusCode::TOO_MANY_REQUESTS, &message, RETRY_AFTER, &whole.to_string())
}

pub(super) fn refuse_method(allowed: &str) -> Rejection {
    refuse_with(StatusCode::METHOD_NOT_ALLOWED, &format!("Use {allowed}"), ALLOW, allowed)
}

fn refuse_with(status: StatusCode, message: &str, name: HeaderName, value: &str) -> Rejection {
    let mut rejection = refuse(status, message);
    if let (Rejection::Refused(answer), Ok(value)) = (&mut rejection, value.try_into()) {
        answer.headers_mut().insert(name, value);
    }
    rejection
}

/// The words in a prompt that cause a fault, and what each does. Of a chat, only the last user
/// message counts.
#[rustfmt::skip]
pub const SANDBOX_FAULTS: &[(&str, &str)] = &[
    ("sandbox:slow",    "charges, and answers late"),
    ("sandbox:drop",    "charges, then drops the connection without a reply"),
    ("sandbox:hang",    "charges, and never answers"),
    ("sandbox:502",     "charges, then answers 502 with a page of HTML"),
    ("sandbox:429",     "answers 429 without a charge; the same prompt passes when it is sent again"),
    ("sandbox:garbled", "charges, then answers 200 with broken JSON"),
    ("sandbox:broke",   "answers 402 without a charge: no credit is left"),
    ("sandbox:revoked", "answers 401 without a charge, as if the key had been revoked"),
    ("sandbox:fail",    "charges for a video whose job then fails; answers a chat normally"),
];

const WORD_START: &str = "sandbox:";
const LIMITED_WAIT: Duration = Duration::from_secs(2);
const MAX_REFUSED: usize = 10_000;

const HTML_502: &str = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n\
    <center><h1>502 Bad Gateway</h1></center>\r\n</body>\r\n</html>\r\n";
const GARBLED: &str =
    "{\"id\":\"9f2c\",\"message\":{\"role\":\"assistant\",\"content\":\"It was a br";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SandboxFault(pub(super) &'static str);

impl SandboxFault {
    pub(super) fn of(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        let fault = |(at, start): (usize, &str)| {
            let rest = text[at + start.len()..].bytes();
            let length = rest.take_while(u8::is_ascii_alphanumeric).count();
            let written = &text[at..at + start.len() + length];
            SANDBOX_FAULTS.iter().find(|(word, _)| *word == written).map(|(word, _)| Self(word))
        };
        text.match_indices(WORD_START).find_map(fault).unwrap_or(Self(""))
    }

    pub(super) fn refuse(self, prompt: &str, refused: &RefusedOnce) -> Result<(), Rejection> {
        match self.0 {
            "sandbox:broke" => Err(refuse(StatusCode::PAYMENT_REQUIRED, "No credit is left")),
            "sandbox:revoked" => {
                Err(refuse_key(wire::INVALID_API_KEY, "The API key has been revoked"))
            }
            "sandbox:429" if refused.is_first_try(prompt) => Err(limited(LIMITED_WAIT)),
            _ => Ok(()),
        }
    }

    pub(super) async fn delay(self, settings: &SandboxSettings) -> Result<(), Rejection> {
        let wait = match self.0 {
            "sandbox:drop" => return Err(Rejection::Dropped),
            "sandbox:hang" => settings.hang,
            "sandbox:slow" => settings.slow,
            _ => settings.reply_delay,
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        if self.0 == "sandbox:hang" { Err(Rejection::Dropped) } else { Ok(()) }
    }

    pub(super) fn finish(self, body: &impl Serialize) -> SandboxResponse {
        match self.0 {
            "sandbox:502" => answer(StatusCode::BAD_GATEWAY, "text/html", HTML_502.into()),
            "sandbox:garbled" => answer(StatusCode::OK, "application/json", GARBLED.into()),
            _ => json(StatusCode::OK, body),
        }
    }
}

/// The prompts that `sandbox:429` refused and that were not retried yet.
#[derive(Default)]
pub(super) struct RefusedOnce(Mutex<HashSet<[u8; 32]>>);

impl RefusedOnce {
    /// Returns `true` and `false` in turn for a prompt, so that the fault can be tested repeatedly.
    fn is_first_try(&self, prompt: &str) -> bool {
        let prompt = *blake3::hash(prompt.as_bytes()).as_bytes();
        let mut waiting = lock(&self.0);
        if waiting.remove(&prompt) {
            return false;
        }
        if waiting.len() >= MAX_REFUSED {
            waiting.clear();
        }
        waiting.insert(prompt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_its_own_fault_and_says_what_it_does() {
        for (word, does) in SANDBOX_FAULTS {
            assert_eq!(SandboxFault::of(word), SandboxFault(word));
            assert_eq!(
                SandboxFault::of(&format!("Please (Sandbox:{}), now", &word[8..])),
                SandboxFault(word)
            );
            assert_eq!(SandboxFault::of(&format!("{word}ly")), SandboxFault(""));
            assert!(!does.is_empty());
        }
        let words: HashSet<_> = SANDBOX_FAULTS.iter().map(|(word, _)| word).collect();
        assert_eq!(words.len(), SANDBOX_FAULTS.len());
    }

    #[test]
    fn first_fault_word_wins() {
        assert_eq!(
            SandboxFault::of("sandbox: sandbox:nap sandbox:drop sandbox:slow"),
            SandboxFault("sandbox:drop")
        );
        assert_eq!(SandboxFault::of("a sandbox on the beach, é sandbox:"), SandboxFault(""));
    }
}
