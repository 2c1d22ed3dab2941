//! Without a key, an identical purchase of the same caller is a repeat while the first runs, and
//! afterwards where the first reply did not arrive: what stock SDKs and browsers do on their own.

use std::collections::HashSet;
use std::thread;
use std::time::Duration;

use crate::support::client::{Answer, Client};
use crate::support::paused::{PausedGate, PausedUpstream};
use crate::support::reply::Latch;
use crate::support::{CHAT, Ending, Gate, Reply, STORES, Upstream, VIDEO, until};

/// What an SDK says when it sends something again.
const AGAIN: (&str, &str) = ("x-stainless-retry-count", "1");
/// The header of a first attempt.
const FIRST: (&str, &str) = ("x-stainless-retry-count", "0");

fn chat(gate: &Gate) -> Answer {
    gate.post("/api/v1/chat", CHAT)
}

fn is_replay(answer: &Answer) -> bool {
    answer.value("idempotent-replayed") == Some("true")
}

fn booked(gate: &Gate, outcome: &str) -> bool {
    let row = format!(r#"tollgate_purchases_total{{service="chat",outcome="{outcome}"}} 1"#);
    gate.metrics().lines().any(|line| line == row)
}

#[test]
fn concurrent_identical_requests_are_one_purchase() {
    const AT_ONCE: usize = 20;
    for store in STORES {
        let latch = Latch::new();
        let upstream = Upstream::start(move |_| Reply::video("job-1").when(latch));
        let gate = Gate::start(&upstream, store);
        let mut clients: Vec<_> = (0..AT_ONCE).map(|_| gate.client()).collect();
        clients.iter_mut().for_each(|client| client.send("POST", "/api/v1/video", &[], VIDEO));
        upstream.wait_for(1);
        gate.catch_up();
        latch.open();
        let answers: Vec<_> = clients.iter_mut().map(Client::answer).collect();
        assert!(
            answers.iter().all(|answer| answer.status == 200 && answer.body == answers[0].body)
        );
        assert!(answers.iter().all(|answer| answer.cost() == Some(3_000_000)));
        assert_eq!(answers.iter().filter(|answer| is_replay(answer)).count(), AT_ONCE - 1);
        assert_eq!(upstream.charges(), [3_000_000], "{store}");
    }
}

/// Several samples of one prompt.
#[test]
fn parallel_calls_that_are_no_retries_are_separate_purchases() {
    const AT_ONCE: usize = 8;
    for store in STORES {
        let latch = Latch::new();
        let upstream = Upstream::start(move |received| {
            Reply::chat(&format!("answer {}", received.number)).when(latch)
        });
        let gate = Gate::start(&upstream, store);
        let mut clients: Vec<_> = (0..AT_ONCE).map(|_| gate.client()).collect();
        clients.iter_mut().for_each(|client| client.send("POST", "/api/v1/chat", &[FIRST], CHAT));
        upstream.wait_for(AT_ONCE);
        latch.open();
        let answers: Vec<_> = clients.iter_mut().map(Client::answer).collect();
        assert!(answers.iter().all(|answer| answer.status == 200 && !is_replay(answer)), "{store}");
        let different: HashSet<_> = answers.iter().map(Answer::text).collect();
        assert_eq!(different.len(), AT_ONCE, "{store}");
        assert_eq!(upstream.charges(), [6_000; AT_ONCE], "{store}");
    }
}

#[test]
fn call_that_is_no_retry_is_bought_while_an_earlier_reply_is_being_read() {
    let upstream = Upstream::start(|_| Reply::chat(&"x".repeat(3_000_000)));
    for store in STORES {
        let gate = Gate::start(&upstream, store);
        let charged = upstream.charges().len();
        let mut slow = gate.narrow_client();
        slow.send("POST", "/api/v1/chat", &[FIRST], CHAT);
        let mut some = [0; 1_000];
        std::io::Read::read_exact(&mut slow.stream(), &mut some).unwrap();
        let other = gate.ask("POST", "/api/v1/chat", &[FIRST], CHAT);
        assert_eq!((other.status, is_replay(&other)), (200, false), "{store}");
        assert_eq!(upstream.charges().len(), charged + 2, "{store}");
        drop(slow);
    }
}

/// One of several samples is lost and sent again.
#[test]
fn resent_call_joins_the_lost_one_and_not_those_that_others_wait_for() {
    const AT_ONCE: usize = 3;
    for store in STORES {
        for lost in 0..AT_ONCE {
            let latch = Latch::new();
            let upstream = Upstream::start(move |received| {
                Reply::chat(&format!("answer {}", received.number)).when(latch)
            });
            let gate = Gate::start(&upstream, store);
            let mut clients: Vec<_> = (0..AT_ONCE).map(|_| gate.client()).collect();
            for (sent, client) in clients.iter_mut().enumerate() {
                client.send("POST", "/api/v1/chat", &[FIRST], CHAT);
                upstream.wait_for(sent + 1);
            }
            drop(clients.remove(lost));
            gate.wait_for_clients(AT_ONCE - 1);
            let mut resent = gate.client();
            resent.send("POST", "/api/v1/chat", &[FIRST], CHAT);
            gate.catch_up();
            latch.open();
            let answer = resent.answer();
            assert!(is_replay(&answer), "{store}, {lost}: {}", answer.text());
            assert!(answer.text().contains(&format!("answer {lost}")), "{}", answer.text());
            for client in &mut clients {
                assert!(!is_replay(&client.answer()), "{store}, {lost}");
            }
            assert_eq!(upstream.charges(), [6_000; AT_ONCE], "{store}, {lost}");
        }
    }
}

/// A browser sends a request again with the same headers when its connection dies, and a program may call
/// again after its SDK has given up.
#[test]
fn call_that_nobody_waits_for_any_more_is_joined_by_its_repeat() {
    for store in STORES {
        let latches = [Latch::new(), Latch::new()];
        let upstream =
            Upstream::start(move |received| Reply::chat("hi").when(latches[received.number]));
        let gate = Gate::start(&upstream, store);
        let mut lost = gate.client();
        lost.send("POST", "/api/v1/chat", &[FIRST], CHAT);
        upstream.wait_for(1);
        drop(lost);
        gate.wait_for_clients(0);
        let mut client = gate.client();
        client.send("POST", "/api/v1/chat", &[FIRST], CHAT);
        gate.catch_up();
        latches[0].open();
        let joined = client.answer();
        assert!(joined.status == 200 && is_replay(&joined), "{store}: {}", joined.text());
        drop(client);
        assert_eq!(upstream.charges(), [6_000], "{store}");

        let other = CHAT.replace("hello", "something else");
        let mut lost = gate.client();
        lost.send("POST", "/api/v1/chat", &[FIRST], &other);
        upstream.wait_for(2);
        drop(lost);
        gate.wait_for_clients(0);
        latches[1].open();
        let row = r#"tollgate_purchases_total{service="chat",outcome="charged"} 2"#;
        until("the purchase is booked", || gate.metrics().lines().any(|line| line == row));
        let again = gate.ask("POST", "/api/v1/chat", &[FIRST], &other);
        assert!(again.status == 200 && is_replay(&again), "{store}: {}", again.text());
        assert_eq!(upstream.charges(), [6_000; 2], "{store}");
    }
}

#[test]
fn identical_request_after_a_delivered_reply_is_a_new_purchase() {
    for store in STORES {
        let upstream = Upstream::start(|_| Reply::chat("hi"));
        let gate = Gate::start(&upstream, store);
        for _ in 0..3 {
            let answer = chat(&gate);
            assert_eq!((answer.status, is_replay(&answer)), (200, false), "{store}");
        }
        assert_eq!(upstream.charges(), [6_000; 3], "{store}");
    }
}

#[test]
fn marked_sdk_retry_joins_a_delivered_reply() {
    for store in STORES {
        let upstream = Upstream::start(|_| Reply::chat("hi"));
        let gate = Gate::start(&upstream, store);
        let first = chat(&gate);
        for count in ["1", "2"] {
            let headers = [("x-stainless-retry-count", count)];
            let again = gate.ask("POST", "/api/v1/chat", &headers, CHAT);
            assert!(is_replay(&again) && again.body == first.body, "{store} {}", again.text());
            assert_eq!(again.cost(), first.cost());
        }
        let no_retry = gate.ask("POST", "/api/v1/chat", &[("x-stainless-retry-count", "0")], CHAT);
        assert_eq!((no_retry.status, is_replay(&no_retry)), (200, false));
        assert_eq!(upstream.charges(), [6_000; 2], "{store}");
    }
}

#[test]
fn other_callers_and_payloads_are_not_duplicates() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch));
    let gate = Gate::start(&upstream, "server.trusted_proxies = [\"127.0.0.0/8\"]");
    let other = CHAT.replace("hello", "hello!");
    thread::scope(|scope| {
        for (from, body) in [("192.0.2.1", CHAT), ("192.0.2.2", CHAT), ("192.0.2.1", &other)] {
            let gate = &gate;
            scope.spawn(move || {
                let answer = gate.ask("POST", "/api/v1/chat", &[("x-forwarded-for", from)], body);
                assert_eq!((answer.status, is_replay(&answer)), (200, false));
            });
        }
        upstream.wait_for(3);
        latch.open();
    });
    assert_eq!(upstream.charges(), [6_000; 3]);
}

