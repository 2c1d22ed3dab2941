//! What the store holds, and what its verbs take and answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{OwnBudget, Unavailable};
use crate::clock;
use crate::contract::money::Usd;

/// A purchase's name in the ledger: a UUIDv7, so that rows sort by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PurchaseId(pub Uuid);

impl PurchaseId {
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
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MoneyKind {
    Play,
    Real,
}

impl MoneyKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Play => "play",
            Self::Real => "real",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    Chat,
    Video,
    /// An endpoint of `gateway.passthrough`.
    Other,
}

impl Service {
    pub const ALL: [Self; 3] = [Self::Chat, Self::Video, Self::Other];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Video => "video",
            Self::Other => "other",
        }
    }
}

/// 32 bytes that stand for a longer text: a BLAKE3 hash.
pub type Digest = [u8; 32];

/// How a purchase may turn out to be one that was made already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DedupeKey {
    /// The caller gave an `Idempotency-Key`: it is this purchase and no other.
    IdempotencyKey {
        /// Hash of the key with its scope (caller, route).
        key: Digest,
        /// Hash of the canonical payload.
        payload: Digest,
    },
    /// No key: it may be the repeat of an identical purchase of the same caller.
    Fingerprint(DuplicateCheck),
}

/// How a purchase without a key is recognised as a repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicateCheck {
    /// Hash of caller, route and canonical payload.
    pub fingerprint: Digest,
    /// An identical one that ended longer ago is another purchase.
    pub within: Duration,
    /// So is one that ended so much later than now: it ended under a clock that was ahead.
    pub clock_skew: Duration,
    /// A reply that was delivered is repeated only if its purchase ended at this time or later, as
    /// [`RecentRefusals::last`](super::RecentRefusals::last) says; `None` if the client does not say that it is sending again.
    pub delivered_since: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct Reservation {
    pub id: PurchaseId,
    /// Whose budget it goes against, as [`super::Caller`] is written.
    pub caller: String,
    pub service: Service,
    pub model: Box<str>,
    /// What it costs, as far as we know.
    pub price: Usd,
    pub dedupe_key: DedupeKey,
    pub budgets: Budgets,
    /// Nothing is set aside: it is either recognised as a repeat, or refused.
    pub replay_only: bool,
}

impl Reservation {
    /// Whether it is worth waiting for the disk: at least ten cents.
    pub fn needs_sync(&self) -> bool {
        self.price >= SYNC_THRESHOLD
    }
}

/// From here on, a purchase is worth waiting for the disk.
pub(super) const SYNC_THRESHOLD: Usd = Usd::mills(100);

/// What may be spent on a purchase: the budgets, per UTC day and month (`None` is no limit), and the balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    pub total_day: Option<Usd>,
    pub total_month: Option<Usd>,
    pub caller_day: Option<Usd>,
    pub caller_month: Option<Usd>,
    /// What of the account's balance is never sold.
    pub balance_floor: Usd,
}

