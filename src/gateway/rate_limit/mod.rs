//! The account's rate limit: every request takes a slot, and callers take turns.
//!
//! Invariant: in no interval of one period does the gateway see more requests than its limit, also
//! across restarts.
//!
//! Guesses:
//! - Every request counts, including polls and requests answered with 401 or 429.
//! - The limit is the account's, not the key's.
//! - A 429 is free, so the attempt may be sent again.

mod fair_queue;
mod scheduler;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{Abort, Attempt, Error, GatewayCall, GatewayReply};
use crate::clock::{self, Instant};
use crate::config::RequestLimit;
use crate::ledger::{AccountLimit, SlotId, SlotLimit, SlotRate, Store, Unavailable, WantedSlot};
use crate::sync::lock;
use scheduler::{Priority, Scheduler, Ticket};

/// Used until the gateway reports its limit: the contract's reference payload (2.3).
const DEFAULT_LIMIT: RequestLimit = RequestLimit { requests: 60, period: Duration::from_secs(60) };
/// The longest period, and how far back the log is read.
const MAX_PERIOD: Duration = Duration::from_secs(86_400);
/// The wait for a slot that other servers hold, while it is not known when one comes free.
const SHARED_PAUSE: Duration = Duration::from_millis(250);
const MIN_SHARED_PAUSE: Duration = Duration::from_millis(5);

pub struct RateLimit {
    state: Mutex<State>,
    /// Wakes waiters when a slot may come free sooner than they expect.
    changed: Notify,
    /// Held by the only patient waiter that sets a timer, so that one wakes instead of all.
    clock_watch: tokio::sync::Mutex<()>,
    log: Store,
    shutdown: CancellationToken,
}

#[derive(Default)]
struct State {
    scheduler: Scheduler,
    waiters: HashMap<u64, oneshot::Sender<()>>,
    next_ticket: u64,
    /// The limit of the settings, which overrides `reported`.
    fixed: Option<RequestLimit>,
    /// The limit that the gateway reported last, also in an earlier process.
    reported: Option<RequestLimit>,
    /// The account has changed, so the limit in the log does not apply.
    is_other_account: bool,
    /// A request asks the ledger for a slot which servers share. Until it is answered, no other is granted
    /// one: it may have to go back to its place.
    is_asking: bool,
}

/// The limit is, in this order: the one of the settings, the one reported last, an assumed one.
impl RateLimit {
    /// With no `fixed` and no stored limit, purchases wait up to five seconds for
    /// [`set_limit`](Self::set_limit), then 60 requests per 60 s apply.
    pub fn new(log: Store, fixed: Option<RequestLimit>, shutdown: CancellationToken) -> Arc<Self> {
        let mut scheduler = Scheduler::with_assumed_limit(DEFAULT_LIMIT);
        match fixed {
            Some(limit) => scheduler.set_limit(limit),
            None => scheduler.wait_for_limit(clock::now()),
        }
        Arc::new(Self {
            state: Mutex::new(State { scheduler, fixed, ..State::default() }),
            changed: Notify::new(),
            clock_watch: tokio::sync::Mutex::default(),
            log,
            shutdown,
        })
    }

    pub async fn restore(&self) {
        let stored = self.log.recorded_rate_limit().await.unwrap_or_else(|error| {
            warn!(%error, "stored rate limit unreadable");
            None
        });
        let stored = stored.and_then(valid_limit);
        self.update_limit(|state, now| {
            if state.is_other_account {
                stored.into_iter().for_each(|former| state.scheduler.set_former_limit(former));
            } else {
                state.reported = state.reported.or(stored);
            }
            if state.reported.is_none() && state.fixed.is_none() {
                state.scheduler.wait_for_limit(now);
            }
        });
        match self.log.recent_replies(MAX_PERIOD).await {
            Ok(ages) => {
                // The time is read after the ages, so a slow ledger frees slots late, never early.
                let now = clock::now();
                let replied = ages.into_iter().map(|ago| now.checked_sub(ago).unwrap_or(now));
                self.update(|state, _| state.scheduler.restore(replied));
            }
            Err(error) => warn!(%error, "rate limit log unreadable; starting empty"),
        }
    }

