//! Decides which waiter gets a slot, with an exact sliding log. It does no I/O, and the time is
//! passed in.
//!
//! A request reaches the gateway at some time between its grant and its reply. So its slot stays
//! occupied until one period after the *reply*.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::fair_queue::{FairQueue, PollQueue};
use crate::clock::Instant;
use crate::config::RequestLimit;

/// Expired replies are kept up to this number, in case the period grows.
const MIN_KEPT_REPLIES: usize = 1_024;
/// While polls wait, every tenth slot is theirs.
const PURCHASES_PER_POLL: usize = 9;
/// The longest `Retry-After` that is respected: a wrong header must not stop everything for good.
const MAX_THROTTLE: Duration = Duration::from_secs(3_600);
const MIN_THROTTLE: Duration = Duration::from_secs(1);
/// The wait after a 429 without `Retry-After`; it doubles with each further one.
const DEFAULT_THROTTLE: Duration = Duration::from_secs(2);

pub(super) const PURCHASE_WAIT_FOR_LIMIT: Duration = Duration::from_secs(5);
/// Shorter, because the first poll of a job is due within two seconds.
const POLL_WAIT_FOR_LIMIT: Duration = Duration::from_secs(1);

/// The longest expected wait, in periods.
const MAX_ROUNDS: u32 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// tollgate's request for the billing summary, which reports the limit.
    Internal,
    /// A request that a client waits for: a purchase, or any passthrough request.
    Purchase,
    Watched,
    Unwatched,
}

#[derive(Clone, Debug)]
pub(super) struct Ticket {
    pub(super) number: u64,
    pub(super) priority: Priority,
    pub(super) caller: Arc<str>,
}

#[derive(Debug, Default)]
pub(super) struct Scheduler {
    pub(super) limit: RequestLimit,
    /// While the limit is not known, one slot is kept for the request that reports it.
    is_known: bool,
    /// The limit before it became unknown. Internal requests may use it: either the account is the
    /// same, or the new one has not seen the earlier requests.
    former: Option<RequestLimit>,
    in_flight: usize,
    replies: VecDeque<Instant>,
    throttled_until: Option<Instant>,
    paused_until: Option<Instant>,
    next_throttle: Duration,
    /// Until when polls and purchases wait for the limit to be reported.
    limit_awaited_until: Option<(Instant, Instant)>,
    internal: FairQueue,
    purchases: FairQueue,
    polls: PollQueue,
    purchases_since_poll: usize,
}

impl Scheduler {
    pub(super) fn with_assumed_limit(limit: RequestLimit) -> Self {
        Self { limit, ..Self::default() }
    }

    pub(super) fn restore(&mut self, replies: impl Iterator<Item = Instant>) {
        self.replies.extend(replies);
        self.replies.make_contiguous().sort_unstable();
    }

    pub(super) fn set_former_limit(&mut self, limit: RequestLimit) {
        if !self.is_known {
            self.former = Some(limit);
        }
    }

    /// Makes polls and purchases wait for [`set_limit`](Self::set_limit), but not for long.
    pub(super) fn wait_for_limit(&mut self, now: Instant) {
        self.limit_awaited_until = Some((now + POLL_WAIT_FOR_LIMIT, now + PURCHASE_WAIT_FOR_LIMIT));
    }

    /// A smaller limit applies once the requests already sent fit into it.
    pub(super) fn set_limit(&mut self, limit: RequestLimit) {
        self.limit = limit;
        self.is_known = true;
        self.former = None;
        self.limit_awaited_until = None;
    }

    pub(super) fn assume_limit(&mut self, limit: RequestLimit) {
        self.former.get_or_insert(self.limit);
        self.limit = limit;
        self.is_known = false;
    }

    pub(super) fn stop_waiting_for_limit(&mut self) {
        self.limit_awaited_until = None;
    }

    /// After a 429, grants nothing for `retry_after`. Without one, the wait doubles each time.
    pub(super) fn throttle(&mut self, retry_after: Option<Duration>, now: Instant) {
        let wait = match retry_after {
            Some(retry_after) => retry_after.clamp(MIN_THROTTLE, MAX_THROTTLE),
            // Several requests in flight count as one.
            None if self.throttled_until.is_some_and(|until| now < until) => return,
            None => {
                let wait = self.next_throttle.max(DEFAULT_THROTTLE);
                let wait = wait.min(self.limit.period).max(MIN_THROTTLE);
                self.next_throttle = wait * 2;
                wait
            }
        };
        self.throttled_until = self.throttled_until.max(Some(now + wait));
    }

