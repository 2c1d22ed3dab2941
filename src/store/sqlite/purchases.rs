//! What a purchase goes through: held, sent, ended; and how a repeat finds it again.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{OptionalExtension, Row, params};
use tokio::time::timeout;
use tracing::{error, warn};

use super::column::{self, nanos};
use super::handle::{Store, StoreOp};
use super::ledger::Ledger;
use super::writer::Durability;
use super::{StoreError, file, identity, jobs, replies, slots};
use crate::contract::money::Usd;
use crate::store::rules::{self, Credit, KeyMatch, Today};
use crate::store::{
    AccountStatus, BudgetScope, CreditWatermark, DedupeKey, Digest, DuplicateCheck,
    ExistingPurchase, KeptReply, MoneyKind, PeriodSpend, PurchaseId, PurchaseState,
    RemainingCredit, Reservation, ReserveError, Settlement, Unavailable,
};

/// How soon a purchase that another process may end is looked at again.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

impl Store {
    /// Holds a price, durably, against every budget and the account's balance, and claims the purchase's
    /// identity; or says what stands in the way. All of it is one step. The mark is for a balance that
    /// comes with the reply.
    pub async fn reserve(
        &self,
        reservation: &Reservation,
    ) -> Result<CreditWatermark, ReserveError> {
        let weight =
            if reservation.needs_sync() { Durability::Synced } else { Durability::Buffered };
        let held = self
            .with_hooks(StoreOp::Reserve(reservation), async {
                self.check_capacity()?;
                let (asked, clock) = (reservation.clone(), self.inner.clock.clone());
                self.execute_when_open(weight, move |books| books.reserve(&asked, clock())).await?
            })
            .await;
        if matches!(held, Ok(_) | Err(ReserveError::InsufficientCredit)) {
            self.inner.credit_used.store(true, Ordering::Relaxed);
        }
        held
    }

    /// Whether anything was sold against the balance, or refused for it, since this was asked last.
    pub fn take_credit_used(&self) -> bool {
        self.inner.credit_used.swap(false, Ordering::Relaxed)
    }

    /// Returns once a purchase is no longer under way.
    pub async fn wait_until_ended(&self, id: PurchaseId) -> Result<(), Unavailable> {
        loop {
            // Begun before the look: an end in between wakes it.
            let mut end = pin!(self.inner.admission.ends.notified());
            end.as_mut().enable();
            let look = move |books: &Ledger| books.is_running(id);
            if !self.run(StoreOp::Other("ended"), Durability::Buffered, look).await? {
                return Ok(());
            }
            // Another process tells us nothing.
            timeout(POLL_INTERVAL, end).await.ok();
        }
    }

    /// The present moment in the account's spending, to be handed to [`record_balance`](Self::learnt) with what the
    /// gateway answers.
    pub async fn credit_watermark(&self) -> Result<CreditWatermark, Unavailable> {
        let mark = |books: &Ledger| Ok(books.credit()?.watermark());
        self.run(StoreOp::Other("credit_mark"), Durability::Buffered, mark).await
    }

    /// Notes, without waiting, the balance that the gateway answered to a question asked at `mark`.
    pub fn record_balance(&self, mark: CreditWatermark, balance: Usd) {
        let as_of = self.now();
        self.notify(StoreOp::Other("learnt"), Durability::Buffered, move |books| {
            let mut credit = books.credit()?;
            credit.record_balance(mark, balance, as_of);
            books.set_credit(&credit)
        });
    }

    /// What is left of the balance, where anything is known of it.
    pub async fn remaining_credit(&self) -> Result<Option<RemainingCredit>, Unavailable> {
        let left = |books: &Ledger| Ok(books.credit()?.remaining());
        self.run(StoreOp::Other("credit_left"), Durability::Buffered, left).await
    }

    /// Marks a held purchase as about to be sent to this account; on return, a crash makes it unknown.
    pub async fn mark_sent(
        &self,
        id: PurchaseId,
        account: AccountStatus,
    ) -> Result<(), Unavailable> {
        // A dear one waits for the disk here too: after a power cut, it must not look unsent.
        let mark = move |books: &Ledger| books.mark_sent(id, account);
        self.run(StoreOp::MarkSent(id), Durability::OfPurchase(id), mark).await
    }

