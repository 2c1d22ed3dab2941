//! A server is stopped at each point of a purchase, and goes on later.

use std::thread;
use std::time::Duration;

use super::crashes::POINTS;
use super::relay::{Point, Verdict};
use super::trial::{Trial, each};
use crate::support::postgres::Cluster;
use crate::support::process::Signal;

/// Shorter than the lease as the server sees it (10 s), between that and what others see (15 s), and
/// long enough to be declared dead.
const PAUSES: [u64; 3] = [5, 12, 40];

#[test]
fn server_that_stood_still_sells_nothing_twice_and_tells_the_truth() {
    let all: Vec<_> = PAUSES.iter().flat_map(|pause| POINTS.map(|point| (point, *pause))).collect();
    each(&all, |(point, pause)| {
        stand_still(point, Duration::from_secs(pause));
    });
}

fn stand_still(point: Point, pause: Duration) {
    let trial = Trial::start(Cluster::shared());
    assert_eq!(trial.callers.buy("before", 0).status, 200);
    let (mut client, relay) = trial.stop_at(point, "delayed");
    let process = &trial.fleet.servers[0].process;
    process.signal(Signal::SIGSTOP);
    relay.release(Verdict::Pass);
    assert_eq!(trial.callers.buy("meanwhile", 1).status, 200);
    thread::sleep(pause);
    process.signal(Signal::SIGCONT);
    let answer = client.answer();
    // A server that has found out that it was not sent says so, and a retry is free to buy it.
    assert!(matches!(answer.status, 200 | 503), "{point:?}, {pause:?}: {}", answer.text());
    assert_eq!(trial.callers.buy("delayed", 1).status, 200, "{point:?}, {pause:?}");
    assert_eq!(trial.charges("delayed"), 1, "{point:?}, {pause:?}");
    trial.finish();
    assert_eq!(trial.unknown(), "0", "{point:?}, {pause:?}: its own server knows the outcome");
}
