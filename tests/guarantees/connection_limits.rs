//! How long a connection may take for a head, how long it may be silent, and what becomes of too
//! many of them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, thread};

use tempfile::TempDir;
use tollgate::clock::{self, Instant};

use crate::support::client::Client;
use crate::support::process::{Process, addresses_in, run_after};
use crate::support::{CHAT, Gate, PATIENCE, Reply, Upstream, in_time, until};

const HEALTHZ: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn upstream() -> Upstream {
    Upstream::start(|_| Reply::chat("hello"))
}

/// How long after `started` the gate has ended the connection without a word.
fn silence(client: &mut Client, started: Instant) -> Duration {
    assert_eq!(client.rest(), b"", "no answer to half a request");
    started.elapsed()
}

/// Whether it is answered: the gate may have closed the connection by now.
fn is_alive(client: &mut Client) -> bool {
    client.try_write(HEALTHZ).is_ok() && client.try_answer().is_some()
}

fn alive(client: &mut Client) {
    client.write(HEALTHZ);
    assert_eq!(client.answer().status, 200);
}

#[test]
fn slow_head_closes_the_connection() {
    let upstream = upstream();
    let gate =
        Gate::start(&upstream, "server.header_timeout = \"400ms\"\nserver.idle_timeout = \"30s\"");
    thread::scope(|scope| {
        scope.spawn(|| {
            let started = clock::now();
            let took = silence(&mut gate.client(), started);
            assert!((350..25_000).contains(&took.as_millis()), "nothing at all: {took:?}");
        });
        scope.spawn(|| {
            let started = clock::now();
            let mut client = gate.client();
            client.try_write(&HEALTHZ[..20]).ok();
            let took = silence(&mut client, started);
            assert!((350..25_000).contains(&took.as_millis()), "half a head: {took:?}");
        });
        scope.spawn(|| {
            let started = clock::now();
            let mut client = gate.client();
            let mut slow = client.stream().try_clone().unwrap();
            scope.spawn(move || {
                for byte in HEALTHZ.iter().take(15) {
                    slow.write_all(&[*byte]).ok();
                    thread::sleep(Duration::from_millis(100));
                }
            });
            let took = silence(&mut client, started);
            assert!((350..25_000).contains(&took.as_millis()), "a byte at a time: {took:?}");
        });
        scope.spawn(|| {
            let mut client = in_time("the first head", |_| {
                let mut client = gate.client();
                is_alive(&mut client).then_some(client)
            });
            // Longer than a head may take: the silence between two requests is no slow head.
            thread::sleep(Duration::from_millis(900));
            let started = clock::now();
            client.write(&HEALTHZ[..20]);
            let took = silence(&mut client, started);
            assert!((350..25_000).contains(&took.as_millis()), "half a second head: {took:?}");
        });
    });
}

#[test]
fn idle_connection_closes_after_idle_timeout() {
    let upstream = upstream();
    in_time("a request while the connection is open", |slower| {
        let settings = format!(
            "server.header_timeout = \"{}ms\"\nserver.idle_timeout = \"{slower}s\"",
            200 * slower
        );
        let gate = Gate::start(&upstream, &settings);
        let mut client = gate.client();
        let is_open = is_alive(&mut client);
        thread::sleep(Duration::from_millis(600 * slower));
        let started = clock::now();
        if !is_open || !is_alive(&mut client) {
            return None;
        }
        let took = silence(&mut client, started).as_millis();
        assert!(
            (950 * u128::from(slower)..25_000 + 1_000 * u128::from(slower)).contains(&took),
            "{took} ms"
        );
        Some(())
    });
}

#[test]
fn call_longer_than_both_timeouts_is_answered() {
    let answer = in_time("the head", |slower| {
        let late = Duration::from_millis(800 * slower);
        let upstream = Upstream::start(move |_| Reply::chat("late").after(late));
        let settings = format!(
            "server.header_timeout = \"{}ms\"\nserver.idle_timeout = \"{}ms\"",
            100 * slower,
            200 * slower
        );
        let gate = Gate::start(&upstream, &settings);
        let mut client = gate.client();
        client.send("POST", "/api/v1/chat", &[], CHAT);
        let answer = client.try_answer();
        (upstream.requests() > 0).then_some(answer)
    });
    assert_eq!(answer.map(|answer| answer.status), Some(200));
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
    third.stream().set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(third.try_answer().is_none(), "there is no room");
    third.stream().set_read_timeout(Some(PATIENCE)).unwrap();
    alive(&mut second);
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

#[test]
fn connections_beyond_the_descriptor_limit_wait_without_spinning() {
    let upstream = upstream();
    let gate = Gate::binary(&upstream, "", &[]);
    let id = gate.id().to_string();
    let limit = ["--nofile=64:64", "--pid", id.as_str()];
    let limited = Command::new("prlimit").args(limit).status().expect("prlimit (util-linux)");
    assert!(limited.success());
    let crowd: Vec<_> = (0..200)
        .map(|_| TcpStream::connect(gate.address()).expect("the kernel takes them"))
        .collect();
    until("it says so", || gate.printed().contains("failed to accept connection"));
    let before = processor_ticks(&id);
    thread::sleep(Duration::from_millis(1_500));
    let ticks = processor_ticks(&id) - before;
    assert!(ticks < 30, "{ticks} hundredths of a second in 1.5 s");
    drop(crowd);
    alive(&mut gate.client());
    assert_eq!(gate.chat().status, 200);
}

/// Hundredths of a second that a process has used, in user and in kernel mode.
fn processor_ticks(id: &str) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    // The name before may hold blanks; after it, fields 12 and 13 from 1.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<_> = fields.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

const FREE_PORTS: &[(&str, &str)] =
    &[("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0"), ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0")];

#[test]
fn address_with_all_its_connections_idle_blocks_no_other() {
    let folder = TempDir::with_prefix("tollgate-gate-").unwrap();
    let mut process = Process::start_after(folder.path(), FREE_PORTS, "ulimit -n 256");
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
    let mut process = Process::start_after(folder.path(), FREE_PORTS, shell);
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