    /// Ends a purchase, and writes down the job that it became; on return, both are durable. Ending one
    /// that has ended already changes nothing, except that an unknown one may become charged or released.
    pub async fn settle(&self, id: PurchaseId, ending: Settlement) -> Result<(), Unavailable> {
        let (clock, end) = (self.inner.clock.clone(), ending.clone());
        let settle = move |books: &Ledger| books.settle(id, &end, clock());
        self.run(StoreOp::Settle(id, &ending), Durability::OfPurchase(id), settle).await
    }

    /// [`settle`](Self::settle) without waiting, for tasks that are being dropped.
    pub fn settle_later(&self, id: PurchaseId, ending: Settlement) {
        let (clock, end) = (self.inner.clock.clone(), ending.clone());
        let settle = move |books: &Ledger| books.settle(id, &end, clock());
        self.notify(StoreOp::SettleLater(id, &ending), Durability::OfPurchase(id), settle);
    }

    pub async fn reply(&self, id: PurchaseId) -> Result<Option<KeptReply>, Unavailable> {
        let find = move |books: &Ledger| replies::find(&books.connection, id);
        self.run(StoreOp::Other("reply"), Durability::Buffered, find).await
    }

    /// Notes, without waiting, that the caller took the reply to its end.
    pub fn mark_delivered(&self, id: PurchaseId) {
        self.notify(StoreOp::MarkDelivered(id), Durability::Buffered, move |books| {
            books.mark_delivered(id)
        });
    }

    /// Keeps, without waiting, what was answered to a purchase and cannot be read, for the operator and
    /// for a day. A store that ends with the process keeps nothing.
    pub fn keep_unparsable_reply(&self, id: PurchaseId, body: Bytes) {
        if self.inner.path.as_os_str().is_empty() {
            return;
        }
        // On the writer's thread, which may wait for a disk.
        let (path, clock) = (self.inner.path.clone(), self.inner.clock.clone());
        self.notify(StoreOp::Other("keep_unread"), Durability::Buffered, move |_| {
            match replies::keep_unparsable(&path, id, &body, clock()) {
                Ok(file) => {
                    warn!(%id, file = %file.display(), "a reply that cannot be read is kept");
                }
                Err(error) => error!(%id, %error, "a reply that cannot be read could not be kept"),
            }
            Ok(())
        });
    }

    pub async fn purge_expired(&self) -> Result<(), Unavailable> {
        let (path, clock) = (self.inner.path.clone(), self.inner.clock.clone());
        let must_be_ours = self.ownership_check();
        let forget = move |books: &Ledger| {
            must_be_ours(books)?;
            if !path.as_os_str().is_empty()
                && let Err(error) = replies::purge_unparsable(&path, clock())
            {
                warn!(%error, "replies that could not be read could not be forgotten");
            }
            books.replies.purge_expired(&books.connection, clock())
        };
        self.run(StoreOp::Other("forget"), Durability::Buffered, forget).await
    }

    /// Returns an error if no purchase can be recorded now. It writes nothing.
    pub async fn ensure_usable(&self) -> Result<(), Unavailable> {
        self.check_capacity()?;
        let look = self.ownership_check();
        self.run(StoreOp::Other("must_be_usable"), Durability::Buffered, look).await
    }

    /// Whether the server is still to open the ledger.
    pub fn is_starting(&self) -> bool {
        self.inner.admission.is_starting()
    }

    /// Refuses a file that was removed or exchanged under the server that has it.
    fn ownership_check(&self) -> impl Fn(&Ledger) -> Result<(), StoreError> + Send + use<> {
        let (path, identity) = (self.inner.path.clone(), self.inner.identity.clone());
        move |books| {
            let Some((identity, id)) = &identity else { return Ok(()) };
            file::ensure_not_replaced(&path, *id)?;
            identity::ensure_nonce(&books.connection, &identity.state.nonce)
        }
    }

