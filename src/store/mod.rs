//! State that must survive a restart, or be shared by many instances.
//!
//! The verbs are those of the business, never get/set: each is one atomic step in the backend, so
//! that no caller can race with another. What a purchase goes through:
//!
//! ```text
//! reserve ─► reserved ─► sent ─► posted     the gateway charged for it
//!                │         ├───► voided     it provably did not: the toll is given back
//!                │         └───► unknown    nobody knows: it counts as spent until it is reconciled
//!                └─────────────► voided     it was never sent
//! ```
//! `reserved` is durable before the first byte goes to the gateway; the end is durable before the
//! first byte goes back to the caller. After a crash, what was `reserved` is voided and what was
//! `sent` is unknown.

mod audit;
mod binding;
mod caller;
mod job;
mod member;
mod model;
mod refusals;
mod room;
mod rules;
pub mod sqlite;

use std::sync::Arc;

pub use audit::{Account, Checkpoint, Evidence, Recognise, SETTLES_WITHIN, Snapshot};
pub use binding::Binding;
pub use caller::Caller;
pub use job::{AccountLimit, Job, JobState, KeyId, Place, Word};
pub use member::{
    LOOK_EVERY, Member, MemberChange, MemberFault, Own, Role, Session, is_member_name,
};
pub use model::{
    Claim, Clock, CreditMark, Earlier, Ending, Identity, KeptReply, Left, Limit, Limits, Money,
    OverBudget, PurchaseId, Refused, Reservation, Row, Scope, Service, Spending, Spent, State,
    Twin,
};
pub use refusals::{Refusals, RefusedAs};
pub use room::Room;
pub use sqlite::{Answer, Holder, OpenError, Opening, Store, Tap, Verb};

/// The store cannot record anything right now: nothing may be bought.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the store is unavailable: {0}")]
pub struct Unavailable(pub Arc<str>);
