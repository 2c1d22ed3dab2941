//! `POST /v1/chat/completions`

use bytes::Bytes;
use serde::Serialize;

use super::reply::{Said, Usage, Voice, refusal};
use super::stream;
use crate::answer::Answer;
use crate::clock;
use crate::problem::Problem;
use crate::purchase::Receipt;
use crate::routes::{Context, purchases};
use crate::validate;

/// Checks the chat, buys it, and answers in OpenAI's shape.
pub(crate) async fn buy(cx: Context) -> Result<Answer, Problem> {
    let wanted = validate::openai::chat(&cx.call.body, &cx.handlers.rules)?;
    let voice = Voice {
        id: format!("chatcmpl-{}", cx.call.id.as_str()),
        created: clock::wall().as_secs(),
        model: wanted.order.get().model.to_string(),
        wants_usage: wanted.wants_usage,
        redactor: cx.handlers.redactor.clone(),
    };
    let answer = match wanted.is_stream {
        true => stream::buy(&cx, wanted.order, voice).await?,
        false => whole(cx.buy(wanted.order).await?, &voice)?,
    };
    Ok(purchases::naming(&wanted.ignored, answer))
}

fn whole(receipt: Receipt, voice: &Voice) -> Result<Answer, Problem> {
    if !receipt.status.is_success() {
        return Ok(refusal(receipt, &voice.redactor));
    }
    let said = Said::read(&receipt, &voice.redactor)?;
    let body = completion(voice, &said);
    Ok(purchases::translated(Receipt { is_json: true, ..receipt }, body))
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: [Choice<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    message: Message<'a>,
    logprobs: Option<()>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<()>,
}

fn completion(voice: &Voice, said: &Said) -> Bytes {
    let message = Message { role: "assistant", content: &said.content, refusal: None };
    let completion = Completion {
        id: &voice.id,
        object: "chat.completion",
        created: voice.created,
        model: &voice.model,
        choices: [Choice { index: 0, message, logprobs: None, finish_reason: "stop" }],
        usage: said.usage,
    };
    // Strings and numbers: this cannot fail.
    serde_json::to_vec(&completion).unwrap_or_default().into()
}
