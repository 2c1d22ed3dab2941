//! Every answer of a paid route says whether money moved: a price where it was bought, `charged` where
//! it was not.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate::ledger::{PurchaseState, Store};

use crate::support::client::Answer;
use crate::support::received::ReceivedRequest;
use crate::support::reply::Latch;
use crate::support::upstream::Welcome;
use crate::support::{CHAT, Ending, Gate, Reply, Upstream, VIDEO};

type Answering = fn(&ReceivedRequest) -> Reply;

struct Case {
    /// Lines of `proxy.toml`.
    settings: &'static str,
    gateway: Answering,
    body: &'static str,
    expected: (u16, &'static str, &'static str),
}

const fn case(
    settings: &'static str,
    gateway: Answering,
    body: &'static str,
    expected: (u16, &'static str, &'static str),
) -> Case {
    Case { settings, gateway, body, expected }
}

const CASES: &[Case] = &[
    case("", |_| Reply::chat("hi"), "{", (400, "malformed_json", "no")),
    case("", |_| Reply::chat("hi"), "{}", (422, "invalid_request", "no")),
    case(
        "budget.total = { day = \"0.001\" }",
        |_| Reply::chat("hi"),
        CHAT,
        (402, "budget_exhausted", "no"),
    ),
    case("", |_| Reply::error(401), CHAT, (502, "gateway_key_rejected", "no")),
    case("gateway.max_wait = \"0s\"", |_| Reply::error(429), CHAT, (503, "gateway_busy", "no")),
    case("", |_| Reply::error(500), CHAT, (424, "outcome_unknown", "unknown")),
    case("", |_| Reply::error(302), CHAT, (424, "outcome_unknown", "unknown")),
    case(
        "",
        |_| Reply::chat("hi").cut(20, Ending::Reset),
        CHAT,
        (424, "outcome_unknown", "unknown"),
    ),
    case(
        "gateway.chat_timeout = \"200ms\"",
        |_| Reply::nothing(Ending::Hang),
        CHAT,
        (424, "outcome_unknown", "unknown"),
    ),
    case("", |_| Reply::new(200, "thank you"), CHAT, (424, "outcome_unknown", "unknown")),
    case("", |_| Reply::new(200, NO_CHAT), CHAT, (424, "outcome_unknown", "yes")),
];

/// A success that may come from anything on the way.
const NO_CHAT: &str = r#"{"error":"no credit"}"#;

/// What stock SDKs send again on their own.
fn is_sent_again(status: u16) -> bool {
    matches!(status, 408 | 409 | 429 | 500..)
}

#[track_caller]
fn assert_told(answer: &Answer, expected: (u16, &str, &str)) {
    let charged = answer.charged().unwrap_or_default();
    assert_eq!((answer.status, answer.code().as_str(), charged.as_str()), expected);
    assert_eq!(answer.value("tollgate-cost"), None, "no reply, no price");
    assert_eq!(answer.value("cache-control"), Some("no-store"));
    let costs_nothing = charged == "no" || answer.status == 409;
    assert!(costs_nothing || !is_sent_again(answer.status), "an SDK would buy it again");
    assert_eq!(answer.value("retry-after").is_some(), answer.status == 503, "{}", answer.text());
}

#[test]
fn failed_purchase_states_whether_it_was_charged() {
    for Case { settings, gateway, body, expected } in CASES {
        let upstream = Upstream::start(gateway);
        let gate = Gate::start(&upstream, settings);
        for key in [None, Some("k")] {
            let headers: Vec<_> = key.map(|key| ("idempotency-key", key)).into_iter().collect();
            assert_told(&gate.ask("POST", "/api/v1/chat", &headers, body), *expected);
        }
    }
}

/// One that was free would otherwise prove that another purchase was not charged.
#[test]
fn chat_without_content_is_charged_on_every_endpoint_and_no_evidence() {
    let upstream = Upstream::start(|_| Reply::new(202, NO_CHAT));
    let gate = Gate::start(&upstream, "store.url = \"sqlite:ledger.db\"");
    for target in ["/api/v1/chat", "/v1/chat/completions"] {
        let headers = [("idempotency-key", target)];
        for _replay in 0..2 {
            let answer = gate.ask("POST", target, &headers, CHAT);
            assert_eq!((answer.status, answer.code().as_str()), (424, "outcome_unknown"));
            assert_eq!(answer.charged().as_deref(), Some("yes"), "{}", answer.text());
        }
    }
    assert_eq!(upstream.requests(), 2);
    let path = gate.folder().join("ledger.db");
    let ledger = Store::open_read_only(&path, Arc::new(|| Duration::ZERO)).unwrap();
    let evidence = Runtime::new().unwrap().block_on(ledger.evidence(0, Duration::MAX)).unwrap();
    let states: Vec<_> = evidence.iter().map(|one| (one.purchase.state, one.is_assumed)).collect();
    assert_eq!(states, [(PurchaseState::Charged, true); 2]);
}

/// PostgreSQL's text has no U+0000, and its indexes take no long keys.
#[test]
fn video_with_an_id_that_nobody_can_ask_for_is_charged_and_ends() {
    for id in ["a\\u0000b", &"f".repeat(8_000), "", "two words"] {
        let reply = format!(r#"{{"request_id":"{id}","cost":{{"this_request":"$3.00"}}}}"#);
        let upstream = Upstream::start(move |_| Reply::new(200, reply.as_str()));
        let gate = Gate::start(&upstream, "");
        for _replay in 0..2 {
            let answer = gate.ask("POST", "/api/v1/video", &[("idempotency-key", "k")], VIDEO);
            assert_told(&answer, (424, "outcome_unknown", "yes"));
        }
        assert_eq!(upstream.requests(), 1, "{id}");
    }
}

#[test]
fn unreachable_gateway_states_charged_no() {
    let upstream = Upstream::closed(1, |_| Welcome::Serve, |_| Reply::chat("hi"));
    let gate = Gate::start(&upstream, "");
    for answer in [gate.chat(), gate.video()] {
        assert_told(&answer, (502, "gateway_unreachable", "no"));
    }
}

#[test]
fn cost_header_is_repeated_on_joins_and_replays() {
    let cheap = CHAT.replace("alpha-sonnet-4.5", "iota-5");
    for (target, body, price) in [
        ("/api/v1/chat", CHAT, "0.006000"),
        ("/api/v1/chat", cheap.as_str(), "0.003000"),
        ("/api/v1/video", VIDEO, "3.000000"),
    ] {
        let latch = Latch::new();
        let upstream = Upstream::start(move |received| match received.target.as_str() {
            "/api/v1/chat" => Reply::chat("hi").when(latch),
            _ => Reply::video("job-1").when(latch),
        });
        let gate = Gate::start(&upstream, "");
        let headers = [("idempotency-key", price)];
        let (mut first, mut joined) = (gate.client(), gate.client());
        first.send("POST", target, &headers, body);
        upstream.wait_for(1);
        joined.send("POST", target, &headers, body);
        gate.catch_up();
        latch.open();
        let (first, joined) = (first.answer(), joined.answer());
        let replayed = gate.ask("POST", target, &headers, body);
        for answer in [first, joined, replayed] {
            assert_eq!((answer.status, answer.value("tollgate-cost")), (200, Some(price)));
        }
        let sold = upstream.received_requests();
        assert_eq!(sold.iter().filter(|received| received.method == "POST").count(), 1);
    }
}