    pub fn set_limit(&self, reported: AccountLimit) {
        let Some(limit) = valid_limit(reported) else {
            warn!(?reported, "gateway reported an invalid rate limit");
            return self.assume_default();
        };
        if lock(&self.state).reported != Some(limit) {
            // Stored before any request is sent under it, because the log keeps the order.
            self.log.record_rate_limit(reported);
        }
        self.update_limit(|state, _| state.reported = Some(limit));
    }

    /// With no `fixed` limit, the one reported last applies; if there is none, the current one stays.
    pub fn reconfigure(&self, fixed: Option<RequestLimit>) {
        self.update_limit(|state, _| state.fixed = fixed);
    }

    /// Forgets the reported limit, because the account may have changed. Until the next report, the
    /// stricter of the current limit and 60 requests per 60 s applies.
    pub fn forget_limit(&self) {
        self.update_limit(|state, now| {
            (state.reported, state.is_other_account) = (None, true);
            if state.fixed.is_none() {
                let assumed = state.scheduler.limit.stricter(DEFAULT_LIMIT);
                state.scheduler.assume_limit(assumed);
                state.scheduler.wait_for_limit(now);
            }
        });
        info!("rate limit reset: gateway account may have changed");
    }

    /// Stops waiting for the gateway to report a limit.
    pub fn assume_default(&self) {
        self.update_limit(|state, _| state.scheduler.stop_waiting_for_limit());
    }

    fn update_limit(&self, change: impl FnOnce(&mut State, Instant)) {
        let replaced = self.update(|state, now| {
            let old = state.scheduler.limit;
            change(state, now);
            if let Some(limit) = state.fixed.or(state.reported) {
                state.scheduler.set_limit(limit);
            }
            Some(state.scheduler.limit).filter(|limit| *limit != old)
        });
        self.changed.notify_waiters();
        if let Some(RequestLimit { requests, period }) = replaced {
            info!(requests, ?period, "rate limit changed");
        }
    }

    pub fn expected_wait(&self) -> Duration {
        self.update(|state, now| state.scheduler.expected_turn(Priority::Purchase, "", now) - now)
    }

    pub fn free_slots(&self) -> usize {
        self.update(|state, now| state.scheduler.free_slots(now))
    }

    pub fn waiting_count(&self) -> usize {
        self.update(|state, _| state.scheduler.waiting_count())
    }

    /// Takes a slot for a purchase if one is free and no other request comes first. The slot is not
    /// recorded yet; see [`Slot::record`]. A shared slot may turn out to be another server's.
    pub fn try_acquire(self: &Arc<Self>) -> Option<Slot> {
        let is_taken = self.update(|state, now| state.scheduler.try_take(now));
        is_taken.then(|| Slot::new(self))
    }

