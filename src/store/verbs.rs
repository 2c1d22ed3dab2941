//! The operations of a store, each between the hook's two calls.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{
    AccountCheck, AccountLimit, AccountStatus, Actor, Alert, AuditEntry, AuditQuery, BudgetRequest,
    BudgetScope, Checkpoint, CreditWatermark, Digest, Evidence, Extra, Group, GroupChange,
    GroupError, Held, Job, JobNews, KeptLimit, KeptReply, LedgerTotals, LoginSession, Member,
    MemberChange, MemberError, MissingSpend, OutboxEvent, PeriodSpend, PolledJobs, PurchaseId,
    PurchaseRecord, RemainingCredit, Reservation, ReserveError, SecretRecord, Settlement, SlotId,
    Snapshot, SpendRow, StatusUpdate, Store, StoreOp, SubjectLogin, SubjectToken, Subscription,
    TokenRefusal, Unavailable, WantedSlot, WebhookId, ZoneOffsets,
};
use crate::contract::event::EventKind;
use crate::contract::money::Usd;

/// Defines operations that wait for the store.
macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),* $(,)?) -> $answer:ty, $op:expr;)+) => {
        $($(#[$doc])*
        pub async fn $name(&self, $($arg: $type),*) -> Result<$answer, Unavailable> {
            let work = async { self.backend.$name($($arg),*).await };
            self.with_hooks($op, work).await
        })+
    };
}

/// Defines operations that do not wait.
macro_rules! notifications {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*), $op:expr;)+) => {
        $($(#[$doc])*
        pub fn $name(&self, $($arg: $type),*) {
            if self.allows($op) {
                self.backend.$name($($arg),*);
            }
        })+
    };
}