#[test]
fn browser_resend_joins_the_running_purchase() {
    for store in STORES {
        let latch = Latch::new();
        let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch));
        let gate = Gate::start(&upstream, store);
        let (mut lost, mut again) = (gate.client(), gate.client());
        lost.send("POST", "/api/v1/chat", &[], CHAT);
        upstream.wait_for(1);
        drop(lost);
        again.send("POST", "/api/v1/chat", &[], CHAT);
        gate.catch_up();
        latch.open();
        let again = again.answer();
        assert!(again.status == 200 && is_replay(&again), "{store}: {}", again.text());
        assert_eq!(upstream.charges(), [6_000]);
    }
}

#[test]
fn undelivered_reply_is_replayed_to_the_duplicate() {
    for store in STORES {
        let latch = Latch::new();
        let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch));
        let mut gate = Gate::start(&upstream, store);
        let mut lost = gate.client();
        lost.send("POST", "/api/v1/chat", &[], CHAT);
        upstream.wait_for(1);
        drop(lost);
        gate.wait_for_clients(0);
        latch.open();
        until("the purchase is booked", || booked(&gate, "charged"));
        if store.contains("sqlite") {
            gate.restart();
        }
        let again = chat(&gate);
        assert!(again.status == 200 && is_replay(&again), "{store}: {}", again.text());
        assert_eq!(again.cost(), Some(6_000));
        // Now it is delivered, and the next is another.
        let next = chat(&gate);
        assert_eq!((next.status, is_replay(&next)), (200, false), "{store}");
        assert_eq!(upstream.charges(), [6_000; 2]);
    }
}

