//! The gateway's own refusals in OpenAI's shape: they pass with their status, uncharged.

use bytes::Bytes;
use http::HeaderValue;
use serde::Serialize;
use serde_json::value::RawValue;

use super::text_at;
use crate::answer::Answer;
use crate::problem::{Charged, SHOULD_RETRY, family, is_sent_again};
use crate::purchase::Receipt;
use crate::redact::Redactor;
use crate::routes::receipt;

/// Guess: where the body of a refusal has words for people (7 does not show its shape).
const WORDS: &[&str] = &["/error/message", "/message", "/detail", "/error"];

#[derive(Serialize)]
struct Document<'a> {
    error: Told<'a>,
}

#[derive(Serialize)]
struct Told<'a> {
    message: String,
    #[serde(rename = "type")]
    family: &'static str,
    param: Option<&'static str>,
    code: &'static str,
    charged: Charged,
    /// The gateway's body as it came, where it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<&'a RawValue>,
}

/// What the gateway said, to be read by SDKs.
pub(super) fn document(receipt: &Receipt, redactor: &Redactor) -> Bytes {
    let words = text_at(redactor, &receipt.body, WORDS).map(|words| format!(": {words}"));
    let document = Document {
        error: Told {
            message: format!(
                "the gateway refused it with status {}{}",
                receipt.status.as_u16(),
                words.unwrap_or_default()
            ),
            family: family(receipt.status),
            param: None,
            code: "refused_by_gateway",
            charged: Charged::No,
            gateway: serde_json::from_slice(&receipt.body).ok(),
        },
    };
    // Strings and JSON that was read before: this cannot fail.
    serde_json::to_vec(&document).unwrap_or_default().into()
}

/// The answer that it is.
pub(super) fn answer(refused: Receipt, redactor: &Redactor) -> Answer {
    let (body, status) = (document(&refused, redactor), refused.status);
    let mut answer = receipt::answer(Receipt { body, is_json: true, ..refused });
    if !is_sent_again(status) {
        answer.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    answer
}
