//! The ledger's file, as its writer has it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::hooks::Wal;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, ErrorCode};

use super::check::BackgroundCheck;
use super::file::{self, FileId, Purpose};
use super::identity::{self, LedgerIdentity, Nonce};
use super::lock::Lock;
use crate::clock;
use crate::ledger::engine::{Begun, Engine, Result, Sql, StoreError, WriterEngine};
use crate::ledger::tables::read;
use crate::ledger::writer::CommandGate;
use crate::ledger::{Clock, Reason, Unavailable};

const PAGE_BYTES: u64 = 4_096;
/// Each checkpoint costs two fsyncs, and each restart of the log another one of the writer, so both
/// should be rare. A page that many transactions have changed is copied once.
pub(in crate::ledger) const WAL_CHECKPOINT_PAGES: i32 = 8_000;
/// From this many pages on, the writer waits for the checkpoint, so that the log starts over.
pub(in crate::ledger) const MAX_WAL_PAGES: i32 = 2 * WAL_CHECKPOINT_PAGES;

/// How transactions begin. A reader must not ask for the write lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ledger) enum OpenMode {
    Write,
    Read,
    Memory,
}

pub(in crate::ledger) struct LedgerFile {
    connection: Connection,
    mode: OpenMode,
    path: PathBuf,
    clock: Clock,
    since_boot: Clock,
    /// SQLite's number of the last commit of another process.
    data_version: Cell<i64>,
    is_synchronous: Cell<bool>,
    pub(in crate::ledger) wal_pages: Arc<AtomicI32>,
    has_written: Arc<AtomicBool>,
    has_failed: Cell<bool>,
    gate: CommandGate,
    checkpoint: RefCell<Option<JoinHandle<()>>>,
    check: RefCell<Option<BackgroundCheck>>,
    /// The file as the server that owns it found it.
    owned: Cell<Option<(FileId, Nonce)>>,
    /// The name that it got while it is open.
    renamed: RefCell<Option<Arc<str>>>,
    /// Released after the connection is closed.
    lock: RefCell<Option<Lock>>,
}

