//! A message to a webhook, in the form of the Standard Webhooks specification.

use std::io;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use ring::hmac;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::clock::iso8601;
use crate::config::WebhookSecret;
use crate::ledger::OutboxEvent;

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// The members are those of OpenAI's events and of the specification's example.
#[derive(Serialize)]
struct Body<'a> {
    id: &'a str,
    object: &'static str,
    r#type: &'a str,
    created_at: u64,
    timestamp: String,
    sandbox: bool,
    data: &'a RawValue,
}

/// Returns the body of an event, which is the same at each attempt.
pub(super) fn body(event: &OutboxEvent, is_sandbox: bool) -> io::Result<Bytes> {
    let body = Body {
        id: &event.id,
        object: "event",
        r#type: &event.event,
        created_at: event.at.as_secs(),
        timestamp: iso8601(event.at),
        sandbox: is_sandbox,
        data: serde_json::from_str(&event.data)?,
    };
    Ok(serde_json::to_vec(&body)?.into())
}

/// Returns the headers of an attempt. Each secret adds a signature, so that a receiver may know
/// either the old or the new one.
pub(super) fn headers(
    id: &str,
    now: Duration,
    body: &[u8],
    secrets: &[WebhookSecret],
) -> io::Result<HeaderMap> {
    let stamp = now.as_secs().to_string();
    let signatures: Vec<_> = secrets.iter().map(|secret| sign(secret, id, &stamp, body)).collect();
    let value = |text: &str| HeaderValue::try_from(text).map_err(io::Error::other);
    Ok(HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (ID, value(id)?),
        (TIMESTAMP, value(&stamp)?),
        (SIGNATURE, value(&signatures.join(" "))?),
    ]))
}

fn sign(secret: &WebhookSecret, id: &str, stamp: &str, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose());
    let mut signing = hmac::Context::with_key(&key);
    for part in [id.as_bytes(), b".", stamp.as_bytes(), b".", body] {
        signing.update(part);
    }
    format!("v1,{}", STANDARD.encode(signing.sign()))
}
