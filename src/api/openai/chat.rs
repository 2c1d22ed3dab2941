//! `POST /v1/chat/completions`, as JSON or as server-sent events.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::poll_fn;
use http_body::{Body as _, Frame};
use http_body_util::StreamBody;
use serde::Serialize;
use tokio::time::{interval, sleep, timeout};
use tracing::Instrument;

use super::{Completion, Usage, gateway_refusal, gateway_refusal_json, paid_json};
use crate::api::HandlerContext;
use crate::api::purchases;
use crate::api::translation::with_translated_body;
use crate::api::validate::{self, Checked, Order};
use crate::clock;
use crate::gate::problem::Problem;
use crate::gate::response::{self, Body, BoxError, HandlerResult, Response, write_event};
use crate::gateway::redact::Redactor;
use crate::purchase::Receipt;
use crate::video::events;

pub(crate) async fn buy(cx: HandlerContext) -> HandlerResult {
    let parsed = validate::openai::chat(&cx.call.body, &cx.handlers.rules)?;
    let formatter = Formatter {
        id: format!("chatcmpl-{}", cx.call.id.as_str()),
        created: clock::wall().as_secs(),
        model: parsed.order.get().model.to_string(),
        is_stream: parsed.is_stream,
        wants_usage: parsed.wants_usage,
        redactor: cx.handlers.redactor.clone(),
    };
    let response = if parsed.is_stream {
        stream(&cx, parsed.order, formatter).await?
    } else {
        formatter.response(cx.buy(parsed.order).await?)?
    };
    Ok(purchases::with_ignored(&parsed.ignored, response))
}

struct Formatter {
    id: String,
    created: u64,
    model: String,
    is_stream: bool,
    wants_usage: bool,
    redactor: Redactor,
}

impl Formatter {
    fn response(&self, receipt: Receipt) -> HandlerResult {
        if !receipt.status.is_success() {
            return Ok(gateway_refusal(receipt, &self.redactor));
        }
        let completion = Completion::parse(&receipt, &self.redactor)?;
        if self.is_stream {
            let events = self.events(&completion, &receipt)?;
            return Ok(response::event_stream(with_translated_body(receipt, events)));
        }
        let body = self.completion(&completion)?;
        Ok(with_translated_body(Receipt { is_json: true, ..receipt }, body))
    }

    fn completion(&self, completion: &Completion) -> Result<Bytes, Problem> {
        let message = Message { role: "assistant", content: &completion.content, refusal: None };
        let choices =
            [Choice { message: Some(message), finish_reason: Some("stop"), ..Choice::default() }];
        let chat =
            CompletionBody { usage: completion.usage, ..self.body("chat.completion", &choices) };
        paid_json(&chat)
    }

    /// Returns the events of an outcome for a stream that has begun.
    fn stream_tail(&self, outcome: Result<Receipt, Problem>) -> Body {
        let receipt = match outcome {
            Ok(receipt) => receipt,
            Err(problem) => return Body::from(error_event(&problem.to_openai_json())),
        };
        let text = match Completion::parse(&receipt, &self.redactor) {
            _ if !receipt.status.is_success() => {
                error_event(&gateway_refusal_json(&receipt, &self.redactor))
            }
            parsed => parsed
                .and_then(|completion| self.events(&completion, &receipt))
                .unwrap_or_else(|problem| error_event(&problem.to_openai_json())),
        };
        with_translated_body(receipt, text).into_body()
    }

    fn events(&self, completion: &Completion, receipt: &Receipt) -> Result<Bytes, Problem> {
        let mut text = Vec::with_capacity(completion.content.len() + 1_024);
        let mut push = |delta, finish_reason: Option<_>| {
            let choices = [Choice { delta: Some(delta), finish_reason, ..Choice::default() }];
            let is_last = finish_reason.is_some();
            write_chunk(
                &mut text,
                &CompletionBody {
                    cost: is_last.then(|| receipt.cost.to_string()),
                    replayed: (is_last && receipt.is_replay).then_some(true),
                    ..self.body(CHUNK, &choices)
                },
            )
        };
        push(Delta { role: Some("assistant"), content: Some("") }, None)?;
        for piece in split_text(&completion.content) {
            push(Delta { content: Some(piece), ..Delta::default() }, None)?;
        }
        push(Delta::default(), Some("stop"))?;
        if let (true, Some(usage)) = (self.wants_usage, completion.usage) {
            write_chunk(
                &mut text,
                &CompletionBody { usage: Some(usage), ..self.body(CHUNK, &[]) },
            )?;
        }
        write_event(&mut text, b"[DONE]");
        Ok(text.into())
    }