impl LedgerFile {
    pub(in crate::ledger) fn new(
        mut connection: Connection,
        mode: OpenMode,
        (clock, since_boot): (Clock, Clock),
        gate: &CommandGate,
    ) -> rusqlite::Result<Self> {
        let (wal_pages, has_written) = (Arc::<AtomicI32>::default(), Arc::<AtomicBool>::default());
        let (pages_seen, written) = (Arc::clone(&wal_pages), Arc::clone(&has_written));
        // SQLite's own hook copies inside the commit, and hides an error.
        connection.wal_hook(Some(move |_: &mut Wal, pages| {
            pages_seen.store(pages, Ordering::Relaxed);
            written.store(true, Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Self {
            mode,
            path: connection.path().unwrap_or_default().into(),
            connection,
            clock,
            since_boot,
            data_version: Cell::default(),
            is_synchronous: Cell::new(true),
            wal_pages,
            has_written,
            has_failed: Cell::default(),
            gate: gate.clone(),
            checkpoint: RefCell::default(),
            check: RefCell::default(),
            owned: Cell::default(),
            renamed: RefCell::default(),
            lock: RefCell::default(),
        })
    }

    /// Returns the engine as a file, if it is one.
    pub(in crate::ledger) fn of(engine: &dyn WriterEngine) -> Option<&Self> {
        (engine as &dyn Any).downcast_ref()
    }

    pub(in crate::ledger) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Keeps the lock until the file is closed.
    pub(super) fn hold(&self, lock: Option<Lock>) {
        *self.lock.borrow_mut() = lock;
    }

    /// From now on, [`ensure_own`](WriterEngine::ensure_own) looks for this file.
    pub(super) fn own(&self, file: FileId, identity: &LedgerIdentity) {
        self.owned.set(Some((file, identity.state.nonce)));
    }

    /// Checks the ledger while it is in use. It is closed cleanly only after the check has passed.
    pub(in crate::ledger) fn check_in_background(
        &self,
        reason: &'static str,
    ) -> std::io::Result<()> {
        let check = BackgroundCheck::start(self.path.clone(), reason, self.gate.clone())?;
        *self.check.borrow_mut() = Some(check);
        Ok(())
    }

    /// Sets whether the commit waits for the disk. That cannot change within a transaction.
    fn set_synchronous(&self, is_synced: bool) -> Result<()> {
        if self.mode != OpenMode::Memory && is_synced != self.is_synchronous.get() {
            let synchronous = if is_synced { "FULL" } else { "NORMAL" };
            self.connection().pragma_update(None, "synchronous", synchronous)?;
            self.is_synchronous.set(is_synced);
        }
        Ok(())
    }
}

impl WriterEngine for LedgerFile {
    fn statements(&self) -> &(dyn Engine + 'static) {
        &self.connection
    }

    fn name(&self) -> Option<Arc<str>> {
        self.renamed.borrow().clone()
    }

    fn renamed(&self, name: &Arc<str>) {
        self.renamed.replace(Some(Arc::clone(name)));
    }

    fn chooses_durability(&self) -> bool {
        self.mode != OpenMode::Memory
    }

    fn begin(&self, is_synced: bool) -> Result<Begun> {
        self.set_synchronous(is_synced)?;
        let begin = if self.mode == OpenMode::Read { "BEGIN" } else { "BEGIN IMMEDIATE" };
        self.connection.run(begin, ())?;
        let version = self.connection.one("PRAGMA data_version", (), read)?;
        let has_changed = self.data_version.replace(version) != version;
        let now = (self.clock)();
        Ok(Begun {
            has_changed,
            now,
            steady: clock::without_steps(now),
            since_boot: Some((self.since_boot)()),
            has_jumped: false,
        })
    }

    fn commit(&self, latest_number: Option<i64>) -> Result<bool> {
        self.connection.run("COMMIT", ())?;
        if let (Some(latest), Some(lock)) = (latest_number, &mut *self.lock.borrow_mut())
            && let Err(error) = lock.write_latest(latest)
        {
            let text = format!("failed to write the purchase number to the lock file: {error}");
            let why = Reason::new(Reason::from(error).cause, text);
            self.gate.report_fault(StoreError::Permanent(Unavailable(why)));
        }
        Ok(self.has_written.swap(false, Ordering::Relaxed))
    }

    fn roll_back(&self) -> Result<()> {
        if !self.connection().is_autocommit() {
            self.connection
                .run("ROLLBACK", ())
                .map_err(|fault| StoreError::Permanent(fault.unavailable()))?;
        }
        Ok(())
    }

    fn ensure_own(&self) -> Result<()> {
        let Some((file, nonce)) = self.owned.get() else { return Ok(()) };
        file::ensure_not_replaced(&self.path, file)?;
        identity::ensure_nonce(self.connection(), &nonce)
    }

    /// Has a long write-ahead log copied into the file, on a thread of its own, so that no purchase waits
    /// for it. A fault is seen before the next batch.
    fn maintain(&self) {
        let pages = self.wal_pages.load(Ordering::Relaxed);
        let (is_due, waits) = (pages >= WAL_CHECKPOINT_PAGES, pages >= MAX_WAL_PAGES);
        let mut running = self.checkpoint.borrow_mut();
        let is_running = running.as_ref().is_some_and(|thread| !thread.is_finished());
        if self.has_failed.get() || !is_due || (is_running && !waits) {
            return;
        }
        join(running.take());
        let (path, gate) = (self.path.clone(), self.gate.clone());
        let wal_pages = Arc::clone(&self.wal_pages);
        let work = move || {
            if let Err(fault) = checkpoint(&path, &wal_pages) {
                gate.report_fault(fault);
            }
        };
        match thread::Builder::new().name("checkpoint".to_owned()).spawn(work) {
            Ok(thread) if waits => join(Some(thread)),
            Ok(thread) => *running = Some(thread),
            Err(error) => {
                self.gate.report_fault(StoreError::Transient(Unavailable(error.into())));
            }
        }
    }

    fn fail(&self) {
        self.has_failed.set(true);
        if let Some(lock) = &mut *self.lock.borrow_mut() {
            lock.require_check();
        }
    }

    fn stop(&self) -> bool {
        // Their connections would keep the log from being emptied.
        join(self.checkpoint.take());
        self.check.take().is_none_or(BackgroundCheck::has_passed)
    }

    fn close(self: Box<Self>, is_whole: bool, is_checked: bool) {
        if let (true, Some(lock)) = (is_whole, &mut *self.lock.borrow_mut()) {
            // If another process has the file open, closing it would leave the log as it is.
            truncate(self.connection(), file::BUSY_TIMEOUT);
            lock.is_clean = is_checked;
        }
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    let _ = thread.map(JoinHandle::join);
}

/// Copies the log. `wal_pages` is its length after the latest commit.
fn checkpoint(path: &Path, wal_pages: &AtomicI32) -> Result<(), StoreError> {
    let opened = file::connect(path, Purpose::Serve);
    let (connection, _) = opened.map_err(|error| Unavailable(error.into()))?;
    match connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE) {
        // A reader still needs some pages, or more were written meanwhile: the next one copies them.
        Ok((pages, copied)) if copied < pages => Ok(()),
        Ok((pages, _)) => {
            // Unless another commit has set it meanwhile.
            wal_pages.compare_exchange(pages, 0, Ordering::Relaxed, Ordering::Relaxed).ok();
            if u64::try_from(pages).unwrap_or_default() * PAGE_BYTES > file::MAX_WAL_BYTES {
                truncate(&connection, file::BUSY_TIMEOUT);
            }
            Ok(())
        }
        // Another process checkpoints it.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Frees the space of a log that grew during a long read. If a reader is active, the next writer
/// truncates it: `journal_size_limit`.
fn truncate(connection: &Connection, busy_timeout: Duration) {
    let truncate = || {
        connection.busy_timeout(Duration::ZERO)?;
        let truncate = connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE);
        connection.busy_timeout(busy_timeout)?;
        truncate
    };
    if let Err(error) = truncate() {
        tracing::debug!(%error, "ledger write-ahead log not truncated");
    }
}
