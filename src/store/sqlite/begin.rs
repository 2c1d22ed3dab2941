//! Opens a ledger's file to sell from, to write beside a server, or to read; and says when it is open.
//!
//! A server has the lock at once, or fails at once. Whatever takes as long as the file is large (a check of all of
//! it after an unclean end, a migration) happens on the ledger's own thread afterwards, while its verbs answer that
//! it is starting.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use rusqlite::Connection;
use tokio::sync::oneshot;
use tracing::info;
use uuid::Uuid;

use super::books::Books;
use super::file::{self, FileId, Purpose};
use super::handle::{Shared, Steps, Store, Verb, true_name};
use super::identity::Identity;
use super::lock::{self, Lock};
use super::reader::Reader;
use super::schema::{self, Kind};
use super::writer::{Access, Admission, Weight, Writer};
use super::{Fault, Holder, OpenError, members, window};
use crate::clock;
use crate::store::{Clock, Money, Room, Unavailable};

/// Finds what is forgotten first, where ends are bounded.
const MEMORY_INDEX: &str =
    "CREATE INDEX purchases_ended ON purchases (ended_at, number) WHERE ended_at IS NOT NULL";
/// Steps of SQLite between two looks whether to give up.
const STEPS: i32 = 10_000;

pub struct Opening {
    admission: Admission,
    opened: oneshot::Receiver<Result<(), OpenError>>,
}

impl Opening {
    /// Waits until it is open. What was queued for it by then is answered; until [`admit`](Self::admit),
    /// everything else is told that the ledger is starting.
    pub async fn opened(&mut self) -> Result<(), OpenError> {
        let gone = || Err(OpenError::Unusable("its thread ended by a panic".into()));
        (&mut self.opened).await.unwrap_or_else(|_| gone())
    }

    pub fn admit(self) {
        self.admission.admit();
    }
}

impl Store {
    /// An empty store that ends with the process and takes the wall-clock time from `clock`. Its steps run
    /// where they are asked for.
    pub fn in_memory(clock: Clock) -> Self {
        Self::in_memory_within(clock, Room::default())
    }

    #[doc(hidden)]
    pub fn in_memory_within(clock: Clock, room: Room) -> Self {
        let open = || -> rusqlite::Result<Books> {
            let mut connection = Connection::open_in_memory()?;
            // Each change keeps a copy of the page: the smaller, the faster.
            connection.pragma_update(None, "page_size", 1_024)?;
            connection.set_prepared_statement_cache_capacity(128);
            schema::migrate(&mut connection)?;
            connection.execute_batch(MEMORY_INDEX)?;
            let mut books = Books::new(connection, room);
            books.remembered_ends = Some(room.ended);
            Ok(books)
        };
        let books = match open() {
            Ok(books) => books,
            Err(error) => return Self::unusable(error.to_string()),
        };
        let opened = Self::inline(Path::new(""), clock, books, None);
        opened.unwrap_or_else(|error| Self::unusable(error.to_string()))
    }

    /// Does to a store in memory what each start of a server does to a file.
    #[doc(hidden)]
    pub async fn recover(&self) -> Result<(), Unavailable> {
        let now = self.now();
        let recover = move |books: &Books| books.recover(now);
        self.ask(Verb::Other("recover"), Weight::Cheap, recover).await
    }

    /// Forgets everything that a store in memory has: to make a new one takes longer.
    #[doc(hidden)]
    pub async fn clear(&self) -> Result<(), Unavailable> {
        self.ask(Verb::Other("clear"), Weight::Cheap, |books: &Books| books.clear()).await
    }

    /// A store that answers every verb with [`Unavailable`] and this reason.
    pub fn unusable(reason: impl Into<Arc<str>>) -> Self {
        let admission = Admission::default();
        admission.close(Unavailable(reason.into()));
        let clock: Clock = Arc::new(clock::wall);
        let mut shared = Shared::new(Path::new(""), clock, Steps::Nowhere, admission);
        shared.name = "broken".into();
        Self::over(shared)
    }

