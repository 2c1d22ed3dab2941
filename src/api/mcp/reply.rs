//! The results of tools, as responses. A refusal is a result, too, so that the model can act on it.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::protocol::{self, Revision, result_type};
use super::with_no_store;
use crate::api::HandlerContext;
use crate::api::reports::text::strip_controls;
use crate::api::translation::with_translated_body;
use crate::api::validate::mcp::QUESTION;
use crate::gate::problem::{
    Charged, FieldError, IDEMPOTENCY_KEY_REUSED, INVALID_IDEMPOTENCY_KEY, Problem,
};
use crate::gate::response::{self, Response};
use crate::purchase::Receipt;

/// The length limit for quoted gateway text.
const MAX_QUOTED: usize = 500;

/// The outcome of a tool call.
pub(super) enum Outcome {
    Done(Done),
    /// The user has to confirm first. The client echoes the state with the answer.
    Ask {
        question: String,
        state: String,
    },
}

/// The result of a successful call.
pub(super) struct Done {
    pub(super) text: String,
    pub(super) structured: Box<RawValue>,
    pub(super) is_error: bool,
    /// The receipt of a purchase, for the headers with its cost and id.
    pub(super) receipt: Option<Receipt>,
}

impl Done {
    pub(super) fn new(text: impl Into<String>, structured: &impl Serialize) -> Self {
        let structured = raw(structured);
        Self { text: text.into(), structured, is_error: false, receipt: None }
    }

    /// The text is the JSON document.
    pub(super) fn facts(structured: Box<RawValue>) -> Self {
        let text = structured.get().to_owned();
        Self { text, structured, is_error: false, receipt: None }
    }
}

/// The reason why a call failed or its outcome is unknown.
pub(super) struct Refusal {
    problem: Box<Problem>,
    /// The quote that was used, if there was one.
    quote: Option<String>,
}

impl Refusal {
    pub(super) fn with_quote(problem: Problem, quote: &impl ToString) -> Self {
        Self { problem: Box::new(problem), quote: Some(quote.to_string()) }
    }

    /// Returns the text for the model: what happened, whether it was charged, what to do next.
    fn text(&self) -> String {
        let Self { problem, quote } = self;
        let kind = problem.kind();
        // The model knows no keys, only quotes.
        let is_about_key = [&IDEMPOTENCY_KEY_REUSED, &INVALID_IDEMPOTENCY_KEY].contains(&kind);
        let title = if is_about_key { "The quote cannot be used" } else { kind.title };
        let mut text = format!("{title}. ");
        match problem.detail_text() {
            Some(_) if problem.errors().len() > 1 => {
                for FieldError { pointer, detail, .. } in problem.errors() {
                    text += &format!("{pointer}: {detail}. ");
                }
            }
            Some(detail) => text += &format!("{}. ", detail.trim_end_matches('.')),
            None if problem.charge() == Charged::No => text += &format!("{} ", kind.advice),
            None => {}
        }
        text += match problem.charge() {
            Charged::No => "Nothing was charged.",
            Charged::Yes => "It was charged. Do not order it again.",
            Charged::Unknown => "It may have been charged. Do not order it again.",
        };
        if let (Charged::Yes | Charged::Unknown, Some(quote)) = (problem.charge(), quote) {
            text += &format!(
                " Ask with the same quote: call the same tool with the same arguments and quote \
                 {quote}. That never buys a second time, and it returns the answer once it is known."
            );
        }
        if let Some(delay) = problem.retry_delay() {
            text += &format!(" Wait {} seconds before you try again.", delay.as_secs());
        }
        text
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self { problem: Box::new(problem), quote: None }
    }
}

/// The request that a result belongs to.
pub(super) struct Frame {
    cx: Arc<HandlerContext>,
    revision: Revision,
    id: Box<RawValue>,
}

impl Frame {
    pub(super) fn new(cx: &Arc<HandlerContext>, revision: Revision, id: &RawValue) -> Self {
        Self { cx: Arc::clone(cx), revision, id: id.to_owned() }
    }

    pub(super) fn response(&self, outcome: Result<Outcome, Refusal>) -> Response {
        let (body, receipt) = self.render(outcome);
        match receipt {
            None => with_no_store(response::from_bytes(StatusCode::OK, "application/json", body)),
            Some(receipt) => {
                let receipt = Receipt { status: StatusCode::OK, is_json: true, ..receipt };
                with_translated_body(receipt, body)
            }
        }
    }

    /// Returns the JSON-RPC response, and the receipt of a purchase.
    pub(super) fn render(&self, outcome: Result<Outcome, Refusal>) -> (Bytes, Option<Receipt>) {
        let done = match outcome {
            Ok(Outcome::Ask { question, state }) => {
                let result = input_required(&question, &state);
                return (protocol::result_json(self.revision, &self.id, &result), None);
            }
            Ok(Outcome::Done(done)) => done,
            Err(refusal) => self.refused(refusal),
        };
        let result = ToolResult {
            kind: result_type(self.revision, "complete"),
            content: [Text { kind: "text", text: &done.text }],
            structured: &done.structured,
            is_error: done.is_error,
        };
        (protocol::result_json(self.revision, &self.id, &result), done.receipt)
    }

    fn refused(&self, refusal: Refusal) -> Done {
        let call = &self.cx.call;
        self.cx.handlers.refusal_log.late(&refusal.problem, &call.caller);
        let text = refusal.text();
        let document = refusal.problem.below(&self.cx.handlers.prefix).to_json(call.id.as_str());
        Done { text, structured: raw_bytes(&document), is_error: true, receipt: None }
    }
}

#[derive(Serialize)]
struct ToolResult<'a> {
    #[serde(rename = "resultType", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    content: [Text<'a>; 1],
    #[serde(rename = "structuredContent")]
    structured: &'a RawValue,
    #[serde(rename = "isError")]
    is_error: bool,
}

#[derive(Serialize)]
struct Text<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
}

fn input_required(question: &str, state: &str) -> Value {
    // A form without fields: the user accepts or declines.
    let schema = json!({ "type": "object", "properties": {} });
    let params = json!({ "mode": "form", "message": question, "requestedSchema": schema });
    json!({
        "resultType": "input_required",
        "inputRequests": { QUESTION: { "method": "elicitation/create", "params": params } },
        "requestState": state,
    })
}

/// Quotes gateway text for the model, as one shortened line.
pub(super) fn quoted(text: &str) -> String {
    let line = strip_controls(text).replace(['\u{2028}', '\u{2029}'], "");
    let short: String = line.chars().take(MAX_QUOTED).collect();
    Value::from(short).to_string()
}

/// Quotes an id or a URL of the gateway. An unusable one is left out: the result has it as data.
pub(super) fn quoted_word(text: &str) -> Option<String> {
    let is_word = text.len() <= MAX_QUOTED && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_word.then(|| quoted(text))
}

pub(super) fn raw(document: &impl Serialize) -> Box<RawValue> {
    // Serializing plain data cannot fail.
    serde_json::value::to_raw_value(document).unwrap_or_else(|_| nothing())
}

/// Returns a JSON document unchanged.
pub(super) fn raw_bytes(document: &Bytes) -> Box<RawValue> {
    serde_json::from_slice(document).unwrap_or_else(|_| nothing())
}

fn nothing() -> Box<RawValue> {
    RawValue::NULL.to_owned()
}
