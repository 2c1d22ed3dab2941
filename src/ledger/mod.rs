//! The ledger: purchases, jobs, members, and what was sent to the gateway.
//!
//! Each operation is one atomic step, so callers cannot race. A purchase goes through these states:
//!
//! ```text
//! reserve ─► held ─► sent ─► charged     the gateway charged for it
//!              │       ├───► released    the gateway did not charge for it, or no byte was written
//!              │       └───► unknown     counts as spent until it is reconciled
//!              └───────────► released    it was never sent
//! ```
//! A hold is durable before the first byte goes to the gateway. The end is durable before the first
//! byte goes back to the caller. If a slot is free, the purchase is held and sent in one step.

mod audit_log;
mod binding;
mod budgets;
pub mod configured;
#[cfg(feature = "postgres")]
pub mod copy;
mod engine;
mod handle;
mod job;
mod link;
mod member;
mod model;
mod name;
mod outbox;
#[cfg(feature = "postgres")]
pub mod postgres;
mod reason;
mod rules;
mod schema;
mod shared;
pub mod sqlite;
mod subject;
mod tables;
mod writer;

pub use crate::gateway::contract::member::{Role, is_member_name};
pub use crate::gateway::contract::money::{Period, SpendLimit, Thresholds};
pub use crate::gateway::contract::selection::Selection;
pub use crate::gateway::contract::terms::{LimitChange, MemberTerms, TermsChange};
pub use audit_log::{Actor, AuditEntry, AuditQuery};
pub use binding::AccountBinding;
pub use budgets::{
    BudgetRequest, BudgetScope, Budgets, Extra, Group, GroupChange, GroupError, KeptLimit,
    OverBudget, PeriodSpend, ScopeKind,
};
pub use handle::{HookFuture, Store, StoreHook, StoreOp};
pub use job::{Job, JobNews, JobState, KeyId, PolledJobs, StatusUpdate};
pub use link::{Link, LinkEnd};
pub use member::{
    Caller, LoginSession, Member, MemberChange, MemberError, SecretRecord, VERSION_POLL_INTERVAL,
};
pub use model::{
    AccountCheck, AccountLimit, AccountStatus, ChangeNote, Checkpoint, Clock, CreditWatermark,
    Deadlines, DedupeKey, Digest, DuplicateCheck, EarlierReply, Evidence, ExistingPurchase, Held,
    InstanceCounts, KeptReply, LedgerTotals, MissingSpend, MoneyKind, Precondition, PurchaseId,
    PurchaseRecord, PurchaseState, RemainingCredit, Reservation, ReserveError, SETTLES_WITHIN,
    Service, Settlement, SlotAnswer, SlotId, SlotLimit, SlotRate, Snapshot, SpendRow,
    StoreCapacity, WantedSlot, ZoneOffsets,
};
pub use outbox::{Alert, OutboxEvent, Subscription, WebhookId};
pub use reason::{Cause, Reason};
pub use sqlite::{Backup, LockHolder, OpenError, Opening, ServerOptions, host_name};
pub use subject::{
    MAX_TOKENS_PER_SUBJECT, Subject, SubjectLogin, SubjectTerms, SubjectToken, TokenRefusal,
};

/// Why a ledger is refused whose gateway takes the other kind of money.
pub const OTHER_MONEY: &str =
    "it holds the other kind of money; use separate ledgers for play money and real money";

/// The store cannot record anything now, so nothing may be bought.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the store is unavailable: {0}")]
pub struct Unavailable(pub Reason);
