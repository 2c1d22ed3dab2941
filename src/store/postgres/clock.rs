//! The ledger's time, which is the database's: clocks of instances may differ.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::column::nanos;
use crate::clock;
use crate::store::Clock;

/// Nanoseconds since the Unix epoch by the database's clock, read when the statement runs.
const DATABASE_NOW: &str = "((extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000)";
const TEST_NOW: &str = "(current_setting('tollgate.now')::bigint)";
/// Sets the time that [`TEST_NOW`] reads.
pub(super) const SET_TEST_NOW: &str = "SELECT set_config('tollgate.now', $1, true)";

/// When a step was made, if a test sets the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClockStamp(pub(super) Option<Duration>);

pub(in crate::store) struct LedgerClock {
    /// A test's own clock.
    test: Option<Clock>,
    /// How far the database's clock is ahead of this machine's, in nanoseconds.
    ahead: AtomicI64,
}

impl LedgerClock {
    pub(in crate::store) fn new(test: Option<Clock>) -> Self {
        Self { test, ahead: AtomicI64::new(0) }
    }

    /// Returns the database's time, as far as it is known between two answers.
    pub(in crate::store) fn now(&self) -> Duration {
        if let Some(test) = &self.test {
            return test();
        }
        let now = nanos(clock::wall()).saturating_add(self.ahead.load(Ordering::Relaxed));
        Duration::from_nanos(now.try_into().unwrap_or_default())
    }

    /// Notes the database's time, in nanoseconds, as it was answered just now.
    pub(super) fn note(&self, database: i64) {
        self.ahead.store(database.saturating_sub(nanos(clock::wall())), Ordering::Relaxed);
    }

    pub(super) fn stamp(&self) -> ClockStamp {
        ClockStamp(self.test.as_ref().map(|test| test()))
    }

    /// Returns the text of a statement for the database. `{now}` is the ledger's time, which a test
    /// may set; `{clock}` is always the database's, for leases.
    pub(super) fn fill_in(&self, sql: &str) -> String {
        let now = if self.test.is_some() { TEST_NOW } else { DATABASE_NOW };
        sql.replace("{now}", now).replace("{clock}", DATABASE_NOW)
    }
}