impl Budgets {
    /// The same, where the caller has a budget of its own besides: both hold.
    pub fn intersect(self, own: OwnBudget) -> Self {
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

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BudgetScope {
    Total,
    /// One caller, as [`super::Caller`] is written.
    Caller(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetKind {
    TotalDay,
    TotalMonth,
    CallerDay,
    CallerMonth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverBudget {
    /// Which one; where several do not, the one that renews last.
    pub kind: BudgetKind,
    /// Its amount.
    pub budget: Usd,
    /// What of it is left.
    pub remaining: Usd,
    /// When it renews: wall-clock time since the Unix epoch.
    pub renews_at: Duration,
}

/// What a scope has spent in the current periods: charged, held, and unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeriodSpend {
    /// This UTC day.
    pub day: Usd,
    /// This UTC month.
    pub month: Usd,
    /// When the day's budgets renew: wall-clock time since the Unix epoch.
    pub day_renews_at: Duration,
    /// When the month's budgets renew.
    pub month_renews_at: Duration,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ReserveError {
    #[error("it is known already")]
    Duplicate(ExistingPurchase),
    #[error("the key was used with another payload")]
    KeyReused,
    #[error("it repeats no purchase that is known")]
    NothingToReplay,
    #[error("a budget does not cover it")]
    OverBudget(OverBudget),
    #[error("the balance does not cover it")]
    InsufficientCredit,
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// A moment in the account's spending. Taken before the gateway is asked, it says what its answer has
/// certainly counted: all that had ended by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CreditWatermark(pub(super) u64);

impl CreditWatermark {
    /// The same, once a purchase of this cost is in the answer, too.
    #[must_use]
    pub fn including(self, cost: Usd) -> Self {
        Self(self.0.saturating_add(cost.as_micros()))
    }
}

/// What is left to be sold against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemainingCredit {
    /// The last known balance, less what was held or spent since.
    pub amount: Usd,
    /// When the gateway said so: wall-clock time since the Unix epoch.
    pub as_of: Duration,
}

/// A purchase that is the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingPurchase {
    pub id: PurchaseId,
    pub state: PurchaseState,
    pub cost: Usd,
    /// How many bytes the gateway's reply has, if the purchase is charged and the reply is still kept.
    pub reply_bytes: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PurchaseState {
    /// Its price is held; nothing was sent.
    Held,
    /// It was sent, or is about to be.
    Sent,
    /// The gateway charged for it.
    Charged,
    /// The gateway did not charge for it; the hold is released.
    Released,
    /// The outcome is unknown; it counts as spent.
    Unknown,
}

impl PurchaseState {
    pub const ALL: [Self; 5] =
        [Self::Held, Self::Sent, Self::Charged, Self::Released, Self::Unknown];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Sent => "sent",
            Self::Charged => "charged",
            Self::Released => "released",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    Charged {
        /// What the gateway says that it cost.
        cost: Usd,
        /// What the same claim is answered with from now on; `None` where it could not be read.
        reply: Option<KeptReply>,
        keep: Duration,
        /// The job that a video's order became; it is written down in the same step.
        job: Option<Box<Job>>,
    },
    /// Not charged: the hold is released and the key is free again.
    Released,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptReply {
    pub status: u16,
    pub is_json: bool,
    pub body: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurchaseRecord {
    pub id: PurchaseId,
    /// When its price was held: wall-clock time since the Unix epoch.
    pub at: Duration,
    /// When it first ended, if only as unknown; `None` while it is under way.
    pub ended_at: Option<Duration>,
    pub caller: String,
    pub service: Service,
    pub model: String,
    pub price: Usd,
    pub state: PurchaseState,
}

/// What a caller spent on one day on one model, by what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpendRow {
    /// Who, as [`super::Caller`] is written.
    pub caller: String,
    /// The UTC day in which it counts: days since 1970-01-01.
    pub day: u64,
    pub service: Service,
    pub model: String,
    pub count: u64,
    pub charged: Usd,
    pub unknown: Usd,
    pub held: Usd,
}

/// How much a store may hold; where it is full, the replies whose time comes next go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreCapacity {
    pub replies: usize,
    pub reply_bytes: usize,
    /// Purchases that a store in memory remembers after their end.
    pub ended_purchases: usize,
    /// Pages of 4 KiB that a store on disk may take; `None` is as much as the disk has.
    pub pages: Option<u32>,
}

impl Default for StoreCapacity {
    /// A week of replies at 60 a minute is 604,800 of them; before that, their bytes bound them.
    fn default() -> Self {
        Self { replies: 1_000_000, reply_bytes: 512 << 20, ended_purchases: 250_000, pages: None }
    }
}

/// How long after its end a purchase may still be missing from the gateway's counters: from when the
/// wait for its reply ended. Guess: the contract names no deadline. Releasing a purchase frees its key,
/// so this is long.
pub const SETTLES_WITHIN: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// When the gateway was asked: wall-clock time since the Unix epoch.
    pub at: Duration,
    pub balance_cents: u64,
    pub chats: u64,
    pub chat_cents: u64,
    pub spent_cents: u64,
}

/// A snapshot with its place among the purchases. Purchases are numbered in the order in which they
/// begin; numbers, unlike times, never go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    pub snapshot: Snapshot,
    /// Every purchase up to this number had ended at least [`SETTLES_WITHIN`] before the snapshot: the
    /// snapshot counts what was charged for it.
    pub settled_through: u64,
    /// The last purchase that had begun. The snapshot counts none after it; between the two numbers,
    /// nobody knows.
    pub last_number: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    pub purchase: PurchaseRecord,
    /// Its place in the order in which purchases began, from 1 on.
    pub number: u64,
    /// It counts as charged because reconciliation or the operator says so: no reply was read.
    pub is_assumed: bool,
    /// Whether it was sent to this ledger's account for certain; see [`AccountStatus`].
    pub is_account_confirmed: bool,
    pub job: Option<JobState>,
}

/// Whose account a purchase is sent to. It is fixed when the purchase is sent, and outlives restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountStatus {
    /// The ledger's: the gateway has listed the account's keys since they last changed here.
    Confirmed,
    /// Unknown. The purchase may have been charged to another account, so this account's counters neither
    /// prove nor disprove the charge.
    Unconfirmed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountCheck {
    /// Compare them with the noted ones, and write nothing.
    Compare,
    /// Compare them, and note all of them if the account is the same. If they are another account's,
    /// earlier checkpoints are no longer used: that account may have been charged for purchases since.
    /// The noted rate limit is forgotten, as that account may have told it.
    Record,
    /// If they are another account's, give the ledger to that account: earlier ids become history, and
    /// earlier checkpoints are no longer used.
    Adopt,
}

/// How long the log of the window reaches back; no window is longer.
pub(super) const SLOT_RETENTION: Duration = Duration::from_secs(86_400);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub Uuid);

impl SlotId {
    /// A new one; later ones are greater.
    #[must_use]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl Default for SlotId {
    fn default() -> Self {
        Self::new()
    }
}

/// The account's rate limit as the gateway told it (contract 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountLimit {
    pub requests: u64,
    pub window_seconds: u64,
}

/// Which key of the account made a job: a hash of the key, so that it can be told among the keys of a
/// later ring and tells nothing itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId(pub [u8; 8]);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The gateway's name for it (contract 2.5).
    pub request_id: Arc<str>,
    pub purchase: Option<PurchaseId>,
    /// Whose it is, as [`super::Caller`] is written.
    pub owner: Arc<str>,
    pub key: Option<KeyId>,
    pub model: Arc<str>,
    pub price: Usd,
    /// When it was accepted: wall-clock time since the Unix epoch.
    pub at: Duration,
    pub latest_update: Option<StatusUpdate>,
}

impl Job {
    pub fn is_open(&self) -> bool {
        self.latest_update.as_ref().is_none_or(|word| word.state == JobState::Open)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusUpdate {
    /// When: wall-clock time since the Unix epoch.
    pub at: Duration,
    pub body: Bytes,
    /// What the words of `[jobs]` make of it.
    pub state: JobState,
}

/// Where a job is, as far as its status body can be read (see `jobs::status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobState {
    /// Not at an end that we know.
    Open,
    Finished,
    Failed,
}

impl JobState {
    pub const ALL: [Self; 3] = [Self::Open, Self::Finished, Self::Failed];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Finished => "finished",
            Self::Failed => "failed",
        }
    }
}
