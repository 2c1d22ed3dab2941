//! The life of a purchase: held, sent, ended. Also finds the purchase that a retry repeats.

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
use super::{Result, file, identity, jobs, replies, slots};
use crate::contract::money::Usd;
use crate::store::rules::{self, Credit, KeyMatch, Today};
use crate::store::{
    AccountStatus, BudgetScope, CreditWatermark, DedupeKey, Digest, DuplicateCheck,
    ExistingPurchase, KeptReply, MoneyKind, PeriodSpend, PurchaseId, PurchaseState,
    RemainingCredit, Reservation, ReserveError, Settlement, Unavailable,
};

/// How often a purchase that another process may end is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

impl Store {
    /// Holds a price, durably, against every budget and the account's balance, and takes the
    /// purchase's dedupe key, in one step. Returns the watermark for a balance that comes with the
    /// reply.
    pub async fn reserve(
        &self,
        reservation: &Reservation,
    ) -> Result<CreditWatermark, ReserveError> {
        let durability =
            if reservation.needs_sync() { Durability::Synced } else { Durability::Buffered };
        let held = self
            .with_hooks(StoreOp::Reserve(reservation), async {
                self.check_capacity()?;
                let (reservation, clock) = (reservation.clone(), self.inner.clock.clone());
                self.execute_when_open(durability, move |ledger| {
                    ledger.reserve(&reservation, clock())
                })
                .await?
            })
            .await;
        if matches!(held, Ok(_) | Err(ReserveError::InsufficientCredit)) {
            self.inner.credit_used.store(true, Ordering::Relaxed);
        }
        held
    }

    /// Returns whether credit was used, or was missing, since the last call.
    pub fn take_credit_used(&self) -> bool {
        self.inner.credit_used.swap(false, Ordering::Relaxed)
    }

    /// Returns once a purchase is no longer running.
    pub async fn wait_until_ended(&self, id: PurchaseId) -> Result<(), Unavailable> {
        loop {
            // Registered before the check, so that an end in between is not missed.
            let mut end = pin!(self.inner.gate.ends.notified());
            end.as_mut().enable();
            if !self.query("wait_until_ended", move |ledger| ledger.is_running(id)).await? {
                return Ok(());
            }
            // Another process sends no notification.
            timeout(POLL_INTERVAL, end).await.ok();
        }
    }

    /// Returns the watermark of now, to be passed to [`record_balance`](Self::record_balance) with
    /// the gateway's answer.
    pub async fn credit_watermark(&self) -> Result<CreditWatermark, Unavailable> {
        self.query("credit_watermark", |ledger| Ok(ledger.credit()?.watermark())).await
    }

    pub fn record_balance(&self, watermark: CreditWatermark, balance: Usd) {
        let as_of = self.now();
        self.notify(StoreOp::Other("record_balance"), Durability::Buffered, move |ledger| {
            let mut credit = ledger.credit()?;
            credit.record_balance(watermark, balance, as_of);
            ledger.set_credit(&credit)
        });
    }

    pub async fn remaining_credit(&self) -> Result<Option<RemainingCredit>, Unavailable> {
        self.query("remaining_credit", |ledger| Ok(ledger.credit()?.remaining())).await
    }

    /// Marks a held purchase as about to be sent. From then on, a crash makes it unknown.
    pub async fn mark_sent(
        &self,
        id: PurchaseId,
        account: AccountStatus,
    ) -> Result<(), Unavailable> {
        // An expensive purchase waits for the disk here, too: after a power failure it must not
        // look unsent.
        let watermark = move |ledger: &Ledger| ledger.mark_sent(id, account);
        self.run(StoreOp::MarkSent(id), Durability::OfPurchase(id), watermark).await
    }

