//! The values that the store keeps, takes and returns.
//!
//! Fields named `at` or `…_at` are wall-clock times since the Unix epoch.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Budgets, Job, JobState, OverBudget, Unavailable};
use crate::clock;
pub use crate::gateway::contract::catalog::Service;
use crate::gateway::contract::money::Usd;

/// Identifies a purchase. It is a UUIDv7, so ids sort by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PurchaseId(pub Uuid);

impl PurchaseId {
    pub fn generate() -> Self {
        let wall = clock::wall();
        let stamp =
            uuid::Timestamp::from_unix(uuid::NoContext, wall.as_secs(), wall.subsec_nanos());
        Self(Uuid::new_v7(stamp))
    }
}

impl fmt::Display for PurchaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns the wall-clock time since the Unix epoch. Tests pass their own.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Defines an enum whose variants have a name each, as the ledger and reports write it.
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident { $($variant:ident = $name:literal),+ $(,)? }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type { $($variant),+ }

        impl $type {
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}
pub(super) use named_enum;

named_enum! {
    pub enum MoneyKind {
        Play = "play",
        Real = "real",
    }
}

/// The servers that share a ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstanceCounts {
    pub alive: u64,
    /// The servers that were not seen for half a minute.
    pub late: u64,
}

/// A BLAKE3 hash.
pub type Digest = [u8; 32];

/// How a purchase is matched with an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DedupeKey {
    IdempotencyKey {
        key: Digest,
        payload: Digest,
    },
    /// A purchase with any of the keys is the same. It is recorded with the first.
    Quote {
        key: Digest,
        others: Arc<[Digest]>,
        payload: Digest,
    },
    Fingerprint(DuplicateCheck),
}

/// How a purchase without a key is matched with an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicateCheck {
    /// Hash of caller, route and canonical payload.
    pub fingerprint: Digest,
    /// How long after its end an identical purchase still counts as the same.
    pub within: Duration,
    /// The digests by which the request may have been refused, if the client says that it retries. A
    /// delivered reply is replayed only if its purchase ended after the last refusal.
    pub refused_as: Option<Vec<Digest>>,
    /// The identical purchases that other clients wait for, if this client says that it does not retry.
    /// They match only if their outcome is unknown.
    pub separate_from: Vec<PurchaseId>,
}

#[derive(Clone, Debug)]
pub struct Reservation {
    pub id: PurchaseId,
    pub caller: Arc<str>,
    /// The caller's group now. It keeps the purchase if the caller moves to another one.
    pub group: Option<Arc<str>>,
    /// The caller's token, by its name in the ledger, if it has a budget of its own.
    pub token: Option<Arc<str>>,
    pub service: Service,
    pub model: Cow<'static, str>,
    pub price: Usd,
    pub dedupe_key: DedupeKey,
    pub budgets: Budgets,
    /// The number of the attempt with the key, from 0. A lookup is at least 1.
    pub attempt: u32,
    /// Holds nothing: returns the earlier purchase or an error.
    pub replay_only: bool,
    pub requires: Precondition,
}

/// Facts about the ledger that a purchase relies on. If one no longer holds, a shared ledger has lost
/// purchases, perhaps the same one, and holds nothing. A ledger in a file loses none while it is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Precondition {
    /// The public name.
    pub name: Option<Arc<str>>,
    /// An earlier purchase that this one has waited for. The ledger has it, however it ended.
    pub earlier: Option<PurchaseId>,
    /// The challenge whose proof of work pays for it. No other purchase that holds or charges something has it.
    pub challenge: Option<Digest>,
}

/// Spending that a restored ledger lacks. The account's balance includes it already.
#[derive(Clone, Debug)]
pub struct MissingSpend {
    pub id: PurchaseId,
    pub caller: &'static str,
    pub model: &'static str,
    pub amount: Usd,
}

/// How long a running purchase may take in a ledger that servers share. Then others end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From its hold until it is recorded as sent.
    pub held: Duration,
    /// From then until its end.
    pub sent: Duration,
}

