//! Decides who is sent when: an exact sliding log of what left, and those who wait for it in turns.
//!
//! Decisions only: the time is passed in. A request arrives at the gateway somewhere between its
//! grant and its reply, so its place is taken until one window after the *reply*.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::line::{Limit, Line, Polls};
use crate::clock::Instant;

/// Replies that are remembered even when they count no more, for a window that grows.
const REMEMBERED: usize = 1_024;
/// While polls wait, so many purchases go before one of them does.
const PURCHASES_PER_POLL: usize = 9;
/// What a 429 may ask for at most: a mistaken header must not stop everything for good.
const LONGEST_SHRINK: Duration = Duration::from_secs(3_600);
/// Less is not waited after a 429: it must not spin.
const SHORTEST_SHRINK: Duration = Duration::from_secs(1);
/// How long the first 429 that names no time is waited out; each further one twice as long.
const UNTOLD_SHRINK: Duration = Duration::from_secs(2);

/// Nobody is told to wait longer than this many windows.
const MOST_ROUNDS: u32 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// Tollgate's own question for the books, which tells the limit itself.
    Own,
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
    pub(super) rank: Rank,
    pub(super) caller: Arc<str>,
}

#[derive(Debug)]
pub(super) struct Queue {
    limit: Limit,
    /// The gateway told the limit, or the settings say it. One slot of a limit that is only assumed is
    /// kept for the question that tells the real one.
    is_known: bool,
    /// What held before the limit became unknown. The account is the same one, and allows that much, or
    /// another one, which has not seen those requests: the question that tells the limit fits either way.
    former: Option<Limit>,
    in_flight: usize,
    /// When the replies came, the earliest first.
    replied: VecDeque<Instant>,
    /// A 429 of the gateway: nothing is granted before.
    shrunk_until: Option<Instant>,
    /// How long the next 429 that tells no time is waited out.
    untold: Duration,
    /// The limit is not known yet: until when polls and purchases wait for it.
    held_until: Option<(Instant, Instant)>,
    own: Line,
    purchases: Line,
    polls: Polls,
    /// Purchases that went while polls waited.
    overtaken: usize,
}

impl Queue {
    /// A queue with a limit that is only assumed, until one is [`set`](Self::set_limit).
    pub(super) fn assuming(limit: Limit) -> Self {
        Self {
            limit,
            is_known: false,
            former: None,
            in_flight: 0,
            replied: VecDeque::new(),
            shrunk_until: None,
            untold: UNTOLD_SHRINK,
            held_until: None,
            own: Line::default(),
            purchases: Line::default(),
            polls: Polls::default(),
            overtaken: 0,
        }
    }

    /// Adds what was sent before the start.
    pub(super) fn restore(&mut self, replied: impl Iterator<Item = Instant>) {
        self.replied.extend(replied);
        self.replied.make_contiguous().sort_unstable();
    }

    /// Notes the limit that held before the start, for another account.
    pub(super) fn held_before(&mut self, limit: Limit) {
        if !self.is_known {
            self.former = Some(limit);
        }
    }

    /// Polls and purchases wait until then, or until the limit is [`set`](Self::set_limit).
    pub(super) fn hold(&mut self, polls: Instant, purchases: Instant) {
        self.held_until = Some((polls, purchases));
    }

    /// The limit is known. A smaller one holds as soon as what was sent before fits into it.
    pub(super) fn set_limit(&mut self, limit: Limit) {
        self.limit = limit;
        self.is_known = true;
        self.former = None;
        self.held_until = None;
    }

    /// The limit is not known any more, and this one is assumed.
    pub(super) fn assume_limit(&mut self, limit: Limit) {
        self.former.get_or_insert(self.limit);
        self.limit = limit;
        self.is_known = false;
    }

    pub(super) fn limit(&self) -> Limit {
        self.limit
    }

    /// The limit will not become known: what is assumed holds.
    pub(super) fn assume(&mut self) {
        self.held_until = None;
    }

    /// The gateway answered 429: nothing is granted before the time that it told has passed. Where it
    /// told none, it is asked ever more rarely, at least once a window.
    pub(super) fn shrink(&mut self, told: Option<Duration>, now: Instant) {
        let wait = match told {
            Some(told) => told.clamp(SHORTEST_SHRINK, LONGEST_SHRINK),
            // One of several that were under way says nothing new.
            None if self.shrunk_until.is_some_and(|until| now < until) => return,
            None => {
                let wait = self.untold.min(self.limit.period).max(SHORTEST_SHRINK);
                self.untold = wait * 2;
                wait
            }
        };
        self.shrunk_until = self.shrunk_until.max(Some(now + wait));
    }

    /// The gateway answered something else.
    pub(super) fn answered(&mut self) {
        self.untold = UNTOLD_SHRINK;
    }

    /// Waits in the line of its rank; before all others where it had a place that was of no use.
    pub(super) fn enter(&mut self, ticket: &Ticket, again: bool) {
        self.line(ticket.rank).enter(&ticket.caller, ticket.number, again);
    }

    /// Waits no more; `false` where it was granted already.
    pub(super) fn leave(&mut self, ticket: &Ticket) -> bool {
        self.line(ticket.rank).leave(&ticket.caller, ticket.number)
    }

    fn line(&mut self, rank: Rank) -> &mut Line {
        match rank {
            Rank::Own => &mut self.own,
            Rank::Purchase => &mut self.purchases,
            Rank::Watched => &mut self.polls.watched,
            Rank::Unwatched => &mut self.polls.unwatched,
        }
    }

