//! Holds the account's window: nothing leaves without a place in it, and who waits for one takes
//! turns.
//!
//! Invariant: in no window, wherever one begins, does the gateway see more requests than its limit,
//! whatever they were and whatever came of them; also after a restart.
//!
//! The limit is what the settings say; else what the gateway told last, which the log keeps for the next
//! process; and only where it has never told any, an assumed one.
//!
//! Guesses: every request counts, also a poll and one that is answered with 401 or 429; the window is
//! the account's; a 429 is free, because nothing was done, so the same attempt may be sent again.

mod held;
mod layer;
mod line;
mod polls;
mod queue;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::billing::RateLimit;
use crate::clock::{self, Instant};
use crate::config;
use crate::store::{AccountLimit, Store};
use queue::{Limit, Queue, Rank};

pub use layer::{Windowed, layer};

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
    /// Whichever patient waiter looks at the clock for all of them has gone.
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
    /// What the gateway told last, in this process or an earlier one.
    told: Option<Limit>,
    /// The account is another one than that of an earlier process: the limit in the log says nothing.
    is_of_another: bool,
    /// The settings say the limit: what the gateway tells changes nothing.
    is_fixed: bool,
}

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
            told: None,
            is_of_another: false,
            is_fixed: fixed.is_some(),
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
        let told = self.change(|state, now| {
            let noted = noted.filter(|_| !state.is_of_another);
            state.told = state.told.or(noted);
            if state.told.is_none() && !state.is_fixed {
                // The ledger may have taken longer to open than the first hold.
                hold(&mut state.queue, now);
            }
            state.told
        });
        self.replace(|is_fixed| told.filter(|_| !is_fixed));
        let (now, wall) = (clock::now(), clock::wall());
        match self.log.places(wall.saturating_sub(LONGEST)).await {
            Ok(places) => {
                // What seems to come from the future (the wall clock was set back) counts from now.
                let ago = |replied: Duration| wall.saturating_sub(replied);
                let moment = |replied| now.checked_sub(ago(replied)).unwrap_or(now);
                let replied = places.into_iter().map(|place| moment(place.replied));
                self.change(|state, _| state.queue.restore(replied));
            }
            Err(error) => warn!(%error, "the window begins empty: its log cannot be read"),
        }
    }

    /// The gateway told its limit, which holds unless the settings say one. What is no limit is passed
    /// over.
    pub fn set_limit(&self, limit: RateLimit) {
        let RateLimit { requests, window_seconds } = limit;
        let told = AccountLimit { requests, window_seconds };
        let Some(limit) = usable(told) else {
            warn!(?told, "the gateway tells a rate limit that cannot be one");
            return self.assume();
        };
        if self.change(|state, _| state.told.replace(limit)) != Some(limit) {
            // Before anything is sent by it: the log keeps the order.
            self.log.note_limit(told);
        }
        self.replace(|is_fixed| (!is_fixed).then_some(limit));
    }

    /// Follows a change of the setting. With `auto`, what the gateway told last holds at once; if it never
    /// told any, what held before stays until it does.
    pub fn follow(&self, setting: config::Window) {
        let fixed = fixed(setting);
        let told = self.change(|state, _| {
            state.is_fixed = fixed.is_some();
            state.told
        });
        self.replace(|_| fixed.or(told));
    }

    /// Another account may answer from now on: its limit is not known. Until it tells one, the smaller of
    /// what holds and 60 requests in 60 s is assumed; a limit of the settings stays.
    pub fn forget_limit(&self) {
        self.change(|state, now| {
            (state.told, state.is_of_another) = (None, true);
            if !state.is_fixed {
                let assumed = state.queue.limit().smaller(ASSUMED);
                state.queue.assume_limit(assumed);
                hold(&mut state.queue, now);
            }
        });
        self.changed.notify_waiters();
        info!("rate limit forgotten: the gateway's account may be another one");
    }

    /// The gateway does not tell its limit: 60 requests in 60 s hold, or what it told before.
    pub fn assume(&self) {
        self.change(|state, _| state.queue.assume());
        self.changed.notify_waiters();
    }

    fn replace(&self, choose: impl FnOnce(bool) -> Option<Limit>) {
        let replaced = self.change(|state, _| {
            let limit = choose(state.is_fixed)?;
            let was = state.queue.limit();
            state.queue.set_limit(limit);
            (was != limit).then_some(limit)
        });
        self.changed.notify_waiters();
        if let Some(Limit { requests, period }) = replaced {
            info!(requests, ?period, "the account's window");
        }
    }

    /// How long a purchase of somebody who has none waiting would wait for its turn.
    pub fn wait_expected(&self) -> Duration {
        self.change(|state, now| state.queue.expected(Rank::Purchase, "", now) - now)
    }

    /// How many requests could go now.
    pub fn free(&self) -> usize {
        self.change(|state, now| state.queue.free(now))
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.change(|state, _| state.queue.waiting())
    }

    /// Changes something, then lets go who can.
    fn change<T>(&self, change: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Read inside the lock: moments reach the queue in their order.
        let now = clock::now();
        let changed = change(&mut state, now);
        while let Some(granted) = state.queue.grant(now) {
            self.relieve(&mut state, granted);
            match state.waiting.remove(&granted) {
                // Who is just leaving gives the place back itself, once.
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

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").finish_non_exhaustive()
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
mod tests;
