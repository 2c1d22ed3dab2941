//! Without a key, a request that a stock SDK marks as a retry is matched with the call that it repeats:
//! one that was answered, or one that was refused for free.

use std::collections::HashSet;
use std::time::Duration;

use crate::support::client::Answer;
use crate::support::paused::{PausedGate, PausedUpstream};
use crate::support::reply::Latch;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream, until};

fn send(gate: &Gate, retry_count: usize, body: &str) -> Answer {
    let count = retry_count.to_string();
    gate.ask("POST", "/api/v1/chat", &[("x-stainless-retry-count", &count)], body)
}

/// Sends until it is not refused for free, as an SDK does, from this retry on.
fn call(gate: &Gate, first: usize, body: &str) -> Answer {
    let (mut retry, mut answer) = (first, send(gate, first, body));
    until("the request is served", || {
        let is_refused = matches!(answer.status, 429 | 503);
        if is_refused {
            retry += 1;
            answer = send(gate, retry, body);
        }
        !is_refused
    });
    answer
}

#[test]
fn repeated_prompt_beyond_the_limit_gets_no_reply_twice() {
    const CALLS: usize = 20;
    for store in STORES {
        let upstream =
            Upstream::start(|received| Reply::chat(&format!("answer {}", received.number)));
        let limits = "limits = { requests = 20, seconds = 1, burst = 5, concurrent = 8 }";
        let gate = Gate::start(&upstream, &format!("{store}\n{limits}"));
        let answers: Vec<_> = (0..CALLS).map(|_| call(&gate, 0, CHAT)).collect();
        assert!(
            answers.iter().all(|answer| answer.status == 200 && !answer.is_replay()),
            "{store}"
        );
        let different: HashSet<_> = answers.iter().map(Answer::text).collect();
        assert_eq!((different.len(), upstream.charges().len()), (CALLS, CALLS), "{store}");
    }
}

#[tokio::test(start_paused = true)]
async fn marked_retry_after_the_dedupe_window_joins_delivered_reply() {
    for store in STORES {
        let upstream = PausedUpstream::start(|_| Reply::chat("hi"));
        let settings = format!("{store}\npurchase.dedupe_window = \"1s\"");
        let gate = PausedGate::start(&upstream, &settings).await;
        let send = async |count| {
            gate.ask("POST", "/api/v1/chat", &[("x-stainless-retry-count", count)], CHAT).await
        };
        let first = send("0").await;
        gate.advance(Duration::from_millis(1_050)).await;
        let again = send("1").await;
        assert!(again.is_replay() && again.body == first.body, "{store}: {}", again.text());
        let other = send("0").await;
        assert_eq!((other.status, other.is_replay()), (200, false), "{store}");
        assert_eq!(upstream.charges(), [6_000; 2], "{store}");
    }
}

#[test]
fn refusal_after_the_body_concerns_retries_of_that_prompt_only() {
    for store in STORES {
        // The third request is refused, which costs nothing.
        let upstream = Upstream::start(|received| match received.number {
            2 => Reply::error(429).header("retry-after", "0"),
            number => Reply::chat(&format!("answer {number}")),
        });
        let gate = Gate::start(&upstream, &format!("{store}\ngateway.max_wait = \"0s\""));
        let other = CHAT.replace("hello", "something else");
        let firsts = [send(&gate, 0, CHAT), send(&gate, 0, &other)];
        let refused = send(&gate, 0, CHAT);
        assert_eq!((refused.status, refused.charged().as_deref()), (503, Some("no")), "{store}");
        let again = call(&gate, 1, CHAT);
        assert_eq!((again.status, again.is_replay()), (200, false), "{store}: {}", again.text());
        assert_ne!(again.body, firsts[0].body);
        let replay = send(&gate, 1, &other);
        assert!(replay.is_replay() && replay.body == firsts[1].body, "{store}");
        assert_eq!(upstream.charges(), [6_000; 3], "{store}");
    }
}

/// Sends until the caller's limit refuses it.
fn exceed_the_limit(gate: &Gate, body: &str) {
    until("the limit refuses a call", || send(gate, 0, body).status == 429);
}

/// Waits until the caller may call again.
fn wait_for_room(gate: &Gate) {
    until("the limit admits a call", || {
        let me = gate.get("/bff/me");
        me.status == 200 && me.json()["limits"]["left"] != 0
    });
}

const ONE_A_SECOND: &str = "limits = { requests = 3600, seconds = 3600, burst = 1 }";

#[test]
fn limit_that_refuses_another_prompt_does_not_make_a_retry_buy_again() {
    for store in STORES {
        // One of the same length, and one that is not read when it is refused.
        let long = "x".repeat(20_000);
        for other in ["world", &long] {
            let other = CHAT.replace("hello", other);
            let upstream =
                Upstream::start(|received| Reply::chat(&format!("answer {}", received.number)));
            let gate = Gate::start(&upstream, &format!("{store}\n{ONE_A_SECOND}"));
            let first = send(&gate, 0, CHAT);
            assert_eq!(first.status, 200, "{store}");
            exceed_the_limit(&gate, &other);
            let bought = upstream.charges().len();
            wait_for_room(&gate);
            let again = send(&gate, 1, CHAT);
            assert!(again.is_replay(), "{store} {}: {}", other.len(), again.text());
            assert_eq!((again.body, upstream.charges().len()), (first.body, bought), "{store}");
        }
    }
}

#[test]
fn retry_of_a_prompt_that_the_limit_refused_is_bought() {
    for store in STORES {
        for body in [CHAT.to_owned(), CHAT.replace("hello", &"x".repeat(20_000))] {
            let upstream =
                Upstream::start(|received| Reply::chat(&format!("answer {}", received.number)));
            let gate = Gate::start(&upstream, &format!("{store}\n{ONE_A_SECOND}"));
            assert_eq!(send(&gate, 0, &body).status, 200, "{store}");
            exceed_the_limit(&gate, &body);
            let bought = upstream.charges().len();
            wait_for_room(&gate);
            let again = send(&gate, 1, &body);
            assert_eq!((again.status, again.is_replay()), (200, false), "{store}");
            assert_eq!(upstream.charges().len(), bought + 1, "{store} {}", body.len());
        }
    }
}

#[test]
fn marked_retry_across_a_restart_joins_only_what_was_not_delivered() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |received| {
        let reply = Reply::chat(&format!("answer {}", received.number));
        if received.number == 1 { reply.when(latch) } else { reply }
    });
    let mut gate = Gate::start(&upstream, STORES[1]);
    send(&gate, 0, CHAT);
    let other = CHAT.replace("hello", "something else");
    let mut lost = gate.client();
    lost.send("POST", "/api/v1/chat", &[], &other);
    upstream.wait_for(2);
    drop(lost);
    gate.wait_for_clients(0);
    latch.open();
    gate.restart();
    // Callers were refused while nobody listened.
    let sampled = send(&gate, 1, CHAT);
    assert_eq!((sampled.status, sampled.is_replay()), (200, false), "{}", sampled.text());
    assert!(send(&gate, 1, CHAT).is_replay());
    assert!(send(&gate, 1, &other).is_replay());
    assert_eq!(upstream.charges(), [6_000; 3]);
}
