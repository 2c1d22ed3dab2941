//! Replies, waits and stores at their edges: late, partial, odd and absurd ones.

use std::io::Read;
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use socket2::SockRef;

use crate::support::client::Client;
use crate::support::reply::Latch;
use crate::support::{CHAT, Gate, Reply, Upstream, VIDEO, until};

#[test]
fn retry_after_of_absurd_length_is_not_charged() {
    let upstream =
        Upstream::start(|_| Reply::error(429).header("retry-after", "18446744073709551615"));
    let gate = Gate::start(&upstream, "gateway.max_wait = \"1s\"");
    let answer = gate.chat();
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

#[test]
fn client_that_disconnects_during_a_429_wait_pays_nothing() {
    let upstream = Upstream::start(|received| match received.number {
        0 => Reply::error(429).header("retry-after", "1"),
        _ => Reply::video("job-1"),
    });
    let gate = Gate::start(&upstream, "");
    let mut client = gate.client();
    client.send("POST", "/api/v1/video", &[], VIDEO);
    upstream.wait_for(1);
    client.stream().shutdown(Shutdown::Both).unwrap();
    drop(client);
    thread::sleep(Duration::from_millis(2_000));
    assert_eq!(upstream.requests(), 1, "three dollars for nobody");
}

/// A client that takes in little at a time, with a chat on its way.
fn narrow(gate: &Gate, bytes: usize, headers: &[(&str, &str)]) -> Client {
    let mut client = gate.client();
    SockRef::from(client.stream()).set_recv_buffer_size(bytes).unwrap();
    client.send("POST", "/api/v1/chat", headers, CHAT);
    client
}

#[test]
fn partly_delivered_reply_is_replayed() {
    let big = "x".repeat(3_500_000);
    let upstream = Upstream::start(move |_| Reply::chat(&big));
    let gate = Gate::start(&upstream, "");
    let client = narrow(&gate, 4_096, &[]);
    let mut stream = client.stream();
    let mut some = [0; 1_000];
    stream.read_exact(&mut some).unwrap();
    assert!(some.starts_with(b"HTTP/1.1 200"));
    thread::sleep(Duration::from_millis(300));
    SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    thread::sleep(Duration::from_millis(300));

    let again = gate.post("/api/v1/chat", CHAT);
    assert_eq!(again.status, 200);
    assert_eq!(
        upstream.requests(),
        1,
        "bought twice; replayed: {:?}",
        again.value("idempotent-replayed")
    );
}

#[test]
fn slow_reader_gets_a_large_reply_whole() {
    let big = "x".repeat(4_000_000);
    let upstream = Upstream::start(move |_| Reply::chat(&big));
    let gate = Gate::start(
        &upstream,
        "server.idle_timeout = \"500ms\"\nserver.header_timeout = \"200ms\"",
    );
    let client = narrow(&gate, 65_536, &[("idempotency-key", "k")]);
    let mut stream = client.stream();
    let mut read = 0;
    let mut some = vec![0; 200_000];
    while read < 4_000_000 {
        match stream.read(&mut some) {
            Ok(0) | Err(_) => break,
            Ok(more) => read += more,
        }
        thread::sleep(Duration::from_millis(2));
    }
    assert!(read >= 4_000_000, "only {read} bytes came, though the client read all the time");
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
