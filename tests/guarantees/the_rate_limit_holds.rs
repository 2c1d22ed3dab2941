//! Guarantee 7: the gateway never sees more than its own limit from us, polls included, and callers
//! share it fairly.

mod limits;
mod processes;
mod queueing;
mod restarts;

use std::time::Duration;

use crate::support::client::Answer;
use crate::support::paused::{PausedCall, PausedGate, PausedUpstream};
use crate::support::{CHAT, Ending, Reply};

/// A gateway that answers what it is asked.
fn upstream() -> PausedUpstream {
    PausedUpstream::start(|received| match received.target.as_str() {
        "/api/v1/chat" => Reply::chat("hi"),
        "/api/v1/video" => Reply::video(&format!("job-{}", received.number)),
        _ => Reply::new(200, r#"{"status":"processing"}"#),
    })
}

/// A gate that believes its clients who they are.
async fn gate(upstream: &PausedUpstream, settings: &str) -> PausedGate {
    let settings = format!("server.trusted_proxies = [\"127.0.0.0/8\"]\n{settings}");
    PausedGate::start(upstream, &settings).await
}

/// Sends a chat like no other from the caller with this number.
fn send(gate: &PausedGate, caller: usize, words: &str) -> PausedCall {
    let address = format!("198.51.100.{caller}");
    let key = uuid::Uuid::now_v7().to_string();
    let headers = [("X-Forwarded-For", address.as_str()), ("Idempotency-Key", key.as_str())];
    gate.send("POST", "/api/v1/chat", &headers, &CHAT.replace("hello", words))
}

/// Waits for all answers.
async fn answers(calls: impl IntoIterator<Item = PausedCall>) -> Vec<Answer> {
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.answer().await);
    }
    answers
}

fn served(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| answer.status == 200).count()
}

/// Served, or told when to return and that it costs nothing.
fn assert_honest(answer: &Answer) {
    if answer.status != 200 {
        assert_eq!((answer.status, answer.code().as_str()), (503, "gateway_busy"));
        assert_eq!(answer.charged().as_deref(), Some("no"));
        assert!((1..=60).contains(&retry_after(answer)), "{}", answer.text());
    }
}

fn retry_after(answer: &Answer) -> u64 {
    answer.value("retry-after").expect("when to return").parse().unwrap()
}

/// The books of an account with this limit.
fn books(requests: u64, seconds: u64) -> Reply {
    Reply::new(
        200,
        format!(
            r#"{{"keys":[],"billing":{{"hasCredits":true,"balanceCents":100000,"balanceFormatted":"$1000.00","rateLimit":{{"requests":{requests},"windowSeconds":{seconds}}},"usage":{{"chat":{{"count":0,"costCents":0}},"search":{{"count":0,"costCents":0}},"images":{{"count":0,"costCents":0}},"totalSpentCents":0}}}}}}"#
        ),
    )
}

/// Lets all tasks go on until they wait, and asserts how many wait for a slot.
async fn assert_waiting(gate: &PausedGate, count: usize) {
    gate.settle().await;
    assert_eq!(gate.figure("rate_limit_waiting"), count);
}
