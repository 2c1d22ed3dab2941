//! The log is written beside the sales, never before them.

use std::io::{BufRead, BufReader};
use std::process::ChildStderr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::client::Client;
use crate::support::process::{Process, Signal};
use crate::support::{CHAT, PATIENCE};

/// More lines of 300 bytes and above than the pipe and 1 MiB of waiting lines hold.
const FLOOD: u64 = 4_000;
/// More of them than the pipe holds.
const SHORT_FLOOD: u64 = 500;
const ROUND: u64 = 100;
const ENVIRONMENT: &[(&str, &str)] = &[
    ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0"),
    ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0"),
    ("TOLLGATE_LOG__LEVEL", "debug"),
];

/// Starts a server whose log is not read, and has it log this many lines.
fn flooded(folder: &TempDir, lines: u64) -> (Process, BufReader<ChildStderr>, Client) {
    let (server, log) = Process::start_with_log(folder.path(), ENVIRONMENT);
    let mut client = Client::connect(server.address("page"), &Arc::default());
    let id = "i".repeat(128);
    for _ in 0..lines / ROUND {
        for _ in 0..ROUND {
            client.send("GET", "/healthz", &[("X-Request-Id", &id)], "");
        }
        for _ in 0..ROUND {
            assert_eq!(client.answer().status, 200);
        }
    }
    (server, log, client)
}

#[test]
fn stopped_log_reader_stops_no_sale_and_learns_how_many_lines_were_dropped() {
    let folder = TempDir::new().unwrap();
    let (mut server, log, mut client) = flooded(&folder, FLOOD);
    client.send("POST", "/api/v1/chat", &[], CHAT);
    assert_eq!(client.answer().status, 200);
    let mut scraper = Client::connect(server.address("admin"), &Arc::default());
    scraper.send("GET", "/metrics", &[], "");
    let metrics = scraper.answer().text();
    let counted =
        metrics.lines().find_map(|line| line.strip_prefix("tollgate_log_lines_dropped_total "));
    let counted: u64 = counted.expect("a counter").parse().unwrap();
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in log.lines() {
            let line = serde_json::from_str(&line.expect("utf-8")).expect("a whole line of JSON");
            sender.send(line).unwrap();
        }
    });
    let mut read = Vec::<Value>::new();
    while read.last().is_none_or(|line| line["dropped"].is_null()) {
        read.push(lines.recv_timeout(PATIENCE).expect("it says how many were dropped"));
    }
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait().code(), Some(0));
    read.extend(lines);
    let written = read.iter().filter(|line| line["message"] == "request finished").count() as u64;
    let dropped: u64 = read.iter().filter_map(|line| line["dropped"].as_u64()).sum();
    assert!((1..=dropped).contains(&counted), "{counted} counted, {dropped} dropped");
    assert!(dropped > 0 && written > 1_000, "{written} written, {dropped} dropped");
    // The other lines of the flood's time were dropped as well.
    assert!((FLOOD..FLOOD + 100).contains(&(written + dropped)), "{written} and {dropped}");
    assert_eq!(read.last().expect("lines")["message"], "stopped");
}

#[test]
fn server_exits_while_nobody_reads_its_log() {
    let folder = TempDir::new().unwrap();
    let (mut server, _log, client) = flooded(&folder, SHORT_FLOOD);
    drop(client);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait().code(), Some(0));
}
