//! Holds the account's window: nothing leaves without a place in it, and those who wait for one take
//! turns.
//!
//! Invariant: in no window, wherever one begins, does the gateway see more requests than its limit,
//! whatever they were and whatever came of them; also after a restart.
//!
//! Guesses: every request counts, also a poll and one that is answered with 401 or 429; the window is
//! the account's; a 429 is free, because nothing was done, so the same attempt may be sent again.

mod line;
mod queue;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{Abort, Attempt, Error, Reply, What};
use crate::clock::{self, Instant};
use crate::config;
use crate::store::{AccountLimit, Place, Store};
use crate::sync::lock;
use line::Limit;
use queue::{Queue, Rank, Ticket};

/// What holds where the gateway does not say: the contract's reference payload (2.3).
const ASSUMED: Limit = Limit { requests: 60, period: Duration::from_secs(60) };
/// How long purchases wait for the gateway's first word on its limit.
const PURCHASES_HOLD: Duration = Duration::from_secs(5);
/// How long polls do: the first one of a job is due within two seconds.
const POLLS_HOLD: Duration = Duration::from_secs(1);
/// No window is longer; so far back the log is read.
const LONGEST: Duration = Duration::from_secs(86_400);

/// The account's window; one for all cores.
pub struct Window {
    state: Mutex<State>,
    /// A place may be free sooner than those who wait have reckoned.
    changed: Notify,
    /// The patient waiter that looked at the clock for all of them has gone.
    unattended: Notify,
    log: Store,
    shutdown: CancellationToken,
}

struct State {
    queue: Queue,
    waiting: HashMap<u64, oneshot::Sender<()>>,
    next: u64,
    /// The patient waiter that looks at the clock for all of them.
    attendant: Option<u64>,
    /// The limit of the settings: what the gateway tells changes nothing.
    fixed: Option<Limit>,
    /// What the gateway told last, in this process or an earlier one.
    told: Option<Limit>,
    /// The account is another one than that of an earlier process: the limit in the log says nothing.
    is_of_another: bool,
}

/// Where the limit comes from: the settings; else what the gateway told last, which the log keeps for the
/// next process; and only where it has never told any, an assumed one.
impl Window {
    /// An empty window. With `auto` and no limit that [`restore`](Self::restore) finds, purchases wait at
    /// most five seconds for [`set_limit`](Self::set_limit); then 60 requests in 60 s hold. After
    /// `shutdown`, nothing queues any more.
    pub fn new(log: Store, setting: config::Window, shutdown: CancellationToken) -> Arc<Self> {
        let mut queue = Queue::assuming(ASSUMED);
        let fixed = fixed(setting);
        match fixed {
            Some(limit) => queue.set_limit(limit),
            None => hold(&mut queue, clock::now()),
        }
        let state = State {
            queue,
            waiting: HashMap::new(),
            next: 0,
            attendant: None,
            fixed,
            told: None,
            is_of_another: false,
        };
        let (changed, unattended) = (Notify::new(), Notify::new());
        Arc::new(Self { state: Mutex::new(state), changed, unattended, log, shutdown })
    }

    /// Goes on with the log of earlier processes and with the limit that they were told, before the
    /// first request.
    pub async fn restore(&self) {
        let noted = self.log.noted_limit().await.unwrap_or_else(|error| {
            warn!(%error, "stored rate limit unreadable");
            None
        });
        let noted = noted.and_then(usable);
        self.learn(|state, now| {
            if state.is_of_another {
                noted.into_iter().for_each(|former| state.queue.held_before(former));
            } else {
                state.told = state.told.or(noted);
            }
            if state.told.is_none() && state.fixed.is_none() {
                // The ledger may have taken longer to open than the first hold.
                hold(&mut state.queue, now);
            }
        });
        match self.log.replies_since(LONGEST).await {
            Ok(ages) => {
                // Read after the ages: a slow ledger frees slots late, never early.
                let now = clock::now();
                let replied = ages.into_iter().map(|ago| now.checked_sub(ago).unwrap_or(now));
                self.change(|state, _| state.queue.restore(replied));
            }
            Err(error) => warn!(%error, "the window begins empty: its log cannot be read"),
        }
    }

