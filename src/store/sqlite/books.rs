//! The ledger's verbs as steps inside a transaction that somebody else commits.

use std::cell::Cell;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::column::{self, nanos};
use super::counters::Counters;
use super::fault::Fault;
use super::replies::{self, Kept};
use super::{claim, jobs};
use crate::contract::money::Usd;
use crate::store::period::{self, Today};
use crate::store::{
    Account, Claim, Ending, Money, PurchaseId, Refused, Reservation, Room, Scope, Spent, State,
    Unavailable, budget,
};

/// An open ledger, and what is known of it without asking.
pub(super) struct Books {
    pub(super) connection: Connection,
    pub(super) room: Room,
    /// How much room the replies take; nothing when it has to be counted anew.
    pub(super) kept: Cell<Option<Kept>>,
    /// The number of the latest purchase of this transaction.
    pub(super) latest: Cell<Option<i64>>,
    /// What went wrong with steps that were undone alone.
    pub(super) fault: Cell<Option<Fault>>,
    /// Whether a day ahead of the clock was logged.
    warned_of_day: Cell<bool>,
}

impl Books {
    pub(super) fn new(connection: Connection, room: Room) -> Self {
        Self {
            connection,
            room,
            kept: Cell::new(None),
            latest: Cell::default(),
            fault: Cell::default(),
            warned_of_day: Cell::new(false),
        }
    }

    /// Does something in one transaction of its own.
    pub(super) fn transact(
        &self,
        work: impl FnOnce(&Self) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        // One that reads first would not wait for who writes just now.
        let writing = TransactionBehavior::Immediate;
        let transaction = Transaction::new_unchecked(&self.connection, writing)?;
        work(self)?;
        Ok(transaction.commit()?)
    }

