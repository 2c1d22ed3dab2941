//! Holds the account's window: nothing leaves without a place in it, and those who wait for one take
//! turns.
//!
//! Invariant: in no window, wherever one begins, does the gateway see more requests than its limit,
//! whatever they were and whatever came of them; also after a restart.
//!
//! Guesses: every request counts, also a poll and one that is answered with 401 or 429; the window is
//! the account's; a 429 is free, because nothing was done, so the same attempt may be sent again.

mod fair_queue;
mod scheduler;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{Abort, Attempt, Error, GatewayCall, GatewayReply};
use crate::clock::{self, Instant};
use crate::config;
use crate::store::{AccountLimit, SlotId, Store};
use crate::sync::lock;
use fair_queue::RequestLimit;
use scheduler::{Priority, Scheduler, Ticket};

/// What holds where the gateway does not say: the contract's reference payload (2.3).
const DEFAULT_LIMIT: RequestLimit = RequestLimit { requests: 60, period: Duration::from_secs(60) };
/// How long purchases wait for the gateway's first word on its limit.
const PURCHASE_WAIT_FOR_LIMIT: Duration = Duration::from_secs(5);
/// How long polls do: the first one of a job is due within two seconds.
const POLL_WAIT_FOR_LIMIT: Duration = Duration::from_secs(1);
/// No window is longer; so far back the log is read.
const MAX_PERIOD: Duration = Duration::from_secs(86_400);

/// The account's window; one for all cores.
pub struct RateLimit {
    state: Mutex<State>,
    /// A place may be free sooner than those who wait have reckoned.
    changed: Notify,
    /// The patient waiter that looked at the clock for all of them has gone.
    clock_watcher_left: Notify,
    log: Store,
    shutdown: CancellationToken,
}

struct State {
    scheduler: Scheduler,
    waiters: HashMap<u64, oneshot::Sender<()>>,
    next_ticket: u64,
    /// The patient waiter that looks at the clock for all of them.
    clock_watcher: Option<u64>,
    /// The limit of the settings: what the gateway tells changes nothing.
    fixed: Option<RequestLimit>,
    /// What the gateway told last, in this process or an earlier one.
    reported: Option<RequestLimit>,
    /// The account is another one than that of an earlier process: the limit in the log says nothing.
    is_other_account: bool,
}

/// Where the limit comes from: the settings; else what the gateway told last, which the log keeps for the
/// next process; and only where it has never told any, an assumed one.
impl RateLimit {
    /// An empty window. With `auto` and no limit that [`restore`](Self::restore) finds, purchases wait at
    /// most five seconds for [`set_limit`](Self::set_limit); then 60 requests in 60 s hold. After
    /// `shutdown`, nothing queues any more.
    pub fn new(
        log: Store,
        setting: config::RateLimitConfig,
        shutdown: CancellationToken,
    ) -> Arc<Self> {
        let mut queue = Scheduler::with_assumed_limit(DEFAULT_LIMIT);
        let fixed = fixed_limit(setting);
        match fixed {
            Some(limit) => queue.set_limit(limit),
            None => wait_for_limit(&mut queue, clock::now()),
        }
        let state = State {
            scheduler: queue,
            waiters: HashMap::new(),
            next_ticket: 0,
            clock_watcher: None,
            fixed,
            reported: None,
            is_other_account: false,
        };
        let (changed, unattended) = (Notify::new(), Notify::new());
        Arc::new(Self {
            state: Mutex::new(state),
            changed,
            clock_watcher_left: unattended,
            log,
            shutdown,
        })
    }

    /// Goes on with the log of earlier processes and with the limit that they were told, before the
    /// first request.
    pub async fn restore(&self) {
        let noted = self.log.recorded_rate_limit().await.unwrap_or_else(|error| {
            warn!(%error, "stored rate limit unreadable");
            None
        });
        let noted = noted.and_then(valid_limit);
        self.update_limit(|state, now| {
            if state.is_other_account {
                noted.into_iter().for_each(|former| state.scheduler.set_former_limit(former));
            } else {
                state.reported = state.reported.or(noted);
            }
            if state.reported.is_none() && state.fixed.is_none() {
                // The ledger may have taken longer to open than the first hold.
                wait_for_limit(&mut state.scheduler, now);
            }
        });
        match self.log.recent_replies(MAX_PERIOD).await {
            Ok(ages) => {
                // Read after the ages: a slow ledger frees slots late, never early.
                let now = clock::now();
                let replied = ages.into_iter().map(|ago| now.checked_sub(ago).unwrap_or(now));
                self.update(|state, _| state.scheduler.restore(replied));
            }
            Err(error) => warn!(%error, "the window begins empty: its log cannot be read"),
        }
    }

    /// Takes the limit that the gateway told, which holds unless the settings say one. What is no limit is
    /// passed over.
    pub fn set_limit(&self, told: AccountLimit) {
        let Some(limit) = valid_limit(told) else {
            warn!(?told, "the gateway tells a rate limit that cannot be one");
            return self.assume_default();
        };
        if lock(&self.state).reported != Some(limit) {
            // Before anything is sent by it: the log keeps the order.
            self.log.record_rate_limit(told);
        }
        self.update_limit(|state, _| state.reported = Some(limit));
    }

