//! What the ledger holds of a purchase, and what its verbs take and answer.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::{Job, Own, Unavailable};
use crate::clock;
use crate::contract::money::Usd;

/// A purchase's name in the ledger: a UUIDv7, so that rows sort by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PurchaseId(pub Uuid);

impl PurchaseId {
    /// A name that nobody has yet.
    pub fn new() -> Self {
        let wall = clock::wall();
        let stamp =
            uuid::Timestamp::from_unix(uuid::NoContext, wall.as_secs(), wall.subsec_nanos());
        Self(Uuid::new_v7(stamp))
    }
}

impl Default for PurchaseId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for PurchaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where the store takes the time from: wall-clock time since the Unix epoch. Tests pass their own.
pub type Clock = std::sync::Arc<dyn Fn() -> Duration + Send + Sync>;

/// What a ledger counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Money {
    /// The sandbox's.
    Play,
    /// The account's.
    Real,
}

impl Money {
    /// As a ledger's file says it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Play => "play",
            Self::Real => "real",
        }
    }
}

/// What is bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// A chat.
    Chat,
    /// A video.
    Video,
    /// An endpoint of `gateway.passthrough`.
    Other,
}

impl Service {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Chat, Self::Video, Self::Other];

    /// As ledger, log and metrics write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Video => "video",
            Self::Other => "other",
        }
    }
}

/// 32 bytes that stand for a longer text: a BLAKE3 hash.
pub type Identity = [u8; 32];

/// How a purchase may turn out to be one that was made already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The caller gave an `Idempotency-Key`: it is this purchase and no other.
    Key {
        /// Hash of the key with its scope (caller, route).
        key: Identity,
        /// Hash of the canonical payload.
        payload: Identity,
    },
    /// No key: it may be the repeat of an identical purchase of the same caller.
    Twin(Twin),
}

/// How a purchase without a key is recognised as a repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Twin {
    /// Hash of caller, route and canonical payload.
    pub likeness: Identity,
    /// An identical one that ended longer ago is another purchase.
    pub within: Duration,
    /// So is one that ended so much later than now: it ended under a clock that was ahead.
    pub ahead: Duration,
    /// A reply that was delivered is repeated only if its purchase ended at this time or later, as
    /// [`Refusals::last`](super::Refusals::last) says; `None` if the client does not say that it is sending again.
    pub delivered_since: Option<Duration>,
}

/// A toll to be set aside.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The purchase's new name.
    pub id: PurchaseId,
    /// Whose budget it goes against, as [`super::Caller`] is written.
    pub caller: String,
    /// What is bought.
    pub service: Service,
    /// Of which model.
    pub model: Box<str>,
    /// What it costs, as far as we know.
    pub toll: Usd,
    /// How it is recognised.
    pub claim: Claim,
    /// What may be spent.
    pub limits: Limits,
    /// Nothing is set aside: it is either recognised as a repeat, or refused.
    pub only_repeats: bool,
}

impl Reservation {
    /// Whether it is worth waiting for the disk: at least ten cents.
    pub fn is_dear(&self) -> bool {
        self.toll >= DEAR
    }
}

/// From here on, a purchase is worth waiting for the disk.
pub(super) const DEAR: Usd = Usd::mills(100);

/// What may be spent on a purchase: the budgets, per UTC day and month (`None` is no limit), and the balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Of all callers together, per day.
    pub total_day: Option<Usd>,
    /// Of all callers together, per month.
    pub total_month: Option<Usd>,
    /// Of this caller, per day.
    pub caller_day: Option<Usd>,
    /// Of this caller, per month.
    pub caller_month: Option<Usd>,
    /// What of the account's balance is never sold.
    pub balance_floor: Usd,
}

impl Limits {
    /// The same, where the caller has a budget of its own besides: both hold.
    pub fn and(self, own: Own) -> Self {
        let lower = |one: Option<Usd>, other: Option<Usd>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Self {
            caller_day: lower(self.caller_day, own.day),
            caller_month: lower(self.caller_month, own.month),
            ..self
        }
    }
}

/// Whose spending is counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All callers together.
    Total,
    /// One caller, as [`super::Caller`] is written.
    Caller(String),
}

/// One of the four budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `budget.total.day`
    TotalDay,
    /// `budget.total.month`
    TotalMonth,
    /// `budget.caller.day`
    CallerDay,
    /// `budget.caller.month`
    CallerMonth,
}

/// A budget that does not cover a toll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverBudget {
    /// Which one; where several do not, the one that renews last.
    pub limit: Limit,
    /// Its amount.
    pub budget: Usd,
    /// What of it is left.
    pub left: Usd,
    /// When it renews: wall-clock time since the Unix epoch.
    pub renews: Duration,
}

