//! Opens a ledger's file: to sell from it, to write next to a server, or to read it.
//!
//! A server gets the lock at once, or fails at once. Slow work (a full check, a migration) then runs
//! on the ledger's thread, while operations answer that it is starting. After a crash of the process
//! alone, the check runs while purchases go on.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::backup::Backup;
use tokio::sync::oneshot;

use super::check::{check, interrupt_on};
use super::file::{self, FileId, Purpose};
use super::identity::LedgerIdentity;
use super::ledger_file::{LedgerFile, OpenMode};
use super::lock::{self, Lock};
use super::schema::{self, FileKind};
use super::{LockHolder, OpenError, canonical_path};
use crate::ledger::engine::StoreError;
#[cfg(feature = "postgres")]
use crate::ledger::engine::WriterEngine;
use crate::ledger::handle::{Executor, StoreInner};
use crate::ledger::schema::newest_version;
use crate::ledger::tables::{Ledger, ensure_not_moved, token_secret_fingerprint};
use crate::ledger::writer::{CommandGate, CommandReceiver, ReportReader, Writer};
use crate::ledger::{Clock, MoneyKind, Reason, Store, StoreCapacity, Unavailable};

/// Finds the purchase to forget first, when ended ones are limited.
const MEMORY_INDEX: &str =
    "CREATE INDEX purchases_ended ON purchases (ended_at, number) WHERE ended_at IS NOT NULL";

pub struct Opening {
    gate: CommandGate,
    opened: oneshot::Receiver<Result<(), OpenError>>,
}

impl Opening {
    /// Waits until the ledger is open. Until [`serve`](Self::serve), operations answer that it is
    /// starting, except those that were queued before.
    pub async fn wait(&mut self) -> Result<(), OpenError> {
        let panicked = || Err(OpenError::Unusable("its thread panicked".into()));
        (&mut self.opened).await.unwrap_or_else(|_| panicked())
    }

    pub fn serve(self) {
        self.gate.open();
    }
}

impl Store {
    pub fn in_memory(clock: Clock) -> Self {
        Self::in_memory_with_capacity(clock, StoreCapacity::default())
    }

    #[doc(hidden)]
    pub fn in_memory_with_capacity(clock: Clock, capacity: StoreCapacity) -> Self {
        let gate = CommandGate::opened();
        let open = || -> rusqlite::Result<Ledger> {
            let connection = new_in_memory()?;
            connection.set_prepared_statement_cache_capacity(128);
            let file = LedgerFile::new(connection, OpenMode::Memory, clock.clone(), &gate)?;
            let mut ledger = Ledger::new(Box::new(file), capacity);
            ledger.max_ended = Some(capacity.ended_purchases);
            Ok(ledger)
        };
        match open() {
            Ok(ledger) => {
                let writer = Writer::new(ledger, &gate);
                Self::inline(Path::new(""), clock, writer, gate)
            }
            Err(error) => Self::unusable(error),
        }
    }

    /// Recovers an in-memory ledger, as each start of a server does for a file.
    #[doc(hidden)]
    pub async fn recover(&self) -> Result<(), Unavailable> {
        self.query("recover", Ledger::recover).await
    }

    #[doc(hidden)]
    pub async fn clear(&self) -> Result<(), Unavailable> {
        self.query("clear", Ledger::clear).await
    }

    /// Runs operations on the caller's thread, so that paused time stands still.
    #[doc(hidden)]
    pub fn serve_inline(
        path: &Path,
        clock: Clock,
        capacity: StoreCapacity,
    ) -> Result<Self, OpenError> {
        let (path, gate) = (&canonical_path(path), CommandGate::opened());
        let locked = LockedLedger::acquire(path, LockHolder::Server(None), Duration::ZERO, &clock)?;
        let writer = locked.open(&clock, capacity, None, &gate)?;
        Ok(Self::inline(path, clock, writer, gate))
    }

    /// Opens a file to sell from, and creates it if there is none. The lock `<path>.lock` admits
    /// one process.
    ///
    /// After a crash, running purchases end: unsent ones are released, sent ones become unknown.
    #[doc(hidden)]
    pub fn serve(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        Self::serve_with(path, clock, StoreCapacity::default(), None)
    }

