//! Owns the connection. Drains its queue into one transaction, commits it, and only then replies.
//!
//! Invariant: a command that was reported as done survives a crash of this process. If it concerns
//! an expensive purchase, it also survives a power failure.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;
use std::{io, slice};

use rusqlite::hooks::Wal;

use super::check::BackgroundCheck;
use super::checkpoint::{self, Checkpointer};
use super::command::{Durability, WriteCommand};
use super::command_gate::CommandGate;
use super::command_queue::CommandReceiver;
use super::ledger::Ledger;
use super::lock::Lock;
use super::{Result, StoreError};
use crate::clock;
use crate::store::engine::Sql;
use crate::store::{Reason, Unavailable};
use crate::sync::lock;

/// Each checkpoint costs two fsyncs, and each restart of the log another one of the writer, so both
/// should be rare. A page that many transactions have changed is copied once.
const WAL_CHECKPOINT_PAGES: i32 = 8_000;
/// From this many pages on, the writer waits for the checkpoint, so that the log starts over.
const MAX_WAL_PAGES: i32 = 2 * WAL_CHECKPOINT_PAGES;
const MAX_BATCH: usize = 256;
const MAX_DEFERRAL: Duration = Duration::from_secs(1);
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Commands that may wait for a retry. Beyond it no purchase begins until half of them are done.
const MAX_RETRIES: usize = 10_000;
/// A fault is over after a write, and this long without another fault.
const RECOVERY_PERIOD: Duration = Duration::from_secs(10);

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
    batches: BatchWriter,
}

/// Runs the commands of a transaction.
fn run(ledger: &Ledger, batch: &mut [Box<dyn WriteCommand>]) -> Result<(), Failure> {
    ledger.begun()?;
    for command in batch {
        command.run(ledger).map_err(Failure::of_command)?;
    }
    ledger.write_counters().map_err(Failure::of_command)
}

/// Returns whether the commit waits for the disk.
fn needs_sync(ledger: &Ledger, batch: &[Box<dyn WriteCommand>]) -> Result<bool> {
    let mut is_full = false;
    for command in batch {
        is_full |= match command.durability() {
            Durability::Buffered => false,
            Durability::Synced => true,
            Durability::OfPurchase(id) => !is_full && ledger.needs_sync(id)?,
        };
    }
    Ok(is_full)
}

/// Writes batches to the ledger.
struct BatchWriter {
    mode: OpenMode,
    path: PathBuf,
    /// Notifications that a fault rolled back.
    retries: VecDeque<Box<dyn WriteCommand>>,
    next_retry: clock::Instant,
    wal_pages: Arc<AtomicI32>,
    has_written: Arc<AtomicBool>,
    gate: CommandGate,
    is_synchronous: bool,
    broken: Option<Unavailable>,
    incident: Option<Incident>,
    /// Started at its first use.
    checkpointer: Option<Checkpointer>,
    check: Option<BackgroundCheck>,
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
        ledger.db.connection.wal_hook(Some(move |_: &mut Wal, pages| {
            pages_seen.store(pages, Ordering::Relaxed);
            written.store(true, Ordering::Relaxed);
            Ok(())
        }))?;
        let batches = BatchWriter {
            mode: access,
            path: ledger.db.connection.path().unwrap_or_default().into(),
            retries: VecDeque::new(),
            next_retry: clock::now(),
            wal_pages: log_pages,
            has_written,
            gate: gate.clone(),
            is_synchronous: true,
            broken: None,
            incident: None,
            checkpointer: None,
            check: None,
            lock,
        };
        Ok(Self { ledger, batches })
    }

    /// Checks the ledger while it is in use. It is closed cleanly only after the check has passed.
    pub(super) fn check_in_background(&mut self, reason: &'static str) -> io::Result<()> {
        let BatchWriter { path, gate, check, .. } = &mut self.batches;
        *check = Some(BackgroundCheck::start(path.clone(), reason, gate.clone())?);
        Ok(())
    }

    /// Runs one command on the caller's thread, after any retries that are due.
    pub(super) fn run_inline(&mut self, command: Box<dyn WriteCommand>) {
        if !self.batches.retries.is_empty() && self.batches.next_retry <= clock::now() {
            let retries = self.batches.retries.drain(..).collect();
            self.process(retries);
        }
        self.process(vec![command]);
        self.batches.checkpoint_wal();
    }

    /// Writes what is queued until the queue is closed.
    pub(super) fn run(mut self, commands: &CommandReceiver) {
        while let Some(batch) = self.next_batch(commands) {
            self.process(batch);
            if !self.batches.gate.stop.load(Ordering::Relaxed) {
                self.batches.checkpoint_wal();
            }
        }
        self.close();
    }

    /// Returns queued commands, or the retries if they are due. The two are not mixed, so that a
    /// failing command delays no other.
    fn next_batch(&mut self, commands: &CommandReceiver) -> Option<Vec<Box<dyn WriteCommand>>> {
        let BatchWriter { retries, next_retry, .. } = &mut self.batches;
        loop {
            let mut wait = MAX_DEFERRAL;
            if !retries.is_empty() {
                let pause = next_retry.saturating_duration_since(clock::now());
                if pause.is_zero() {
                    // Retries first, or a busy queue would delay them for ever.
                    return Some(retries.drain(..).collect());
                }
                wait = wait.min(pause);
            }
            let batch = commands.take(wait, MAX_BATCH)?;
            if !batch.is_empty() {
                return Some(batch);
            }
        }
    }

    fn process(&mut self, batch: Vec<Box<dyn WriteCommand>>) {
        self.batches.process(&self.ledger, batch);
    }

    /// Writes what still waits for a retry, and closes the ledger cleanly.
    pub(super) fn close(mut self) {
        let last: Vec<_> = self.batches.retries.drain(..).collect();
        if !last.is_empty() {
            self.process(last);
        }
        let Self { ledger, mut batches } = self;
        // Their connections would keep the log from being emptied.
        batches.checkpointer = None;
        let is_checked = batches.check.take().is_none_or(BackgroundCheck::has_passed);
        batches.take_reported_fault();
        if !batches.retries.is_empty() {
            tracing::error!(lost = batches.retries.len(), "ledger writes lost at shutdown");
        } else if batches.broken.is_none() && batches.lock.is_some() {
            // If another process has the file open, closing it would leave the log as it is.
            checkpoint::truncate(&ledger.db.connection, ledger.busy_timeout);
            batches.lock.iter_mut().for_each(|lock| lock.is_clean = is_checked);
        }
        // The lock is released after the connection is closed.
        drop(ledger);
    }
}