/// A price that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// For a balance that comes with the reply.
    pub watermark: CreditWatermark,
    /// Whether it is also recorded as sent, with its slot. Otherwise both are still to be recorded.
    pub is_sent: bool,
}

/// From this price on, a purchase is synced to disk.
pub(super) const SYNC_THRESHOLD: Usd = Usd::mills(100);

#[derive(Clone, Debug, thiserror::Error)]
pub enum ReserveError {
    #[error("the purchase is a duplicate")]
    Duplicate(ExistingPurchase),
    #[error("the key was used with another payload")]
    KeyReused,
    #[error("there is no purchase to replay")]
    NothingToReplay,
    #[error("a later attempt with the key came first")]
    Superseded,
    #[error("the ledger may have lost the purchase")]
    LedgerChanged,
    #[error("a budget does not cover the purchase")]
    OverBudget(OverBudget),
    #[error("the balance does not cover the purchase")]
    InsufficientCredit,
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// A point in the account's spending.
///
/// If it is taken before the gateway is asked for the balance, the answer includes everything that
/// had ended by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CreditWatermark(pub(super) u64);

impl CreditWatermark {
    #[must_use]
    pub fn including(self, cost: Usd) -> Self {
        Self(self.0.saturating_add(cost.as_micros()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemainingCredit {
    /// The last known balance, less what was held or spent since.
    pub amount: Usd,
    pub as_of: Duration,
}

/// The earlier purchase that a duplicate matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingPurchase {
    pub id: PurchaseId,
    pub state: PurchaseState,
    pub cost: Usd,
    pub reply: EarlierReply,
}

/// The reply of an earlier purchase. A small one may be read in the step that finds the purchase,
/// which saves its duplicates a second step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EarlierReply {
    NotKept,
    Kept { bytes: usize },
    Read(KeptReply),
}

named_enum! {
    pub enum PurchaseState {
        Held = "held",
        Sent = "sent",
        Charged = "charged",
        Released = "released",
        Unknown = "unknown",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    Charged {
        cost: Usd,
        /// The reply for retries; `None` if it could not be parsed.
        reply: Option<KeptReply>,
        keep: Duration,
        job: Option<Box<Job>>,
    },
    /// Not charged: the hold is released, and the key can be used again.
    Released,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptReply {
    pub status: u16,
    pub is_json: bool,
    pub body: Bytes,
}

/// An admin's change that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeNote {
    pub payload: Digest,
    /// `None` until it was made.
    pub answer: Option<Bytes>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurchaseRecord {
    pub id: PurchaseId,
    pub at: Duration,
    /// When it first ended, even as unknown; `None` while it is running.
    pub ended_at: Option<Duration>,
    pub caller: String,
    pub service: Service,
    pub model: String,
    pub price: Usd,
    pub state: PurchaseState,
}

impl PurchaseRecord {
    /// Returns how it is settled once a person has found out its outcome, and what the audit log says then.
    pub fn resolution(&self, was_charged: bool, keep: Duration) -> (Settlement, String) {
        let (state, settlement) = if was_charged {
            let cost = self.price;
            (PurchaseState::Charged, Settlement::Charged { cost, reply: None, keep, job: None })
        } else {
            (PurchaseState::Released, Settlement::Released)
        };
        let (state, service, price) = (state.name(), self.service.name(), self.price.short());
        let model = self.model.replace(char::is_control, "");
        (settlement, format!("{state}: {}, {service} {model}, {price}", self.id))
    }
}

/// The purchases and jobs that are still open, and the size of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerTotals {
    /// Purchases with unknown outcome, and the sum of their prices.
    pub unknown: u64,
    pub unknown_price: Usd,
    pub open_jobs: u64,
    /// When the oldest open job was accepted.
    pub oldest_job_at: Option<Duration>,
    /// The size of the file and its write-ahead log; `None` in memory.
    pub bytes: Option<u64>,
}

/// How many seconds a time zone is ahead of UTC: at first, and since each change. The default is UTC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneOffsets {
    pub first: i64,
    /// Wall-clock times since the Unix epoch, the earliest first.
    pub changes: Vec<(Duration, i64)>,
}

/// The purchases of a caller in a group of one model in one local day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpendRow {
    pub caller: String,
    /// The caller's group at the time.
    pub group: Option<String>,
    /// Days since 1970-01-01.
    pub day: u64,
    pub service: Service,
    pub model: String,
    pub count: u64,
    pub charged: Usd,
    pub unknown: Usd,
    pub held: Usd,
    /// The cost that kept replies saved their duplicates.
    pub saved: Usd,
}

/// How much the store may hold. When it is full, the replies that expire next are deleted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreCapacity {
    pub replies: usize,
    pub reply_bytes: usize,
    pub ended_purchases: usize,
    /// Pages of 4 KiB in the file; `None` is unlimited.
    pub pages: Option<u32>,
}

impl Default for StoreCapacity {
    /// Room for a week of replies at 60 a minute (604,800); usually their bytes are the limit.
    fn default() -> Self {
        Self { replies: 1_000_000, reply_bytes: 512 << 20, ended_purchases: 250_000, pages: None }
    }
}

/// How long after its end a purchase may still be missing from the gateway's counters.
///
/// This is an assumption: the contract names no deadline. It is long because releasing a purchase
/// frees its key.
pub const SETTLES_WITHIN: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub at: Duration,
    /// Below zero if the account is in debt.
    pub balance_cents: i64,
    pub chats: u64,
    pub chat_cents: u64,
    pub spent_cents: u64,
}