    /// Grants nothing until then, because servers that share the limit have taken all slots.
    pub(super) fn pause(&mut self, until: Instant) {
        self.paused_until = self.paused_until.max(Some(until));
    }

    /// Returns until when nothing is granted.
    fn blocked_until(&self) -> Option<Instant> {
        self.throttled_until.max(self.paused_until)
    }

    /// Returns how long a 429 still blocks all requests.
    pub(super) fn throttled_for(&self, now: Instant) -> Duration {
        self.throttled_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    pub(super) fn reset_throttle(&mut self) {
        self.next_throttle = Duration::ZERO;
    }

    /// `is_retry` puts it first among its priority.
    pub(super) fn enqueue(&mut self, ticket: &Ticket, is_retry: bool) {
        self.queue(ticket.priority).push(&ticket.caller, ticket.number, is_retry);
    }

    /// Takes back a ticket that was granted a slot and did not get it.
    pub(super) fn put_back(&mut self, ticket: &Ticket) {
        self.queue(ticket.priority).put_back(&ticket.caller, ticket.number);
    }

    /// Returns `false` if it was granted already.
    pub(super) fn remove(&mut self, ticket: &Ticket) -> bool {
        self.queue(ticket.priority).remove(&ticket.caller, ticket.number)
    }

    fn queue(&mut self, priority: Priority) -> &mut FairQueue {
        match priority {
            Priority::Internal => &mut self.internal,
            Priority::Purchase => &mut self.purchases,
            Priority::Watched => &mut self.polls.watched,
            Priority::Unwatched => &mut self.polls.unwatched,
        }
    }

    /// Grants the next ticket a slot, to be [`release`](Self::release)d after its reply.
    pub(super) fn grant(&mut self, now: Instant) -> Option<u64> {
        if self.internal.is_empty() && self.purchases.is_empty() && self.polls.is_empty() {
            return None;
        }
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
        if let Some(ticket) = self.internal.pop() {
            return Some(ticket);
        }
        if free <= self.kept_for_internal() {
            return None;
        }
        let is_open = |priority| self.waits_until(priority).is_none_or(|until| until <= now);
        let purchases_go = is_open(Priority::Purchase) && !self.purchases.is_empty();
        let polls_go = is_open(Priority::Watched) && !self.polls.is_empty();
        let is_due = self.purchases_since_poll >= PURCHASES_PER_POLL;
        let has_capacity =
            free > self.limit.kept_from_polls() && self.polls.next_due(self.limit, now) <= now;
        if polls_go && (is_due || (!purchases_go && has_capacity)) {
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

    /// Takes a slot for a purchase that is not in the queue, if it would get one at once.
    ///
    /// The purchase may turn out to be refused or a duplicate. So the last slots are left to the
    /// queue, which would otherwise reject others for lack of them.
    pub(super) fn try_take(&mut self, now: Instant) -> bool {
        let is_first = self.internal.is_empty()
            && self.purchases.is_empty()
            && (self.polls.is_empty() || self.purchases_since_poll < PURCHASES_PER_POLL);
        let is_open = self.waits_until(Priority::Purchase).is_none_or(|until| until <= now);
        let kept = self.kept_for_internal().max(self.limit.kept_from_polls());
        let is_free = is_first && is_open && self.free_slots(now) > kept;
        self.in_flight += usize::from(is_free);
        is_free
    }

    /// Counts a purchase that uses a slot of [`try_take`](Self::try_take).
    pub(super) fn record_purchase(&mut self, now: Instant) {
        let polls_go = !self.polls.is_empty()
            && self.waits_until(Priority::Watched).is_none_or(|until| until <= now);
        self.purchases_since_poll = if polls_go { self.purchases_since_poll + 1 } else { 0 };
        self.polls.record_purchase(self.limit, now);
    }

    /// Returns until when this priority waits for the limit to be reported.
    fn waits_until(&self, priority: Priority) -> Option<Instant> {
        let (polls, purchases) = self.limit_awaited_until?;
        match priority {
            Priority::Internal => None,
            Priority::Purchase => Some(purchases),
            Priority::Watched | Priority::Unwatched => Some(polls),
        }
    }

    fn kept_for_internal(&self) -> usize {
        // If there is only one, keeping it would block purchases until the report.
        usize::from(!self.is_known && self.limit.requests > 1)
    }

    /// Frees a slot one period from now.
    pub(super) fn release(&mut self, now: Instant) {
        self.return_unused();
        self.replies.push_back(now);
        let recent = self.replies_within(self.limit, now);
        while self.replies.len() > recent.max(MIN_KEPT_REPLIES) {
            self.replies.pop_front();
        }
    }

    /// Frees a slot at once, because its request was never sent.
    pub(super) fn return_unused(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    pub(super) fn free_slots(&self, now: Instant) -> usize {
        self.free_slots_under(self.limit, now)
    }

    fn free_slots_under(&self, limit: RequestLimit, now: Instant) -> usize {
        if self.blocked_until().is_some_and(|until| now < until) {
            return 0;
        }
        limit.requests.saturating_sub(self.in_flight + self.replies_within(limit, now))
    }

    /// Counts the requests that wait for a slot. Polls wait for their pace, too.
    pub(super) fn waiting_count(&self) -> usize {
        self.internal.len() + self.purchases.len()
    }

    /// Returns the next time at which a slot could be granted if nothing else happens.
    pub(super) fn next_change(&self, now: Instant) -> Option<Instant> {
        let first = self.replies.len() - self.replies_within(self.limit, now);
        let freed = self.replies.get(first).map(|reply| *reply + self.limit.slot_lifetime());
        let awaited = [self.waits_until(Priority::Watched), self.waits_until(Priority::Purchase)];
        let times = [freed, self.blocked_until()].into_iter().chain(awaited).flatten();
        let times = times.chain(self.polls.changes(self.limit, now));
        times.filter(|time| *time > now).min()
    }

    /// Returns the earliest time for a slot: now while the limit is awaited, as it may be larger.
    pub(super) fn earliest(&self, priority: Priority, now: Instant) -> Instant {
        if self.waits_until(Priority::Purchase).is_some_and(|until| now < until) {
            return now;
        }
        self.slot_time(0, priority, now)
    }

    /// Returns when a new ticket of this caller can expect a slot.
    pub(super) fn expected_turn(&self, priority: Priority, caller: &str, now: Instant) -> Instant {
        let ahead = match priority {
            Priority::Internal => self.internal.position(caller),
            Priority::Purchase | Priority::Watched | Priority::Unwatched => {
                let purchases = self.purchases.position(caller);
                let polls = self.polls.len().min(purchases / PURCHASES_PER_POLL);
                self.internal.len() + purchases + polls
            }
        };
        self.slot_time(ahead, priority, now)
    }

    /// Returns when a slot is free after `ahead` other tickets.
    fn slot_time(&self, ahead: usize, priority: Priority, now: Instant) -> Instant {
        let kept = if priority == Priority::Internal { 0 } else { self.kept_for_internal() };
        let requests = self.limit.requests.saturating_sub(kept).max(1);
        let lifetime = self.limit.slot_lifetime();
        // Each further full limit of tickets takes one more period.
        let (rounds, position) = (ahead / requests, ahead % requests);
        let recent = self.replies_within(self.limit, now);
        let first = self.replies.len() - recent;
        let start = match (recent + self.in_flight + position + 1).checked_sub(requests) {
            None | Some(0) => now,
            Some(freed) => match self.replies.get(first + freed - 1) {
                Some(reply) => *reply + lifetime,
                None => now + lifetime,
            },
        };
        let start = [self.blocked_until(), self.waits_until(priority)]
            .into_iter()
            .flatten()
            .fold(start, Ord::max);
        start + lifetime * u32::try_from(rounds).unwrap_or(u32::MAX).min(MAX_ROUNDS)
    }

    /// Returns the number of replies within the last period of this limit.
    fn replies_within(&self, limit: RequestLimit, now: Instant) -> usize {
        let lifetime = limit.slot_lifetime();
        self.replies.len() - self.replies.partition_point(|reply| *reply + lifetime <= now)
    }
}

#[cfg(test)]
mod tests;