const fn other(name: &'static str) -> StoreOp<'static> {
    StoreOp::Other(name)
}

/// The life of a purchase: held, sent, ended.
impl Store {
    /// Holds a price, durably, against every budget and the account's balance, and takes the
    /// purchase's dedupe key, in one step. Returns the watermark for a balance that comes with the
    /// reply.
    pub async fn reserve(
        &self,
        reservation: &Reservation,
    ) -> Result<CreditWatermark, ReserveError> {
        let hold = async { self.backend.reserve(reservation, None).await };
        let held = self.with_hooks(StoreOp::Reserve(reservation), hold).await?;
        Ok(held.watermark)
    }

    /// [`reserve`](Self::reserve), and also takes the slot and marks the purchase as sent. A store
    /// may only hold, and say so: one that servers share does if no slot is free, or others wait.
    pub async fn reserve_and_send(
        &self,
        reservation: &Reservation,
        slot: WantedSlot,
        account: AccountStatus,
    ) -> Result<Held, ReserveError> {
        if !self.has_slot() {
            let watermark = self.reserve(reservation).await?;
            return Ok(Held { watermark, is_sent: false });
        }
        let send = Some((slot, account));
        let hold = async { self.backend.reserve(reservation, send).await };
        self.with_hooks(StoreOp::ReserveAndSend(reservation, slot.id), hold).await
    }

    /// Returns whether credit was used, or was missing, since the last call.
    pub fn take_credit_used(&self) -> bool {
        self.backend.take_credit_used()
    }

    /// Ends a purchase, and records its video job, durably. A purchase that has ended stays as it
    /// is, except that an unknown one may become charged or released.
    pub async fn settle(&self, id: PurchaseId, settlement: Settlement) -> Result<(), Unavailable> {
        let end = settlement.clone();
        let settle = async { self.backend.settle(id, end).await };
        self.with_hooks(StoreOp::Settle(id, &settlement), settle).await
    }

    /// Recovers an in-memory store, as each start of a server does for a file.
    #[doc(hidden)]
    pub async fn recover(&self) -> Result<(), Unavailable> {
        self.with_hooks(other("recover"), self.backend.recover()).await
    }

    #[doc(hidden)]
    pub async fn clear(&self) -> Result<(), Unavailable> {
        self.with_hooks(other("clear"), self.backend.clear()).await
    }

    /// [`settle`](Self::settle) without waiting, for tasks that are being dropped.
    pub fn settle_later(&self, id: PurchaseId, settlement: Settlement) {
        if self.allows(StoreOp::SettleLater(id, &settlement)) {
            self.backend.settle_later(id, settlement);
        }
    }

    requests! {
        /// Returns once a purchase is no longer running.
        wait_until_ended(id: PurchaseId) -> (), other("wait_until_ended");

        /// Settles a purchase whose outcome is unknown. The audit log says who did, and `new`.
        resolve(by: Actor, id: PurchaseId, settlement: Settlement, new: String) -> (),
            other("resolve");

        /// Returns the current watermark. Take it before asking the gateway for the balance, and
        /// pass it to [`record_balance`](Self::record_balance) with the answer.
        credit_watermark() -> CreditWatermark, other("credit_watermark");

        remaining_credit() -> Option<RemainingCredit>, other("remaining_credit");

        /// Records spending that the ledger lacks as one charged purchase of today. Budgets count it,
        /// and refuse nothing. The balance stays, because the gateway's includes it already.
        record_missing_spend(missing: &MissingSpend) -> (), other("record_missing_spend");

        /// Marks a held purchase as about to be sent. From then on, a crash makes it unknown.
        mark_sent(id: PurchaseId, account: AccountStatus) -> (), StoreOp::MarkSent(id);

        reply(id: PurchaseId) -> Option<KeptReply>, other("reply");

        purge_expired() -> (), other("purge_expired");

        /// Returns an error if no purchase can be recorded now.
        ensure_usable() -> (), other("ensure_usable");

        current_spend(scope: BudgetScope) -> PeriodSpend, other("current_spend");

        /// Returns a group's limits, or what raises a caller's.
        kept_limit(scope: BudgetScope) -> KeptLimit, other("kept_limit");
    }

    notifications! {
        record_balance(watermark: CreditWatermark, balance: Usd), other("record_balance");

        mark_delivered(id: PurchaseId), StoreOp::MarkDelivered(id);

        /// Counts, without waiting, a duplicate that got the purchase's reply for free.
        count_replay(id: PurchaseId), other("count_replay");

        /// Keeps, without waiting, a reply that cannot be parsed, for the operator and for a day.
        /// An in-memory store keeps none.
        keep_unparsable_reply(id: PurchaseId, body: Bytes), other("keep_unparsable_reply");
    }
}

/// What was sent to the gateway. After a restart, the rate limit still includes it.
impl Store {
    requests! {
        /// Takes a slot. A crash does not release it.
        take_slot(slot: SlotId) -> (), StoreOp::TakeSlot(slot);

        recorded_rate_limit() -> Option<AccountLimit>, other("recorded_rate_limit");

        /// Returns how long ago the replies of the last `within` arrived, in the order of the
        /// requests.
        ///
        /// A missing reply counts as arrived when the store was opened (after a crash), or now
        /// (still running). So does one that seems to lie in the future.
        recent_replies(within: Duration) -> Vec<Duration>, other("recent_replies");
    }

    notifications! {
        /// Records, without waiting, the reply or failure. The slot is free one period later.
        slot_replied(slot: SlotId), StoreOp::SlotReplied(slot);

        /// Records, without waiting, that nothing was sent. The slot is free at once.
        release_slot(slot: SlotId), StoreOp::ReleaseSlot(slot);

        /// Records, without waiting, the rate limit that the gateway reported last. Survives a
        /// power failure.
        record_rate_limit(limit: AccountLimit), other("record_rate_limit");

        /// Has no server send for a while.
        block_slots(wait: Duration), other("block_slots");

        /// Notes, for operators, by which budgets and limits this server sells.
        note_rules(rules: Digest), other("note_rules");
    }
}

impl Store {
    requests! {
        /// Records a job without its purchase, durably. A known job stays as it is: its status
        /// changes only by [`update_job`](Self::update_job).
        insert_job(job: &Job) -> (), other("insert_job");

        /// Records the gateway's latest status of a job, unless it is not known. A job that has ended
        /// changes only to finished, and a finished one only the body of its status.
        update_job(request_id: Arc<str>, update: StatusUpdate) -> (), other("update_job");

        /// Records the last status of a job. If the settlement that records the job still waits for
        /// a retry, this records the job, too.
        end_job(job: &Job, update: StatusUpdate) -> (), other("end_job");

        find_job(request_id: Arc<str>) -> Option<Job>, other("find_job");

        open_jobs() -> Vec<Job>, other("open_jobs");

        /// Claims the open jobs that no server polls, for a while, and returns all that this one has
        /// claimed. The server that accepts a job polls it from the start.
        claim_jobs() -> Vec<Job>, other("claim_jobs");

        /// Returns the statuses of these jobs that are newer than the revisions that the caller knows;
        /// 0 is none.
        job_news(known: Vec<(Arc<str>, u64)>) -> Vec<JobNews>, other("job_news");

        /// Tells the server that polls an open job that someone watches it here, for this long.
        watch_job(request_id: Arc<str>, wait: Duration) -> (), other("watch_job");

        /// Returns the open jobs that this server has claimed and others watch, or that others have
        /// claimed.
        polled_jobs() -> PolledJobs, other("polled_jobs");

        jobs_of(owner: Arc<str>, most: usize) -> Vec<Job>, other("jobs_of");

        latest_jobs(most: usize) -> Vec<Job>, other("latest_jobs");

        /// Returns how long the latest finished jobs of a model took.
        job_durations(model: Arc<str>, most: usize) -> Vec<Duration>, other("job_durations");
    }
}

/// Members and their logins. Every change is durable on return. Other processes see it at their
/// next [`members_version`](Store::members_version).
impl Store {
    /// Applies all changes, or none if one is refused, and returns whose it was. The audit log says
    /// who made them. With new tokens, the fingerprint of the secret that they are hashed with is
    /// recorded.
    pub async fn change_members(
        &self,
        by: &Actor,
        fingerprint: Option<Digest>,
        changes: Vec<(Arc<str>, MemberChange)>,
    ) -> Result<(), (Arc<str>, MemberError)> {
        let first = changes.first().map(|(name, _)| Arc::clone(name)).unwrap_or_default();
        let change = async { self.backend.change_members(by, fingerprint, changes).await };
        let changed = self.with_hooks(other("change_members"), change).await;
        changed.map_err(|why| (first, why.into()))?
    }

    pub async fn change_member(
        &self,
        by: &Actor,
        name: Arc<str>,
        change: MemberChange,
    ) -> Result<(), MemberError> {
        let changed = self.change_members(by, None, vec![(name, change)]).await;
        changed.map_err(|(_, error)| error)
    }

    requests! {
        members() -> Vec<Member>, other("members");

        /// Returns the active members whose tokens were hashed with an earlier secret.
        members_with_earlier_secret() -> Vec<Arc<str>>, other("members_with_earlier_secret");

        /// Adds a login. Deletes those that have ended, and the member's oldest beyond a hundred.
        log_in(session: &LoginSession) -> (), other("log_in");

        log_out(id: Digest) -> (), other("log_out");

        sessions() -> Vec<LoginSession>, other("sessions");

        /// Returns the fingerprint of the secret that tokens are hashed with, if one is recorded
        /// and any member's token, or another running server, depends on it.
        token_secret_fingerprint() -> Option<Digest>, other("token_secret_fingerprint");

        /// Records the fingerprint of a server's secret, unless something depends on another one.
        record_secret(fingerprint: Digest) -> SecretRecord, other("record_secret");

        /// Returns a number that changes with every change of members or logins, in any process. It
        /// is cheap to poll.
        members_version() -> u64, other("members_version");
    }
}

/// Users of a login service. A change counts in [`members_version`](Store::members_version), too.
impl Store {
    requests! {
        /// Adds a session, and records what the login service said. Deletes what has expired, and
        /// the user's oldest session beyond a hundred.
        sign_in(login: &SubjectLogin) -> (), other("sign_in");

        sign_out(id: Digest) -> (), other("sign_out");

        /// Returns the issuer of the ledger's users, if it is another one.
        other_issuer(issuer: Arc<str>) -> Option<Arc<str>>, other("other_issuer");

        /// Records the issuer of the ledger's users. If it was another one, returns that, and only
        /// gives the users to this one with `is_new`.
        bind_issuer(issuer: Arc<str>, is_new: bool) -> Option<Arc<str>>, other("bind_issuer");

        /// Returns the sessions and tokens that have not expired.
        subject_logins() -> Vec<SubjectLogin>, other("subject_logins");

        /// Adds a token of the user whose session this is.
        add_token(session: Digest, token: &SubjectToken) -> Result<(), TokenRefusal>,
            other("add_token");

        /// Returns the tokens of the user whose session this is, the oldest first.
        tokens(session: Digest) -> Vec<SubjectToken>, other("tokens");

        /// Ends a token of the user whose session this is. Returns whether there was one.
        remove_token(session: Digest, name: Arc<str>) -> bool, other("remove_token");

        /// Records when tokens were last used. This does not count as a change.
        mark_tokens_used(used: Vec<(Digest, Duration)>) -> (), other("mark_tokens_used");

        /// Ends all sessions and tokens of a user. Returns whether the user has ever signed in.
        revoke_subject(by: &Actor, issuer: Arc<str>, subject: Arc<str>) -> bool,
            other("revoke_subject");
    }
}

/// Groups. Every change is durable on return, and the next purchase is judged by it.
impl Store {
    pub async fn change_group(
        &self,
        by: &Actor,
        name: Arc<str>,
        change: GroupChange,
    ) -> Result<(), GroupError> {
        let change = async { self.backend.change_group(by, name, change).await };
        self.with_hooks(other("change_group"), change).await?
    }

    requests! {
        /// Keeps a caller's request for more budget. An earlier one is replaced.
        ask_for_budget(caller: Arc<str>, amount: Usd, reason: Arc<str>) -> BudgetRequest,
            other("ask_for_budget");

        /// Returns the open requests, the earliest first.
        budget_requests() -> Vec<BudgetRequest>, other("budget_requests");

        /// Ends a request, and raises the caller's limits if it is granted. Returns whether there
        /// was one.
        answer_budget_request(by: Actor, id: u64, granted: Option<Extra>) -> bool,
            other("answer_budget_request");

        /// Raises a caller's limits for a time, or ends all that raises them.
        change_extras(by: Actor, caller: Arc<str>, extra: Option<Extra>) -> (),
            other("change_extras");

        /// Returns all groups by name.
        groups() -> Vec<Group>, other("groups");
    }
}

/// The events that wait for webhooks. An event is written in the transaction that causes it.
impl Store {
    requests! {
        /// Replaces which webhook wants which event, from now on.
        set_webhooks(wanted: Arc<[Subscription]>) -> (), other("set_webhooks");

        /// Returns events that are due at a webhook, in any order. No other call returns them
        /// during `lease`.
        claim_events(webhook: WebhookId, most: usize, lease: Duration) -> Vec<OutboxEvent>,
            other("claim_events");

        /// Deletes an event that was delivered, or that was given up.
        finish_event(id: Arc<str>, webhook: WebhookId) -> (), other("finish_event");

        /// Counts a failed attempt. The next one is due after `wait`.
        delay_event(id: Arc<str>, webhook: WebhookId, wait: Duration) -> (), other("delay_event");

        /// Writes the event of an alert, unless the alert is raised already or no webhook wants it.
        raise_alert(alert: Alert) -> (), other("raise_alert");

        /// Ends an alert without a period, so that it can be raised again.
        end_alert(kind: EventKind, whose: Arc<str>) -> (), other("end_alert");
    }
}

/// Reports and reconciliation. The database groups rows, so a month of chats is read but not held
/// in memory.
impl Store {
    requests! {
        purchases_since(since: Duration) -> Vec<PurchaseRecord>, other("purchases_since");

        unknown_purchases(most: usize) -> Vec<PurchaseRecord>, other("unknown_purchases");

        totals() -> LedgerTotals, other("totals");

        purchase(id: PurchaseId) -> Option<PurchaseRecord>, other("purchase");

        /// Returns spending since a wall-clock time by caller, local day, service and model, in
        /// this order. `None` is all callers. Released purchases are left out.
        spend(caller: Option<String>, since: Duration, zone: ZoneOffsets, most: usize)
            -> Vec<SpendRow>, other("spend");

        /// Returns entries of the audit log, the latest first.
        audit_log(query: AuditQuery) -> Vec<AuditEntry>, other("audit_log");

        record_checkpoint(snapshot: Snapshot) -> (), other("record_checkpoint");

        latest_checkpoint() -> Option<Checkpoint>, other("latest_checkpoint");

        latest_snapshots(most: usize) -> Vec<Snapshot>, other("latest_snapshots");

        unknown_after(number: u64) -> u64, other("unknown_after");

        /// Returns every purchase after `settled`, in order, and the earlier ones that may still
        /// change.
        ///
        /// Those are unknown ones, and charged videos whose end, or whose job's failure, is later
        /// than `refundable` (wall-clock time since the Unix epoch).
        evidence(settled: u64, refundable: Duration) -> Vec<Evidence>, other("evidence");

        /// Returns whether these key ids are the ledger's: none is recorded yet, or at least one
        /// is. `keys` must not be empty.
        check_account(keys: Vec<String>, how: AccountCheck) -> bool, other("check_account");
    }
}