    /// Opens a file to sell from, and makes it where there is none. One process may: the lock on
    /// `<path>.lock` says which. What a crash left under way is ended: what was never sent is released,
    /// what was sent is unknown.
    #[doc(hidden)]
    pub fn serve(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        Self::serve_as(path, clock, Room::default(), None, None)
    }

    /// The same, for this kind of money alone: a ledger of the other kind is refused. Commands that
    /// work beside the server find it at `admin`.
    #[doc(hidden)]
    pub fn serve_for(
        path: &Path,
        clock: Clock,
        money: Money,
        admin: Option<SocketAddr>,
    ) -> Result<Self, OpenError> {
        Self::serve_as(path, clock, Room::default(), Some(money), admin)
    }

    #[doc(hidden)]
    pub fn serve_within(path: &Path, clock: Clock, room: Room) -> Result<Self, OpenError> {
        Self::serve_as(path, clock, room, None, None)
    }

    /// The same with steps that run where they are asked for, so that paused time stands still meanwhile.
    #[doc(hidden)]
    pub fn serve_inline(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        let path = &true_name(path);
        let taken = Taken::take(path, Holder::Server(None), Purpose::Serve)?;
        let (books, lock) = taken.serve(&clock, Room::default(), None, &Admission::opened())?;
        Self::inline(path, clock, books, Some(lock))
    }

    fn serve_as(
        path: &Path,
        clock: Clock,
        room: Room,
        money: Option<Money>,
        admin: Option<SocketAddr>,
    ) -> Result<Self, OpenError> {
        let path = &true_name(path);
        let admission = Admission::opened();
        let taken = Taken::take(path, Holder::Server(admin), Purpose::Serve)?;
        let (identity, file) = (taken.identity.clone(), taken.file);
        let (books, lock) = taken.serve(&clock, room, money, &admission)?;
        let mut shared = started(path, clock, books, Access::Write, Some(lock))?;
        shared.identify(identity, file);
        Ok(Self::over(shared))
    }

    /// Takes a ledger to sell from, and opens it on a thread of its own: see [`Opening`].
    pub async fn begin(
        path: &Path,
        clock: Clock,
        money: Money,
        admin: Option<SocketAddr>,
    ) -> Result<(Self, Opening), OpenError> {
        let path = &true_name(path);
        let admission = Admission::default();
        let (queue, queued) = mpsc::channel();
        let (tell_taken, taken) = oneshot::channel();
        let (tell_opened, opened) = oneshot::channel();
        let work = {
            let (path, clock, admission) = (path.to_owned(), clock.clone(), admission.clone());
            move || {
                let taken = match Taken::take(&path, Holder::Server(admin), Purpose::Serve) {
                    Ok(taken) => taken,
                    Err(error) => return drop(tell_taken.send(Err(error))),
                };
                if tell_taken.send(Ok((taken.identity.clone(), taken.file))).is_err() {
                    return;
                }
                let opened = taken.serve(&clock, Room::default(), Some(money), &admission);
                let writer = opened.and_then(|(books, lock)| {
                    Writer::new(books, Access::Write, Some(lock), &admission)
                        .map_err(|error| OpenError::unusable(&path, error))
                });
                match writer {
                    Ok(writer) => {
                        tell_opened.send(Ok(())).ok();
                        writer.run(&queued);
                    }
                    Err(error) => {
                        admission.close(Unavailable(error.to_string().into()));
                        tell_opened.send(Err(error)).ok();
                    }
                }
            }
        };
        let writer = spawn(path, work)?;
        let gone = || Err(OpenError::unusable(path, "its thread ended by a panic"));
        let identity = taken.await.unwrap_or_else(|_| gone())?;
        let steps = Steps::Thread { queue, writer };
        let mut shared = Shared::new(path, clock, steps, admission.clone());
        shared.reports = Some(reader(path)?);
        shared.identify(identity.0, identity.1);
        Ok((Self::over(shared), Opening { admission, opened }))
    }

