//! An attempt that arrives after a later one with the same key was answered: its caller may have been told
//! that nothing was bought, and may have bought something else since.

use crate::support::client::Answer;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream, VIDEO};

const CHATS: &str = "/v1/chat/completions";

/// Sends the attempt with this number, or one that has none.
fn attempt(gate: &Gate, target: &str, body: &str, number: Option<&str>) -> Answer {
    let mut headers = vec![("idempotency-key", "k")];
    headers.extend(number.map(|number| ("x-stainless-retry-count", number)));
    gate.ask("POST", target, &headers, body)
}

fn look_up(gate: &Gate, target: &str, body: &str, number: Option<&str>) -> Answer {
    let mut headers = vec![("idempotency-key", "k"), ("tollgate-replay", "only")];
    headers.extend(number.map(|number| ("x-stainless-retry-count", number)));
    gate.ask("POST", target, &headers, body)
}

fn assert_superseded(late: &Answer) {
    assert_eq!((late.status, late.code().as_str()), (409, "attempt_superseded"), "{}", late.text());
    assert_eq!((late.charged().as_deref(), late.value("retry-after")), (Some("no"), None));
}

fn upstream() -> Upstream {
    Upstream::start(|received| match received.target.as_str() {
        "/api/v1/chat" => Reply::chat("hi"),
        _ => Reply::video("job-1"),
    })
}

#[test]
fn attempt_after_a_lookup_in_vain_buys_nothing() {
    for store in STORES {
        for (target, body) in [("/api/v1/chat", CHAT), ("/api/v1/video", VIDEO), (CHATS, CHAT)] {
            let upstream = upstream();
            let gate = Gate::start(&upstream, store);
            let unknown = look_up(&gate, target, body, None);
            assert_eq!(unknown.code(), "purchase_not_found", "{target}");
            for late in [None, Some("0"), None] {
                assert_superseded(&attempt(&gate, target, body, late));
            }
            assert_eq!(upstream.purchases(), 0, "{target}");
            // A person tries again.
            let bought = attempt(&gate, target, body, Some("1"));
            assert_eq!((bought.status, bought.is_replay()), (200, false), "{}", bought.text());
            let late = attempt(&gate, target, body, None);
            assert!(late.status == 200 && late.is_replay(), "{}", late.text());
            assert_eq!(upstream.purchases(), 1, "{store} {target}");
        }
    }
}

#[test]
fn attempt_after_a_refused_retry_buys_nothing() {
    let upstream = Upstream::start(|received| match received.number {
        0 => Reply::error(402),
        _ => Reply::chat("hi"),
    });
    let gate = Gate::start(&upstream, "");
    let refused = attempt(&gate, "/api/v1/chat", CHAT, Some("2"));
    assert_eq!(refused.status, 402, "{}", refused.text());
    for late in [None, Some("0"), Some("1")] {
        assert_superseded(&attempt(&gate, "/api/v1/chat", CHAT, late));
    }
    assert_eq!(upstream.requests(), 1);
    assert_eq!(attempt(&gate, "/api/v1/chat", CHAT, Some("2")).status, 200);
    assert_eq!(upstream.charges(), [6_000]);
}

/// The same for a refusal that the gateway does not know of.
#[test]
fn attempt_after_a_retry_that_no_budget_covered_buys_nothing() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, "budget.caller = { day = \"0.006\" }");
    assert_eq!(attempt(&gate, "/api/v1/video", VIDEO, Some("1")).code(), "budget_exhausted");
    assert_superseded(&attempt(&gate, "/api/v1/video", VIDEO, Some("0")));
    // Another endpoint's key and another key are others.
    assert_eq!(attempt(&gate, "/api/v1/chat", CHAT, Some("0")).status, 200);
    assert_eq!((gate.video().code().as_str(), upstream.purchases()), ("budget_exhausted", 1));
}

#[test]
fn attempts_without_a_number_may_be_repeated_after_a_refusal() {
    let upstream = Upstream::start(|received| match received.number {
        0 | 1 => Reply::error(402),
        _ => Reply::chat("hi"),
    });
    let gate = Gate::start(&upstream, "");
    for status in [402, 402, 200] {
        assert_eq!(attempt(&gate, "/api/v1/chat", CHAT, None).status, status);
    }
}

#[test]
fn late_attempt_of_another_caller_is_not_superseded() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, "access.mode = \"members\"");
    let (ann, bob) = (gate.member("ann"), gate.member("bob"));
    let only = ("tollgate-replay", "only");
    let unknown =
        gate.ask("POST", "/api/v1/chat", &[ann.bearer(), ("idempotency-key", "k"), only], CHAT);
    assert_eq!(unknown.code(), "purchase_not_found");
    let post = |bearer| gate.ask("POST", "/api/v1/chat", &[bearer, ("idempotency-key", "k")], CHAT);
    assert_superseded(&post(ann.bearer()));
    assert_eq!(post(bob.bearer()).status, 200);
    assert_eq!(upstream.charges(), [6_000]);
}
