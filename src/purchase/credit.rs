//! Sells nothing that the account's balance does not cover.
//!
//! Invariant: what is sold against a balance is never more than what it covers. A toll that was under
//! way while the gateway was asked counts as not yet in its answer, whichever way round it was.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::send::Charge;
use crate::clock;
use crate::contract::money::Usd;
use crate::problem::{INSUFFICIENT_CREDIT, Problem};

/// A balance that was learnt so long ago refuses nothing any more; it is asked for every few minutes.
const STALE: Duration = Duration::from_secs(15 * 60);

/// What is known of the account's balance, shared by every core. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Credit {
    state: Arc<Mutex<State>>,
    was_used: Arc<AtomicBool>,
}

/// Decisions only: nothing in here asks anybody.
#[derive(Debug, Default)]
struct State {
    known: Option<Known>,
    /// Tolls under way.
    set_aside: u64,
    /// All that was ever spent in this process, in micro-dollars: it also tells moments apart.
    spent: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    balance: Usd,
    /// What had been spent when it was certainly in this balance.
    since: Mark,
    as_of: Duration,
}

/// A moment in the account's spending. Taken before the gateway is asked, it says what its answer has
/// certainly counted: all that had ended by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// What is left to be sold against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The last known balance, less what was set aside or spent since.
    pub amount: Usd,
    /// When the gateway said so: wall-clock time since the Unix epoch.
    pub as_of: Duration,
}

impl Credit {
    /// Now, to be handed to [`learnt`](Self::learnt) with what the gateway answers.
    pub fn mark(&self) -> Mark {
        Mark(self.lock().spent)
    }

    /// The gateway answered a question that was asked at `mark`.
    pub fn learnt(&self, mark: Mark, balance: Usd) {
        self.lock().learnt(mark, balance, clock::wall());
    }

    /// What is left, where anything is known.
    pub fn left(&self) -> Option<Left> {
        self.lock().left()
    }

    /// Whether anything was sold since this was asked last.
    pub fn was_used(&self) -> bool {
        self.was_used.swap(false, Ordering::Relaxed)
    }

    /// Sets a price aside.
    ///
    /// # Errors
    /// `insufficient_credit`: the balance does not cover it above `floor`.
    pub(super) fn cover(&self, toll: Usd, floor: Usd) -> Result<Cover, Problem> {
        self.was_used.store(true, Ordering::Relaxed);
        let now = clock::wall();
        let mut state = self.lock();
        match state.set_aside(toll, floor) {
            // A gateway that has not answered for so long never blocks selling: it refuses by itself.
            Err(left) if now.saturating_sub(left.as_of) > STALE => state.hold(toll),
            outcome => outcome.map_err(|_left| refusal(toll))?,
        }
        let mark = Mark(state.spent);
        drop(state);
        Ok(Cover { credit: self.clone(), toll, mark, cost: Some(toll) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn left(&self) -> Option<Left> {
        let Known { balance, since: Mark(since), as_of } = self.known?;
        let gone = self.spent.saturating_sub(since).saturating_add(self.set_aside);
        Some(Left { amount: balance.saturating_sub(Usd::micros(gone)), as_of })
    }

    fn set_aside(&mut self, toll: Usd, floor: Usd) -> Result<(), Left> {
        let short = |left: &Left| toll.checked_add(floor).is_none_or(|sum| left.amount < sum);
        match self.left().filter(short) {
            Some(left) => Err(left),
            None => {
                self.hold(toll);
                Ok(())
            }
        }
    }

    fn hold(&mut self, toll: Usd) {
        self.set_aside = self.set_aside.saturating_add(toll.as_micros());
    }

    fn settle(&mut self, toll: Usd, cost: Usd) {
        self.set_aside = self.set_aside.saturating_sub(toll.as_micros());
        self.spent = self.spent.saturating_add(cost.as_micros());
    }

    /// An answer that is older than what is known says nothing new.
    fn learnt(&mut self, mark: Mark, balance: Usd, as_of: Duration) {
        if self.known.is_none_or(|known| known.since <= mark) {
            self.known = Some(Known { balance, since: mark, as_of });
        }
    }

    /// A purchase that began at `mark` ended, and its reply says what is left. Guess: its own charge is in
    /// that, and all that had ended before it was sent.
    fn settle_with(&mut self, toll: Usd, cost: Usd, mark: Mark, balance: Usd, as_of: Duration) {
        self.settle(toll, cost);
        // Its own cost is in the balance. Of all others, what had ended when it began.
        self.learnt(Mark(mark.0.saturating_add(cost.as_micros())), balance, as_of);
    }
}

/// A price that the balance covers. Dropped with nothing else known, it counts as spent.
pub(super) struct Cover {
    credit: Credit,
    toll: Usd,
    mark: Mark,
    cost: Option<Usd>,
}

impl Cover {
    /// The purchase ended so; its reply may say what is left.
    pub(super) fn settle(mut self, charge: Charge, balance: Option<Usd>) {
        let cost = match charge {
            Charge::Free => Usd::ZERO,
            Charge::Paid(cost) => cost,
            Charge::Unknown => self.toll,
        };
        match balance {
            None => self.cost = Some(cost),
            Some(balance) => {
                let as_of = clock::wall();
                let mut state = self.credit.lock();
                state.settle_with(self.toll, cost, self.mark, balance, as_of);
                drop(state);
                self.cost = None;
            }
        }
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        if let Some(cost) = self.cost {
            self.credit.lock().settle(self.toll, cost);
        }
    }
}

/// It names no balance: whoever may call reads this, and not everybody may see the account.
fn refusal(toll: Usd) -> Problem {
    Problem::new(&INSUFFICIENT_CREDIT).detail(format!(
        "this costs {}, which the account's prepaid balance does not cover; who runs this service has to \
         add credit",
        toll.short(),
    ))
}

#[cfg(test)]
mod tests;
