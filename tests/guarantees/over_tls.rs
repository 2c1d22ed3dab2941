//! The center of each guarantee once more, over HTTP/1 with TLS and over HTTP/2. `TRANSPORT=http2`
//! runs all the others over it.

use std::thread;

use crate::support::bridge::Transport;
use crate::support::client::Answer;
use crate::support::process::Signal;
use crate::support::reply::Latch;
use crate::support::{CHAT, Ending, Gate, Reply, Upstream, VIDEO, until};

/// Runs a test over each transport.
fn each(test: impl Fn(Transport)) {
    Transport::SECURE.into_iter().for_each(test);
}

fn chat_with_key(gate: &Gate, key: &str) -> Answer {
    gate.ask("POST", "/api/v1/chat", &[("idempotency-key", key)], CHAT)
}

#[test]
fn page_catalog_and_purchases_are_served() {
    each(|transport| {
        let upstream = Upstream::start(|received| match received.target.as_str() {
            "/api/v1/video" => Reply::video("v1"),
            _ => Reply::chat("hello"),
        });
        let gate = Gate::over(transport, &upstream, "server.hsts = \"1d\"");
        for target in ["/", "/bff/catalog", "/healthz"] {
            let answer = gate.get(target);
            assert_eq!(answer.status, 200, "{transport:?} {target}");
            assert_eq!(answer.value("strict-transport-security"), Some("max-age=86400"));
            assert!(answer.value("date").is_some(), "{transport:?} {target}");
        }
        assert_eq!(gate.chat().cost(), Some(6_000));
        assert_eq!(gate.video().cost(), Some(3_000_000));
    });
}

#[test]
fn invalid_request_is_not_forwarded() {
    each(|transport| {
        let upstream = Upstream::start(|_| Reply::chat("hello"));
        let gate = Gate::over(transport, &upstream, "");
        let large = format!("{{\"model\":\"{}\"}}", "x".repeat(3 << 20));
        for (headers, body, status) in [
            (&[][..], "{}", 422),
            (&[], "[", 400),
            (&[("content-type", "text/plain")], CHAT, 415),
            (&[("host", "evil.example")], CHAT, 421),
            (&[("sec-fetch-site", "cross-site"), ("origin", "https://e.example")], CHAT, 403),
            (&[], &large, 413),
        ] {
            let answer = gate.ask("POST", "/api/v1/chat", headers, body);
            assert_eq!(answer.status, status, "{transport:?} {}", answer.text());
            assert_eq!(answer.charged().as_deref(), Some("no"));
        }
        assert_eq!(upstream.requests(), 0);
    });
}

#[test]
fn nothing_is_bought_twice() {
    each(|transport| {
        let latch = Latch::new();
        let upstream = Upstream::start(move |_| Reply::chat("hello").when(latch));
        let gate = Gate::over(transport, &upstream, "");
        thread::scope(|scope| {
            let callers: Vec<_> =
                (0..5).map(|_| scope.spawn(|| chat_with_key(&gate, "same"))).collect();
            until("the gateway has the purchase", || upstream.requests() == 1);
            latch.open();
            let replays = callers.into_iter().map(|caller| caller.join().unwrap());
            assert_eq!(replays.filter(|answer| answer.is_replay()).count(), 4);
        });
        assert!(chat_with_key(&gate, "same").is_replay());
        assert_eq!(upstream.requests(), 1, "{transport:?}");
        // Without a key, a delivered reply is not replayed. Over HTTP/2, none counts as delivered.
        let is_replayed = transport == Transport::Http2;
        for (replay, bought) in [(false, 2), (is_replayed, if is_replayed { 2 } else { 3 })] {
            let answer = gate.ask("POST", "/api/v1/chat", &[], CHAT);
            assert_eq!((answer.status, answer.is_replay()), (200, replay), "{transport:?}");
            assert_eq!(upstream.requests(), bought, "{transport:?}");
        }
    });
}

