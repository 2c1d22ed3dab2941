//! Stands in for a ledger that cannot be used, so that what is free still works.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{
    Account, AccountLimit, Answer, Audit, CallerSpending, Checkpoint, Ending, Evidence, Identity,
    Job, JobBook, KeptReply, Ledger, Member, MemberFault, Members, Own, Place, PurchaseId,
    Recognise, Refused, Reservation, Role, Row, Scope, Session, Snapshot, Spending, Spent,
    TakenPlace, Unavailable, WindowLog, Word,
};

/// Answers every verb with [`Unavailable`] and this reason.
#[derive(Clone, Debug)]
pub struct Broken(pub Arc<str>);

impl Broken {
    fn refuse<T, E>(&self) -> Answer<'static, Result<T, E>>
    where
        T: Send + 'static,
        E: From<Unavailable> + Send + 'static,
    {
        Box::pin(ready(Err(Unavailable(Arc::clone(&self.0)).into())))
    }
}

impl Ledger for Broken {
    fn reserve<'a>(&'a self, _: &'a Reservation) -> Answer<'a, Result<(), Refused>> {
        self.refuse()
    }

    fn sent(&self, _: PurchaseId, _: Account) -> Answer<'_, Result<(), Unavailable>> {
        self.refuse()
    }

    fn settle(&self, _: PurchaseId, _: Ending) -> Answer<'_, Result<(), Unavailable>> {
        self.refuse()
    }

    fn settle_later(&self, _: PurchaseId, _: Ending) {}

    fn reply(&self, _: PurchaseId) -> Answer<'_, Result<Option<KeptReply>, Unavailable>> {
        self.refuse()
    }

    fn delivered(&self, _: PurchaseId) {}

    fn keep_unread(&self, _: PurchaseId, _: Bytes) {}

    fn forget(&self) -> Answer<'_, Result<(), Unavailable>> {
        self.refuse()
    }

    fn rows(&self, _: Duration) -> Answer<'_, Result<Vec<Row>, Unavailable>> {
        self.refuse()
    }

    fn spending(&self, _: String, _: Duration) -> Answer<'_, Result<Vec<Spending>, Unavailable>> {
        self.refuse()
    }

    fn spending_of_all(
        &self,
        _: Duration,
        _: usize,
    ) -> Answer<'_, Result<Vec<CallerSpending>, Unavailable>> {
        self.refuse()
    }

    fn unknown(&self, _: usize) -> Answer<'_, Result<Vec<Row>, Unavailable>> {
        self.refuse()
    }

    fn spent(&self, _: Scope) -> Answer<'_, Result<Spent, Unavailable>> {
        self.refuse()
    }
}

impl Audit for Broken {
    fn check(&self, _: Snapshot) -> Answer<'_, Result<(), Unavailable>> {
        self.refuse()
    }

    fn last_check(&self) -> Answer<'_, Result<Option<Checkpoint>, Unavailable>> {
        self.refuse()
    }

    fn checks(&self, _: usize) -> Answer<'_, Result<Vec<Snapshot>, Unavailable>> {
        self.refuse()
    }

    fn unknown_after(&self, _: u64) -> Answer<'_, Result<u64, Unavailable>> {
        self.refuse()
    }

    fn evidence(&self, _: u64, _: Duration) -> Answer<'_, Result<Vec<Evidence>, Unavailable>> {
        self.refuse()
    }

    fn purchase(&self, _: PurchaseId) -> Answer<'_, Result<Option<Row>, Unavailable>> {
        self.refuse()
    }

    fn recognise(&self, _: Vec<String>, _: Recognise) -> Answer<'_, Result<bool, Unavailable>> {
        self.refuse()
    }
}

impl JobBook for Broken {
    fn accept<'a>(&'a self, _: &'a Job) -> Answer<'a, Result<(), Unavailable>> {
        self.refuse()
    }

    fn heard(&self, _: Arc<str>, _: Word) -> Answer<'_, Result<(), Unavailable>> {
        self.refuse()
    }

    fn job(&self, _: Arc<str>) -> Answer<'_, Result<Option<Job>, Unavailable>> {
        self.refuse()
    }

    fn open_jobs(&self) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.refuse()
    }

    fn jobs_of(&self, _: Arc<str>, _: usize) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.refuse()
    }

    fn latest_jobs(&self, _: usize) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.refuse()
    }

    fn times(&self, _: Arc<str>, _: usize) -> Answer<'_, Result<Vec<Duration>, Unavailable>> {
        self.refuse()
    }
}

impl WindowLog for Broken {
    fn took(&self, _: Place, _: Duration) -> Answer<'_, Result<(), Unavailable>> {
        self.refuse()
    }

    fn replied(&self, _: Place, _: Duration) {}

    fn unsent(&self, _: Place) {}

    fn note_limit(&self, _: AccountLimit) {}

    fn noted_limit(&self) -> Answer<'_, Result<Option<AccountLimit>, Unavailable>> {
        self.refuse()
    }

    fn places(&self, _: Duration) -> Answer<'_, Result<Vec<TakenPlace>, Unavailable>> {
        self.refuse()
    }
}

impl Members for Broken {
    fn enlist<'a>(&'a self, _: &'a Member) -> Answer<'a, Result<(), MemberFault>> {
        self.refuse()
    }

    fn revoke(&self, _: Arc<str>) -> Answer<'_, Result<(), MemberFault>> {
        self.refuse()
    }

    fn update(
        &self,
        _: Arc<str>,
        _: Option<Role>,
        _: Option<Own>,
    ) -> Answer<'_, Result<(), MemberFault>> {
        self.refuse()
    }

    fn rotate(&self, _: Arc<str>, _: Identity, _: Arc<str>) -> Answer<'_, Result<(), MemberFault>> {
        self.refuse()
    }

    fn members(&self) -> Answer<'_, Result<Vec<Member>, Unavailable>> {
        self.refuse()
    }

    fn log_in<'a>(&'a self, _: &'a Session) -> Answer<'a, Result<(), Unavailable>> {
        self.refuse()
    }

    fn log_out(&self, _: Identity) -> Answer<'_, Result<(), Unavailable>> {
        self.refuse()
    }

    fn sessions(&self) -> Answer<'_, Result<Vec<Session>, Unavailable>> {
        self.refuse()
    }

    fn keyed_by(&self) -> Answer<'_, Result<Option<Identity>, Unavailable>> {
        self.refuse()
    }

    fn key_by(&self, _: Identity) -> Answer<'_, Result<(), Unavailable>> {
        self.refuse()
    }

    fn edition(&self) -> Answer<'_, Result<u64, Unavailable>> {
        self.refuse()
    }
}
