//! Holds the account's window: nothing leaves without a place in it, and who waits for one takes
//! turns.
//!
//! Invariant: in no window, wherever one begins, does the gateway see more requests than its limit,
//! whatever they were and whatever came of them; also after a restart.
//!
//! Guesses: every request counts, also a poll and one that is answered with 401 or 429; the window is
//! the account's; a 429 is free, because nothing was done, so the same attempt may be sent again.

mod held;
mod layer;
mod line;
mod queue;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::billing::RateLimit;
use crate::clock;
use crate::clock::Instant;
use crate::config;
use crate::store::WindowLog;
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
    log: Arc<dyn WindowLog>,
    shutdown: CancellationToken,
}

struct State {
    queue: Queue,
    waiting: HashMap<u64, oneshot::Sender<()>>,
    next: u64,
    /// The settings say the limit: what the gateway tells changes nothing.
    is_fixed: bool,
}

impl Window {
    /// An empty window. With `auto`, purchases wait at most five seconds for
    /// [`set_limit`](Self::set_limit); then 60 requests in 60 s hold. After `shutdown`, nothing
    /// queues any more.
    pub fn new(
        log: Arc<dyn WindowLog>,
        setting: config::Window,
        shutdown: CancellationToken,
    ) -> Arc<Self> {
        let mut queue = Queue::new(ASSUMED);
        let fixed = fixed(setting);
        match fixed {
            Some(limit) => queue.set_limit(limit),
            None => {
                let now = clock::now();
                queue.hold(now + POLLS_HOLD, now + PURCHASES_HOLD);
            }
        }
        let state = State { queue, waiting: HashMap::new(), next: 0, is_fixed: fixed.is_some() };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new(), log, shutdown })
    }

    /// Goes on with the log of earlier processes, before the first request.
    pub async fn restore(&self) {
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
        let requests = usize::try_from(limit.requests).unwrap_or(usize::MAX);
        let period = Duration::from_secs(limit.window_seconds);
        if requests == 0 || period.is_zero() || period > LONGEST {
            warn!(?limit, "the gateway tells a rate limit that cannot be one");
            return self.assume();
        }
        self.replace(|is_fixed| (!is_fixed).then_some(Limit { requests, period }));
    }

    /// Follows a change of the setting; with `auto`, what held before stays until the gateway tells.
    pub fn follow(&self, setting: config::Window) {
        let fixed = fixed(setting);
        self.change(|state, _| state.is_fixed = fixed.is_some());
        self.replace(|_| fixed);
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

    /// How many polls could go now without a purchase waiting for it.
    pub fn room(&self) -> usize {
        self.change(|state, now| state.queue.room(now))
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
            match state.waiting.remove(&granted) {
                // Who is just leaving gives the place back itself, once.
                Some(waiter) => _ = waiter.send(()),
                None => state.queue.give_back(),
            }
        }
        changed
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").finish_non_exhaustive()
    }
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
