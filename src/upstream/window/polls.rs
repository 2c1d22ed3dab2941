//! Polls that wait for a slot, and the pace at which they go.
//!
//! Slots that are taken at one moment come free at one moment, too. So polls are spread over the
//! window: what purchases are expected to leave of the limit, evenly.

use std::collections::VecDeque;
use std::time::Duration;

use super::line::Line;
use super::queue::Limit;
use crate::clock::Instant;

/// While unwatched jobs wait, so many polls of watched jobs go before one of theirs does.
const WATCHED_PER_UNWATCHED: usize = 9;
/// A burst of purchases shows in the last part of a window, one in so many.
const RECENT: u32 = 2;

#[derive(Debug, Default)]
pub(super) struct Polls {
    pub(super) watched: Line,
    pub(super) unwatched: Line,
    /// Polls of watched jobs that went while unwatched ones waited.
    passed_over: usize,
    /// When purchases were granted in the last window, the earliest first.
    purchases: VecDeque<Instant>,
    /// When the last poll was granted.
    last: Option<Instant>,
}

impl Polls {
    pub(super) fn len(&self) -> usize {
        self.watched.len() + self.unwatched.len()
    }

    /// Takes the next one, which goes now. Watched jobs come first, except for every tenth poll.
    pub(super) fn next(&mut self, now: Instant) -> Option<u64> {
        self.last = Some(now);
        let is_turn = self.passed_over >= WATCHED_PER_UNWATCHED && !self.unwatched.is_empty();
        if self.watched.is_empty() || is_turn {
            self.passed_over = 0;
            return self.unwatched.next();
        }
        self.passed_over = if self.unwatched.is_empty() { 0 } else { self.passed_over + 1 };
        self.watched.next()
    }

    /// A purchase goes now.
    pub(super) fn purchase(&mut self, limit: Limit, now: Instant) {
        let spacing = limit.spacing();
        // If there are as many as the limit, nothing is left for polls: more need not be counted.
        while self.purchases.len() >= limit.requests.max(1)
            || self.purchases.front().is_some_and(|at| *at + spacing <= now)
        {
            self.purchases.pop_front();
        }
        self.purchases.push_back(now);
    }

    /// When the pace lets the next poll go.
    pub(super) fn due(&self, limit: Limit, now: Instant) -> Instant {
        let left = limit.requests.saturating_sub(self.purchases_expected(limit, now)).max(1);
        let gap = limit.spacing() / u32::try_from(left).unwrap_or(u32::MAX);
        self.last.map_or(now, |last| last + gap)
    }

    /// The moments at which [`due`](Self::due) is reached or changes, while polls wait for it.
    pub(super) fn changes(&self, limit: Limit, now: Instant) -> impl Iterator<Item = Instant> {
        let due = self.due(limit, now);
        let is_awaited = due > now && self.len() > 0;
        let expiries = spans(limit).into_iter().filter_map(move |span| {
            let first = self.purchases.partition_point(|at| *at + span <= now);
            self.purchases.get(first).map(|at| *at + span)
        });
        expiries.chain([due]).filter(move |_| is_awaited)
    }

    /// Returns how many purchases the next window may bring: as many as the last one, or at the rate of
    /// its last part if that is higher.
    fn purchases_expected(&self, limit: Limit, now: Instant) -> usize {
        let [whole, part] = spans(limit).map(|span| {
            self.purchases.len() - self.purchases.partition_point(|at| *at + span <= now)
        });
        whole.max(part.saturating_mul(RECENT as usize))
    }
}

fn spans(limit: Limit) -> [Duration; 2] {
    [limit.spacing(), limit.spacing() / RECENT]
}
