//! Each alert reaches a webhook once: until it is over, or in its period, also after restarts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use super::{Receiver, SECRET};
use crate::support::paused::{PausedGate, PausedUpstream};
use crate::support::process::Signal;
use crate::support::server::ReservedPort;
use crate::support::{CHAT, Gate, Reply, Upstream, lock, until};

const LEDGER: &str = "store.url = \"sqlite:ledger.db\"\n";

fn start(upstream: &Upstream, receiver: &Receiver, (events, more): (&str, &str)) -> Gate {
    let settings = format!("{LEDGER}{more}\n{}", receiver.settings(events));
    Gate::binary(upstream, &settings, &[("TOLLGATE_WEBHOOK_SECRET", SECRET)])
}

/// Returns the number of rows that a query of the ledger counts.
fn count(folder: &Path, query: &str) -> u64 {
    let path = folder.join("ledger.db");
    let ledger = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    ledger.query_row(query, [], |row| row.get(0)).unwrap()
}

fn is_raised(gate: &Gate, rule: &str) -> bool {
    count(gate.folder(), &format!("SELECT count(*) FROM alerts WHERE rule = '{rule}'")) > 0
}

/// Waits until the receiver has this many messages, and the server has recorded all deliveries.
fn until_delivered(gate: &Gate, receiver: &Receiver, messages: usize) {
    receiver.wait_for(messages);
    until("nothing is left to deliver", || {
        count(gate.folder(), "SELECT count(*) FROM outbox") == 0
    });
}

/// Returns the data of each event of this type that the receiver got, in their order.
fn data_of(receiver: &Receiver, kind: &str) -> Vec<Value> {
    let got = receiver.got().into_iter().map(|message| message.json());
    got.filter(|event| event["type"] == kind).map(|event| event["data"].clone()).collect()
}

fn listing(balance_cents: u64, keys: &Value) -> Reply {
    let used = json!({"count": 0, "costCents": 0});
    let billing = json!({
        "balanceCents": balance_cents, "rateLimit": {"requests": 60, "windowSeconds": 60},
        "usage": {"chat": used, "totalSpentCents": 0}
    });
    Reply::new(200, json!({"keys": keys, "billing": billing}).to_string())
}

#[test]
fn low_balance_is_reported_once_until_it_has_recovered() {
    let (upstream, receiver) = (Upstream::start(|_| Reply::chat("hello")), Receiver::ok());
    let prefix = &upstream.canaries()[0].key()[..12];
    let revoked =
        json!([{"name": "web", "keyPrefix": prefix, "revokedAt": "2025-01-01T00:00:00Z"}]);
    upstream.set_listing(listing(500, &json!([])));
    let events = "[\"balance.low\", \"key.revoked\"]";
    let mut gate = start(&upstream, &receiver, (events, "alerts.balance = \"10.00\""));
    until_delivered(&gate, &receiver, 1);
    // It is still low. The other alert shows that the server has looked.
    upstream.set_listing(listing(400, &revoked));
    gate.restart();
    until_delivered(&gate, &receiver, 2);
    upstream.set_listing(listing(1_000, &json!([])));
    gate.restart();
    until("the alert is over", || !is_raised(&gate, "balance.low"));
    upstream.set_listing(listing(999, &json!([])));
    gate.restart();
    until_delivered(&gate, &receiver, 3);
    let low = |balance: &str, micros: u64| json!({"balance": balance, "balance_micros": micros, "threshold": "10.000000", "threshold_micros": 10_000_000});
    let expected = [low("5.000000", 5_000_000), low("9.990000", 9_990_000)];
    assert_eq!(data_of(&receiver, "balance.low"), expected);
    assert_eq!(data_of(&receiver, "key.revoked"), [json!({"prefix": prefix})]);
}

#[test]
fn low_balance_is_reported_to_a_webhook_that_a_reload_adds() {
    let (upstream, receiver) = (Upstream::start(|_| Reply::chat("hello")), Receiver::ok());
    let prefix = &upstream.canaries()[0].key()[..12];
    let revoked =
        json!([{"name": "web", "keyPrefix": prefix, "revokedAt": "2025-01-01T00:00:00Z"}]);
    upstream.set_listing(listing(500, &revoked));
    let gate = start(&upstream, &receiver, ("[\"key.revoked\"]", "alerts.balance = \"10.00\""));
    // The server has looked at the balance by now.
    until_delivered(&gate, &receiver, 1);
    let path = gate.folder().join("proxy.toml");
    let settings = fs::read_to_string(&path).unwrap();
    fs::write(&path, settings.replace("\"key.revoked\"", "\"key.revoked\", \"balance.low\""))
        .unwrap();
    gate.signal(Signal::SIGHUP);
    until_delivered(&gate, &receiver, 2);
    assert_eq!(data_of(&receiver, "balance.low").len(), 1);
    assert_eq!(receiver.got().len(), 2);
}