    /// Ends a purchase, and records its video job, durably. A purchase that has ended stays as it
    /// is, except that an unknown one may become charged or released.
    pub async fn settle(&self, id: PurchaseId, settlement: Settlement) -> Result<(), Unavailable> {
        let (clock, end) = (self.inner.clock.clone(), settlement.clone());
        let settle = move |ledger: &Ledger| ledger.settle(id, &end, clock());
        self.run(StoreOp::Settle(id, &settlement), Durability::OfPurchase(id), settle).await
    }

    /// [`settle`](Self::settle) without waiting, for tasks that are being dropped.
    pub fn settle_later(&self, id: PurchaseId, settlement: Settlement) {
        let (clock, end) = (self.inner.clock.clone(), settlement.clone());
        let settle = move |ledger: &Ledger| ledger.settle(id, &end, clock());
        self.notify(StoreOp::SettleLater(id, &settlement), Durability::OfPurchase(id), settle);
    }

    pub async fn reply(&self, id: PurchaseId) -> Result<Option<KeptReply>, Unavailable> {
        self.query("reply", move |ledger| replies::find(&ledger.connection, id)).await
    }

    pub fn mark_delivered(&self, id: PurchaseId) {
        self.notify(StoreOp::MarkDelivered(id), Durability::Buffered, move |ledger| {
            ledger.mark_delivered(id)
        });
    }

    /// Keeps, without waiting, a reply that cannot be parsed, for the operator and for a day. An
    /// in-memory store keeps none.
    pub fn keep_unparsable_reply(&self, id: PurchaseId, body: Bytes) {
        if self.inner.path.as_os_str().is_empty() {
            return;
        }
        // On the writer's thread, because it may wait for a disk.
        let (path, clock) = (self.inner.path.clone(), self.inner.clock.clone());
        self.notify(StoreOp::Other("keep_unparsable_reply"), Durability::Buffered, move |_| {
            match replies::keep_unparsable(&path, id, &body, clock()) {
                Ok(file) => {
                    warn!(%id, file = %file.display(), "unparsable reply kept");
                }
                Err(error) => error!(%id, %error, "failed to keep unparsable reply"),
            }
            Ok(())
        });
    }

    pub async fn purge_expired(&self) -> Result<(), Unavailable> {
        let (path, clock) = (self.inner.path.clone(), self.inner.clock.clone());
        let check_ownership = self.ownership_check();
        self.query("purge_expired", move |ledger| {
            check_ownership(ledger)?;
            if !path.as_os_str().is_empty()
                && let Err(error) = replies::purge_unparsable(&path, clock())
            {
                warn!(%error, "failed to delete unparsable replies");
            }
            ledger.replies.purge_expired(&ledger.connection, clock())
        })
        .await
    }

    /// Returns an error if no purchase can be recorded now. Writes nothing.
    pub async fn ensure_usable(&self) -> Result<(), Unavailable> {
        self.check_capacity()?;
        let look = self.ownership_check();
        self.run(StoreOp::Other("ensure_usable"), Durability::Buffered, look).await
    }

    pub fn is_starting(&self) -> bool {
        self.inner.gate.is_starting()
    }

    /// Returns a check that the file was not removed or replaced while the server has it.
    fn ownership_check(&self) -> impl Fn(&Ledger) -> Result<()> + Send + use<> {
        let (path, identity) = (self.inner.path.clone(), self.inner.identity.clone());
        move |ledger| {
            let Some((identity, id)) = &identity else { return Ok(()) };
            file::ensure_not_replaced(&path, *id)?;
            identity::ensure_nonce(&ledger.connection, &identity.state.nonce)
        }
    }

    pub async fn current_spend(&self, scope: BudgetScope) -> Result<PeriodSpend, Unavailable> {
        let clock = self.inner.clock.clone();
        self.query("current_spend", move |ledger| ledger.current_spend(&scope, clock())).await
    }
}

