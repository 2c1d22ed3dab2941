//! The life of a purchase: held, sent, ended.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::column;
use super::handle::PostgresStore;
use super::slots::UnansweredSlot;
use super::step::{Need, Step, StepRows, statement};
use super::{events, reserve, settle};
use crate::contract::money::Usd;
use crate::store::audit_log::RESOLVE_PURCHASE;
use crate::store::rules::Credit;
use crate::store::{
    AccountStatus, Actor, BudgetScope, CreditWatermark, Held, KeptReply, MissingSpend, PeriodSpend,
    PurchaseId, PurchaseState, RemainingCredit, Reservation, ReserveError, Settlement,
    StoreCapacity, Unavailable, WantedSlot,
};
use crate::sync::lock;

/// How often a purchase that another instance may end is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
const UNPARSABLE_RETENTION: Duration = Duration::from_secs(86_400);
const MAX_UNPARSABLE: i64 = 1_000;

const MARK_SENT: &str = "UPDATE purchases
    SET state = 'sent', unrecognised = unrecognised OR $3
    WHERE id = $1 AND owner = $2 AND ended_at IS NULL RETURNING 1";
const WRITE_RESOLVED: &str = "INSERT INTO audit (at, by, act, of, old, new)
    SELECT {now}, $1::text, $2::text, caller, 'unknown', $4::text
    FROM purchases WHERE id = $3 AND state = $5::text
        AND NOT EXISTS (SELECT 1 FROM audit WHERE act = $2::text AND new = $4::text)";
const REPLY: &str = "SELECT status, is_json, body FROM replies
    WHERE number = (SELECT number FROM purchases WHERE id = $1)";
/// Reads the account with the sum of what is running, which the watermark does not include.
const CREDIT: &str = "SELECT committed, balance, balance_mark, balance_as_of,
        committed - coalesce(
            (SELECT sum(price_micros) FROM purchases WHERE ended_at IS NULL), 0)::bigint
    FROM account";
const RECORD_BALANCE: &str = "UPDATE account
    SET balance = $2, balance_mark = $1, balance_as_of = {now}
    WHERE balance_mark IS NULL OR balance_mark <= $1";
/// Those that expire last are kept, as far as they fit.
const TRIM_REPLIES: &str = "DELETE FROM replies WHERE number IN (
    SELECT number FROM (
        SELECT number, row_number() OVER last AS nth, sum(bytes) OVER last AS total
        FROM replies WINDOW last AS (ORDER BY until DESC, number DESC)
    ) kept WHERE nth > $1 OR total > $2::bigint)";
const KEEP_UNPARSABLE: &str = "INSERT INTO unparsable_replies (id, at, body)
    VALUES ($1, {now}, $2) ON CONFLICT (id) DO NOTHING";
const TRIM_UNPARSABLE: &str = "DELETE FROM unparsable_replies WHERE at <= {now} - $1 OR id NOT IN (
    SELECT id FROM unparsable_replies ORDER BY at DESC, id DESC LIMIT $2)";

impl PostgresStore {
    pub(in crate::store) async fn reserve(
        &self,
        reservation: &Reservation,
        send: Option<(WantedSlot, AccountStatus)>,
    ) -> Result<Held, ReserveError> {
        self.check_capacity()?;
        let owner = self.shared().number();
        let step = reserve::step(self.shared(), owner, reservation, send)?;
        self.shared().begin(reservation.id, owner, reservation.price);
        let slot = UnansweredSlot::new(self, send.map(|(slot, _)| slot.id));
        let held = match self.run(&self.lanes().sales, step).await {
            Ok(rows) => reserve::verdict(self.shared(), reservation, &rows)
                .inspect_err(|_| self.shared().end(reservation.id)),
            Err(unavailable) => Err(unavailable.into()),
        };
        match (slot.answered(), &held) {
            (None, _) => {}
            (Some(_), Ok(Held { is_sent: true, .. })) => self.purge_slots_if_due(),
            // It may have been taken, and the purchase recorded as sent.
            (Some(slot), Err(ReserveError::Unavailable(_))) => {
                self.release_slot(slot);
                self.release_if_doubtful(reservation.id).await;
            }
            (Some(slot), _) => self.shared().slots.give_up(slot),
        }
        if matches!(held, Ok(_) | Err(ReserveError::InsufficientCredit)) {
            self.shared().credit_used.store(true, Ordering::Relaxed);
        }
        held
    }

