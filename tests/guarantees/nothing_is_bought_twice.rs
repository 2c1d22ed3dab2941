//! Guarantee 4: a purchase is sent at most once, unless the gateway provably did not take it.

mod duplicates;
mod keys;
mod late_attempts;
mod ledgers;
mod retries;

use std::time::Duration;

use tollgate::clock;

use crate::support::paused::{PausedGate, PausedUpstream};
use crate::support::server::ReservedPort;
use crate::support::upstream::Welcome;
use crate::support::{CHAT, Ending, Gate, Reply, Upstream, until};

const KEEP_ALIVE: &str = "gateway.keep_alive = true";

#[test]
fn refused_gateway_connection_is_not_charged() {
    let reserved = ReservedPort::new();
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let at = format!("http://{}", reserved.address());
    let gate = Gate::binary(&upstream, "", &[("TOLLGATE_GATEWAY__BASE_URL", &at)]);
    for answer in [gate.chat(), gate.video()] {
        assert_eq!((answer.status, answer.code().as_str()), (502, "gateway_unreachable"));
        assert_eq!(answer.charged().as_deref(), Some("no"));
    }
}

#[test]
fn lost_gateway_connection_is_not_retried() {
    for bytes in [0, 1, 20, 200] {
        for ending in [Ending::Fin, Ending::Reset] {
            let upstream =
                Upstream::with(1, move |_| Welcome::Cut(bytes, ending), |_| Reply::chat("hi"));
            let gate = Gate::start(&upstream, "");
            for answer in [gate.chat(), gate.video()] {
                let charged = answer.charged().unwrap_or_default();
                match answer.status {
                    // Where no byte was written, it says so; where one was, it does not claim to know.
                    502 => assert_eq!((bytes, charged.as_str()), (0, "no"), "{ending:?}"),
                    424 => assert_eq!(charged, "unknown", "{bytes} {ending:?}"),
                    _ => panic!("{bytes} {ending:?}: {answer:?}"),
                }
            }
            assert_eq!((upstream.connections(), upstream.requests()), (2, 0));
        }
    }
}

#[test]
fn idle_close_by_the_gateway_never_sends_twice() {
    const CALLS: usize = 200;
    let upstream = Upstream::start(|received| {
        let pause = Duration::from_micros(received.number as u64 * 7 % 900);
        Reply::chat("hi").then(Ending::Later(pause))
    });
    let gate = Gate::start(&upstream, KEEP_ALIVE);
    let mut client = gate.client();
    let mut outcomes = [0; 3];
    let began = clock::now();
    for call in 0..CALLS {
        let key = call.to_string();
        client.send("POST", "/api/v1/chat", &[("idempotency-key", &key)], CHAT);
        let answer = client.answer();
        match (answer.status, answer.charged().as_deref()) {
            (200, None) => outcomes[0] += 1,
            (424, Some("unknown")) => outcomes[1] += 1,
            (502, Some("no")) => outcomes[2] += 1,
            other => panic!("call {call}: {other:?}"),
        }
    }
    let [bought, unknown, not_taken] = outcomes;
    println!("of {CALLS} calls {bought} were bought, {unknown} unknown, {not_taken} not taken");
    assert_eq!(
        upstream.requests(),
        bought,
        "what was not read was not sent anew, and what was read was answered"
    );
    // A loss teaches it to trust no idle connection of this gateway for a minute.
    let took = clock::now() - began;
    let most = 1 + usize::try_from(took.as_secs() / 60).unwrap();
    assert!(unknown <= most, "{unknown} of {CALLS} calls were lost");
}

#[test]
fn dead_pooled_connection_is_not_used() {
    let upstream =
        Upstream::start(|_| Reply::chat("hi").header("connection", "close").then(Ending::Fin));
    let gate = Gate::start(&upstream, KEEP_ALIVE);
    for _ in 0..20 {
        assert_eq!(gate.chat().status, 200);
    }
    assert_eq!((upstream.requests(), upstream.connections()), (20, 20));
}

#[test]
fn chats_share_a_connection_and_videos_use_a_fresh_one() {
    let upstream = Upstream::start(|received| match received.target.as_str() {
        "/api/v1/chat" => Reply::chat("hi"),
        _ => Reply::video("job-1"),
    });
    let gate = Gate::start(&upstream, KEEP_ALIVE);
    // A slow machine may need longer for a chat than an idle connection is kept.
    until("two chats share a connection", || {
        assert_eq!((gate.chat().status, gate.chat().status), (200, 200));
        let received = upstream.received_requests();
        let [.., first, second] = &received[..] else { panic!("two chats") };
        first.connection == second.connection
    });
    let before = upstream.connections();
    assert_eq!(gate.video().status, 200);
    let received = upstream.received_requests();
    let video = received.iter().find(|received| received.target == "/api/v1/video").unwrap();
    assert!(video.connection >= before, "{} of {before}", video.connection);
}

