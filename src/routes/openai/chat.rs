//! `POST /v1/chat/completions`

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tower::ServiceExt;

use super::{Purchases, refusal, stream, text_at};
use crate::answer::Answer;
use crate::clock;
use crate::downstream::Call;
use crate::problem::{Charged, OUTCOME_UNKNOWN, Problem};
use crate::purchase::{Purchase, Receipt};
use crate::redact::Redactor;
use crate::routes::{Parts, claim, receipt};
use crate::validate;

/// Where the gateway's reply has its text (2.4).
const CONTENT: &str = "/message/content";

/// Checks the chat, buys it, and says the gateway's reply in OpenAI's shape.
pub(super) async fn buy(
    parts: &Parts,
    purchases: Purchases,
    call: &Call<Bytes>,
) -> Result<Answer, Problem> {
    let wanted = validate::openai::chat(&call.body, &parts.rules)?;
    let claim = claim::of(&call.head.headers)?;
    let voice = Voice {
        id: format!("chatcmpl-{}", call.id.as_str()),
        created: clock::wall().as_secs(),
        model: wanted.order.get().model.to_string(),
        wants_usage: wanted.wants_usage,
        redactor: parts.redactor.clone(),
    };
    let purchase =
        Purchase::new(call.caller.clone(), wanted.order, claim).by(call.standing.clone());
    let answer = match wanted.is_stream {
        true => stream::buy(purchases, purchase, voice).await?,
        false => whole(purchases.oneshot(purchase).await?, &voice)?,
    };
    Ok(receipt::naming(&wanted.ignored, answer))
}

fn whole(receipt: Receipt, voice: &Voice) -> Result<Answer, Problem> {
    if !receipt.status.is_success() {
        return Ok(refusal::answer(receipt, &voice.redactor));
    }
    let said = Said::read(&receipt, &voice.redactor)?;
    let body = voice.completion(&said);
    Ok(receipt::translated(Receipt { is_json: true, ..receipt }, body))
}

/// What all that is said of one chat has in common.
#[derive(Clone, Debug)]
pub(super) struct Voice {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) wants_usage: bool,
    pub(super) redactor: Redactor,
}

/// What the gateway answered, as far as OpenAI has words for it.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) content: String,
    pub(super) usage: Option<Usage>,
}

/// Guess: a gateway that counts tokens says so as OpenAI does. Where it does not, nothing is said.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
}

#[derive(Deserialize)]
struct Counted {
    usage: Usage,
}

impl Said {
    /// # Errors
    /// `outcome_unknown`, charged: the reply that was paid for has no text.
    pub(super) fn read(receipt: &Receipt, redactor: &Redactor) -> Result<Self, Problem> {
        let content = text_at(redactor, &receipt.body, &[CONTENT]).ok_or_else(|| {
            let problem = Problem::new(&OUTCOME_UNKNOWN).charged(Charged::Yes).detail(
                "the gateway's reply has no message.content; POST /api/v1/chat shows it as it is",
            );
            if receipt.is_replay { problem.replayed() } else { problem }
        })?;
        let usage = serde_json::from_slice::<Counted>(&receipt.body).ok();
        Ok(Self { content, usage: usage.map(|counted| counted.usage) })
    }
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

impl Voice {
    fn completion(&self, said: &Said) -> Bytes {
        let message = Message { role: "assistant", content: &said.content, refusal: None };
        let completion = Completion {
            id: &self.id,
            object: "chat.completion",
            created: self.created,
            model: &self.model,
            choices: [Choice { index: 0, message, logprobs: None, finish_reason: "stop" }],
            usage: said.usage,
        };
        // Strings and numbers: this cannot fail.
        serde_json::to_vec(&completion).unwrap_or_default().into()
    }
}
