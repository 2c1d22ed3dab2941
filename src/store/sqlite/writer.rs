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

use super::books::Books;
use super::lock::Lock;
use super::{Fault, file};
use crate::clock;
use crate::store::{PurchaseId, Unavailable};

/// Whether verbs are answered; shared with the writer's thread.
#[derive(Clone, Default)]
pub(super) struct Admission {
    state: Arc<OnceLock<Result<(), Unavailable>>>,
    /// Too many ends wait to be written: no purchase begins.
    pub(super) is_full: Arc<AtomicBool>,
    /// Whoever opened it is gone.
    pub(super) stop: Arc<AtomicBool>,
    /// Woken when purchases have ended.
    pub(super) ends: Arc<Notify>,
}

impl Admission {
    pub(super) fn opened() -> Self {
        let admission = Self::default();
        admission.admit();
        admission
    }

    pub(super) fn pass(&self) -> Result<(), Unavailable> {
        let starting = || Err(Unavailable("starting: the ledger is being opened".into()));
        self.state.get().cloned().unwrap_or_else(starting)
    }

    pub(super) fn is_starting(&self) -> bool {
        self.state.get().is_none()
    }

    pub(super) fn admit(&self) {
        // Where it could not be opened, that stays so.
        let _ = self.state.set(Ok(()));
    }

    pub(super) fn close(&self, why: Unavailable) {
        let _ = self.state.set(Err(why));
    }
}

/// Steps in one transaction: each waits for all, so there is a bound.
const BATCH: usize = 256;
/// Pages in the write-ahead log from which on it is copied into the file.
const LOG_PAGES: i32 = 1_000;
/// How soon what nobody waits for is tried again after a fault.
const AGAIN: Duration = Duration::from_millis(500);
/// How much of that may wait: beyond it no purchase begins, until half of it is done.
const MAX_AGAIN: usize = 10_000;
/// A fault is over when something was written, and nothing has failed for so long.
const IS_OVER: Duration = Duration::from_secs(10);
const PAGE_BYTES: u64 = 4_096;

pub(super) type Queue = mpsc::Receiver<Box<dyn Step>>;

/// How a transaction begins: a reader must not ask for the right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Write,
    Read,
    Memory,
}

pub(super) struct Writer {
    books: Books,
    access: Access,
    /// What nobody waits for and a fault undid.
    again: VecDeque<Box<dyn Step>>,
    next_try: clock::Instant,
    log_pages: Arc<AtomicI32>,
    has_written: Arc<AtomicBool>,
    admission: Admission,
    is_full: bool,
    broken: Option<Unavailable>,
    trouble: Option<Trouble>,
    /// Given back after the connection is closed.
    lock: Option<Lock>,
}

struct Trouble {
    is_room: bool,
    latest: clock::Instant,
}

