//! Decides who is sent when: an exact sliding log of what left, and those who wait for it in turns.
//!
//! Decisions only: the time is passed in. A request arrives at the gateway somewhere between its
//! grant and its reply, so its place is taken until one window after the *reply*.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::fair_queue::{FairQueue, PollQueue, RequestLimit};
use crate::clock::Instant;

/// Replies that are remembered even when they count no more, for a window that grows.
const MIN_KEPT_REPLIES: usize = 1_024;
/// While polls wait, so many purchases go before one of them does.
const PURCHASES_PER_POLL: usize = 9;
/// What a 429 may ask for at most: a mistaken header must not stop everything for good.
const MAX_THROTTLE: Duration = Duration::from_secs(3_600);
/// Less is not waited after a 429: it must not spin.
const MIN_THROTTLE: Duration = Duration::from_secs(1);
/// How long the first 429 that names no time is waited out; each further one twice as long.
const DEFAULT_THROTTLE: Duration = Duration::from_secs(2);

/// Nobody is told to wait longer than this many windows.
const MAX_ROUNDS: u32 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// Tollgate's own question for the books, which tells the limit itself.
    Internal,
    /// A client waits for it: a purchase, or a question at an endpoint of `gateway.passthrough`.
    Purchase,
    /// Asks how far a job is that somebody watches.
    Watched,
    /// Asks how far a job is that nobody watches.
    Unwatched,
}

#[derive(Clone, Debug)]
pub(super) struct Ticket {
    pub(super) number: u64,
    pub(super) priority: Priority,
    pub(super) caller: Arc<str>,
}

#[derive(Debug)]
pub(super) struct Scheduler {
    limit: RequestLimit,
    /// The gateway told the limit, or the settings say it. One slot of a limit that is only assumed is
    /// kept for the question that tells the real one.
    is_known: bool,
    /// What held before the limit became unknown. The account is the same one, and allows that much, or
    /// another one, which has not seen those requests: the question that tells the limit fits either way.
    former: Option<RequestLimit>,
    in_flight: usize,
    /// When the replies came, the earliest first.
    replies: VecDeque<Instant>,
    /// A 429 of the gateway: nothing is granted before.
    throttled_until: Option<Instant>,
    /// How long the next 429 that tells no time is waited out.
    next_throttle: Duration,
    /// The limit is not known yet: until when polls and purchases wait for it.
    limit_awaited_until: Option<(Instant, Instant)>,
    internal: FairQueue,
    purchases: FairQueue,
    polls: PollQueue,
    /// Purchases that went while polls waited.
    purchases_since_poll: usize,
}

impl Scheduler {
    /// A queue with a limit that is only assumed, until one is [`set`](Self::set_limit).
    pub(super) fn with_assumed_limit(limit: RequestLimit) -> Self {
        Self {
            limit,
            is_known: false,
            former: None,
            in_flight: 0,
            replies: VecDeque::new(),
            throttled_until: None,
            next_throttle: DEFAULT_THROTTLE,
            limit_awaited_until: None,
            internal: FairQueue::default(),
            purchases: FairQueue::default(),
            polls: PollQueue::default(),
            purchases_since_poll: 0,
        }
    }

    /// Adds what was sent before the start.
    pub(super) fn restore(&mut self, replied: impl Iterator<Item = Instant>) {
        self.replies.extend(replied);
        self.replies.make_contiguous().sort_unstable();
    }

    /// Notes the limit that held before the start, for another account.
    pub(super) fn set_former_limit(&mut self, limit: RequestLimit) {
        if !self.is_known {
            self.former = Some(limit);
        }
    }

    /// Polls and purchases wait until then, or until the limit is [`set`](Self::set_limit).
    pub(super) fn wait_for_limit(&mut self, polls: Instant, purchases: Instant) {
        self.limit_awaited_until = Some((polls, purchases));
    }

    /// The limit is known. A smaller one holds as soon as what was sent before fits into it.
    pub(super) fn set_limit(&mut self, limit: RequestLimit) {
        self.limit = limit;
        self.is_known = true;
        self.former = None;
        self.limit_awaited_until = None;
    }