    /// Opens a ledger to write in it next to a running server, which sees at once what changes.
    pub fn open_shared(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        let path = &true_name(path);
        file::make(path)?;
        file::must_have_one_path(path)?;
        let room = Room::default();
        let books = Books::new(file::open(path, Purpose::Beside, room)?, room);
        started(path, clock, books, Access::Write, None).map(Self::over)
    }

    /// Opens a ledger to write in it where no server has it, and until it is dropped none begins: what
    /// is asked of the gateway meanwhile is in the window's log when one does.
    pub fn open_exclusive(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        let path = &true_name(path);
        let taken = Taken::take(path, Holder::Command, Purpose::Beside)?;
        // The lock first: it is given back last.
        let Taken { mut lock, mut connection, kind, identity, .. } = taken;
        let unusable = |why: String| OpenError::unusable(path, why);
        check(&mut connection, kind, &identity).map_err(unusable)?;
        if identity.doubt.is_some() {
            lock.keep_doubt();
        }
        let room = Room::default();
        file::prepare(&mut connection, kind, room).map_err(unusable)?;
        let books = Books::new(connection, room);
        books
            .transact(|books| window::recover(books, clock()))
            .map_err(|fault| unusable(fault.unavailable().to_string()))?;
        lock.sign().map_err(|error| unusable(error.to_string()))?;
        started(path, clock, books, Access::Write, Some(lock)).map(Self::over)
    }

    /// Looks for damage, which takes no lock and writes nothing. Beside a server it reads only the head: the
    /// server has looked.
    ///
    /// # Errors
    /// Why a server could not sell from it.
    pub fn examine(path: &Path) -> Result<(), OpenError> {
        let path = &true_name(path);
        file::must_not_be_cut(path)?;
        if file::size_of(path) == 0 {
            return Ok(());
        }
        file::must_have_one_path(path)?;
        let (mut connection, _) = file::connect(path, Purpose::Peek)?;
        if lock::served_by(path).is_some() {
            return Ok(());
        }
        file::ends_with_a_page(&connection, path)
            .and_then(|()| file::examine(&mut connection))
            .map_err(|why| OpenError::unusable(path, why))
    }

    /// Opens a ledger for reports; every verb that would write answers [`Unavailable`].
    pub fn open_read_only(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        let path = &true_name(path);
        let room = Room::default();
        let books = Books::new(file::open(path, Purpose::Read, room)?, room);
        started(path, clock, books, Access::Read, None).map(Self::over)
    }

    /// Whether somebody's token in the ledger at `path` depends on a secret that is noted there, as far as
    /// that can be read.
    pub fn is_keyed(path: &Path) -> bool {
        let opened = file::connect(&true_name(path), Purpose::Peek);
        opened.is_ok_and(|(file, _)| members::keyed_by(&file).is_ok_and(|print| print.is_some()))
    }

    fn inline(
        path: &Path,
        clock: Clock,
        books: Books,
        lock: Option<Lock>,
    ) -> Result<Self, OpenError> {
        let admission = Admission::opened();
        let access = if lock.is_some() { Access::Write } else { Access::Memory };
        let writer = Writer::new(books, access, lock, &admission)
            .map_err(|error| OpenError::unusable(path, error))?;
        let steps = Steps::Inline(Box::new(Mutex::new(writer)));
        Ok(Self::over(Shared::new(path, clock, steps, admission)))
    }
}

impl Shared {
    fn new(path: &Path, clock: Clock, steps: Steps, admission: Admission) -> Self {
        Self {
            path: path.to_owned(),
            clock,
            name: Uuid::now_v7().to_string().into(),
            steps,
            admission,
            identity: None,
            reports: None,
            was_used: AtomicBool::new(false),
            latest_limit: Arc::default(),
        }
    }

    fn identify(&mut self, identity: Identity, file: FileId) {
        self.name = Arc::clone(&identity.name);
        self.identity = Some((identity, file));
    }
}

