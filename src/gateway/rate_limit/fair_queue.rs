//! Queues in which callers take turns, and the pace of polls.
//!
//! Slots that are taken together come free together. So polls are spread evenly over the period, and
//! use only slots that purchases are not expected to need.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::RequestLimit;

/// One in this many slots is reserved for requests other than polls.
const RESERVE_DIVISOR: usize = 10;
/// With a smaller limit, no slot is reserved.
const MIN_TO_RESERVE: usize = 5;
/// The period is lengthened by this fraction, because the gateway's clock may run differently.
const CLOCK_DRIFT_DIVISOR: u32 = 1_000;

impl RequestLimit {
    /// How long after its reply a request still occupies its slot.
    pub(super) fn slot_lifetime(self) -> Duration {
        self.period + self.period / CLOCK_DRIFT_DIVISOR
    }

    pub(super) fn stricter(self, other: Self) -> Self {
        let nanos = |limit: Self| limit.period.as_nanos();
        let count = |limit: Self| u128::try_from(limit.requests).unwrap_or(u128::MAX);
        let is_stricter =
            count(self).saturating_mul(nanos(other)) <= count(other).saturating_mul(nanos(self));
        if is_stricter { self } else { other }
    }

    pub(super) fn kept_from_polls(self) -> usize {
        if self.requests < MIN_TO_RESERVE { 0 } else { self.requests.div_ceil(RESERVE_DIVISOR) }
    }
}

/// One FIFO queue per caller; the callers take turns.
#[derive(Debug, Default)]
pub(super) struct FairQueue(VecDeque<(Arc<str>, VecDeque<u64>)>);

impl FairQueue {
    /// Adds a ticket at the end, or in front if `is_retry`.
    pub(super) fn push(&mut self, caller: &Arc<str>, number: u64, is_retry: bool) {
        match (self.0.iter_mut().find(|(waiting, _)| waiting == caller), is_retry) {
            (Some((_, tickets)), true) => tickets.push_front(number),
            (Some((_, tickets)), false) => tickets.push_back(number),
            (None, true) => self.0.push_front((Arc::clone(caller), [number].into())),
            (None, false) => self.0.push_back((Arc::clone(caller), [number].into())),
        }
    }

    /// Puts a ticket that was taken back in front, and gives its caller the turn back.
    pub(super) fn put_back(&mut self, caller: &Arc<str>, number: u64) {
        let place = self.0.iter().position(|(waiting, _)| waiting == caller);
        let mut tickets = place.and_then(|place| self.0.remove(place)).unwrap_or_default().1;
        tickets.push_front(number);
        self.0.push_front((Arc::clone(caller), tickets));
    }

    pub(super) fn remove(&mut self, caller: &Arc<str>, number: u64) -> bool {
        let Some((_, tickets)) = self.0.iter_mut().find(|(waiting, _)| waiting == caller) else {
            return false;
        };
        let before = tickets.len();
        tickets.retain(|ticket| *ticket != number);
        let is_removed = tickets.len() < before;
        self.0.retain(|(_, tickets)| !tickets.is_empty());
        is_removed
    }

    /// Takes the next ticket, and moves its caller to the end.
    pub(super) fn pop(&mut self) -> Option<u64> {
        let (caller, mut tickets) = self.0.pop_front()?;
        let number = tickets.pop_front();
        if !tickets.is_empty() {
            self.0.push_back((caller, tickets));
        }
        number
    }