    /// Waits for a slot until `give_up`. `is_retry` puts an attempt that got a 429 first in the queue.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        attempt: &Attempt,
        give_up: Option<Instant>,
        is_retry: bool,
    ) -> Result<Slot, Error> {
        let cancelled = async {
            match &attempt.request.before_send {
                Some(before_send) => before_send.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(cancelled);
        let mut ticket = None;
        loop {
            let (mut waiter, granted) = self.enqueue(attempt, is_retry, ticket);
            tokio::select! {
                biased;
                _ = granted => waiter.has_left = true,
                error = self.watch_clock(&mut waiter, give_up) => return Err(error),
                () = &mut cancelled => return Err(Error::Aborted(Abort::Cancelled)),
                () = self.shutdown.cancelled() => return Err(Error::Draining),
            }
            let mut slot = Slot::new(self);
            let _asking = Asking(self);
            tokio::select! {
                biased;
                taken = self.take(&mut slot, give_up) => if taken? {
                    slot.is_used = true;
                    return Ok(slot);
                },
                () = &mut cancelled => return Err(Error::Aborted(Abort::Cancelled)),
                () = self.shutdown.cancelled() => return Err(Error::Draining),
            }
            ticket = Some(waiter.ticket.number);
        }
    }

    /// Records a slot in the ledger. Returns whether it was free there: if servers share the ledger, they
    /// may have taken all. Then nothing is granted here until one comes free.
    async fn take(&self, slot: &mut Slot, give_up: Option<Instant>) -> Result<bool, Error> {
        let asked = self.log.take_free_slot(slot.record());
        let answer = match give_up.filter(|_| self.log.is_shared()) {
            None => asked.await,
            Some(give_up) => match timeout_at(give_up, asked).await {
                Ok(answer) => answer,
                Err(_elapsed) => return Err(Error::NoSlot { retry_after: self.expected_wait() }),
            },
        };
        let answer = answer.map_err(unrecorded)?;
        self.adopt(answer.reported.and_then(valid_limit));
        if !answer.is_taken {
            slot.unrecord();
            let wait = answer.next_free_in.unwrap_or(SHARED_PAUSE).max(MIN_SHARED_PAUSE);
            self.update(|state, now| state.scheduler.pause(now + wait));
        }
        Ok(answer.is_taken)
    }

    /// Returns the limit that applies to all servers, as far as this one knows.
    fn shared_limit(&self) -> SlotLimit {
        let rate = |limit: RequestLimit| SlotRate {
            requests: u64::try_from(limit.requests).unwrap_or(u64::MAX),
            period: limit.period,
        };
        SlotLimit { fixed: lock(&self.state).fixed.map(rate), assumed: rate(DEFAULT_LIMIT) }
    }

    /// Takes over the limit that another server was told.
    fn adopt(&self, reported: Option<RequestLimit>) {
        let is_news = {
            let state = lock(&self.state);
            reported.is_some() && state.reported != reported && !state.is_other_account
        };
        if is_news {
            self.update_limit(|state, _| state.reported = reported);
        }
    }

    /// Grants slots as they come free. Returns an error as soon as none can come free in time.
    async fn watch_clock(&self, waiter: &mut Waiter, give_up: Option<Instant>) -> Error {
        let _watch = match give_up {
            Some(_) => None,
            None => Some(self.clock_watch.lock().await),
        };
        loop {
            let changed = self.changed.notified();
            let wake = match give_up {
                Some(give_up) => match waiter.next_wake(give_up) {
                    Ok(wake) => wake,
                    Err(error) => return error,
                },
                None => self.update(|state, now| state.scheduler.next_change(now)),
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(wake.unwrap_or_else(clock::now)), if wake.is_some() => {
                    self.update(|_, _| ());
                }
            }
        }
    }

    /// Enters the queue, or goes back to the place that a `former` ticket had.
    fn enqueue(
        self: &Arc<Self>,
        attempt: &Attempt,
        is_retry: bool,
        former: Option<u64>,
    ) -> (Waiter, oneshot::Receiver<()>) {
        let (grant, granted) = oneshot::channel();
        let priority = match &attempt.request.call {
            GatewayCall::Billing => Priority::Internal,
            GatewayCall::VideoStatus { is_watched: true, .. } => Priority::Watched,
            GatewayCall::VideoStatus { is_watched: false, .. } => Priority::Unwatched,
            GatewayCall::Chat(_) | GatewayCall::Video(_) | GatewayCall::Passthrough { .. } => {
                Priority::Purchase
            }
        };
        let caller = Arc::clone(&attempt.request.caller);
        let ticket = self.update(|state, _| {
            let number = former.unwrap_or(state.next_ticket);
            let ticket = Ticket { number, priority, caller };
            match former {
                Some(_) => state.scheduler.put_back(&ticket),
                None => {
                    state.next_ticket += 1;
                    state.scheduler.enqueue(&ticket, is_retry);
                }
            }
            state.waiters.insert(ticket.number, grant);
            ticket
        });
        (Waiter { limit: Arc::clone(self), ticket, has_left: false }, granted)
    }

    /// Updates the state, then grants all free slots.
    fn update<T>(&self, change: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = lock(&self.state);
        // Read under the lock, so that times reach the scheduler in order.
        let now = clock::now();
        let changed = change(&mut state, now);
        while !state.is_asking
            && let Some(granted) = state.scheduler.grant(now)
        {
            match state.waiters.remove(&granted) {
                // A waiter that is leaving returns the slot itself.
                Some(granted) => {
                    state.is_asking = self.log.is_shared();
                    granted.send(()).ok();
                }
                None => state.scheduler.return_unused(),
            }
        }
        changed
    }
}

/// A ticket in the queue, which leaves when it is dropped.
struct Waiter {
    limit: Arc<RateLimit>,
    ticket: Ticket,
    has_left: bool,
}

impl Waiter {
    /// Returns when to check again, `None` if the slot was granted already, or an error as soon as
    /// no slot can come free in time.
    fn next_wake(&mut self, give_up: Instant) -> Result<Option<Instant>, Error> {
        let wake = self.limit.update(|state, now| {
            let Ticket { priority, caller, .. } = &self.ticket;
            if now < give_up && state.scheduler.earliest(*priority, now) <= give_up {
                let change = state.scheduler.next_change(now).unwrap_or(give_up);
                return Ok(Some(change.min(give_up)));
            }
            if !state.scheduler.remove(&self.ticket) {
                return Ok(None);
            }
            state.waiters.remove(&self.ticket.number);
            let expected = state.scheduler.expected_turn(*priority, caller, now);
            Err(Error::NoSlot { retry_after: expected.duration_since(now) })
        });
        self.has_left = wake.is_err();
        wake
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        let was_granted = self.limit.update(|state, _| {
            let waited = state.scheduler.remove(&self.ticket);
            let was_granted = state.waiters.remove(&self.ticket.number).is_none() && !waited;
            if was_granted {
                state.scheduler.return_unused();
                state.is_asking = false;
            }
            was_granted
        });
        if was_granted {
            self.limit.changed.notify_waiters();
        }
    }
}

/// A request that was granted a slot here, and asks the ledger for it.
struct Asking<'a>(&'a RateLimit);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.0.log.is_shared() {
            self.0.update(|state, _| state.is_asking = false);
        }
    }
}