    /// The next who is sent, now; it has a place until it is [`release`](Self::release)d.
    pub(super) fn grant(&mut self, now: Instant) -> Option<u64> {
        let free = self.free(now);
        let granted = match self.former {
            _ if free > 0 => self.pick(free, now)?,
            Some(former) if self.free_by(former, now) > 0 => self.own.next()?,
            Some(_) | None => return None,
        };
        self.in_flight += 1;
        Some(granted)
    }

    fn pick(&mut self, free: usize, now: Instant) -> Option<u64> {
        if let Some(own) = self.own.next() {
            return Some(own);
        }
        if free <= self.kept() {
            return None;
        }
        let is_open = |rank| self.held(rank).is_none_or(|until| until <= now);
        let purchases_go = is_open(Rank::Purchase) && !self.purchases.is_empty();
        let polls_go = is_open(Rank::Watched) && !self.polls.is_empty();
        let is_due = self.overtaken >= PURCHASES_PER_POLL;
        let has_room = free > self.limit.reserve() && self.polls.due(self.limit, now) <= now;
        if polls_go && (is_due || (!purchases_go && has_room)) {
            self.overtaken = 0;
            return self.polls.next(now);
        }
        if !purchases_go {
            return None;
        }
        self.overtaken = if polls_go { self.overtaken + 1 } else { 0 };
        self.polls.purchase(self.limit, now);
        self.purchases.next()
    }

    /// Until when those of this rank wait for the limit to become known.
    fn held(&self, rank: Rank) -> Option<Instant> {
        let (polls, purchases) = self.held_until?;
        match rank {
            Rank::Own => None,
            Rank::Purchase => Some(purchases),
            Rank::Watched | Rank::Unwatched => Some(polls),
        }
    }

    /// How many slots are kept for the question that tells the limit.
    fn kept(&self) -> usize {
        // Where there is one only, nothing could ever be bought without the answer.
        usize::from(!self.is_known && self.limit.requests > 1)
    }

    /// The reply or the failure came: the place is free again one window from now.
    pub(super) fn release(&mut self, now: Instant) {
        self.give_back();
        self.replied.push_back(now);
        let counting = self.counting(self.limit, now);
        while self.replied.len() > counting.max(REMEMBERED) {
            self.replied.pop_front();
        }
    }

    /// It was never sent: the place is free at once.
    pub(super) fn give_back(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    pub(super) fn free(&self, now: Instant) -> usize {
        self.free_by(self.limit, now)
    }

    fn free_by(&self, limit: Limit, now: Instant) -> usize {
        if self.shrunk_until.is_some_and(|until| now < until) {
            return 0;
        }
        limit.requests.saturating_sub(self.in_flight + self.counting(limit, now))
    }

    pub(super) fn waiting(&self) -> usize {
        self.own.len() + self.purchases.len() + self.polls.len()
    }

    /// The next moment at which somebody could be granted a place although nothing else happened.
    pub(super) fn next_change(&self, now: Instant) -> Option<Instant> {
        let first = self.replied.len() - self.counting(self.limit, now);
        let freed = self.replied.get(first).map(|replied| *replied + self.limit.spacing());
        let held = [self.held(Rank::Watched), self.held(Rank::Purchase)];
        let moments = [freed, self.shrunk_until].into_iter().chain(held).flatten();
        let moments = moments.chain(self.polls.changes(self.limit, now));
        moments.filter(|moment| *moment > now).min()
    }

    /// When a client or an own question could be granted a slot at the earliest, if none is given back
    /// unused. While the limit is not known that is now: it may be a larger one.
    pub(super) fn earliest(&self, rank: Rank, now: Instant) -> Instant {
        if self.held(Rank::Purchase).is_some_and(|until| now < until) {
            return now;
        }
        self.moment_of(0, rank, now)
    }

    /// When a newcomer of this caller can expect its turn, if replies came now and nobody else came.
    pub(super) fn expected(&self, rank: Rank, caller: &str, now: Instant) -> Instant {
        let ahead = match rank {
            Rank::Own => self.own.ahead_of(caller),
            Rank::Purchase | Rank::Watched | Rank::Unwatched => {
                let purchases = self.purchases.ahead_of(caller);
                let polls = self.polls.len().min(purchases / PURCHASES_PER_POLL);
                self.own.len() + purchases + polls
            }
        };
        self.moment_of(ahead, rank, now)
    }

    /// When the place after `ahead` others is free.
    fn moment_of(&self, ahead: usize, rank: Rank, now: Instant) -> Instant {
        let kept = if rank == Rank::Own { 0 } else { self.kept() };
        let requests = self.limit.requests.saturating_sub(kept).max(1);
        let spacing = self.limit.spacing();
        // After as many as the limit allows, the same places come round again.
        let (rounds, place) = (ahead / requests, ahead % requests);
        let counting = self.counting(self.limit, now);
        let first = self.replied.len() - counting;
        let start = match (counting + self.in_flight + place + 1).checked_sub(requests) {
            None | Some(0) => now,
            Some(freed) => match self.replied.get(first + freed - 1) {
                Some(replied) => *replied + spacing,
                None => now + spacing,
            },
        };
        let start =
            [self.shrunk_until, self.held(rank)].into_iter().flatten().fold(start, Ord::max);
        start + spacing * u32::try_from(rounds).unwrap_or(u32::MAX).min(MOST_ROUNDS)
    }

    /// How many of the remembered replies came less than one window of this limit ago.
    fn counting(&self, limit: Limit, now: Instant) -> usize {
        let spacing = limit.spacing();
        self.replied.len() - self.replied.partition_point(|replied| *replied + spacing <= now)
    }
}

#[cfg(test)]
mod tests;