impl Writer {
    pub(super) fn new(
        mut books: Books,
        access: Access,
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
            books,
            access,
            again: VecDeque::new(),
            next_try: clock::now(),
            log_pages,
            has_written,
            admission: admission.clone(),
            is_full: true,
            broken: None,
            trouble: None,
            lock,
        })
    }

    pub(super) fn run(mut self, queue: &Queue) {
        while let Some(batch) = self.next_batch(queue) {
            self.process(batch);
            self.copy_log();
        }
        self.finish();
    }

    /// Runs one step where it is asked for; before it, what an earlier fault undid.
    pub(super) fn run_inline(&mut self, step: Box<dyn Step>) {
        if !self.again.is_empty() && self.next_try <= clock::now() {
            let again = self.again.drain(..).collect();
            self.process(again);
        }
        self.process(vec![step]);
        self.copy_log();
    }

    /// Writes what a fault undid, and leaves the file as the next server is to find it.
    pub(super) fn finish(mut self) {
        let last = self.again.drain(..).collect();
        self.process(last);
        if !self.again.is_empty() {
            tracing::error!(lost = self.again.len(), "the ledger could not write its last steps");
        } else if self.broken.is_none() && self.lock.is_some() {
            // Somebody else may have the file open, and then closing it would leave the log as it is.
            self.cut_log();
            self.lock.iter_mut().for_each(Lock::is_done);
        }
    }

    /// Whatever is queued; or, when its time has come, what a fault undid. These are not mixed, so that
    /// what failed once makes nobody wait.
    fn next_batch(&mut self, queue: &Queue) -> Option<Vec<Box<dyn Step>>> {
        let first = if self.again.is_empty() {
            queue.recv().ok()?
        } else if self.next_try <= clock::now() {
            // First, or a busy queue would keep it waiting for ever.
            return Some(self.again.drain(..).collect());
        } else {
            let pause = self.next_try.saturating_duration_since(clock::now());
            match queue.recv_timeout(pause) {
                Ok(step) => step,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    return Some(self.again.drain(..).collect());
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            }
        };
        Some(iter::once(first).chain(queue.try_iter().take(BATCH - 1)).collect())
    }

    /// Where there is no room for all together, there may be for some alone.
    fn process(&mut self, mut batch: Vec<Box<dyn Step>>) {
        match self.commit(&mut batch) {
            Err(Fault::Full(_)) if batch.len() > 1 => {
                for mut step in batch {
                    let done = self.commit(slice::from_mut(&mut step));
                    self.answer(vec![step], done);
                }
            }
            done => self.answer(batch, done),
        }
    }

    fn answer(&mut self, batch: Vec<Box<dyn Step>>, done: Result<(), Fault>) {
        if let Err(fault) = &done {
            self.note(fault);
        }
        let done = done.map_err(|fault| fault.unavailable());
        for step in batch {
            let undone = step.answer(done.as_ref().err());
            if let Some(step) = undone
                && self.broken.is_none()
            {
                self.again.push_back(step);
                self.next_try = clock::now() + AGAIN;
            }
        }
        self.bound_again();
    }

    /// What is under way may still add to the list, but nothing new begins: so it is bounded, and loses nothing.
    fn bound_again(&self) {
        let waiting = self.again.len();
        if waiting >= MAX_AGAIN && !self.admission.is_full.swap(true, Ordering::Relaxed) {
            tracing::error!(waiting, "ledger retry list is full: no purchase begins");
        } else if waiting <= MAX_AGAIN / 2 && self.admission.is_full.swap(false, Ordering::Relaxed)
        {
            tracing::info!(waiting, "ledger retry list has room again");
        }
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.books.connection
    }

    /// All steps in one transaction; a step that fails is undone alone.
    fn commit(&mut self, batch: &mut [Box<dyn Step>]) -> Result<(), Fault> {
        if let Some(why) = &self.broken {
            return Err(Fault::Lasting(why.clone()));
        }
        self.wait_for_the_disk(batch)?;
        let connection = &self.books.connection;
        run(connection, if self.access == Access::Read { "BEGIN" } else { "BEGIN IMMEDIATE" })?;
        let done = match batch {
            // With nothing beside it, the whole transaction is undone.
            [step] => step.run(&self.books),
            _ => batch.iter_mut().try_for_each(|step| isolate(&self.books, step.as_mut())),
        };
        let done = done.and_then(|()| run(connection, "COMMIT"));
        let latest = self.books.latest.take();
        match done {
            Err(_) => {
                self.books.replies.count_anew();
                if !connection.is_autocommit() {
                    run(connection, "ROLLBACK")
                        .map_err(|fault| Fault::Lasting(fault.unavailable()))?;
                }
            }
            Ok(()) => self.committed(latest),
        }
        done
    }

    /// What the lock file has to say of the ledger, and the log of faults.
    fn committed(&mut self, latest: Option<i64>) {
        if let (Some(latest), Some(lock)) = (latest, &mut self.lock)
            && let Err(error) = lock.note(latest)
        {
            let why =
                format!("the number of a purchase could not be noted in the lock file: {error}");
            self.note(&Fault::Lasting(Unavailable(why.into())));
        }
        if let Some(fault) = self.books.fault.take() {
            self.note(&fault);
        }
        if self.books.has_ended.take() {
            self.admission.ends.notify_waiters();
        }
        let has_written = self.has_written.swap(false, Ordering::Relaxed);
        if has_written && self.trouble.as_ref().is_some_and(|it| it.latest.elapsed() >= IS_OVER) {
            self.trouble = None;
            tracing::info!("ledger writes again");
        }
    }

    /// Sets whether the commit waits until the disk has it; that cannot change within a transaction.
    fn wait_for_the_disk(&mut self, batch: &[Box<dyn Step>]) -> Result<(), Fault> {
        if self.access == Access::Memory {
            return Ok(());
        }
        let mut is_full = false;
        for step in batch {
            is_full |= match step.weight() {
                Weight::Cheap => false,
                Weight::Dear => true,
                Weight::Of(id) => !is_full && self.books.is_dear(id)?,
            };
        }
        if is_full != self.is_full {
            let synchronous = if is_full { "FULL" } else { "NORMAL" };
            self.books.connection.pragma_update(None, "synchronous", synchronous)?;
            self.is_full = is_full;
        }
        Ok(())
    }

    /// Copies the write-ahead log into the file between batches, so that no commit waits for it and a
    /// failure is seen.
    fn copy_log(&mut self) {
        if self.broken.is_some() || self.log_pages.load(Ordering::Relaxed) < LOG_PAGES {
            return;
        }
        match self.books.connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE) {
            // Somebody still reads what is in it: tried again after the next batch.
            Ok((pages, copied)) if copied < pages => {}
            Ok((pages, _)) => {
                self.log_pages.store(0, Ordering::Relaxed);
                if u64::try_from(pages).unwrap_or_default() * PAGE_BYTES > file::LOG_BYTES {
                    self.cut_log();
                }
            }
            Err(error) => {
                self.log_pages.store(0, Ordering::Relaxed);
                self.note(&Fault::from(error));
            }
        }
    }

    /// Gives back the room of a log that a long reader made grow. Where somebody reads just now, the next
    /// writer cuts it: `journal_size_limit`.
    fn cut_log(&self) {
        let connection = &self.books.connection;
        let cut = || {
            connection.busy_timeout(Duration::ZERO)?;
            let cut = connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE);
            connection.busy_timeout(file::PATIENCE)?;
            cut
        };
        if let Err(error) = cut() {
            tracing::debug!(%error, "ledger log was not cut");
        }
    }

    /// One line when writing begins to fail, or fails for another reason; one when it is over.
    fn note(&mut self, fault: &Fault) {
        match fault {
            Fault::Passing(why) | Fault::Full(why) => {
                let is_room = matches!(fault, Fault::Full(_));
                let trouble = Trouble { is_room, latest: clock::now() };
                let before = self.trouble.replace(trouble);
                if before.is_some_and(|before| before.is_room == is_room) {
                    return;
                }
                match is_room {
                    true => tracing::error!(%why, "ledger disk is full"),
                    false => tracing::error!(%why, "ledger write failed"),
                }
            }
            Fault::Lasting(why) if self.broken.is_none() => {
                tracing::error!(%why, "the ledger writes nothing more until a restart");
                self.broken = Some(why.clone());
            }
            Fault::Lasting(_) => {}
        }
    }
}

