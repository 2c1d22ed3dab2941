//! Keeps the ledger in this process alone: for the sandbox, for tests, and as the plain statement of
//! what every backend does.

mod audit;
mod books;
mod jobs;
mod members;
mod replies;
mod window;

use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use super::{
    Account, Answer, Audit, CallerSpending, Checkpoint, Clock, Ending, Evidence, Job, JobBook,
    KeptReply, Ledger, PurchaseId, Recognise, Refused, Reservation, Room, Row, Scope, Snapshot,
    Spending, Spent, Unavailable, Word,
};
use books::Books;
use jobs::Jobs;
use members::Roll;
use window::Places;

/// A ledger that ends with the process. Every verb is done when it is called: nothing runs beside it.
pub struct Memory {
    books: Mutex<Books>,
    jobs: Mutex<Jobs>,
    places: Mutex<Places>,
    roll: Mutex<Roll>,
    clock: Clock,
}

impl Memory {
    /// An empty ledger that takes the wall-clock time from `clock`.
    pub fn new(clock: Clock) -> Self {
        Self::with_room(clock, Room::default())
    }

    /// The same, with other bounds.
    pub fn with_room(clock: Clock, room: Room) -> Self {
        let (jobs, places, roll) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { books: Mutex::new(Books::new(room)), jobs, places, roll, clock }
    }

    fn step<T>(
        &self,
        step: impl FnOnce(&mut Books, Duration) -> Result<T, Unavailable>,
    ) -> Result<T, Unavailable> {
        // A step that panicked may have left half of itself: nothing is guessed from then on.
        let poisoned = |_| Unavailable("a step of the ledger broke".into());
        step(&mut *self.books.lock().map_err(poisoned)?, (self.clock)())
    }

    fn of_jobs<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut Jobs) -> T,
    ) -> Answer<'static, Result<T, Unavailable>> {
        let poisoned = |_| Unavailable("a step of the jobs broke".into());
        let answer = self.jobs.lock().map(|mut jobs| step(&mut jobs)).map_err(poisoned);
        Box::pin(ready(answer))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Ledger for Memory {
    fn reserve<'a>(&'a self, reservation: &'a Reservation) -> Answer<'a, Result<(), Refused>> {
        let answer = self.step(|books, now| Ok(books.reserve(reservation, now)));
        Box::pin(ready(answer.unwrap_or_else(|unavailable| Err(unavailable.into()))))
    }

    fn sent(&self, id: PurchaseId, account: Account) -> Answer<'_, Result<(), Unavailable>> {
        Box::pin(ready(self.step(|books, _| books.sent(id, account))))
    }

    fn settle(&self, id: PurchaseId, ending: Ending) -> Answer<'_, Result<(), Unavailable>> {
        Box::pin(ready(self.step(|books, now| {
            let mut jobs =
                self.jobs.lock().map_err(|_| Unavailable("a step of the jobs broke".into()))?;
            books.settle(id, ending, now, |job| jobs.accept(job))
        })))
    }

    fn settle_later(&self, id: PurchaseId, ending: Ending) {
        drop(self.settle(id, ending));
    }

    fn reply(&self, id: PurchaseId) -> Answer<'_, Result<Option<KeptReply>, Unavailable>> {
        Box::pin(ready(self.step(|books, _| Ok(books.reply(id)))))
    }

    fn delivered(&self, id: PurchaseId) {
        let _ = self.step(|books, _| {
            books.delivered(id);
            Ok(())
        });
    }

    fn keep_unread(&self, _: PurchaseId, _: Bytes) {}

    fn forget(&self) -> Answer<'_, Result<(), Unavailable>> {
        Box::pin(ready(self.step(|books, now| {
            books.forget(now);
            Ok(())
        })))
    }

    fn rows(&self, since: Duration) -> Answer<'_, Result<Vec<Row>, Unavailable>> {
        Box::pin(ready(self.step(|books, _| Ok(books.rows(since)))))
    }

    fn spending(
        &self,
        caller: String,
        since: Duration,
    ) -> Answer<'_, Result<Vec<Spending>, Unavailable>> {
        Box::pin(ready(self.step(|books, _| Ok(books.spending(&caller, since)))))
    }

    fn spending_of_all(
        &self,
        since: Duration,
        most: usize,
    ) -> Answer<'_, Result<Vec<CallerSpending>, Unavailable>> {
        Box::pin(ready(self.step(|books, _| Ok(books.spending_of_all(since, most)))))
    }

    fn unknown(&self, most: usize) -> Answer<'_, Result<Vec<Row>, Unavailable>> {
        Box::pin(ready(self.step(|books, _| Ok(books.unknown(most)))))
    }

    fn spent(&self, scope: Scope) -> Answer<'_, Result<Spent, Unavailable>> {
        Box::pin(ready(self.step(|books, now| Ok(books.spent_now(&scope, now)))))
    }
}

