//! Opens a ledger's file: to sell from it, to write next to a server, or to read it.
//!
//! A server gets the lock at once, or fails at once. Slow work (a full check, a migration) then runs
//! on the ledger's thread, while operations answer that it is starting. After a crash of the process
//! alone, the check runs while purchases go on.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::check::{check, interrupt_on};
use super::file::{self, FileId, Purpose};
use super::identity::LedgerIdentity;
use super::ledger_file::{LedgerFile, OpenMode};
use super::lock::{self, Lock};
use super::schema::{self, FileKind};
use super::{LockHolder, OpenError, canonical_path};
use crate::clock::since_boot;
#[cfg(feature = "postgres")]
use crate::ledger::engine::WriterEngine;
use crate::ledger::handle::{Executor, StoreInner};
use crate::ledger::schema::newest_version;
use crate::ledger::tables::{Ledger, ensure_not_moved, slots, token_secret_fingerprint};
use crate::ledger::writer::{CommandGate, CommandReceiver, ReportReader, Writer};
use crate::ledger::{Clock, MoneyKind, Reason, Store, StoreCapacity, Unavailable};

/// Finds the purchase to forget first, when ended ones are limited.
const MEMORY_INDEX: &str =
    "CREATE INDEX purchases_ended ON purchases (ended_at, number) WHERE ended_at IS NOT NULL";

/// How a server opens its file.
pub struct ServerOptions {
    pub money: MoneyKind,
    /// The address of its ops listener.
    pub admin: Option<SocketAddr>,
    /// How long it waits for a server that has the file.
    pub wait: Duration,
    /// Where it notes, outside of the file's folder, how far the ledger has come.
    pub mark_folders: Vec<PathBuf>,
}