    #[doc(hidden)]
    pub fn serve_with(
        path: &Path,
        clock: Clock,
        capacity: StoreCapacity,
        money: Option<MoneyKind>,
    ) -> Result<Self, OpenError> {
        let (path, gate) = (&canonical_path(path), CommandGate::opened());
        let locked = LockedLedger::acquire(path, LockHolder::Server(None), Duration::ZERO, &clock)?;
        let identity = Some(locked.identity.clone());
        let writer = locked.open(&clock, capacity, money, &gate)?;
        Self::spawn(path, clock, writer, gate, identity)
    }

    /// Opens a file on a thread of its own, and waits at most `wait` for a server that has it.
    pub async fn start_serving(
        path: &Path,
        clock: Clock,
        money: MoneyKind,
        (admin, wait): (Option<SocketAddr>, Duration),
    ) -> Result<(Self, Opening), OpenError> {
        let path = &canonical_path(path);
        let gate = CommandGate::default();
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        let (send_locked, locked) = oneshot::channel();
        let (send_opened, opened) = oneshot::channel();
        let work = {
            let (path, clock, gate) = (path.to_owned(), clock.clone(), gate.clone());
            move || {
                let holder = LockHolder::Server(admin);
                let mut locked = match LockedLedger::acquire(&path, holder, wait, &clock) {
                    Ok(locked) => locked,
                    Err(error) => return drop(send_locked.send(Err(error))),
                };
                locked.may_check_later = true;
                if send_locked.send(Ok(locked.identity.clone())).is_err() {
                    return;
                }
                match locked.open(&clock, StoreCapacity::default(), Some(money), &gate) {
                    Ok(writer) => {
                        send_opened.send(Ok(())).ok();
                        writer.run(&commands);
                    }
                    Err(error) => {
                        gate.close(Unavailable(error.clone().into()));
                        send_opened.send(Err(error)).ok();
                    }
                }
            }
        };
        let executor = Executor::Thread { queue, thread: spawn(path, work)? };
        let panicked = || Err(OpenError::unusable(path, "its thread panicked"));
        let identity = locked.await.unwrap_or_else(|_| panicked())?;
        let inner = StoreInner::new(path, clock, executor, gate.clone());
        let store = inner.with_reader(Some(identity))?;
        Ok((store, Opening { gate, opened }))
    }

    /// Opens a file to write in it next to a server.
    pub fn open_shared(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        let path = &canonical_path(path);
        file::create(path)?;
        file::ensure_single_path(path)?;
        let lock = Lock::acquire_closed(path);
        Self::open_without_check(path, clock, Purpose::Shared, OpenMode::Write, lock)
    }

    pub fn open_read_only(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        Self::open_without_check(&canonical_path(path), clock, Purpose::Read, OpenMode::Read, None)
    }

    fn open_without_check(
        path: &Path,
        clock: Clock,
        purpose: Purpose,
        mode: OpenMode,
        lock: Option<Lock>,
    ) -> Result<Self, OpenError> {
        let connection = file::open(path, purpose)?;
        if mode == OpenMode::Write {
            ensure_not_moved(&connection).map_err(OpenError::at(path))?;
        }
        let gate = CommandGate::opened();
        let opened = LedgerFile::new(connection, mode, clock.clone(), &gate);
        let opened = opened.map_err(OpenError::at(path))?;
        opened.hold(lock);
        let writer = Writer::new(Ledger::new(Box::new(opened), StoreCapacity::default()), &gate);
        Self::spawn(path, clock, writer, gate, None)
    }

    /// Opens a ledger to write in it while no server has it, and keeps servers out until it is
    /// dropped. Ends what a crash interrupted, as a server does.
    ///
    /// The next server's rate limit includes the requests that are sent meanwhile.
    pub fn open_exclusive(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        let (path, gate) = (&canonical_path(path), CommandGate::opened());
        let locked = LockedLedger::acquire(path, LockHolder::Command, Duration::ZERO, &clock)?;
        let writer = locked.open(&clock, StoreCapacity::default(), None, &gate)?;
        Self::spawn(path, clock, writer, gate, None)
    }

    /// Checks whether a server could sell from the file. Takes no lock and writes nothing.
    ///
    /// If a server has the file, only the header is read, because the server has checked the rest.
    pub fn check_integrity(path: &Path) -> Result<(), OpenError> {
        let path = &canonical_path(path);
        file::ensure_not_truncated(path)?;
        let is_served = lock::lock_holder(path).is_some();
        if !is_served {
            file::ensure_writable(path)?;
        }
        if file::size_of(path) == 0 {
            return Ok(());
        }
        file::ensure_single_path(path)?;
        let (connection, kind) = file::connect(path, Purpose::Inspect)?;
        if kind == FileKind::Ledger(newest_version()) {
            ensure_not_moved(&connection).map_err(OpenError::at(path))?;
        }
        if is_served {
            return Ok(());
        }
        file::check_whole_pages(&connection, path)
            .and_then(|()| file::check_integrity(&connection))
            .map_err(OpenError::at(path))
    }

