//! Who has to wait for a place, how long, and what becomes of them.

use super::*;
use crate::support::reply::Latch;

#[test]
fn gateway_429_pauses_all_callers_and_then_serves_them() {
    let upstream = Upstream::start(|received| match received.number {
        0 => Reply::error(429).header("retry-after", "1"),
        _ => Reply::chat("hi"),
    });
    let gate = gate(&upstream, "gateway.rate_limit = { requests = 50, seconds = 1 }");
    let mut first = send(&gate, 1, "first");
    upstream.wait_for(1);
    let replied = "tollgate_gateway_seconds_count{service=\"chat\"}";
    until("the gate has received the 429", || gate.metrics().contains(replied));
    let mut others = [send(&gate, 2, "second"), send(&gate, 3, "third")];
    assert_eq!(first.answer().status, 200);
    for other in &mut others {
        assert_eq!(other.answer().status, 200);
    }
    let arrivals = upstream.arrivals();
    assert_eq!(arrivals.len(), 4);
    assert!(arrivals[1] - arrivals[0] >= Duration::from_secs(1));
}

#[test]
fn gateway_busy_after_max_wait_has_a_correct_retry_after() {
    let (upstream, gate, full, seconds) = in_time("three purchases in a window", |slower| {
        let (upstream, seconds) = (upstream(), 3 * slower);
        let limit = format!("gateway.rate_limit = {{ requests = 2, seconds = {seconds} }}");
        let gate = gate(&upstream, &format!("{limit}\ngateway.max_wait = \"1s\""));
        assert_eq!((gate.chat().status, gate.chat().status), (200, 200));
        let full = gate.chat();
        (full.status != 200).then_some((upstream, gate, full, seconds))
    });
    let left = Duration::from_secs(seconds).saturating_sub(upstream.arrivals()[0].elapsed());
    assert_eq!(full.status, 503);
    assert_honest(&full);
    let wait = retry_after(&full);
    // A second of three is over; more on a slow machine.
    let least = u64::try_from(left.as_millis().div_ceil(1_000)).unwrap();
    assert!((least..=seconds + 1).contains(&wait), "{wait}, at least {least}");
    thread::sleep(Duration::from_secs(wait));
    assert_eq!(gate.chat().status, 200);
    assert_eq!(upstream.requests(), 3);
}

#[test]
fn zero_max_wait_still_takes_a_free_slot() {
    let upstream = upstream();
    let settings = "gateway.rate_limit = { requests = 1, seconds = 60 }\ngateway.max_wait = \"0s\"";
    let gate = gate(&upstream, settings);
    let wait = || gate.get("/bff/me").json()["rate_limit"]["wait_seconds"].as_u64().unwrap();
    assert_eq!(gate.chat().status, 200);
    assert!((50..=61).contains(&wait()), "whoever looks is told");
    assert_eq!(gate.chat().status, 503);
}

#[test]
fn queued_purchase_of_a_disconnected_client_is_never_sent() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |received| match received.number {
        0 => Reply::chat("hi").when(latch),
        _ => Reply::chat("hi"),
    });
    let settings = "gateway.rate_limit = { requests = 1, seconds = 1 }\ngateway.max_wait = \"60s\"";
    let gate = gate(&upstream, settings);
    let mut first = send(&gate, 0, "first");
    upstream.wait_for(1);
    let leaves = send(&gate, 1, "never mind");
    wait_until_waiting(&gate, 1);
    drop(leaves);
    wait_until_waiting(&gate, 0);
    let mut stays = send(&gate, 2, "still here");
    latch.open();
    assert_eq!((first.answer().status, stays.answer().status), (200, 200));
    let received = upstream.received_requests();
    assert_eq!(received.len(), 2);
    assert!(String::from_utf8_lossy(&received[1].body).contains("still here"));
}

#[test]
fn caller_with_many_calls_does_not_starve_others() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch));
    let settings = "gateway.rate_limit = { requests = 4, seconds = 1 }\ngateway.max_wait = \"60s\"";
    let gate = gate(&upstream, settings);
    let mut greedy: Vec<_> = (0..24).map(|_| send(&gate, 1, "greedy")).collect();
    wait_until_waiting(&gate, 20);
    let mut modest: Vec<_> = (2..8).map(|caller| send(&gate, caller, "modest")).collect();
    wait_until_waiting(&gate, 26);
    upstream.wait_for(4);
    let before = upstream.requests();
    latch.open();
    for client in &mut modest {
        assert_eq!(client.answer().status, 200);
    }
    for client in &mut greedy {
        assert_honest(&client.answer());
    }
    let received = upstream.received_requests();
    let is_modest = |received: &crate::support::received::ReceivedRequest| {
        String::from_utf8_lossy(&received.body).contains("modest")
    };
    let last = received.iter().rposition(is_modest).unwrap();
    // A round has a turn of each: the greedy one's may come first, and again.
    assert!(last < before + 8, "the last of six went {last}th, {before} had gone before");
}

#[test]
fn shutdown_refuses_queued_purchases_for_free() {
    let upstream = upstream();
    let settings =
        "gateway.rate_limit = { requests = 2, seconds = 50 }\ngateway.max_wait = \"60s\"";
    let mut gate = Gate::binary(&upstream, settings, &[]);
    until("the books were asked for", || upstream.arrivals().len() == 1);
    assert_eq!(gate.chat().status, 200);
    let mut queues = send(&gate, 1, "queues");
    wait_until_waiting(&gate, 1);
    gate.signal(Signal::SIGTERM);
    let answer = queues.answer();
    assert_eq!((answer.status, answer.code().as_str()), (503, "draining"));
    assert_eq!(answer.charged().as_deref(), Some("no"));
    assert!(retry_after(&answer) >= 1);
    assert_eq!(gate.wait().code(), Some(0));
    assert_eq!(upstream.requests(), 1);
}
