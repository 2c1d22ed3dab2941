//! The connections of an instance, and how callers use them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future;
use tokio::sync::{oneshot, watch};

use super::clock::LedgerClock;
use super::flush::Course;
use super::lane::{Lane, LaneQueue};
use super::shared::Shared;
use super::step::{Need, Statement, Step, StepResult};
use crate::store::Unavailable;

/// One without an answer for this long ends its connection.
const PATIENCE: Duration = Duration::from_secs(5);
const REPORT_PATIENCE: Duration = Duration::from_secs(60);
/// How long the connection of reports is kept for the next one.
const MAX_IDLE: Duration = Duration::from_secs(60);

pub(super) const SALES: Course = Course {
    name: "sales",
    begin: "BEGIN",
    patience: PATIENCE,
    sells: true,
    checks_cluster: true,
    max_idle: None,
};
const MARKS: Course = Course { name: "marks", sells: false, checks_cluster: false, ..SALES };
const PULSE: Course = Course { name: "pulse", checks_cluster: true, ..MARKS };
const READS: Course = Course { name: "reads", ..MARKS };
const REPORTS: Course = Course {
    name: "reports",
    begin: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    patience: REPORT_PATIENCE,
    sells: false,
    checks_cluster: false,
    max_idle: Some(MAX_IDLE),
};

#[derive(Clone)]
pub(super) struct Lanes {
    clock: Arc<LedgerClock>,
    /// Purchases: everything that changes one, in the order in which it was asked for. A hold may
    /// also take a slot.
    pub(super) sales: LaneQueue,
    /// Turns and replies of slots, jobs, members and logins.
    pub(super) marks: LaneQueue,
    /// Heartbeats alone: nothing delays them.
    pub(super) pulse: LaneQueue,
    /// Short questions, and kept replies.
    pub(super) reads: LaneQueue,
    /// Reports, each from one snapshot.
    pub(super) reports: LaneQueue,
}

impl Lanes {
    /// Returns the lanes' queues, and the lanes in their order: sales, marks, pulse, reads,
    /// reports.
    pub(super) fn new(shared: &Arc<Shared>, stop: &watch::Receiver<bool>) -> (Self, [Lane; 5]) {
        let lane = |course: Course| {
            let patience = course.patience.max(shared.target.min_patience);
            Lane::new(shared, Course { patience, ..course }, stop.clone())
        };
        let (sales, sales_lane) = lane(SALES);
        let (marks, marks_lane) = lane(MARKS);
        let (pulse, pulse_lane) = lane(PULSE);
        let (reads, reads_lane) = lane(READS);
        let (reports, reports_lane) = lane(REPORTS);
        let clock = Arc::clone(&shared.clock);
        let lanes = Self { clock, sales, marks, pulse, reads, reports };
        (lanes, [sales_lane, marks_lane, pulse_lane, reads_lane, reports_lane])
    }

    /// Runs a step, and returns its rows after the COMMIT.
    pub(super) async fn request(&self, lane: &LaneQueue, step: Step) -> StepResult {
        let (answer, answered) = oneshot::channel();
        let step = Step { answer: Some(answer), stamp: self.clock.stamp(), ..step };
        lane.send(step).map_err(|_| closed())?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Runs a step without waiting, and again until it succeeds.
    pub(super) fn notify(&self, lane: &LaneQueue, step: Step) {
        // A closed store drops what comes later, as a file does.
        lane.send(Step { stamp: self.clock.stamp(), ..step }).ok();
    }

    /// Reads after all that this process has written before, even without waiting for it.
    pub(super) async fn read(&self, lane: &LaneQueue, statement: Statement) -> StepResult {
        let earlier = |lane| self.request(lane, Step::new(Need::Plain, Vec::new()));
        // If they cannot be written now, the answer is as true as it can be.
        drop(future::join(earlier(&self.sales), earlier(&self.marks)).await);
        self.request(lane, Step::plain(statement)).await
    }
}

fn closed() -> Unavailable {
    Unavailable("the ledger is closed".into())
}
