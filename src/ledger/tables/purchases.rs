//! The life of a purchase: held, sent, ended.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::timeout;
use tracing::error;

use super::column::{insert, read, record, select};
use super::ledger::{Ledger, Purchase};
use super::spent::Scope;
use super::{jobs, outbox, slots};
use crate::gateway::contract::money::Usd;
use crate::ledger::engine::{Result, Sql, params};
use crate::ledger::model::SYNC_THRESHOLD;
use crate::ledger::rules::{self, ScopeBudget, Today};
use crate::ledger::writer::Durability;
use crate::ledger::{
    AccountStatus, BudgetScope, CreditWatermark, DedupeKey, Held, PeriodSpend, Precondition,
    PurchaseId, PurchaseState, RemainingCredit, Reservation, ReserveError, ScopeKind, Settlement,
    Store, StoreOp, Unavailable, WantedSlot,
};
use crate::sync::lock;

record!(Purchase {
    number: "number",
    state: "state",
    price: "price_micros",
    caller: "caller",
    group: "group_name",
    token: "token",
    today: "day, month",
});
record!(Today { day: "day", month: "month" });

/// How often a purchase that another process may end is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// After a full disk, so many writes show that a purchase fits again: each takes new room.
const PROBE_WRITES: usize = 3;
/// Writes what is there already, to about as many pages as a purchase.
const REWRITE_LATEST: &str = "UPDATE purchases
    SET id = id, at = at, caller = caller
    WHERE number > (SELECT max(number) FROM purchases) - 8";

/// How many purchases lie between two writes of up to which one all have ended.
const ADVANCE_INTERVAL: i64 = 1_024;
/// Reads each purchase once in all: it stops at the first that is running. The latest one is.
const ADVANCE_ENDED: &str = "UPDATE identity SET ended_through =
    (SELECT number - 1 FROM purchases
     WHERE number > ended_through AND ended_at IS NULL ORDER BY number LIMIT 1)";

impl Store {
    /// Holds a price, durably, against every budget and the account's balance, and takes the
    /// purchase's dedupe key, in one step. Returns the watermark for a balance that comes with the
    /// reply.
    pub async fn reserve(
        &self,
        reservation: &Reservation,
    ) -> Result<CreditWatermark, ReserveError> {
        let hold = self.hold(reservation, None);
        Ok(self.with_hooks(StoreOp::Reserve(reservation), hold).await?.watermark)
    }