    /// What a scope has spent, held or lost track of, in the current day and month.
    pub async fn current_spend(&self, scope: BudgetScope) -> Result<PeriodSpend, Unavailable> {
        let clock = self.inner.clock.clone();
        let spent = move |books: &Ledger| books.current_spend(&scope, clock());
        self.run(StoreOp::Other("spent"), Durability::Buffered, spent).await
    }
}

impl Ledger {
    /// Gives the ledger to a kind of money where it has none yet; whether it is that kind's.
    pub(super) fn set_money_kind(&self, money: MoneyKind) -> Result<bool, StoreError> {
        let give = "INSERT OR IGNORE INTO money (number, kind) VALUES (1, ?1)";
        self.connection.execute(give, params![money.name()])?;
        let ask = "SELECT kind = ?1 FROM money";
        Ok(self.connection.query_row(ask, params![money.name()], |row| row.get(0))?)
    }

    /// Everything is looked at before anything is written, so a refusal leaves nothing to undo.
    pub(super) fn reserve(
        &self,
        asked: &Reservation,
        now: Duration,
    ) -> Result<Result<CreditWatermark, ReserveError>, StoreError> {
        if self.purchase(asked.id)?.is_some() {
            return Err(Unavailable("the purchase is in the ledger already".into()).into());
        }
        let judged = match &asked.dedupe_key {
            DedupeKey::IdempotencyKey { key, payload } => self.find_by_key(key, payload, now)?,
            DedupeKey::Fingerprint(like) => self.find_duplicate(like, now)?.map_or(Ok(None), Err),
        };
        let expired = match judged {
            Ok(expired) => expired,
            Err(refused) => return Ok(Err(refused)),
        };
        if asked.replay_only {
            return Ok(Err(ReserveError::NothingToReplay));
        }
        let today = self.today(now)?;
        let total = self.spend_of(&BudgetScope::Total, today)?;
        let own = self.spend_of(&BudgetScope::Caller(asked.caller.clone()), today)?;
        let mut credit = self.credit()?;
        let covered = rules::check_budgets(&asked.budgets, total, own, asked.price, today)
            .and_then(|()| credit.hold(asked.price, asked.budgets.balance_floor, now));
        if let Err(refused) = covered {
            return Ok(Err(refused));
        }
        if let Some(number) = expired {
            self.clear_dedupe_key(number)?;
        }
        let (key, payload, fingerprint) = match &asked.dedupe_key {
            DedupeKey::IdempotencyKey { key, payload } => (Some(key), Some(payload), None),
            DedupeKey::Fingerprint(duplicate) => (None, None, Some(&duplicate.fingerprint)),
        };
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO purchases
                (id, at, day, month, caller, service, model, price_micros, state, key, payload, fingerprint)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'held', ?, ?, ?)",
        )?;
        insert.execute(params![
            asked.id.0.as_bytes(),
            nanos(now),
            today.day,
            today.month,
            asked.caller,
            asked.service.name(),
            &*asked.model,
            asked.price.as_micros(),
            key,
            payload,
            fingerprint,
        ])?;
        let number = self.connection.last_insert_rowid();
        self.change_spend(&asked.caller, today, Usd::ZERO, asked.price)?;
        self.set_credit(&credit)?;
        self.latest_number.set(Some(number));
        Ok(Ok(credit.watermark()))
    }

    /// Nothing in the way, except perhaps a purchase that has to let go of the key first; or a refusal.
    fn find_by_key(
        &self,
        key: &Digest,
        payload: &Digest,
        now: Duration,
    ) -> Result<Result<Option<i64>, ReserveError>, StoreError> {
        let mut find = self.connection.prepare_cached(
            "SELECT number, id, state, coalesce(cost_micros, price_micros), keep_until, payload
             FROM purchases WHERE key = ?",
        )?;
        let found = find.query_row([key], |row| Ok((FoundPurchase::read(row)?, row.get(5)?)));
        let Some((found, first)) = found.optional()? else { return Ok(Ok(None)) };
        let earlier = (found.earlier.state, found.keep_until);
        Ok(match rules::match_key(earlier, (&first, payload), now) {
            KeyMatch::Expired => Ok(Some(found.number)),
            KeyMatch::PayloadMismatch => Err(ReserveError::KeyReused),
            KeyMatch::Duplicate => {
                Err(ReserveError::Duplicate(self.existing_purchase(found, now)?))
            }
        })
    }

    /// One that is running, or the latest that ended and is repeated.
    fn find_duplicate(
        &self,
        duplicate: &DuplicateCheck,
        now: Duration,
    ) -> Result<Option<ReserveError>, StoreError> {
        let mut running = self.connection.prepare_cached(
            "SELECT number, id, state, price_micros, keep_until FROM purchases
             WHERE fingerprint = ? AND ended_at IS NULL",
        )?;
        if let Some(found) =
            running.query_row([duplicate.fingerprint], FoundPurchase::read).optional()?
        {
            return Ok(Some(ReserveError::Duplicate(self.existing_purchase(found, now)?)));
        }
        let mut ended = self.connection.prepare_cached(
            "SELECT number, id, state, coalesce(cost_micros, price_micros), keep_until, ended_at, delivered
             FROM purchases WHERE fingerprint = ? AND ended_at BETWEEN ? AND ?
             ORDER BY ended_at DESC, number DESC",
        )?;
        let (since, until) =
            (now.saturating_sub(duplicate.within), now.saturating_add(duplicate.clock_skew));
        let mut ended = ended.query(params![duplicate.fingerprint, nanos(since), nanos(until)])?;
        while let Some(row) = ended.next()? {
            let found = FoundPurchase::read(row)?;
            let end = (found.earlier.state, column::moment(row, 5)?, row.get(6)?);
            if rules::is_duplicate(duplicate, end) {
                return Ok(Some(ReserveError::Duplicate(self.existing_purchase(found, now)?)));
            }
        }
        Ok(None)
    }

    fn clear_dedupe_key(&self, number: i64) -> Result<(), StoreError> {
        let mut clear = self.connection.prepare_cached(
            "UPDATE purchases SET key = NULL, payload = NULL, fingerprint = NULL WHERE number = ?",
        )?;
        clear.execute([number])?;
        Ok(())
    }

    fn existing_purchase(
        &self,
        found: FoundPurchase,
        now: Duration,
    ) -> Result<ExistingPurchase, StoreError> {
        let FoundPurchase { number, earlier, keep_until } = found;
        let is_kept = earlier.state == PurchaseState::Charged
            && !rules::is_expired(earlier.state, keep_until, now);
        let reply_bytes =
            if is_kept { replies::reply_size(&self.connection, number)? } else { None };
        Ok(ExistingPurchase { reply_bytes, ..earlier })
    }

    pub(super) fn mark_sent(
        &self,
        id: PurchaseId,
        account: AccountStatus,
    ) -> Result<(), StoreError> {
        let mut mark = self.connection.prepare_cached(
            "UPDATE purchases SET state = 'sent', unrecognised = max(unrecognised, ?)
             WHERE id = ? AND ended_at IS NULL",
        )?;
        match mark.execute(params![account == AccountStatus::Unconfirmed, id.0.as_bytes()])? {
            0 => Err(Unavailable("nothing is set aside for the purchase".into()).into()),
            _ => Ok(()),
        }
    }

    pub(super) fn settle(
        &self,
        id: PurchaseId,
        ending: &Settlement,
        now: Duration,
    ) -> Result<(), StoreError> {
        let Some(purchase) = self.purchase(id)? else { return Ok(()) };
        let Some(state) = rules::next_state(purchase.state, ending) else { return Ok(()) };
        let counts = rules::amount_spent(purchase.price, ending);
        self.change_spend(&purchase.caller, purchase.today, purchase.price, counts)?;
        let (cost, until) = match ending {
            Settlement::Charged { cost, keep, .. } => {
                (Some(cost.as_micros()), Some(nanos(now.saturating_add(*keep))))
            }
            Settlement::Released | Settlement::Unknown => (None, None),
        };
        let mut end = self.connection.prepare_cached(
            "UPDATE purchases SET state = ?, cost_micros = ?, keep_until = ?,
                ended_at = coalesce(ended_at, ?), assumed = ?
             WHERE number = ?",
        )?;
        let assumed = matches!(ending, Settlement::Charged { reply: None, .. });
        end.execute(params![state.name(), cost, until, nanos(now), assumed, purchase.number])?;
        if state == PurchaseState::Released {
            self.clear_dedupe_key(purchase.number)?;
        }
        if let Settlement::Charged { reply: Some(reply), .. } = ending {
            self.replies.keep(
                &self.connection,
                purchase.number,
                reply,
                until.unwrap_or_default(),
            )?;
        }
        if let Settlement::Charged { job: Some(job), .. } = ending {
            jobs::insert(&self.connection, job)?;
        }
        if purchase.state != PurchaseState::Unknown {
            let mut credit = self.credit()?;
            credit.settle(purchase.price, counts);
            self.set_credit(&credit)?;
            self.has_ended.set(true);
            self.count_end()?;
        }
        Ok(())
    }

    pub(super) fn mark_delivered(&self, id: PurchaseId) -> Result<(), StoreError> {
        let mut mark =
            self.connection.prepare_cached("UPDATE purchases SET delivered = 1 WHERE id = ?")?;
        mark.execute([id.0.as_bytes()])?;
        Ok(())
    }

    fn is_running(&self, id: PurchaseId) -> Result<bool, StoreError> {
        let state = self.purchase(id)?.map(|purchase| purchase.state);
        Ok(matches!(state, Some(PurchaseState::Held | PurchaseState::Sent)))
    }

    /// What the crash of an earlier server left behind: what was never sent is released, what was sent
    /// is unknown.
    pub(super) fn recover(&self, now: Duration) -> Result<(), StoreError> {
        let mut left = self
            .connection
            .prepare_cached("SELECT id, state FROM purchases WHERE ended_at IS NULL")?;
        let left = left.query_map([], |row| Ok((column::id(row, 0)?, column::state(row, 1)?)))?;
        for purchase in left.collect::<rusqlite::Result<Vec<_>>>()? {
            let (id, state) = purchase;
            let ending = if state == PurchaseState::Held {
                Settlement::Released
            } else {
                Settlement::Unknown
            };
            tracing::warn!(purchase = %id, state = state.name(), "found under way after a crash");
            self.settle(id, &ending, now)?;
        }
        self.set_credit(&Credit::default())?;
        slots::recover(self, now)
    }

    /// Whether a purchase is worth waiting for the disk; one that is not there is not.
    pub(super) fn needs_sync(&self, id: PurchaseId) -> Result<bool, StoreError> {
        Ok(self
            .purchase(id)?
            .is_some_and(|purchase| purchase.price >= crate::store::model::SYNC_THRESHOLD))
    }

    fn purchase(&self, id: PurchaseId) -> Result<Option<Purchase>, StoreError> {
        let mut find = self.connection.prepare_cached(
            "SELECT number, state, price_micros, caller, day, month FROM purchases WHERE id = ?",
        )?;
        let found = find.query_row([id.0.as_bytes()], |row| {
            Ok(Purchase {
                number: row.get(0)?,
                state: column::state(row, 1)?,
                price: column::money(row, 2)?,
                caller: row.get(3)?,
                today: Today { day: row.get(4)?, month: row.get(5)? },
            })
        });
        Ok(found.optional()?)
    }
}

/// What a verb has to know of a purchase that has not ended for good: so far, it counts for its price.
struct Purchase {
    number: i64,
    state: PurchaseState,
    price: Usd,
    caller: String,
    today: Today,
}

struct FoundPurchase {
    number: i64,
    earlier: ExistingPurchase,
    keep_until: Option<Duration>,
}

impl FoundPurchase {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let earlier = ExistingPurchase {
            id: column::id(row, 1)?,
            state: column::state(row, 2)?,
            cost: column::money(row, 3)?,
            reply_bytes: None,
        };
        let keep_until: Option<u64> = row.get(4)?;
        let keep_until = keep_until.map(Duration::from_nanos);
        Ok(Self { number: row.get(0)?, earlier, keep_until })
    }
}
