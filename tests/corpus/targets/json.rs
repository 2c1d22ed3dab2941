//! What the gate for JSON accepts is sent as a value that says the same, that is accepted again, and
//! that is then equal; what it refuses, it refuses in few words.

use std::sync::Arc;

use serde_json::Value;
use tollgate::api::validate::{self, ChatRules, Checked, Order};
use tollgate::gate::problem::Problem;
use tollgate::gateway::contract::catalog::Catalog;

use super::oracle;

#[rustfmt::skip]
pub(super) const WORDS: &[&str] = &[
    "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u0000", "\\ud83d", "\\ude00", "\\u0061", "\u{feff}", "\u{200b}",
    "null", "true", "-0", "1e400", "1E5", "6.0", "99999999999999999999", "{\"a\":", "[[[[[[[[[[[[[[[[",
    "\"model\":", "\"messages\":", "\"role\":", "\"content\":", "\"user\"", "\"assistant\"", "\"temperature\":",
    "\"prompt\":", "\"duration\":", "\"image_url\":", "\"aspect_ratio\":", "\"16:9\"", "\"eta-5-mini\"",
    "\"video-a-2\"", "\"video-d-3.1\"", "\"http://127.0.0.1/\"", "\"stream\":true,", "\"type\":\"text\",\"text\":",
    "\"input_reference\":", "\"seconds\":\"8\"", "\"size\":\"1280x720\"",
];

/// Deeper than the deepest that passes.
const DEPTH: usize = 32;
/// What a refusal may take, however large the payload: some 64 faults of some words.
const LARGEST_REFUSAL: usize = 64 * 1_024;
/// What tollgate writes into a video's order that its caller left out, and a picture's longest address.
const MOST_ADDED: usize = 2_048 + 256;

pub(super) fn chat(data: &[u8]) -> bool {
    let rules = rules();
    let Some(order) = judged(validate::chat(data, &rules)) else { return false };
    assert!(order.body.len() <= data.len(), "it grew: {}", order.body.len());
    let (meant, sent) = (value(data), value(&order.body));
    assert_eq!(meant, sent, "what is sent says something else");
    assert!(depth(&sent) <= DEPTH, "too deep");
    is_accepted_again(&order, validate::chat(&order.body, &rules));
    true
}

pub(super) fn video(data: &[u8]) -> bool {
    let catalog = Catalog::published();
    let Some(order) = judged(video_order(data, &catalog)) else { return false };
    assert!(order.body.len() <= data.len() + MOST_ADDED, "it grew: {}", order.body.len());
    let (meant, sent) = (value(data), value(&order.body));
    for (name, value) in meant.as_object().expect("an object") {
        match name.as_str() {
            "image_url" => oracle::is_public(sent[name].as_str().expect("an address")),
            "duration" => assert_eq!(value.as_f64(), sent[name].as_f64(), "another duration"),
            _ => assert_eq!(value, &sent[name], "another {name}"),
        }
    }
    is_accepted_again(&order, video_order(&order.body, &catalog));
    true
}

fn video_order(data: &[u8], catalog: &Catalog) -> Result<Checked<Order>, Problem> {
    validate::video(data, catalog).map(|video| video.order)
}

/// Orders in OpenAI's dialect: whatever it lets through is an order of the gateway's own contract.
pub(super) fn dialect(data: &[u8]) -> bool {
    let (rules, catalog) = (rules(), Catalog::published());
    let chat = validate::openai::chat(data, &rules).map(|chat| {
        named(chat.ignored.names());
        chat.order
    });
    let video = validate::openai::video(data, &catalog).map(|video| {
        named(video.ignored.names());
        video.order
    });
    let (chat, video) = (judged(chat), judged(video));
    if let Some(order) = &chat {
        is_accepted_again(order, validate::chat(&order.body, &rules));
    }
    if let Some(order) = &video {
        is_accepted_again(order, video_order(&order.body, &catalog));
    }
    chat.is_some() || video.is_some()
}

fn rules() -> ChatRules {
    let fields = ["temperature", "stop", "metadata"].map(str::to_owned).to_vec();
    ChatRules { catalog: Arc::new(Catalog::published()), fields }
}

fn judged(verdict: Result<Checked<Order>, Problem>) -> Option<Order> {
    match verdict {
        Ok(order) => Some(order.into_inner()),
        Err(problem) => {
            assert!(["malformed_json", "invalid_request"].contains(&problem.kind().code));
            let document = problem.to_json("");
            assert!(document.len() <= LARGEST_REFUSAL, "{} bytes of refusal", document.len());
            assert!(value(&document)["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
            None
        }
    }
}

fn is_accepted_again(order: &Order, again: Result<Checked<Order>, Problem>) {
    let again = again.expect("what is sent is accepted").into_inner();
    assert!(&again == order, "{:?} became {:?}", order.body, again.body);
}

/// A header's worth of names.
fn named(names: Option<String>) {
    let names = names.unwrap_or_default();
    assert!(names.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '), "{names:?}");
}

/// As a reader sees it that is none of ours.
fn value(text: &[u8]) -> Value {
    serde_json::from_slice(text).expect("JSON")
}

fn depth(value: &Value) -> usize {
    let below = match value {
        Value::Array(values) => values.iter().map(depth).max(),
        Value::Object(members) => members.values().map(depth).max(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return 0,
    };
    1 + below.unwrap_or_default()
}