    fn body<'a>(&'a self, object: &'static str, choices: &'a [Choice<'a>]) -> CompletionBody<'a> {
        let Self { id, created, model, .. } = self;
        CompletionBody { id, object, created: *created, model, choices, ..Default::default() }
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
    /// Our extension, in the last chunk with a choice: the cost in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<String>,
    /// Our extension, beside it: whether the reply is a replay.
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

/// The longest wait for the purchase to be sent before the stream begins.
const MAX_HEADER_DELAY: Duration = Duration::from_secs(10);
/// How long the gateway may take to reply before the stream begins.
const REPLY_GRACE: Duration = Duration::from_secs(1);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
const MAX_DELTA: usize = 8 * 1_024;

type PurchaseFuture = Pin<Box<dyn Future<Output = Result<Receipt, Problem>> + Send>>;

/// Buys, and answers with events. The gateway replies in one piece; heartbeats fill the wait.
///
/// SDKs retry on a status, not on an error within a stream. So the status waits until the purchase
/// was sent and an immediate refusal is unlikely.
async fn stream(cx: &HandlerContext, order: Checked<Order>, formatter: Formatter) -> HandlerResult {
    let purchase = cx.purchase(order).await?;
    let purchases = cx.purchases.clone();
    let progress = purchase.progress.clone();
    let mut purchase: PurchaseFuture = Box::pin(async move { purchases.buy(purchase).await });
    let started = async {
        timeout(MAX_HEADER_DELAY, progress.sent()).await.ok();
        sleep(REPLY_GRACE).await;
    };
    tokio::select! {
        biased;
        outcome = &mut purchase => formatter.response(outcome?),
        () = started => {
            let log = Arc::clone(&cx.handlers.refusal_log);
            let caller = cx.call.caller.clone();
            let logged = async move { purchase.await.inspect_err(|why| log.late(why, &caller)) };
            let purchase = Box::pin(logged.in_current_span());
            let body = StreamBody::new(with_heartbeats(purchase, formatter));
            Ok(response::event_stream(Response::new(Body::stream(body))))
        }
    }
}

/// Streams heartbeats until the outcome is known. Dropping it does not cancel the purchase.
fn with_heartbeats(
    mut purchase: PurchaseFuture,
    formatter: Formatter,
) -> impl Stream<Item = Result<Frame<Bytes>, BoxError>> {
    let mut heartbeat = interval(HEARTBEAT_INTERVAL);
    let mut rest = None;
    poll_fn(move |cx| {
        let body = match &mut rest {
            Some(body) => body,
            None => match purchase.as_mut().poll(cx) {
                Poll::Ready(outcome) => rest.insert(formatter.stream_tail(outcome)),
                Poll::Pending => {
                    let frame = Frame::data(events::comment());
                    return heartbeat.poll_tick(cx).map(|_now| Some(Ok(frame)));
                }
            },
        };
        Pin::new(body).poll_frame(cx)
    })
}

fn write_chunk(text: &mut Vec<u8>, chunk: &CompletionBody<'_>) -> Result<(), Problem> {
    write_event(text, &paid_json(chunk)?);
    Ok(())
}

fn error_event(document: &[u8]) -> Bytes {
    let mut text = Vec::with_capacity(document.len() + 8);
    write_event(&mut text, document);
    text.into()
}

fn split_text(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let max = text.len().min(MAX_DELTA);
        let end = (0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(max);
        let (piece, rest) = text.split_at(end);
        text = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_split_at_char_boundaries_without_loss() {
        for text in ["", "short", &"é".repeat(MAX_DELTA), &"日本".repeat(MAX_DELTA)] {
            let pieces: Vec<_> = split_text(text).collect();
            assert_eq!(pieces.concat(), text);
            assert!(pieces.iter().all(|piece| (1..=MAX_DELTA).contains(&piece.len())));
        }
    }

    #[test]
    fn event_is_one_line_under_all_line_end_rules() {
        let json = serde_json::to_vec("a\u{2028}b\u{85}c\nd").unwrap();
        let mut text = Vec::new();
        write_event(&mut text, &json);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "data: \"a\\u2028b\\u0085c\\nd\"\n\n");
        let read: String = serde_json::from_str(text[6..].trim()).unwrap();
        assert_eq!(read, "a\u{2028}b\u{85}c\nd");
    }
}
