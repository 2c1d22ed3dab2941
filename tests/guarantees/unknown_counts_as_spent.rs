//! Guarantee 6: a call whose outcome is not known stays booked, and is never sent again.

mod charged_field;
mod unparsable_replies;

use crate::support::client::Answer;
use crate::support::reply::Latch;
use crate::support::{Ending, Gate, Reply, Upstream};

const SHORT: &str = "gateway = { chat_timeout = \"300ms\", video_timeout = \"300ms\" }";

fn is_unknown(answer: &Answer) -> bool {
    let charged = answer.charged().unwrap_or_default();
    (answer.status, answer.code().as_str()) == (424, "outcome_unknown")
        && ["unknown", "yes"].contains(&charged.as_str())
        && answer.cost().is_none()
}

type Row = (&'static str, fn(Reply) -> Reply);

/// Replies to a purchase that was taken which only a timeout ends.
const ENDLESS: &[Row] = &[
    ("it never comes", |reply| reply.cut(0, Ending::Hang)),
    ("its head never ends", |reply| reply.cut(20, Ending::Hang)),
    ("its body never ends", |reply| reply.cut(90, Ending::Hang)),
];

/// What else can become of one.
const FATES: &[Row] = &[
    ("it is lost, orderly", |reply| reply.cut(0, Ending::Fin)),
    ("it is lost by a reset", |reply| reply.cut(0, Ending::Reset)),
    ("it is endless", |reply| reply.then(Ending::Endless)),
    ("it is compressed", |reply| reply.header("content-encoding", "gzip")),
    ("it is compressed twice", |reply| reply.header("content-encoding", "identity, br")),
    ("its lengths differ", |reply| reply.header("content-length", "7")),
    ("its chunks are none", |reply| reply.header("transfer-encoding", "chunked").then(Ending::Fin)),
    ("it is a head of 1 MiB", |reply| reply.header("x", &"x".repeat(1 << 20))),
    ("it has 1000 headers", |reply| {
        (0..1_000).fold(reply, |reply, at| reply.header(&format!("x{at}"), "x"))
    }),
];

/// What may be answered that is no reply at all.
const RAW: &[(&str, &str)] = &[
    ("not HTTP", "hello\r\n\r\n"),
    ("another protocol", "SSH-2.0-OpenSSH_9.9\r\n"),
    ("HTTP/2", "\0\0\0\x04\0\0\0\0\0"),
    ("a status of four digits", "HTTP/1.1 2000 OK\r\ncontent-length: 2\r\n\r\n{}"),
    (
        "an upgrade",
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    ),
    (
        "nothing but interim replies",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n",
    ),
    ("no content", "HTTP/1.1 204 No Content\r\n\r\n"),
    ("an empty success", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    ("HTML", "HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n<html></html>"),
    ("an array", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]"),
    ("half of it", "HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{\"message\":{\""),
    ("two of it", "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n{}{}"),
    ("not UTF-8", "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"message\":\"\u{80}"),
];

#[test]
fn purchase_without_a_readable_reply_is_a_424_and_sent_once() {
    let endless = ENDLESS.iter().map(|row| (row, SHORT));
    for ((fate, turn), settings) in FATES.iter().map(|row| (row, "")).chain(endless) {
        let upstream = Upstream::start(move |received| match received.target.as_str() {
            "/api/v1/chat" => turn(Reply::chat("hi")),
            _ => turn(Reply::video("job-1")),
        });
        let gate = Gate::start(&upstream, settings);
        for answer in [gate.chat(), gate.video()] {
            assert!(is_unknown(&answer), "{fate}: {answer:?}");
        }
        assert_sent(&upstream, 2, fate);
    }
}

/// The gate may give up before the gateway has read a request.
#[track_caller]
fn assert_sent(upstream: &Upstream, requests: usize, what: &str) {
    upstream.wait_for(requests);
    assert_eq!(upstream.requests(), requests, "{what}");
}

#[test]
fn purchase_with_a_late_reply_is_a_424_and_sent_once() {
    for (target, body) in
        [("/api/v1/chat", crate::support::CHAT), ("/api/v1/video", crate::support::VIDEO)]
    {
        let latch = Latch::new();
        let upstream = Upstream::start(move |received| match received.target.as_str() {
            "/api/v1/chat" => Reply::chat("hi").when(latch),
            _ => Reply::video("job-1").when(latch),
        });
        let gate = Gate::start(&upstream, SHORT);
        let buy = || gate.ask("POST", target, &[("idempotency-key", "k")], body);
        let answer = buy();
        assert!(is_unknown(&answer), "{answer:?}");
        latch.open();
        let again = buy();
        assert!(is_unknown(&again) && again.is_replay(), "{again:?}");
        assert_sent(&upstream, 1, target);
    }
}

#[test]
fn every_invalid_reply_is_a_424() {
    for (what, bytes) in RAW {
        let upstream = Upstream::start(move |_| Reply::raw(*bytes).then(Ending::Fin));
        let gate = Gate::start(&upstream, "");
        for answer in [gate.chat(), gate.video()] {
            assert!(is_unknown(&answer), "{what}: {answer:?}");
        }
        assert_sent(&upstream, 2, what);
    }
}

#[test]
fn status_outside_the_contract_is_a_424() {
    let statuses = [300, 302, 304, 307, 405, 406, 408, 409, 410, 418, 421, 423, 424, 425, 426, 428];
    for status in
        statuses.into_iter().chain([431, 451, 499, 500, 501, 502, 503, 504, 511, 599, 600, 999])
    {
        for charges in [false, true] {
            let upstream = Upstream::start(move |_| Reply::error(status).charged(charges));
            let gate = Gate::start(&upstream, "");
            let answer = gate.chat();
            assert!(is_unknown(&answer), "{status}: {answer:?}");
            assert_eq!(answer.charged().as_deref(), Some("unknown"), "{status}");
            assert!(!answer.text().contains("as the gateway words"), "{status}: {answer:?}");
            assert_eq!(
                answer.value("retry-after"),
                None,
                "a machine must not be told to buy again"
            );
            assert_sent(&upstream, 1, &status.to_string());
        }
    }
}

#[test]
fn unreadable_success_is_unknown() {
    for charges in [false, true] {
        let reply = move |_: &_| Reply::new(200, "<html>").charged(charges);
        let upstream = Upstream::start(reply);
        let gate = Gate::start(&upstream, "");
        let answer = gate.chat();
        assert!(is_unknown(&answer), "{answer:?}");
        assert_eq!(answer.charged().as_deref(), Some("unknown"));
    }
}

#[test]
fn too_large_reply_is_not_kept() {
    const MOST: usize = 4 * 1_024 * 1_024;
    for (size, taken) in [(MOST, true), (MOST + 1, false)] {
        let upstream = Upstream::start(move |_| {
            let around = r#"{"message":{"content":""}}"#.len();
            Reply::chat(&"x".repeat(size - around))
        });
        let gate = Gate::start(&upstream, "");
        let answer = gate.chat();
        assert_eq!(answer.status == 200, taken, "{size}: {}", answer.status);
        assert!(taken || is_unknown(&answer), "{size}: {answer:?}");
        assert_eq!(upstream.requests(), 1);
    }
}

/// How a reply can say where it ends.
type Framing = (&'static str, fn(Reply) -> Vec<u8>);

const FRAMINGS: &[Framing] = &[
    ("by its length", |reply| reply.bytes()),
    ("by chunks", |reply| {
        let bytes = reply.header("transfer-encoding", "chunked").bytes();
        let split = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let (head, body) = bytes.split_at(split);
        let (one, two) = body.split_at(body.len() / 2);
        let chunk =
            |part: &[u8]| [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat();
        [head, &chunk(one), &chunk(two), b"0\r\n\r\n"].concat()
    }),
    ("by the connection's end", |reply| {
        let text = String::from_utf8(reply.bytes()).unwrap();
        let is_length = |line: &&str| !line.starts_with("content-length");
        text.split("\r\n").filter(is_length).collect::<Vec<_>>().join("\r\n").into_bytes()
    }),
];

#[test]
fn chat_reply_cut_at_any_byte_is_complete_or_a_424() {
    cut_at_every_byte("/api/v1/chat", crate::support::CHAT, &Reply::chat("hi"));
}

#[test]
fn video_reply_cut_at_any_byte_is_complete_or_a_424() {
    cut_at_every_byte("/api/v1/video", crate::support::VIDEO, &Reply::video("job-1"));
}

fn cut_at_every_byte(target: &str, body: &str, reply: &Reply) {
    let paid_for = reply.body();
    for (framing, frame) in FRAMINGS {
        let bytes = frame(reply.clone());
        let (whole, count) = (bytes.clone(), bytes.len());
        let upstream = Upstream::start(move |received| {
            Reply::raw(whole.clone()).cut(received.number, Ending::Fin)
        });
        let gate = Gate::start(&upstream, "");
        let mut client = gate.client();
        for at in 0..=count {
            let key = at.to_string();
            client.send("POST", target, &[("idempotency-key", &key)], body);
            let answer = client.answer();
            let is_whole = answer.status == 200;
            let place = format!("{framing}, {at} of {count}: {}", answer.text());
            assert!(is_whole || is_unknown(&answer), "{place}");
            assert!(!is_whole || answer.body == paid_for, "{place}");
            assert!(is_whole || at < count, "{place}");
            assert_eq!(upstream.requests(), at + 1, "{place}");
        }
    }
}
