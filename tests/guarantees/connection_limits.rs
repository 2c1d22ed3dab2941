//! What becomes of too many connections. `clock` has their timeouts.

use std::fs;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;

use tempfile::TempDir;

use crate::support::client::Client;
use crate::support::process::{Process, addresses_in, run_after};
use crate::support::{CHAT, Gate, Reply, Upstream, until};

pub(super) const HEALTHZ: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

pub(super) fn upstream() -> Upstream {
    Upstream::start(|_| Reply::chat("hello"))
}

/// Whether it is answered: the gate may have closed the connection by now.
pub(super) fn is_alive(client: &mut Client) -> bool {
    client.try_write(HEALTHZ).is_ok() && client.try_answer().is_some()
}

pub(super) fn alive(client: &mut Client) {
    client.write(HEALTHZ);
    assert_eq!(client.answer().status, 200);
}

#[test]
fn connection_beyond_the_maximum_waits_for_a_free_one() {
    let upstream = upstream();
    let gate = Gate::start(
        &upstream,
        "server.max_connections = 2\nserver.max_connections_per_address = 3",
    );
    let (mut first, mut second) = (gate.client(), gate.client());
    alive(&mut first);
    alive(&mut second);
    let mut third = gate.client();
    third.write(HEALTHZ);
    // One thread serves all of them, and takes them in turn.
    (0..20).for_each(|_| alive(&mut second));
    assert!(!third.has_news(), "there is no room");
    drop(first);
    assert_eq!(third.answer().status, 200);
}

#[test]
fn address_at_its_connection_limit_blocks_no_other() {
    let upstream = upstream();
    let gate = Gate::start(
        &upstream,
        "server.max_connections = 4\nserver.max_connections_per_address = 2",
    );
    let of = |last| gate.client_from(Ipv4Addr::new(127, 0, 0, last), gate.address());
    let (mut first, mut second) = (of(1), of(1));
    alive(&mut first);
    alive(&mut second);
    // All of these are open for their client, which never closes one of them.
    let crowd: Vec<_> = (0..200).map(|_| of(1)).collect();
    let mut another = of(2);
    alive(&mut another);
    assert!(crowd.iter().all(Client::is_closed), "without a word");
    assert!(gate.metrics().contains("tollgate_connections_refused_total 200\n"));
    alive(&mut first);
    drop(second);
    until("there is room again", || is_served(&of(1)));
    alive(&mut first);
}

#[test]
fn trusted_proxy_has_no_per_address_limit() {
    let upstream = upstream();
    let gate = Gate::start(
        &upstream,
        "server.max_connections_per_address = 1\nserver.trusted_proxies = [\"127.0.0.8/32\"]",
    );
    let of = |last| gate.client_from(Ipv4Addr::new(127, 0, 0, last), gate.address());
    let mut proxy: Vec<_> = (0..20).map(|_| of(8)).collect();
    proxy.iter_mut().for_each(alive);
    let (mut first, second) = (of(1), of(1));
    alive(&mut first);
    assert!(second.is_closed());
}

/// Whether this connection is one that is answered: the gate may have closed it.
fn is_served(client: &Client) -> bool {
    let mut start = [0; 12];
    let mut stream = client.stream();
    stream.write_all(HEALTHZ).is_ok()
        && stream.read_exact(&mut start).is_ok()
        && &start == b"HTTP/1.1 200"
}

#[test]
fn unused_listener_takes_no_connection_capacity() {
    let upstream = upstream();
    let gate = Gate::binary(
        &upstream,
        "server.max_connections = 1\nserver.max_connections_per_address = 4",
        &[("TOLLGATE_SERVER__LISTEN", "[\"127.0.0.1:0\", \"127.0.0.2:0\", \"[::1]:0\"]")],
    );
    let printed = gate.printed();
    let pages = addresses_in(&printed, "page");
    assert_eq!(pages.len(), 3, "{printed}");
    for address in pages.into_iter().rev() {
        alive(&mut gate.client_of(address));
    }
}

const ENVIRONMENT: &[(&str, &str)] = &[
    ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0"),
    ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0"),
    ("TOLLGATE_SERVER__HEADER_TIMEOUT", "600s"),
    ("TOLLGATE_SANDBOX__REPLY_DELAY", "0s"),
];

#[test]
fn address_with_all_its_connections_idle_blocks_no_other() {
    let folder = TempDir::with_prefix("tollgate-gate-").unwrap();
    let mut process = Process::start_after(folder.path(), ENVIRONMENT, "ulimit -n 256");
    let (page, ops) = (process.address("page"), process.address("admin"));
    let from = |last| Client::from(Ipv4Addr::new(127, 0, 0, last), page, &Arc::default());
    let crowd: Vec<_> = (0..240).map(|_| from(1)).collect();
    let idle = crowd.iter().take_while(|client| is_served(client)).count();
    assert_eq!(idle, 12, "a tenth of the 128 that there is room for");
    for last in 2..=9 {
        let mut buyer = from(last);
        buyer.send("POST", "/api/v1/chat", &[], CHAT);
        let answer = buyer.answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let mut operator = Client::connect(ops, &Arc::default());
    operator.send("GET", "/metrics", &[], "");
    assert!(operator.answer().text().contains("tollgate_connections "));
    until("it is logged", || process.printed().contains("connection limits lowered"));
    drop(crowd);
    process.kill();
}

#[test]
fn soft_open_file_limit_is_raised_to_the_hard_one() {
    let folder = TempDir::with_prefix("tollgate-gate-").unwrap();
    let shell = "ulimit -Sn 64; ulimit -Hn 600";
    let mut process = Process::start_after(folder.path(), ENVIRONMENT, shell);
    process.address("page");
    let limits = fs::read_to_string(format!("/proc/{}/limits", process.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let figures: Vec<_> = line.split_whitespace().skip(3).take(2).collect();
    assert_eq!(figures, ["600", "600"], "{line}");
    process.kill();
}

#[test]
fn check_prints_the_connection_limit_from_open_files() {
    let folder = TempDir::with_prefix("tollgate-gate-").unwrap();
    let ended = run_after(folder.path(), &["check"], "ulimit -Sn 64; ulimit -Hn 256");
    let line = "clients   at most 128 connections, 12 per address; open-file limit 256";
    assert!(ended.stdout.contains(line), "{}", ended.stdout);
    assert!(ended.stderr.contains("warning: server.max_connections"), "{}", ended.stderr);
    fs::write(folder.path().join("proxy.toml"), "server.max_connections = 50\n").unwrap();
    let ended = run_after(folder.path(), &["check"], "ulimit -n 256");
    assert!(ended.stdout.contains("at most 50 connections, 5 per address"), "{}", ended.stdout);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}