#[test]
fn partly_read_reply_is_replayed_to_the_duplicate() {
    let upstream = Upstream::start(|_| Reply::chat(&"x".repeat(3_000_000)));
    for store in STORES {
        let gate = Gate::start(&upstream, store);
        let charged = upstream.charges().len();
        let mut lost = gate.narrow_client();
        lost.send("POST", "/api/v1/chat", &[], CHAT);
        let mut some = [0; 1_000];
        std::io::Read::read_exact(&mut lost.stream(), &mut some).unwrap();
        assert!(some.starts_with(b"HTTP/1.1 200"));
        drop(lost);
        let again = chat(&gate);
        assert!(again.status == 200 && is_replay(&again), "{store}");
        assert_eq!(upstream.charges().len(), charged + 1, "{store}");
    }
}

#[test]
fn sdk_with_a_dropped_connection_pays_once() {
    for store in STORES {
        let upstream = Upstream::start(|received| match received.number {
            0 => Reply::nothing(Ending::Reset).charged(true),
            _ => Reply::chat("hi"),
        });
        let mut gate = Gate::start(&upstream, store);
        let first = chat(&gate);
        assert_eq!((first.status, first.charged().as_deref()), (424, Some("unknown")));
        // No SDK sends a 424 again on its own; whoever does so is told the same.
        for round in 0..4 {
            let headers: &[_] = if round % 2 == 0 { &[] } else { &[AGAIN] };
            let again = gate.ask("POST", "/api/v1/chat", headers, CHAT);
            assert_eq!((again.status, is_replay(&again)), (424, true), "{store}");
            assert_eq!(again.charged().as_deref(), Some("unknown"));
            if round == 1 && store.contains("sqlite") {
                gate.restart();
            }
        }
        assert_eq!(upstream.charges(), [6_000], "{store}");
        // Who means it says so, with a key.
        assert_eq!(gate.chat().status, 200);
    }
}

#[test]
fn zero_dedupe_window_joins_running_purchases_only() {
    for store in STORES {
        let latch = Latch::new();
        let upstream = Upstream::start(move |received| match received.number {
            0 => Reply::chat("hi").when(latch).cut(30, Ending::Reset),
            _ => Reply::chat("hi"),
        });
        let gate = Gate::start(&upstream, &format!("{store}\npurchase.dedupe_window = \"0s\""));
        let (mut first, mut joined) = (gate.client(), gate.client());
        first.send("POST", "/api/v1/chat", &[], CHAT);
        upstream.wait_for(1);
        joined.send("POST", "/api/v1/chat", &[], CHAT);
        gate.catch_up();
        latch.open();
        let joined = joined.answer();
        assert_eq!((joined.status, is_replay(&joined)), (424, true), "{store}");
        assert_eq!(first.answer().status, 424);
        let next = gate.ask("POST", "/api/v1/chat", &[AGAIN], CHAT);
        assert_eq!((next.status, is_replay(&next)), (200, false), "{store}");
        assert_eq!(upstream.charges(), [6_000; 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn duplicate_after_the_dedupe_window_is_a_new_purchase() {
    for store in STORES {
        let upstream = PausedUpstream::start(|received| match received.number {
            0 => Reply::error(500).charged(true),
            _ => Reply::chat("hi"),
        });
        let settings = format!("{store}\npurchase.dedupe_window = \"2s\"");
        let gate = PausedGate::start(&upstream, &settings).await;
        assert_eq!(gate.post("/api/v1/chat", CHAT).await.status, 424);
        gate.advance(Duration::from_millis(1_990)).await;
        assert_eq!(gate.post("/api/v1/chat", CHAT).await.status, 424);
        gate.advance(Duration::from_millis(20)).await;
        assert_eq!(gate.post("/api/v1/chat", CHAT).await.status, 200, "{store}");
        assert_eq!(upstream.charges(), [6_000; 2]);
    }
}