    /// Returns how many tickets would be served before a new one of this caller.
    pub(super) fn position(&self, caller: &str) -> usize {
        let own = self.0.iter().find(|(waiting, _)| **waiting == *caller);
        let own = own.map_or(0, |(_, tickets)| tickets.len());
        self.0.iter().map(|(_, tickets)| tickets.len().min(own + 1)).sum()
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|(_, tickets)| tickets.len()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

const WATCHED_PER_UNWATCHED: usize = 9;
/// Purchases are counted over the last period, and over one this many times shorter, to detect a
/// burst.
const RECENT: u32 = 2;

#[derive(Debug, Default)]
pub(super) struct PollQueue {
    pub(super) watched: FairQueue,
    pub(super) unwatched: FairQueue,
    /// Polls of watched jobs since the last one of an unwatched job.
    watched_in_a_row: usize,
    purchases: VecDeque<Instant>,
    last: Option<Instant>,
}

impl PollQueue {
    pub(super) fn len(&self) -> usize {
        self.watched.len() + self.unwatched.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.watched.is_empty() && self.unwatched.is_empty()
    }

    /// Takes the next poll. Watched jobs come first, except for every tenth poll.
    pub(super) fn pop(&mut self, now: Instant) -> Option<u64> {
        self.last = Some(now);
        let is_due = self.watched_in_a_row >= WATCHED_PER_UNWATCHED && !self.unwatched.is_empty();
        if self.watched.is_empty() || is_due {
            self.watched_in_a_row = 0;
            return self.unwatched.pop();
        }
        self.watched_in_a_row =
            if self.unwatched.is_empty() { 0 } else { self.watched_in_a_row + 1 };
        self.watched.pop()
    }

    pub(super) fn record_purchase(&mut self, limit: RequestLimit, now: Instant) {
        let lifetime = limit.slot_lifetime();
        while self.purchases.len() >= limit.requests.max(1)
            || self.purchases.front().is_some_and(|at| *at + lifetime <= now)
        {
            self.purchases.pop_front();
        }
        self.purchases.push_back(now);
    }

    /// Returns when the next poll may be sent. The next period is expected to bring as many
    /// purchases as the last one, or as its last fraction if that rate is higher.
    pub(super) fn next_due(&self, limit: RequestLimit, now: Instant) -> Instant {
        let [whole, part] = spans(limit).map(|span| {
            self.purchases.len() - self.purchases.partition_point(|at| *at + span <= now)
        });
        let expected = whole.max(part.saturating_mul(RECENT as usize));
        let remaining = limit.requests.saturating_sub(expected).max(1);
        let interval = limit.slot_lifetime() / u32::try_from(remaining).unwrap_or(u32::MAX);
        self.last.map_or(now, |last| last + interval)
    }

    /// Returns the times at which the pace may allow a poll.
    pub(super) fn changes(
        &self,
        limit: RequestLimit,
        now: Instant,
    ) -> impl Iterator<Item = Instant> {
        let due = self.next_due(limit, now);
        let is_awaited = due > now && !self.is_empty();
        let expiries = spans(limit).into_iter().filter_map(move |span| {
            let first = self.purchases.partition_point(|at| *at + span <= now);
            self.purchases.get(first).map(|at| *at + span)
        });
        expiries.chain([due]).filter(move |_| is_awaited)
    }
}

fn spans(limit: RequestLimit) -> [Duration; 2] {
    [limit.slot_lifetime(), limit.slot_lifetime() / RECENT]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(entries: &[(&str, u64)]) -> FairQueue {
        let mut queue = FairQueue::default();
        for (caller, number) in entries {
            queue.push(&Arc::from(*caller), *number, false);
        }
        queue
    }

    #[test]
    fn callers_take_turns() {
        let mut queue = queue(&[("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)]);
        assert_eq!((queue.position("a"), queue.position("b"), queue.position("d")), (6, 6, 3));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [1, 4, 5, 2, 6, 3]);
        assert_eq!((queue.is_empty(), queue.len()), (true, 0));
    }

    #[test]
    fn ticket_that_is_put_back_keeps_its_turn() {
        let mut queue = queue(&[("a", 1), ("a", 2), ("b", 3), ("a", 4)]);
        for turn in [(1, "a"), (3, "b"), (2, "a"), (4, "a")] {
            for _ in 0..2 {
                assert_eq!(queue.pop(), Some(turn.0));
                queue.put_back(&turn.1.into(), turn.0);
            }
            assert_eq!(queue.pop(), Some(turn.0));
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn removed_ticket_is_not_served() {
        let mut queue = queue(&[("a", 1), ("b", 2), ("b", 3), ("c", 4)]);
        assert!(queue.remove(&"a".into(), 1) && queue.remove(&"b".into(), 2));
        assert!(!queue.remove(&"a".into(), 1) && !queue.remove(&"b".into(), 9));
        assert_eq!(
            (queue.len(), queue.pop(), queue.pop(), queue.pop()),
            (2, Some(3), Some(4), None)
        );
    }

    #[test]
    fn retried_ticket_goes_first() {
        let mut queue = queue(&[("a", 1), ("b", 2)]);
        queue.push(&"c".into(), 3, true);
        queue.push(&"b".into(), 4, true);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [3, 1, 4, 2]);
    }
}
