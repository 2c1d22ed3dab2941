//! Guarantee 7: the gateway never sees more than its own limit from us, polls included, and callers
//! share it fairly.

mod limits;
mod queueing;
mod restarts;

use std::thread;
use std::time::Duration;

use crate::support::client::{Answer, Client};
use crate::support::process::Signal;
use crate::support::{CHAT, Ending, Gate, Reply, Upstream, in_time, until};

/// A gateway that answers what it is asked.
fn upstream() -> Upstream {
    Upstream::start(|received| match received.target.as_str() {
        "/api/v1/chat" => Reply::chat("hi"),
        "/api/v1/video" => Reply::video(&format!("job-{}", received.number)),
        _ => Reply::new(200, r#"{"status":"processing"}"#),
    })
}

/// A gate that believes its clients who they are.
fn gate(upstream: &Upstream, settings: &str) -> Gate {
    Gate::start(upstream, &format!("server.trusted_proxies = [\"127.0.0.0/8\"]\n{settings}"))
}

/// Sends a chat like no other from the caller with this number.
fn send(gate: &Gate, caller: usize, words: &str) -> Client {
    let mut client = gate.client();
    let address = format!("198.51.100.{caller}");
    let key = uuid::Uuid::now_v7().to_string();
    let headers = [("X-Forwarded-For", address.as_str()), ("Idempotency-Key", key.as_str())];
    client.send("POST", "/api/v1/chat", &headers, &CHAT.replace("hello", words));
    client
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

/// A figure of `/metrics`.
fn figure(gate: &Gate, name: &str) -> usize {
    let metrics = gate.metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("tollgate_{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
}

fn wait_until_waiting(gate: &Gate, count: usize) {
    until("they wait for the window", || figure(gate, "rate_limit_waiting") == count);
}
