//! `POST /v1/chat/completions`: whole, or as a stream of events.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::poll_fn;
use http_body::{Body as _, Frame};
use http_body_util::StreamBody;
use serde::Serialize;
use tokio::time::{interval, sleep, timeout};

use super::{Said, Usage, refusal, refusal_document};
use crate::answer::{self, Answer, Body, BoxError};
use crate::clock;
use crate::problem::Problem;
use crate::purchase::Receipt;
use crate::redact::Redactor;
use crate::routes::Context;
use crate::routes::purchases;
use crate::validate::{self, Checked, Order};

pub(crate) async fn buy(cx: Context) -> Result<Answer, Problem> {
    let wanted = validate::openai::chat(&cx.call.body, &cx.handlers.rules)?;
    let voice = Voice {
        id: format!("chatcmpl-{}", cx.call.id.as_str()),
        created: clock::wall().as_secs(),
        model: wanted.order.get().model.to_string(),
        is_stream: wanted.is_stream,
        wants_usage: wanted.wants_usage,
        redactor: cx.handlers.redactor.clone(),
    };
    let answer = if wanted.is_stream {
        stream(&cx, wanted.order, voice).await?
    } else {
        voice.answer(cx.buy(wanted.order).await?)?
    };
    Ok(purchases::naming(&wanted.ignored, answer))
}

struct Voice {
    id: String,
    created: u64,
    model: String,
    is_stream: bool,
    wants_usage: bool,
    redactor: Redactor,
}

impl Voice {
    /// Answers with the whole chat: nothing but the media type tells a stream from others.
    fn answer(&self, receipt: Receipt) -> Result<Answer, Problem> {
        if !receipt.status.is_success() {
            return Ok(refusal(receipt, &self.redactor));
        }
        let said = Said::read(&receipt, &self.redactor)?;
        if self.is_stream {
            let events = self.events(&said, &receipt);
            return Ok(answer::events(purchases::translated(receipt, events)));
        }
        let body = self.completion(&said);
        Ok(purchases::translated(Receipt { is_json: true, ..receipt }, body))
    }

    fn completion(&self, said: &Said) -> Bytes {
        let message = Message { role: "assistant", content: &said.content, refusal: None };
        let choices =
            [Choice { message: Some(message), finish_reason: Some("stop"), ..Choice::default() }];
        let chat = Chat { usage: said.usage, ..self.chat("chat.completion", &choices) };
        // Strings and numbers: this cannot fail.
        serde_json::to_vec(&chat).unwrap_or_default().into()
    }

    /// What is left to be said in a stream that has begun.
    fn rest(&self, outcome: Result<Receipt, Problem>) -> Body {
        let receipt = match outcome {
            Ok(receipt) => receipt,
            Err(problem) => return Body::from(error(&problem.openai_document())),
        };
        let text = match Said::read(&receipt, &self.redactor) {
            _ if !receipt.status.is_success() => error(&refusal_document(&receipt, &self.redactor)),
            Ok(said) => self.events(&said, &receipt),
            Err(problem) => error(&problem.openai_document()),
        };
        purchases::translated(receipt, text).into_body()
    }

    fn events(&self, said: &Said, receipt: &Receipt) -> Bytes {
        let mut text = Vec::with_capacity(said.content.len() + 1_024);
        let mut say = |delta, finish_reason: Option<_>| {
            let choices = [Choice { delta: Some(delta), finish_reason, ..Choice::default() }];
            let is_last = finish_reason.is_some();
            chunk(
                &mut text,
                &Chat {
                    cost: is_last.then(|| receipt.cost.to_string()),
                    replayed: (is_last && receipt.is_replay).then_some(true),
                    ..self.chat(CHUNK, &choices)
                },
            );
        };
        say(Delta { role: Some("assistant"), content: Some("") }, None);
        for piece in pieces(&said.content) {
            say(Delta { content: Some(piece), ..Delta::default() }, None);
        }
        say(Delta::default(), Some("stop"));
        if let (true, Some(usage)) = (self.wants_usage, said.usage) {
            chunk(&mut text, &Chat { usage: Some(usage), ..self.chat(CHUNK, &[]) });
        }
        event(&mut text, b"[DONE]");
        text.into()
    }

    fn chat<'a>(&'a self, object: &'static str, choices: &'a [Choice<'a>]) -> Chat<'a> {
        let Self { id, created, model, .. } = self;
        Chat { id, object, created: *created, model, choices, ..Chat::default() }
    }
}

const CHUNK: &str = "chat.completion.chunk";

#[derive(Default, Serialize)]
struct Chat<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    /// Ours, in the last chunk with a choice: what it cost, in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<String>,
    /// Ours, beside it: whether it is the answer of an earlier or running purchase.
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed: Option<bool>,
}