    /// Returns whether the file holds the other kind of money, as far as it can be read.
    pub fn holds_other_money(path: &Path, money: MoneyKind) -> bool {
        let opened = file::connect(&canonical_path(path), Purpose::Inspect);
        let find = "SELECT 1 FROM money WHERE kind <> ?";
        opened.is_ok_and(|(file, _)| file.query_row(find, [money.name()], |_| Ok(())).is_ok())
    }

    /// Returns whether any member's token depends on the recorded secret, as far as the file can be
    /// read.
    pub fn needs_token_secret(path: &Path) -> bool {
        let opened = file::connect(&canonical_path(path), Purpose::Inspect);
        opened.is_ok_and(|(file, _)| {
            token_secret_fingerprint(&file).is_ok_and(|print| print.is_some())
        })
    }

    fn inline(path: &Path, clock: Clock, writer: Writer, gate: CommandGate) -> Self {
        let executor = Executor::Inline(Box::new(Mutex::new(writer)));
        Self::new(StoreInner::new(path, clock, executor, gate))
    }

    fn spawn(
        path: &Path,
        clock: Clock,
        writer: Writer,
        gate: CommandGate,
        identity: Option<LedgerIdentity>,
    ) -> Result<Self, OpenError> {
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        let thread = spawn(path, move || writer.run(&commands))?;
        let executor = Executor::Thread { queue, thread };
        StoreInner::new(path, clock, executor, gate).with_reader(identity)
    }
}

/// Returns an empty ledger in memory: a copy of one that is made once. A simulation opens thousands, and
/// every migration would run again for each.
fn new_in_memory() -> rusqlite::Result<Connection> {
    static EMPTY: Mutex<Option<Connection>> = Mutex::new(None);
    let open = || -> rusqlite::Result<Connection> {
        let connection = Connection::open_in_memory()?;
        // Each change copies its page, so smaller pages are faster.
        connection.pragma_update(None, "page_size", 1_024)?;
        file::keep_plans(&connection)?;
        Ok(connection)
    };
    let mut empty = crate::sync::lock(&EMPTY);
    let empty = match &mut *empty {
        Some(made) => made,
        none => {
            let mut made = open()?;
            schema::migrate(&mut made)?;
            made.execute_batch(MEMORY_INDEX)?;
            none.insert(made)
        }
    };
    let mut copy = open()?;
    Backup::new(empty, &mut copy)?.step(-1)?;
    copy.pragma_update(None, "foreign_keys", true)?;
    Ok(copy)
}

impl StoreInner {
    fn with_reader(mut self, identity: Option<LedgerIdentity>) -> Result<Store, OpenError> {
        let reader = ReportReader::start(self.path.clone()).map_err(OpenError::at(&self.path))?;
        self.report_reader = Some(reader);
        if let Some(identity) = identity {
            self.name = identity.name;
        }
        Ok(Store::new(self))
    }
}

