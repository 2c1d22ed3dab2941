//! The ledger's file, as its writer has it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rusqlite::Connection;
use rusqlite::hooks::Wal;

use super::check::BackgroundCheck;
use super::checkpoint::{self, Checkpointer};
use super::file::{self, FileId};
use super::identity::{self, LedgerIdentity, Nonce};
use super::lock::Lock;
use crate::ledger::engine::{Begun, Engine, Result, Sql, StoreError, WriterEngine};
use crate::ledger::writer::CommandGate;
use crate::ledger::{Clock, Reason, Unavailable};

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
    /// SQLite's number of the last commit of another process.
    data_version: Cell<i64>,
    is_synchronous: Cell<bool>,
    pub(in crate::ledger) wal_pages: Arc<AtomicI32>,
    has_written: Arc<AtomicBool>,
    has_failed: Cell<bool>,
    gate: CommandGate,
    /// Started at its first use.
    checkpointer: RefCell<Option<Checkpointer>>,
    check: RefCell<Option<BackgroundCheck>>,
    /// The file as the server that owns it found it.
    owned: Cell<Option<(FileId, Nonce)>>,
    /// Released after the connection is closed.
    lock: RefCell<Option<Lock>>,
}

impl LedgerFile {
    pub(in crate::ledger) fn new(
        mut connection: Connection,
        mode: OpenMode,
        clock: Clock,
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
            data_version: Cell::default(),
            is_synchronous: Cell::new(true),
            wal_pages,
            has_written,
            has_failed: Cell::default(),
            gate: gate.clone(),
            checkpointer: RefCell::default(),
            check: RefCell::default(),
            owned: Cell::default(),
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

    fn start_checkpointer(&self) -> Option<Checkpointer> {
        let (pages, gate) = (Arc::clone(&self.wal_pages), self.gate.clone());
        let started = Checkpointer::start(self.path.clone(), pages, gate);
        let report =
            |error| self.gate.report_fault(StoreError::Transient(Unavailable(Reason::from(error))));
        started.map_err(report).ok()
    }
}

impl WriterEngine for LedgerFile {
    fn statements(&self) -> &(dyn Engine + 'static) {
        &self.connection
    }

    fn chooses_durability(&self) -> bool {
        self.mode != OpenMode::Memory
    }

    fn begin(&self, is_synced: bool) -> Result<Begun> {
        self.set_synchronous(is_synced)?;
        let begin = if self.mode == OpenMode::Read { "BEGIN" } else { "BEGIN IMMEDIATE" };
        self.connection.run(begin, ())?;
        let version = self.connection.one("PRAGMA data_version", (), |row| row.get(0))?;
        let has_changed = self.data_version.replace(version) != version;
        Ok(Begun { has_changed, now: (self.clock)(), has_jumped: false })
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

    /// Has a long write-ahead log copied into the file. A fault is seen before the next batch.
    fn maintain(&self) {
        let pages = self.wal_pages.load(Ordering::Relaxed);
        if self.has_failed.get() || pages < WAL_CHECKPOINT_PAGES {
            return;
        }
        let mut checkpointer = self.checkpointer.borrow_mut();
        if checkpointer.is_none() {
            *checkpointer = self.start_checkpointer();
        }
        match &*checkpointer {
            Some(checkpointer) if pages < MAX_WAL_PAGES => checkpointer.request(),
            Some(checkpointer) => checkpointer.run(),
            None => {}
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
        self.checkpointer.take();
        self.check.take().is_none_or(BackgroundCheck::has_passed)
    }

    fn close(self: Box<Self>, is_whole: bool, is_checked: bool) {
        if let (true, Some(lock)) = (is_whole, &mut *self.lock.borrow_mut()) {
            // If another process has the file open, closing it would leave the log as it is.
            checkpoint::truncate(self.connection(), file::BUSY_TIMEOUT);
            lock.is_clean = is_checked;
        }
    }
}
