//! The store as everything else of the program holds it.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::memory::Memory;
use super::sqlite::{Holder, MemberChange, OpenError, Opening, Sqlite};
use super::{
    Account, AccountLimit, Answer, Broken, CallerSpending, Checkpoint, Clock, Ending, Evidence,
    Identity, Job, JobBook, KeptReply, Ledger, Member, MemberFault, Members, Money, Own, Place,
    PurchaseId, Recognise, Refused, Reservation, Role, Row, Scope, Session, Snapshot, Spending,
    Spent, TakenPlace, Unavailable, Verbs, WindowLog, Word,
};

/// Everything that a server remembers: purchases, jobs, members, and what was sent to the gateway.
/// Clones are the same store.
#[derive(Clone)]
pub struct Store {
    ledger: Arc<dyn Ledger>,
    book: Arc<dyn JobBook>,
    log: Arc<dyn WindowLog>,
    members: Arc<dyn Members>,
    file: Option<Arc<Sqlite>>,
    name: Arc<str>,
}

impl Store {
    /// An empty store that ends with the process and takes the wall-clock time from `clock`.
    pub fn in_memory(clock: Clock) -> Self {
        Self::of(Arc::new(Memory::new(clock)), Uuid::now_v7().to_string().into())
    }

    /// A store that answers every verb with [`Unavailable`] and this reason.
    pub fn unusable(reason: impl Into<Arc<str>>) -> Self {
        Self::of(Arc::new(Broken(reason.into())), "broken".into())
    }

    /// Takes a file to sell from; operators' commands find the server at `admin`. It may be a while until
    /// it is [open](Opening).
    ///
    /// # Errors
    /// Another server has it, or it cannot be used.
    pub async fn begin(
        path: &Path,
        clock: Clock,
        money: Money,
        admin: Option<SocketAddr>,
    ) -> Result<(Self, Opening), OpenError> {
        let (sqlite, opening) = Sqlite::begin(path, clock, money, admin).await?;
        Ok((Self::file(sqlite), opening))
    }

    /// Opens a file to write in it next to a running server, which sees at once what changes.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open_shared(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        Sqlite::beside(path, clock).map(Self::file)
    }

    /// Opens a file to write in it where no server has it; until the last clone is dropped, none begins.
    ///
    /// # Errors
    /// Another process has it, or it cannot be used.
    pub fn open_exclusive(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        Sqlite::instead(path, clock).map(Self::file)
    }

    /// Opens a file for reports; every verb that would write answers [`Unavailable`].
    ///
    /// # Errors
    /// There is none, or it cannot be used.
    pub fn open_read_only(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        Sqlite::read(path, clock).map(Self::file)
    }

    /// Whether somebody's token in the file at `path` depends on a secret that is noted there, as far as
    /// that can be read.
    pub fn is_keyed(path: &Path) -> bool {
        Sqlite::is_keyed(path)
    }

    fn file(sqlite: Sqlite) -> Self {
        let (name, sqlite) = (sqlite.name().unwrap_or_default(), Arc::new(sqlite));
        Self { file: Some(Arc::clone(&sqlite)), ..Self::of(sqlite, name) }
    }

    /// One that does what `verbs` do, of this name.
    pub fn of<T: Verbs>(verbs: Arc<T>, name: Arc<str>) -> Self {
        let (ledger, book) = (Arc::clone(&verbs) as _, Arc::clone(&verbs) as _);
        Self { ledger, book, log: Arc::clone(&verbs) as _, members: verbs, file: None, name }
    }

    /// The same, save for what purchases, jobs and the window ask of it.
    pub fn but<T: Ledger + JobBook + WindowLog>(self, verbs: Arc<T>) -> Self {
        let (ledger, book) = (Arc::clone(&verbs) as _, Arc::clone(&verbs) as _);
        Self { ledger, book, log: verbs, ..self }
    }

    /// The same, save for the list of members.
    pub fn but_members(self, members: Arc<dyn Members>) -> Self {
        Self { members, ..self }
    }

    /// The public name of what it remembers: another one once purchases may have been forgotten.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Where the server that has this store now is asked by operators, whichever process it is.
    pub fn served_by(&self) -> Option<Holder> {
        self.file.as_ref()?.served_by()
    }

    /// Does all of this, or, where one change is refused, nothing: whose, and why. With a token, the secret
    /// that it is hashed with is noted by its fingerprint.
    pub async fn change_members(
        &self,
        print: Option<Identity>,
        changes: Vec<(Arc<str>, MemberChange)>,
    ) -> Result<(), (Arc<str>, MemberFault)> {
        match &self.file {
            Some(file) => file.change_members(print, changes).await,
            None => Err((Arc::default(), Unavailable("the store is no file".into()).into())),
        }
    }
}

/// The verbs, each one step.
impl Store {
    /// Sets a toll aside, durably, against every budget, and claims the purchase's identity; or says
    /// what stands in the way. All of it is one step.
    pub fn reserve<'a>(&'a self, reservation: &'a Reservation) -> Answer<'a, Result<(), Refused>> {
        self.ledger.reserve(reservation)
    }

