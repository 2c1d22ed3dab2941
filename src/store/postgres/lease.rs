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
pub(super) struct Lease {
    /// When the last acknowledged beat left, and the first one without a gap since.
    beats: Mutex<Option<(Instant, Instant)>>,
}

impl Lease {
    pub(super) fn holds(&self) -> bool {
        lock(&self.beats).is_some_and(|(_, last)| last.elapsed() < OWN_LEASE)
    }

    /// Whether others had a whole lease to beat, too: after an outage of the database, the first
    /// instance to return must not bury all others.
    pub(super) fn may_bury(&self) -> bool {
        lock(&self.beats)
            .is_some_and(|(first, last)| last.elapsed() < OWN_LEASE && first.elapsed() >= LEASE)
    }

    pub(super) fn acknowledge(&self, left: Instant) {
        let mut beats = lock(&self.beats);
        let first = match *beats {
            Some((first, last)) if left.saturating_duration_since(last) < OWN_LEASE => first,
            _ => left,
        };
        *beats = Some((first, left));
    }

    pub(super) fn end(&self) {
        *lock(&self.beats) = None;
    }
}