/// Runs a step so that, if it fails, only that step is undone. An error is one of the whole batch.
fn isolate(books: &Books, step: &mut dyn Step) -> Result<(), Fault> {
    let connection = &books.connection;
    run(connection, "SAVEPOINT step")?;
    match step.run(books) {
        Ok(()) => run(connection, "RELEASE step"),
        Err(fault) => {
            books.replies.count_anew();
            // Some faults make SQLite undo the whole transaction.
            if matches!(fault, Fault::Lasting(_)) || connection.is_autocommit() {
                return Err(fault);
            }
            run(connection, "ROLLBACK TO step")?;
            run(connection, "RELEASE step")?;
            step.failed(fault.unavailable());
            books.fault.set(Some(fault));
            Ok(())
        }
    }
}

fn run(connection: &Connection, statement: &str) -> Result<(), Fault> {
    connection.prepare_cached(statement)?.execute([])?;
    Ok(())
}

/// Whether a commit has to wait for the disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Weight {
    Cheap,
    Dear,
    /// As dear as that purchase.
    Of(PurchaseId),
}

/// Something to be done inside a transaction. It may be run again when that was rolled back.
pub(super) trait Step: Send {
    fn weight(&self) -> Weight;

    fn run(&mut self, books: &Books) -> Result<(), Fault>;

    /// It alone was undone.
    fn failed(&mut self, why: Unavailable);

    /// Tells whoever waits, after the commit or what went wrong with it; gives back what nobody waits
    /// for and has to be tried again.
    fn answer(self: Box<Self>, fault: Option<&Unavailable>) -> Option<Box<dyn Step>>;
}

type Answer<T> = Result<T, Unavailable>;

struct Task<T, F> {
    weight: Weight,
    work: F,
    outcome: Option<Answer<T>>,
    /// Whoever waits.
    answer: Option<oneshot::Sender<Answer<T>>>,
}

/// A step that somebody waits for.
pub(super) fn awaited<T: Send + 'static>(
    weight: Weight,
    work: impl FnMut(&Books) -> Result<T, Fault> + Send + 'static,
) -> (Box<dyn Step>, oneshot::Receiver<Answer<T>>) {
    let (answer, answered) = oneshot::channel();
    (Box::new(Task { weight, work, outcome: None, answer: Some(answer) }), answered)
}

/// A step that nobody waits for.
pub(super) fn noted(
    weight: Weight,
    work: impl FnMut(&Books) -> Result<(), Fault> + Send + 'static,
) -> Box<dyn Step> {
    Box::new(Task { weight, work, outcome: None, answer: None })
}

impl<T, F> Step for Task<T, F>
where
    T: Send + 'static,
    F: FnMut(&Books) -> Result<T, Fault> + Send + 'static,
{
    fn weight(&self) -> Weight {
        self.weight
    }

    fn run(&mut self, books: &Books) -> Result<(), Fault> {
        self.outcome = Some(Ok((self.work)(books)?));
        Ok(())
    }

    fn failed(&mut self, why: Unavailable) {
        self.outcome = Some(Err(why));
    }

    fn answer(mut self: Box<Self>, fault: Option<&Unavailable>) -> Option<Box<dyn Step>> {
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
