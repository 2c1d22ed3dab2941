//! One `Idempotency-Key` is one purchase: at once, later, after a restart, and with whatever outcome.

use std::thread;
use std::time::Duration;

use crate::support::client::Answer;
use crate::support::paused::{PausedCall, PausedGate, PausedUpstream};
use crate::support::received::ReceivedRequest;
use crate::support::reply::Latch;
use crate::support::upstream::Welcome;
use crate::support::{CHAT, Ending, Gate, Reply, STORES, Upstream, VIDEO};

const OTHER: &str =
    r#"{"model":"alpha-sonnet-4.5","messages":[{"role":"user","content":"something else"}]}"#;

fn with_key(gate: &Gate, key: &str, target: &str, body: &str) -> Answer {
    gate.ask("POST", target, &[("idempotency-key", key)], body)
}

fn chat(gate: &Gate, key: &str) -> Answer {
    with_key(gate, key, "/api/v1/chat", CHAT)
}

fn is_replay(answer: &Answer) -> bool {
    match answer.value("idempotent-replayed") {
        None => false,
        Some("true") => true,
        Some(other) => panic!("idempotent-replayed: {other}"),
    }
}

/// What a client sees of the purchase itself.
fn substance(answer: &Answer) -> (u16, &[u8], Option<u64>, Option<&str>) {
    (answer.status, &answer.body, answer.cost(), answer.value("content-type"))
}

/// A reply like no other.
fn any_reply(received: &ReceivedRequest) -> Reply {
    match received.target.as_str() {
        "/api/v1/chat" => Reply::chat(&format!("reply {}", received.number)),
        _ => Reply::video(&format!("job-{}", received.number)),
    }
}

fn counting() -> Upstream {
    Upstream::start(any_reply)
}

/// Sends a request with the key `k`.
fn paused(gate: &PausedGate, target: &str, body: &str) -> PausedCall {
    gate.send("POST", target, &[("idempotency-key", "k")], body)
}

async fn paused_chat(gate: &PausedGate) -> Answer {
    paused(gate, "/api/v1/chat", CHAT).answer().await
}

#[test]
fn fifty_concurrent_requests_with_one_key_get_one_reply() {
    const AT_ONCE: usize = 50;
    for store in STORES {
        for (target, body, price) in
            [("/api/v1/chat", CHAT, 6_000), ("/api/v1/video", VIDEO, 3_000_000)]
        {
            let upstream = Upstream::start(|received| match received.target.as_str() {
                "/api/v1/chat" => Reply::chat("hi").after(Duration::from_millis(100)),
                _ => Reply::video("job-1").after(Duration::from_millis(100)),
            });
            let gate = Gate::start(&upstream, store);
            let answers: Vec<_> = thread::scope(|scope| {
                let one = || with_key(&gate, "the-key", target, body);
                let calls: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(one)).collect();
                calls.into_iter().map(|call| call.join().unwrap()).collect()
            });
            let first = &answers[0];
            assert_eq!((first.status, first.cost()), (200, Some(price)), "{}", first.text());
            assert!(answers.iter().all(|answer| substance(answer) == substance(first)));
            let replays = answers.iter().filter(|answer| is_replay(answer)).count();
            assert_eq!(replays, AT_ONCE - 1, "{store}");
            let later = with_key(&gate, "the-key", target, body);
            assert!(is_replay(&later) && substance(&later) == substance(first));
            assert_eq!(upstream.charges(), [price], "{store}");
        }
    }
}

#[test]
fn key_with_another_payload_is_refused_and_sends_nothing() {
    for store in STORES {
        let upstream = counting();
        let gate = Gate::start(&upstream, store);
        let first = chat(&gate, "k");
        let answer = with_key(&gate, "k", "/api/v1/chat", OTHER);
        assert_eq!((answer.status, answer.code().as_str()), (422, "idempotency_key_reused"));
        assert_eq!((answer.charged().as_deref(), is_replay(&answer)), (Some("no"), false));
        let again = chat(&gate, "k");
        assert!(is_replay(&again) && substance(&again) == substance(&first));
        assert_eq!(upstream.requests(), 1, "{store}");
    }
}

#[test]
fn key_of_a_running_purchase_is_refused_to_another_payload() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch));
    let gate = Gate::start(&upstream, "");
    let mut first = gate.client();
    first.send("POST", "/api/v1/chat", &[("idempotency-key", "k")], CHAT);
    upstream.wait_for(1);
    assert_eq!(with_key(&gate, "k", "/api/v1/chat", OTHER).code(), "idempotency_key_reused");
    latch.open();
    assert_eq!((first.answer().status, upstream.requests()), (200, 1));
}