    /// [`reserve`](Self::reserve), and also takes the slot and marks the purchase as sent. A ledger that
    /// servers share only holds, and says so, if no slot is free.
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
        let hold = self.hold(reservation, Some((slot, account)));
        self.with_hooks(StoreOp::ReserveAndSend(reservation, slot.id), hold).await
    }

    async fn hold(
        &self,
        reservation: &Reservation,
        send: Option<(WantedSlot, AccountStatus)>,
    ) -> Result<Held, ReserveError> {
        let is_expensive = reservation.price >= SYNC_THRESHOLD;
        let durability = if is_expensive { Durability::Synced } else { Durability::Buffered };
        self.check_capacity()?;
        // Only its numbers and references are copied.
        let (reservation, until, id) = (reservation.clone(), self.latest_send(), reservation.id);
        let reserve = move |ledger: &Ledger| ledger.reserve(&reservation, send);
        let held = self.perform(durability, reserve).await?;
        if matches!(held, Ok(_) | Err(ReserveError::InsufficientCredit)) {
            self.inner.credit_used.store(true, Ordering::Relaxed);
        }
        if held.as_ref().is_ok_and(|held| held.is_sent) {
            self.note_sent(id, until);
        }
        held
    }

    /// Returns until when a purchase that is recorded as sent from now on may be sent: half of its time is
    /// left for the way to the gateway.
    fn latest_send(&self) -> Option<Duration> {
        let shared = self.inner.shared.as_ref()?;
        Some((self.inner.since_boot)().saturating_add(shared.deadlines().sent / 2))
    }

    fn note_sent(&self, id: PurchaseId, until: Option<Duration>) {
        if let Some(until) = until {
            lock(&self.inner.sends).insert(id, until);
        }
    }

    fn note_ended(&self, id: PurchaseId) {
        if self.is_shared() {
            lock(&self.inner.sends).remove(&id);
        }
    }

    /// Returns whether this process may still send a purchase that the ledger holds for it. Ask right
    /// before the first byte: in a ledger that servers share, another one ends what is overdue.
    pub fn may_send(&self, id: PurchaseId) -> bool {
        !self.is_shared()
            || lock(&self.inner.sends)
                .get(&id)
                .is_some_and(|until| (self.inner.since_boot)() < *until)
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
            let state = move |ledger: &Ledger| Ok(ledger.purchase(id)?.map(|found| found.state));
            let state = self.query("wait_until_ended", state).await?;
            if !matches!(state, Some(PurchaseState::Held | PurchaseState::Sent)) {
                return Ok(());
            }
            // Another process sends no notification.
            timeout(POLL_INTERVAL, end).await.ok();
        }
    }

    /// Returns the current watermark. Take it before asking the gateway for the balance, and
    /// pass it to [`record_balance`](Self::record_balance) with the answer.
    pub async fn credit_watermark(&self) -> Result<CreditWatermark, Unavailable> {
        self.query("credit_watermark", |ledger| Ok(ledger.credit.get().watermark())).await
    }

    pub fn record_balance(&self, watermark: CreditWatermark, balance: Usd) {
        self.notify_later("record_balance", |as_of| {
            move |ledger: &Ledger| {
                let mut credit = ledger.credit.get();
                credit.record_balance(watermark, balance, as_of);
                ledger.credit.set(credit);
                Ok(())
            }
        });
    }

    pub async fn remaining_credit(&self) -> Result<Option<RemainingCredit>, Unavailable> {
        self.query("remaining_credit", |ledger| Ok(ledger.credit.get().remaining())).await
    }

    /// Marks a held purchase as about to be sent. From then on, a crash makes it unknown.
    pub async fn mark_sent(
        &self,
        id: PurchaseId,
        account: AccountStatus,
    ) -> Result<(), Unavailable> {
        // An expensive purchase waits for the disk here, too: after a power failure it must not
        // look unsent.
        let mark = move |ledger: &Ledger| {
            let sql = "UPDATE purchases SET state = 'sent', deadline = ?3,
                    unrecognised = CASE WHEN unrecognised = 1 THEN 1 ELSE ?2 END
                WHERE id = ?1 AND ended_at IS NULL AND coalesce(deadline, ?4) >= ?4";
            let is_unconfirmed = account == AccountStatus::Unconfirmed;
            let deadline = ledger.deadline(PurchaseState::Sent);
            let values = params![id, is_unconfirmed, deadline, ledger.now()];
            match ledger.db.run(sql, values)? {
                0 => Err(Unavailable("the purchase is not held".into()).into()),
                _ => Ok(()),
            }
        };
        let until = self.latest_send();
        self.run(StoreOp::MarkSent(id), Durability::OfPurchase(id), mark).await?;
        self.note_sent(id, until);
        Ok(())
    }

    /// Ends a purchase, and records its video job, durably. A purchase that has ended stays as it
    /// is, except that an unknown one may become charged or released.
    pub async fn settle(&self, id: PurchaseId, settlement: Settlement) -> Result<(), Unavailable> {
        self.inner.gate.check()?;
        self.note_ended(id);
        let end = settlement.clone();
        let settle = move |ledger: &Ledger| ledger.settle(id, &end);
        self.execute(StoreOp::Settle(id, &settlement), Durability::OfPurchase(id), settle).await
    }

    /// [`settle`](Self::settle) without waiting, for tasks that are being dropped.
    pub fn settle_later(&self, id: PurchaseId, settlement: Settlement) {
        self.note_ended(id);
        let end = settlement.clone();
        let settle = move |ledger: &Ledger| ledger.settle(id, &end);
        self.notify(StoreOp::SettleLater(id, &settlement), Durability::OfPurchase(id), settle);
    }

    pub fn mark_delivered(&self, id: PurchaseId) {
        self.notify_later(StoreOp::MarkDelivered(id), |_| {
            move |ledger: &Ledger| {
                let sql = "UPDATE purchases SET delivered = 1 WHERE id = ?";
                ledger.db.run(sql, [id]).map(drop)
            }
        });
    }

    /// Counts, without waiting, a duplicate that got the purchase's reply for free.
    pub fn count_replay(&self, id: PurchaseId) {
        self.notify_later("count_replay", |_| {
            move |ledger: &Ledger| {
                ledger.count_replay(id);
                Ok(())
            }
        });
    }

    /// Returns an error if no purchase can be recorded now.
    pub async fn ensure_usable(&self) -> Result<(), Unavailable> {
        self.check_capacity()?;
        let is_disk_full = &self.inner.gate.is_disk_full;
        if is_disk_full.load(Ordering::Relaxed) {
            for number in 1..=PROBE_WRITES {
                let is_disk_full = Arc::clone(is_disk_full);
                let rewrite = move |ledger: &Ledger| {
                    ledger.db.run("UPDATE members_version SET version = version", ())?;
                    ledger.db.run(REWRITE_LATEST, ())?;
                    // Before the commit: if that fails, the writer sets it again.
                    if number == PROBE_WRITES {
                        is_disk_full.store(false, Ordering::Relaxed);
                    }
                    Ok(())
                };
                self.query("ensure_usable", rewrite).await?;
            }
        }
        self.query("ensure_usable", |ledger| ledger.db.ensure_own()).await
    }

    pub async fn current_spend(&self, scope: BudgetScope) -> Result<PeriodSpend, Unavailable> {
        self.query("current_spend", move |ledger| {
            ledger.spend_of(Scope::from(&scope), ledger.today()?, |_| true)
        })
        .await
    }
}