    /// Marks a reserved purchase as about to be sent; on return, a crash makes it unknown.
    pub fn sent(&self, id: PurchaseId, account: Account) -> Answer<'_, Result<(), Unavailable>> {
        self.ledger.sent(id, account)
    }

    /// Ends a purchase, and writes down the job that it became; on return, both are durable. Ending one that has ended already changes
    /// nothing, save that an `unknown` one may become `posted` or `voided`.
    pub fn settle(&self, id: PurchaseId, ending: Ending) -> Answer<'_, Result<(), Unavailable>> {
        self.ledger.settle(id, ending)
    }

    /// [`settle`](Self::settle) without waiting, for tasks that are being dropped.
    pub fn settle_later(&self, id: PurchaseId, ending: Ending) {
        self.ledger.settle_later(id, ending)
    }

    /// The gateway's reply to a purchase; `None` if it is not kept, or not any more.
    pub fn reply(&self, id: PurchaseId) -> Answer<'_, Result<Option<KeptReply>, Unavailable>> {
        self.ledger.reply(id)
    }

    /// Notes, without waiting, that the caller took the reply to its end.
    pub fn delivered(&self, id: PurchaseId) {
        self.ledger.delivered(id)
    }

    /// Keeps, without waiting, what was answered to a purchase and cannot be read, for the operator and
    /// for a day. A store that ends with the process keeps nothing.
    pub fn keep_unread(&self, id: PurchaseId, body: Bytes) {
        self.ledger.keep_unread(id, body)
    }

    /// Forgets replies whose time has come.
    pub fn forget(&self) -> Answer<'_, Result<(), Unavailable>> {
        self.ledger.forget()
    }

    /// Purchases since a wall-clock time, oldest first, for reports.
    pub fn rows(&self, since: Duration) -> Answer<'_, Result<Vec<Row>, Unavailable>> {
        self.ledger.rows(since)
    }

    /// What a caller has spent by UTC day, service and model since a wall-clock time, in this order;
    /// what was voided counts nothing.
    pub fn spending(
        &self,
        caller: String,
        since: Duration,
    ) -> Answer<'_, Result<Vec<Spending>, Unavailable>> {
        self.ledger.spending(caller, since)
    }

    /// What everybody has spent by caller, UTC day, service and model since a wall-clock time, in this
    /// order, at most `most` rows; what was voided counts nothing.
    pub fn spending_of_all(
        &self,
        since: Duration,
        most: usize,
    ) -> Answer<'_, Result<Vec<CallerSpending>, Unavailable>> {
        self.ledger.spending_of_all(since, most)
    }

    /// Purchases whose outcome nobody knows, the latest first, at most `most`.
    pub fn unknown(&self, most: usize) -> Answer<'_, Result<Vec<Row>, Unavailable>> {
        self.ledger.unknown(most)
    }

    /// Notes what the gateway's books said, with the purchases that had begun and settled by then.
    pub fn check(&self, snapshot: Snapshot) -> Answer<'_, Result<(), Unavailable>> {
        self.ledger.check(snapshot)
    }

    /// The latest checkpoint of this account that has a place among the purchases.
    pub fn last_check(&self) -> Answer<'_, Result<Option<Checkpoint>, Unavailable>> {
        self.ledger.last_check()
    }

    /// The latest snapshots, newest first, at most `most`, whichever account they are of.
    pub fn checks(&self, most: usize) -> Answer<'_, Result<Vec<Snapshot>, Unavailable>> {
        self.ledger.checks(most)
    }

    /// How many outcomes are unknown among the purchases after this number. It takes little memory,
    /// however many there are.
    pub fn unknown_after(&self, number: u64) -> Answer<'_, Result<u64, Unavailable>> {
        self.ledger.unknown_after(number)
    }

    /// In the order of their numbers: every purchase after `settled`; of the earlier ones those whose
    /// outcome is unknown, and charged videos without a finished job whose end, or whose job's failure,
    /// is later than `refundable` (wall-clock time since the Unix epoch).
    pub fn evidence(
        &self,
        settled: u64,
        refundable: Duration,
    ) -> Answer<'_, Result<Vec<Evidence>, Unavailable>> {
        self.ledger.evidence(settled, refundable)
    }

    /// One purchase.
    pub fn purchase(&self, id: PurchaseId) -> Answer<'_, Result<Option<Row>, Unavailable>> {
        self.ledger.purchase(id)
    }

    /// A place in the window is taken; on return, a crash does not forget it. `at` is wall-clock time.
    pub fn took(&self, place: Place, at: Duration) -> Answer<'_, Result<(), Unavailable>> {
        self.log.took(place, at)
    }

    /// Notes, without waiting, that the reply or the failure came: the place is free one window later.
    pub fn replied(&self, place: Place, at: Duration) {
        self.log.replied(place, at)
    }

    /// Notes, without waiting, that nothing was sent: the place is free at once.
    pub fn unsent(&self, place: Place) {
        self.log.unsent(place)
    }

    /// Keeps, without waiting, the rate limit that the gateway told last. It outlives power cuts.
    pub fn note_limit(&self, limit: AccountLimit) {
        self.log.note_limit(limit)
    }

    /// The last limit that was [noted](Self::note_limit).
    pub fn noted_limit(&self) -> Answer<'_, Result<Option<AccountLimit>, Unavailable>> {
        self.log.noted_limit()
    }

    /// Notes a job without its purchase; on return, a power cut does not forget it. One that is known stays as it is,
    /// and a word comes by [`heard`](Self::heard) alone.
    pub fn accept<'a>(&'a self, job: &'a Job) -> Answer<'a, Result<(), Unavailable>> {
        self.book.accept(job)
    }

    /// The gateway's latest word on a job. On one that has ended, or is not known, it changes nothing.
    pub fn heard(&self, request_id: Arc<str>, word: Word) -> Answer<'_, Result<(), Unavailable>> {
        self.book.heard(request_id, word)
    }

    /// One job.
    pub fn job(&self, request_id: Arc<str>) -> Answer<'_, Result<Option<Job>, Unavailable>> {
        self.book.job(request_id)
    }

    /// All jobs that have not ended, oldest first.
    pub fn open_jobs(&self) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.book.open_jobs()
    }

    /// A caller's latest jobs, newest first, at most `most`.
    pub fn jobs_of(
        &self,
        owner: Arc<str>,
        most: usize,
    ) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.book.jobs_of(owner, most)
    }

    /// Everybody's latest jobs, newest first, at most `most`.
    pub fn latest_jobs(&self, most: usize) -> Answer<'_, Result<Vec<Job>, Unavailable>> {
        self.book.latest_jobs(most)
    }

    /// Adds a member.
    pub fn enlist<'a>(&'a self, member: &'a Member) -> Answer<'a, Result<(), MemberFault>> {
        self.members.enlist(member)
    }

    /// Ends a member's token and logins for good; one that is revoked already stays as it is.
    pub fn revoke(&self, name: Arc<str>) -> Answer<'_, Result<(), MemberFault>> {
        self.members.revoke(name)
    }

    /// Changes what is given.
    pub fn update(
        &self,
        name: Arc<str>,
        role: Option<Role>,
        own: Option<Own>,
    ) -> Answer<'_, Result<(), MemberFault>> {
        self.members.update(name, role, own)
    }

    /// Gives a member another token; the old one and its logins end.
    pub fn rotate(
        &self,
        name: Arc<str>,
        token: Identity,
        prefix: Arc<str>,
    ) -> Answer<'_, Result<(), MemberFault>> {
        self.members.rotate(name, token, prefix)
    }

    /// All of them, revoked ones too, by name.
    pub fn members(&self) -> Answer<'_, Result<Vec<Member>, Unavailable>> {
        self.members.members()
    }

    /// Keeps a login; those whose time is over are forgotten with it, and so is the oldest of a member
    /// who has a hundred.
    pub fn log_in<'a>(&'a self, session: &'a Session) -> Answer<'a, Result<(), Unavailable>> {
        self.members.log_in(session)
    }

    /// Ends a login.
    pub fn log_out(&self, id: Identity) -> Answer<'_, Result<(), Unavailable>> {
        self.members.log_out(id)
    }

    /// The logins that are not over.
    pub fn sessions(&self) -> Answer<'_, Result<Vec<Session>, Unavailable>> {
        self.members.sessions()
    }

    /// The fingerprint of the secret that tokens are hashed with, where one is noted and a member's token
    /// depends on it. What ends with the process has none.
    pub fn keyed_by(&self) -> Answer<'_, Result<Option<Identity>, Unavailable>> {
        self.members.keyed_by()
    }

    /// Notes it, in the place of any other.
    pub fn key_by(&self, print: Identity) -> Answer<'_, Result<(), Unavailable>> {
        self.members.key_by(print)
    }

    /// What a scope has spent, set aside or lost track of, in the current day and month.
    pub fn spent(&self, scope: Scope) -> Answer<'_, Result<Spent, Unavailable>> {
        self.ledger.spent(scope)
    }

    /// Whether the account with these keys is the one that the ledger is about: none is noted yet, or
    /// one id is noted. `keys` must not be empty.
    pub fn recognise(
        &self,
        keys: Vec<String>,
        how: Recognise,
    ) -> Answer<'_, Result<bool, Unavailable>> {
        self.ledger.recognise(keys, how)
    }

    /// The places that were taken, or whose reply came, after `since`; what nobody knows the reply of
    /// counts as replied to when the store was opened (a crash), or just now (it is under way).
    pub fn places(&self, since: Duration) -> Answer<'_, Result<Vec<TakenPlace>, Unavailable>> {
        self.log.places(since)
    }

    /// How long finished jobs of a model took, the latest first, at most `most`.
    pub fn times(
        &self,
        model: Arc<str>,
        most: usize,
    ) -> Answer<'_, Result<Vec<Duration>, Unavailable>> {
        self.book.times(model, most)
    }

    /// Another number after any change of members or logins, by whichever process. Cheap: asked several
    /// times a second.
    pub fn edition(&self) -> Answer<'_, Result<u64, Unavailable>> {
        self.members.edition()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("name", &self.name).finish_non_exhaustive()
    }
}
