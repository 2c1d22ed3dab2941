//! Guarantee 1: nothing of the key beyond its public prefix reaches a client, a log, a metric, a panic,
//! a file or another host. Every [`Gate`] looks for it when it ends; these tests provoke a leak.

mod encodings;
mod process;
mod startup_errors;

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::support::received::ReceivedRequest;
use crate::support::{Ending, Gate, Reply, Upstream};

/// The authorization that the gateway was sent.
fn bearer(received: &ReceivedRequest) -> String {
    received.values("authorization")[0].to_owned()
}

type Echo = (&'static str, fn(&str) -> String);

/// How a careless gateway could echo what it was sent.
const ECHOES: &[Echo] = &[
    ("as it is", |bearer| bearer.to_owned()),
    ("in upper case", str::to_uppercase),
    ("percent-encoded", |bearer| bearer.replace('_', "%5F").replace(' ', "%20")),
    ("percent-encoded in lower case", |bearer| bearer.replace('_', "%5f")),
    ("in base64", |bearer| STANDARD.encode(bearer)),
    ("in base64, moved by one", |bearer| STANDARD.encode(format!("x{bearer}"))),
    ("in base64, moved by two", |bearer| STANDARD.encode(format!("xy{bearer}"))),
    ("many times", |bearer| bearer.repeat(100)),
];

#[test]
fn echoed_key_is_redacted_and_the_paid_reply_delivered() {
    for (how, echo) in ECHOES {
        for dribbles in [false, true] {
            let upstream = Upstream::start(move |received| {
                let body =
                    json!({"message": {"content": echo(&bearer(received))}, "after": "kept"});
                let reply = Reply::new(200, body.to_string());
                if dribbles { reply.dribbled() } else { reply }
            });
            let gate = Gate::start(&upstream, "");
            let answer = gate.chat();
            assert_eq!((answer.status, answer.cost()), (200, Some(6_000)), "{how}");
            let content = answer.json()["message"]["content"].to_string();
            assert!(content.contains("********"), "{how}: {content}");
            assert_eq!(answer.json()["after"], "kept", "{how}");
            assert!(gate.metrics().contains("tollgate_keys_redacted_total 1"), "{how}");
        }
    }
}

#[test]
fn refusal_that_echoes_the_request_is_redacted() {
    for status in [400, 402, 403, 404, 413, 415, 422] {
        let upstream = Upstream::start(move |received| {
            Reply::new(status, received.bytes.clone()).header("content-type", "text/html")
        });
        let gate = Gate::start(&upstream, "");
        let answer = gate.chat();
        assert_eq!(answer.status, status);
        assert!(answer.text().contains("Bearer ********"), "{}", answer.text());
        assert_eq!(answer.value("content-type"), Some("text/plain; charset=utf-8"));
    }
}

#[test]
fn key_in_a_reply_header_is_not_passed_on() {
    let headers = ["x-echo", "location", "set-cookie", "www-authenticate", "retry-after", "etag"];
    for status in [200, 302, 400, 401, 429, 500] {
        let upstream = Upstream::start(move |received| {
            let echo = |reply: Reply, name: &&str| reply.header(name, &bearer(received));
            headers
                .iter()
                .fold(Reply::new(status, "{}"), echo)
                .header("content-type", &bearer(received))
        });
        let gate = Gate::start(&upstream, "gateway.max_wait = \"0s\"");
        let answer = gate.chat();
        assert!(answer.status >= 200, "{answer:?}");
        for name in headers.iter().filter(|name| **name != "retry-after") {
            assert_eq!(answer.value(name), None);
        }
    }
}

#[test]
fn key_in_the_reason_phrase_is_not_passed_on() {
    for (status, expected) in [(200, 200), (400, 400), (500, 424)] {
        let upstream = Upstream::start(move |received| {
            let body = r#"{"message":{"content":"hi"}}"#;
            let head = format!(
                "HTTP/1.1 {status} {}\r\ncontent-length: {}\r\n\r\n{body}",
                bearer(received),
                body.len()
            );
            Reply::raw(head).charged(status == 200)
        });
        assert_eq!(Gate::start(&upstream, "").chat().status, expected);
    }
}

#[test]
fn unreadable_reply_is_not_passed_on() {
    for body in ["not json ", "[", "{\"message\":"] {
        let upstream =
            Upstream::start(move |received| Reply::new(200, format!("{body}{}", bearer(received))));
        let answer = Gate::start(&upstream, "").chat();
        assert_eq!((answer.status, answer.code().as_str()), (424, "outcome_unknown"));
    }
}

#[test]
fn compressed_reply_is_not_passed_on() {
    for status in [200, 400] {
        let upstream = Upstream::start(move |received| {
            let body = json!({"message": {"content": bearer(received)}}).to_string();
            let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
            gzip.write_all(body.as_bytes()).unwrap();
            Reply::new(status, gzip.finish().unwrap()).header("content-encoding", "gzip")
        });
        let answer = Gate::start(&upstream, "").chat();
        assert_eq!((answer.status, answer.code().as_str()), (424, "outcome_unknown"));
        assert_eq!(answer.value("content-encoding"), None);
        assert_eq!(upstream.received_requests()[0].values("accept-encoding"), ["identity"]);
    }
}

#[test]
fn redirect_is_neither_followed_nor_passed_on() {
    for status in [300, 301, 302, 303, 305, 307, 308] {
        let elsewhere = Upstream::start(|_| Reply::chat("got you"));
        let target = format!("http://{}/api/v1/chat", elsewhere.address());
        let upstream = Upstream::start(move |_| Reply::new(status, "").header("location", &target));
        let gate = Gate::start(&upstream, "");
        for answer in [gate.chat(), gate.video()] {
            assert_eq!((answer.status, answer.code().as_str()), (424, "outcome_unknown"));
            assert_eq!(answer.value("location"), None);
        }
        assert_eq!((upstream.requests(), elsewhere.connections()), (2, 0), "{status}");
    }
}

#[test]
fn status_request_does_not_leak_the_key() {
    let elsewhere = Upstream::start(|_| Reply::chat("got you"));
    let target = format!("http://{}/api/v1/video/status", elsewhere.address());
    let redirect = Reply::new(302, "").header("location", &target);
    // Side by side, as most of the time they wait for the next poll.
    std::thread::scope(|scope| {
        scope.spawn(|| polled(move |_| redirect.clone()));
        scope.spawn(|| polled(|received| Reply::new(500, received.bytes.clone())));
    });
    assert_eq!(elsewhere.connections(), 0);
}

/// Polls a job whose gateway echoes the key once, and then answers like this.
fn polled(then: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static) {
    let upstream = Upstream::start(move |received| match received.number {
        0 => Reply::video("job-1"),
        1 => Reply::new(200, json!({"status": "running", "echo": bearer(received)}).to_string()),
        _ => then(received),
    });
    let gate = Gate::start(&upstream, "");
    assert_eq!(gate.video().status, 200);
    let poll = || gate.get("/api/v1/video/status?request_id=job-1");
    let answer = poll();
    assert_eq!((answer.status, answer.json()["status"].as_str()), (200, Some("running")));
    assert!(answer.text().contains("********"), "{}", answer.text());
    // What follows is the last known reply: never the gateway's own words.
    upstream.wait_for(3);
    let answer = poll();
    assert_eq!((answer.status, answer.json()["status"].as_str()), (200, Some("running")));
    assert_eq!(answer.value("location"), None);
}

#[test]
fn caller_headers_never_reach_the_gateway() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let gate = Gate::start(&upstream, "");
    let headers = [
        ("Authorization", "Bearer of.the.caller"),
        ("Authorization", "Basic b2Y6dGhlY2FsbGVy"),
        ("Connection", "authorization, x-request-id"),
        ("Cookie", "session=secret"),
        ("X-Forwarded-For", "192.0.2.1"),
        ("X-Forwarded-Host", "evil.example"),
        ("X-Original-URL", "/api/api-keys"),
        ("X-HTTP-Method-Override", "GET"),
        ("X-Request-Id", "from-the-caller"),
        ("Idempotency-Key", "from-the-caller"),
        ("User-Agent", "from-the-caller"),
        ("Referer", "http://localhost/from-the-caller"),
        ("Accept-Encoding", "gzip"),
    ];
    let answer = gate.ask("POST", "/api/v1/chat", &headers, crate::support::CHAT);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let received = &upstream.received_requests()[0];
    let mut names: Vec<_> = received.headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let ours = [
        "accept",
        "accept-encoding",
        "authorization",
        "content-length",
        "content-type",
        "host",
        "user-agent",
    ];
    assert_eq!(names, ours);
    let text = String::from_utf8_lossy(&received.bytes).to_lowercase();
    for theirs in ["caller", "evil", "session", "192.0.2.1", "gzip"] {
        assert!(!text.contains(theirs), "{theirs}: {text}");
    }
}

#[test]
fn connection_error_does_not_reveal_the_request() {
    for ending in [Ending::Fin, Ending::Reset] {
        let upstream =
            Upstream::start(move |received| Reply::new(200, bearer(received)).cut(60, ending));
        let answer = Gate::start(&upstream, "").chat();
        assert_eq!((answer.status, answer.code().as_str()), (424, "outcome_unknown"));
    }
}
