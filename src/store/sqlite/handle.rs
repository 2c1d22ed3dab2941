//! The handle of a SQLite store, and where its operations run.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, thread};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

use super::command::{Durability, WriteCommand, notification, request};
use super::command_gate::CommandGate;
use super::command_queue::{CommandQueue, Release};
use super::identity;
use super::ledger::Ledger;
use super::reader::ReportReader;
use super::writer::Writer;
use super::{LockHolder, Result, lock};
use crate::metrics::Histogram;
use crate::store::engine::Engine;
use crate::store::{AccountLimit, Cause, Clock, Deadlines, PurchaseId, Reason, Unavailable};
use crate::sync::{FastMap, pause};

const CLOSE_POLL: Duration = Duration::from_millis(1);

/// Dropping the last clone waits until everything that is queued was written.
#[derive(Clone)]
pub(in crate::store) struct SqliteStore {
    pub(super) inner: Arc<StoreInner>,
}

pub(super) struct StoreInner {
    /// Empty for an in-memory store.
    pub(super) path: PathBuf,
    pub(super) clock: Clock,
    pub(super) name: Arc<Mutex<Arc<str>>>,
    pub(super) executor: Executor,
    pub(super) gate: CommandGate,
    /// `None` in memory: the writer's connection reads the reports, too.
    pub(super) report_reader: Option<ReportReader>,
    pub(super) credit_used: AtomicBool,
    pub(super) latest_rate_limit: Arc<Mutex<Option<AccountLimit>>>,
    pub(super) deadlines: Option<Deadlines>,
    pub(super) since_boot: fn() -> Duration,
    /// Until when purchases that are recorded as sent may be sent, in time since boot.
    pub(super) sends: Mutex<FastMap<PurchaseId, Duration>>,
}

pub(super) enum Executor {
    Closed,
    Inline(Box<Mutex<Writer>>),
    Thread { queue: Arc<CommandQueue>, thread: thread::JoinHandle<()> },
}

impl SqliteStore {
    pub(super) fn from_inner(inner: StoreInner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    pub(in crate::store) fn now(&self) -> Duration {
        (self.inner.clock)()
    }

    pub(in crate::store) fn name(&self) -> Arc<str> {
        Arc::clone(&crate::sync::lock(&self.inner.name))
    }

    pub(in crate::store) fn commit_durations(&self) -> Histogram {
        self.inner.gate.commits.clone()
    }

    pub(in crate::store) fn may_lack_purchases_since(&self, complete_at: Duration) -> bool {
        identity::may_lack_purchases_since(&self.name(), complete_at)
    }

    pub(in crate::store) fn is_unusable(&self) -> bool {
        self.inner.gate.has_failed()
    }

    pub(in crate::store) fn lock_holder(&self) -> Option<LockHolder> {
        lock::lock_holder(&self.inner.path)
    }

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
        durability: Durability,
        work: impl FnMut(&Ledger) -> Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.inner.gate.check()?;
        self.execute(durability, work).await
    }

    /// Runs a command that need not be synced to disk.
    pub(super) async fn query<T: Send + 'static>(
        &self,
        work: impl FnMut(&Ledger) -> Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.run(Durability::Buffered, work).await
    }

    /// Runs a command, and waits for the store if it is still being opened.
    pub(super) async fn run_while_starting<T: Send + 'static>(
        &self,
        durability: Durability,
        work: impl FnMut(&Ledger) -> Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.execute(durability, work).await
    }

    pub(super) async fn run_report<T: Send + 'static>(
        &self,
        query: impl Fn(&dyn Engine) -> Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        match &self.inner.report_reader {
            Some(reports) => reports.read(query).await,
            None => self.query(move |ledger| query(&*ledger.db)).await,
        }
    }

    pub(super) fn notify(
        &self,
        durability: Durability,
        work: impl FnMut(&Ledger) -> Result<()> + Send + 'static,
    ) {
        drop(self.enqueue(notification(durability, work)));
    }

    /// [`notify`](Self::notify), but the command waits for the next one, with which it shares a
    /// transaction, or for a second. Until then, a crash loses it. `work` gets the current time.
    pub(super) fn notify_later<W>(&self, work: impl FnOnce(Duration) -> W)
    where
        W: FnMut(&Ledger) -> Result<()> + Send + 'static,
    {
        let command = notification(Durability::Buffered, work(self.now()));
        match &self.inner.executor {
            Executor::Thread { queue, .. } => queue.defer(command),
            Executor::Inline(_) | Executor::Closed => drop(self.enqueue(command)),
        }
    }

    /// Runs a command also while the store is being opened.
    pub(super) async fn execute<T: Send + 'static>(
        &self,
        durability: Durability,
        work: impl FnMut(&Ledger) -> Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (command, reply) = request(durability, work);
        if let Some(release) = self.enqueue(command) {
            // On another kind of runtime, other tasks run beside this one.
            let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
            if flavor.is_ok_and(|flavor| flavor == RuntimeFlavor::CurrentThread) {
                release.gather().await;
            }
        }
        reply.await.unwrap_or_else(|oneshot::error::RecvError { .. }| Err(self.closed_error()))
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
            Executor::Thread { queue, .. } => queue.push(command),
        }
    }

    /// Waits until the writer has run a command. Returns whether it still runs, or whether it has
    /// ended because the ledger is unusable.
    pub(in crate::store) async fn writer_answers(&self) -> bool {
        self.query(|_| Ok(())).await.ok();
        let Executor::Thread { thread, .. } = &self.inner.executor else { return true };
        !thread.is_finished() || self.is_unusable()
    }

    pub(in crate::store) fn close(&self) {
        if let Executor::Thread { queue, thread, .. } = &self.inner.executor {
            self.inner.gate.stop.store(true, Ordering::Relaxed);
            queue.close();
            while !thread.is_finished() {
                pause(CLOSE_POLL);
            }
        }
    }

    fn closed_error(&self) -> Unavailable {
        self.inner.gate.check().err().unwrap_or_else(writer_gone)
    }
}

fn writer_gone() -> Unavailable {
    Unavailable("the ledger's writer has stopped".into())
}

pub(super) fn canonical_path(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
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

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.inner.path).finish_non_exhaustive()
    }
}
