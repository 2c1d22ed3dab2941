//! A server is killed at each point of a purchase.

use super::relay::{Point, Side, Step, Traffic, Verdict};
use super::trial::{Trial, each};
use crate::support::postgres::Cluster;
use crate::support::process::Signal;

pub(super) const SELL: Traffic = Traffic::Transaction(Step::Sell);
/// While no slot is free, a purchase holds, takes its slot and is marked one after the other.
pub(super) const HOLD: Traffic = Traffic::Transaction(Step::Hold);
pub(super) const SLOT: Traffic = Traffic::Transaction(Step::TakeSlot);
pub(super) const MARK_SENT: Traffic = Traffic::Transaction(Step::MarkSent);
pub(super) const SETTLE: Traffic = Traffic::Transaction(Step::Settle);

pub(super) const POINTS: [Point; 12] = [
    before(SELL),
    after(SELL),
    before(HOLD),
    after(HOLD),
    before(SLOT),
    after(SLOT),
    before(MARK_SENT),
    after(MARK_SENT),
    // Written, but not at the gateway yet.
    before(Traffic::Purchase),
    after(Traffic::Purchase),
    before(SETTLE),
    after(SETTLE),
];

pub(super) const fn before(traffic: Traffic) -> Point {
    Point { traffic, side: Side::Before }
}

pub(super) const fn after(traffic: Traffic) -> Point {
    Point { traffic, side: Side::After }
}

/// Returns the answer to a repeat, and how often the gateway has charged by then.
fn expected(point: Point) -> (u16, usize) {
    match (point.traffic, point.side) {
        // It was certainly not sent, so it is bought anew.
        (HOLD | SLOT, _) | (SELL | MARK_SENT, Side::Before) => (200, 1),
        (SELL | MARK_SENT, Side::After) | (Traffic::Purchase, Side::Before) => (424, 0),
        (Traffic::Purchase, Side::After) | (SETTLE, Side::Before) => (424, 1),
        (Traffic::Transaction(_) | Traffic::Statement(..), _) => (200, 1),
    }
}

#[test]
fn server_killed_at_any_point_of_a_purchase_leaves_the_truth() {
    each(&POINTS, |point| {
        let trial = Trial::start(Cluster::shared());
        assert_eq!(trial.callers.buy("before", 0).status, 200);
        let (mut client, relay) = trial.stop_at(point, "cut-off");
        let victim = &trial.fleet.servers[0];
        victim.process.signal(Signal::SIGKILL);
        relay.release(Verdict::Cut);
        assert!(client.try_answer().is_none(), "{point:?}");
        trial.callers.replace(victim.address, None);
        let repeated = trial.callers.buy("cut-off", 1);
        let told = (repeated.status, trial.charges("cut-off"));
        assert_eq!(told, expected(point), "{point:?}: {}", repeated.text());
        trial.finish();
    });
}
