//! The handle that the rest of the program uses, and where its operations run.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use uuid::Uuid;

use super::engine::{Engine, Result};
use super::shared::SharedLedger;
use super::sqlite::{self, LockHolder};
use super::tables::Ledger;
use super::writer::{
    CommandGate, CommandQueue, Durability, Release, ReportReader, WriteCommand, Writer,
    notification, request,
};
use super::{
    AccountLimit, Cause, Clock, Digest, PurchaseId, Reason, Reservation, ReserveError, Settlement,
    SlotId, Unavailable, name,
};
use crate::clock;
use crate::metrics::Histogram;
use crate::sync::{FastMap, lock, pause};

const CLOSE_POLL: Duration = Duration::from_millis(1);

/// The ledger of a server. Clones share it.
///
/// Dropping the last clone waits until everything that is queued was written.
#[derive(Clone)]
pub struct Store {
    pub(super) inner: Arc<StoreInner>,
    hook: Option<Arc<dyn StoreHook>>,
}

pub(super) struct StoreInner {
    /// Empty unless the ledger is a file.
    pub(super) path: PathBuf,
    clock: Clock,
    pub(super) name: Mutex<Arc<str>>,
    /// It was not closed cleanly, or there is no mark of it, so it may be an old copy.
    pub(super) may_be_old: bool,
    executor: Executor,
    pub(super) gate: CommandGate,
    /// `None` in memory: the writer's connection reads the reports, too.
    pub(super) report_reader: Option<ReportReader>,
    pub(super) credit_used: AtomicBool,
    pub(super) latest_rate_limit: Arc<Mutex<Option<AccountLimit>>>,
    /// Only of a ledger that servers share.
    pub(super) shared: Option<Arc<SharedLedger>>,
    pub(super) since_boot: Clock,
    /// Until when purchases that are recorded as sent may be sent, in time since boot.
    pub(super) sends: Mutex<FastMap<PurchaseId, Duration>>,
}

pub(super) enum Executor {
    Closed,
    Inline(Box<Mutex<Writer>>),
    Thread { queue: Arc<CommandQueue>, thread: thread::JoinHandle<()> },
}

