//! Waits for a place, and gives it back.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::sleep_until;
use tracing::error;

use super::Window;
use super::queue::{Rank, Ticket};
use crate::clock::{self, Instant};
use crate::store::Place;
use crate::upstream::{Attempt, Error, Stay, What};

impl Window {
    /// A place for this attempt, recorded, or why there is none by `give_up`; without that it waits for as
    /// long as it takes. `again` is for one whose place was of no use.
    pub(super) async fn place(
        self: &Arc<Self>,
        attempt: &Attempt,
        give_up: Option<Instant>,
        again: bool,
    ) -> Result<Held, Error> {
        let (mut waiting, mut granted) = self.enter(attempt, again);
        let departure = attempt.ask.departure.clone();
        let deserted = async move {
            match &departure {
                Some(departure) => departure.deserted().await,
                None => std::future::pending().await,
            }
        };
        let mut deserted = pin!(deserted);
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
                () = &mut deserted => return Err(Error::Stayed(Stay::Abandoned)),
                () = self.shutdown.cancelled() => return Err(Error::Draining),
                () = &mut changed, if attends => {}
                () = &mut unattended, if !attends => {}
                // Whoever can go goes, whoever of those who wait notices it.
                () = sleep_until(wake.unwrap_or_else(clock::now)), if wake.is_some() => {
                    self.change(|_, _| ());
                }
            }
        }
        waiting.has_left = true;
        // What woke it may have been the call to look at the clock.
        self.change(|state, _| self.relieve(state, waiting.ticket.number));
        let held = Held { window: Arc::clone(self), place: Place::new(), is_used: false };
        match self.log.took(held.place, clock::wall()).await {
            Ok(()) => Ok(held),
            Err(why) => {
                error!(%why, "nothing is sent: it could not be recorded in the window's log");
                Err(Error::Stayed(Stay::Unrecorded))
            }
        }
    }

    pub(super) fn enter(
        self: &Arc<Self>,
        attempt: &Attempt,
        again: bool,
    ) -> (Waiting, oneshot::Receiver<()>) {
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
}

/// A place in the queue, left when it is dropped.
pub(super) struct Waiting {
    window: Arc<Window>,
    ticket: Ticket,
    has_left: bool,
}

impl Waiting {
    /// Whether this patient waiter is the one that looks at the clock: however many wait, one is woken. One
    /// that was granted a place meanwhile leaves, and is not.
    pub(super) fn attend(&self) -> bool {
        let number = self.ticket.number;
        self.window.change(|state, _| {
            state.waiting.contains_key(&number) && *state.attendant.get_or_insert(number) == number
        })
    }

    /// When to look again; an error when there will be nothing in time. Who cannot be served in time
    /// is told at once.
    pub(super) fn wake(&mut self, give_up: Instant) -> Result<Instant, Error> {
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

/// A place in the window. Dropped, it is taken for one window from then on, if it was used.
pub(super) struct Held {
    window: Arc<Window>,
    place: Place,
    is_used: bool,
}

impl Held {
    /// From here on the request may reach the gateway.
    pub(super) fn sending(&mut self) {
        self.is_used = true;
    }

    /// The connection took no byte of it.
    pub(super) fn unsent(mut self) {
        self.is_used = false;
    }

    /// The reply or the failure came.
    pub(super) fn replied(self) {
        self.window.change(|state, _| state.queue.answered());
    }

    /// It was a 429.
    pub(super) fn throttled(self, retry_after: Option<Duration>) {
        self.window.change(|state, now| state.queue.shrink(retry_after, now));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_used {
            self.window.change(|state, now| state.queue.release(now));
            self.window.log.replied(self.place, clock::wall());
        } else {
            self.window.change(|state, _| state.queue.give_back());
            self.window.log.unsent(self.place);
        }
        self.window.changed.notify_waiters();
    }
}