    /// Releases an unsent purchase whose COMMIT was not answered. If others have declared this
    /// instance dead, its outcome is unknown until then, so a retry would not buy it.
    async fn release_if_doubtful(&self, id: PurchaseId) {
        let is_doubtful = lock(&self.shared().running).doubtful.contains_key(&id);
        if is_doubtful {
            // If this fails, the lane tries again.
            self.settle(id, Settlement::Released).await.ok();
        }
    }

    pub(in crate::store) fn take_credit_used(&self) -> bool {
        self.shared().credit_used.swap(false, Ordering::Relaxed)
    }

    pub(in crate::store) async fn mark_sent(
        &self,
        id: PurchaseId,
        account: AccountStatus,
    ) -> Result<(), Unavailable> {
        let is_unconfirmed = account == AccountStatus::Unconfirmed;
        let me = self.shared().number();
        let mark = statement!(MARK_SENT, id.0, me, is_unconfirmed);
        let rows = self.run(&self.lanes().sales, Step::plain(mark).guarded(me)).await?;
        if has_row(&rows) { Ok(()) } else { Err(Unavailable("the purchase is not held".into())) }
    }

    pub(in crate::store) async fn settle(
        &self,
        id: PurchaseId,
        settlement: Settlement,
    ) -> Result<(), Unavailable> {
        let step = settle::step(self.shared(), id, &settlement);
        self.run(&self.lanes().sales, step).await.map(drop)
    }

    pub(in crate::store) async fn resolve(
        &self,
        by: Actor,
        id: PurchaseId,
        settlement: Settlement,
        new: String,
    ) -> Result<(), Unavailable> {
        let state = if let Settlement::Released = settlement { "released" } else { "charged" };
        let (by, act) = (by.name().to_owned(), RESOLVE_PURCHASE);
        let mut step = settle::step(self.shared(), id, &settlement);
        step.statements.push(statement!(WRITE_RESOLVED, by, act, id.0, new, state));
        self.run(&self.lanes().sales, step).await.map(drop)
    }

    pub(in crate::store) async fn record_missing_spend(
        &self,
        missing: &MissingSpend,
    ) -> Result<(), Unavailable> {
        let record = reserve::missing_spend(self.shared().number(), missing)?;
        self.run(&self.lanes().sales, Step::new(Need::Counting, vec![record])).await.map(drop)
    }

    pub(in crate::store) fn settle_later(&self, id: PurchaseId, settlement: Settlement) {
        let step = settle::step(self.shared(), id, &settlement);
        self.lanes().notify(&self.lanes().sales, step);
    }

    pub(in crate::store) async fn wait_until_ended(
        &self,
        id: PurchaseId,
    ) -> Result<(), Unavailable> {
        loop {
            // Registered before the check, so that an end in between is not missed.
            let mut end = pin!(self.shared().ends.notified());
            end.as_mut().enable();
            let ask = statement!("SELECT state FROM purchases WHERE id = $1", id.0);
            let rows = self.run(&self.lanes().reads, Step::plain(ask)).await?;
            let state =
                rows.iter().flatten().next().map(|row| column::state(row, 0)).transpose()?;
            match state {
                Some(PurchaseState::Held | PurchaseState::Sent) => {}
                // If it is unknown, it may be lost. A reservation that requires it decides.
                Some(_) | None => return Ok(()),
            }
            timeout(POLL_INTERVAL, end).await.ok();
        }
    }

    pub(in crate::store) async fn credit_watermark(&self) -> Result<CreditWatermark, Unavailable> {
        let mark = self
            .query_one(&self.lanes().reads, statement!(CREDIT), |row| column::count(row, 4))
            .await?;
        Ok(CreditWatermark(mark.unwrap_or_default()))
    }