/// A snapshot of the gateway's counters, and which purchases it covers.
///
/// Purchases are numbered in the order in which they begin. Unlike times, numbers never go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    pub snapshot: Snapshot,
    /// Every purchase up to this number ended at least [`SETTLES_WITHIN`] before the snapshot, so
    /// the snapshot includes its charge.
    pub settled_through: u64,
    /// The last purchase that had begun. The snapshot includes none after it, and may or may not
    /// include those between the two numbers.
    pub last_number: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    pub purchase: PurchaseRecord,
    /// Its position in the order in which purchases began, from 1.
    pub number: u64,
    /// Charged by reconciliation or by the operator, without a reply.
    pub is_assumed: bool,
    /// Whether it was certainly sent to this ledger's account; see [`AccountStatus`].
    pub is_account_confirmed: bool,
    pub job: Option<JobState>,
}

/// Whether the gateway's account is known to be the ledger's when a purchase is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountStatus {
    /// The gateway has listed the account's keys since they last changed here.
    Confirmed,
    /// The purchase may have been charged to another account, so this account's counters neither
    /// prove nor disprove the charge.
    Unconfirmed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountCheck {
    /// Compares the key ids with the recorded ones, and writes nothing.
    Compare,
    /// Also records them if the account is the same.
    Record,
    /// Gives the ledger to the account if it is another one. Earlier key ids become history, and
    /// earlier checkpoints are dropped.
    Adopt,
}

/// How long sent requests are remembered. No rate limit has a longer period.
pub(super) const SLOT_RETENTION: Duration = Duration::from_secs(86_400);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub Uuid);

impl SlotId {
    /// Returns a new id, which sorts after earlier ones.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }
}

/// A number of requests in any interval of one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRate {
    pub requests: u64,
    pub period: Duration,
}

/// The rate that an instance keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimit {
    /// Overrides the one that the gateway has reported.
    pub fixed: Option<SlotRate>,
    /// Applies until the gateway has reported one.
    pub assumed: SlotRate,
}

/// A slot that a purchase takes in the step that holds its price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedSlot {
    pub id: SlotId,
    /// A ledger that servers share takes the slot only if one is free under this limit.
    pub limit: SlotLimit,
}

/// The answer to a request for a slot that all servers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotAnswer {
    pub is_taken: bool,
    /// When the next slot comes free by itself; `None` while no taken slot has a reply.
    pub next_free_in: Option<Duration>,
    /// The limit that the gateway reported last, to any server.
    pub reported: Option<AccountLimit>,
}

/// The account's rate limit as the gateway reports it (contract 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountLimit {
    pub requests: u64,
    pub window_seconds: u64,
}