    /// The limit is not known any more, and this one is assumed.
    pub(super) fn assume_limit(&mut self, limit: RequestLimit) {
        self.former.get_or_insert(self.limit);
        self.limit = limit;
        self.is_known = false;
    }

    pub(super) fn limit(&self) -> RequestLimit {
        self.limit
    }

    /// The limit will not become known: what is assumed holds.
    pub(super) fn stop_waiting_for_limit(&mut self) {
        self.limit_awaited_until = None;
    }

    /// The gateway answered 429: nothing is granted before the time that it told has passed. Where it
    /// told none, it is asked ever more rarely, at least once a window.
    pub(super) fn throttle(&mut self, told: Option<Duration>, now: Instant) {
        let wait = match told {
            Some(told) => told.clamp(MIN_THROTTLE, MAX_THROTTLE),
            // One of several that were under way says nothing new.
            None if self.throttled_until.is_some_and(|until| now < until) => return,
            None => {
                let wait = self.next_throttle.min(self.limit.period).max(MIN_THROTTLE);
                self.next_throttle = wait * 2;
                wait
            }
        };
        self.throttled_until = self.throttled_until.max(Some(now + wait));
    }

    /// The gateway answered something else.
    pub(super) fn reset_throttle(&mut self) {
        self.next_throttle = DEFAULT_THROTTLE;
    }

    /// Waits in the line of its rank; before all others where it had a place that was of no use.
    pub(super) fn enqueue(&mut self, ticket: &Ticket, again: bool) {
        self.line(ticket.priority).push(&ticket.caller, ticket.number, again);
    }

    /// Waits no more; `false` where it was granted already.
    pub(super) fn remove(&mut self, ticket: &Ticket) -> bool {
        self.line(ticket.priority).remove(&ticket.caller, ticket.number)
    }

    fn line(&mut self, rank: Priority) -> &mut FairQueue {
        match rank {
            Priority::Internal => &mut self.internal,
            Priority::Purchase => &mut self.purchases,
            Priority::Watched => &mut self.polls.watched,
            Priority::Unwatched => &mut self.polls.unwatched,
        }
    }

    /// The next who is sent, now; it has a place until it is [`release`](Self::release)d.
    pub(super) fn grant(&mut self, now: Instant) -> Option<u64> {
        let free = self.free_slots(now);
        let granted = match self.former {
            _ if free > 0 => self.pick(free, now)?,
            Some(former) if self.free_slots_under(former, now) > 0 => self.internal.pop()?,
            Some(_) | None => return None,
        };
        self.in_flight += 1;
        Some(granted)
    }

    fn pick(&mut self, free: usize, now: Instant) -> Option<u64> {
        if let Some(own) = self.internal.pop() {
            return Some(own);
        }
        if free <= self.kept_for_internal() {
            return None;
        }
        let is_open = |rank| self.waits_until(rank).is_none_or(|until| until <= now);
        let purchases_go = is_open(Priority::Purchase) && !self.purchases.is_empty();
        let polls_go = is_open(Priority::Watched) && !self.polls.is_empty();
        let is_due = self.purchases_since_poll >= PURCHASES_PER_POLL;
        let has_room =
            free > self.limit.kept_from_polls() && self.polls.next_due(self.limit, now) <= now;
        if polls_go && (is_due || (!purchases_go && has_room)) {
            self.purchases_since_poll = 0;
            return self.polls.pop(now);
        }
        if !purchases_go {
            return None;
        }
        self.purchases_since_poll = if polls_go { self.purchases_since_poll + 1 } else { 0 };
        self.polls.record_purchase(self.limit, now);
        self.purchases.pop()
    }

    /// Until when those of this rank wait for the limit to become known.
    fn waits_until(&self, rank: Priority) -> Option<Instant> {
        let (polls, purchases) = self.limit_awaited_until?;
        match rank {
            Priority::Internal => None,
            Priority::Purchase => Some(purchases),
            Priority::Watched | Priority::Unwatched => Some(polls),
        }
    }

