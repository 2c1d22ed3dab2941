//! The writer's thread, and callers that run a command on their own.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{
    BatchWriter, Failure, MAX_BATCH, MAX_DEFERRAL, WAL_CHECKPOINT_PAGES, Writer, needs_sync,
};
use crate::clock;
use crate::store::sqlite::command::WriteCommand;
use crate::store::sqlite::command_queue::{CommandReceiver, Release};
use crate::store::sqlite::ledger::Ledger;
use crate::sync::lock;

/// The writer of a file: its thread has it for each batch, and a caller for a command that is alone.
/// If it panics, it is dropped with what it had begun, and no other command runs.
#[derive(Clone, Default)]
pub(in crate::store::sqlite) struct SharedWriter(pub(super) Arc<Mutex<Option<Box<Writer>>>>);

impl SharedWriter {
    /// Writes what is queued until the queue is closed.
    pub(in crate::store::sqlite) fn run(&self, writer: Writer, commands: &CommandReceiver) {
        *lock(&self.0) = Some(Box::new(writer));
        while let Some(batch) = self.next_batch(commands) {
            let Some(mut writer) = lock(&self.0).take() else { return };
            let returned = commands.take_returned();
            if !returned.is_empty() {
                writer.process(returned);
            }
            writer.process(batch);
            if !writer.batches.gate.stop.load(Ordering::Relaxed) {
                writer.batches.checkpoint_wal();
            }
            *lock(&self.0) = Some(writer);
        }
        let Some(mut writer) = lock(&self.0).take() else { return };
        // A caller may have put a command back.
        while let Some(batch) = commands.take(Duration::ZERO, MAX_BATCH) {
            writer.process(batch);
        }
        writer.close();
    }

    /// Returns queued commands, or the retries if they are due. The two are not mixed, so that a
    /// failing command delays no other.
    pub(super) fn next_batch(
        &self,
        commands: &CommandReceiver,
    ) -> Option<Vec<Box<dyn WriteCommand>>> {
        loop {
            let mut wait = MAX_DEFERRAL;
            let mut shared = lock(&self.0);
            let Writer { batches, .. } = shared.as_deref_mut()?;
            if !batches.retries.is_empty() {
                let pause = batches.next_retry.saturating_duration_since(clock::now());
                if pause.is_zero() {
                    // Retries first, or a busy queue would delay them for ever.
                    return Some(batches.retries.drain(..).collect());
                }
                wait = wait.min(pause);
            }
            drop(shared);
            let batch = commands.take(wait, MAX_BATCH)?;
            if !batch.is_empty() {
                return Some(batch);
            }
        }
    }

    /// Runs the only command on this thread, because to wake the writer's would take as long. It is
    /// left in the queue if it may have to wait.
    pub(in crate::store::sqlite) fn run_alone(&self, release: &Release<'_>) {
        let Ok(mut shared) = self.0.try_lock() else { return };
        let Some(mut writer) = shared.take() else { return };
        if let Some(batch) = release.take_alone() {
            // The caller goes on without an answer, as if the writer's thread had panicked.
            let process = AssertUnwindSafe(|| writer.process_at_once(batch));
            let Ok(rest) = panic::catch_unwind(process) else { return };
            if let Some(batch) = rest {
                release.put_back(batch);
            }
        }
        *shared = Some(writer);
    }
}

impl Writer {
    /// Runs a batch, or returns it if that may wait for a sync or for another process.
    fn process_at_once(
        &mut self,
        batch: Vec<Box<dyn WriteCommand>>,
    ) -> Option<Vec<Box<dyn WriteCommand>>> {
        self.batches.process_at_once(&self.ledger, batch)
    }
}

impl BatchWriter {
    /// Returns whether a batch neither waits for the disk nor does more than its own commands.
    fn is_quick(&self, ledger: &Ledger, batch: &[Box<dyn WriteCommand>]) -> bool {
        // Purchases that run at once share transactions if the thread gathers them.
        ledger.running.borrow().len() <= 1
            // After a checkpoint of the whole log, the next transaction syncs its new start.
            && (1..WAL_CHECKPOINT_PAGES).contains(&self.wal_pages.load(Ordering::Relaxed))
            && self.broken.is_none()
            && self.incident.is_none()
            && self.retries.is_empty()
            && !ledger.dedupe_keys.borrow().are_due()
            && ledger.replies.are_counted()
            && needs_sync(ledger, batch).is_ok_and(|needs_sync| !needs_sync)
    }

    fn process_at_once(
        &mut self,
        ledger: &Ledger,
        mut batch: Vec<Box<dyn WriteCommand>>,
    ) -> Option<Vec<Box<dyn WriteCommand>>> {
        self.take_reported_fault();
        let connection = &ledger.db.connection;
        if connection.busy_timeout(Duration::ZERO).is_err() {
            return Some(batch);
        }
        let is_quick = self.is_quick(ledger, &batch);
        let begun = is_quick.then(|| self.begin(ledger, &batch).ok()).flatten();
        connection.busy_timeout(ledger.busy_timeout).ok();
        // It may take long, or another process writes.
        let Some(begun) = begun else { return Some(batch) };
        match self.commit_begun(ledger, &mut batch, begun) {
            // It was rolled back; the thread finds the command that fails.
            Err(Failure { is_divisible: true, .. }) if batch.len() > 1 => Some(batch),
            done => {
                self.answer(batch, done.map_err(|failure| failure.fault));
                None
            }
        }
    }
}
