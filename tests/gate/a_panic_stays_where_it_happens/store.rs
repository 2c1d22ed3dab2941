//! A store that panics once, where a test wants it to.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tollgate::store::{
    Account, AccountLimit, Answer, Audit, CallerSpending, Checkpoint, Ending, Evidence, Job,
    JobBook, KeptReply, Ledger, Place, PurchaseId, Recognise, Refused, Reservation, Row, Scope,
    Snapshot, Spending, Spent, Store, TakenPlace, Unavailable, WindowLog, Word,
};

use crate::support::lock;

/// The verb that panics next, and whether its work is done by then.
static NEXT: Mutex<Option<(&str, When)>> = Mutex::new(None);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Before,
    After,
}

/// The next call of this verb panics, once.
pub(super) fn arm(verb: &'static str, when: When) {
    *lock(&NEXT) = Some((verb, when));
}

/// Whether it has not panicked yet; from here on it will not.
pub(super) fn disarm() -> bool {
    lock(&NEXT).take().is_some()
}

/// Whether it has panicked.
pub(super) fn has_struck() -> bool {
    lock(&NEXT).is_none()
}

pub(super) fn wrap(inner: Store) -> Store {
    inner.clone().but(Arc::new(Brittle(inner)))
}

struct Brittle(Store);

fn strike(verb: &str, when: When) {
    let strikes = lock(&NEXT).take_if(|next| *next == (verb, when)).is_some();
    assert!(!strikes, "a test breaks the store");
}

fn around<'a, T: 'a>(verb: &'static str, inner: Answer<'a, T>) -> Answer<'a, T> {
    Box::pin(async move {
        strike(verb, When::Before);
        let answer = inner.await;
        strike(verb, When::After);
        answer
    })
}

impl Ledger for Brittle {
    fn reserve<'a>(&'a self, wanted: &'a Reservation) -> Answer<'a, Result<(), Refused>> {
        around("reserve", self.0.reserve(wanted))
    }

    fn sent(&self, id: PurchaseId, account: Account) -> Answer<'_, Result<(), Unavailable>> {
        around("sent", self.0.sent(id, account))
    }

    fn settle(&self, id: PurchaseId, ending: Ending) -> Answer<'_, Result<(), Unavailable>> {
        around("settle", Box::pin(async move { self.0.settle(id, ending).await }))
    }

    fn settle_later(&self, id: PurchaseId, ending: Ending) {
        self.0.settle_later(id, ending);
    }

    fn reply(&self, id: PurchaseId) -> Answer<'_, Result<Option<KeptReply>, Unavailable>> {
        around("reply", self.0.reply(id))
    }

    fn delivered(&self, id: PurchaseId) {
        strike("delivered", When::Before);
        self.0.delivered(id);
    }

    fn keep_unread(&self, id: PurchaseId, body: Bytes) {
        self.0.keep_unread(id, body);
    }

    fn forget(&self) -> Answer<'_, Result<(), Unavailable>> {
        self.0.forget()
    }

    fn rows(&self, since: Duration) -> Answer<'_, Result<Vec<Row>, Unavailable>> {
        self.0.rows(since)
    }

    fn spending(
        &self,
        caller: String,
        since: Duration,
    ) -> Answer<'_, Result<Vec<Spending>, Unavailable>> {
        around("spending", self.0.spending(caller, since))
    }

    fn spending_of_all(
        &self,
        since: Duration,
        most: usize,
    ) -> Answer<'_, Result<Vec<CallerSpending>, Unavailable>> {
        self.0.spending_of_all(since, most)
    }

    fn unknown(&self, most: usize) -> Answer<'_, Result<Vec<Row>, Unavailable>> {
        self.0.unknown(most)
    }

    fn spent(&self, scope: Scope) -> Answer<'_, Result<Spent, Unavailable>> {
        around("spent", self.0.spent(scope))
    }
}

impl Audit for Brittle {
    fn check(&self, snapshot: Snapshot) -> Answer<'_, Result<(), Unavailable>> {
        self.0.check(snapshot)
    }

    fn last_check(&self) -> Answer<'_, Result<Option<Checkpoint>, Unavailable>> {
        self.0.last_check()
    }

    fn checks(&self, most: usize) -> Answer<'_, Result<Vec<Snapshot>, Unavailable>> {
        self.0.checks(most)
    }

    fn unknown_after(&self, number: u64) -> Answer<'_, Result<u64, Unavailable>> {
        self.0.unknown_after(number)
    }

    fn evidence(
        &self,
        settled: u64,
        refundable: Duration,
    ) -> Answer<'_, Result<Vec<Evidence>, Unavailable>> {
        self.0.evidence(settled, refundable)
    }

    fn purchase(&self, id: PurchaseId) -> Answer<'_, Result<Option<Row>, Unavailable>> {
        self.0.purchase(id)
    }

    fn recognise(
        &self,
        keys: Vec<String>,
        how: Recognise,
    ) -> Answer<'_, Result<bool, Unavailable>> {
        self.0.recognise(keys, how)
    }
}

impl WindowLog for Brittle {
    fn took(&self, place: Place, at: Duration) -> Answer<'_, Result<(), Unavailable>> {
        around("took", self.0.took(place, at))
    }

    fn replied(&self, place: Place, at: Duration) {
        self.0.replied(place, at);
    }

    fn unsent(&self, place: Place) {
        self.0.unsent(place);
    }

    fn note_limit(&self, limit: AccountLimit) {
        self.0.note_limit(limit);
    }

    fn noted_limit(&self) -> Answer<'_, Result<Option<AccountLimit>, Unavailable>> {
        self.0.noted_limit()
    }

    fn places(&self, since: Duration) -> Answer<'_, Result<Vec<TakenPlace>, Unavailable>> {
        self.0.places(since)
    }
}

impl JobBook for Brittle {
    fn accept<'a>(&'a self, job: &'a Job) -> Answer<'a, Result<(), Unavailable>> {
        around("accept", self.0.accept(job))
    }

    fn heard(&self, request_id: Arc<str>, word: Word) -> Answer<'_, Result<(), Unavailable>> {
        around("heard", self.0.heard(request_id, word))
    }

    fn job(&self, request_id: Arc<str>) -> Answer<'_, Result<Option<Job>, Unavailable>> {
        around("job", self.0.job(request_id))
    }

    fn open_jobs(&self) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.0.open_jobs()
    }

    fn jobs_of(&self, owner: Arc<str>, most: usize) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        around("jobs_of", self.0.jobs_of(owner, most))
    }

    fn latest_jobs(&self, most: usize) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.0.latest_jobs(most)
    }

    fn times(
        &self,
        model: Arc<str>,
        most: usize,
    ) -> Answer<'_, Result<Vec<Duration>, Unavailable>> {
        around("times", self.0.times(model, most))
    }
}
