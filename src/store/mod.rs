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
mod broken;
mod budget;
mod caller;
mod entry;
mod handle;
mod job;
mod member;
pub mod memory;
mod period;
mod refusals;
mod room;
pub mod sqlite;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use audit::{Account, Audit, Checkpoint, Evidence, Recognise, SETTLES_WITHIN, Snapshot};
pub use binding::Binding;
pub use broken::Broken;
pub use caller::Caller;
pub use entry::{
    CallerSpending, Claim, Clock, Earlier, Ending, Identity, KeptReply, Limit, Limits, Money,
    OverBudget, PurchaseId, Refused, Reservation, Row, Scope, Service, Spending, Spent, State,
    Twin,
};
pub use handle::Store;
pub use job::{AccountLimit, Job, JobState, KeyId, Place, TakenPlace, Word};
pub use member::{LOOK_EVERY, Member, MemberFault, Members, Own, Role, Session, is_member_name};
pub use refusals::{Refusals, RefusedAs};
pub use room::Room;

/// What a verb answers, later.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The store cannot record anything right now: nothing may be bought.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the store is unavailable: {0}")]
pub struct Unavailable(pub Arc<str>);

/// The ledger: every purchase, from the moment its toll is set aside.
pub trait Ledger: Audit {
    /// Sets a toll aside, durably, against every budget, and claims the purchase's identity; or says
    /// what stands in the way. All of it is one step.
    fn reserve<'a>(&'a self, reservation: &'a Reservation) -> Answer<'a, Result<(), Refused>>;

    /// Marks a reserved purchase as about to be sent to this account; on return, a crash makes it unknown.
    fn sent(&self, id: PurchaseId, account: Account) -> Answer<'_, Result<(), Unavailable>>;

    /// Ends a purchase, and writes down the job that it became; on return, both are durable. Ending one that has ended already changes
    /// nothing, save that an `unknown` one may become `posted` or `voided`.
    fn settle(&self, id: PurchaseId, ending: Ending) -> Answer<'_, Result<(), Unavailable>>;

    /// [`settle`](Self::settle) without waiting, for tasks that are being dropped.
    fn settle_later(&self, id: PurchaseId, ending: Ending);

    /// The gateway's reply to a purchase; `None` if it is not kept, or not any more.
    fn reply(&self, id: PurchaseId) -> Answer<'_, Result<Option<KeptReply>, Unavailable>>;

    /// Notes, without waiting, that the caller took the reply to its end.
    fn delivered(&self, id: PurchaseId);

    /// Keeps, without waiting, what was answered to a purchase and cannot be read, for the operator and
    /// for a day. A store that ends with the process keeps nothing.
    fn keep_unread(&self, id: PurchaseId, body: Bytes);

    /// Forgets replies whose time has come.
    fn forget(&self) -> Answer<'_, Result<(), Unavailable>>;

    /// Purchases since a wall-clock time, oldest first, for reports.
    fn rows(&self, since: Duration) -> Answer<'_, Result<Vec<Row>, Unavailable>>;

    /// What a caller has spent by UTC day, service and model since a wall-clock time, in this order;
    /// what was voided counts nothing.
    fn spending(
        &self,
        caller: String,
        since: Duration,
    ) -> Answer<'_, Result<Vec<Spending>, Unavailable>>;

    /// What everybody has spent by caller, UTC day, service and model since a wall-clock time, in this
    /// order, at most `most` rows; what was voided counts nothing.
    fn spending_of_all(
        &self,
        since: Duration,
        most: usize,
    ) -> Answer<'_, Result<Vec<CallerSpending>, Unavailable>>;

    /// Purchases whose outcome nobody knows, the latest first, at most `most`.
    fn unknown(&self, most: usize) -> Answer<'_, Result<Vec<Row>, Unavailable>>;

    /// What a scope has spent, set aside or lost track of, in the current day and month.
    fn spent(&self, scope: Scope) -> Answer<'_, Result<Spent, Unavailable>>;
}

/// The log of what was sent to the gateway in the last day, and the limit that it told, so that a restart
/// does not forget the window.
pub trait WindowLog: Send + Sync + 'static {
    /// A place in the window is taken; on return, a crash does not forget it. `at` is wall-clock time.
    fn took(&self, place: Place, at: Duration) -> Answer<'_, Result<(), Unavailable>>;

    /// Notes, without waiting, that the reply or the failure came: the place is free one window later.
    fn replied(&self, place: Place, at: Duration);

    /// Notes, without waiting, that nothing was sent: the place is free at once.
    fn unsent(&self, place: Place);

    /// Keeps, without waiting, the rate limit that the gateway told last. It outlives power cuts.
    fn note_limit(&self, limit: AccountLimit);

    /// The last limit that was [noted](Self::note_limit).
    fn noted_limit(&self) -> Answer<'_, Result<Option<AccountLimit>, Unavailable>>;

    /// The places that were taken, or whose reply came, after `since`; what nobody knows the reply of
    /// counts as replied to when the store was opened (a crash), or just now (it is under way).
    fn places(&self, since: Duration) -> Answer<'_, Result<Vec<TakenPlace>, Unavailable>>;
}

/// The jobs that were ordered: whose they are, and the gateway's latest word on each.
pub trait JobBook: Send + Sync + 'static {
    /// Notes a job without its purchase; on return, a power cut does not forget it. One that is known stays as it is,
    /// and a word comes by [`heard`](Self::heard) alone.
    fn accept<'a>(&'a self, job: &'a Job) -> Answer<'a, Result<(), Unavailable>>;

    /// The gateway's latest word on a job. On one that has ended, or is not known, it changes nothing.
    fn heard(&self, request_id: Arc<str>, word: Word) -> Answer<'_, Result<(), Unavailable>>;

    /// One job.
    fn job(&self, request_id: Arc<str>) -> Answer<'_, Result<Option<Job>, Unavailable>>;

    /// All jobs that have not ended, oldest first.
    fn open_jobs(&self) -> Answer<'_, Result<Vec<Job>, Unavailable>>;

    /// A caller's latest jobs, newest first, at most `most`.
    fn jobs_of(&self, owner: Arc<str>, most: usize) -> Answer<'_, Result<Vec<Job>, Unavailable>>;

    /// Everybody's latest jobs, newest first, at most `most`.
    fn latest_jobs(&self, most: usize) -> Answer<'_, Result<Vec<Job>, Unavailable>>;

    /// How long finished jobs of a model took, the latest first, at most `most`.
    fn times(&self, model: Arc<str>, most: usize)
    -> Answer<'_, Result<Vec<Duration>, Unavailable>>;
}

/// All of it in one place.
pub trait Verbs: Ledger + WindowLog + JobBook + Members {}

impl<T: Ledger + WindowLog + JobBook + Members> Verbs for T {}