#[derive(Clone, Copy, Debug)]
pub enum StoreOp<'a> {
    Reserve(&'a Reservation),
    ReserveAndSend(&'a Reservation, SlotId),
    MarkSent(PurchaseId),
    Settle(PurchaseId, &'a Settlement),
    SettleLater(PurchaseId, &'a Settlement),
    MarkDelivered(PurchaseId),
    NoteRefusal(&'a Digest),
    TakeSlot(SlotId),
    SlotReplied(SlotId),
    ReleaseSlot(SlotId),
    Other(&'static str),
}

impl From<&'static str> for StoreOp<'_> {
    fn from(name: &'static str) -> Self {
        Self::Other(name)
    }
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

impl Store {
    pub(super) fn new(inner: StoreInner) -> Self {
        Self { inner: Arc::new(inner), hook: None }
    }

    /// Returns a store whose operations all fail with this reason.
    pub fn unusable(reason: impl Into<Reason>) -> Self {
        let gate = CommandGate::default();
        gate.close(Unavailable(reason.into()));
        let clocks: (Clock, Clock) = (Arc::new(clock::wall), Arc::new(clock::since_boot));
        let mut inner = StoreInner::new(Path::new(""), clocks, Executor::Closed, gate);
        inner.name = Mutex::new("broken".into());
        Self::new(inner)
    }

    #[doc(hidden)]
    #[must_use]
    pub fn with_hook(&self, hook: Arc<dyn StoreHook>) -> Self {
        Self { hook: Some(hook), ..self.clone() }
    }

    pub fn now(&self) -> Duration {
        (self.inner.clock)()
    }

    /// Returns the ledger's public name, which changes when purchases may have been lost.
    pub fn name(&self) -> Arc<str> {
        let Self { inner, .. } = self;
        inner.shared.as_ref().map_or_else(|| lock(&inner.name).clone(), |shared| shared.name())
    }

    /// Returns how long commits take. Clones share their counts.
    pub fn commit_durations(&self) -> Histogram {
        self.inner.gate.commits.clone()
    }

    /// Returns whether the ledger may lack purchases that were made after this time, as a restored
    /// backup does. At that time, it lacked none.
    pub fn may_lack_purchases_since(&self, complete_at: Duration) -> bool {
        name::may_lack_purchases_since(&self.name(), complete_at)
    }

    /// Returns whether the start could not rule out that the ledger is an old copy.
    pub fn may_be_old(&self) -> bool {
        self.inner.may_be_old
    }

    /// Returns whether the ledger could not be opened. That was logged once, with its cause.
    pub fn is_unusable(&self) -> bool {
        self.inner.gate.has_failed()
    }

    pub fn is_starting(&self) -> bool {
        self.inner.gate.is_starting()
    }

    pub fn lock_holder(&self) -> Option<LockHolder> {
        sqlite::lock_holder(&self.inner.path)
    }

    /// Waits until the writer has run a command. Returns whether it still runs, or whether it has
    /// ended because the ledger is unusable.
    pub async fn writer_answers(&self) -> bool {
        let Executor::Thread { thread, .. } = &self.inner.executor else { return true };
        // A database that is down must not restart the servers.
        if !self.is_shared() {
            self.query("writer_answers", |_| Ok(())).await.ok();
        }
        !thread.is_finished() || self.is_unusable()
    }

    /// Writes what is queued, and releases the ledger although clones of this handle live. Later
    /// operations fail. Blocks until it is done.
    pub fn close(&self) {
        if let Executor::Thread { queue, thread, .. } = &self.inner.executor {
            self.inner.gate.stop.store(true, Ordering::Relaxed);
            queue.close();
            while !thread.is_finished() {
                pause(CLOSE_POLL);
            }
        }
    }
}

/// How operations reach the writer.
impl Store {
    /// Returns an error while the store is not open, or too much waits to be recorded.
    pub(super) fn check_capacity(&self) -> Result<(), Unavailable> {
        self.inner.gate.check()?;
        if self.inner.gate.is_retry_queue_full.load(Ordering::Relaxed) {
            let is_disk_full = self.inner.gate.is_disk_full.load(Ordering::Relaxed);
            let cause = if is_disk_full { Cause::DiskFull } else { Cause::Other };
            let why = "too many purchases wait to be recorded";
            return Err(Unavailable(Reason::new(cause, why)));
        }
        Ok(())
    }

    pub(super) async fn run<T: Send + 'static>(
        &self,
        op: impl Into<StoreOp<'_>>,
        durability: Durability,
        work: impl FnMut(&Ledger) -> Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.inner.gate.check()?;
        self.execute(op, durability, work).await
    }

    /// Runs a command that need not be synced to disk.
    pub(super) async fn query<T: Send + 'static>(
        &self,
        op: impl Into<StoreOp<'_>>,
        work: impl FnMut(&Ledger) -> Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.run(op, Durability::Buffered, work).await
    }

    /// Runs a command also while the store is being opened.
    pub(super) async fn execute<T: Send + 'static>(
        &self,
        op: impl Into<StoreOp<'_>>,
        durability: Durability,
        work: impl FnMut(&Ledger) -> Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.with_hooks(op.into(), self.perform(durability, work)).await
    }

    pub(super) async fn run_report<T: Send + 'static>(
        &self,
        op: impl Into<StoreOp<'_>>,
        query: impl Fn(&dyn Engine) -> Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        match &self.inner.report_reader {
            Some(reports) => self.with_hooks(op.into(), reports.read(query)).await,
            None => self.query(op, move |ledger| query(&*ledger.db)).await,
        }
    }

    pub(super) fn notify<'a>(
        &self,
        op: impl Into<StoreOp<'a>>,
        durability: Durability,
        work: impl FnMut(&Ledger) -> Result<()> + Send + 'static,
    ) {
        if self.allows(op.into()) {
            drop(self.enqueue(notification(durability, work)));
        }
    }

    /// [`notify`](Self::notify), but the command waits for the next one, with which it shares a
    /// transaction, or for a second. Until then, a crash loses it. `work` gets the current time.
    pub(super) fn notify_later<'a, W>(
        &self,
        op: impl Into<StoreOp<'a>>,
        work: impl FnOnce(Duration) -> W,
    ) where
        W: FnMut(&Ledger) -> Result<()> + Send + 'static,
    {
        if !self.allows(op.into()) {
            return;
        }
        let command = notification(Durability::Buffered, work(self.now()));
        match &self.inner.executor {
            Executor::Thread { queue, .. } => queue.defer(command),
            Executor::Inline(_) | Executor::Closed => drop(self.enqueue(command)),
        }
    }

    pub(super) async fn perform<T: Send + 'static>(
        &self,
        durability: Durability,
        work: impl FnMut(&Ledger) -> Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (command, reply) = request(durability, work);
        if let Some(release) = self.enqueue(command) {
            release.gather().await;
        }
        let writer_gone = || Unavailable("the ledger's writer has stopped".into());
        let closed = || self.inner.gate.check().err().unwrap_or_else(writer_gone);
        reply.await.unwrap_or_else(|oneshot::error::RecvError { .. }| Err(closed()))
    }

    /// Runs the command, or queues it until the result is dropped.
    fn enqueue(&self, command: Box<dyn WriteCommand>) -> Option<Release<'_>> {
        match &self.inner.executor {
            Executor::Closed => None,
            Executor::Inline(writer) => {
                if let Ok(mut writer) = writer.lock() {
                    writer.run_inline(command);
                }
                None
            }
            Executor::Thread { queue, .. } => Some(queue.push(command)),
        }
    }

    fn allows(&self, op: StoreOp<'_>) -> bool {
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

impl StoreInner {
    pub(super) fn new(
        path: &Path,
        (clock, since_boot): (Clock, Clock),
        executor: Executor,
        gate: CommandGate,
    ) -> Self {
        Self {
            path: path.to_owned(),
            clock,
            name: Mutex::new(Uuid::now_v7().to_string().into()),
            may_be_old: false,
            executor,
            gate,
            report_reader: None,
            credit_used: AtomicBool::new(false),
            latest_rate_limit: Arc::default(),
            shared: None,
            since_boot,
            sends: Mutex::default(),
        }
    }
}

impl Drop for StoreInner {
    fn drop(&mut self) {
        self.gate.stop.store(true, Ordering::Relaxed);
        // First, because an open reader would keep the write-ahead log from being emptied.
        drop(self.report_reader.take());
        match std::mem::replace(&mut self.executor, Executor::Closed) {
            Executor::Closed => {}
            Executor::Inline(writer) => {
                if let Ok(writer) = writer.into_inner() {
                    writer.close();
                }
            }
            Executor::Thread { queue, thread, .. } => {
                queue.close();
                let _ = thread.join();
            }
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.inner.path).finish_non_exhaustive()
    }
}