    /// Applies a change of the setting. With `auto`, what the gateway told last holds at once; if it never
    /// told any, what held before stays until it does.
    pub fn reconfigure(&self, setting: config::RateLimitConfig) {
        self.update_limit(|state, _| state.fixed = fixed_limit(setting));
    }

    /// Forgets the limit, as another account may answer from now on. Until it tells one, the smaller of
    /// what holds and 60 requests in 60 s is assumed; a limit of the settings stays.
    pub fn forget_limit(&self) {
        self.update_limit(|state, now| {
            (state.reported, state.is_other_account) = (None, true);
            if state.fixed.is_none() {
                let assumed = state.scheduler.limit().stricter(DEFAULT_LIMIT);
                state.scheduler.assume_limit(assumed);
                wait_for_limit(&mut state.scheduler, now);
            }
        });
        info!("rate limit forgotten: the gateway's account may be another one");
    }

    /// The gateway does not tell its limit: 60 requests in 60 s hold, or what it told before.
    pub fn assume_default(&self) {
        self.update_limit(|state, _| state.scheduler.stop_waiting_for_limit());
    }

    /// Changes what is known of the limit, then applies the one that holds.
    fn update_limit(&self, learn: impl FnOnce(&mut State, Instant)) {
        let replaced = self.update(|state, now| {
            let was = state.scheduler.limit();
            learn(state, now);
            if let Some(limit) = state.fixed.or(state.reported) {
                state.scheduler.set_limit(limit);
            }
            Some(state.scheduler.limit()).filter(|limit| *limit != was)
        });
        self.changed.notify_waiters();
        if let Some(RequestLimit { requests, period }) = replaced {
            info!(requests, ?period, "the account's window");
        }
    }
}

/// Who goes when.
impl RateLimit {
    /// How long a purchase of a caller that has none waiting would wait for its turn.
    pub fn expected_wait(&self) -> Duration {
        self.update(|state, now| state.scheduler.expected_turn(Priority::Purchase, "", now) - now)
    }

    pub fn free_slots(&self) -> usize {
        self.update(|state, now| state.scheduler.free_slots(now))
    }

    pub fn waiting_count(&self) -> usize {
        self.update(|state, _| state.scheduler.waiting_count())
    }

    /// A slot for this attempt, recorded, or why there is none by `give_up`; without that it waits for as
    /// long as it takes. `again` is for one whose slot was of no use.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        attempt: &Attempt,
        give_up: Option<Instant>,
        again: bool,
    ) -> Result<Slot, Error> {
        let (mut waiting, mut granted) = self.enqueue(attempt, again);
        let mut cancelled = pin!(async {
            match &attempt.request.before_send {
                Some(before_send) => before_send.cancelled().await,
                None => std::future::pending().await,
            }
        });
        loop {
            let mut changed = pin!(self.changed.notified());
            let mut unattended = pin!(self.clock_watcher_left.notified());
            if granted.try_recv().is_ok() {
                break;
            }
            let attends = give_up.is_some() || waiting.watch_clock();
            let wake = match give_up {
                Some(give_up) => Some(waiting.next_wake(give_up)?),
                None if attends => self.update(|state, now| state.scheduler.next_change(now)),
                None => None,
            };
            tokio::select! {
                biased;
                _ = &mut granted => break,
                () = &mut cancelled => return Err(Error::Aborted(Abort::Cancelled)),
                () = self.shutdown.cancelled() => return Err(Error::Draining),
                () = &mut changed, if attends => {}
                () = &mut unattended, if !attends => {}
                // Any waiter that wakes grants all free slots.
                () = sleep_until(wake.unwrap_or_else(clock::now)), if wake.is_some() => {
                    self.update(|_, _| ());
                }
            }
        }
        waiting.has_left = true;
        // What woke it may have been the call to look at the clock.
        self.update(|state, _| self.hand_over_clock(state, waiting.ticket.number));
        let mut slot = Slot { window: Arc::clone(self), place: SlotId::new(), is_used: false };
        if let Err(why) = self.log.take_slot(slot.place).await {
            error!(%why, "nothing is sent: it could not be recorded in the window's log");
            return Err(Error::Aborted(Abort::Unrecorded));
        }
        // From here on the request may reach the gateway.
        slot.is_used = true;
        Ok(slot)
    }

    fn enqueue(
        self: &Arc<Self>,
        attempt: &Attempt,
        again: bool,
    ) -> (Waiter, oneshot::Receiver<()>) {
        let (grant, granted) = oneshot::channel();
        let rank = match &attempt.request.call {
            GatewayCall::Billing => Priority::Internal,
            GatewayCall::VideoStatus { is_watched: true, .. } => Priority::Watched,
            GatewayCall::VideoStatus { is_watched: false, .. } => Priority::Unwatched,
            GatewayCall::Chat(_) | GatewayCall::Video(_) | GatewayCall::Passthrough { .. } => {
                Priority::Purchase
            }
        };
        let caller = Arc::clone(&attempt.request.caller);
        let ticket = self.update(|state, _| {
            let ticket = Ticket { number: state.next_ticket, priority: rank, caller };
            state.next_ticket += 1;
            state.scheduler.enqueue(&ticket, again);
            state.waiters.insert(ticket.number, grant);
            ticket
        });
        (Waiter { window: Arc::clone(self), ticket, has_left: false }, granted)
    }

    /// Changes something, then grants all free slots.
    fn update<T>(&self, change: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = lock(&self.state);
        // Read inside the lock: moments reach the queue in their order.
        let now = clock::now();
        let changed = change(&mut state, now);
        while let Some(granted) = state.scheduler.grant(now) {
            self.hand_over_clock(&mut state, granted);
            match state.waiters.remove(&granted) {
                // A waiter that is just leaving gives the place back itself, once.
                Some(waiter) => _ = waiter.send(()),
                None => state.scheduler.return_unused(),
            }
        }
        changed
    }

    /// This waiter leaves: if it looked at the clock for the others, or was just called to, another one
    /// has to.
    fn hand_over_clock(&self, state: &mut State, number: u64) {
        state.clock_watcher.take_if(|attendant| *attendant == number);
        if state.clock_watcher.is_none() {
            self.clock_watcher_left.notify_one();
        }
    }
}

