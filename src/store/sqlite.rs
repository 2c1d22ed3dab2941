//! Keeps the ledger in a file that survives a crash of the process, and whatever is dear a power cut.

mod books;
mod claim;
mod column;
mod counters;
mod fault;
mod jobs;
mod lock;
mod members;
mod open;
mod replies;
mod report;
mod schema;
mod step;
mod unread;
mod window;
mod writer;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tracing::error;
use tracing::warn;

use super::Answer;
use super::CallerSpending;
use super::Checkpoint;
use super::Clock;
use super::Ending;
use super::Job;
use super::JobBook;
use super::KeptReply;
use super::Ledger;
use super::Money;
use super::PurchaseId;
use super::Refused;
use super::Reservation;
use super::Rest;
use super::Room;
use super::Row;
use super::Scope;
use super::Spending;
use super::Spent;
use super::Unavailable;
use super::Word;
use books::Books;
use fault::Fault;
use lock::Lock;
use open::Purpose;
use report::Reader;
use step::Asked;
use step::Noted;
use step::Step;
use step::Weight;
use writer::Access;
use writer::Writer;

pub use lock::Holder;
pub use open::OpenError;

/// A ledger in a SQLite file. Dropping it writes what is still on its way, and waits for that.
pub struct Sqlite {
    path: PathBuf,
    clock: Clock,
    queue: Option<mpsc::Sender<Box<dyn Step>>>,
    writer: Option<thread::JoinHandle<()>>,
    reports: Reader,
}

impl Sqlite {
    /// Opens a ledger to sell from, and makes it where there is none. One process may: the lock on
    /// `<path>.lock` says which. What a crash left under way is ended: what was never sent is voided,
    /// what was sent is unknown.
    pub fn serve(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        Self::serve_within(path, clock, Room::default())
    }

    /// The same, for this kind of money alone: a ledger of the other kind is refused. Commands that
    /// work beside the server find it at `admin`.
    pub fn serve_for(
        path: &Path,
        clock: Clock,
        money: Money,
        admin: Option<SocketAddr>,
    ) -> Result<Self, OpenError> {
        Self::serve_as(path, clock, Room::default(), Some(money), admin)
    }

    /// The same, with other bounds.
    pub fn serve_within(path: &Path, clock: Clock, room: Room) -> Result<Self, OpenError> {
        Self::serve_as(path, clock, room, None, None)
    }

    fn serve_as(
        path: &Path,
        clock: Clock,
        room: Room,
        money: Option<Money>,
        admin: Option<SocketAddr>,
    ) -> Result<Self, OpenError> {
        let path = &true_name(path);
        open::must_be_a_file(path)?;
        let mut lock = Lock::take(path, Holder::Server(admin))?;
        open::make(path)?;
        let books = Books::new(open::open(path, Purpose::Serve, room)?, room);
        let unusable = |fault: Fault| OpenError::unusable(path, fault.unavailable());
        if let Some(money) = money
            && !books.is_for(money).map_err(unusable)?
        {
            let why =
                "it counts the other kind of money; play money and real money take a file each";
            return Err(OpenError::unusable(path, why));
        }
        let recover = |books: &Books| {
            books.recover(clock())?;
            window::recover(books, clock())
        };
        books.transact(recover).map_err(unusable)?;
        lock.sign().map_err(|error| OpenError::unusable(path, error))?;
        Self::start(path, clock, books, Access::Write, Some(lock))
    }

    /// Opens a ledger to write in it next to a running server, which sees at once what changes.
    pub fn beside(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        let path = &true_name(path);
        open::make(path)?;
        let room = Room::default();
        let books = Books::new(open::open(path, Purpose::Beside, room)?, room);
        Self::start(path, clock, books, Access::Write, None)
    }

    /// Opens a ledger to write in it where no server has it, and until it is dropped none begins: what
    /// is asked of the gateway meanwhile is in the window's log when one does.
    pub fn instead(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        let path = &true_name(path);
        open::must_be_a_file(path)?;
        let mut lock = Lock::take(path, Holder::Command)?;
        open::make(path)?;
        let room = Room::default();
        let books = Books::new(open::open(path, Purpose::Beside, room)?, room);
        let unusable = |why: String| OpenError::unusable(path, why);
        books
            .transact(|books| window::recover(books, clock()))
            .map_err(|fault| unusable(fault.unavailable().to_string()))?;
        lock.sign().map_err(|error| unusable(error.to_string()))?;
        Self::start(path, clock, books, Access::Write, Some(lock))
    }

