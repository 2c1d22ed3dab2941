//! Keeps the ledger in a file that survives a crash of the process, and whatever is dear a power cut.

mod audit;
mod begin;
mod books;
mod claim;
mod column;
mod counters;
mod fault;
mod identity;
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

use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{fmt, thread};

use bytes::Bytes;
use tracing::{error, warn};

use super::{
    Account, Answer, CallerSpending, Clock, Ending, Job, JobBook, KeptReply, Ledger, PurchaseId,
    Refused, Reservation, Row, Scope, Spending, Spent, Unavailable, Word,
};
use begin::Admission;
use books::Books;
use fault::Fault;
use identity::Identity;
use open::FileId;
use report::Reader;
use step::{Asked, Noted, Step, Weight};
use window::LatestLimit;

pub use begin::Opening;
pub use lock::Holder;
pub use members::MemberChange;
pub use open::OpenError;

/// A ledger in a SQLite file. Dropping it writes what is still on its way, and waits for that.
pub struct Sqlite {
    path: PathBuf,
    clock: Clock,
    queue: Option<mpsc::Sender<Box<dyn Step>>>,
    writer: Option<thread::JoinHandle<()>>,
    admission: Admission,
    /// Where it is this server's: who it is, and which file.
    identity: Option<(Identity, FileId)>,
    reports: Reader,
    latest_limit: LatestLimit,
}

impl Sqlite {
    /// The public name of what it remembers, where this is the server that sells from it: another one once
    /// purchases may have been forgotten.
    pub fn name(&self) -> Option<Arc<str>> {
        self.identity.as_ref().map(|(identity, _)| Arc::clone(&identity.name))
    }

    /// Where the server that has this ledger now is asked by operators, whichever process it is.
    pub fn served_by(&self) -> Option<Holder> {
        lock::served_by(&self.path)
    }

    /// A verb of a ledger that is open.
    fn ask<T: Send + 'static>(
        &self,
        weight: Weight,
        verb: impl FnMut(&Books) -> Result<T, Fault> + Send + 'static,
    ) -> Answer<'_, Result<T, Unavailable>> {
        match self.admission.pass() {
            Ok(()) => self.ask_opening(weight, verb),
            Err(why) => Box::pin(ready(Err(why))),
        }
    }

    /// A verb that waits for a ledger that is being opened: a server's own questions at its start.
    fn ask_opening<T: Send + 'static>(
        &self,
        weight: Weight,
        verb: impl FnMut(&Books) -> Result<T, Fault> + Send + 'static,
    ) -> Answer<'_, Result<T, Unavailable>> {
        let (step, answered) = Asked::step(weight, verb);
        self.send(step);
        let gone = || Err(self.admission.pass().err().unwrap_or_else(gone));
        Box::pin(async move { answered.await.unwrap_or_else(|_| gone()) })
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
        self.admission.stop();
        // First: a connection that still reads would keep the write-ahead log from being emptied.
        self.reports.end();
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
        if let Err(why) = self.admission.pass_purchase() {
            return Box::pin(ready(Err(why.into())));
        }
        let weight = if reservation.is_dear() { Weight::Dear } else { Weight::Cheap };
        let (asked, clock) = (reservation.clone(), self.clock.clone());
        let answer = self.ask(weight, move |books| books.reserve(&asked, clock()));
        Box::pin(async { answer.await? })
    }

    fn sent(&self, id: PurchaseId, account: Account) -> Answer<'_, Result<(), Unavailable>> {
        // A dear one waits for the disk here too: after a power cut, it must not look unsent.
        self.ask(Weight::Of(id), move |books| books.sent(id, account))
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
        let identity = self.identity.clone();
        self.ask(Weight::Cheap, move |books| {
            if let Some((identity, file)) = &identity {
                open::must_be_there(&path, *file)?;
                identity::must_be(&books.connection, &identity.mark.nonce)?;
            }
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
}

impl JobBook for Sqlite {
    fn accept<'a>(&'a self, job: &'a Job) -> Answer<'a, Result<(), Unavailable>> {
        let job = job.clone();
        self.ask(Weight::Dear, move |books| jobs::accept(&books.connection, &job))
    }

    fn heard(&self, request_id: Arc<str>, word: Word) -> Answer<'_, Result<(), Unavailable>> {
        // What a power cut forgets is asked for again.
        self.ask(Weight::Cheap, move |books| jobs::heard(&books.connection, &request_id, &word))
    }

    fn job(&self, request_id: Arc<str>) -> Answer<'_, Result<Option<Job>, Unavailable>> {
        self.ask(Weight::Cheap, move |books| jobs::job(&books.connection, &request_id))
    }

    fn open_jobs(&self) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.ask_opening(Weight::Cheap, |books| jobs::open(&books.connection))
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
        // A job that is picked up at the start asks it once.
        self.ask_opening(Weight::Cheap, move |books| jobs::times(&books.connection, &model, most))
    }
}
