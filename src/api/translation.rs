//! The common parts of endpoints in other formats: the texts of a gateway's reply, and translated responses.

use bytes::Bytes;

use super::purchases;
use crate::gate::response::Response;
use crate::gateway::redact::Redactor;
use crate::purchase::Receipt;
use crate::video::status;

/// The text in the gateway's reply.
pub(super) const CONTENT_POINTER: &str = "/message/content";
/// Assumption: where a refusal has its message.
pub(super) const ERROR_POINTERS: &[&str] = &["/error/message", "/message", "/detail", "/error"];

/// Returns the text at the first of `pointers` that has one. Decoding may reveal keys, so it is
/// redacted again.
pub(super) fn text_at(redactor: &Redactor, body: &[u8], pointers: &[&str]) -> Option<String> {
    let pointers: Vec<_> = pointers.iter().map(|pointer| (*pointer).to_owned()).collect();
    status::text_at(body, &pointers).map(|text| redactor.redact_text(text))
}

/// Answers with a translated body. A replay's original body lives as long, because the memory
/// permit that it carries covers both.
pub(super) fn with_translated_body(receipt: Receipt, body: Bytes) -> Response {
    let original = receipt.is_replay.then(|| receipt.body.clone());
    let response = purchases::from_receipt(Receipt { body, ..receipt });
    match original {
        Some(original) => response.map(|body| body.with_guard(original)),
        None => response,
    }
}