    /// Gives the ledger to a kind of money where it has none yet; whether it is that kind's.
    pub(super) fn is_for(&self, money: Money) -> Result<bool, Fault> {
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
    ) -> Result<Result<(), Refused>, Fault> {
        if self.purchase(asked.id)?.is_some() {
            return Err(Unavailable("the purchase is in the ledger already".into()).into());
        }
        let expired = match claim::judge(&self.connection, &asked.claim, now)? {
            Ok(expired) => expired,
            Err(refused) => return Ok(Err(refused)),
        };
        if asked.only_repeats {
            return Ok(Err(Refused::NoRepeat));
        }
        let counters = Counters { connection: &self.connection };
        let today = self.today(now)?;
        let (total, own) = counters.of_purchase(&asked.caller, today)?;
        if let Err(refused) = budget::cover(&asked.limits, total, own, asked.toll, today) {
            return Ok(Err(refused));
        }
        if let Some(number) = expired {
            claim::let_go(&self.connection, number)?;
        }
        let (key, payload, likeness) = match &asked.claim {
            Claim::Key { key, payload } => (Some(key), Some(payload), None),
            Claim::Twin(twin) => (None, None, Some(&twin.likeness)),
        };
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO purchases
                (id, at, day, month, caller, service, model, toll_micros, state, key, payload, likeness)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'reserved', ?, ?, ?)",
        )?;
        insert.execute(params![
            asked.id.0.as_bytes(),
            nanos(now),
            today.day,
            today.month,
            asked.caller,
            asked.service.name(),
            &*asked.model,
            asked.toll.as_micros(),
            key,
            payload,
            likeness,
        ])?;
        let number = self.connection.last_insert_rowid();
        counters.change(&asked.caller, today, Usd::ZERO, asked.toll)?;
        self.latest.set(Some(number));
        Ok(Ok(()))
    }

    pub(super) fn sent(&self, id: PurchaseId, account: Account) -> Result<(), Fault> {
        let mut mark = self.connection.prepare_cached(
            "UPDATE purchases SET state = 'sent', unrecognised = max(unrecognised, ?)
             WHERE id = ? AND ended_at IS NULL",
        )?;
        match mark.execute(params![account == Account::Unrecognised, id.0.as_bytes()])? {
            0 => Err(Unavailable("nothing is set aside for the purchase".into()).into()),
            _ => Ok(()),
        }
    }

    pub(super) fn settle(
        &self,
        id: PurchaseId,
        ending: &Ending,
        now: Duration,
    ) -> Result<(), Fault> {
        let Some(purchase) = self.purchase(id)? else { return Ok(()) };
        let Some(state) = budget::end(purchase.state, ending) else { return Ok(()) };
        let counts = budget::amount(purchase.toll, ending);
        let counters = Counters { connection: &self.connection };
        counters.change(&purchase.caller, purchase.today, purchase.toll, counts)?;
        let (cost, until) = match ending {
            Ending::Posted { cost, keep, .. } => {
                (Some(cost.as_micros()), Some(nanos(now.saturating_add(*keep))))
            }
            Ending::Voided | Ending::Unknown => (None, None),
        };
        let mut end = self.connection.prepare_cached(
            "UPDATE purchases SET state = ?, cost_micros = ?, keep_until = ?,
                ended_at = coalesce(ended_at, ?), assumed = ?
             WHERE number = ?",
        )?;
        let assumed = matches!(ending, Ending::Posted { reply: None, .. });
        end.execute(params![state.name(), cost, until, nanos(now), assumed, purchase.number])?;
        if state == State::Voided {
            claim::let_go(&self.connection, purchase.number)?;
        }
        if let Ending::Posted { reply: Some(reply), .. } = ending {
            replies::keep(self, purchase.number, reply, until.unwrap_or_default())?;
        }
        if let Ending::Posted { job: Some(job), .. } = ending {
            jobs::accept(&self.connection, job)?;
        }
        Ok(())
    }

    pub(super) fn delivered(&self, id: PurchaseId) -> Result<(), Fault> {
        let mut mark =
            self.connection.prepare_cached("UPDATE purchases SET delivered = 1 WHERE id = ?")?;
        mark.execute([id.0.as_bytes()])?;
        Ok(())
    }

    pub(super) fn spent(&self, scope: &Scope, now: Duration) -> Result<Spent, Fault> {
        let counters = Counters { connection: &self.connection };
        counters.of(scope, self.today(now)?)
    }

    /// The day and month that a purchase of now counts in.
    fn today(&self, now: Duration) -> Result<Today, Fault> {
        let counters = Counters { connection: &self.connection };
        let last = period::last_believed_day(now);
        let mut latest = counters.latest_day(None)?;
        if let Some(day) = latest.filter(|day| *day > last) {
            if !self.warned_of_day.replace(true) {
                period::warn_of_day_ahead(day, now);
            }
            latest = counters.latest_day(Some(last))?;
        }
        Ok(Today::at(now, latest))
    }

    /// What the crash of an earlier server left behind: what was never sent is voided, what was sent
    /// is unknown.
    pub(super) fn recover(&self, now: Duration) -> Result<(), Fault> {
        let mut left =
            self.connection.prepare("SELECT id, state FROM purchases WHERE ended_at IS NULL")?;
        let left = left.query_map([], |row| Ok((column::id(row, 0)?, column::state(row, 1)?)))?;
        for purchase in left.collect::<rusqlite::Result<Vec<_>>>()? {
            let (id, state) = purchase;
            let ending = if state == State::Reserved { Ending::Voided } else { Ending::Unknown };
            tracing::warn!(purchase = %id, state = state.name(), "found under way after a crash");
            self.settle(id, &ending, now)?;
        }
        Ok(())
    }

    /// Whether a purchase is worth waiting for the disk; one that is not there is not.
    pub(super) fn is_dear(&self, id: PurchaseId) -> Result<bool, Fault> {
        Ok(self.purchase(id)?.is_some_and(|purchase| purchase.toll >= crate::store::entry::DEAR))
    }

    fn purchase(&self, id: PurchaseId) -> Result<Option<Purchase>, Fault> {
        let mut find = self.connection.prepare_cached(
            "SELECT number, state, toll_micros, caller, day, month FROM purchases WHERE id = ?",
        )?;
        let found = find.query_row([id.0.as_bytes()], |row| {
            Ok(Purchase {
                number: row.get(0)?,
                state: column::state(row, 1)?,
                toll: column::money(row, 2)?,
                caller: row.get(3)?,
                today: Today { day: row.get(4)?, month: row.get(5)? },
            })
        });
        Ok(found.optional()?)
    }
}

/// What a verb has to know of a purchase that has not ended for good: so far, it counts for its toll.
struct Purchase {
    number: i64,
    state: State,
    toll: Usd,
    caller: String,
    today: Today,
}
