//! State that must survive a restart, or be shared by many instances.
//!
//! The verbs are those of the business, never get/set: each is one atomic step in the backend, so
//! that no caller can race with another. What a purchase goes through:
//!
//! ```text
//! reserve ─► held ─► sent ─► charged     the gateway charged for it
//!             │       ├────► released    it provably did not: the hold is released
//!             │       └────► unknown     the outcome is unknown: it counts as spent until it is reconciled
//!             └────────────► released    it was never sent
//! ```
//! `held` is durable before the first byte goes to the gateway; the end is durable before the
//! first byte goes back to the caller. After a crash, what was `held` is released and what was
//! `sent` is unknown.

mod binding;
mod member;
mod model;
mod rules;
pub mod sqlite;

use std::sync::Arc;

pub use binding::AccountBinding;
pub use member::{
    Caller, LoginSession, Member, MemberChange, MemberError, OwnBudget, RecentRefusals, RefusalKey,
    Role, VERSION_POLL_INTERVAL, is_member_name,
};
pub use model::{
    AccountCheck, AccountLimit, AccountStatus, BudgetKind, BudgetScope, Budgets, Checkpoint, Clock,
    CreditWatermark, DedupeKey, Digest, DuplicateCheck, Evidence, ExistingPurchase, Job, JobState,
    KeptReply, KeyId, MoneyKind, OverBudget, PeriodSpend, PurchaseId, PurchaseRecord,
    PurchaseState, RemainingCredit, Reservation, ReserveError, SETTLES_WITHIN, Service, Settlement,
    SlotId, Snapshot, SpendRow, StatusUpdate, StoreCapacity,
};
pub use sqlite::{HookFuture, LockHolder, OpenError, Opening, Store, StoreHook, StoreOp};

/// The store cannot record anything right now: nothing may be bought.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the store is unavailable: {0}")]
pub struct Unavailable(pub Arc<str>);
