//! Owns the connection. Drains its queue into one transaction, commits it, and only then replies.
//!
//! Invariant: a command that was reported as done survives a crash of this process. If it concerns
//! an expensive purchase, it also survives a power failure.

use std::collections::VecDeque;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::hooks::Wal;
use rusqlite::wal::CheckpointMode;
use tokio::sync::oneshot;

use super::command_gate::CommandGate;
use super::ledger::Ledger;
use super::lock::Lock;
use super::{Result, StoreError, file};
use crate::clock;
use crate::store::{PurchaseId, Unavailable};
use crate::sync::lock;

const MAX_BATCH: usize = 256;
const WAL_CHECKPOINT_PAGES: i32 = 1_000;
const MAX_DEFERRAL: Duration = Duration::from_secs(1);
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Commands that may wait for a retry. Beyond it no purchase begins until half of them are done.
const MAX_RETRIES: usize = 10_000;
/// A fault is over after a write, and this long without another fault.
const RECOVERY_PERIOD: Duration = Duration::from_secs(10);
const PAGE_BYTES: u64 = 4_096;

pub(super) type CommandQueue = mpsc::Receiver<Box<dyn WriteCommand>>;

/// How transactions begin. A reader must not ask for the write lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenMode {
    Write,
    Read,
    Memory,
}

/// The latest fault.
struct Incident {
    is_disk_full: bool,
    at: clock::Instant,
}

/// Why a batch was rolled back, and whether its commands may still succeed one by one.
struct Failure {
    fault: StoreError,
    is_divisible: bool,
}

impl Failure {
    fn of_command(fault: StoreError) -> Self {
        let is_divisible = !matches!(fault, StoreError::Permanent(_));
        Self { fault, is_divisible }
    }
}

impl From<StoreError> for Failure {
    fn from(fault: StoreError) -> Self {
        let is_divisible = matches!(fault, StoreError::DiskFull(_));
        Self { fault, is_divisible }
    }
}

pub(super) struct Writer {
    pub(super) ledger: Ledger,
    mode: OpenMode,
    /// Notifications that a fault rolled back.
    retries: VecDeque<Box<dyn WriteCommand>>,
    next_retry: clock::Instant,
    wal_pages: Arc<AtomicI32>,
    has_written: Arc<AtomicBool>,
    gate: CommandGate,
    is_synchronous: bool,
    broken: Option<Unavailable>,
    incident: Option<Incident>,
    /// Released after the connection is closed.
    lock: Option<Lock>,
}

