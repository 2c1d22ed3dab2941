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

pub use binding::Binding;
pub use member::{
    Caller, LOOK_EVERY, Member, MemberChange, MemberFault, Own, Refusals, RefusedAs, Role, Session,
    is_member_name,
};
pub use model::{
    Account, AccountLimit, Checkpoint, Claim, Clock, CreditMark, DuplicateCheck, Earlier, Ending,
    Evidence, Identity, Job, JobState, KeptReply, KeyId, Left, Limit, Limits, Money, OverBudget,
    Place, PurchaseId, Recognise, Refused, Reservation, Room, Row, SETTLES_WITHIN, Scope, Service,
    Snapshot, Spending, Spent, State, Word,
};
pub use sqlite::{Answer, Holder, OpenError, Opening, Store, Tap, Verb};

/// The store cannot record anything right now: nothing may be bought.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the store is unavailable: {0}")]
pub struct Unavailable(pub Arc<str>);