impl Ledger {
    /// Checks everything before it holds, so that a refusal leaves nothing to roll back.
    pub(in crate::ledger) fn reserve(
        &self,
        reservation: &Reservation,
        send: Option<(WantedSlot, AccountStatus)>,
    ) -> Result<Result<Held, ReserveError>> {
        let now = self.now();
        if !self.meets(&reservation.requires)? {
            return Ok(Err(ReserveError::LedgerChanged));
        }
        // A duplicate is answered whatever is left.
        let expired = match self.find_earlier(reservation, now)? {
            Ok(expired) => expired,
            Err(earlier) => return Ok(Err(earlier)),
        };
        let today = self.today()?;
        let scopes = self.scope_budgets(reservation, today)?;
        let (mut credit, price) = (self.credit.get(), reservation.price);
        let covered = rules::check_budgets(&scopes, price)
            .and_then(|()| credit.hold(price, reservation.budgets.balance_floor, now));
        if let Err(refused) = covered {
            return Ok(Err(refused));
        }
        if let Some(number) = expired {
            self.clear_dedupe_key(number)?;
        }
        let send = match send {
            Some((slot, _)) if !slots::free(self, slot.limit)?.is_free => None,
            send => send,
        };
        let inserted = self.insert(reservation, send, today)?;
        let known = || Unavailable("the purchase is already in the ledger".into());
        let purchase = inserted.ok_or_else(known)?;
        self.change_spend(&purchase, Usd::ZERO, price)?;
        outbox::write_crossings(self, reservation, &scopes, today)?;
        self.credit.set(credit);
        self.running.borrow_mut().insert(reservation.id, purchase);
        if let Some((slot, _)) = send {
            slots::take(self, slot.id, now)?;
        }
        Ok(Ok(Held { watermark: credit.watermark(), is_sent: send.is_some() }))
    }

    /// Returns whether the ledger still has what a purchase relies on. One in a file loses nothing while it
    /// is open, unless it turns out to be an old copy.
    fn meets(&self, Precondition { name, earlier, .. }: &Precondition) -> Result<bool> {
        let Some(present) = self.db.name() else { return Ok(true) };
        if name.as_ref().is_some_and(|name| *name != present) {
            return Ok(false);
        }
        Ok(match earlier {
            Some(id) => self.purchase(*id)?.is_some(),
            None => true,
        })
    }

    /// Returns the limits of all scopes that the purchase counts in, and of absent ones none.
    fn scope_budgets(&self, reservation: &Reservation, today: Today) -> Result<[ScopeBudget; 4]> {
        let Reservation { caller, group, token, budgets, .. } = reservation;
        let of = |kind, name: Option<&Arc<str>>, limit| match name {
            Some(name) => self.scope_budget(Scope { kind, name }, limit, today),
            None => Ok(ScopeBudget::absent(kind)),
        };
        let now = self.now();
        let (group_limit, extra) = self.with_limits(|kept| {
            let group = group.as_ref().map(|name| kept.group(name));
            (group.unwrap_or_default(), kept.extra(caller, now))
        })?;
        let extra = extra.map_or(Usd::ZERO, |extra| extra.amount);
        Ok([
            self.scope_budget(Scope::TOTAL, budgets.total, today)?,
            of(ScopeKind::Group, group.as_ref(), group_limit)?,
            of(ScopeKind::Caller, Some(caller), budgets.caller.raised(extra))?,
            of(ScopeKind::Token, token.as_ref(), budgets.token)?,
        ])
    }

