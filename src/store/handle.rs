//! The handle that the rest of the program uses: one interface over the backends.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "postgres")]
use super::postgres::PostgresTarget;
use super::sqlite::SqliteStore;
use super::{
    Backup, Clock, InstanceCounts, LockHolder, MoneyKind, OpenError, Opening, PurchaseId, Reason,
    Reservation, ReserveError, Settlement, SlotAnswer, SlotId, StoreCapacity, Unavailable,
    WantedSlot,
};
use crate::metrics::{Histogram, SharedLedgerMetrics};

/// The ledger of a server. Clones share it.
///
/// Dropping the last clone waits until everything that is queued was written.
#[derive(Clone)]
pub struct Store {
    pub(super) backend: SqliteStore,
    hook: Option<Arc<dyn StoreHook>>,
}

#[derive(Clone, Copy, Debug)]
pub enum StoreOp<'a> {
    Reserve(&'a Reservation),
    ReserveAndSend(&'a Reservation, SlotId),
    MarkSent(PurchaseId),
    Settle(PurchaseId, &'a Settlement),
    SettleLater(PurchaseId, &'a Settlement),
    MarkDelivered(PurchaseId),
    TakeSlot(SlotId),
    SlotReplied(SlotId),
    ReleaseSlot(SlotId),
    Other(&'static str),
}

pub type HookFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Lets a test delay, refuse, watch or break operations.
pub trait StoreHook: Send + Sync + 'static {
    fn before<'a>(&'a self, op: StoreOp<'a>) -> HookFuture<'a, Result<(), Unavailable>>;

    fn after<'a>(
        &'a self,
        op: StoreOp<'a>,
        outcome: &'a Result<(), ReserveError>,
    ) -> HookFuture<'a, ()>;

    /// Returns whether an operation without a reply reaches the store.
    fn allows(&self, op: StoreOp<'_>) -> bool;

    /// Returns whether a reservation may take a slot in the same step. If not, it only holds.
    fn has_slot(&self) -> bool {
        true
    }
}

/// Opens a store in memory or in a file.
impl Store {
    pub fn in_memory(clock: Clock) -> Self {
        Self::in_memory_with_capacity(clock, StoreCapacity::default())
    }

    #[doc(hidden)]
    pub fn in_memory_with_capacity(clock: Clock, capacity: StoreCapacity) -> Self {
        SqliteStore::in_memory(clock, capacity).into()
    }

    /// Returns a store whose operations all fail with this reason.
    pub fn unusable(reason: impl Into<Reason>) -> Self {
        SqliteStore::unusable(reason).into()
    }

    /// Opens a file to sell from, and creates it if there is none. The lock `<path>.lock` admits
    /// one process.
    ///
    /// After a crash, running purchases end: unsent ones are released, sent ones become unknown.
    #[doc(hidden)]
    pub fn serve(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        Self::serve_with(path, clock, StoreCapacity::default(), None)
    }

    /// Runs operations on the caller's thread, so that paused time stands still.
    #[doc(hidden)]
    pub fn serve_inline(
        path: &Path,
        clock: Clock,
        capacity: StoreCapacity,
    ) -> Result<Self, OpenError> {
        SqliteStore::serve_inline(path, clock, capacity).map(Self::from)
    }

    #[doc(hidden)]
    pub fn serve_with(
        path: &Path,
        clock: Clock,
        capacity: StoreCapacity,
        money: Option<MoneyKind>,
    ) -> Result<Self, OpenError> {
        SqliteStore::serve_with(path, clock, capacity, money).map(Self::from)
    }

    /// Opens a file on a thread of its own, and waits at most `wait` for a server that has it.
    pub async fn start_serving(
        path: &Path,
        clock: Clock,
        money: MoneyKind,
        (admin, wait): (Option<SocketAddr>, Duration),
    ) -> Result<(Self, Opening), OpenError> {
        let holding = (admin, wait);
        let (store, opening) = SqliteStore::start_serving(path, clock, money, holding).await?;
        Ok((store.into(), opening))
    }

    /// Opens a file to write in it next to a server.
    pub fn open_shared(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        SqliteStore::open_shared(path, clock).map(Self::from)
    }

    pub fn open_read_only(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        SqliteStore::open_read_only(path, clock).map(Self::from)
    }

    /// Opens a ledger to write in it while no server has it, and keeps servers out until it is
    /// dropped. Ends what a crash interrupted, as a server does.
    ///
    /// The next server's rate limit includes the requests that are sent meanwhile.
    pub fn open_exclusive(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        SqliteStore::open_exclusive(path, clock).map(Self::from)
    }

    /// Writes a checked copy of the ledger at `path` to `target`, which must not exist. A failure
    /// leaves no file. Blocks, and needs no lock.
    pub fn back_up(path: &Path, target: &Path) -> Result<Backup, OpenError> {
        SqliteStore::back_up(path, target)
    }

    /// Checks whether a server could sell from the file. Takes no lock and writes nothing.
    ///
    /// If a server has the file, only the header is read, because the server has checked the rest.
    pub fn check_integrity(path: &Path) -> Result<(), OpenError> {
        SqliteStore::check_integrity(path)
    }

    /// Returns whether the file holds the other kind of money, as far as it can be read.
    pub fn holds_other_money(path: &Path, money: MoneyKind) -> bool {
        SqliteStore::holds_other_money(path, money)
    }

    /// Returns whether any member's token depends on the recorded secret, as far as the file can be
    /// read.
    pub fn needs_token_secret(path: &Path) -> bool {
        SqliteStore::needs_token_secret(path)
    }
}

/// Opens a ledger that several servers share.
#[cfg(feature = "postgres")]
impl Store {
    /// Connects, and makes or migrates the tables.
    pub async fn open_postgres(target: PostgresTarget) -> Result<Self, OpenError> {
        Self::open_database(target, None).await
    }

    /// Opens a shared ledger whose time the test sets.
    #[doc(hidden)]
    pub async fn open_database(
        target: PostgresTarget,
        clock: Option<Clock>,
    ) -> Result<Self, OpenError> {
        SqliteStore::open_database(target, clock).await.map(Self::from).map_err(OpenError::Unusable)
    }
}

impl Store {
    #[doc(hidden)]
    #[must_use]
    pub fn with_hook(&self, hook: Arc<dyn StoreHook>) -> Self {
        Self { backend: self.backend.clone(), hook: Some(hook) }
    }

    pub fn now(&self) -> Duration {
        self.backend.now()
    }

    /// Returns the ledger's public name, which changes when purchases may have been lost.
    pub fn name(&self) -> Arc<str> {
        self.backend.name()
    }

    /// Returns how long commits take. Clones share their counts.
    pub fn commit_durations(&self) -> Histogram {
        self.backend.commit_durations()
    }

    /// Returns what is counted about a ledger that servers share. Clones share their counts.
    pub fn shared_metrics(&self) -> Option<SharedLedgerMetrics> {
        self.backend.shared_metrics()
    }

    /// Returns whether the ledger may lack purchases that were made after this time, as a restored
    /// backup does. At that time, it lacked none.
    pub fn may_lack_purchases_since(&self, complete_at: Duration) -> bool {
        self.backend.may_lack_purchases_since(complete_at)
    }

    /// Returns whether this process may still send a purchase that the ledger holds for it. Ask
    /// right before the first byte: another instance may have given up what this one held.
    pub fn may_send(&self, id: PurchaseId) -> bool {
        self.backend.may_send(id)
    }

    /// Returns how many servers share the ledger; `None` if one has it alone, or if that cannot be
    /// read.
    pub async fn instance_counts(&self) -> Option<InstanceCounts> {
        self.backend.instance_counts().await
    }

    /// Returns whether several servers may share the ledger.
    pub fn is_shared(&self) -> bool {
        self.backend.is_shared()
    }

    /// Returns whether the ledger could not be opened. That was logged once, with its cause.
    pub fn is_unusable(&self) -> bool {
        self.backend.is_unusable()
    }

    pub fn is_starting(&self) -> bool {
        self.backend.is_starting()
    }

    pub fn lock_holder(&self) -> Option<LockHolder> {
        self.backend.lock_holder()
    }

    /// Waits until the writer has run a command. Returns whether it still runs, or whether it has
    /// ended because the ledger is unusable.
    pub async fn writer_answers(&self) -> bool {
        self.backend.writer_answers().await
    }

    /// Writes what is queued, and releases the ledger although clones of this handle live. Later
    /// operations fail. Blocks until it is done.
    pub fn close(&self) {
        self.backend.close();
    }

    /// Takes a slot of all servers, if one is free under this limit.
    pub async fn take_free_slot(&self, slot: WantedSlot) -> Result<SlotAnswer, Unavailable> {
        let take = async { self.backend.take_free_slot(slot).await };
        self.with_hooks(StoreOp::TakeSlot(slot.id), take).await
    }

    pub(super) fn allows(&self, op: StoreOp<'_>) -> bool {
        self.hook.as_ref().is_none_or(|hook| hook.allows(op))
    }

    pub(super) fn has_slot(&self) -> bool {
        self.hook.as_ref().is_none_or(|hook| hook.has_slot())
    }

    pub(super) async fn with_hooks<T, E: Clone + From<Unavailable>>(
        &self,
        op: StoreOp<'_>,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E>
    where
        ReserveError: From<E>,
    {
        let Some(hook) = &self.hook else { return work.await };
        hook.before(op).await?;
        let result = work.await;
        let outcome = result.as_ref().map(|_| ()).map_err(|error| error.clone().into());
        hook.after(op, &outcome).await;
        result
    }
}

impl From<SqliteStore> for Store {
    fn from(store: SqliteStore) -> Self {
        Self { backend: store, hook: None }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.fmt(f)
    }
}
