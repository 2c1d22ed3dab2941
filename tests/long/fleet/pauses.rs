//! A server is stopped at each point of a purchase, and goes on later.

use super::crashes::POINTS;
use super::relay::{Point, Traffic, Verdict};
use super::trial::{SERVERS, Trial, each, wait_for_clock};
use crate::support::postgres::Cluster;
use crate::support::process::Signal;

/// Seconds: longer than the database lets a transaction stand still, longer than a server waits for the
/// database, and longer than others leave it what it has held (35 s), and what it has sent (85 s).
const PAUSES: [u64; 4] = [5, 12, 40, 95];
/// How long a server waits for a chat, in seconds.
const CHAT_TIMEOUT: u64 = 45;
const OWN: [(&str, &str); 1] = [("TOLLGATE_GATEWAY__CHAT_TIMEOUT", "45s")];

#[test]
fn server_that_stood_still_sells_nothing_twice_and_tells_the_truth() {
    let all: Vec<_> = PAUSES.iter().flat_map(|pause| POINTS.map(|point| (point, *pause))).collect();
    each(&all, |(point, pause)| {
        stand_still(point, pause);
    });
}

fn stand_still(point: Point, pause: u64) {
    let trial = Trial::start_with(Cluster::shared(), "", [&OWN; SERVERS]);
    assert_eq!(trial.callers.buy("before", 0).status, 200);
    let (mut client, relay) = trial.stop_at(point, "delayed");
    let process = &trial.fleet.servers[0].process;
    process.stop();
    relay.release(Verdict::Pass);
    assert_eq!(trial.callers.buy("meanwhile", 1).status, 200);
    wait_for_clock(&trial.fleet.database, pause);
    process.signal(Signal::SIGCONT);
    let answer = client.answer();
    let said = process.printed();
    let told = format!("{point:?}, {pause} s: {} {}\n{said}", answer.status, answer.text());
    // It may have stopped waiting for the gateway's answer before it read it.
    let is_given_up = answer.status == 424;
    let may_give_up = point.traffic == Traffic::Purchase && pause > CHAT_TIMEOUT;
    // A server that has found out that it was not sent says so, and a retry is free to buy it.
    assert!(matches!(answer.status, 200 | 503) || (is_given_up && may_give_up), "{told}");
    let expected = if is_given_up { 424 } else { 200 };
    assert_eq!(trial.callers.buy("delayed", 1).status, expected, "{told}");
    assert_eq!(trial.charges("delayed"), 1, "{told}");
    trial.finish();
    let unknown = u8::from(is_given_up).to_string();
    assert_eq!(trial.unknown(), unknown, "{told}: its own server knows the outcome");
}
