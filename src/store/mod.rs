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

mod broken;
mod budget;
mod caller;
mod entry;
pub mod memory;
mod period;
mod room;
pub mod sqlite;

use std::pin::Pin;
use std::sync::Arc;

pub use broken::Broken;
pub use caller::Caller;
pub use entry::{
    Checkpoint, Claim, Clock, Earlier, Ending, Identity, KeptReply, Limit, Limits, Money,
    OverBudget, PurchaseId, Refused, Reservation, Row, Scope, Service, Spent, State, Twin,
};
pub use room::Room;

/// What a verb answers, later.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The store cannot record anything right now: nothing may be bought.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the store is unavailable: {0}")]
pub struct Unavailable(pub Arc<str>);

/// The ledger: every purchase, from the moment its toll is set aside.
pub trait Ledger: Send + Sync + 'static {
    /// Sets a toll aside, durably, against every budget, and claims the purchase's identity; or says
    /// what stands in the way. All of it is one step.
    fn reserve<'a>(&'a self, reservation: &'a Reservation) -> Answer<'a, Result<(), Refused>>;

    /// Marks a reserved purchase as about to be sent; on return, a crash makes it unknown.
    fn sent(&self, id: PurchaseId) -> Answer<'_, Result<(), Unavailable>>;

    /// Ends a purchase; on return, the end is durable. Ending one that has ended already changes
    /// nothing, save that an `unknown` one may become `posted` or `voided`.
    fn settle(&self, id: PurchaseId, ending: Ending) -> Answer<'_, Result<(), Unavailable>>;

    /// [`settle`](Self::settle) without waiting, for tasks that are being dropped.
    fn settle_later(&self, id: PurchaseId, ending: Ending);

    /// Notes, without waiting, that the caller took the reply to its end.
    fn delivered(&self, id: PurchaseId);

    /// Forgets replies whose time has come.
    fn forget(&self) -> Answer<'_, Result<(), Unavailable>>;

    /// Purchases since a wall-clock time, oldest first, for reports.
    fn rows(&self, since: std::time::Duration) -> Answer<'_, Result<Vec<Row>, Unavailable>>;

    /// What a scope has spent, set aside or lost track of, in the current day and month.
    fn spent(&self, scope: Scope) -> Answer<'_, Result<Spent, Unavailable>>;

    /// Notes what the gateway's books say, if nothing is under way; `false` where something is.
    fn check(&self, books: Checkpoint) -> Answer<'_, Result<bool, Unavailable>>;

    /// The latest such note.
    fn last_check(&self) -> Answer<'_, Result<Option<Checkpoint>, Unavailable>>;
}