    pub(in crate::store) fn record_balance(&self, watermark: CreditWatermark, balance: Usd) {
        let (mark, balance) = (column::signed(watermark.0), column::signed(balance.as_micros()));
        let step = Step::new(Need::Counting, vec![statement!(RECORD_BALANCE, mark, balance)]);
        self.lanes().notify(&self.lanes().sales, step);
    }

    pub(in crate::store) async fn remaining_credit(
        &self,
    ) -> Result<Option<RemainingCredit>, Unavailable> {
        let read = |row: &tokio_postgres::Row| {
            let known = reserve::known_balance(row, 1)?;
            Ok(Credit { held: 0, spent: column::count(row, 0)?, known })
        };
        let credit = self.query_one(&self.lanes().reads, statement!(CREDIT), read).await?;
        Ok(credit.and_then(|credit| credit.remaining()))
    }

    pub(in crate::store) async fn reply(
        &self,
        id: PurchaseId,
    ) -> Result<Option<KeptReply>, Unavailable> {
        self.query_one(&self.lanes().reads, statement!(REPLY, id.0), |row| {
            let status = u16::try_from(column::get::<i32>(row, 0)?).unwrap_or_default();
            let body = Bytes::from(column::get::<Vec<u8>>(row, 2)?);
            Ok(KeptReply { status, is_json: column::get(row, 1)?, body })
        })
        .await
    }

    pub(in crate::store) fn mark_delivered(&self, id: PurchaseId) {
        let mark = "UPDATE purchases SET delivered = true WHERE id = $1 AND NOT delivered";
        self.notify_quietly(vec![statement!(mark, id.0)]);
    }

    pub(in crate::store) fn count_replay(&self, id: PurchaseId) {
        let count = "UPDATE purchases SET replays = replays + 1 WHERE id = $1";
        self.notify_quietly(vec![statement!(count, id.0)]);
    }

    pub(in crate::store) fn keep_unparsable_reply(&self, id: PurchaseId, body: Bytes) {
        let retention = column::nanos(UNPARSABLE_RETENTION);
        self.notify_quietly(vec![
            statement!(KEEP_UNPARSABLE, id.0, body.to_vec()),
            statement!(TRIM_UNPARSABLE, retention, MAX_UNPARSABLE),
        ]);
        tracing::warn!(purchase = %id, "unparsable reply kept");
    }

    fn notify_quietly(&self, statements: Vec<super::step::Statement>) {
        self.lanes().notify(&self.lanes().sales, Step::new(Need::Quiet, statements));
    }

    pub(in crate::store) async fn purge_expired(&self) -> Result<(), Unavailable> {
        let StoreCapacity { replies, reply_bytes, .. } = StoreCapacity::default();
        let retention = column::nanos(UNPARSABLE_RETENTION);
        let mut statements = vec![
            statement!("DELETE FROM replies WHERE until <= {now}"),
            statement!(TRIM_REPLIES, column::signed(replies), column::signed(reply_bytes)),
            statement!(TRIM_UNPARSABLE, retention, MAX_UNPARSABLE),
        ];
        statements.extend(events::purge());
        let step = Step::new(Need::Plain, statements);
        self.run(&self.lanes().sales, step).await.map(drop)
    }

    pub(in crate::store) async fn ensure_usable(&self) -> Result<(), Unavailable> {
        self.check_capacity()?;
        let step = Step::plain(statement!("SELECT 1 FROM account")).guarded(self.shared().number());
        self.run(&self.lanes().sales, step).await.map(drop)
    }

    pub(in crate::store) async fn current_spend(
        &self,
        scope: BudgetScope,
    ) -> Result<PeriodSpend, Unavailable> {
        let query = reserve::spent_query(&scope);
        let rows = self.lanes().read(&self.lanes().reads, query).await?;
        reserve::read_spent(&rows)
    }
}

fn has_row(rows: &StepRows) -> bool {
    rows.iter().any(|rows| !rows.is_empty())
}
