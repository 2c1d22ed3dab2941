//! How long an instance may decide anything, by its own clock.
//!
//! Moments are times since boot, which go on while the machine is suspended.

use std::sync::Mutex;
use std::time::Duration;

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
    first: Duration,
    /// When the last acknowledged beat left.
    last: Duration,
}

impl Lease {
    /// Returns whether no other instance has ended this number. After a burial, the lease is that of
    /// another number.
    pub(super) fn holds(&self, instance: i64, now: Duration) -> bool {
        lock(&self.0).is_some_and(|beats| {
            beats.instance == instance && now.saturating_sub(beats.last) < OWN_LEASE
        })
    }

    /// Returns how long this instance may still send without another heartbeat.
    pub(super) fn remaining(&self, now: Duration) -> Duration {
        let left = |beats: Beats| OWN_LEASE.saturating_sub(now.saturating_sub(beats.last));
        lock(&self.0).map_or(Duration::ZERO, left)
    }

    /// Whether others had a whole lease to beat, too: after an outage of the database, the first
    /// instance to return must not bury all others.
    pub(super) fn may_bury(&self, now: Duration) -> bool {
        lock(&self.0).is_some_and(|Beats { first, last, .. }| {
            now.saturating_sub(last) < OWN_LEASE && now.saturating_sub(first) >= LEASE
        })
    }

    /// Gives others a whole lease to beat, because the clock of leases has jumped.
    pub(super) fn postpone_burials(&self, now: Duration) {
        if let Some(beats) = &mut *lock(&self.0) {
            beats.first = now;
        }
    }

    pub(super) fn acknowledge(&self, instance: i64, left: Duration) {
        let mut beats = lock(&self.0);
        let goes_on = |beats: &Beats| {
            beats.instance == instance && left.saturating_sub(beats.last) < OWN_LEASE
        };
        let first = beats.filter(goes_on).map_or(left, |beats| beats.first);
        *beats = Some(Beats { instance, first, last: left });
    }

    pub(super) fn end(&self) {
        *lock(&self.0) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn lease_ends_ten_seconds_after_the_last_beat_of_its_number() {
        let (lease, start) = (Lease::default(), 100 * SECOND);
        assert!(!lease.holds(1, start));
        lease.acknowledge(1, start);
        assert!(lease.holds(1, start + 9 * SECOND) && !lease.holds(2, start));
        assert!(!lease.holds(1, start + 10 * SECOND), "also if the machine was suspended");
        assert_eq!(lease.remaining(start + 4 * SECOND), 6 * SECOND);
        lease.end();
        assert!(!lease.holds(1, start));
    }

    #[test]
    fn burial_needs_a_whole_lease_without_a_gap_or_a_jump() {
        let (lease, start) = (Lease::default(), 100 * SECOND);
        let beat = |seconds: u32| {
            lease.acknowledge(1, start + seconds * SECOND);
            lease.may_bury(start + seconds * SECOND)
        };
        assert!(!beat(0) && !beat(8) && beat(15));
        assert!(!lease.may_bury(start + 25 * SECOND), "its own lease is over");
        assert!(!beat(30) && !beat(39) && beat(45));
        lease.postpone_burials(start + 46 * SECOND);
        assert!(!beat(47) && !beat(55) && !beat(60) && beat(61));
    }
}