impl Audit for Memory {
    fn check(&self, snapshot: Snapshot) -> Answer<'_, Result<(), Unavailable>> {
        Box::pin(ready(self.step(|books, _| {
            books.check(snapshot);
            Ok(())
        })))
    }

    fn last_check(&self) -> Answer<'_, Result<Option<Checkpoint>, Unavailable>> {
        Box::pin(ready(self.step(|books, _| Ok(books.last_check()))))
    }

    fn checks(&self, most: usize) -> Answer<'_, Result<Vec<Snapshot>, Unavailable>> {
        Box::pin(ready(self.step(|books, _| Ok(books.checks(most)))))
    }

    fn unknown_after(&self, number: u64) -> Answer<'_, Result<u64, Unavailable>> {
        Box::pin(ready(self.step(|books, _| Ok(books.unknown_after(number)))))
    }

    fn evidence(
        &self,
        settled: u64,
        refundable: Duration,
    ) -> Answer<'_, Result<Vec<Evidence>, Unavailable>> {
        Box::pin(ready(self.step(|books, _| {
            let jobs =
                self.jobs.lock().map_err(|_| Unavailable("a step of the jobs broke".into()))?;
            Ok(books.evidence(settled, refundable, |id| jobs.ordered_with(id)))
        })))
    }

    fn purchase(&self, id: PurchaseId) -> Answer<'_, Result<Option<Row>, Unavailable>> {
        Box::pin(ready(self.step(|books, _| Ok(books.row(id)))))
    }

    fn recognise(
        &self,
        keys: Vec<String>,
        how: Recognise,
    ) -> Answer<'_, Result<bool, Unavailable>> {
        let answer = self.step(|books, _| Ok(books.recognise(keys, how)));
        if how == Recognise::Note && matches!(answer, Ok(false)) {
            self.forget_limit();
        }
        Box::pin(ready(answer))
    }
}

impl JobBook for Memory {
    fn accept<'a>(&'a self, job: &'a Job) -> Answer<'a, Result<(), Unavailable>> {
        self.of_jobs(|jobs| jobs.accept(job))
    }

    fn heard(&self, request_id: Arc<str>, word: Word) -> Answer<'_, Result<(), Unavailable>> {
        self.of_jobs(|jobs| jobs.heard(&request_id, word))
    }

    fn job(&self, request_id: Arc<str>) -> Answer<'_, Result<Option<Job>, Unavailable>> {
        self.of_jobs(|jobs| jobs.job(&request_id))
    }

    fn open_jobs(&self) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.of_jobs(|jobs| jobs.open())
    }

    fn jobs_of(&self, owner: Arc<str>, most: usize) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.of_jobs(|jobs| jobs.of(&owner, most))
    }

    fn latest_jobs(&self, most: usize) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.of_jobs(|jobs| jobs.latest(most))
    }

    fn times(
        &self,
        model: Arc<str>,
        most: usize,
    ) -> Answer<'_, Result<Vec<Duration>, Unavailable>> {
        self.of_jobs(|jobs| jobs.times(&model, most))
    }
}