    /// Takes the limit that the gateway told, which holds unless the settings say one. What is no limit is
    /// passed over.
    pub fn set_limit(&self, told: AccountLimit) {
        let Some(limit) = usable(told) else {
            warn!(?told, "the gateway tells a rate limit that cannot be one");
            return self.assume();
        };
        if lock(&self.state).told != Some(limit) {
            // Before anything is sent by it: the log keeps the order.
            self.log.note_limit(told);
        }
        self.learn(|state, _| state.told = Some(limit));
    }

    /// Applies a change of the setting. With `auto`, what the gateway told last holds at once; if it never
    /// told any, what held before stays until it does.
    pub fn follow(&self, setting: config::Window) {
        self.learn(|state, _| state.fixed = fixed(setting));
    }

    /// Forgets the limit, as another account may answer from now on. Until it tells one, the smaller of
    /// what holds and 60 requests in 60 s is assumed; a limit of the settings stays.
    pub fn forget_limit(&self) {
        self.learn(|state, now| {
            (state.told, state.is_of_another) = (None, true);
            if state.fixed.is_none() {
                let assumed = state.queue.limit().smaller(ASSUMED);
                state.queue.assume_limit(assumed);
                hold(&mut state.queue, now);
            }
        });
        info!("rate limit forgotten: the gateway's account may be another one");
    }

    /// The gateway does not tell its limit: 60 requests in 60 s hold, or what it told before.
    pub fn assume(&self) {
        self.learn(|state, _| state.queue.assume());
    }

    /// Changes what is known of the limit, then applies the one that holds.
    fn learn(&self, learn: impl FnOnce(&mut State, Instant)) {
        let replaced = self.change(|state, now| {
            let was = state.queue.limit();
            learn(state, now);
            if let Some(limit) = state.fixed.or(state.told) {
                state.queue.set_limit(limit);
            }
            Some(state.queue.limit()).filter(|limit| *limit != was)
        });
        self.changed.notify_waiters();
        if let Some(Limit { requests, period }) = replaced {
            info!(requests, ?period, "the account's window");
        }
    }
}

/// Who goes when.
impl Window {
    /// How long a purchase of a caller that has none waiting would wait for its turn.
    pub fn wait_expected(&self) -> Duration {
        self.change(|state, now| state.queue.expected(Rank::Purchase, "", now) - now)
    }

    pub fn free(&self) -> usize {
        self.change(|state, now| state.queue.free(now))
    }

    pub fn waiting(&self) -> usize {
        self.change(|state, _| state.queue.waiting())
    }

    /// A slot for this attempt, recorded, or why there is none by `give_up`; without that it waits for as
    /// long as it takes. `again` is for one whose slot was of no use.
    pub(super) async fn slot(
        self: &Arc<Self>,
        attempt: &Attempt,
        give_up: Option<Instant>,
        again: bool,
    ) -> Result<Slot, Error> {
        let (mut waiting, mut granted) = self.enter(attempt, again);
        let mut cancelled = pin!(async {
            match &attempt.ask.before_send {
                Some(before_send) => before_send.cancelled().await,
                None => std::future::pending().await,
            }
        });
        loop {
            let mut changed = pin!(self.changed.notified());
            let mut unattended = pin!(self.unattended.notified());
            if granted.try_recv().is_ok() {
                break;
            }
            let attends = give_up.is_some() || waiting.attend();
            let wake = match give_up {
                Some(give_up) => Some(waiting.wake(give_up)?),
                None if attends => self.change(|state, now| state.queue.next_change(now)),
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
                    self.change(|_, _| ());
                }
            }
        }
        waiting.has_left = true;
        // What woke it may have been the call to look at the clock.
        self.change(|state, _| self.relieve(state, waiting.ticket.number));
        let mut slot = Slot { window: Arc::clone(self), place: Place::new(), is_used: false };
        if let Err(why) = self.log.took(slot.place).await {
            error!(%why, "nothing is sent: it could not be recorded in the window's log");
            return Err(Error::Aborted(Abort::Unrecorded));
        }
        // From here on the request may reach the gateway.
        slot.is_used = true;
        Ok(slot)
    }

    fn enter(self: &Arc<Self>, attempt: &Attempt, again: bool) -> (Waiting, oneshot::Receiver<()>) {
        let (grant, granted) = oneshot::channel();
        let rank = match &attempt.ask.what {
            What::Billing => Rank::Own,
            What::VideoStatus { is_watched: true, .. } => Rank::Watched,
            What::VideoStatus { is_watched: false, .. } => Rank::Unwatched,
            What::Chat(_) | What::Video(_) | What::Other { .. } => Rank::Purchase,
        };
        let caller = Arc::clone(&attempt.ask.caller);
        let ticket = self.change(|state, _| {
            let ticket = Ticket { number: state.next, rank, caller };
            state.next += 1;
            state.queue.enter(&ticket, again);
            state.waiting.insert(ticket.number, grant);
            ticket
        });
        (Waiting { window: Arc::clone(self), ticket, has_left: false }, granted)
    }

    /// Changes something, then grants all free slots.
    fn change<T>(&self, change: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = lock(&self.state);
        // Read inside the lock: moments reach the queue in their order.
        let now = clock::now();
        let changed = change(&mut state, now);
        while let Some(granted) = state.queue.grant(now) {
            self.relieve(&mut state, granted);
            match state.waiting.remove(&granted) {
                // A waiter that is just leaving gives the place back itself, once.
                Some(waiter) => _ = waiter.send(()),
                None => state.queue.give_back(),
            }
        }
        changed
    }

    /// This waiter leaves: if it looked at the clock for the others, or was just called to, another one
    /// has to.
    fn relieve(&self, state: &mut State, number: u64) {
        state.attendant.take_if(|attendant| *attendant == number);
        if state.attendant.is_none() {
            self.unattended.notify_one();
        }
    }
}

