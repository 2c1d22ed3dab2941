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

use super::{Completion, Usage, gateway_refusal, gateway_refusal_json};
use crate::clock;
use crate::problem::Problem;
use crate::purchase::Receipt;
use crate::redact::Redactor;
use crate::response::{self, Body, BoxError, Response};
use crate::routes::HandlerContext;
use crate::routes::purchases;
use crate::validate::{self, Checked, Order};

pub(crate) async fn buy(cx: HandlerContext) -> Result<Response, Problem> {
    let wanted = validate::openai::chat(&cx.call.body, &cx.handlers.rules)?;
    let voice = CompletionFormat {
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
        voice.response(cx.buy(wanted.order).await?)?
    };
    Ok(purchases::with_ignored(&wanted.ignored, answer))
}

struct CompletionFormat {
    id: String,
    created: u64,
    model: String,
    is_stream: bool,
    wants_usage: bool,
    redactor: Redactor,
}

impl CompletionFormat {
    /// Answers with the whole chat: nothing but the media type tells a stream from others.
    fn response(&self, receipt: Receipt) -> Result<Response, Problem> {
        if !receipt.status.is_success() {
            return Ok(gateway_refusal(receipt, &self.redactor));
        }
        let said = Completion::parse(&receipt, &self.redactor)?;
        if self.is_stream {
            let events = self.events(&said, &receipt);
            return Ok(response::event_stream(purchases::with_translated_body(receipt, events)));
        }
        let body = self.completion(&said);
        Ok(purchases::with_translated_body(Receipt { is_json: true, ..receipt }, body))
    }

    fn completion(&self, said: &Completion) -> Bytes {
        let message = Message { role: "assistant", content: &said.content, refusal: None };
        let choices =
            [Choice { message: Some(message), finish_reason: Some("stop"), ..Choice::default() }];
        let chat = CompletionBody { usage: said.usage, ..self.body("chat.completion", &choices) };
        // Strings and numbers: this cannot fail.
        serde_json::to_vec(&chat).unwrap_or_default().into()
    }

    /// What is left to be said in a stream that has begun.
    fn stream_tail(&self, outcome: Result<Receipt, Problem>) -> Body {
        let receipt = match outcome {
            Ok(receipt) => receipt,
            Err(problem) => return Body::from(error_event(&problem.to_openai_json())),
        };
        let text = match Completion::parse(&receipt, &self.redactor) {
            _ if !receipt.status.is_success() => {
                error_event(&gateway_refusal_json(&receipt, &self.redactor))
            }
            Ok(said) => self.events(&said, &receipt),
            Err(problem) => error_event(&problem.to_openai_json()),
        };
        purchases::with_translated_body(receipt, text).into_body()
    }

    fn events(&self, said: &Completion, receipt: &Receipt) -> Bytes {
        let mut text = Vec::with_capacity(said.content.len() + 1_024);
        let mut say = |delta, finish_reason: Option<_>| {
            let choices = [Choice { delta: Some(delta), finish_reason, ..Choice::default() }];
            let is_last = finish_reason.is_some();
            write_chunk(
                &mut text,
                &CompletionBody {
                    cost: is_last.then(|| receipt.cost.to_string()),
                    replayed: (is_last && receipt.is_replay).then_some(true),
                    ..self.body(CHUNK, &choices)
                },
            );
        };
        say(Delta { role: Some("assistant"), content: Some("") }, None);
        for piece in split_text(&said.content) {
            say(Delta { content: Some(piece), ..Delta::default() }, None);
        }
        say(Delta::default(), Some("stop"));
        if let (true, Some(usage)) = (self.wants_usage, said.usage) {
            write_chunk(&mut text, &CompletionBody { usage: Some(usage), ..self.body(CHUNK, &[]) });
        }
        write_event(&mut text, b"[DONE]");
        text.into()
    }

