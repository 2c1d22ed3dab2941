//! Parses the gateway's replies and decides which of them reach a caller.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use serde::de::IgnoredAny;

use super::{Error, GatewayCall, UnparsableReply};
use crate::gateway::contract::money::Usd;
use crate::gateway::contract::video::{VideoAccepted, is_request_id};
use crate::gateway::contract::wire::is_chat_reply;

/// A reply that may reach a caller: a success as the contract describes it, or a final refusal.
#[derive(Clone, Debug)]
pub struct GatewayReply {
    pub status: StatusCode,
    /// A refusal may have any body.
    pub is_json: bool,
    /// Unchanged, except that keys are redacted.
    pub body: Bytes,
    /// The index of the key that was used.
    pub key: usize,
    pub video: Option<VideoAccepted>,
}

impl GatewayReply {
    /// Rejects a reply by its status and headers, before the body is read.
    pub fn check_head(status: StatusCode, headers: &HeaderMap, key: usize) -> Result<(), Error> {
        match status {
            StatusCode::UNAUTHORIZED => return Err(Error::KeyRejected { key }),
            StatusCode::TOO_MANY_REQUESTS => {
                return Err(Error::Throttled { retry_after: retry_after(headers) });
            }
            _ if status.is_success() || REFUSALS.contains(&status) => {}
            _ => return Err(Error::Status(status)),
        }
        let plain =
            |coding: &http::HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"identity");
        if headers.get_all(CONTENT_ENCODING).iter().all(plain) {
            Ok(())
        } else {
            Err(Error::Encoded)
        }
    }

    /// Checks the body of a success against the contract. The body stays unchanged.
    pub fn parse(
        call: &GatewayCall,
        status: StatusCode,
        body: Bytes,
        key: usize,
    ) -> Result<Self, Error> {
        let is_json = || serde_json::from_slice::<IgnoredAny>(&body).is_ok();
        if !status.is_success() {
            let is_json = is_json();
            // No key is found in other encodings.
            let body = if str::from_utf8(&body).is_ok() { body } else { Bytes::new() };
            return Ok(Self { status, is_json, body, key, video: None });
        }
        let mut video = None;
        let is_valid = match call {
            GatewayCall::Chat(_) if is_chat_reply(&body) => true,
            GatewayCall::Chat(_) if is_object(&body) && is_json() => {
                return Err(Error::NoContent(UnparsableReply::from_body(&body)));
            }
            GatewayCall::Chat(_) => false,
            GatewayCall::Video(_) => {
                video = VideoAccepted::read(&body);
                if video.as_ref().is_some_and(|video| !is_request_id(&video.request_id)) {
                    return Err(Error::BadRequestId(UnparsableReply::from_body(&body)));
                }
                video.is_some()
            }
            GatewayCall::VideoStatus { .. } | GatewayCall::Billing => is_object(&body) && is_json(),
            // Guess: JSON, like all endpoints of the contract (4).
            GatewayCall::Passthrough { .. } => is_json(),
        };
        if !is_valid {
            return Err(Error::Unparsable(status, UnparsableReply::from_body(&body)));
        }
        Ok(Self { status, is_json: true, body, key, video })
    }

    /// Returns the remaining credit, if the reply states it (2.5).
    pub fn balance(&self) -> Option<Usd> {
        self.video.as_ref().and_then(|video| video.balance)
    }
}

/// Final refusals. Guess: they are free (the contract shows no such errors).
pub(super) const REFUSALS: &[StatusCode] = &[
    StatusCode::BAD_REQUEST,
    StatusCode::PAYMENT_REQUIRED,
    StatusCode::FORBIDDEN,
    StatusCode::NOT_FOUND,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::UNPROCESSABLE_ENTITY,
];

/// The longest `Retry-After` that is respected.
const MAX_WAIT: Duration = Duration::from_secs(3_600);

fn is_object(body: &[u8]) -> bool {
    body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}

/// Ignores HTTP dates, because the gateway's clock may differ from ours.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_successes_and_definitive_refusals_pass() {
        let headers = HeaderMap::new();
        for status in 100..600 {
            let status = StatusCode::from_u16(status).unwrap();
            let passes = GatewayReply::check_head(status, &headers, 0).is_ok();
            let expected =
                matches!(status.as_u16(), 200..=299 | 400 | 402 | 403 | 404 | 413 | 415 | 422);
            assert_eq!(passes, expected, "{status}");
        }
    }

    #[test]
    fn refusal_in_another_encoding_than_utf8_loses_its_body() {
        for (body, kept) in [(&b"no such model \xc3\xa9"[..], true), (b"\xff\xfen\0o\0", false)] {
            let (call, body) = (GatewayCall::Chat(Bytes::new()), Bytes::from_static(body));
            let reply = GatewayReply::parse(&call, StatusCode::NOT_FOUND, body.clone(), 0).unwrap();
            assert_eq!(reply.body, if kept { body } else { Bytes::new() });
        }
    }

    #[test]
    fn success_that_breaks_the_contract_is_unparsable() {
        let chat = || GatewayCall::Chat(Bytes::new());
        let video = || GatewayCall::Video(Bytes::new());
        let other = || GatewayCall::Passthrough {
            method: http::Method::POST,
            path: "/api/v1/search".into(),
            body: Bytes::new(),
        };
        for (what, body, passes) in [
            (chat(), r#"{"message":{"content":"hi"}}"#, true),
            (chat(), r#" {"message":{"role":"assistant","content":""},"n":1e999} "#, true),
            (chat(), r#"{"message":{"content":"\ud800"}}"#, true),
            (chat(), r#" {"message":{}} "#, false),
            (chat(), r#"{"message":{"content":null}}"#, false),
            (chat(), r#"{"message":{"content":["hi"]}}"#, false),
            (chat(), r#"{"message":"hi"}"#, false),
            (chat(), r#"{"error":"no credit"}"#, false),
            (chat(), r#"{"message":{"content":"hi"}}{}"#, false),
            (chat(), "", false),
            (chat(), "[]", false),
            (chat(), "{\"message\"", false),
            (chat(), "<html>", false),
            (chat(), "{}{}", false),
            (video(), r#"{"request_id":"r","cost":{"this_request":"$3.00"}}"#, true),
            (video(), r#"{"request_id":"r","balance":"$1.00","more":[1]}"#, true),
            (video(), r#"{"id":"r"}"#, false),
            (video(), r#"{"request_id":"r\u0000"}"#, false),
            (video(), r#"{"request_id":""}"#, false),
            (other(), "[]", true),
            (other(), "7", true),
            (other(), "", false),
            (other(), "<html>", false),
        ] {
            let body = Bytes::from_static(body.as_bytes());
            let judged = GatewayReply::parse(&what, StatusCode::OK, body.clone(), 0);
            assert_eq!(judged.is_ok(), passes, "{body:?}");
            assert!(GatewayReply::parse(&what, StatusCode::BAD_REQUEST, body, 0).is_ok());
        }
    }
}