/// A place in the queue, left when it is dropped.
struct Waiting {
    window: Arc<Window>,
    ticket: Ticket,
    has_left: bool,
}

impl Waiting {
    /// Whether this patient waiter is the one that looks at the clock: however many wait, one is woken. One
    /// that was granted a place meanwhile leaves, and is not.
    fn attend(&self) -> bool {
        let number = self.ticket.number;
        self.window.change(|state, _| {
            state.waiting.contains_key(&number) && *state.attendant.get_or_insert(number) == number
        })
    }

    /// When to look again; an error, at once, if there will be nothing in time.
    fn wake(&mut self, give_up: Instant) -> Result<Instant, Error> {
        let wake = self.window.change(|state, now| {
            let Ticket { rank, caller, .. } = &self.ticket;
            if now < give_up && state.queue.earliest(*rank, now) <= give_up {
                let change = state.queue.next_change(now).unwrap_or(give_up);
                return Ok(change.min(give_up));
            }
            if !state.queue.leave(&self.ticket) {
                // It was granted at the last moment.
                return Ok(now);
            }
            state.waiting.remove(&self.ticket.number);
            let expected = state.queue.expected(*rank, caller, now);
            Err(Error::WindowFull { retry_after: expected.duration_since(now) })
        });
        self.has_left = wake.is_err();
        wake
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        let was_granted = self.window.change(|state, _| {
            self.window.relieve(state, self.ticket.number);
            let waited = state.queue.leave(&self.ticket);
            let was_granted = state.waiting.remove(&self.ticket.number).is_none() && !waited;
            if was_granted {
                state.queue.give_back();
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
    window: Arc<Window>,
    place: Place,
    is_used: bool,
}

impl Slot {
    /// The attempt ended so.
    pub(super) fn ended(mut self, outcome: &Result<Reply, Error>) {
        match outcome {
            Err(Error::Throttled { retry_after }) => {
                self.window.change(|state, now| state.queue.shrink(*retry_after, now));
            }
            Err(error) if !error.was_sent() => self.is_used = false,
            Ok(_) | Err(_) => self.window.change(|state, _| state.queue.answered()),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.is_used {
            self.window.change(|state, now| state.queue.release(now));
            self.window.log.replied(self.place);
        } else {
            self.window.change(|state, _| state.queue.give_back());
            self.window.log.unsent(self.place);
        }
        self.window.changed.notify_waiters();
    }
}

/// Waits for the gateway's word on its limit.
fn hold(queue: &mut Queue, now: Instant) {
    queue.hold(now + POLLS_HOLD, now + PURCHASES_HOLD);
}

/// The limit, if it can be one.
fn usable(told: AccountLimit) -> Option<Limit> {
    let requests = usize::try_from(told.requests).unwrap_or(usize::MAX);
    let period = Duration::from_secs(told.window_seconds);
    let is_one = requests > 0 && !period.is_zero() && period <= LONGEST;
    is_one.then_some(Limit { requests, period })
}

fn fixed(setting: config::Window) -> Option<Limit> {
    match setting {
        config::Window::Auto => None,
        config::Window::Fixed { requests, period } => {
            Some(Limit { requests: usize::try_from(requests.get()).unwrap_or(usize::MAX), period })
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
