//! Requests as fast as they are answered (wrk), and at a fixed rate.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::subject::LOAD_CORE;

/// What a run of requests came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub(crate) requests: u64,
    pub(crate) micros: u64,
    pub(crate) p50_micros: u64,
    pub(crate) p99_micros: u64,
    /// Answers with a status of 400 or above.
    pub(crate) refused: u64,
    /// Requests without an answer.
    pub(crate) lost: u64,
}

/// Runs wrk for so many seconds. `run` makes its keys its own.
pub(crate) fn saturate(
    address: SocketAddr,
    scenario: &str,
    run: &str,
    connections: u32,
    seconds: u32,
) -> Outcome<Run> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/proxy/order.lua");
    let output = Command::new("taskset")
        .args(["-c", LOAD_CORE, "wrk", "--latency", "-t1", "-s", script])
        .args([format!("-c{connections}"), format!("-d{seconds}s")])
        .args([&format!("http://{address}"), "--", scenario, run])
        .output()
        .map_err(|error| format!("wrk: {error} (apt-get install wrk nginx-light)"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("RESULT "));
    let line =
        line.ok_or_else(|| format!("wrk says: {text}{}", String::from_utf8_lossy(&output.stderr)))?;
    let values: HashMap<&str, u64> = line
        .split(' ')
        .filter_map(|pair| pair.split_once('='))
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect();
    let value = |name: &str| values.get(name).copied().unwrap_or(0);
    Ok(Run {
        requests: value("requests"),
        micros: value("micros"),
        p50_micros: value("p50"),
        p99_micros: value("p99"),
        refused: value("status_errors"),
        lost: value("socket_errors"),
    })
}

/// Buys chats at a fixed rate, one after another on one connection, and measures each from the
/// moment at which it was due: a late one counts its wait.
pub(crate) fn fixed_rate(address: SocketAddr, run: &str, rate: u32, seconds: u32) -> Outcome<Run> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let pause = Duration::from_secs(1) / rate;
    let begun = Instant::now();
    let mut latencies = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    for number in 0..rate * seconds {
        let due = begun + pause * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        stream.write_all(chat(address, &format!("{run}-{number}")).as_bytes())?;
        // The answers of all subjects are shorter than a segment of the loopback device.
        if stream.read(&mut buffer)? == 0 {
            return Err("the connection was closed".into());
        }
        latencies.push(due.elapsed().as_micros() as u64);
    }
    latencies.sort_unstable();
    let at = |share: usize| latencies[(latencies.len() * share / 100).min(latencies.len() - 1)];
    Ok(Run {
        requests: latencies.len() as u64,
        micros: begun.elapsed().as_micros() as u64,
        p50_micros: at(50),
        p99_micros: at(99),
        ..Run::default()
    })
}

/// One chat as bytes.
pub(crate) fn chat(address: SocketAddr, key: &str) -> String {
    let body = format!(
        r#"{{"model":"eta-5-mini","messages":[{{"role":"user","content":"{}"}}]}}"#,
        "The quick brown fox jumps over the lazy dog. ".repeat(4)
    );
    let length = body.len();
    format!(
        "POST /api/v1/chat HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Idempotency-Key: {key}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Opens connections that have each been answered once.
pub(crate) fn open(address: SocketAddr, count: u32) -> Outcome<Vec<TcpStream>> {
    let mut connections = Vec::new();
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let mut buffer = [0; 4096];
    for _ in 0..count {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(request.as_bytes())?;
        if stream.read(&mut buffer)? == 0 {
            return Err("the connection was closed".into());
        }
        connections.push(stream);
    }
    Ok(connections)
}