    /// Returns `None` if a purchase has this id; then nothing was written.
    fn insert(
        &self,
        reservation: &Reservation,
        send: Option<(WantedSlot, AccountStatus)>,
        today: Today,
    ) -> Result<Option<Purchase>> {
        let (key, payload, fingerprint) = match &reservation.dedupe_key {
            DedupeKey::IdempotencyKey { key, payload } | DedupeKey::Quote { key, payload, .. } => {
                (Some(key), Some(payload), reservation.requires.challenge.as_ref())
            }
            DedupeKey::Fingerprint(duplicate) => (None, None, Some(&duplicate.fingerprint)),
        };
        let (state, is_unconfirmed) = match send {
            None => (PurchaseState::Held, false),
            Some((_, account)) => (PurchaseState::Sent, account == AccountStatus::Unconfirmed),
        };
        // To have the database number it would build a temporary table.
        let next = "SELECT coalesce(max(number), 0) + 1 FROM purchases";
        let number = match self.next_number.get() {
            Some(number) => number,
            None => self.db.one(next, (), read)?,
        };
        let inserted = insert!(self.db, purchases {
            number: number,
            id: reservation.id,
            at: self.now(),
            day: today.day,
            month: today.month,
            caller: reservation.caller,
            group_name: reservation.group,
            token: reservation.token,
            service: reservation.service,
            model: reservation.model,
            price_micros: reservation.price,
            state: state,
            unrecognised: is_unconfirmed,
            key: key,
            payload: payload,
            fingerprint: fingerprint,
            deadline: self.deadline(state),
        } "ON CONFLICT DO NOTHING")?;
        if inserted == 0 {
            return Ok(None);
        }
        self.latest_number.set(Some(number));
        self.next_number.set(Some(number + 1));
        if number % ADVANCE_INTERVAL == 0 {
            self.db.run(ADVANCE_ENDED, ())?;
        }
        let (price, caller) = (reservation.price, Arc::clone(&reservation.caller));
        let (group, token) = (reservation.group.clone(), reservation.token.clone());
        Ok(Some(Purchase { number, state, price, caller, group, token, today }))
    }

    pub(in crate::ledger) fn settle(&self, id: PurchaseId, settlement: &Settlement) -> Result<()> {
        let now = self.now();
        let running = self.running.borrow_mut().remove(&id);
        let found = running.map_or_else(|| self.purchase(id), |running| Ok(Some(running)))?;
        let Some(purchase) = found else {
            if *settlement != Settlement::Released {
                self.metrics.charges_of_lost.inc();
                let cost = match settlement {
                    Settlement::Charged { cost, .. } => Some(cost.to_string()),
                    Settlement::Released | Settlement::Unknown => None,
                };
                error!(purchase = %id, cost, "ledger lost a purchase that was sent; no budget counts it");
            }
            return Ok(());
        };
        let settled = rules::settle(purchase.state, purchase.price, settlement);
        let Some((state, amount)) = settled else {
            if let (PurchaseState::Released, Settlement::Charged { .. }) =
                (purchase.state, settlement)
            {
                self.metrics.charges_of_released.inc();
                error!(purchase = %id, "charged purchase had been released; no budget counts it");
            }
            return Ok(());
        };
        self.change_spend(&purchase, purchase.price, amount)?;
        let (cost, until) = match settlement {
            Settlement::Charged { cost, keep, .. } => {
                (Some(*cost), Some(now.saturating_add(*keep)))
            }
            Settlement::Released | Settlement::Unknown => (None, None),
        };
        let end = "UPDATE purchases SET state = ?, cost_micros = ?, keep_until = ?,
                ended_at = coalesce(ended_at, ?), ended_steady = coalesce(ended_steady, ?), assumed = ?
            WHERE number = ?";
        let assumed = matches!(settlement, Settlement::Charged { reply: None, .. });
        let values = params![state, cost, until, now, self.steady(), assumed, purchase.number];
        self.db.run(end, values)?;
        if state == PurchaseState::Released {
            self.clear_dedupe_key(purchase.number)?;
        }
        if let (Settlement::Charged { reply: Some(reply), .. }, Some(until)) = (settlement, until) {
            self.replies.keep(&*self.db, purchase.number, reply, until)?;
        }
        if let Settlement::Charged { job: Some(job), .. } = settlement {
            jobs::insert(self, job)?;
        }
        if state == PurchaseState::Unknown {
            outbox::write_unknown(self, id)?;
        }
        if purchase.state != PurchaseState::Unknown {
            let mut credit = self.credit.get();
            credit.settle(purchase.price, amount);
            self.credit.set(credit);
            self.has_ended.set(true);
            self.count_end()?;
        }
        Ok(())
    }

    pub(in crate::ledger) fn needs_sync(&self, id: PurchaseId) -> Result<bool> {
        let running = self.running.borrow().get(&id).map(|purchase| purchase.price);
        let price = match running {
            None => self.purchase(id)?.map(|purchase| purchase.price),
            running => running,
        };
        Ok(price.is_some_and(|price| price >= SYNC_THRESHOLD))
    }

    pub(super) fn purchase(&self, id: PurchaseId) -> Result<Option<Purchase>> {
        self.db.first(&select::<Purchase>("FROM purchases WHERE id = ?"), [id], read)
    }
}
