//! Owns the connection: drains its queue into one transaction, commits, and only then answers.
//!
//! Invariant: whoever is told that a step was done finds it done after a crash of this process; and
//! after a power cut too, where it concerned a dear purchase.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;
use std::{iter, slice};

use rusqlite::Connection;
use rusqlite::hooks::Wal;
use rusqlite::wal::CheckpointMode;
use tokio::sync::{Notify, oneshot};

use super::ledger::Ledger;
use super::lock::Lock;
use super::{StoreError, file};
use crate::clock;
use crate::store::{PurchaseId, Unavailable};

/// Whether verbs are answered; shared with the writer's thread.
#[derive(Clone, Default)]
pub(super) struct Admission {
    state: Arc<OnceLock<Result<(), Unavailable>>>,
    /// Too many ends wait to be written: no purchase begins.
    pub(super) is_retry_queue_full: Arc<AtomicBool>,
    /// Whoever opened it is gone.
    pub(super) stop: Arc<AtomicBool>,
    /// Woken when purchases have ended.
    pub(super) ends: Arc<Notify>,
}

impl Admission {
    pub(super) fn opened() -> Self {
        let admission = Self::default();
        admission.open();
        admission
    }

    pub(super) fn check(&self) -> Result<(), Unavailable> {
        let starting = || Err(Unavailable("starting: the ledger is being opened".into()));
        self.state.get().cloned().unwrap_or_else(starting)
    }

    pub(super) fn is_starting(&self) -> bool {
        self.state.get().is_none()
    }

    pub(super) fn open(&self) {
        // Where it could not be opened, that stays so.
        let _ = self.state.set(Ok(()));
    }

    pub(super) fn close(&self, why: Unavailable) {
        let _ = self.state.set(Err(why));
    }
}

/// Steps in one transaction: each waits for all, so there is a bound.
const MAX_BATCH: usize = 256;
/// Pages in the write-ahead log from which on it is copied into the file.
const WAL_CHECKPOINT_PAGES: i32 = 1_000;
/// How soon what nobody waits for is tried again after a fault.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// How much of that may wait: beyond it no purchase begins, until half of it is done.
const MAX_RETRIES: usize = 10_000;
/// A fault is over when something was written, and nothing has failed for so long.
const RECOVERY_PERIOD: Duration = Duration::from_secs(10);
const PAGE_BYTES: u64 = 4_096;

pub(super) type CommandQueue = mpsc::Receiver<Box<dyn WriteCommand>>;

/// How a transaction begins: a reader must not ask for the right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenMode {
    Write,
    Read,
    Memory,
}

pub(super) struct Writer {
    ledger: Ledger,
    mode: OpenMode,
    /// What nobody waits for and a fault undid.
    retries: VecDeque<Box<dyn WriteCommand>>,
    next_retry: clock::Instant,
    wal_pages: Arc<AtomicI32>,
    has_written: Arc<AtomicBool>,
    admission: Admission,
    is_synchronous: bool,
    broken: Option<Unavailable>,
    incident: Option<Incident>,
    /// Given back after the connection is closed.
    lock: Option<Lock>,
}

struct Incident {
    is_disk_full: bool,
    latest: clock::Instant,
}