pub(in crate::ledger) fn spawn(
    path: &Path,
    work: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, OpenError> {
    let thread = thread::Builder::new().name("ledger".to_owned());
    thread.spawn(work).map_err(OpenError::at(path))
}

/// A ledger that this process has locked. The connection is closed before the lock is released.
struct LockedLedger {
    connection: Connection,
    kind: FileKind,
    identity: LedgerIdentity,
    file: FileId,
    lock: Lock,
    may_check_later: bool,
    may_be_moved: bool,
}

/// Opens a file whose ledger is moved to another store, as [`Store::open_exclusive`] does, and checks all
/// of it.
#[cfg(feature = "postgres")]
pub(in crate::ledger) fn open_to_move(
    path: &Path,
    clock: Clock,
    money: MoneyKind,
) -> Result<Box<dyn WriterEngine>, OpenError> {
    let path = &canonical_path(path);
    let mut locked = LockedLedger::acquire(path, LockHolder::Command, Duration::ZERO, &clock)?;
    locked.may_be_moved = true;
    let capacity = StoreCapacity::default();
    let writer = locked.open(&clock, capacity, Some(money), &CommandGate::opened())?;
    let db = writer.ledger.db;
    if let Some(opened) = LedgerFile::of(&*db) {
        // If it is damaged, it is not closed cleanly, so that the next start checks it, too.
        file::check_integrity(opened.connection()).map_err(OpenError::at(path))?;
    }
    Ok(db)
}

impl LockedLedger {
    fn acquire(
        path: &Path,
        holder: LockHolder,
        wait: Duration,
        clock: &Clock,
    ) -> Result<Self, OpenError> {
        file::ensure_regular_file(path)?;
        let mut lock = Lock::acquire(path, holder, wait)?;
        file::create(path)?;
        lock.lock_ledger_file(path)?;
        file::ensure_single_path(path)?;
        let file = file::file_id(path).map_err(OpenError::at(path))?;
        let found = lock::file_stamp(path);
        let purpose = if lock.is_server() { Purpose::Serve } else { Purpose::Shared };
        let (connection, kind) = file::connect(path, purpose)?;
        let identity = LedgerIdentity::read(&connection, kind, lock.state, found, clock())
            .map_err(OpenError::at(path))?;
        let (may_check_later, may_be_moved) = (false, false);
        Ok(Self { connection, kind, identity, file, lock, may_check_later, may_be_moved })
    }

    /// Checks and migrates the file, which may take long, and ends what a crash interrupted. A
    /// server also makes the file its own.
    fn open(
        self,
        clock: &Clock,
        capacity: StoreCapacity,
        money: Option<MoneyKind>,
        gate: &CommandGate,
    ) -> Result<Writer, OpenError> {
        // Dropped last, so declared first.
        let Self {
            mut lock,
            mut connection,
            kind,
            identity,
            file: id,
            may_check_later,
            may_be_moved,
        } = self;
        let path = connection.path().unwrap_or_default().to_owned();
        let unusable = |why: Reason| OpenError::unusable(Path::new(&path), why);
        let sql = |error: rusqlite::Error| unusable(error.into());
        interrupt_on(&mut connection, &gate.stop).map_err(sql)?;
        let is_current = kind == FileKind::Ledger(newest_version());
        let checks_later = may_check_later && is_current && identity.can_check_later();
        // The last server did not close it, or it is another file.
        let reason = identity.suspect_reason.filter(|_| matches!(kind, FileKind::Ledger(_)));
        if let Some(reason) = reason.filter(|_| !checks_later) {
            check(&connection, reason).map_err(unusable)?;
        }
        connection.busy_timeout(file::MAX_WRITER_WAIT).map_err(sql)?;
        file::prepare(&mut connection, kind, capacity).map_err(unusable)?;
        connection.progress_handler(0, None::<fn() -> bool>).map_err(sql)?;
        if !may_be_moved {
            ensure_not_moved(&connection).map_err(|fault| unusable(fault.into()))?;
        }
        let opened = LedgerFile::new(connection, OpenMode::Write, clock.clone(), gate);
        let ledger = Ledger::new(Box::new(opened.map_err(sql)?), capacity);
        let is_saved = lock.is_server() || identity.may_lack_purchases;
        begin(&ledger, money, is_saved.then_some(&identity)).map_err(unusable)?;
        lock.write_opened(&identity).map_err(|error| unusable(error.into()))?;
        if let Some(opened) = LedgerFile::of(&*ledger.db) {
            opened.connection().busy_timeout(file::BUSY_TIMEOUT).map_err(sql)?;
            if lock.is_server() {
                opened.own(id, &identity);
            }
            if let Some(reason) = reason.filter(|_| checks_later) {
                let begun = opened.check_in_background(reason);
                begun.map_err(|error| unusable(error.into()))?;
            }
            opened.hold(Some(lock));
        }
        let writer = Writer::new(ledger, gate);
        Ok(writer)
    }
}

/// Ends what a crash interrupted, and saves the identity.
///
/// It is saved before the lock is written: if the process dies in between, the two differ, and the next
/// start renames the ledger. A command saves it for that effect, because the recovery may remove what
/// shows that purchases are missing.
fn begin(
    ledger: &Ledger,
    money: Option<MoneyKind>,
    identity: Option<&LedgerIdentity>,
) -> Result<(), Reason> {
    let faulty = |fault: StoreError| fault.unavailable().0;
    ledger.begin(true).map_err(faulty)?;
    if let Some(money) = money {
        ledger.ensure_money_kind(money)?;
    }
    ledger.recover().map_err(faulty)?;
    if let Some(identity) = identity {
        identity.save(&*ledger.db).map_err(faulty)?;
    }
    ledger.commit().map_err(faulty)?;
    Ok(())
}