impl BatchWriter {
    /// If a command fails, or the disk is too full for the batch, each command runs alone.
    fn process(&mut self, ledger: &Ledger, mut batch: Vec<Box<dyn WriteCommand>>) {
        self.take_reported_fault();
        match self.commit(ledger, &mut batch) {
            Err(Failure { is_divisible: true, .. }) if batch.len() > 1 => {
                for mut command in batch {
                    let done = self.commit(ledger, slice::from_mut(&mut command));
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
        let fault = done.err().map(|fault| fault.unavailable());
        let answer = |command: Box<dyn WriteCommand>| command.answer(fault.as_ref());
        let undone: Vec<_> = batch.into_iter().filter_map(answer).collect();
        if !undone.is_empty() && self.broken.is_none() {
            self.retries.extend(undone);
            self.next_retry = clock::now() + RETRY_DELAY;
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
    fn commit(
        &mut self,
        ledger: &Ledger,
        batch: &mut [Box<dyn WriteCommand>],
    ) -> Result<(), Failure> {
        if let Some(why) = &self.broken {
            return Err(StoreError::Permanent(why.clone()).into());
        }
        self.set_synchronous(ledger, batch)?;
        let begun = clock::now();
        let begin = if self.mode == OpenMode::Read { "BEGIN" } else { "BEGIN IMMEDIATE" };
        ledger.db.run(begin, ())?;
        let execute = |sql| ledger.db.run(sql, ());
        let done = run(ledger, batch).and_then(|()| execute("COMMIT").map_err(Failure::from));
        match &done {
            Err(_) => {
                ledger.rolled_back();
                if !ledger.db.connection.is_autocommit() {
                    execute("ROLLBACK")
                        .map_err(|fault| StoreError::Permanent(fault.unavailable()))?;
                }
            }
            Ok(_) => self.committed(ledger, begun),
        }
        done.map(drop)
    }

    fn committed(&mut self, ledger: &Ledger, begun: clock::Instant) {
        let latest = ledger.latest_number.take();
        if let (Some(latest), Some(lock)) = (latest, &mut self.lock)
            && let Err(error) = lock.write_latest(latest)
        {
            let text = format!("failed to write the purchase number to the lock file: {error}");
            let why = Reason::new(Reason::from(error).cause, text);
            self.log_fault(&StoreError::Permanent(Unavailable(why)));
        }
        ledger.committed();
        if ledger.has_ended.take() {
            self.gate.ends.notify_waiters();
        }
        let has_written = self.has_written.swap(false, Ordering::Relaxed);
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
    fn set_synchronous(&mut self, ledger: &Ledger, batch: &[Box<dyn WriteCommand>]) -> Result<()> {
        if self.mode == OpenMode::Memory {
            return Ok(());
        }
        let is_full = needs_sync(ledger, batch)?;
        if is_full != self.is_synchronous {
            let synchronous = if is_full { "FULL" } else { "NORMAL" };
            ledger.db.connection.pragma_update(None, "synchronous", synchronous)?;
            self.is_synchronous = is_full;
        }
        Ok(())
    }

    /// Has a long write-ahead log copied into the file. A fault is seen before the next batch.
    fn checkpoint_wal(&mut self) {
        let pages = self.wal_pages.load(Ordering::Relaxed);
        if self.broken.is_some() || pages < WAL_CHECKPOINT_PAGES {
            return;
        }
        if self.checkpointer.is_none() {
            let (pages, gate) = (Arc::clone(&self.wal_pages), self.gate.clone());
            match Checkpointer::start(self.path.clone(), pages, gate) {
                Ok(checkpointer) => self.checkpointer = Some(checkpointer),
                Err(error) => {
                    let why = Unavailable(error.into());
                    self.log_fault(&StoreError::Transient(why));
                }
            }
        }
        match &self.checkpointer {
            Some(checkpointer) if pages < MAX_WAL_PAGES => checkpointer.request(),
            Some(checkpointer) => checkpointer.run(),
            None => {}
        }
    }

    fn take_reported_fault(&mut self) {
        let fault = lock(&self.gate.fault).take();
        if let Some(fault) = fault {
            self.log_fault(&fault);
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
                let cause = why.0.cause.code();
                if is_disk_full {
                    tracing::error!(cause, error = %why, "ledger disk full");
                } else {
                    tracing::error!(cause, error = %why, "ledger write failed");
                }
            }
            StoreError::Permanent(why) if self.broken.is_none() => {
                let cause = why.0.cause.code();
                tracing::error!(cause, error = %why, "ledger failed; nothing is written until a restart");
                if let Some(lock) = &mut self.lock {
                    lock.require_check();
                }
                self.broken = Some(why.clone());
            }
            StoreError::Permanent(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