    /// Opens a ledger for reports; every verb that would write answers [`Unavailable`].
    pub fn read(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        let path = &true_name(path);
        let room = Room::default();
        let books = Books::new(open::open(path, Purpose::Read, room)?, room);
        Self::start(path, clock, books, Access::Read, None)
    }

    /// Whether somebody's token in the ledger at `path` depends on a secret that is noted there, as far as
    /// that can be read.
    pub fn is_keyed(path: &Path) -> bool {
        let opened = open::open(&true_name(path), Purpose::Read, Room::default());
        opened.is_ok_and(|file| members::keyed_by(&file).is_ok_and(|print| print.is_some()))
    }

    /// Whether a server has this ledger now, in whichever process.
    pub fn is_served(&self) -> bool {
        lock::is_served(&self.path)
    }

    fn start(
        path: &Path,
        clock: Clock,
        books: Books,
        access: Access,
        lock: Option<Lock>,
    ) -> Result<Self, OpenError> {
        let unusable = |error: String| OpenError::unusable(path, error);
        let (queue, queued) = mpsc::channel();
        let writer =
            Writer::new(books, queued, access).map_err(|error| unusable(error.to_string()))?;
        let work = move || {
            writer.run();
            // Only now may another server have the file.
            drop(lock);
        };
        let writer = thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(work)
            .map_err(|error| unusable(error.to_string()))?;
        let reports =
            Reader::start(path.to_owned()).map_err(|error| unusable(error.to_string()))?;
        let (path, queue, writer) = (path.to_owned(), Some(queue), Some(writer));
        Ok(Self { path, clock, queue, writer, reports })
    }

    fn ask<T: Send + 'static>(
        &self,
        weight: Weight,
        verb: impl FnMut(&Books) -> Result<T, Fault> + Send + 'static,
    ) -> Answer<'_, Result<T, Unavailable>> {
        let (step, answered) = Asked::step(weight, verb);
        self.send(step);
        Box::pin(async move { answered.await.unwrap_or_else(|_| Err(gone())) })
    }

    fn send(&self, step: Box<dyn Step>) {
        // Where the writer is gone, the step goes with its answer, and whoever waits is told so.
        if let Some(queue) = &self.queue {
            let _ = queue.send(step);
        }
    }
}