#[tokio::test(start_paused = true)]
async fn rejected_key_falls_back_to_the_next_which_stays() {
    let upstream = PausedUpstream::with(3, |received| match received.number {
        0 | 1 => Reply::error(401),
        _ => Reply::chat("hi"),
    });
    let gate = PausedGate::start(&upstream, "").await;
    assert_eq!((gate.chat().await.status, gate.chat().await.status), (200, 200));
    let used: Vec<_> = upstream
        .received_requests()
        .iter()
        .map(|received| received.values("authorization")[0].to_owned())
        .collect();
    let keys: Vec<_> =
        upstream.canaries().iter().map(|key| format!("Bearer {}", key.key())).collect();
    assert_eq!(used, [&*keys[0], &keys[1], &keys[2], &keys[2]]);
    assert_eq!(upstream.charges(), [6_000, 6_000]);
}

#[tokio::test(start_paused = true)]
async fn gateway_is_not_asked_for_a_while_after_all_keys_are_rejected() {
    let upstream = PausedUpstream::with(2, |_| Reply::error(401));
    let gate = PausedGate::start(&upstream, "").await;
    for (seconds, asked) in [(0, 2), (0, 2), (1, 4), (1, 4), (1, 6)] {
        gate.advance(Duration::from_secs(seconds)).await;
        let answer = gate.video().await;
        assert_eq!((answer.status, answer.code().as_str()), (502, "gateway_key_rejected"));
        assert_eq!(answer.charged().as_deref(), Some("no"));
        assert_eq!(upstream.requests(), asked, "each key is tried after a second, then after two");
    }
}

#[test]
fn challenge_of_the_gateway_reaches_no_browser() {
    let upstream = Upstream::start(|_| Reply::error(401).header("www-authenticate", "Bearer"));
    let gate = Gate::start(&upstream, "");
    for answer in [gate.chat(), gate.video()] {
        assert_eq!(answer.code(), "gateway_key_rejected");
        assert_eq!(answer.value("www-authenticate"), None, "a browser would ask for a password");
    }
}

#[test]
fn lost_reply_is_not_retried_with_the_next_key() {
    let upstream =
        Upstream::with(3, |_| Welcome::Serve, |_| Reply::chat("hi").cut(10, Ending::Fin));
    let gate = Gate::start(&upstream, "");
    assert_eq!((gate.chat().status, upstream.requests()), (424, 1));
}

#[tokio::test(start_paused = true)]
async fn gateway_429_is_waited_out_and_bought_once() {
    for told in [Some("0"), Some("1"), None] {
        let upstream = PausedUpstream::start(move |received| match (received.number, told) {
            (0, Some(seconds)) => Reply::error(429).header("retry-after", seconds),
            (0, None) => Reply::error(429),
            _ => Reply::chat("hi"),
        });
        let gate = PausedGate::start(&upstream, "gateway.max_wait = \"60s\"").await;
        let answer = gate.chat().await;
        assert_eq!(
            (answer.status, answer.cost()),
            (200, Some(6_000)),
            "{told:?}: {}",
            answer.text()
        );
        assert_eq!((upstream.requests(), upstream.charges()), (2, vec![6_000]));
        let arrivals = upstream.arrivals();
        let waited = arrivals[1] - arrivals[0];
        assert!(waited >= Duration::from_secs(told.map_or(1, |told| told.parse().unwrap())));
    }
}

#[tokio::test(start_paused = true)]
async fn long_gateway_429_is_gateway_busy_with_retry_after() {
    for told in ["60", "2", "never", "18446744073709551616"] {
        let upstream =
            PausedUpstream::start(move |_| Reply::error(429).header("retry-after", told));
        let gate = PausedGate::start(&upstream, "gateway.max_wait = \"900ms\"").await;
        let answer = gate.chat().await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "gateway_busy"), "{told}");
        let after: u64 = answer.value("retry-after").expect("when to return").parse().unwrap();
        assert!((1..=120).contains(&after), "{told}: {after}");
        assert_eq!((upstream.requests(), answer.charged().as_deref()), (1, Some("no")));
    }
}

#[test]
fn definitive_refusal_passes_unchanged_and_free() {
    for status in [400, 402, 403, 404, 413, 415, 422] {
        for (body, media_type) in [
            (r#"{"error":"as the gateway words it","n":1.0}"#, "application/json"),
            ("plain words", "text/plain; charset=utf-8"),
            ("<script>alert(1)</script>", "text/plain; charset=utf-8"),
            ("", "text/plain; charset=utf-8"),
        ] {
            let upstream = Upstream::start(move |_| Reply::new(status, body));
            let gate = Gate::start(&upstream, "");
            for answer in [gate.chat(), gate.video()] {
                assert_eq!((answer.status, answer.text().as_str()), (status, body));
                assert_eq!(answer.value("content-type"), Some(media_type), "{body}");
                assert_eq!(answer.value("tollgate-cost"), Some("0.000000"), "{status}");
            }
            assert_eq!(upstream.requests(), 2);
        }
    }
}
