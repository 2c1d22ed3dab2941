//! The handle that the rest of the program uses: one interface over the backends.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "postgres")]
use super::postgres::{Fleet, PostgresStore, PostgresTarget};
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
    pub(super) backend: Backend,
    hook: Option<Arc<dyn StoreHook>>,
}

#[derive(Clone)]
pub(super) enum Backend {
    Sqlite(SqliteStore),
    #[cfg(feature = "postgres")]
    Postgres(PostgresStore),
}

/// Evaluates an expression with the backend of a store.
macro_rules! on_backend {
    ($store:expr, $backend:ident => $call:expr) => {
        match &$store.backend {
            $crate::store::handle::Backend::Sqlite($backend) => $call,
            #[cfg(feature = "postgres")]
            $crate::store::handle::Backend::Postgres($backend) => $call,
        }
    };
}
pub(super) use on_backend;

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

/// Opens a store that several instances share.
#[cfg(feature = "postgres")]
impl Store {
    /// Connects, makes or migrates the tables, and joins the other instances.
    ///
    /// Dropping the store releases what is held, and leaves the other instances.
    pub async fn open_postgres(target: PostgresTarget) -> Result<Self, OpenError> {
        Self::open(target, None).await
    }

    /// Opens a ledger in a database with the rules of one in a file.
    #[doc(hidden)]
    pub async fn open_database(
        target: PostgresTarget,
        clock: Option<Clock>,
    ) -> Result<Self, OpenError> {
        SqliteStore::open_database(target, clock).await.map(Self::from).map_err(OpenError::Unusable)
    }

    /// Opens it on the caller's thread, for a simulation.
    #[doc(hidden)]
    pub fn open_database_inline(target: PostgresTarget, clock: Clock) -> Result<Self, OpenError> {
        let opened = SqliteStore::open_database_inline(target, clock);
        opened.map(Self::from).map_err(OpenError::Unusable)
    }

    /// Opens a shared store whose time the test sets.
    #[doc(hidden)]
    pub async fn open_postgres_at(target: PostgresTarget, clock: Clock) -> Result<Self, OpenError> {
        Self::open(target, Some(clock)).await
    }

    /// Opens a shared store on the caller's runtime, for a simulation that drives its time.
    #[doc(hidden)]
    pub async fn open_postgres_here(target: PostgresTarget) -> Result<Self, OpenError> {
        let opened = PostgresStore::open_here(target).await.map_err(OpenError::Unusable)?;
        Ok(Self { backend: Backend::Postgres(opened), hook: None })
    }

    /// Waits until the heartbeats that were sent are answered, for a simulation.
    #[doc(hidden)]
    pub async fn heartbeats_answered(&self) -> Result<(), Unavailable> {
        match &self.backend {
            Backend::Sqlite(_) => Ok(()),
            Backend::Postgres(store) => store.heartbeats_answered().await,
        }
    }

    async fn open(target: PostgresTarget, clock: Option<Clock>) -> Result<Self, OpenError> {
        let opened = PostgresStore::open(target, clock).await.map_err(OpenError::Unusable)?;
        Ok(Self { backend: Backend::Postgres(opened), hook: None })
    }

    /// Returns the instances that share the ledger, or `None` if it is one process's own.
    pub fn fleet(&self) -> Option<Fleet> {
        match &self.backend {
            Backend::Sqlite(_) => None,
            Backend::Postgres(store) => Some(Fleet::new(store.clone())),
        }
    }
}

impl Store {
    #[doc(hidden)]
    #[must_use]
    pub fn with_hook(&self, hook: Arc<dyn StoreHook>) -> Self {
        Self { backend: self.backend.clone(), hook: Some(hook) }
    }

    pub fn now(&self) -> Duration {
        on_backend!(self, store => store.now())
    }

    /// Returns the ledger's public name, which changes when purchases may have been lost.
    pub fn name(&self) -> Arc<str> {
        on_backend!(self, store => store.name())
    }

    /// Returns how long commits take. Clones share their counts.
    pub fn commit_durations(&self) -> Histogram {
        on_backend!(self, store => store.commit_durations())
    }

    /// Returns what is counted about a ledger that servers share. Clones share their counts.
    pub fn shared_metrics(&self) -> Option<SharedLedgerMetrics> {
        match &self.backend {
            Backend::Sqlite(_) => None,
            #[cfg(feature = "postgres")]
            Backend::Postgres(store) => Some(store.metrics()),
        }
    }

    /// Returns whether the ledger may lack purchases that were made after this time, as a restored
    /// backup does. At that time, it lacked none.
    pub fn may_lack_purchases_since(&self, complete_at: Duration) -> bool {
        on_backend!(self, store => store.may_lack_purchases_since(complete_at))
    }

    /// Returns whether this process may still send a purchase that the ledger holds for it. Ask
    /// right before the first byte: another instance may have given up what this one held.
    pub fn may_send(&self, id: PurchaseId) -> bool {
        on_backend!(self, store => store.may_send(id))
    }

    /// Returns how many servers share the ledger; `None` if one has it alone, or if that cannot be
    /// read.
    pub async fn instance_counts(&self) -> Option<InstanceCounts> {
        match &self.backend {
            Backend::Sqlite(_) => None,
            #[cfg(feature = "postgres")]
            Backend::Postgres(store) => store.instance_counts().await.ok(),
        }
    }

    /// Returns whether the ledger could not be opened. That was logged once, with its cause.
    pub fn is_unusable(&self) -> bool {
        on_backend!(self, store => store.is_unusable())
    }

    pub fn is_starting(&self) -> bool {
        on_backend!(self, store => store.is_starting())
    }

    pub fn lock_holder(&self) -> Option<LockHolder> {
        on_backend!(self, store => store.lock_holder())
    }

    /// Waits until the writer has run a command. Returns whether it still runs, or whether it has
    /// ended because the ledger is unusable.
    pub async fn writer_answers(&self) -> bool {
        match &self.backend {
            Backend::Sqlite(store) => store.writer_answers().await,
            // A database that is down must not restart the servers.
            #[cfg(feature = "postgres")]
            Backend::Postgres(_) => true,
        }
    }

    /// Writes what is queued, and releases the ledger although clones of this handle live. Later
    /// operations fail. Blocks until it is done.
    pub fn close(&self) {
        on_backend!(self, store => store.close());
    }

    /// Takes a slot of all servers, if one is free under this limit.
    #[doc(hidden)]
    pub async fn take_free_slot(&self, slot: WantedSlot) -> Result<SlotAnswer, Unavailable> {
        match &self.backend {
            Backend::Sqlite(store) => store.take_free_slot(slot).await,
            #[cfg(feature = "postgres")]
            Backend::Postgres(_) => Err(Unavailable("it grants slots in turn".into())),
        }
    }

    /// Has no server take a slot for a while.
    #[doc(hidden)]
    pub fn block_slots(&self, wait: Duration) {
        match &self.backend {
            Backend::Sqlite(store) => store.block_slots(wait),
            #[cfg(feature = "postgres")]
            Backend::Postgres(_) => {}
        }
    }

    pub(super) fn sqlite(&self) -> Option<&SqliteStore> {
        match &self.backend {
            Backend::Sqlite(store) => Some(store),
            #[cfg(feature = "postgres")]
            Backend::Postgres(_) => None,
        }
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
        Self { backend: Backend::Sqlite(store), hook: None }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        on_backend!(self, store => fmt::Debug::fmt(store, f))
    }
}