fn started(
    path: &Path,
    clock: Clock,
    books: Books,
    access: Access,
    lock: Option<Lock>,
) -> Result<Shared, OpenError> {
    let admission = Admission::opened();
    let (queue, queued) = mpsc::channel();
    let writer = Writer::new(books, access, lock, &admission)
        .map_err(|error| OpenError::unusable(path, error))?;
    let writer = spawn(path, move || writer.run(&queued))?;
    let steps = Steps::Thread { queue, writer };
    let mut shared = Shared::new(path, clock, steps, admission);
    shared.reports = Some(reader(path)?);
    Ok(shared)
}

fn reader(path: &Path) -> Result<Reader, OpenError> {
    Reader::start(path.to_owned()).map_err(|error| OpenError::unusable(path, error))
}

fn spawn(
    path: &Path,
    work: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, OpenError> {
    let thread = thread::Builder::new().name("ledger".to_owned());
    thread.spawn(work).map_err(|error| OpenError::unusable(path, error))
}

/// A ledger whose lock is ours. The connection is closed before the lock is given back.
struct Taken {
    connection: Connection,
    kind: Kind,
    identity: Identity,
    file: FileId,
    lock: Lock,
}

impl Taken {
    fn take(path: &Path, holder: Holder, purpose: Purpose) -> Result<Self, OpenError> {
        file::must_be_a_file(path)?;
        let mut lock = Lock::take(path, holder)?;
        file::make(path)?;
        lock.take_file(path)?;
        file::must_have_one_path(path)?;
        let file = file::file_id(path).map_err(|error| OpenError::unusable(path, error))?;
        let found = lock::stamp(path);
        let (connection, kind) = file::connect(path, purpose)?;
        let identity = Identity::of(&connection, kind, lock.mark(), found);
        let identity = identity.map_err(|why| OpenError::unusable(path, why))?;
        Ok(Self { connection, kind, identity, file, lock })
    }

    /// Whatever takes long: the check, the migration; then the ledger is this server's.
    fn serve(
        self,
        clock: &Clock,
        room: Room,
        money: Option<Money>,
        admission: &Admission,
    ) -> Result<(Books, Lock), OpenError> {
        // The lock first: it is given back last.
        let Self { mut lock, mut connection, kind, identity, .. } = self;
        let path = connection.path().unwrap_or_default().to_owned();
        let unusable = |why: String| OpenError::unusable(Path::new(&path), why);
        let sql = |error: rusqlite::Error| unusable(error.to_string());
        let faulty = |fault: Fault| unusable(fault.unavailable().0.to_string());
        let stop = Arc::clone(&admission.stop);
        connection
            .progress_handler(STEPS, Some(move || stop.load(Ordering::Relaxed)))
            .map_err(sql)?;
        check(&mut connection, kind, &identity).map_err(unusable)?;
        file::prepare(&mut connection, kind, room).map_err(unusable)?;
        connection.progress_handler(0, None::<fn() -> bool>).map_err(sql)?;
        let books = Books::new(connection, room);
        if let Some(money) = money
            && !books.is_for(money).map_err(faulty)?
        {
            let why =
                "it counts the other kind of money; play money and real money take a file each";
            return Err(unusable(why.to_owned()));
        }
        // In the file first: a crash in between leaves a lock that is of no file, and costs the name.
        let begin = |books: &Books| {
            books.recover(clock())?;
            identity.open(&books.connection)
        };
        books.transact(begin).map_err(faulty)?;
        lock.sign_for(identity.mark).map_err(|error| unusable(error.to_string()))?;
        Ok((books, lock))
    }
}

/// Reads all of a file that was not closed by the last server, or that is another one.
fn check(connection: &mut Connection, kind: Kind, identity: &Identity) -> Result<(), String> {
    let (Kind::Ledger(_), Some(reason)) = (kind, identity.doubt) else { return Ok(()) };
    info!(reason, "ledger check started");
    let began = clock::now();
    file::examine(connection)?;
    let millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    info!(millis, "ledger check passed");
    Ok(())
}