#[derive(Default, Serialize)]
struct Choice<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Delta<'a>>,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<()>,
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

/// A purchase that is not sent for longer than this (it queues, or repeats another) has its stream begun.
const LONGEST_HOLD: Duration = Duration::from_secs(10);
/// How long the gateway has to refuse at once, or to answer.
const GRACE: Duration = Duration::from_secs(1);
const BEAT: Duration = Duration::from_secs(5);
const SIGN_OF_LIFE: &[u8] = b":\n\n";
const PIECE: usize = 8 * 1_024;

type Bought = Pin<Box<dyn Future<Output = Result<Receipt, Problem>> + Send>>;

/// Buys, and answers with events. The gateway answers in one piece, so the events come at its end; until then,
/// comments show that the stream lives. The status is sent once the outcome can no longer be a plain refusal of
/// ours: SDKs act on a status (they wait, they send again), and not on an error within a stream.
async fn stream(cx: &Context, order: Checked<Order>, voice: Voice) -> Result<Answer, Problem> {
    let (purchase, purchases) = (cx.purchase(order)?, cx.purchases.clone());
    let progress = purchase.progress.clone();
    let mut bought: Bought = Box::pin(async move { purchases.buy(purchase).await });
    let begins = async {
        timeout(LONGEST_HOLD, progress.sent()).await.ok();
        sleep(GRACE).await;
    };
    tokio::select! {
        biased;
        outcome = &mut bought => voice.answer(outcome?),
        () = begins => {
            Ok(answer::events(Answer::new(Body::stream(StreamBody::new(live(bought, voice))))))
        }
    }
}

/// A stream that has begun: signs of life, then the rest. Dropping it leaves the purchase to itself: it was sent,
/// and is kept for its repeat.
fn live(mut bought: Bought, voice: Voice) -> impl Stream<Item = Result<Frame<Bytes>, BoxError>> {
    let (mut beat, mut rest) = (interval(BEAT), None);
    poll_fn(move |cx| {
        let body = match &mut rest {
            Some(body) => body,
            None => match bought.as_mut().poll(cx) {
                Poll::Ready(outcome) => rest.insert(voice.rest(outcome)),
                Poll::Pending => {
                    let sign = Frame::data(Bytes::from_static(SIGN_OF_LIFE));
                    return beat.poll_tick(cx).map(|_now| Some(Ok(sign)));
                }
            },
        };
        Pin::new(body).poll_frame(cx)
    })
}

fn chunk(text: &mut Vec<u8>, chunk: &Chat<'_>) {
    // Strings and numbers: this cannot fail.
    event(text, &serde_json::to_vec(chunk).unwrap_or_default());
}

fn error(document: &[u8]) -> Bytes {
    let mut text = Vec::with_capacity(document.len() + 8);
    event(&mut text, document);
    text.into()
}

/// One event. JSON has no raw line end but those that only some readers see (U+0085, U+2028, U+2029);
/// within its strings these can be escaped.
fn event(text: &mut Vec<u8>, json: &[u8]) {
    let mut line = String::from_utf8_lossy(json);
    for end in ['\u{85}', '\u{2028}', '\u{2029}'] {
        if line.contains(end) {
            line = line.replace(end, &format!("\\u{:04x}", u32::from(end))).into();
        }
    }
    for part in ["data: ", &line, "\n\n"] {
        text.extend_from_slice(part.as_bytes());
    }
}

fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let most = text.len().min(PIECE);
        let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(most);
        let (piece, rest) = text.split_at(end);
        text = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_letters_and_nothing_is_lost() {
        for text in ["", "short", &"é".repeat(PIECE), &"日本".repeat(PIECE)] {
            let pieces: Vec<_> = pieces(text).collect();
            assert_eq!(pieces.concat(), text);
            assert!(pieces.iter().all(|piece| (1..=PIECE).contains(&piece.len())));
        }
    }

    #[test]
    fn an_event_is_one_line_for_every_reader() {
        let json = serde_json::to_vec("a\u{2028}b\u{85}c\nd").unwrap();
        let mut text = Vec::new();
        event(&mut text, &json);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "data: \"a\\u2028b\\u0085c\\nd\"\n\n");
        let read: String = serde_json::from_str(text[6..].trim()).unwrap();
        assert_eq!(read, "a\u{2028}b\u{85}c\nd");
    }
}