/// What a scope has spent in the current periods: posted, set aside, and unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// This UTC day.
    pub day: Usd,
    /// This UTC month.
    pub month: Usd,
    /// When the day's budgets renew: wall-clock time since the Unix epoch.
    pub day_renews: Duration,
    /// When the month's budgets renew.
    pub month_renews: Duration,
}

/// Why a toll was not set aside.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refused {
    /// It was bought before, or is being bought.
    #[error("it is known already")]
    Known(Earlier),
    /// The key belongs to another payload.
    #[error("the key was used with another payload")]
    KeyReused,
    /// It repeats no purchase that is known, and was to be nothing else.
    #[error("it repeats no purchase that is known")]
    NoRepeat,
    /// A budget does not cover it.
    #[error("a budget does not cover it")]
    OverBudget(OverBudget),
    /// The account's balance does not cover it.
    #[error("the balance does not cover it")]
    InsufficientCredit,
    /// Nothing can be recorded.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// A moment in the account's spending. Taken before the gateway is asked, it says what its answer has
/// certainly counted: all that had ended by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CreditMark(pub(super) u64);

impl CreditMark {
    /// The same, once a purchase of this cost is in the answer, too.
    #[must_use]
    pub fn with(self, cost: Usd) -> Self {
        Self(self.0.saturating_add(cost.as_micros()))
    }
}

/// What is left to be sold against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The last known balance, less what was held or spent since.
    pub amount: Usd,
    /// When the gateway said so: wall-clock time since the Unix epoch.
    pub as_of: Duration,
}

/// A purchase that is the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// Its name.
    pub id: PurchaseId,
    /// How far it is.
    pub state: State,
    /// What it costs, or cost.
    pub toll: Usd,
    /// How many bytes the gateway's reply has, if the purchase is posted and the reply is still kept.
    pub reply_bytes: Option<usize>,
}

/// How far a purchase is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Its toll is set aside; nothing was sent.
    Reserved,
    /// It was sent, or is about to be.
    Sent,
    /// The gateway charged for it.
    Posted,
    /// The gateway did not charge for it.
    Voided,
    /// Nobody knows; it counts as spent.
    Unknown,
}

impl State {
    /// Every one.
    pub const ALL: [Self; 5] =
        [Self::Reserved, Self::Sent, Self::Posted, Self::Voided, Self::Unknown];

    /// As the ledger writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Sent => "sent",
            Self::Posted => "posted",
            Self::Voided => "voided",
            Self::Unknown => "unknown",
        }
    }

    /// As users read it.
    pub const fn shown(self) -> &'static str {
        match self {
            Self::Reserved => "held",
            Self::Sent => "sent",
            Self::Posted => "charged",
            Self::Voided => "released",
            Self::Unknown => "unknown",
        }
    }
}

/// How a purchase ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Charged.
    Posted {
        /// What the gateway says that it cost.
        cost: Usd,
        /// What the same claim is answered with from now on; `None` where it could not be read.
        reply: Option<KeptReply>,
        /// For how long the reply is kept.
        keep: Duration,
        /// The job that a video's order became; it is written down in the same step.
        job: Option<Box<Job>>,
    },
    /// Not charged: the toll is given back and the key is free again.
    Voided,
    /// Nobody knows.
    Unknown,
}

/// A reply of the gateway, to be given again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptReply {
    /// The gateway's status.
    pub status: u16,
    /// Whether the body is JSON.
    pub is_json: bool,
    /// The body, unchanged.
    pub body: Bytes,
}

/// A purchase as reports see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name.
    pub id: PurchaseId,
    /// When its toll was set aside: wall-clock time since the Unix epoch.
    pub at: Duration,
    /// When it first ended, if only as unknown; `None` while it is under way.
    pub ended: Option<Duration>,
    /// Whose it is.
    pub caller: String,
    /// What was bought.
    pub service: Service,
    /// Of which model.
    pub model: String,
    /// What it cost, or was expected to.
    pub toll: Usd,
    /// How far it is.
    pub state: State,
}

/// What a caller spent on one day on one model, by what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spending {
    /// Who, as [`super::Caller`] is written.
    pub caller: String,
    /// The UTC day in which it counts: days since 1970-01-01.
    pub day: u64,
    /// What was bought.
    pub service: Service,
    /// Of which model.
    pub model: String,
    /// How many purchases.
    pub count: u64,
    /// What those that were charged cost.
    pub settled: Usd,
    /// The tolls of those of which nobody knows.
    pub unknown: Usd,
    /// The tolls of those that are under way.
    pub held: Usd,
}
