//! A process's knowledge of a ledger that servers share, for its writer and for its callers.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[cfg(feature = "postgres")]
use super::Clock;
#[cfg(feature = "postgres")]
use super::tables::{duration, nanos};
use super::{Deadlines, Store};
#[cfg(feature = "postgres")]
use crate::clock::{self, since_boot};
use crate::metrics::SharedLedgerMetrics;
use crate::sync::lock;

pub(super) struct SharedLedger {
    deadlines: Mutex<Deadlines>,
    rate_period: Mutex<Option<Duration>>,
    /// The ledger's public name.
    pub(super) name: Mutex<Arc<str>>,
    /// The number of this process.
    pub(super) server: AtomicI64,
    pub(super) metrics: SharedLedgerMetrics,
    #[cfg(feature = "postgres")]
    pub(super) clock: LedgerClock,
}

impl SharedLedger {
    #[cfg(feature = "postgres")]
    pub(super) fn new(
        deadlines: Deadlines,
        rate_period: Option<Duration>,
        test_clock: Option<Clock>,
    ) -> Self {
        Self {
            deadlines: Mutex::new(deadlines),
            rate_period: Mutex::new(rate_period),
            name: Mutex::default(),
            server: AtomicI64::default(),
            metrics: SharedLedgerMetrics::default(),
            clock: LedgerClock::new(test_clock),
        }
    }

    /// Returns how long purchases of this server may run before others end them.
    pub(super) fn deadlines(&self) -> Deadlines {
        *lock(&self.deadlines)
    }

    /// Returns the period of the rate limit, if settings fix it.
    pub(super) fn rate_period(&self) -> Option<Duration> {
        *lock(&self.rate_period)
    }

    pub(super) fn name(&self) -> Arc<str> {
        Arc::clone(&lock(&self.name))
    }

    pub(super) fn server(&self) -> i64 {
        self.server.load(Ordering::Relaxed)
    }
}

impl Store {
    /// Returns whether several servers may share the ledger.
    pub fn is_shared(&self) -> bool {
        self.inner.shared.is_some()
    }

    /// Returns what is counted about a ledger that servers share. Clones share their counts.
    pub fn shared_metrics(&self) -> Option<SharedLedgerMetrics> {
        self.inner.shared.as_ref().map(|shared| shared.metrics.clone())
    }

    /// Returns the number of this process in a ledger that servers share.
    pub(super) fn server(&self) -> i64 {
        self.inner.shared.as_ref().map_or(0, |shared| shared.server())
    }

    /// Applies changed settings to purchases that begin from now on. Deadlines only grow until a restart,
    /// because purchases under earlier settings may still run.
    pub fn set_deadlines(&self, new: Deadlines, rate_period: Option<Duration>) {
        let Some(shared) = &self.inner.shared else { return };
        let mut known = lock(&shared.deadlines);
        *known = Deadlines { held: known.held.max(new.held), sent: known.sent.max(new.sent) };
        *lock(&shared.rate_period) = rate_period;
    }
}

/// The ledger's time, which is the database's: clocks of servers may differ.
#[cfg(feature = "postgres")]
pub(super) struct LedgerClock {
    /// A test's own clock.
    test: Option<Clock>,
    /// How far the database's clock is at most ahead of the time since boot, in nanoseconds.
    ahead: AtomicI64,
}

#[cfg(feature = "postgres")]
impl LedgerClock {
    fn new(test: Option<Clock>) -> Self {
        let ahead = nanos(clock::wall()).saturating_sub(nanos(since_boot()));
        Self { test, ahead: AtomicI64::new(ahead) }
    }

    /// Returns the database's time, as far as it is known between two answers. It is never too early: a
    /// slot of the rate limit that is dated by it does not come free too soon.
    pub(super) fn now(&self) -> Duration {
        let now = || nanos(since_boot()).saturating_add(self.ahead.load(Ordering::Relaxed));
        self.test.as_ref().map_or_else(|| duration(now()), |test| test())
    }

    /// Returns the time of a transaction: the database's, in nanoseconds, at some moment after it was asked.
    pub(super) fn read(&self, database: i64, asked: Duration) -> Duration {
        self.ahead.store(database.saturating_sub(nanos(asked)), Ordering::Relaxed);
        self.test.as_ref().map_or_else(|| duration(database), |test| test())
    }
}

#[cfg(test)]
#[cfg(feature = "postgres")]
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