#[test]
fn money_is_held_and_the_rate_limit_holds() {
    each(|transport| {
        let upstream = Upstream::start(|_| Reply::chat("hello"));
        let settings = "budget.total = { day = \"0.012\" }\n\
                        gateway.rate_limit = { requests = 2, seconds = 3600 }\n\
                        gateway.max_wait = \"0s\"";
        let gate = Gate::over(transport, &upstream, settings);
        assert_eq!(gate.ask("POST", "/api/v1/video", &[], VIDEO).status, 402);
        assert_eq!([gate.chat().status, gate.chat().status, gate.chat().status], [200, 200, 402]);
        assert_eq!(upstream.requests(), 2, "{transport:?}");
        drop(gate);
        let gate = Gate::over(transport, &upstream, &settings.replace("0.012", "1.00"));
        let statuses = [gate.chat().status, gate.chat().status, gate.chat().status];
        assert_eq!(statuses, [200, 200, 503], "{transport:?}");
    });
}

#[test]
fn lost_client_changes_nothing_and_gets_the_reply_later() {
    each(|transport| {
        let latch = Latch::new();
        let upstream = Upstream::start(move |_| Reply::chat("hello").when(latch));
        let gate = Gate::over(transport, &upstream, "");
        let mut client = gate.client();
        client.send("POST", "/api/v1/chat", &[("idempotency-key", "lost")], CHAT);
        until("the gateway has the purchase", || upstream.requests() == 1);
        drop(client);
        gate.wait_for_clients(0);
        latch.open();
        let answer = chat_with_key(&gate, "lost");
        assert_eq!((answer.status, answer.is_replay()), (200, true), "{transport:?}");
        assert_eq!(upstream.requests(), 1);
    });
}

#[test]
fn unknown_outcome_is_reported_and_never_sent_again() {
    each(|transport| {
        let upstream = Upstream::start(|_| Reply::chat("hello").cut(20, Ending::Fin));
        let gate = Gate::over(transport, &upstream, "");
        for _ in 0..2 {
            let answer = chat_with_key(&gate, "unknown");
            let charged = answer.charged();
            assert_eq!((answer.status, charged.as_deref()), (424, Some("unknown")));
        }
        assert_eq!(upstream.requests(), 1, "{transport:?}");
    });
}

#[test]
fn gateway_key_in_a_reply_is_redacted() {
    each(|transport| {
        let upstream = Upstream::start(|received| {
            Reply::chat(received.values("authorization").first().copied().unwrap_or_default())
        });
        let gate = Gate::over(transport, &upstream, "");
        assert_eq!(gate.chat().status, 200, "{transport:?}");
        assert!(gate.metrics().contains("tollgate_keys_redacted_total 1"));
    });
}

#[test]
fn large_reply_arrives_whole() {
    each(|transport| {
        let words = "0123456789".repeat(100_000);
        let sent = words.clone();
        let upstream = Upstream::start(move |_| Reply::chat(&sent));
        let gate = Gate::over(transport, &upstream, "");
        let answer = gate.chat();
        assert_eq!(answer.json()["message"]["content"], words, "{transport:?}");
    });
}

#[test]
fn stop_waits_for_the_purchase() {
    for transport in Transport::SECURE {
        let latch = Latch::new();
        let upstream = Upstream::start(move |_| Reply::chat("hello").when(latch));
        let mut gate = Gate::binary_over(transport, &upstream, "");
        let mut client = gate.client();
        client.send("POST", "/api/v1/chat", &[("idempotency-key", "one")], CHAT);
        until("the gateway has the purchase", || upstream.requests() == 1);
        gate.signal(Signal::SIGTERM);
        until("it drains", || gate.printed().contains("drain started"));
        latch.open();
        assert_eq!(client.answer().status, 200, "{transport:?}");
        assert!(gate.wait().success());
    }
}
