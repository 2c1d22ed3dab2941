//! How the sandbox's answers and refusals look, and the words in a prompt that make it misbehave, so that an
//! app's error handling can be tried.

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
use crate::contract::wire;
use crate::sync::lock;

pub(super) type SandboxResponse = Response<Full<Bytes>>;
pub(super) type SandboxResult = Result<SandboxResponse, Rejection>;

#[derive(Debug)]
pub(super) enum Rejection {
    Refused(Box<SandboxResponse>),
    Dropped,
}

/// A kind of refusal. Only the two of 401 are the contract's (7); it shows no other error, so the
/// rest are guesses.
#[derive(Clone, Copy, Debug)]
pub(super) struct SandboxRefusal(StatusCode, &'static str);

pub(super) const NO_KEY: SandboxRefusal =
    SandboxRefusal(StatusCode::UNAUTHORIZED, wire::MISSING_API_KEY);
pub(super) const BAD_KEY: SandboxRefusal =
    SandboxRefusal(StatusCode::UNAUTHORIZED, wire::INVALID_API_KEY);
pub(super) const INVALID: SandboxRefusal =
    SandboxRefusal(StatusCode::BAD_REQUEST, "invalid_request");
pub(super) const NO_CREDIT: SandboxRefusal =
    SandboxRefusal(StatusCode::PAYMENT_REQUIRED, "insufficient_credits");
pub(super) const NOT_FOUND: SandboxRefusal = SandboxRefusal(StatusCode::NOT_FOUND, "not_found");
pub(super) const BAD_METHOD: SandboxRefusal =
    SandboxRefusal(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed");
pub(super) const TOO_LARGE: SandboxRefusal =
    SandboxRefusal(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large");
pub(super) const NOT_JSON: SandboxRefusal =
    SandboxRefusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type");
const LIMITED: SandboxRefusal =
    SandboxRefusal(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded");

pub(super) fn json(status: StatusCode, body: &impl Serialize) -> SandboxResponse {
    // Plain structs of strings and numbers, for which this cannot fail.
    answer(status, "application/json", serde_json::to_vec(body).unwrap_or_default().into())
}

pub(super) fn answer(status: StatusCode, media_type: &'static str, body: Bytes) -> SandboxResponse {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    answer
}

/// "Shape of the error body: not shown" (7). Guess: these two fields.
pub(super) fn refuse(SandboxRefusal(status, error): SandboxRefusal, message: &str) -> Rejection {
    let body = json!({ "error": error, "message": message });
    Rejection::Refused(Box::new(json(status, &body)))
}

/// The refusal of a full window. Guess: a 429 that says when to return, in whole seconds.
pub(super) fn limited(wait: Duration) -> Rejection {
    let whole = clock::ceil_seconds(wait).max(1);
    let message = format!("Too many requests: try again in {whole} s");
    refuse_with(LIMITED, &message, RETRY_AFTER, &whole.to_string())
}

pub(super) fn refuse_method(allowed: &str) -> Rejection {
    refuse_with(BAD_METHOD, &format!("Use {allowed}"), ALLOW, allowed)
}

fn refuse_with(refusal: SandboxRefusal, message: &str, name: HeaderName, value: &str) -> Rejection {
    let mut stop = refuse(refusal, message);
    if let (Rejection::Refused(answer), Ok(value)) = (&mut stop, HeaderValue::from_str(value)) {
        answer.headers_mut().insert(name, value);
    }
    stop
}

/// Every word that changes the sandbox's fault, and what it does: for `docs/guide/getting-started.md`
/// and the page. A word counts in a video's prompt and in a chat's last user message.
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
    ("sandbox:fail",    "charges for a video whose job ends as failed; a chat is answered"),
];

const WORD_START: &str = "sandbox:";
const LIMITED_WAIT: Duration = Duration::from_secs(2);
const MAX_REFUSED: usize = 10_000;

const HTML_502: &str = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n\
    <center><h1>502 Bad Gateway</h1></center>\r\n</body>\r\n</html>\r\n";
const GARBLED: &str =
    "{\"id\":\"9f2c\",\"message\":{\"role\":\"assistant\",\"content\":\"It was a br";

/// One of [`SANDBOX_FAULTS`], or nothing.
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
            "sandbox:broke" => Err(refuse(NO_CREDIT, "No credit is left")),
            "sandbox:revoked" => Err(refuse(BAD_KEY, "The API key has been revoked")),
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

/// The prompts that `sandbox:429` refused and that have not come again yet.
#[derive(Default)]
pub(super) struct RefusedOnce(Mutex<HashSet<[u8; 32]>>);

impl RefusedOnce {
    /// Every other try is a first one, so that a person can watch it more than once.
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
    fn the_first_word_that_is_one_decides() {
        assert_eq!(
            SandboxFault::of("sandbox: sandbox:nap sandbox:drop sandbox:slow"),
            SandboxFault("sandbox:drop")
        );
        assert_eq!(SandboxFault::of("a sandbox on the beach, é sandbox:"), SandboxFault(""));
    }
}
