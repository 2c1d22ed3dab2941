//! Owns the connection. Drains its queue into one transaction, commits it, and only then replies.
//!
//! Invariant: a command that was reported as done survives a crash of this process. If it concerns
//! an expensive purchase, it also survives a power failure.

mod command;
mod gate;
mod queue;
mod reader;

use std::collections::VecDeque;
use std::slice;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Unavailable;
use super::engine::{Result, StoreError};
use super::tables::Ledger;
use crate::clock;
use crate::sync::lock;

pub(super) use command::{Durability, WriteCommand, notification, request};
pub(super) use gate::CommandGate;
pub(super) use queue::{CommandQueue, CommandReceiver, Release};
pub(super) use reader::ReportReader;

const MAX_BATCH: usize = 256;
const MAX_DEFERRAL: Duration = Duration::from_secs(1);
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Commands that may wait for a retry. Beyond it no purchase begins until half of them are done.
const MAX_RETRIES: usize = 10_000;
/// A fault is over after a write, and this long without another fault.
const RECOVERY_PERIOD: Duration = Duration::from_secs(10);

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

pub(in crate::ledger) struct Writer {
    pub(in crate::ledger) ledger: Ledger,
    /// Notifications that a fault rolled back.
    retries: VecDeque<Box<dyn WriteCommand>>,
    next_retry: clock::Instant,
    /// The last batch was one of retries.
    has_retried: bool,
    gate: CommandGate,
    broken: Option<Unavailable>,
    incident: Option<Incident>,
}

/// Runs the commands of a transaction.
fn run(ledger: &Ledger, batch: &mut [Box<dyn WriteCommand>]) -> Result<(), Failure> {
    for command in batch {
        command.run(ledger).map_err(Failure::of_command)?;
    }
    ledger.write_counters().map_err(Failure::of_command)
}

/// Returns whether the commit waits for the disk.
fn needs_sync(ledger: &Ledger, batch: &[Box<dyn WriteCommand>]) -> Result<bool> {
    let mut is_full = false;
    if !ledger.db.chooses_durability() {
        return Ok(true);
    }
    for command in batch {
        is_full |= match command.durability() {
            Durability::Buffered => false,
            Durability::Synced => true,
            Durability::OfPurchase(id) => !is_full && ledger.needs_sync(id)?,
        };
    }
    Ok(is_full)
}

impl Writer {
    pub(in crate::ledger) fn new(ledger: Ledger, gate: &CommandGate) -> Self {
        Self {
            ledger,
            retries: VecDeque::new(),
            next_retry: clock::now(),
            has_retried: false,
            gate: gate.clone(),
            broken: None,
            incident: None,
        }
    }

    /// Runs one command on the caller's thread, after any retries that are due.
    pub(in crate::ledger) fn run_inline(&mut self, command: Box<dyn WriteCommand>) {
        if !self.retries.is_empty() && self.next_retry <= clock::now() {
            let retries = self.retries.drain(..).collect();
            self.process(retries);
        }
        self.process(vec![command]);
        self.ledger.db.maintain();
    }

    /// Writes what is queued until the queue is closed.
    pub(in crate::ledger) fn run(mut self, commands: &CommandReceiver) {
        while let Some(batch) = self.next_batch(commands) {
            if !batch.is_empty() {
                self.process(batch);
            }
            if !self.gate.stop.load(Ordering::Relaxed) {
                self.ledger.db.maintain();
            }
        }
        self.close();
    }

    /// Returns queued commands, or the retries if they are due. The two are not mixed, so that a
    /// failing command delays no other, and they take turns, however long each takes. It returns none if
    /// nothing comes for a second.
    fn next_batch(&mut self, commands: &CommandReceiver) -> Option<Vec<Box<dyn WriteCommand>>> {
        let mut wait = MAX_DEFERRAL;
        let has_retried = std::mem::take(&mut self.has_retried);
        if !self.retries.is_empty() {
            let pause = self.next_retry.saturating_duration_since(clock::now());
            if pause.is_zero() && !has_retried {
                // Retries first, or a busy queue would delay them for ever.
                self.has_retried = true;
                let count = self.retries.len().min(MAX_BATCH);
                return Some(self.retries.drain(..count).collect());
            }
            wait = wait.min(pause);
        }
        commands.take(wait, MAX_BATCH)
    }

    /// Writes what still waits for a retry, and closes the ledger cleanly.
    pub(in crate::ledger) fn close(mut self) {
        let last: Vec<_> = self.retries.drain(..).collect();
        if !last.is_empty() {
            self.process(last);
        }
        let is_checked = self.ledger.db.stop();
        self.take_reported_fault();
        let lost = self.retries.len();
        if lost > 0 {
            tracing::error!(lost, "ledger writes lost at shutdown");
        }
        self.ledger.db.close(lost == 0 && self.broken.is_none(), is_checked);
    }

    /// If a command fails, or the disk is too full for the batch, each command runs alone.
    fn process(&mut self, mut batch: Vec<Box<dyn WriteCommand>>) {
        self.take_reported_fault();
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

    /// Runs all commands in one transaction. If one fails, all are rolled back. If the connection has
    /// ended, they run once more.
    fn commit(&mut self, batch: &mut [Box<dyn WriteCommand>]) -> Result<(), Failure> {
        match self.try_commit(batch) {
            Err(Failure { fault: StoreError::Disconnected(_), .. }) => self.try_commit(batch),
            done => done,
        }
    }

    fn try_commit(&mut self, batch: &mut [Box<dyn WriteCommand>]) -> Result<(), Failure> {
        if let Some(why) = &self.broken {
            return Err(StoreError::Permanent(why.clone()).into());
        }
        let Self { ledger, .. } = self;
        let is_synced = needs_sync(ledger, batch)?;
        let begun = clock::now();
        let done = ledger.begin(is_synced).map_err(Failure::from).and_then(|()| {
            run(ledger, batch)?;
            Ok(ledger.commit()?)
        });
        match done {
            Ok(has_written) => self.committed(has_written.then_some(begun)),
            Err(_) => ledger.roll_back()?,
        }
        done.map(drop)
    }

    /// `begun` is when a transaction began that has written something.
    fn committed(&mut self, begun: Option<clock::Instant>) {
        if self.ledger.has_ended.take() {
            self.gate.ends.notify_waiters();
        }
        let Some(begun) = begun else { return };
        // The number of the newest purchase may not have reached the lock file.
        self.take_reported_fault();
        self.gate.commits.observe(clock::now().saturating_duration_since(begun));
        if self.incident.as_ref().is_some_and(|fault| fault.at.elapsed() >= RECOVERY_PERIOD) {
            self.incident = None;
            tracing::info!("ledger writes recovered");
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
            StoreError::Transient(why)
            | StoreError::Disconnected(why)
            | StoreError::DiskFull(why) => {
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
                self.ledger.db.fail();
                self.broken = Some(why.clone());
            }
            StoreError::Permanent(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