/// A place in the queue, left when it is dropped.
struct Waiter {
    window: Arc<RateLimit>,
    ticket: Ticket,
    has_left: bool,
}

impl Waiter {
    /// Whether this patient waiter is the one that looks at the clock: however many wait, one is woken. One
    /// that was granted a place meanwhile leaves, and is not.
    fn watch_clock(&self) -> bool {
        let number = self.ticket.number;
        self.window.update(|state, _| {
            state.waiters.contains_key(&number)
                && *state.clock_watcher.get_or_insert(number) == number
        })
    }

    /// When to look again; an error, at once, if there will be nothing in time.
    fn next_wake(&mut self, give_up: Instant) -> Result<Instant, Error> {
        let wake = self.window.update(|state, now| {
            let Ticket { priority: rank, caller, .. } = &self.ticket;
            if now < give_up && state.scheduler.earliest(*rank, now) <= give_up {
                let change = state.scheduler.next_change(now).unwrap_or(give_up);
                return Ok(change.min(give_up));
            }
            if !state.scheduler.remove(&self.ticket) {
                // It was granted at the last moment.
                return Ok(now);
            }
            state.waiters.remove(&self.ticket.number);
            let expected = state.scheduler.expected_turn(*rank, caller, now);
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
        let was_granted = self.window.update(|state, _| {
            self.window.hand_over_clock(state, self.ticket.number);
            let waited = state.scheduler.remove(&self.ticket);
            let was_granted = state.waiters.remove(&self.ticket.number).is_none() && !waited;
            if was_granted {
                state.scheduler.return_unused();
            }
            was_granted
        });
        if was_granted {
            self.window.changed.notify_waiters();
        }
    }
}

/// A slot in the window. Once it is recorded, it is taken until one window after it is dropped.
pub(super) struct Slot {
    window: Arc<RateLimit>,
    place: SlotId,
    is_used: bool,
}

impl Slot {
    /// The attempt ended so.
    pub(super) fn finish(mut self, outcome: &Result<GatewayReply, Error>) {
        match outcome {
            Err(Error::Throttled { retry_after }) => {
                self.window.update(|state, now| state.scheduler.throttle(*retry_after, now));
            }
            Err(error) if !error.was_sent() => self.is_used = false,
            Ok(_) | Err(_) => self.window.update(|state, _| state.scheduler.reset_throttle()),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.is_used {
            self.window.update(|state, now| state.scheduler.release(now));
            self.window.log.slot_replied(self.place);
        } else {
            self.window.update(|state, _| state.scheduler.return_unused());
            self.window.log.release_slot(self.place);
        }
        self.window.changed.notify_waiters();
    }
}

/// Waits for the gateway's word on its limit.
fn wait_for_limit(queue: &mut Scheduler, now: Instant) {
    queue.wait_for_limit(now + POLL_WAIT_FOR_LIMIT, now + PURCHASE_WAIT_FOR_LIMIT);
}

/// The limit, if it can be one.
fn valid_limit(told: AccountLimit) -> Option<RequestLimit> {
    let requests = usize::try_from(told.requests).unwrap_or(usize::MAX);
    let period = Duration::from_secs(told.window_seconds);
    let is_one = requests > 0 && !period.is_zero() && period <= MAX_PERIOD;
    is_one.then_some(RequestLimit { requests, period })
}

fn fixed_limit(setting: config::RateLimitConfig) -> Option<RequestLimit> {
    match setting {
        config::RateLimitConfig::Auto => None,
        config::RateLimitConfig::Fixed { requests, period } => Some(RequestLimit {
            requests: usize::try_from(requests.get()).unwrap_or(usize::MAX),
            period,
        }),
    }
}

#[cfg(test)]
pub(crate) mod tests;