impl Writer {
    pub(super) fn new(
        mut ledger: Ledger,
        access: OpenMode,
        lock: Option<Lock>,
        gate: &CommandGate,
    ) -> rusqlite::Result<Self> {
        let (log_pages, has_written) = (Arc::<AtomicI32>::default(), Arc::<AtomicBool>::default());
        let (pages_seen, written) = (Arc::clone(&log_pages), Arc::clone(&has_written));
        // SQLite's own hook copies inside the commit, and hides an error.
        ledger.connection.wal_hook(Some(move |_: &mut Wal, pages| {
            pages_seen.store(pages, Ordering::Relaxed);
            written.store(true, Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Self {
            ledger,
            mode: access,
            retries: VecDeque::new(),
            next_retry: clock::now(),
            wal_pages: log_pages,
            has_written,
            gate: gate.clone(),
            is_synchronous: true,
            broken: None,
            incident: None,
            lock,
        })
    }

    pub(super) fn run(mut self, queue: &CommandQueue) {
        while let Some(batch) = self.next_batch(queue) {
            self.process(batch);
            self.checkpoint_wal();
            if self.gate.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        // Nothing was queued after the handle closed the store or was dropped, except by clones.
        let mut rest: VecDeque<_> = queue.try_iter().collect();
        while !rest.is_empty() {
            let batch = rest.drain(..rest.len().min(MAX_BATCH)).collect();
            self.process(batch);
        }
        self.close();
    }

    /// Runs one command on the caller's thread, after any retries that are due.
    pub(super) fn run_inline(&mut self, command: Box<dyn WriteCommand>) {
        if !self.retries.is_empty() && self.next_retry <= clock::now() {
            let retries = self.retries.drain(..).collect();
            self.process(retries);
        }
        self.process(vec![command]);
        self.checkpoint_wal();
    }

    /// Writes what still waits for a retry, and closes the ledger cleanly.
    pub(super) fn close(mut self) {
        let mut last: Vec<_> = self.retries.drain(..).collect();
        last.append(&mut lock(&self.gate.deferred));
        self.process(last);
        if !self.retries.is_empty() {
            tracing::error!(lost = self.retries.len(), "ledger writes lost at shutdown");
        } else if self.broken.is_none() && self.lock.is_some() {
            // If another process has the file open, closing it would leave the log as it is.
            self.truncate_wal();
            self.lock.iter_mut().for_each(|lock| lock.is_clean = true);
        }
    }

    /// Returns queued commands, or the retries if they are due. The two are not mixed, so that a
    /// failing command delays no other.
    fn next_batch(&mut self, queue: &CommandQueue) -> Option<Vec<Box<dyn WriteCommand>>> {
        loop {
            let mut wait = MAX_DEFERRAL;
            if !self.retries.is_empty() {
                let pause = self.next_retry.saturating_duration_since(clock::now());
                if pause.is_zero() {
                    // Retries first, or a busy queue would delay them for ever.
                    return Some(self.retries.drain(..).collect());
                }
                wait = wait.min(pause);
            }
            let first = match queue.recv_timeout(wait) {
                Ok(command) => Some(command),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            };
            let mut batch = std::mem::take(&mut *lock(&self.gate.deferred));
            batch.extend(first);
            batch.extend(queue.try_iter().take(MAX_BATCH - 1));
            if !batch.is_empty() {
                return Some(batch);
            }
        }
    }

    /// If a command fails, or the disk is too full for the batch, each command runs alone.
    fn process(&mut self, mut batch: Vec<Box<dyn WriteCommand>>) {
        match self.commit(&mut batch) {
            Err(Failure { is_divisible: true, .. }) if batch.len() > 1 => {
                for mut command in batch {
                    let done = self.commit(slice::from_mut(&mut command));
                    self.answer(vec![command], done.map_err(|failure| failure.fault));
                }
            }
            done => self.answer(batch, done.map_err(|failure| failure.fault)),
        }
    }

    fn answer(&mut self, batch: Vec<Box<dyn WriteCommand>>, done: Result<()>) {
        if let Err(fault) = &done {
            self.log_fault(fault);
        }
        let done = done.map_err(|fault| fault.unavailable());
        for command in batch {
            let undone = command.answer(done.as_ref().err());
            if let Some(command) = undone
                && self.broken.is_none()
            {
                self.retries.push_back(command);
                self.next_retry = clock::now() + RETRY_DELAY;
            }
        }
        self.limit_retries();
    }

    /// Running purchases may still add to the list, but no new one begins. So it is bounded, and
    /// loses nothing.
    fn limit_retries(&self) {
        let waiting = self.retries.len();
        if waiting >= MAX_RETRIES && !self.gate.is_retry_queue_full.swap(true, Ordering::Relaxed) {
            tracing::error!(waiting, "ledger retry queue full; purchases blocked");
        } else if waiting <= MAX_RETRIES / 2
            && self.gate.is_retry_queue_full.swap(false, Ordering::Relaxed)
        {
            tracing::info!(waiting, "ledger retry queue drained; purchases resumed");
        }
    }

    /// Runs all commands in one transaction. If one fails, all are rolled back.
    fn commit(&mut self, batch: &mut [Box<dyn WriteCommand>]) -> Result<(), Failure> {
        if let Some(why) = &self.broken {
            return Err(StoreError::Permanent(why.clone()).into());
        }
        self.set_synchronous(batch)?;
        let begun = clock::now();
        let connection = &self.ledger.connection;
        execute(connection, if self.mode == OpenMode::Read { "BEGIN" } else { "BEGIN IMMEDIATE" })?;
        let done = self.run_commands(batch).and_then(|()| Ok(execute(connection, "COMMIT")?));
        let latest = self.ledger.latest_number.take();
        match done {
            Err(_) => {
                self.ledger.rolled_back();
                if !connection.is_autocommit() {
                    execute(connection, "ROLLBACK")
                        .map_err(|fault| StoreError::Permanent(fault.unavailable()))?;
                }
            }
            Ok(()) => self.committed(latest, begun),
        }
        done
    }

    fn run_commands(&self, batch: &mut [Box<dyn WriteCommand>]) -> Result<(), Failure> {
        self.ledger.begun()?;
        for command in batch {
            command.run(&self.ledger).map_err(Failure::of_command)?;
        }
        self.ledger.write_counters().map_err(Failure::of_command)
    }

    fn committed(&mut self, latest: Option<i64>, begun: clock::Instant) {
        if let (Some(latest), Some(lock)) = (latest, &mut self.lock)
            && let Err(error) = lock.write_latest(latest)
        {
            let why = format!("failed to write the purchase number to the lock file: {error}");
            self.log_fault(&StoreError::Permanent(Unavailable(why.into())));
        }
        self.ledger.committed();
        if self.ledger.has_ended.take() {
            self.gate.ends.notify_waiters();
        }
        let has_written = self.has_written.swap(false, Ordering::Relaxed);
        if has_written && self.incident.is_some() {
            self.gate.is_disk_full.store(false, Ordering::Relaxed);
        }
        if has_written {
            self.gate.commits.observe(clock::now().saturating_duration_since(begun));
        }
        if has_written
            && self.incident.as_ref().is_some_and(|fault| fault.at.elapsed() >= RECOVERY_PERIOD)
        {
            self.incident = None;
            tracing::info!("ledger writes recovered");
        }
    }

    /// Sets whether the commit waits for the disk. That cannot change within a transaction.
    fn set_synchronous(&mut self, batch: &[Box<dyn WriteCommand>]) -> Result<()> {
        if self.mode == OpenMode::Memory {
            return Ok(());
        }
        let mut is_full = false;
        for command in batch {
            is_full |= match command.durability() {
                Durability::Buffered => false,
                Durability::Synced => true,
                Durability::OfPurchase(id) => !is_full && self.ledger.needs_sync(id)?,
            };
        }
        if is_full != self.is_synchronous {
            let synchronous = if is_full { "FULL" } else { "NORMAL" };
            self.ledger.connection.pragma_update(None, "synchronous", synchronous)?;
            self.is_synchronous = is_full;
        }
        Ok(())
    }

    /// Copies the write-ahead log into the file between batches. No commit waits for it, and an
    /// error is seen.
    fn checkpoint_wal(&mut self) {
        if self.broken.is_some() || self.wal_pages.load(Ordering::Relaxed) < WAL_CHECKPOINT_PAGES {
            return;
        }
        match self.ledger.connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE) {
            // A reader still needs some pages: retried after the next batch.
            Ok((pages, copied)) if copied < pages => {}
            Ok((pages, _)) => {
                self.wal_pages.store(0, Ordering::Relaxed);
                if u64::try_from(pages).unwrap_or_default() * PAGE_BYTES > file::MAX_WAL_BYTES {
                    self.truncate_wal();
                }
            }
            Err(error) => {
                self.wal_pages.store(0, Ordering::Relaxed);
                self.log_fault(&StoreError::from(error));
            }
        }
    }

    /// Frees the space of a log that grew during a long read. If a reader is active, the next
    /// writer truncates it: `journal_size_limit`.
    fn truncate_wal(&self) {
        let connection = &self.ledger.connection;
        let truncate = || {
            connection.busy_timeout(Duration::ZERO)?;
            let truncate = connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE);
            connection.busy_timeout(file::BUSY_TIMEOUT)?;
            truncate
        };
        if let Err(error) = truncate() {
            tracing::debug!(%error, "ledger write-ahead log not truncated");
        }
    }

    /// Logs the first fault of a kind, until it is over.
    fn log_fault(&mut self, fault: &StoreError) {
        match fault {
            StoreError::Transient(why) | StoreError::DiskFull(why) => {
                let is_disk_full = matches!(fault, StoreError::DiskFull(_));
                if is_disk_full {
                    self.gate.is_disk_full.store(true, Ordering::Relaxed);
                }
                let previous = self.incident.replace(Incident { is_disk_full, at: clock::now() });
                if previous.is_some_and(|fault| fault.is_disk_full == is_disk_full) {
                    return;
                }
                if is_disk_full {
                    tracing::error!(error = %why, "ledger disk full");
                } else {
                    tracing::error!(error = %why, "ledger write failed");
                }
            }
            StoreError::Permanent(why) if self.broken.is_none() => {
                tracing::error!(error = %why, "ledger failed; nothing is written until a restart");
                self.broken = Some(why.clone());
            }
            StoreError::Permanent(_) => {}
        }
    }
}

fn execute(connection: &Connection, statement: &str) -> Result<()> {
    connection.prepare_cached(statement)?.execute([])?;
    Ok(())
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Durability {
    Buffered,
    Synced,
    OfPurchase(PurchaseId),
}

/// Work inside a transaction. It may run again after a rollback.
pub(super) trait WriteCommand: Send {
    fn durability(&self) -> Durability;

    fn run(&mut self, ledger: &Ledger) -> Result<()>;

    /// Replies after the commit or the fault. Returns the command if it has to be retried.
    fn answer(self: Box<Self>, fault: Option<&Unavailable>) -> Option<Box<dyn WriteCommand>>;
}

type Answer<T> = Result<T, Unavailable>;

struct Task<T, F> {
    durability: Durability,
    work: F,
    outcome: Option<Answer<T>>,
    answer: Option<oneshot::Sender<Answer<T>>>,
}

/// A command whose caller waits for a reply.
pub(super) fn request<T: Send + 'static>(
    durability: Durability,
    work: impl FnMut(&Ledger) -> Result<T> + Send + 'static,
) -> (Box<dyn WriteCommand>, oneshot::Receiver<Answer<T>>) {
    let (answer, answered) = oneshot::channel();
    (Box::new(Task { durability, work, outcome: None, answer: Some(answer) }), answered)
}

/// A command without a reply. It is retried until it succeeds.
pub(super) fn notification(
    durability: Durability,
    work: impl FnMut(&Ledger) -> Result<()> + Send + 'static,
) -> Box<dyn WriteCommand> {
    Box::new(Task { durability, work, outcome: None, answer: None })
}

impl<T, F> WriteCommand for Task<T, F>
where
    T: Send + 'static,
    F: FnMut(&Ledger) -> Result<T> + Send + 'static,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn run(&mut self, ledger: &Ledger) -> Result<()> {
        let (outcome, done) = match (self.work)(ledger) {
            Ok(value) => (Ok(value), Ok(())),
            Err(fault) => (Err(fault.unavailable()), Err(fault)),
        };
        self.outcome = Some(outcome);
        done
    }

    fn answer(mut self: Box<Self>, fault: Option<&Unavailable>) -> Option<Box<dyn WriteCommand>> {
        let undone = || Err(Unavailable("the command was not run".into()));
        let outcome = match fault {
            Some(why) => Err(why.clone()),
            None => self.outcome.take().unwrap_or_else(undone),
        };
        match self.answer.take() {
            Some(answer) => {
                // The caller may be gone; its purchase is settled by its own guard.
                let _ = answer.send(outcome);
                None
            }
            None => outcome.is_err().then_some(self),
        }
    }
}

#[cfg(test)]
mod tests;
