//! What the gateway replied, as far as OpenAI has words for it: what chats, streams and videos share.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::answer::{self, Answer};
use crate::jobs::reading;
use crate::problem::{
    Charged, OUTCOME_UNKNOWN, OpenAiError, Problem, SHOULD_RETRY, family, is_sent_again,
};
use crate::purchase::Receipt;
use crate::redact::Redactor;
use crate::routes::purchases;

/// Where the gateway's reply has its text (2.4).
const CONTENT: &str = "/message/content";
/// Guess: where the body of a refusal has words for people (7 does not show its shape).
const WORDS: &[&str] = &["/error/message", "/message", "/detail", "/error"];

/// The text in the gateway's JSON at the first of `pointers` that leads to one. It is searched for keys
/// after it was decoded, too, as it is written out anew.
pub(super) fn text_at(redactor: &Redactor, body: &[u8], pointers: &[&str]) -> Option<String> {
    let pointers: Vec<_> = pointers.iter().map(|pointer| (*pointer).to_owned()).collect();
    reading::text_at(body, &pointers).map(|text| redactor.text(text))
}

pub(super) fn refusal_document(receipt: &Receipt, redactor: &Redactor) -> Bytes {
    let words = text_at(redactor, &receipt.body, WORDS).map(|words| format!(": {words}"));
    let (status, words) = (receipt.status.as_u16(), words.unwrap_or_default());
    let error = OpenAiError {
        message: format!("the gateway refused it with status {status}{words}"),
        family: family(receipt.status),
        param: None,
        code: "refused_by_gateway",
        charged: Charged::No,
        errors: &[],
        gateway: serde_json::from_slice(&receipt.body).ok(),
    };
    error.document()
}

pub(super) fn refusal(refused: Receipt, redactor: &Redactor) -> Answer {
    let (body, status) = (refusal_document(&refused, redactor), refused.status);
    let answer = purchases::answer(Receipt { body, is_json: true, ..refused });
    if is_sent_again(status) { answer } else { answer::with(answer, [(SHOULD_RETRY, "false")]) }
}

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