    fn body<'a>(&'a self, object: &'static str, choices: &'a [Choice<'a>]) -> CompletionBody<'a> {
        let Self { id, created, model, .. } = self;
        CompletionBody {
            id,
            object,
            created: *created,
            model,
            choices,
            ..CompletionBody::default()
        }
    }
}

const CHUNK: &str = "chat.completion.chunk";

#[derive(Default, Serialize)]
struct CompletionBody<'a> {
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
const MAX_HEADER_DELAY: Duration = Duration::from_secs(10);
/// How long the gateway has to refuse at once, or to answer.
const REPLY_GRACE: Duration = Duration::from_secs(1);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
const HEARTBEAT: &[u8] = b":\n\n";
const MAX_DELTA: usize = 8 * 1_024;

type PurchaseFuture = Pin<Box<dyn Future<Output = Result<Receipt, Problem>> + Send>>;

/// Buys, and answers with events. The gateway answers in one piece, so the events come at its end; until then,
/// comments show that the stream lives. The status is sent once the outcome can no longer be a plain refusal of
/// ours: SDKs act on a status (they wait, they send again), and not on an error within a stream.
async fn stream(
    cx: &HandlerContext,
    order: Checked<Order>,
    voice: CompletionFormat,
) -> Result<Response, Problem> {
    let (purchase, purchases) = (cx.purchase(order)?, cx.purchases.clone());
    let progress = purchase.progress.clone();
    let mut bought: PurchaseFuture = Box::pin(async move { purchases.buy(purchase).await });
    let begins = async {
        timeout(MAX_HEADER_DELAY, progress.sent()).await.ok();
        sleep(REPLY_GRACE).await;
    };
    tokio::select! {
        biased;
        outcome = &mut bought => voice.response(outcome?),
        () = begins => {
            Ok(response::event_stream(Response::new(Body::stream(StreamBody::new(with_heartbeats(bought, voice))))))
        }
    }
}

/// A stream that has begun: signs of life, then the rest. Dropping it leaves the purchase to itself: it was sent,
/// and is kept for its repeat.
fn with_heartbeats(
    mut bought: PurchaseFuture,
    voice: CompletionFormat,
) -> impl Stream<Item = Result<Frame<Bytes>, BoxError>> {
    let (mut beat, mut rest) = (interval(HEARTBEAT_INTERVAL), None);
    poll_fn(move |cx| {
        let body = match &mut rest {
            Some(body) => body,
            None => match bought.as_mut().poll(cx) {
                Poll::Ready(outcome) => rest.insert(voice.stream_tail(outcome)),
                Poll::Pending => {
                    let sign = Frame::data(Bytes::from_static(HEARTBEAT));
                    return beat.poll_tick(cx).map(|_now| Some(Ok(sign)));
                }
            },
        };
        Pin::new(body).poll_frame(cx)
    })
}

fn write_chunk(text: &mut Vec<u8>, chunk: &CompletionBody<'_>) {
    // Strings and numbers: this cannot fail.
    write_event(text, &serde_json::to_vec(chunk).unwrap_or_default());
}

fn error_event(document: &[u8]) -> Bytes {
    let mut text = Vec::with_capacity(document.len() + 8);
    write_event(&mut text, document);
    text.into()
}

/// One event. JSON has no raw line end but those that only some readers see (U+0085, U+2028, U+2029);
/// within its strings these can be escaped.
fn write_event(text: &mut Vec<u8>, json: &[u8]) {
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

fn split_text(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let most = text.len().min(MAX_DELTA);
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
        for text in ["", "short", &"é".repeat(MAX_DELTA), &"日本".repeat(MAX_DELTA)] {
            let pieces: Vec<_> = split_text(text).collect();
            assert_eq!(pieces.concat(), text);
            assert!(pieces.iter().all(|piece| (1..=MAX_DELTA).contains(&piece.len())));
        }
    }

    #[test]
    fn an_event_is_one_line_for_every_reader() {
        let json = serde_json::to_vec("a\u{2028}b\u{85}c\nd").unwrap();
        let mut text = Vec::new();
        write_event(&mut text, &json);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "data: \"a\\u2028b\\u0085c\\nd\"\n\n");
        let read: String = serde_json::from_str(text[6..].trim()).unwrap();
        assert_eq!(read, "a\u{2028}b\u{85}c\nd");
    }
}
