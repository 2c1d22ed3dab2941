//! What is refused before anybody is counted fills no log.

use std::fs;
use std::path::Path;

use crate::support::process::Signal;
use crate::support::{CHAT, Gate, Reply, Upstream, until};

const MESSAGES: [&str; 2] = ["unknown host refused", "unlisted origin refused"];

#[test]
fn refusals_before_the_limiter_share_ten_lines_a_minute() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::binary(&upstream, "", &[]);
    let foreign_hosts: String =
        (0..500).map(|n| format!("GET / HTTP/1.1\r\nHost: host-{n}.example\r\n\r\n")).collect();
    let mut client = gate.client();
    client.write(foreign_hosts.as_bytes());
    (0..500).for_each(|_| assert_eq!(client.answer().status, 421));
    for n in 0..50 {
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
