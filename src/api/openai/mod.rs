//! `/v1/…`: the same purchases in OpenAI's API, so that its SDKs work unchanged.

pub(super) mod chat;
pub(super) mod videos;

use bytes::Bytes;
use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::translation::{CONTENT_POINTER, ERROR_POINTERS, text_at};
use super::{HandlerContext, purchases};
use crate::gate::problem::{
    Charged, NOT_FOUND, OUTCOME_UNKNOWN, OpenAiError, Problem, openai_error_type,
};
use crate::gate::response::{self, HandlerResult, Response};
use crate::gateway::contract::catalog::Catalog;
use crate::gateway::contract::money::Usd;
use crate::gateway::redact::Redactor;
use crate::purchase::Receipt;

const PREFIX: &str = "/v1/models/";

pub(super) async fn models(cx: HandlerContext) -> HandlerResult {
    let catalog = cx.may_buy().filter(&cx.handlers.rules.catalog);
    let data: Vec<_> = all_models(&catalog).map(|(_, model)| model).collect();
    let list = json!({ "object": "list", "data": data });
    Ok(cx.for_this_caller(response::json(StatusCode::OK, &list)))
}

pub(super) async fn model(cx: HandlerContext) -> HandlerResult {
    let id = cx.call.head.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let id = percent_decode_str(id).decode_utf8_lossy();
    let catalog = cx.may_buy().filter(&cx.handlers.rules.catalog);
    let mut models = all_models(&catalog);
    let (_, model) = models.find(|(name, _)| *name == id).ok_or_else(|| {
        Problem::new(&NOT_FOUND).detail("no such model; GET /v1/models lists all models")
    })?;
    Ok(cx.for_this_caller(response::json(StatusCode::OK, &model)))
}

fn all_models(catalog: &Catalog) -> impl Iterator<Item = (&str, impl Serialize)> {
    // `created` is unknown, but strict clients need a number. `kind` and `price` are extensions.
    let model = |id, kind, price: Usd| {
        let model = json!({
            "id": id,
            "object": "model",
            "created": 0,
            "owned_by": "gateway",
            "kind": kind,
            "price": price.to_string(),
        });
        (id, model)
    };
    let chats = catalog.chat.iter().map(move |row| model(&*row.id, "chat", row.price()));
    chats.chain(catalog.video.iter().map(move |row| model(&*row.id, "video", row.price)))
}

/// Returns the JSON of a reply that was paid for, so that an error does not make it empty.
fn paid_json(reply: &impl Serialize) -> Result<Bytes, Problem> {
    serde_json::to_vec(reply).map(Bytes::from).map_err(|error| {
        tracing::error!(%error, "failed to write a paid reply");
        Problem::new(&OUTCOME_UNKNOWN).charged(Charged::Yes)
    })
}

fn gateway_refusal_json(receipt: &Receipt, redactor: &Redactor) -> Bytes {
    let reason = text_at(redactor, &receipt.body, ERROR_POINTERS);
    let status = receipt.status.as_u16();
    let reason = reason.map(|text| format!(": {text}"));
    let error = OpenAiError {
        message: format!(
            "the gateway refused the request with status {status}{}",
            reason.unwrap_or_default()
        ),
        error_type: openai_error_type(receipt.status),
        param: None,
        code: "refused_by_gateway",
        charged: Charged::No,
        budget: None,
        proof: None,
        errors: &[],
        gateway: serde_json::from_slice(&receipt.body).ok(),
    };
    error.to_json()
}

fn gateway_refusal(refused: Receipt, redactor: &Redactor) -> Response {
    let body = gateway_refusal_json(&refused, redactor);
    let response = purchases::from_receipt(Receipt { body, is_json: true, ..refused });
    response::with_retry_hint(response)
}

#[derive(Debug)]
struct Completion {
    content: String,
    usage: Option<Usage>,
}

/// Assumption: a gateway that counts tokens uses OpenAI's format.
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
            let problem = Problem::new(&OUTCOME_UNKNOWN)
                .charged(Charged::Yes)
                .detail("message.content is not Unicode; POST /api/v1/chat returns it unchanged");
            if receipt.is_replay { problem.replayed() } else { problem }
        })?;
        let usage = serde_json::from_slice::<UsageBody>(&receipt.body).ok();
        Ok(Self { content, usage: usage.map(|body| body.usage) })
    }
}