impl Ledger {
    /// Sets the kind of money if the ledger has none yet, and returns whether the ledger has this
    /// kind.
    pub(super) fn set_money_kind(&self, money: MoneyKind) -> Result<bool> {
        let give = "INSERT OR IGNORE INTO money (number, kind) VALUES (1, ?1)";
        self.connection.execute(give, params![money.name()])?;
        let ask = "SELECT kind = ?1 FROM money";
        Ok(self.connection.query_row(ask, params![money.name()], |row| row.get(0))?)
    }

    /// Checks everything before it writes, so that a refusal leaves nothing to roll back.
    pub(super) fn reserve(
        &self,
        reservation: &Reservation,
        now: Duration,
    ) -> Result<Result<CreditWatermark, ReserveError>> {
        if self.purchase(reservation.id)?.is_some() {
            return Err(Unavailable("the purchase is already in the ledger".into()).into());
        }
        let judged = match &reservation.dedupe_key {
            DedupeKey::IdempotencyKey { key, payload } => self.find_by_key(key, payload, now)?,
            DedupeKey::Fingerprint(like) => self.find_duplicate(like, now)?.map_or(Ok(None), Err),
        };
        let expired = match judged {
            Ok(expired) => expired,
            Err(refused) => return Ok(Err(refused)),
        };
        if reservation.replay_only {
            return Ok(Err(ReserveError::NothingToReplay));
        }
        let today = self.today(now)?;
        let total = self.spend_of(&BudgetScope::Total, today)?;
        let own = self.spend_of(&BudgetScope::Caller(reservation.caller.clone()), today)?;
        let mut credit = self.credit()?;
        let (budgets, price) = (&reservation.budgets, reservation.price);
        let covered = rules::check_budgets(budgets, total, own, price, today)
            .and_then(|()| credit.hold(price, budgets.balance_floor, now));
        if let Err(refused) = covered {
            return Ok(Err(refused));
        }
        if let Some(number) = expired {
            self.clear_dedupe_key(number)?;
        }
        let (key, payload, fingerprint) = match &reservation.dedupe_key {
            DedupeKey::IdempotencyKey { key, payload } => (Some(key), Some(payload), None),
            DedupeKey::Fingerprint(duplicate) => (None, None, Some(&duplicate.fingerprint)),
        };
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO purchases
                (id, at, day, month, caller, service, model, price_micros, state, key, payload, fingerprint)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'held', ?, ?, ?)",
        )?;
        insert.execute(params![
            reservation.id.0.as_bytes(),
            nanos(now),
            today.day,
            today.month,
            reservation.caller,
            reservation.service.name(),
            &*reservation.model,
            price.as_micros(),
            key,
            payload,
            fingerprint,
        ])?;
        let number = self.connection.last_insert_rowid();
        self.change_spend(&reservation.caller, today, Usd::ZERO, price)?;
        self.set_credit(&credit)?;
        self.latest_number.set(Some(number));
        Ok(Ok(credit.watermark()))
    }

    /// Returns the expired purchase that has to give up the key, if there is one.
    fn find_by_key(
        &self,
        key: &Digest,
        payload: &Digest,
        now: Duration,
    ) -> Result<Result<Option<i64>, ReserveError>> {
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

    fn find_duplicate(
        &self,
        duplicate: &DuplicateCheck,
        now: Duration,
    ) -> Result<Option<ReserveError>> {
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

    fn clear_dedupe_key(&self, number: i64) -> Result<()> {
        let mut clear = self.connection.prepare_cached(
            "UPDATE purchases SET key = NULL, payload = NULL, fingerprint = NULL WHERE number = ?",
        )?;
        clear.execute([number])?;
        Ok(())
    }

    fn existing_purchase(&self, found: FoundPurchase, now: Duration) -> Result<ExistingPurchase> {
        let FoundPurchase { number, earlier, keep_until } = found;
        let is_kept = earlier.state == PurchaseState::Charged
            && !rules::is_expired(earlier.state, keep_until, now);
        let reply_bytes =
            if is_kept { replies::reply_size(&self.connection, number)? } else { None };
        Ok(ExistingPurchase { reply_bytes, ..earlier })
    }

    pub(super) fn mark_sent(&self, id: PurchaseId, account: AccountStatus) -> Result<()> {
        let mut watermark = self.connection.prepare_cached(
            "UPDATE purchases SET state = 'sent', unrecognised = max(unrecognised, ?)
             WHERE id = ? AND ended_at IS NULL",
        )?;
        match watermark.execute(params![account == AccountStatus::Unconfirmed, id.0.as_bytes()])? {
            0 => Err(Unavailable("the purchase is not held".into()).into()),
            _ => Ok(()),
        }
    }

    pub(super) fn settle(
        &self,
        id: PurchaseId,
        settlement: &Settlement,
        now: Duration,
    ) -> Result<()> {
        let Some(purchase) = self.purchase(id)? else { return Ok(()) };
        let Some(state) = rules::next_state(purchase.state, settlement) else { return Ok(()) };
        let amount = rules::amount_spent(purchase.price, settlement);
        self.change_spend(&purchase.caller, purchase.today, purchase.price, amount)?;
        let (cost, until) = match settlement {
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
        let assumed = matches!(settlement, Settlement::Charged { reply: None, .. });
        end.execute(params![state.name(), cost, until, nanos(now), assumed, purchase.number])?;
        if state == PurchaseState::Released {
            self.clear_dedupe_key(purchase.number)?;
        }
        if let Settlement::Charged { reply: Some(reply), .. } = settlement {
            self.replies.keep(
                &self.connection,
                purchase.number,
                reply,
                until.unwrap_or_default(),
            )?;
        }
        if let Settlement::Charged { job: Some(job), .. } = settlement {
            jobs::insert(&self.connection, job)?;
        }
        if purchase.state != PurchaseState::Unknown {
            let mut credit = self.credit()?;
            credit.settle(purchase.price, amount);
            self.set_credit(&credit)?;
            self.has_ended.set(true);
            self.count_end()?;
        }
        Ok(())
    }

    pub(super) fn mark_delivered(&self, id: PurchaseId) -> Result<()> {
        let mut watermark =
            self.connection.prepare_cached("UPDATE purchases SET delivered = 1 WHERE id = ?")?;
        watermark.execute([id.0.as_bytes()])?;
        Ok(())
    }

    fn is_running(&self, id: PurchaseId) -> Result<bool> {
        let state = self.purchase(id)?.map(|purchase| purchase.state);
        Ok(matches!(state, Some(PurchaseState::Held | PurchaseState::Sent)))
    }

    /// Ends the purchases that a crash left running: unsent ones are released, sent ones become
    /// unknown.
    pub(super) fn recover(&self, now: Duration) -> Result<()> {
        let mut left = self
            .connection
            .prepare_cached("SELECT id, state FROM purchases WHERE ended_at IS NULL")?;
        let left = left.query_map([], |row| Ok((column::id(row, 0)?, column::state(row, 1)?)))?;
        for purchase in left.collect::<rusqlite::Result<Vec<_>>>()? {
            let (id, state) = purchase;
            let settlement = if state == PurchaseState::Held {
                Settlement::Released
            } else {
                Settlement::Unknown
            };
            tracing::warn!(purchase = %id, state = state.name(), "recovered in-flight purchase after crash");
            self.settle(id, &settlement, now)?;
        }
        self.set_credit(&Credit::default())?;
        slots::recover(self, now)
    }

    pub(super) fn needs_sync(&self, id: PurchaseId) -> Result<bool> {
        Ok(self
            .purchase(id)?
            .is_some_and(|purchase| purchase.price >= crate::store::model::SYNC_THRESHOLD))
    }

    fn purchase(&self, id: PurchaseId) -> Result<Option<Purchase>> {
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

/// A purchase before it is settled. It counts for its price.
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
