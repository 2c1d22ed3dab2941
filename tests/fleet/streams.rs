//! Events of a video for a browser that is moved from one server to another.

use std::io::{BufRead, BufReader};

use serde_json::Value;

use crate::support::client::Client;
use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::process::Signal;
use crate::support::reply::Latch;
use crate::support::{Reply, Upstream, VIDEO};

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