#[test]
fn refused_key_is_reported_again_after_it_was_accepted_and_redactions_once_a_day() {
    let status = Arc::new(AtomicU16::new(200));
    let answer = Arc::clone(&status);
    let upstream = Upstream::start(move |received| {
        let bearer = received.values("authorization")[0].to_owned();
        match answer.load(Ordering::SeqCst) {
            200 => Reply::chat(&bearer),
            refused => Reply::error(refused),
        }
    });
    let receiver = Receiver::ok();
    let mut gate = start(&upstream, &receiver, ("[\"key.refused\", \"key.redacted\"]", ""));
    assert_eq!([gate.chat().status, gate.chat().status], [200, 200]);
    status.store(401, Ordering::SeqCst);
    upstream.set_listing(Reply::error(401));
    assert_eq!(gate.chat().code(), "gateway_key_rejected");
    until_delivered(&gate, &receiver, 2);
    // It is still refused.
    gate.restart();
    assert_eq!(gate.chat().code(), "gateway_key_rejected");
    status.store(200, Ordering::SeqCst);
    until("the key is tried again", || gate.chat().status == 200);
    until("the alert is over", || !is_raised(&gate, "key.refused"));
    status.store(401, Ordering::SeqCst);
    assert_eq!(gate.chat().code(), "gateway_key_rejected");
    until_delivered(&gate, &receiver, 3);
    assert_eq!(data_of(&receiver, "key.refused"), [json!({"key": 1}), json!({"key": 1})]);
    assert_eq!(data_of(&receiver, "key.redacted"), [json!({})]);
    let ids: BTreeSet<_> =
        receiver.got().iter().map(|message| message.header("webhook-id").to_owned()).collect();
    assert_eq!(ids.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn failed_job_is_reported_in_both_shapes() {
    let upstream = PausedUpstream::start(|received| match received.method.as_str() {
        "POST" => Reply::video("job-1"),
        _ => Reply::new(200, r#"{"status":"failed","error":"no such picture"}"#),
    });
    // Nothing listens there, so events stay in the ledger.
    let port = ReservedPort::new();
    let webhook =
        format!("webhooks = [{{ url = \"http://{}/\", events = \"*\" }}]", port.address());
    let gate = PausedGate::start(&upstream, &format!("{LEDGER}{webhook}\n")).await;
    assert_eq!(gate.video().await.status, 200);
    gate.advance(Duration::from_secs(120)).await;
    let ledger = Connection::open(gate.folder().join("ledger.db")).unwrap();
    let mut rows = ledger.prepare("SELECT event, data FROM outbox ORDER BY event").unwrap();
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?))).unwrap();
    let events: Vec<(String, String)> = rows.map(Result::unwrap).collect();
    let failed = json!({
        "request_id": "job-1", "model": "video-a-2", "caller": "127.0.0.1",
        "cost": "3.000000", "cost_micros": 3_000_000,
    });
    let [(own, data), (openai, id)] = &events[..] else { panic!("two events: {events:?}") };
    assert_eq!((own.as_str(), openai.as_str()), ("job.failed", "video.failed"));
    assert_eq!(serde_json::from_str::<Value>(data).unwrap(), failed);
    assert_eq!(serde_json::from_str::<Value>(id).unwrap(), json!({"id": "job-1"}));
}

#[test]
fn thresholds_of_two_budgets_are_reported_once_each_over_restarts() {
    let (upstream, receiver) = (Upstream::start(|_| Reply::chat("hello")), Receiver::ok());
    let budgets = "budget.total = { ever = \"0.030\" }\nbudget.caller = { month = \"0.024\" }\nalerts.budget = [50, 100]";
    let mut gate = start(&upstream, &receiver, ("[\"budget.threshold\"]", budgets));
    let buy =
        |gate: &Gate, what: &str| gate.post("/api/v1/chat", &CHAT.replace("hello", what)).status;
    assert_eq!([buy(&gate, "one"), buy(&gate, "two")], [200, 200]);
    until_delivered(&gate, &receiver, 1);
    gate.restart();
    assert_eq!(buy(&gate, "three"), 200);
    until_delivered(&gate, &receiver, 2);
    gate.kill();
    gate.restart();
    assert_eq!([buy(&gate, "four"), buy(&gate, "five")], [200, 402]);
    until_delivered(&gate, &receiver, 3);
    let short = |data: &Value| {
        let text = |name: &str| data[name].as_str().unwrap_or("-").to_owned();
        let percent = &data["percent"];
        format!(
            "{} {} {}: {percent}% at {}",
            text("scope"),
            text("name"),
            text("period"),
            text("spent")
        )
    };
    let reported: Vec<_> = data_of(&receiver, "budget.threshold").iter().map(short).collect();
    assert_eq!(
        reported,
        [
            "caller 127.0.0.1 month: 50% at 0.012000",
            "total - ever: 50% at 0.018000",
            "caller 127.0.0.1 month: 100% at 0.024000",
        ]
    );
}

/// The receiver has answered, and the ledger does not know it yet.
#[test]
fn kill_between_the_answer_and_its_record_repeats_the_event() {
    let (upstream, receiver) = (super::lossy(), Receiver::ok());
    let mut gate = start(&upstream, &receiver, ("[\"outcome.unknown\"]", ""));
    let answer = lock(&receiver.answer);
    assert_eq!(gate.chat().status, 424);
    let first = receiver.wait_for(1)[0].header("webhook-id").to_owned();
    let ledger = Connection::open(gate.folder().join("ledger.db")).unwrap();
    ledger.busy_timeout(crate::support::PATIENCE).unwrap();
    ledger.execute_batch("BEGIN IMMEDIATE").unwrap();
    drop(answer);
    let row = "tollgate_webhooks_total{event=\"outcome.unknown\",outcome=\"delivered\"} 1";
    until("the receiver has answered", || gate.metrics().contains(row));
    gate.kill();
    drop(ledger);
    gate.restart();
    until_delivered(&gate, &receiver, 2);
    let got = receiver.got();
    assert_eq!(got.len(), 2);
    assert_eq!(got[1].header("webhook-id"), first);
    got[1].assert_signed(SECRET);
}
