//! Events of a video for a browser that is moved from one server to another.

use std::io::{BufRead, BufReader};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tollgate::clock;

use super::trial::RECOVERY;
use crate::support::client::Client;
use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::process::Signal;
use crate::support::received::ReceivedRequest;
use crate::support::reply::Latch;
use crate::support::upstream::Welcome;
use crate::support::{Reply, Upstream, VIDEO, until_within};

const EVENTS: &str = "/bff/events?request_id=job-1";

/// Reads events as a browser does: each has an id and data.
fn next_event(lines: &mut impl BufRead) -> Option<(String, Value)> {
    let (mut id, mut line) = (String::new(), String::new());
    while lines.read_line(&mut line).ok()? > 0 {
        if let Some(own) = line.strip_prefix("id: ") {
            id = own.trim().to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            return Some((id, serde_json::from_str(data).expect("JSON")));
        }
        line.clear();
    }
    None
}

fn watch(fleet: &Fleet<'_>, server: usize, last_event_id: &str) -> Client {
    let mut client = fleet.client(server);
    let headers = [("connection", "close"), ("last-event-id", last_event_id)];
    let known = usize::from(!last_event_id.is_empty());
    client.send("GET", EVENTS, &headers[..=known], "");
    client
}

#[test]
fn browser_that_is_moved_in_the_middle_of_a_video_misses_and_repeats_nothing() {
    let done = Latch::new();
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "POST" => Reply::video("job-1"),
        _ if done.is_open() => {
            Reply::new(200, r#"{"status":"completed","video_url":"https://cdn.example/a.mp4"}"#)
        }
        _ => Reply::new(200, r#"{"status":"running","progress":40}"#),
    });
    let fleet = Fleet::start(Cluster::shared(), &upstream, "", 3);
    let ordered = fleet.buy(0, "/api/v1/video", "v", VIDEO);
    assert_eq!(ordered.status, 200, "{}", ordered.text());
    let first = watch(&fleet, 0, "");
    let mut lines = BufReader::new(first.stream());
    let (mut id, mut event) = next_event(&mut lines).expect("an event");
    while event["status"].is_null() {
        (id, event) = next_event(&mut lines).expect("the first status");
    }
    assert_eq!(event["status"]["progress"], 40, "{event}");
    // It connects to the second server, and the first one dies.
    let second = watch(&fleet, 1, &id);
    fleet.servers[0].process.signal(Signal::SIGKILL);
    assert!(next_event(&mut lines).is_none());
    done.open();
    let mut lines = BufReader::new(second.stream());
    let (id, event) = next_event(&mut lines).expect("the end");
    assert_eq!(event["state"], "finished", "what it knows is repeated: {event}");
    assert!(next_event(&mut lines).is_none());
    drop(second);
    let mut again = watch(&fleet, 2, &id);
    assert_eq!(again.answer().status, 204);
    assert_eq!(upstream.charges(), [3_000_000]);
}

#[test]
fn job_is_polled_by_one_server_for_watchers_at_others() {
    const POLLS: usize = 3;
    /// After an answer, a server waits at least this long.
    const MIN_GAP: Duration = Duration::from_secs(2);
    let polls = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&polls);
    let upstream = Upstream::start(move |received| {
        if received.method == "POST" {
            return Reply::video("job-1");
        }
        let mut polls = noted.lock().expect("the polls");
        polls.push(clock::now());
        match polls.len() {
            1..POLLS => Reply::new(200, r#"{"status":"running","progress":40}"#),
            _ => {
                Reply::new(200, r#"{"status":"completed","video_url":"https://cdn.example/a.mp4"}"#)
            }
        }
    });
    let fleet = Fleet::start(Cluster::shared(), &upstream, "", 3);
    let ordered = fleet.buy(0, "/api/v1/video", "v", VIDEO);
    assert_eq!(ordered.status, 200, "{}", ordered.text());
    for watcher in [watch(&fleet, 1, ""), watch(&fleet, 2, "")] {
        let mut lines = BufReader::new(watcher.stream());
        let (_, mut event) = next_event(&mut lines).expect("an event");
        while event["state"] != "finished" {
            (_, event) = next_event(&mut lines).expect("the end");
        }
    }
    let polls = polls.lock().expect("the polls");
    assert_eq!(polls.len(), POLLS);
    for pair in polls.windows(2) {
        assert!(pair[1] - pair[0] >= MIN_GAP, "two servers poll: {:?}", pair[1] - pair[0]);
    }
}

#[test]
fn server_stops_polling_a_job_that_another_has_taken_over() {
    let (polls, done) = (Arc::new(Mutex::new(Vec::new())), Latch::new());
    let noted = Arc::clone(&polls);
    let answer = move |received: &ReceivedRequest| {
        if received.method == "POST" {
            return Reply::video("job-1");
        }
        let key = received.values("authorization")[0].to_owned();
        noted.lock().expect("the polls").push(key);
        if done.is_open() {
            Reply::new(200, r#"{"status":"completed","video_url":"https://cdn.example/a.mp4"}"#)
        } else {
            Reply::new(200, r#"{"status":"running","progress":40}"#)
        }
    };
    let upstream = Upstream::with(2, |_| Welcome::Serve, answer);
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, "", 0);
    for canary in upstream.canaries() {
        fleet.add_with(&[("GATEWAY_API_KEY", canary.key())]);
    }
    let polls_of = |server: usize| {
        let own = format!("Bearer {}", upstream.canaries()[server].key());
        polls.lock().expect("the polls").iter().filter(|key| **key == own).count()
    };
    let wait_for_polls = |server: usize, more: usize| {
        let before = polls_of(server);
        until_within(RECOVERY, "it polls", || polls_of(server) >= before + more);
    };
    let ordered = fleet.buy(0, "/api/v1/video", "v", VIDEO);
    assert_eq!(ordered.status, 200, "{}", ordered.text());
    let watcher = watch(&fleet, 0, "");
    wait_for_polls(0, 1);
    // The second server claims the job after the first one stood still for longer than its claim.
    fleet.database.sql(
        "UPDATE jobs SET poller = (SELECT number FROM servers WHERE name = 'gate-1'),
            polled_until = (extract(epoch FROM clock_timestamp()) + 30) * 1000000000",
    );
    wait_for_polls(1, 2);
    let before = polls_of(0);
    wait_for_polls(1, 3);
    assert_eq!(polls_of(0), before, "both poll");
    done.open();
    let mut lines = BufReader::new(watcher.stream());
    let (_, mut event) = next_event(&mut lines).expect("an event");
    while event["state"] != "finished" {
        (_, event) = next_event(&mut lines).expect("the end");
    }
}
