//! What a process took of the rate limit counts for the next one, however it ended.

use crate::support::process::Signal;
use crate::support::reply::Latch;
use crate::support::{CHAT, Gate, Reply, Upstream, until};

/// A window that no test outlasts, so that nothing depends on when a slot is free again.
const SETTINGS: &str =
    "gateway.rate_limit = { requests = 3, seconds = 3600 }\ngateway.max_wait = \"0s\"";

/// A figure of `/metrics`.
fn figure(gate: &Gate, name: &str) -> usize {
    let metrics = gate.metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("tollgate_{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
}

/// A process that has asked for the books, which takes one slot.
fn gate(upstream: &Upstream) -> Gate {
    let gate = Gate::binary(upstream, SETTINGS, &[]);
    until("the books were asked for", || upstream.arrivals().len() == 1);
    gate
}

fn assert_has_no_slot(gate: &Gate, upstream: &Upstream) {
    assert_eq!(figure(gate, "rate_limit_free"), 0);
    assert_eq!(gate.chat().code(), "gateway_busy");
    assert_eq!(upstream.arrivals().len(), 3);
}

#[test]
fn slots_of_a_process_count_after_its_end() {
    for how in [Signal::SIGTERM, Signal::SIGKILL] {
        let upstream = Upstream::start(|_| Reply::chat("hi"));
        let mut gate = gate(&upstream);
        assert_eq!((gate.chat().status, gate.chat().status), (200, 200));
        gate.signal(how);
        gate.wait();
        gate.restart();
        assert_has_no_slot(&gate, &upstream);
    }
}

#[test]
fn slot_of_a_call_cut_off_by_a_crash_counts_after_it() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch));
    let mut gate = gate(&upstream);
    let calls = ["one", "two"].map(|words| {
        let mut client = gate.client();
        client.send("POST", "/api/v1/chat", &[], &CHAT.replace("hello", words));
        client
    });
    upstream.wait_for(2);
    gate.kill();
    latch.open();
    drop(calls);
    gate.restart();
    assert_has_no_slot(&gate, &upstream);
}

#[test]
fn process_that_stops_refuses_queued_purchases_and_exits() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    // Longer than the window, or it would be refused at once.
    let settings =
        "gateway.rate_limit = { requests = 2, seconds = 3000 }\ngateway.max_wait = \"60m\"";
    let mut gate = Gate::binary(&upstream, settings, &[]);
    until("the books were asked for", || upstream.arrivals().len() == 1);
    assert_eq!(gate.chat().status, 200);
    let mut queues = gate.client();
    queues.send("POST", "/api/v1/chat", &[], CHAT);
    until("it waits for the window", || figure(&gate, "rate_limit_waiting") == 1);
    gate.signal(Signal::SIGTERM);
    let answer = queues.answer();
    assert_eq!((answer.status, answer.code().as_str()), (503, "draining"));
    assert_eq!(gate.wait().code(), Some(0));
    assert_eq!(upstream.requests(), 1);
}
