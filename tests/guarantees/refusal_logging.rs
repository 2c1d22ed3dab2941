//! What is refused before anybody is counted fills no log.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::process::Signal;
use crate::support::{CHAT, Gate, Reply, Upstream, until};

const MESSAGES: [&str; 2] = ["unknown host refused", "unlisted origin refused"];

#[test]
fn refusals_before_the_limiter_share_ten_lines_a_minute() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::binary(&upstream, "", &[]);
    let foreign_hosts: String =
        (0..100).map(|n| format!("GET / HTTP/1.1\r\nHost: host-{n}.example\r\n\r\n")).collect();
    let mut client = gate.client();
    client.write(foreign_hosts.as_bytes());
    (0..100).for_each(|_| assert_eq!(client.answer().status, 421));
    for n in 0..10 {
        let origin = format!("https://origin-{n}.example");
        let spends = gate.ask("POST", "/api/v1/chat", &[("Origin", &origin)], CHAT);
        assert_eq!(spends.code(), "origin_not_allowed");
        let reads = [("Origin", &*origin), ("Sec-Fetch-Site", "cross-site")];
        assert_eq!(gate.ask("GET", "/bff/me", &reads, "").code(), "origin_not_allowed");
        let asks = [("Origin", &*origin), ("Access-Control-Request-Method", "POST")];
        assert_eq!(gate.ask("OPTIONS", "/api/v1/chat", &asks, "").status, 204);
    }
    gate.signal(Signal::SIGHUP);
    until("all before it is logged", || gate.printed().contains("settings reloaded"));
    let printed = gate.printed();
    let is_refusal = |line: &&str| MESSAGES.iter().any(|message| line.contains(message));
    assert_eq!(printed.lines().filter(is_refusal).count(), 10, "{printed}");
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn failed_credential_lookups_do_not_flood_the_log() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let settings = "store.url = \"sqlite:ledger.db\"\naccess.mode = \"members\"";
    let damage = |folder: &Path| fs::write(folder.join("ledger.db"), "no ledger").unwrap();
    let gate = Gate::binary_in(&upstream, settings, damage);
    let mut client = gate.client();
    for _ in 0..200 {
        client.send("GET", "/bff/me", &[("Authorization", "Bearer tg_invented")], "");
        assert_eq!(client.answer().code(), "ledger_unavailable");
    }
    gate.signal(Signal::SIGHUP);
    until("all before it is logged", || gate.printed().contains("settings reloaded"));
    let printed = gate.printed();
    let failures = printed.lines().filter(|line| line.contains("\"request failed\"")).count();
    // The ledger has said itself, once, why it cannot be used.
    assert_eq!(failures, 0, "{printed}");
    assert!(printed.lines().count() < 50, "{printed}");
}

#[test]
fn purchase_of_an_unlisted_origin_or_host_is_one_log_line_with_its_code() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::binary(&upstream, "", &[]);
    for (name, value, code) in [
        ("Origin", "https://evil.example", "origin_not_allowed"),
        ("Host", "evil.example", "misdirected_request"),
    ] {
        let before = gate.printed().len();
        let refused = gate.ask("POST", "/api/v1/chat", &[(name, value)], CHAT);
        assert_eq!(refused.code(), code);
        let requests = || gate.printed()[before..].matches("\"endpoint\":").count();
        until("it is logged", || requests() > 0);
        gate.signal(Signal::SIGHUP);
        until("all before it is logged", || gate.printed()[before..].contains("reloaded"));
        let printed = gate.printed();
        let line = printed[before..].lines().find(|line| line.contains(code)).expect("its code");
        assert!(line.contains(value) && requests() == 1, "{}", &printed[before..]);
    }
}

/// The log lines with this message so far.
fn lines(gate: &Gate, message: &str) -> Vec<Value> {
    let printed = gate.printed();
    let parsed = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    parsed.filter(|line| line["message"] == message).collect()
}