impl ServerOptions {
    pub fn new(money: MoneyKind) -> Self {
        Self { money, admin: None, wait: Duration::ZERO, mark_folders: Vec::new() }
    }
}

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
        let (gate, clocks) = (CommandGate::opened(), of_test(&clock));
        let open = || -> rusqlite::Result<Ledger> {
            let file = LedgerFile::new(new_in_memory()?, OpenMode::Memory, clocks.clone(), &gate)?;
            let mut ledger = Ledger::new(Box::new(file), capacity);
            ledger.max_ended = Some(capacity.ended_purchases);
            Ok(ledger)
        };
        match open() {
            Ok(ledger) => {
                let writer = Writer::new(ledger, &gate);
                Self::inline(Path::new(""), clocks, writer, gate)
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
        let (path, gate, clocks) = (&canonical_path(path), CommandGate::opened(), of_test(&clock));
        let locked = LockedLedger::acquire(
            path,
            &Access { capacity, ..Access::of(LockHolder::Server(None)) },
            &clock,
        )?;
        Ok(Self::inline(path, clocks.clone(), locked.open(clocks, &gate)?, gate))
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
        let access = Access { capacity, money, ..Access::of(LockHolder::Server(None)) };
        Self::open_alone(path, of_test(&clock), &access)
    }

    /// Opens a file on a thread of its own.
    pub async fn start_serving(
        path: &Path,
        clock: Clock,
        options: ServerOptions,
    ) -> Result<(Self, Opening), OpenError> {
        let (path, clocks) = (&canonical_path(path), with_boot(clock));
        let gate = CommandGate::default();
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        let (send_locked, locked) = oneshot::channel();
        let (send_opened, opened) = oneshot::channel();
        let work = {
            let (path, clocks, gate) = (path.to_owned(), clocks.clone(), gate.clone());
            move || {
                let ServerOptions { money, admin, wait, mark_folders } = options;
                let access = Access {
                    wait,
                    mark_folders: &mark_folders,
                    money: Some(money),
                    may_check_later: true,
                    ..Access::of(LockHolder::Server(admin))
                };
                let locked = match LockedLedger::acquire(&path, &access, &clocks.0) {
                    Ok(locked) => locked,
                    Err(error) => return drop(send_locked.send(Err(error))),
                };
                if send_locked.send(Ok(locked.identity.clone())).is_err() {
                    return;
                }
                match locked.open(clocks, &gate) {
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
        let store = Self::with_reader(path, clocks, executor, gate.clone(), Some(identity))?;
        Ok((store, Opening { gate, opened }))
    }

    /// Opens a file to write in it next to a server.
    pub fn open_shared(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        let path = &canonical_path(path);
        file::create(path)?;
        file::ensure_single_path(path)?;
        let lock = Lock::acquire_closed(path);
        let connection = file::open(path, Purpose::Shared)?;
        ensure_not_moved(&connection).map_err(OpenError::at(path))?;
        Self::open_unchecked(path, clock, (connection, OpenMode::Write), lock)
    }

    pub fn open_read_only(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        let path = &canonical_path(path);
        let connection = file::open(path, Purpose::Read)?;
        Self::open_unchecked(path, clock, (connection, OpenMode::Read), None)
    }

    fn open_unchecked(
        path: &Path,
        clock: Clock,
        (connection, mode): (Connection, OpenMode),
        lock: Option<Lock>,
    ) -> Result<Self, OpenError> {
        let (gate, clocks) = (CommandGate::opened(), with_boot(clock));
        let file = LedgerFile::new(connection, mode, clocks.clone(), &gate);
        let file = file.map_err(OpenError::at(path))?;
        file.hold(lock);
        let writer = Writer::new(Ledger::new(Box::new(file), StoreCapacity::default()), &gate);
        Self::spawn(path, clocks, writer, gate, None)
    }

    /// Opens a ledger to write in it while no server has it, and keeps servers out until it is
    /// dropped. Ends what a crash interrupted, as a server does.
    ///
    /// The next server's rate limit includes the requests that are sent meanwhile.
    pub fn open_exclusive(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        Self::open_alone(path, with_boot(clock), &Access::of(LockHolder::Command))
    }

    fn open_alone(
        path: &Path,
        clocks: (Clock, Clock),
        access: &Access<'_>,
    ) -> Result<Self, OpenError> {
        let (path, gate) = (&canonical_path(path), CommandGate::opened());
        let locked = LockedLedger::acquire(path, access, &clocks.0)?;
        let identity = locked.identity.clone();
        let writer = locked.open(clocks.clone(), &gate)?;
        Self::spawn(path, clocks, writer, gate, Some(identity))
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

    fn inline(path: &Path, clocks: (Clock, Clock), writer: Writer, gate: CommandGate) -> Self {
        let executor = Executor::Inline(Box::new(Mutex::new(writer)));
        Self::new(StoreInner::new(path, clocks, executor, gate))
    }

    fn spawn(
        path: &Path,
        clocks: (Clock, Clock),
        writer: Writer,
        gate: CommandGate,
        identity: Option<LedgerIdentity>,
    ) -> Result<Self, OpenError> {
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        let thread = spawn(path, move || writer.run(&commands))?;
        Self::with_reader(path, clocks, Executor::Thread { queue, thread }, gate, identity)
    }

    fn with_reader(
        path: &Path,
        clocks: (Clock, Clock),
        executor: Executor,
        gate: CommandGate,
        identity: Option<LedgerIdentity>,
    ) -> Result<Self, OpenError> {
        let mut inner = StoreInner::new(path, clocks, executor, gate);
        let reader = ReportReader::start(path.to_owned()).map_err(OpenError::at(path))?;
        inner.report_reader = Some(reader);
        if let Some(identity) = identity {
            inner.may_be_old = identity.may_be_old;
            inner.name = Mutex::new(identity.name);
        }
        Ok(Self::new(inner))
    }
}

/// Returns the clocks of a store whose time the test sets: the time of day, and the time since boot.
fn of_test(clock: &Clock) -> (Clock, Clock) {
    (Arc::clone(clock), Arc::clone(clock))
}

fn with_boot(clock: Clock) -> (Clock, Clock) {
    (clock, Arc::new(since_boot))
}

fn new_in_memory() -> rusqlite::Result<Connection> {
    let mut connection = Connection::open_in_memory()?;
    // Each change copies its page, so smaller pages are faster.
    connection.pragma_update(None, "page_size", 1_024)?;
    connection.set_prepared_statement_cache_capacity(128);
    file::keep_plans(&connection)?;
    schema::migrate(&mut connection)?;
    connection.execute_batch(MEMORY_INDEX)?;
    Ok(connection)
}

pub(in crate::ledger) fn spawn(
    path: &Path,
    work: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, OpenError> {
    let thread = thread::Builder::new().name("ledger".to_owned());
    thread.spawn(work).map_err(OpenError::at(path))
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
    let access =
        Access { money: Some(money), may_be_moved: true, ..Access::of(LockHolder::Command) };
    let locked = LockedLedger::acquire(path, &access, &clock)?;
    let db = locked.open(with_boot(clock), &CommandGate::opened())?.ledger.db;
    if let Some(opened) = LedgerFile::of(&*db) {
        // If it is damaged, it is not closed cleanly, so that the next start checks it, too.
        file::check_integrity(opened.connection()).map_err(OpenError::at(path))?;
    }
    Ok(db)
}

/// How a process has a file alone.
#[derive(Clone, Copy)]
struct Access<'a> {
    holder: LockHolder,
    /// How long it waits for a server that has it.
    wait: Duration,
    mark_folders: &'a [PathBuf],
    capacity: StoreCapacity,
    money: Option<MoneyKind>,
    may_check_later: bool,
    may_be_moved: bool,
}

impl Access<'_> {
    fn of(holder: LockHolder) -> Self {
        Self {
            holder,
            wait: Duration::ZERO,
            mark_folders: &[],
            capacity: StoreCapacity::default(),
            money: None,
            may_check_later: false,
            may_be_moved: false,
        }
    }
}

/// A ledger that this process has locked. The connection is closed before the lock is released.
struct LockedLedger<'a> {
    connection: Connection,
    kind: FileKind,
    identity: LedgerIdentity,
    file: FileId,
    lock: Lock,
    access: Access<'a>,
}

impl<'a> LockedLedger<'a> {
    fn acquire(path: &Path, access: &Access<'a>, clock: &Clock) -> Result<Self, OpenError> {
        file::ensure_regular_file(path)?;
        let mut lock = Lock::acquire(path, access.holder, access.wait)?;
        file::create(path)?;
        lock.lock_ledger_file(path)?;
        lock.keep_mark(access.mark_folders);
        file::ensure_single_path(path)?;
        let file = file::file_id(path).map_err(OpenError::at(path))?;
        let found = lock::file_stamp(path);
        let purpose = if lock.is_server() { Purpose::Serve } else { Purpose::Shared };
        let (connection, kind) = file::connect(path, purpose)?;
        let witnesses = (lock.state, lock.marked);
        let identity = LedgerIdentity::read(&connection, kind, witnesses, found, clock())
            .map_err(OpenError::at(path))?;
        Ok(Self { connection, kind, identity, file, lock, access: *access })
    }

    /// Checks and migrates the file, which may take long, and ends what a crash interrupted. A
    /// server also makes the file its own.
    fn open(self, clocks: (Clock, Clock), gate: &CommandGate) -> Result<Writer, OpenError> {
        // Dropped last, so declared first.
        let Self { mut lock, connection, kind, identity, file, access } = self;
        let path = connection.path().unwrap_or_default().to_owned();
        let opened = Self::begin((connection, kind), &identity, &access, clocks, gate);
        let opened = opened.and_then(|(ledger, check_later)| {
            lock.write_opened(&identity)?;
            if let Some(opened) = LedgerFile::of(&*ledger.db) {
                opened.connection().busy_timeout(file::BUSY_TIMEOUT)?;
                if lock.is_server() {
                    opened.own(file, &identity);
                }
                if let Some(reason) = check_later {
                    opened.check_in_background(reason)?;
                }
                opened.hold(Some(lock));
            }
            Ok(Writer::new(ledger, gate))
        });
        opened.map_err(|why| OpenError::unusable(Path::new(&path), why))
    }

    /// Returns the ledger, and why it has to be checked while it is in use.
    fn begin(
        (mut connection, kind): (Connection, FileKind),
        identity: &LedgerIdentity,
        access: &Access<'_>,
        clocks: (Clock, Clock),
        gate: &CommandGate,
    ) -> Result<(Ledger, Option<&'static str>), Reason> {
        interrupt_on(&mut connection, &gate.stop)?;
        let is_current = kind == FileKind::Ledger(newest_version());
        let checks_later = access.may_check_later && is_current && identity.can_check_later();
        // The last server did not close it, or it is another file.
        let reason = identity.suspect_reason.filter(|_| matches!(kind, FileKind::Ledger(_)));
        if let Some(reason) = reason.filter(|_| !checks_later) {
            check(&connection, reason)?;
        }
        connection.busy_timeout(file::MAX_WRITER_WAIT)?;
        file::prepare(&mut connection, kind, access.capacity)?;
        connection.progress_handler(0, None::<fn() -> bool>)?;
        if !access.may_be_moved {
            ensure_not_moved(&connection)?;
        }
        let file = LedgerFile::new(connection, OpenMode::Write, clocks, gate)?;
        let ledger = Ledger::new(Box::new(file), access.capacity);
        let is_server = matches!(access.holder, LockHolder::Server(_));
        recover(&ledger, access.money, identity, is_server || identity.may_lack_purchases)?;
        Ok((ledger, reason.filter(|_| checks_later)))
    }
}

/// Ends what a crash interrupted, and saves the identity.
///
/// It is saved before the lock is written: if the process dies in between, the two differ, and the next
/// start renames the ledger. A command saves it for that effect, because the recovery may remove what
/// shows that purchases are missing.
fn recover(
    ledger: &Ledger,
    money: Option<MoneyKind>,
    identity: &LedgerIdentity,
    is_saved: bool,
) -> Result<(), Reason> {
    ledger.begin(true)?;
    if let Some(money) = money {
        ledger.ensure_money_kind(money)?;
    }
    slots::forget_other_boots(ledger, &identity.boot)?;
    ledger.recover()?;
    if is_saved {
        identity.save(&*ledger.db)?;
    }
    ledger.commit()?;
    Ok(())
}
