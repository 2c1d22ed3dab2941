//! The trace context of a caller in the log, and the times of a purchase in its answer.

use std::time::Duration;

use serde_json::Value;

use crate::support::client::Answer;
use crate::support::{CHAT, Gate, Reply, Upstream, until};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
const ORIGIN: &str = "https://app.example";

fn buy(gate: &Gate, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut client = gate.client();
    client.send("POST", "/api/v1/chat", headers, body);
    client.answer()
}

#[test]
fn trace_context_is_in_each_log_line_and_not_at_the_gateway() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::binary(&upstream, "log.level = \"debug\"", &[]);
    let sent = format!("00-{TRACE}-{PARENT}-01");
    let state = ("tracestate", "vendor=1");
    assert_eq!(buy(&gate, &[("traceparent", &sent), state], CHAT).status, 200);
    let again = CHAT.replace("hello", "once more");
    assert_eq!(buy(&gate, &[("traceparent", "00-1-2-3")], &again).status, 200);
    let lines = || -> Vec<Value> {
        let printed = gate.printed();
        let lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["span"]["endpoint"] == "/api/v1/chat").collect()
    };
    let ended = |line: &&Value| line["message"] == "request finished";
    until("both are logged", || lines().iter().filter(ended).count() == 2);
    let lines = lines();
    let (traced, others): (Vec<_>, Vec<_>) =
        lines.iter().partition(|line| line["span"]["trace_id"] == TRACE);
    assert!(traced.iter().all(|line| line["span"]["parent_id"] == PARENT), "{traced:?}");
    for lines in [&traced, &others] {
        let messages: Vec<_> = lines.iter().map(|line| &line["message"]).collect();
        assert!(messages.len() == 2 && messages.contains(&&"purchase".into()), "{messages:?}");
    }
    assert!(others.iter().all(|line| line["span"].get("trace_id").is_none()), "{others:?}");
    for request in upstream.received_requests() {
        assert_eq!(request.values("traceparent"), [""; 0]);
        assert_eq!(request.values("tracestate"), [""; 0]);
    }
}

/// Returns the milliseconds of each metric.
fn timings(answer: &Answer) -> Vec<(String, f64)> {
    let lines = answer.headers.iter().filter(|(name, _)| name == "server-timing");
    let metrics = lines.flat_map(|(_, line)| line.split(", "));
    let read = |metric: &str| {
        let (name, duration) = metric.split_once(";dur=").expect("a duration");
        (name.to_owned(), duration.parse().expect("milliseconds"))
    };
    metrics.map(read).collect()
}

#[test]
fn answer_to_a_purchase_says_where_the_time_went() {
    const DELAY: u64 = 40;
    let upstream = Upstream::start(|_| Reply::chat("hello").after(Duration::from_millis(DELAY)));
    let gate = Gate::start(&upstream, &format!("access.allowed_origins = [\"{ORIGIN}\"]"));
    let key = ("idempotency-key", "one");
    let bought = buy(&gate, &[key, ("origin", ORIGIN)], CHAT);
    assert_eq!(bought.status, 200);
    assert_eq!(bought.value("timing-allow-origin"), Some(ORIGIN));
    let found = timings(&bought);
    let [(queue, waited), (gateway, sent), (total, all)] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!([queue, gateway, total], ["queue", "gateway", "total"]);
    assert!(*sent >= DELAY as f64 && waited + sent <= *all, "{found:?}");
    let foreign = buy(&gate, &[], &CHAT.replace("hello", "again"));
    assert_eq!((timings(&foreign).len(), foreign.value("timing-allow-origin")), (3, None));
    let replay = buy(&gate, &[key], CHAT);
    assert!(replay.is_replay() && timings(&replay).is_empty(), "{replay:?}");
    assert_eq!(timings(&gate.get("/bff/catalog")), []);
}
