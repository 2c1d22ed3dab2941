//! `Tollgate-Ledger`: a purchase that names another ledger than the server's is refused, and sends nothing.

use std::thread;

use crate::support::client::Answer;
use crate::support::reply::Latch;
use crate::support::{CHAT, Gate, Reply, Upstream, VIDEO};

const CHATS: &str = "/v1/chat/completions";
const VIDEOS: &str = "/v1/videos";
const SEARCH: &str = "/api/v1/search";
const SETTINGS: &str =
    "gateway.passthrough = [{ method = \"POST\", path = \"/api/v1/search\", price = \"0.001\" }]";
const ANOTHER: &str = "durable-another";

fn upstream() -> Upstream {
    Upstream::start(|received| match received.target.as_str() {
        "/api/v1/video" => Reply::video(&format!("job-{}", received.number)),
        _ => Reply::chat(&format!("reply {}", received.number)),
    })
}

/// The ledger's name, as the catalog's header gives it.
fn name(gate: &Gate) -> String {
    let catalog = gate.get("/bff/catalog");
    let name = catalog.value("tollgate-ledger").expect("the catalog names the ledger");
    assert_eq!(catalog.json()["replay"]["ledger"], name);
    name.to_owned()
}

fn buy(gate: &Gate, target: &str, body: &str, key: &str, ledger: &str) -> Answer {
    let headers = [("idempotency-key", key), ("tollgate-ledger", ledger)];
    gate.ask("POST", target, &headers, body)
}

fn assert_changed(answer: &Answer, name: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (412, "ledger_changed"), "{answer:?}");
    assert_eq!(answer.value("tollgate-ledger"), Some(name));
    assert_eq!(answer.value("retry-after"), None);
    let charged = match answer.json().get("error") {
        Some(error) => error["charged"].clone(),
        None => answer.json()["charged"].clone(),
    };
    assert_eq!(charged, "no");
}

#[test]
fn paid_request_with_another_ledger_name_is_refused_and_sends_nothing() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, SETTINGS);
    let name = name(&gate);
    for (target, body) in [
        ("/api/v1/chat", CHAT),
        ("/api/v1/video", VIDEO),
        (SEARCH, r#"{"q":"lighthouses"}"#),
        (CHATS, CHAT),
        (VIDEOS, VIDEO),
    ] {
        for another in [ANOTHER, "", &name.to_uppercase(), &format!("{name}, {name}")] {
            let refused = buy(&gate, target, body, "k", another);
            assert_changed(&refused, &name);
            let is_dialect = target.starts_with("/v1/");
            assert_eq!(refused.value("x-should-retry"), is_dialect.then_some("false"), "{target}");
        }
    }
    assert_eq!(upstream.requests(), 0);
    assert_eq!(gate.get("/bff/usage?since=1d").json()["total_micros"], 0, "nothing is held");
}

#[test]
fn paid_request_with_the_right_ledger_name_or_none_is_bought() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, "");
    let name = name(&gate);
    let named = buy(&gate, "/api/v1/chat", CHAT, "k", &name);
    assert_eq!((named.status, named.value("tollgate-ledger")), (200, Some(name.as_str())));
    let unnamed = gate.ask("POST", "/api/v1/chat", &[("idempotency-key", "k")], CHAT);
    assert_eq!((unnamed.status, unnamed.value("idempotent-replayed")), (200, Some("true")));
    assert_eq!(unnamed.value("tollgate-ledger"), Some(name.as_str()));
    assert_eq!(upstream.charges(), [6_000]);
}

#[test]
fn kept_reply_and_running_call_require_the_same_ledger_name() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::video("job-1").when(latch));
    let gate = Gate::start(&upstream, "");
    let name = name(&gate);
    thread::scope(|scope| {
        let running = scope.spawn(|| buy(&gate, "/api/v1/video", VIDEO, "k", &name));
        upstream.wait_for(1);
        assert_changed(&buy(&gate, "/api/v1/video", VIDEO, "k", ANOTHER), &name);
        latch.open();
        assert_eq!(running.join().unwrap().status, 200);
    });
    assert_changed(&buy(&gate, "/api/v1/video", VIDEO, "k", ANOTHER), &name);
    let repeat = buy(&gate, "/api/v1/video", VIDEO, "k", &name);
    assert_eq!((repeat.status, repeat.value("idempotent-replayed")), (200, Some("true")));
    assert_eq!(upstream.charges(), [3_000_000]);
}

#[test]
fn refused_purchases_name_the_ledger_and_reads_do_not() {
    let upstream = Upstream::start(|_| Reply::error(404));
    let gate = Gate::start(&upstream, "budget.total = { day = \"0.01\" }");
    let name = name(&gate);
    for (target, body, status) in [
        ("/api/v1/chat", "{}", 422),
        ("/api/v1/chat", CHAT, 404),
        ("/api/v1/video", VIDEO, 402),
        (CHATS, "{}", 422),
        (CHATS, CHAT, 404),
    ] {
        let answer = gate.post(target, body);
        assert_eq!((answer.status, answer.value("tollgate-ledger")), (status, Some(name.as_str())));
    }
    let me = gate.ask("GET", "/bff/me", &[("tollgate-ledger", ANOTHER)], "");
    assert_eq!((me.status, me.value("tollgate-ledger")), (200, None));
}

/// Money 5: whoever repeats a key by itself after the ledger was put back buys nothing.
#[test]
fn repeat_after_the_server_lost_its_ledger_is_refused_and_not_bought_again() {
    let upstream = upstream();
    let mut gate = Gate::start(&upstream, "store.url = \"memory\"");
    let before = name(&gate);
    assert_eq!(buy(&gate, "/api/v1/video", VIDEO, "k", &before).status, 200);
    gate.restart();
    let after = name(&gate);
    assert_ne!(before, after);
    assert_changed(&buy(&gate, "/api/v1/video", VIDEO, "k", &before), &after);
    assert_eq!(upstream.charges(), [3_000_000]);
}

/// A page that is opened anew asks like this: whatever became of the key meanwhile, it must not buy.
#[test]
fn replay_only_request_never_buys() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, "");
    // The job of a video may be polled meanwhile.
    let orders =
        || upstream.received_requests().iter().filter(|received| received.method == "POST").count();
    for (number, (target, body)) in
        [("/api/v1/chat", CHAT), ("/api/v1/video", VIDEO), (CHATS, CHAT), (VIDEOS, VIDEO)]
            .into_iter()
            .enumerate()
    {
        let key = format!("k-{number}");
        let ask = |value| {
            let headers = [("idempotency-key", key.as_str()), ("tollgate-replay", value)];
            gate.ask("POST", target, &headers, body)
        };
        let sold = orders();
        for value in ["only", "ONLY", ""] {
            let unknown = ask(value);
            assert_eq!((unknown.status, unknown.code().as_str()), (404, "purchase_not_found"));
        }
        assert_eq!(orders(), sold, "{target}: nothing was sent");
        let again = [("idempotency-key", key.as_str()), ("x-stainless-retry-count", "1")];
        let bought = gate.ask("POST", target, &again, body);
        let replayed = ask("only");
        let said =
            |answer: &Answer| (answer.status, answer.value("tollgate-cost").map(str::to_owned));
        assert_eq!(said(&replayed), said(&bought), "{target}");
        assert_eq!(replayed.value("idempotent-replayed"), Some("true"), "{target}");
        assert_eq!(orders(), sold + 1, "{target}");
    }
}