#[test]
fn refused_purchase_is_one_log_line_and_counted_by_code() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::binary(&upstream, "budget.total = { day = \"0.001\" }", &[]);
    let refused = gate.ask("POST", "/api/v1/chat", &[("X-Request-Id", "my-own")], CHAT);
    assert_eq!(
        (refused.code().as_str(), refused.value("x-request-id")),
        ("budget_exhausted", Some("my-own"))
    );
    assert_eq!(gate.post("/v1/chat/completions", CHAT).status, 402);
    assert_eq!(gate.post("/api/v1/chat", r#"{"model":"nothing"}"#).code(), "invalid_request");
    assert_eq!(gate.get("/bff/jobs?x=1").code(), "invalid_request");
    until("each is logged", || lines(&gate, "request refused").len() == 3);
    let logged = lines(&gate, "request refused");
    for (line, code) in
        logged.iter().zip(["budget_exhausted", "budget_exhausted", "invalid_request"])
    {
        assert_eq!((&line["code"], &line["level"]), (&code.into(), &"INFO".into()), "{line}");
        assert_eq!(line["address"], "127.0.0.1", "{line}");
    }
    // The price, and the budget that does not cover it.
    let detail = logged[0]["detail"].as_str().unwrap();
    let expected = "this costs $0.006; the budget of all callers, $0.001 a day, never covers it";
    assert_eq!(detail, expected);
    assert!(CHAT.contains(logged[0]["model"].as_str().unwrap()), "{logged:?}");
    assert_eq!(logged[0]["span"]["client_id"], "my-own");
    assert_ne!(logged[0]["span"]["id"], "my-own", "a client cannot choose the unique id");
    assert!(logged[2]["error"].is_string(), "{logged:?}");
    let metrics = gate.metrics();
    assert!(metrics.contains("tollgate_refusals_total{code=\"budget_exhausted\"} 2"), "{metrics}");
    assert!(metrics.contains("tollgate_refusals_total{code=\"invalid_request\"} 2"), "{metrics}");
}

#[test]
fn refused_credentials_are_logged_with_their_address_up_to_a_limit() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let settings = "store.url = \"sqlite:ledger.db\"\naccess.mode = \"members\"";
    let gate = Gate::binary(&upstream, settings, &[]);
    for _ in 0..29 {
        let answer = gate.ask("GET", "/bff/me", &[("Authorization", "Bearer tg_guess")], "");
        assert_eq!(answer.code(), "invalid_credentials");
    }
    assert_eq!(gate.get("/bff/me").code(), "missing_credentials");
    gate.signal(Signal::SIGHUP);
    until("all before it is logged", || gate.printed().contains("settings reloaded"));
    let logged = lines(&gate, "request refused");
    assert_eq!(logged.len(), 10, "{logged:?}");
    for line in logged {
        assert_eq!(
            (&line["code"], &line["address"]),
            (&"invalid_credentials".into(), &"127.0.0.1".into())
        );
    }
    assert!(!gate.printed().contains("tg_guess"));
}

#[test]
fn log_level_changes_with_a_reload() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::binary(&upstream, "", &[]);
    let reload = |level: &str| {
        fs::write(gate.folder().join("proxy.toml"), format!("log.level = \"{level}\"")).unwrap();
        gate.signal(Signal::SIGHUP);
    };
    gate.chat();
    reload("debug");
    until("it is reloaded", || lines(&gate, "settings reloaded").len() == 1);
    let reloaded = &lines(&gate, "settings reloaded")[0];
    assert!(reloaded["changed"].as_str().unwrap().ends_with("log.level"), "{reloaded}");
    gate.chat();
    until("it is logged", || lines(&gate, "request finished").len() == 1);
    assert_eq!(lines(&gate, "purchase").len(), 2);
    reload("warn");
    until("nothing more is logged", || {
        let logged = gate.printed().len();
        gate.chat();
        gate.printed().len() == logged
    });
    assert!(!gate.printed().contains("takes effect after a restart"), "{}", gate.printed());
}