    /// How many slots are kept for the question that tells the limit.
    fn kept_for_internal(&self) -> usize {
        // Where there is one only, nothing could ever be bought without the answer.
        usize::from(!self.is_known && self.limit.requests > 1)
    }

    /// The reply or the failure came: the place is free again one window from now.
    pub(super) fn release(&mut self, now: Instant) {
        self.return_unused();
        self.replies.push_back(now);
        let counting = self.replies_within(self.limit, now);
        while self.replies.len() > counting.max(MIN_KEPT_REPLIES) {
            self.replies.pop_front();
        }
    }

    /// It was never sent: the place is free at once.
    pub(super) fn return_unused(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    pub(super) fn free_slots(&self, now: Instant) -> usize {
        self.free_slots_under(self.limit, now)
    }

    fn free_slots_under(&self, limit: RequestLimit, now: Instant) -> usize {
        if self.throttled_until.is_some_and(|until| now < until) {
            return 0;
        }
        limit.requests.saturating_sub(self.in_flight + self.replies_within(limit, now))
    }

    pub(super) fn waiting_count(&self) -> usize {
        self.internal.len() + self.purchases.len() + self.polls.len()
    }

    /// The next moment at which somebody could be granted a place although nothing else happened.
    pub(super) fn next_change(&self, now: Instant) -> Option<Instant> {
        let first = self.replies.len() - self.replies_within(self.limit, now);
        let freed = self.replies.get(first).map(|replied| *replied + self.limit.slot_lifetime());
        let held = [self.waits_until(Priority::Watched), self.waits_until(Priority::Purchase)];
        let moments = [freed, self.throttled_until].into_iter().chain(held).flatten();
        let moments = moments.chain(self.polls.changes(self.limit, now));
        moments.filter(|moment| *moment > now).min()
    }

    /// When a client or an own question could be granted a slot at the earliest, if none is given back
    /// unused. While the limit is not known that is now: it may be a larger one.
    pub(super) fn earliest(&self, rank: Priority, now: Instant) -> Instant {
        if self.waits_until(Priority::Purchase).is_some_and(|until| now < until) {
            return now;
        }
        self.slot_time(0, rank, now)
    }

    /// When a newcomer of this caller can expect its turn, if replies came now and nobody else came.
    pub(super) fn expected_turn(&self, rank: Priority, caller: &str, now: Instant) -> Instant {
        let ahead = match rank {
            Priority::Internal => self.internal.position(caller),
            Priority::Purchase | Priority::Watched | Priority::Unwatched => {
                let purchases = self.purchases.position(caller);
                let polls = self.polls.len().min(purchases / PURCHASES_PER_POLL);
                self.internal.len() + purchases + polls
            }
        };
        self.slot_time(ahead, rank, now)
    }

    /// When the place after `ahead` others is free.
    fn slot_time(&self, ahead: usize, rank: Priority, now: Instant) -> Instant {
        let kept = if rank == Priority::Internal { 0 } else { self.kept_for_internal() };
        let requests = self.limit.requests.saturating_sub(kept).max(1);
        let spacing = self.limit.slot_lifetime();
        // After as many as the limit allows, the same places come round again.
        let (rounds, place) = (ahead / requests, ahead % requests);
        let counting = self.replies_within(self.limit, now);
        let first = self.replies.len() - counting;
        let start = match (counting + self.in_flight + place + 1).checked_sub(requests) {
            None | Some(0) => now,
            Some(freed) => match self.replies.get(first + freed - 1) {
                Some(replied) => *replied + spacing,
                None => now + spacing,
            },
        };
        let start = [self.throttled_until, self.waits_until(rank)]
            .into_iter()
            .flatten()
            .fold(start, Ord::max);
        start + spacing * u32::try_from(rounds).unwrap_or(u32::MAX).min(MAX_ROUNDS)
    }

    /// How many of the remembered replies came less than one window of this limit ago.
    fn replies_within(&self, limit: RequestLimit, now: Instant) -> usize {
        let spacing = limit.slot_lifetime();
        self.replies.len() - self.replies.partition_point(|replied| *replied + spacing <= now)
    }
}

#[cfg(test)]
mod tests;
