//! How long a connection may take for a head, and how long it may be silent.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;
use std::{fs, thread};

use tollgate::clock::{self, Instant};

use super::in_time;
use crate::guarantees::connection_limits::{HEALTHZ, alive, is_alive, upstream};
use crate::support::client::Client;
use crate::support::{CHAT, Gate, Reply, Upstream, pause, until};

/// The gate counts whole milliseconds from a connection's start.
const RESOLUTION: Duration = Duration::from_millis(5);

/// Returns how long after `started` the gate closed the connection without an answer.
fn silence(client: &mut Client, started: Instant) -> Duration {
    assert_eq!(client.rest(), b"", "no answer to half a request");
    started.elapsed()
}

#[test]
fn slow_head_closes_the_connection() {
    const TIMEOUT: Duration = Duration::from_millis(400);
    const SHORTEST: Duration = TIMEOUT.saturating_sub(RESOLUTION);
    let upstream = upstream();
    // A connection that waits for the idle timeout fails the test.
    let settings = "server.header_timeout = \"400ms\"\nserver.idle_timeout = \"600s\"";
    let gate = Gate::start(&upstream, settings);
    thread::scope(|scope| {
        scope.spawn(|| {
            let started = clock::now();
            let took = silence(&mut gate.client(), started);
            assert!(took >= SHORTEST, "nothing at all: {took:?}");
        });
        scope.spawn(|| {
            let started = clock::now();
            let mut client = gate.client();
            client.try_write(&HEALTHZ[..20]).ok();
            let took = silence(&mut client, started);
            assert!(took >= SHORTEST, "half a head: {took:?}");
        });
        scope.spawn(|| {
            let started = clock::now();
            let mut client = gate.client();
            let mut slow = client.stream().try_clone().unwrap();
            scope.spawn(move || {
                // It goes on until the gate has closed the connection.
                while slow.write_all(b"x").is_ok() {
                    pause(TIMEOUT / 4);
                }
            });
            let took = silence(&mut client, started);
            assert!(took >= SHORTEST, "a byte at a time: {took:?}");
        });
        scope.spawn(|| {
            let mut client = gate.client();
            until("a first head arrives in time", || {
                let is_answered = is_alive(&mut client);
                if !is_answered {
                    client = gate.client();
                }
                is_answered
            });
            // Longer than a head may take: the silence between two requests is no slow head.
            pause(TIMEOUT * 2);
            let started = clock::now();
            client.write(&HEALTHZ[..20]);
            let took = silence(&mut client, started);
            assert!(took >= SHORTEST, "half a second head: {took:?}");
        });
    });
}

#[test]
fn idle_connection_closes_after_idle_timeout() {
    let upstream = upstream();
    in_time("a request while the connection is open", |slower| {
        let header_timeout = Duration::from_millis(200 * slower);
        let idle_timeout = header_timeout * 5;
        let settings = format!(
            "server.header_timeout = \"{}ms\"\nserver.idle_timeout = \"{}ms\"",
            header_timeout.as_millis(),
            idle_timeout.as_millis()
        );
        let gate = Gate::start(&upstream, &settings);
        let mut client = gate.client();
        let is_open = is_alive(&mut client);
        pause(header_timeout * 2);
        let started = clock::now();
        if !is_open || !is_alive(&mut client) {
            return None;
        }
        let took = silence(&mut client, started);
        assert!(took >= idle_timeout - RESOLUTION, "{took:?}");
        Some(())
    });
}

#[test]
fn call_longer_than_both_timeouts_is_answered() {
    let answer = in_time("the head", |slower| {
        let idle_timeout = Duration::from_millis(200 * slower);
        let upstream = Upstream::start(move |_| Reply::chat("late").after(idle_timeout * 4));
        let settings = format!(
            "server.header_timeout = \"{}ms\"\nserver.idle_timeout = \"{}ms\"",
            idle_timeout.as_millis() / 2,
            idle_timeout.as_millis()
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
    let (before, started) = (processor_time(&id), clock::now());
    pause(Duration::from_millis(1_500));
    let (used, elapsed) = (processor_time(&id) - before, started.elapsed());
    assert!(used < elapsed / 5, "{used:?} of {elapsed:?}");
    drop(crowd);
    alive(&mut gate.client());
    assert_eq!(gate.chat().status, 200);
}

/// Returns the processor time of a process, in user and in kernel mode.
fn processor_time(id: &str) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    // The name before may hold blanks; after it, fields 12 and 13 from 1 are hundredths of a second.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<_> = fields.split_whitespace().collect();
    let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}
