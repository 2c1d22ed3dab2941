//! From a checked order to a receipt. Everything here is typed; no HTTP request comes this far.

pub mod accepted;
pub mod budget;
pub mod credit;
pub mod detached;
pub mod idempotency;
pub mod send;
#[cfg(test)]
mod tests;
mod waiters;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::sync::SetOnce;

pub use waiters::Waiters;

use crate::access::Standing;
use crate::contract::money::Usd;
use crate::problem::Problem;
use crate::store::{Caller, Earlier, Limits, PurchaseId, Service, Store};
use crate::upstream::Departure;
use crate::validate::{Checked, Order, Paid};

/// What a caller wants to buy. Only a [`Checked`] order can be in it.
#[derive(Clone)]
pub struct Purchase {
    /// Its name in the ledger.
    pub id: PurchaseId,
    /// Whose purchase it is.
    pub caller: Caller,
    /// What its credentials say of it: its own budget, besides those of the settings, and how long it may
    /// buy.
    pub standing: Standing,
    /// What is bought, at which toll.
    pub order: Checked<Order>,
    /// How it is told from others.
    pub claim: Claim,
    /// Who still waits for it.
    pub waiters: Waiters,
    /// Set when it is about to be sent; never, where it repeats another.
    pub sent: Arc<SetOnce<()>>,
    /// Whether money may have been spent on it: it is about to be sent, or repeats one that may have been.
    risk: Risk,
    /// Who has the last word before the first byte; `budget` sets it.
    departure: Option<Arc<dyn Departure>>,
}

/// Tells whether money may have been spent. Clones share it; it is never taken back.
#[derive(Clone, Debug, Default)]
struct Risk(Arc<AtomicBool>);

impl Risk {
    fn begins(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// How a purchase is told from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// By the caller's `Idempotency-Key`, unquoted.
    Key(Box<str>),
    /// By its likeness to an earlier one.
    Likeness {
        /// The client says that it is sending again.
        is_retry: bool,
    },
}

impl Purchase {
    /// A purchase that nobody waits for yet, of a caller without credentials.
    pub fn new(caller: Caller, order: Checked<Order>, claim: Claim) -> Self {
        Self {
            id: PurchaseId::new(),
            caller,
            standing: Standing::default(),
            order,
            claim,
            waiters: Waiters::default(),
            sent: Arc::default(),
            risk: Risk::default(),
            departure: None,
        }
    }

    /// The same, of a caller whose credentials say this.
    pub fn by(self, standing: Standing) -> Self {
        Self { standing, ..self }
    }

    /// What is bought, as the ledger has it.
    fn service(&self) -> Service {
        match self.order.get().paid {
            Paid::Chat => Service::Chat,
            Paid::Video => Service::Video,
            Paid::Other => Service::Other,
        }
    }
}

/// What purchases are made under, from the settings.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// What may be spent.
    pub limits: Limits,
    /// Below this, the account's balance is not sold.
    pub balance_floor: Usd,
    /// How long an identical purchase without a key joins one whose reply did not arrive.
    pub dedupe_window: Duration,
    /// How long the reply of a chat is kept.
    pub keep_chats: Duration,
    /// How long the reply of a video is kept.
    pub keep_videos: Duration,
    /// How long a repeat waits for the end of the first call.
    pub patience: Duration,
}

impl Terms {
    /// How long the reply of what is bought there is kept.
    fn keep(&self, service: Service) -> Duration {
        match service {
            Service::Chat => self.keep_chats,
            Service::Video | Service::Other => self.keep_videos,
        }
    }
}

/// The gateway's answer to a purchase, to be passed on.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// The gateway's status: a success or a definitive refusal.
    pub status: StatusCode,
    /// Whether the body is JSON.
    pub is_json: bool,
    /// The gateway's body.
    pub body: Bytes,
    /// What it cost; nothing for a refusal. A replay repeats it and is not charged again.
    pub toll: Usd,
    /// The place in the ring of the key that it was bought with; `None` for a replay.
    pub key: Option<usize>,
    /// Whether it is the answer of an earlier or running purchase, given again.
    pub is_replay: bool,
    /// To be told when the caller took the body to its end.
    pub delivery: Option<Delivery>,
    /// The job that a video's order became, until it is written down.
    pub accepted: Option<accepted::Announcement>,
}

/// Notes in the ledger that a reply reached its caller.
#[derive(Clone)]
pub struct Delivery {
    ledger: Store,
    id: PurchaseId,
}

impl Delivery {
    /// The body was taken to its end.
    pub fn taken(&self) {
        self.ledger.delivered(self.id);
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delivery({})", self.id)
    }
}

/// Why a purchase has no receipt.
#[derive(Clone, Debug)]
pub enum Stop {
    /// It is one that was made before.
    Known(Earlier),
    /// It is refused, or its outcome is unknown.
    Problem(Box<Problem>),
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}
