//! The ledger's time, which is the database's: clocks of instances may differ.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::clock;
use crate::store::Clock;
use crate::store::tables::nanos;

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
}