impl Writer {
    pub(super) fn new(
        mut books: Ledger,
        access: OpenMode,
        lock: Option<Lock>,
        admission: &Admission,
    ) -> rusqlite::Result<Self> {
        let (log_pages, has_written) = (Arc::<AtomicI32>::default(), Arc::<AtomicBool>::default());
        let (seen, written) = (Arc::clone(&log_pages), Arc::clone(&has_written));
        // SQLite's own hook copies inside the commit, and hides it when that fails.
        books.connection.wal_hook(Some(move |_: &mut Wal, pages| {
            seen.store(pages, Ordering::Relaxed);
            written.store(true, Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Self {
            ledger: books,
            mode: access,
            retries: VecDeque::new(),
            next_retry: clock::now(),
            wal_pages: log_pages,
            has_written,
            admission: admission.clone(),
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
        }
        self.close();
    }

    /// Runs one step where it is asked for; before it, what an earlier fault undid.
    pub(super) fn run_inline(&mut self, step: Box<dyn WriteCommand>) {
        if !self.retries.is_empty() && self.next_retry <= clock::now() {
            let again = self.retries.drain(..).collect();
            self.process(again);
        }
        self.process(vec![step]);
        self.checkpoint_wal();
    }

    /// Writes what a fault undid, and leaves the file as the next server is to find it.
    pub(super) fn close(mut self) {
        let last = self.retries.drain(..).collect();
        self.process(last);
        if !self.retries.is_empty() {
            tracing::error!(lost = self.retries.len(), "the ledger could not write its last steps");
        } else if self.broken.is_none() && self.lock.is_some() {
            // Somebody else may have the file open, and then closing it would leave the log as it is.
            self.truncate_wal();
            self.lock.iter_mut().for_each(Lock::mark_clean);
        }
    }

    /// Whatever is queued; or, when its time has come, what a fault undid. These are not mixed, so that
    /// what failed once makes nobody wait.
    fn next_batch(&mut self, queue: &CommandQueue) -> Option<Vec<Box<dyn WriteCommand>>> {
        let first = if self.retries.is_empty() {
            queue.recv().ok()?
        } else if self.next_retry <= clock::now() {
            // First, or a busy queue would keep it waiting for ever.
            return Some(self.retries.drain(..).collect());
        } else {
            let pause = self.next_retry.saturating_duration_since(clock::now());
            match queue.recv_timeout(pause) {
                Ok(step) => step,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    return Some(self.retries.drain(..).collect());
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            }
        };
        Some(iter::once(first).chain(queue.try_iter().take(MAX_BATCH - 1)).collect())
    }

    /// Where there is no room for all together, there may be for some alone.
    fn process(&mut self, mut batch: Vec<Box<dyn WriteCommand>>) {
        match self.commit(&mut batch) {
            Err(StoreError::DiskFull(_)) if batch.len() > 1 => {
                for mut step in batch {
                    let done = self.commit(slice::from_mut(&mut step));
                    self.answer(vec![step], done);
                }
            }
            done => self.answer(batch, done),
        }
    }

    fn answer(&mut self, batch: Vec<Box<dyn WriteCommand>>, done: Result<(), StoreError>) {
        if let Err(fault) = &done {
            self.log_fault(fault);
        }
        let done = done.map_err(|fault| fault.unavailable());
        for step in batch {
            let undone = step.answer(done.as_ref().err());
            if let Some(step) = undone
                && self.broken.is_none()
            {
                self.retries.push_back(step);
                self.next_retry = clock::now() + RETRY_DELAY;
            }
        }
        self.limit_retries();
    }

    /// What is under way may still add to the list, but nothing new begins: so it is bounded, and loses nothing.
    fn limit_retries(&self) {
        let waiting = self.retries.len();
        if waiting >= MAX_RETRIES
            && !self.admission.is_retry_queue_full.swap(true, Ordering::Relaxed)
        {
            tracing::error!(waiting, "ledger retry list is full: no purchase begins");
        } else if waiting <= MAX_RETRIES / 2
            && self.admission.is_retry_queue_full.swap(false, Ordering::Relaxed)
        {
            tracing::info!(waiting, "ledger retry list has room again");
        }
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.ledger.connection
    }

    /// All steps in one transaction; a step that fails is undone alone.
    fn commit(&mut self, batch: &mut [Box<dyn WriteCommand>]) -> Result<(), StoreError> {
        if let Some(why) = &self.broken {
            return Err(StoreError::Permanent(why.clone()));
        }
        self.set_synchronous(batch)?;
        let connection = &self.ledger.connection;
        execute(connection, if self.mode == OpenMode::Read { "BEGIN" } else { "BEGIN IMMEDIATE" })?;
        let done = match batch {
            // With nothing beside it, the whole transaction is undone.
            [step] => step.run(&self.ledger),
            _ => {
                batch.iter_mut().try_for_each(|step| run_in_savepoint(&self.ledger, step.as_mut()))
            }
        };
        let done = done.and_then(|()| execute(connection, "COMMIT"));
        let latest = self.ledger.latest_number.take();
        match done {
            Err(_) => {
                self.ledger.replies.invalidate();
                if !connection.is_autocommit() {
                    execute(connection, "ROLLBACK")
                        .map_err(|fault| StoreError::Permanent(fault.unavailable()))?;
                }
            }
            Ok(()) => self.committed(latest),
        }
        done
    }

    /// What the lock file has to say of the ledger, and the log of faults.
    fn committed(&mut self, latest: Option<i64>) {
        if let (Some(latest), Some(lock)) = (latest, &mut self.lock)
            && let Err(error) = lock.write_latest(latest)
        {
            let why =
                format!("the number of a purchase could not be noted in the lock file: {error}");
            self.log_fault(&StoreError::Permanent(Unavailable(why.into())));
        }
        if let Some(fault) = self.ledger.step_error.take() {
            self.log_fault(&fault);
        }
        if self.ledger.has_ended.take() {
            self.admission.ends.notify_waiters();
        }
        let has_written = self.has_written.swap(false, Ordering::Relaxed);
        if has_written
            && self.incident.as_ref().is_some_and(|it| it.latest.elapsed() >= RECOVERY_PERIOD)
        {
            self.incident = None;
            tracing::info!("ledger writes again");
        }
    }

    /// Sets whether the commit waits until the disk has it; that cannot change within a transaction.
    fn set_synchronous(&mut self, batch: &[Box<dyn WriteCommand>]) -> Result<(), StoreError> {
        if self.mode == OpenMode::Memory {
            return Ok(());
        }
        let mut is_full = false;
        for step in batch {
            is_full |= match step.durability() {
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

    /// Copies the write-ahead log into the file between batches, so that no commit waits for it and a
    /// failure is seen.
    fn checkpoint_wal(&mut self) {
        if self.broken.is_some() || self.wal_pages.load(Ordering::Relaxed) < WAL_CHECKPOINT_PAGES {
            return;
        }
        match self.ledger.connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE) {
            // Somebody still reads what is in it: tried again after the next batch.
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

    /// Gives back the room of a log that a long reader made grow. Where somebody reads just now, the next
    /// writer cuts it: `journal_size_limit`.
    fn truncate_wal(&self) {
        let connection = &self.ledger.connection;
        let cut = || {
            connection.busy_timeout(Duration::ZERO)?;
            let cut = connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE);
            connection.busy_timeout(file::BUSY_TIMEOUT)?;
            cut
        };
        if let Err(error) = cut() {
            tracing::debug!(%error, "ledger log was not cut");
        }
    }

    /// One line when writing begins to fail, or fails for another reason; one when it is over.
    fn log_fault(&mut self, fault: &StoreError) {
        match fault {
            StoreError::Transient(why) | StoreError::DiskFull(why) => {
                let is_room = matches!(fault, StoreError::DiskFull(_));
                let trouble = Incident { is_disk_full: is_room, latest: clock::now() };
                let before = self.incident.replace(trouble);
                if before.is_some_and(|before| before.is_disk_full == is_room) {
                    return;
                }
                match is_room {
                    true => tracing::error!(%why, "ledger disk is full"),
                    false => tracing::error!(%why, "ledger write failed"),
                }
            }
            StoreError::Permanent(why) if self.broken.is_none() => {
                tracing::error!(%why, "the ledger writes nothing more until a restart");
                self.broken = Some(why.clone());
            }
            StoreError::Permanent(_) => {}
        }
    }
}

/// Runs a step so that, if it fails, only that step is undone. An error is one of the whole batch.
fn run_in_savepoint(books: &Ledger, step: &mut dyn WriteCommand) -> Result<(), StoreError> {
    let connection = &books.connection;
    execute(connection, "SAVEPOINT step")?;
    match step.run(books) {
        Ok(()) => execute(connection, "RELEASE step"),
        Err(fault) => {
            books.replies.invalidate();
            // Some faults make SQLite undo the whole transaction.
            if matches!(fault, StoreError::Permanent(_)) || connection.is_autocommit() {
                return Err(fault);
            }
            execute(connection, "ROLLBACK TO step")?;
            execute(connection, "RELEASE step")?;
            step.failed(fault.unavailable());
            books.step_error.set(Some(fault));
            Ok(())
        }
    }
}

fn execute(connection: &Connection, statement: &str) -> Result<(), StoreError> {
    connection.prepare_cached(statement)?.execute([])?;
    Ok(())
}

/// Whether a commit has to wait for the disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Durability {
    Buffered,
    Synced,
    /// As dear as that purchase.
    OfPurchase(PurchaseId),
}

/// Something to be done inside a transaction. It may be run again when that was rolled back.
pub(super) trait WriteCommand: Send {
    fn durability(&self) -> Durability;

    fn run(&mut self, books: &Ledger) -> Result<(), StoreError>;

    /// It alone was undone.
    fn failed(&mut self, why: Unavailable);

    /// Tells whoever waits, after the commit or what went wrong with it; gives back what nobody waits
    /// for and has to be tried again.
    fn answer(self: Box<Self>, fault: Option<&Unavailable>) -> Option<Box<dyn WriteCommand>>;
}

type Answer<T> = Result<T, Unavailable>;

struct Task<T, F> {
    weight: Durability,
    work: F,
    outcome: Option<Answer<T>>,
    /// Whoever waits.
    answer: Option<oneshot::Sender<Answer<T>>>,
}

/// A step that somebody waits for.
pub(super) fn request<T: Send + 'static>(
    weight: Durability,
    work: impl FnMut(&Ledger) -> Result<T, StoreError> + Send + 'static,
) -> (Box<dyn WriteCommand>, oneshot::Receiver<Answer<T>>) {
    let (answer, answered) = oneshot::channel();
    (Box::new(Task { weight, work, outcome: None, answer: Some(answer) }), answered)
}

/// A step that nobody waits for.
pub(super) fn notification(
    weight: Durability,
    work: impl FnMut(&Ledger) -> Result<(), StoreError> + Send + 'static,
) -> Box<dyn WriteCommand> {
    Box::new(Task { weight, work, outcome: None, answer: None })
}

impl<T, F> WriteCommand for Task<T, F>
where
    T: Send + 'static,
    F: FnMut(&Ledger) -> Result<T, StoreError> + Send + 'static,
{
    fn durability(&self) -> Durability {
        self.weight
    }

    fn run(&mut self, books: &Ledger) -> Result<(), StoreError> {
        self.outcome = Some(Ok((self.work)(books)?));
        Ok(())
    }

    fn failed(&mut self, why: Unavailable) {
        self.outcome = Some(Err(why));
    }

    fn answer(mut self: Box<Self>, fault: Option<&Unavailable>) -> Option<Box<dyn WriteCommand>> {
        let undone = || Err(Unavailable("the step was not reached".into()));
        let outcome = match fault {
            Some(why) => Err(why.clone()),
            None => self.outcome.take().unwrap_or_else(undone),
        };
        match self.answer.take() {
            Some(answer) => {
                // Whoever asked may have gone; a purchase that is left so is settled by its own guard.
                let _ = answer.send(outcome);
                None
            }
            None => outcome.is_err().then_some(self),
        }
    }
}

#[cfg(test)]
mod tests;
