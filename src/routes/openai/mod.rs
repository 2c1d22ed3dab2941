//! `/v1/…`: the same purchases in OpenAI's dialect, so that its SDKs work unchanged (`docs/guide/openai.md`).

pub(super) mod chat;
pub(super) mod videos;

use bytes::Bytes;
use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

use super::purchases;
use crate::contract::catalog::Catalog;
use crate::contract::money::Usd;
use crate::jobs::status;
use crate::problem::{
    Charged, NOT_FOUND, OUTCOME_UNKNOWN, OpenAiError, Problem, SHOULD_RETRY, is_retried_by_sdks,
    openai_error_type,
};
use crate::purchase::Receipt;
use crate::redact::Redactor;
use crate::response::{self, Response};

const PREFIX: &str = "/v1/models/";

#[derive(Serialize)]
struct ModelList<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    /// Nobody knows; strict clients want a number.
    created: u64,
    owned_by: &'static str,
    /// Ours: which endpoint takes it.
    kind: &'static str,
    price: String,
}

pub(super) fn models(catalog: &Catalog) -> Response {
    response::json(
        StatusCode::OK,
        &ModelList { object: "list", data: all_models(catalog).collect() },
    )
}

pub(super) fn model(catalog: &Catalog, path: &str) -> Result<Response, Problem> {
    let id = path.strip_prefix(PREFIX).unwrap_or_default();
    let id = percent_decode_str(id).decode_utf8_lossy();
    let model = all_models(catalog).find(|model| model.id == id).ok_or_else(|| {
        Problem::new(&NOT_FOUND)
            .detail("there is no such model; GET /v1/models lists those on offer")
    })?;
    Ok(response::json(StatusCode::OK, &model))
}

fn all_models(catalog: &Catalog) -> impl Iterator<Item = Model<'_>> {
    let model = |id, kind, price: Usd| Model {
        id,
        object: "model",
        created: 0,
        owned_by: "gateway",
        kind,
        price: price.to_string(),
    };
    let chats = catalog.chat.iter().map(move |row| model(&*row.id, "chat", row.price()));
    chats.chain(catalog.video.iter().map(move |row| model(&*row.id, "video", row.price)))
}

/// Where the gateway's reply has its text (2.4).
const CONTENT_POINTER: &str = "/message/content";
/// Guess: where the body of a refusal has words for people (7 does not show its shape).
const ERROR_POINTERS: &[&str] = &["/error/message", "/message", "/detail", "/error"];

/// The text in the gateway's JSON at the first of `pointers` that leads to one. It is searched for keys
/// after it was decoded, too, as it is written out anew.
fn text_at(redactor: &Redactor, body: &[u8], pointers: &[&str]) -> Option<String> {
    let pointers: Vec<_> = pointers.iter().map(|pointer| (*pointer).to_owned()).collect();
    status::text_at(body, &pointers).map(|text| redactor.redact_text(text))
}

fn gateway_refusal_json(receipt: &Receipt, redactor: &Redactor) -> Bytes {
    let words = text_at(redactor, &receipt.body, ERROR_POINTERS).map(|words| format!(": {words}"));
    let (status, words) = (receipt.status.as_u16(), words.unwrap_or_default());
    let error = OpenAiError {
        message: format!("the gateway refused it with status {status}{words}"),
        error_type: openai_error_type(receipt.status),
        param: None,
        code: "refused_by_gateway",
        charged: Charged::No,
        errors: &[],
        gateway: serde_json::from_slice(&receipt.body).ok(),
    };
    error.to_json()
}

fn gateway_refusal(refused: Receipt, redactor: &Redactor) -> Response {
    let (body, status) = (gateway_refusal_json(&refused, redactor), refused.status);
    let answer = purchases::from_receipt(Receipt { body, is_json: true, ..refused });
    if is_retried_by_sdks(status) {
        answer
    } else {
        response::with_headers(answer, [(SHOULD_RETRY, "false")])
    }
}

#[derive(Debug)]
struct Completion {
    content: String,
    usage: Option<Usage>,
}

/// Guess: a gateway that counts tokens says so as OpenAI does. Where it does not, nothing is said.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
}

#[derive(Deserialize)]
struct UsageBody {
    usage: Usage,
}

impl Completion {
    fn parse(receipt: &Receipt, redactor: &Redactor) -> Result<Self, Problem> {
        let content = text_at(redactor, &receipt.body, &[CONTENT_POINTER]).ok_or_else(|| {
            let problem = Problem::new(&OUTCOME_UNKNOWN).charged(Charged::Yes).detail(
                "the gateway's reply has no message.content; POST /api/v1/chat shows it as it is",
            );
            if receipt.is_replay { problem.replayed() } else { problem }
        })?;
        let usage = serde_json::from_slice::<UsageBody>(&receipt.body).ok();
        Ok(Self { content, usage: usage.map(|counted| counted.usage) })
    }
}
