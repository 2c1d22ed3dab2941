//! One `Idempotency-Key` is one purchase: at once, later, after a restart, and with whatever outcome.

use std::thread;
use std::time::Duration;

use crate::support::client::Answer;
use crate::support::reply::Latch;
use crate::support::upstream::Welcome;
use crate::support::{CHAT, Ending, Gate, Reply, STORES, Upstream, VIDEO, in_time};

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

/// A gateway whose every reply is another one.
fn counting() -> Upstream {
    Upstream::start(|received| match received.target.as_str() {
        "/api/v1/chat" => Reply::chat(&format!("reply {}", received.number)),
        _ => Reply::video(&format!("job-{}", received.number)),
    })
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

#[test]
fn reply_is_replayed_while_it_is_kept() {
    for store in STORES {
        let upstream = counting();
        let gate = Gate::start(&upstream, &format!("{store}\npurchase.keep_replies = \"2s\""));
        let (first, again) = (chat(&gate, "k"), chat(&gate, "k"));
        assert!(is_replay(&again) && substance(&again) == substance(&first));
        let video = with_key(&gate, "k", "/api/v1/video", VIDEO);
        thread::sleep(Duration::from_millis(2_050));
        // The dear ones are kept for a week at least.
        let kept = with_key(&gate, "k", "/api/v1/video", VIDEO);
        assert!(is_replay(&kept) && substance(&kept) == substance(&video));
        gate.forget_keys();
        let anew = chat(&gate, "k");
        assert_eq!((anew.status, is_replay(&anew)), (200, false), "{store}");
        // The video's status may be polled meanwhile.
        let charges: Vec<_> = upstream.charges().into_iter().filter(|micros| *micros > 0).collect();
        assert_eq!(charges, [6_000, 3_000_000, 6_000]);
    }
}

#[test]
fn retry_of_an_endless_call_gets_still_running() {
    // Each key of the ring has 2.5 seconds; a caller that joins waits as long for all of them.
    let (upstream, gate, first, second) = in_time("a repeat waits less than the first", |slower| {
        let late = Duration::from_millis(slower * 1_200);
        let upstream = Upstream::with(
            3,
            |_| Welcome::Serve,
            move |received| match received.number {
                0 | 1 => Reply::error(401).after(late),
                _ => Reply::chat("hi").after(late),
            },
        );
        let timeout = format!("{}ms", slower * 2_500);
        let settings = format!(
            "gateway.max_wait = \"0s\"\ngateway.chat_timeout = \"{timeout}\"\ngateway.video_timeout = \"{timeout}\""
        );
        let gate = Gate::start(&upstream, &settings);
        let mut first = gate.client();
        first.send("POST", "/api/v1/chat", &[("idempotency-key", "k")], CHAT);
        upstream.wait_for(1);
        let second = chat(&gate, "k");
        let first = first.answer();
        // Else the first had ended before the second gave up.
        let is_in_time = (first.status, second.status) == (200, 409);
        is_in_time.then_some((upstream, gate, first, second))
    });
    assert_eq!((second.status, second.code().as_str()), (409, "still_running"));
    assert_eq!(second.charged().as_deref(), Some("unknown"));
    assert_eq!(second.value("retry-after"), Some("5"));
    let third = chat(&gate, "k");
    assert!(is_replay(&third) && substance(&third) == substance(&first), "{}", third.text());
    assert_eq!(upstream.charges(), [6_000]);
}

#[test]
fn joined_call_that_fails_in_time_gets_the_same_answer() {
    let upstream = Upstream::start(|_| Reply::nothing(Ending::Hang).charged(true));
    let gate = Gate::start(
        &upstream,
        "gateway.chat_timeout = \"1500ms\"\ngateway.video_timeout = \"1500ms\"",
    );
    let mut first = gate.client();
    first.send("POST", "/api/v1/chat", &[("idempotency-key", "k")], CHAT);
    upstream.wait_for(1);
    // It would wait for `max_wait` longer than the first, so the first ends first.
    let joined = chat(&gate, "k");
    let first = first.answer();
    assert_eq!((first.status, joined.status), (424, 424), "{}", joined.text());
    assert_eq!((is_replay(&first), is_replay(&joined)), (false, true));
    assert_eq!(upstream.charges(), [6_000]);
}
