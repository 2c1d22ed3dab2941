//! Who has to wait for a place, how long, and what becomes of them.

use super::*;
use crate::support::reply::Latch;

#[tokio::test(start_paused = true)]
async fn gateway_429_pauses_all_callers_and_then_serves_them() {
    let upstream = PausedUpstream::start(|received| match received.number {
        0 => Reply::error(429).header("retry-after", "1"),
        _ => Reply::chat("hi"),
    });
    let gate = gate(&upstream, "gateway.rate_limit = { requests = 50, seconds = 1 }").await;
    let first = send(&gate, 1, "first");
    gate.settle().await;
    assert_eq!(upstream.requests(), 1, "the 429 has arrived");
    let others = [send(&gate, 2, "second"), send(&gate, 3, "third")];
    assert_eq!(served(&answers([first].into_iter().chain(others)).await), 3);
    let arrivals = upstream.arrivals();
    assert_eq!(arrivals.len(), 4);
    assert!(arrivals[1] - arrivals[0] >= Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn gateway_busy_after_max_wait_has_a_correct_retry_after() {
    let upstream = upstream();
    let settings = "gateway.rate_limit = { requests = 2, seconds = 3 }\ngateway.max_wait = \"1s\"";
    let gate = gate(&upstream, settings).await;
    assert_eq!((gate.chat().await.status, gate.chat().await.status), (200, 200));
    let start = tollgate::clock::now();
    let full = gate.chat().await;
    let waited = tollgate::clock::now() - start;
    assert!(waited <= Duration::from_secs(1), "{waited:?}");
    assert_eq!(full.status, 503);
    assert_honest(&full);
    let wait = Duration::from_secs(retry_after(&full));
    // It is rounded up to a second.
    let free_after = waited + wait;
    let window = Duration::from_secs(3);
    assert!((window..window + Duration::from_secs(2)).contains(&free_after), "{free_after:?}");
    gate.advance(wait).await;
    assert_eq!(gate.chat().await.status, 200);
    assert_eq!(upstream.requests(), 3);
}

#[tokio::test(start_paused = true)]
async fn zero_max_wait_still_takes_a_free_slot() {
    let upstream = upstream();
    let settings = "gateway.rate_limit = { requests = 1, seconds = 60 }\ngateway.max_wait = \"0s\"";
    let gate = gate(&upstream, settings).await;
    assert_eq!(gate.chat().await.status, 200);
    let me = gate.get("/bff/me").await.json();
    let wait = me["rate_limit"]["wait_seconds"].as_u64().unwrap();
    assert!((60..=61).contains(&wait), "whoever looks is told: {wait}");
    assert_eq!(gate.chat().await.status, 503);
}

#[tokio::test(start_paused = true)]
async fn queued_purchase_of_a_disconnected_client_is_never_sent() {
    let latch = Latch::new();
    let upstream = PausedUpstream::start(move |received| match received.number {
        0 => Reply::chat("hi").when(latch),
        _ => Reply::chat("hi"),
    });
    let settings = "gateway.rate_limit = { requests = 1, seconds = 1 }\ngateway.max_wait = \"60s\"";
    let gate = gate(&upstream, settings).await;
    let first = send(&gate, 0, "first");
    upstream.wait_for(1).await;
    let leaves = send(&gate, 1, "never mind");
    assert_waiting(&gate, 1).await;
    drop(leaves);
    assert_waiting(&gate, 0).await;
    let stays = send(&gate, 2, "still here");
    latch.open();
    assert_eq!(served(&answers([first, stays]).await), 2);
    gate.advance(Duration::from_secs(120)).await;
    let received = upstream.received_requests();
    assert_eq!(received.len(), 2);
    assert!(String::from_utf8_lossy(&received[1].body).contains("still here"));
}

#[tokio::test(start_paused = true)]
async fn caller_with_many_calls_does_not_starve_others() {
    let latch = Latch::new();
    let upstream = PausedUpstream::start(move |_| Reply::chat("hi").when(latch));
    let settings = "gateway.rate_limit = { requests = 4, seconds = 1 }\ngateway.max_wait = \"60s\"";
    let gate = gate(&upstream, settings).await;
    let greedy: Vec<_> = (0..24).map(|_| send(&gate, 1, "greedy")).collect();
    assert_waiting(&gate, 20).await;
    let modest: Vec<_> = (2..8).map(|caller| send(&gate, caller, "modest")).collect();
    assert_waiting(&gate, 26).await;
    let before = upstream.requests();
    assert_eq!(before, 4);
    latch.open();
    assert_eq!(served(&answers(modest).await), 6);
    answers(greedy).await.iter().for_each(assert_honest);
    let received = upstream.received_requests();
    let is_modest = |received: &crate::support::received::ReceivedRequest| {
        String::from_utf8_lossy(&received.body).contains("modest")
    };
    let last = received.iter().rposition(is_modest).unwrap();
    // A round has a turn of each: the greedy one's may come first, and again.
    assert!(last < before + 8, "the last of six went {last}th, {before} had gone before");
}

#[tokio::test(start_paused = true)]
async fn shutdown_refuses_queued_purchases_for_free() {
    let upstream = upstream();
    let settings =
        "gateway.rate_limit = { requests = 1, seconds = 50 }\ngateway.max_wait = \"60s\"";
    let gate = gate(&upstream, settings).await;
    assert_eq!(gate.chat().await.status, 200);
    let queues = send(&gate, 1, "queues");
    assert_waiting(&gate, 1).await;
    gate.begin_to_drain();
    let answer = queues.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "draining"));
    assert_eq!(answer.charged().as_deref(), Some("no"));
    assert!(retry_after(&answer) >= 1);
    gate.advance(Duration::from_secs(120)).await;
    assert_eq!(upstream.requests(), 1);
}
