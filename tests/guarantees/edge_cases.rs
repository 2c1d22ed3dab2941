//! Replies, waits and stores at their edges: late, partial, odd and absurd ones.

mod clock;

use std::time::Duration;

use crate::support::paused::{PausedGate, PausedUpstream};
use crate::support::reply::Latch;
use crate::support::{CHAT, Gate, Reply, Upstream, VIDEO, until};

#[tokio::test(start_paused = true)]
async fn retry_after_of_absurd_length_is_not_charged() {
    let upstream =
        PausedUpstream::start(|_| Reply::error(429).header("retry-after", "18446744073709551615"));
    let gate = PausedGate::start(&upstream, "gateway.max_wait = \"1s\"").await;
    let answer = gate.chat().await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "gateway_busy"));
}

#[test]
fn accepted_video_with_a_wrong_optional_field_is_kept() {
    for body in [
        r#"{"request_id":"job-1","cost":{"this_request":3.0,"per_video":3.0},"balance":"$97.00"}"#,
        r#"{"request_id":"job-1","cost":{"this_request":"$3.00"},"balance":97.0}"#,
        r#"{"request_id":"job-1","cost":"$3.00","balance":"$97.00"}"#,
    ] {
        let upstream = Upstream::start(move |_| Reply::new(200, body));
        let gate = Gate::start(&upstream, "");
        let answer = gate.video();
        assert!(answer.text().contains("job-1"), "paid for, and lost: {}", answer.text());
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_disconnects_during_a_429_wait_pays_nothing() {
    let upstream = PausedUpstream::start(|received| match received.number {
        0 => Reply::error(429).header("retry-after", "1"),
        _ => Reply::video("job-1"),
    });
    let gate = PausedGate::start(&upstream, "").await;
    let call = gate.send("POST", "/api/v1/video", &[], VIDEO);
    upstream.wait_for(1).await;
    gate.settle().await;
    drop(call);
    gate.advance(Duration::from_secs(60)).await;
    assert_eq!(upstream.requests(), 1, "three dollars for nobody");
}

/// The end of a purchase that the ledger could not take at once is noted when it can.
#[test]
fn purchase_settles_despite_a_ledger_locked_for_three_seconds() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch));
    let gate = Gate::binary(&upstream, "", &[]);
    let mut client = gate.client();
    client.send("POST", "/api/v1/chat", &[("idempotency-key", "k")], CHAT);
    upstream.wait_for(1);
    let other = rusqlite::Connection::open(gate.folder().join("tollgate.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    latch.open();
    let first = client.answer();
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(first.status, 200);
    until("the ledger is free", || gate.ask("POST", "/api/v1/chat", &[], CHAT).status == 200);
    let again = gate.ask("POST", "/api/v1/chat", &[("idempotency-key", "k")], CHAT);
    assert_eq!((again.status, again.body), (200, first.body), "the paid reply is lost to its key");
}
