//! How long an instance may decide anything, by its own clock.

use std::sync::Mutex;
use std::time::Duration;

use crate::clock::Instant;
use crate::sync::lock;

/// What others see. The statements contain it, too.
const LEASE: Duration = Duration::from_secs(15);
/// How long after a beat this instance may send.
const OWN_LEASE: Duration = Duration::from_secs(10);

/// When this instance may still send, by its own clock.
#[derive(Debug, Default)]
pub(super) struct Lease(Mutex<Option<Beats>>);

#[derive(Clone, Copy, Debug)]
struct Beats {
    instance: i64,
    /// When the first beat left after which there was no gap.
    first: Instant,
    /// When the last acknowledged beat left.
    last: Instant,
}

impl Lease {
    /// Returns whether no other instance has ended this number. After a burial, the lease is that of
    /// another number.
    pub(super) fn holds(&self, instance: i64) -> bool {
        lock(&self.0)
            .is_some_and(|beats| beats.instance == instance && beats.last.elapsed() < OWN_LEASE)
    }

    /// Whether others had a whole lease to beat, too: after an outage of the database, the first
    /// instance to return must not bury all others.
    pub(super) fn may_bury(&self) -> bool {
        lock(&self.0).is_some_and(|Beats { first, last, .. }| {
            last.elapsed() < OWN_LEASE && first.elapsed() >= LEASE
        })
    }

    pub(super) fn acknowledge(&self, instance: i64, left: Instant) {
        let mut beats = lock(&self.0);
        let goes_on = |beats: &Beats| {
            beats.instance == instance && left.saturating_duration_since(beats.last) < OWN_LEASE
        };
        let first = beats.filter(goes_on).map_or(left, |beats| beats.first);
        *beats = Some(Beats { instance, first, last: left });
    }

    pub(super) fn end(&self) {
        *lock(&self.0) = None;
    }
}