/// A slot. Once it is used, it stays occupied until one period after it is dropped.
pub struct Slot {
    limit: Arc<RateLimit>,
    id: SlotId,
    /// Whether the log may have it.
    is_recorded: bool,
    is_used: bool,
}

impl Slot {
    fn new(limit: &Arc<RateLimit>) -> Self {
        let limit = Arc::clone(limit);
        Self { limit, id: SlotId::generate(), is_recorded: false, is_used: false }
    }

    /// Returns the slot as the caller records it, with its purchase. From now on, dropping the slot
    /// unused deletes that record.
    pub fn record(&mut self) -> WantedSlot {
        self.is_recorded = true;
        WantedSlot { id: self.id, limit: self.limit.shared_limit() }
    }

    /// Marks a recorded slot as used by a purchase that is about to be sent.
    pub fn use_for_purchase(&mut self) {
        self.is_used = true;
        self.limit.update(|state, now| state.scheduler.record_purchase(now));
    }

    /// Forgets the record, because it was not made.
    pub fn unrecord(&mut self) {
        self.is_recorded = false;
    }

    pub(super) fn finish(mut self, outcome: &Result<GatewayReply, Error>) {
        match outcome {
            Err(Error::Throttled { retry_after }) => {
                let wait = self.limit.update(|state, now| {
                    state.scheduler.throttle(*retry_after, now);
                    state.scheduler.throttled_for(now)
                });
                self.limit.log.block_slots(wait);
            }
            Err(error) if !error.was_sent() => self.is_used = false,
            Ok(_) | Err(_) => self.limit.update(|state, _| state.scheduler.reset_throttle()),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.is_used {
            self.limit.update(|state, now| state.scheduler.release(now));
            self.limit.log.slot_replied(self.id);
        } else {
            self.limit.update(|state, _| state.scheduler.return_unused());
            if self.is_recorded {
                self.limit.log.release_slot(self.id);
            }
        }
        self.limit.changed.notify_waiters();
    }
}

fn unrecorded(error: Unavailable) -> Error {
    error!(%error, "rate-limit slot not recorded; request not sent");
    Error::Aborted(Abort::Unrecorded)
}

fn valid_limit(reported: AccountLimit) -> Option<RequestLimit> {
    let requests = usize::try_from(reported.requests).unwrap_or(usize::MAX);
    let period = Duration::from_secs(reported.window_seconds);
    let is_valid = requests > 0 && !period.is_zero() && period <= MAX_PERIOD;
    is_valid.then_some(RequestLimit { requests, period })
}

#[cfg(test)]
pub(crate) mod tests;