/// However the file is called, it has one lock; and a process that changes its folder keeps its ledger.
fn true_name(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

fn gone() -> Unavailable {
    Unavailable("the ledger's writer is gone".into())
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Ledger for Sqlite {
    fn reserve<'a>(&'a self, reservation: &'a Reservation) -> Answer<'a, Result<(), Refused>> {
        let weight = if reservation.is_dear() { Weight::Dear } else { Weight::Cheap };
        let (asked, clock) = (reservation.clone(), self.clock.clone());
        let answer = self.ask(weight, move |books| books.reserve(&asked, clock()));
        Box::pin(async { answer.await? })
    }

    fn sent(&self, id: PurchaseId) -> Answer<'_, Result<(), Unavailable>> {
        // A dear one waits for the disk here too: after a power cut, it must not look unsent.
        self.ask(Weight::Of(id), move |books| books.sent(id))
    }

    fn settle(&self, id: PurchaseId, ending: Ending) -> Answer<'_, Result<(), Unavailable>> {
        let clock = self.clock.clone();
        self.ask(Weight::Of(id), move |books| books.settle(id, &ending, clock()))
    }

    fn settle_later(&self, id: PurchaseId, ending: Ending) {
        let clock = self.clock.clone();
        self.send(Noted::step(Weight::Of(id), move |books| books.settle(id, &ending, clock())));
    }

    fn reply(&self, id: PurchaseId) -> Answer<'_, Result<Option<KeptReply>, Unavailable>> {
        self.ask(Weight::Cheap, move |books| replies::of(&books.connection, id))
    }

    fn delivered(&self, id: PurchaseId) {
        self.send(Noted::step(Weight::Cheap, move |books| books.delivered(id)));
    }

    fn keep_unread(&self, id: PurchaseId, body: Bytes) {
        let (path, clock) = (self.path.clone(), self.clock.clone());
        // On the writer's thread, which may wait for a disk.
        self.send(Noted::step(Weight::Cheap, move |_| {
            match unread::keep(&path, id, &body, clock()) {
                Ok(file) => {
                    warn!(%id, file = %file.display(), "a reply that cannot be read is kept")
                }
                Err(error) => error!(%id, %error, "a reply that cannot be read could not be kept"),
            }
            Ok(())
        }));
    }

    fn forget(&self) -> Answer<'_, Result<(), Unavailable>> {
        let (path, clock) = (self.path.clone(), self.clock.clone());
        self.ask(Weight::Cheap, move |books| {
            if let Err(error) = unread::tidy(&path, clock()) {
                warn!(%error, "replies that could not be read could not be forgotten");
            }
            replies::forget(books, clock())
        })
    }

    fn spending(
        &self,
        caller: String,
        since: Duration,
    ) -> Answer<'_, Result<Vec<Spending>, Unavailable>> {
        report::spending(&self.reports, caller, since)
    }

    fn rows(&self, since: Duration) -> Answer<'_, Result<Vec<Row>, Unavailable>> {
        report::rows(&self.reports, since)
    }

    fn spending_of_all(
        &self,
        since: Duration,
        most: usize,
    ) -> Answer<'_, Result<Vec<CallerSpending>, Unavailable>> {
        report::spending_of_all(&self.reports, since, most)
    }

    fn unknown(&self, most: usize) -> Answer<'_, Result<Vec<Row>, Unavailable>> {
        report::unknown(&self.reports, most)
    }

    fn spent(&self, scope: Scope) -> Answer<'_, Result<Spent, Unavailable>> {
        let clock = self.clock.clone();
        self.ask(Weight::Cheap, move |books| books.spent(&scope, clock()))
    }

    fn at_rest(&self, since: Duration) -> Answer<'_, Result<Option<Rest>, Unavailable>> {
        report::at_rest(&self.reports, since)
    }

    fn check(&self, noted: Checkpoint) -> Answer<'_, Result<bool, Unavailable>> {
        self.ask(Weight::Cheap, move |books| books.check(noted))
    }

    fn last_check(&self) -> Answer<'_, Result<Option<Checkpoint>, Unavailable>> {
        self.ask(Weight::Cheap, |books| Ok(books.checks(1)?.pop()))
    }

    fn checks(&self, most: usize) -> Answer<'_, Result<Vec<Checkpoint>, Unavailable>> {
        self.ask(Weight::Cheap, move |books| books.checks(most))
    }
}

impl JobBook for Sqlite {
    fn accept<'a>(&'a self, job: &'a Job) -> Answer<'a, Result<(), Unavailable>> {
        let job = job.clone();
        self.ask(Weight::Dear, move |books| jobs::accept(&books.connection, &job))
    }

    fn accept_later(&self, job: Job) {
        self.send(Noted::step(Weight::Dear, move |books| jobs::accept(&books.connection, &job)));
    }

    fn heard(&self, request_id: Arc<str>, word: Word) -> Answer<'_, Result<(), Unavailable>> {
        // What a power cut forgets is asked for again.
        self.ask(Weight::Cheap, move |books| jobs::heard(&books.connection, &request_id, &word))
    }

    fn job(&self, request_id: Arc<str>) -> Answer<'_, Result<Option<Job>, Unavailable>> {
        self.ask(Weight::Cheap, move |books| jobs::job(&books.connection, &request_id))
    }

    fn open_jobs(&self) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.ask(Weight::Cheap, |books| jobs::open(&books.connection))
    }

    fn jobs_of(&self, owner: Arc<str>, most: usize) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.ask(Weight::Cheap, move |books| jobs::of(&books.connection, &owner, most))
    }

    fn latest_jobs(&self, most: usize) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.ask(Weight::Cheap, move |books| jobs::latest(&books.connection, most))
    }

    fn times(
        &self,
        model: Arc<str>,
        most: usize,
    ) -> Answer<'_, Result<Vec<Duration>, Unavailable>> {
        self.ask(Weight::Cheap, move |books| jobs::times(&books.connection, &model, most))
    }
}