#[test]
fn reformatted_payload_is_the_same_payload() {
    let upstream = counting();
    let gate = Gate::start(&upstream, "");
    let first = chat(&gate, "k");
    for same in [
        r#"{ "messages": [ {"content":"hello", "role":"user"} ], "model": "alpha-sonnet-4.5" }"#,
        r#"{"model":"alpha-sonnet-4.5","messages":[{"role":"user","content":"h\u0065llo"}]}"#,
    ] {
        let again = with_key(&gate, "k", "/api/v1/chat", same);
        assert!(is_replay(&again) && substance(&again) == substance(&first), "{}", again.text());
    }
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn key_is_equal_bare_or_quoted_and_scoped_to_its_route() {
    for store in STORES {
        let upstream = counting();
        let gate = Gate::start(&upstream, store);
        let first = chat(&gate, "k-1");
        let quoted = chat(&gate, "\"k-1\"");
        assert!(is_replay(&quoted) && substance(&quoted) == substance(&first));
        let video = with_key(&gate, "k-1", "/api/v1/video", VIDEO);
        assert_eq!((video.status, is_replay(&video)), (200, false));
        assert!(is_replay(&with_key(&gate, "k-1", "/api/v1/video", VIDEO)));
        assert_eq!(upstream.charges(), [6_000, 3_000_000], "{store}");
    }
}

#[test]
fn invalid_key_buys_nothing() {
    let upstream = counting();
    let gate = Gate::start(&upstream, "");
    let long = "k".repeat(256);
    let keys: &[&[&str]] = &[&[""], &["\"\""], &["a b"], &["\"a"], &["é"], &["a", "a"], &[&long]];
    for keys in keys {
        let headers: Vec<_> = keys.iter().map(|key| ("idempotency-key", *key)).collect();
        for (target, body) in [("/api/v1/chat", CHAT), ("/api/v1/video", VIDEO)] {
            let answer = gate.ask("POST", target, &headers, body);
            assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_idempotency_key"));
            assert_eq!(answer.charged().as_deref(), Some("no"), "{keys:?}");
        }
    }
    assert_eq!(upstream.requests(), 0);
    assert_eq!(chat(&gate, &"k".repeat(255)).status, 200);
}

#[test]
fn two_keys_with_one_payload_are_two_purchases() {
    for store in STORES {
        let upstream = counting();
        let gate = Gate::start(&upstream, store);
        let answers = [chat(&gate, "one"), chat(&gate, "two"), gate.post("/api/v1/chat", CHAT)];
        assert!(answers.iter().all(|answer| answer.status == 200 && !is_replay(answer)));
        assert_eq!(upstream.charges(), [6_000; 3], "{store}");
    }
}

#[test]
fn key_is_valid_from_any_address_of_its_caller() {
    let upstream = counting();
    let gate = Gate::start(&upstream, "server.trusted_proxies = [\"127.0.0.0/8\"]");
    let from = |address: &str| {
        let headers = [("x-forwarded-for", address), ("idempotency-key", "k")];
        gate.ask("POST", "/api/v1/chat", &headers, CHAT)
    };
    let (first, moved) = (from("192.0.2.1"), from("192.0.2.9"));
    assert!(is_replay(&moved) && substance(&moved) == substance(&first));
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn gateway_refusal_frees_the_key() {
    for store in STORES {
        for refusal in [400, 402, 403, 404, 413, 415, 422] {
            let upstream = Upstream::start(move |received| match received.number {
                0 => Reply::error(refusal),
                _ => Reply::chat("hi"),
            });
            let gate = Gate::start(&upstream, store);
            let refused = chat(&gate, "k");
            assert_eq!((refused.status, refused.cost()), (refusal, Some(0)), "{store}");
            let bought = with_key(&gate, "k", "/api/v1/chat", OTHER);
            assert_eq!((bought.status, is_replay(&bought)), (200, false), "{store} {refusal}");
            assert_eq!(upstream.charges(), [6_000]);
        }
    }
}

#[test]
fn local_refusal_and_unreachable_gateway_leave_the_key_free() {
    for store in STORES {
        let upstream = Upstream::closed(1, |_| Welcome::Serve, |_| Reply::chat("hi"));
        let gate = Gate::start(&upstream, store);
        let wrong = r#"{"model":"alpha-sonnet-4.5","messages":"hello"}"#;
        assert_eq!(with_key(&gate, "k", "/api/v1/chat", wrong).status, 422);
        for _ in 0..2 {
            let answer = with_key(&gate, "k", "/api/v1/chat", OTHER);
            assert_eq!(
                (answer.code().as_str(), is_replay(&answer)),
                ("gateway_unreachable", false)
            );
        }
        upstream.open();
        assert_eq!(chat(&gate, "k").status, 200, "{store}");
        assert_eq!(upstream.charges(), [6_000]);
    }
}

#[test]
fn unknown_outcome_is_replayed_for_its_key() {
    for store in STORES {
        let upstream = Upstream::start(|received| match received.number {
            0 => Reply::chat("hi").cut(40, Ending::Reset),
            _ => Reply::chat("hi"),
        });
        let mut gate = Gate::start(&upstream, store);
        let first = chat(&gate, "k");
        assert_eq!((first.status, first.code().as_str()), (424, "outcome_unknown"));
        assert_eq!((first.charged().as_deref(), is_replay(&first)), (Some("unknown"), false));
        for round in 0..3 {
            let again = chat(&gate, "k");
            assert_eq!((again.status, again.code().as_str()), (424, "outcome_unknown"));
            assert_eq!((again.charged().as_deref(), is_replay(&again)), (Some("unknown"), true));
            if round == 1 && store.contains("sqlite") {
                gate.restart();
            }
        }
        assert_eq!(upstream.requests(), 1, "{store}");
    }
}

#[test]
fn unreadable_success_is_replayed_as_unknown() {
    for store in STORES {
        let upstream = Upstream::start(|_| Reply::new(200, "<html>thank you</html>"));
        let mut gate = Gate::start(&upstream, store);
        for round in 0..4 {
            let answer = chat(&gate, "k");
            let told = (answer.status, answer.charged());
            assert_eq!(told, (424, Some("unknown".to_owned())), "{store}");
            assert_eq!(is_replay(&answer), round > 0);
            if round == 1 && store.contains("sqlite") {
                gate.restart();
            }
        }
        assert_eq!(upstream.charges(), [6_000]);
    }
}

#[tokio::test(start_paused = true)]
async fn reply_is_replayed_while_it_is_kept() {
    for store in STORES {
        let upstream = PausedUpstream::start(any_reply);
        let settings = format!("{store}\npurchase.keep_replies = \"2s\"");
        let gate = PausedGate::start(&upstream, &settings).await;
        let first = paused_chat(&gate).await;
        let video = paused(&gate, "/api/v1/video", VIDEO).answer().await;
        gate.advance(Duration::from_millis(1_990)).await;
        let again = paused_chat(&gate).await;
        assert!(is_replay(&again) && substance(&again) == substance(&first));
        gate.advance(Duration::from_secs(3)).await;
        // The dear ones are kept for a week at least.
        let kept = paused(&gate, "/api/v1/video", VIDEO).answer().await;
        assert!(is_replay(&kept) && substance(&kept) == substance(&video));
        // The key stays: a clock that is ahead must not buy it again.
        let over = paused_chat(&gate).await;
        assert_eq!((over.status, over.code().as_str()), (424, "outcome_unknown"), "{store}");
        assert_eq!(over.charged().as_deref(), Some("yes"));
        assert_eq!(upstream.charges(), [6_000, 3_000_000]);
    }
}

#[tokio::test(start_paused = true)]
async fn retry_of_an_endless_call_gets_still_running() {
    // Each key of the ring has 2.5 seconds; a caller that joins waits as long for all of them.
    let late = Duration::from_millis(1_200);
    let upstream = PausedUpstream::with(3, move |received| match received.number {
        0 | 1 => Reply::error(401).after(late),
        _ => Reply::chat("hi").after(late),
    });
    let settings = "gateway.max_wait = \"0s\"\ngateway.chat_timeout = \"2500ms\"\n\
                    gateway.video_timeout = \"2500ms\"";
    let gate = PausedGate::start(&upstream, settings).await;
    let first = paused(&gate, "/api/v1/chat", CHAT);
    upstream.wait_for(1).await;
    let second = paused_chat(&gate).await;
    assert_eq!((second.status, second.code().as_str()), (409, "still_running"));
    assert_eq!(second.charged().as_deref(), Some("unknown"));
    assert_eq!(second.value("retry-after"), Some("5"));
    let first = first.answer().await;
    assert_eq!(first.status, 200);
    let third = paused_chat(&gate).await;
    assert!(is_replay(&third) && substance(&third) == substance(&first), "{}", third.text());
    assert_eq!(upstream.charges(), [6_000]);
}

#[tokio::test(start_paused = true)]
async fn joined_call_that_fails_in_time_gets_the_same_answer() {
    let upstream = PausedUpstream::start(|_| Reply::nothing(Ending::Hang).charged(true));
    let settings = "gateway.chat_timeout = \"1500ms\"\ngateway.video_timeout = \"1500ms\"";
    let gate = PausedGate::start(&upstream, settings).await;
    let first = paused(&gate, "/api/v1/chat", CHAT);
    upstream.wait_for(1).await;
    // It would wait for `max_wait` longer than the first, so the first ends first.
    let joined = paused_chat(&gate).await;
    assert!(first.is_answered());
    let first = first.answer().await;
    assert_eq!((first.status, joined.status), (424, 424), "{}", joined.text());
    assert_eq!((is_replay(&first), is_replay(&joined)), (false, true));
    assert_eq!(upstream.charges(), [6_000]);
}
