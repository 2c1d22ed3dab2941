//! The ledger's time, which is the database's: clocks of instances may differ.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::clock::{self, since_boot};
use crate::ledger::Clock;
use crate::ledger::tables::nanos;

pub(in crate::ledger) struct LedgerClock {
    /// A test's own clock.
    test: Option<Clock>,
    /// How far the database's clock is at most ahead of the time since boot, in nanoseconds.
    ahead: AtomicI64,
}

impl LedgerClock {
    pub(in crate::ledger) fn new(test: Option<Clock>) -> Self {
        let ahead = nanos(clock::wall()).saturating_sub(nanos(since_boot()));
        Self { test, ahead: AtomicI64::new(ahead) }
    }

    /// Returns the database's time, as far as it is known between two answers. It is never too early: a
    /// slot of the rate limit that is dated by it does not come free too soon.
    pub(in crate::ledger) fn now(&self) -> Duration {
        if let Some(test) = &self.test {
            return test();
        }
        let now = nanos(since_boot()).saturating_add(self.ahead.load(Ordering::Relaxed));
        Duration::from_nanos(now.try_into().unwrap_or_default())
    }

    /// Returns the time of a transaction: the database's, in nanoseconds, at some moment after it was asked.
    pub(super) fn read(&self, database: i64, asked: Duration) -> Duration {
        self.ahead.store(database.saturating_sub(nanos(asked)), Ordering::Relaxed);
        match &self.test {
            Some(test) => test(),
            None => Duration::from_nanos(database.try_into().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_answers_is_not_too_early_after_a_slow_answer() {
        const SLOW: Duration = Duration::from_secs(1);
        let clock = LedgerClock::new(None);
        let database = Duration::from_secs(1_000_000);
        let asked = since_boot().saturating_sub(SLOW);
        assert_eq!(clock.read(nanos(database), asked), database);
        assert!(clock.now() >= database + SLOW);
    }
}
