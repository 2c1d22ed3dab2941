//! An open ledger: its connection, cached state and counters.

use std::cell::Cell;
use std::time::Duration;

use rusqlite::{Connection, params};
use tracing::warn;

use super::Result;
use super::column::{self, Sql};
use super::replies::Replies;
use crate::clock::{self, Date};
use crate::contract::money::Usd;
use crate::store::rules::{Credit, KnownBalance, Today, latest_plausible_day};
use crate::store::{BudgetScope, Clock, CreditWatermark, PeriodSpend, StoreCapacity};

pub(super) struct Ledger {
    pub(super) connection: Connection,
    clock: Clock,
    pub(super) replies: Replies,
    pub(super) max_ended: Option<usize>,
    pub(super) ended_count: Cell<usize>,
    pub(super) slots_taken: Cell<usize>,
    pub(super) latest_number: Cell<Option<i64>>,
    pub(super) has_ended: Cell<bool>,
    pub(super) has_warned_of_day: Cell<bool>,
}

impl Ledger {
    pub(super) fn new(connection: Connection, capacity: StoreCapacity, clock: Clock) -> Self {
        Self {
            connection,
            clock,
            replies: Replies::new(capacity),
            max_ended: None,
            ended_count: Cell::default(),
            slots_taken: Cell::default(),
            latest_number: Cell::default(),
            has_ended: Cell::default(),
            has_warned_of_day: Cell::new(false),
        }
    }

    pub(super) fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Forgets what was read or counted in a transaction that was rolled back.
    pub(super) fn rolled_back(&self) {
        self.replies.invalidate();
        self.has_ended.set(false);
    }

    pub(super) fn clear(&self) -> Result<()> {
        let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT IN
            ('credit', 'members_version')";
        // In whatever order the schema lists them; the pragma ends with the transaction.
        self.connection.execute_batch("PRAGMA defer_foreign_keys = 1")?;
        for table in self.connection.all(tables, [], |row| row.get::<_, String>(0))? {
            self.connection.run(&format!("DELETE FROM {table}"), [])?;
        }
        self.connection.execute("UPDATE members_version SET version = 0", [])?;
        self.set_credit(&Credit::default())?;
        self.replies.invalidate();
        self.ended_count.set(0);
        self.slots_taken.set(0);
        Ok(())
    }
}

/// The tables `spent` and `credit`, in the same transaction as the purchases.
impl Ledger {
    /// Counts a settled purchase. Beyond `max_ended`, deletes the one that ended first.
    pub(super) fn count_end(&self) -> Result<()> {
        let Some(bound) = self.max_ended else { return Ok(()) };
        self.ended_count.set(self.ended_count.get() + 1);
        if self.ended_count.get() <= bound {
            return Ok(());
        }
        let first = "SELECT number FROM purchases WHERE ended_at IS NOT NULL
                     ORDER BY ended_at, number LIMIT 1";
        let first: i64 = self.connection.query_row(first, [], |row| row.get(0))?;
        self.connection.execute("DELETE FROM replies WHERE number = ?", [first])?;
        self.connection.execute("DELETE FROM purchases WHERE number = ?", [first])?;
        self.ended_count.set(bound);
        self.replies.invalidate();
        Ok(())
    }

    pub(super) fn today(&self, now: Duration) -> Result<Today> {
        let latest_until = |last| {
            let latest = "SELECT max(period) FROM spent
                WHERE scope = 'total' AND unit = 'day' AND period <= ?";
            let day = self.connection.first(latest, [column::signed(last)], |row| row.get(0));
            day.map(Option::flatten)
        };
        let last = latest_plausible_day(now);
        let mut latest = latest_until(u64::MAX)?;
        if let Some(day) = latest.filter(|day| *day > last) {
            if !self.has_warned_of_day.replace(true) {
                let iso8601 = |date: Date| clock::iso8601(date.start());
                let (ledger_day, clock_day) =
                    (iso8601(Date::from_days(day)), iso8601(Date::at(now)));
                warn!(%ledger_day, %clock_day, "ledger day is ahead of the clock; ignored");
            }
            latest = latest_until(last)?;
        }
        Ok(Today::at(now, latest))
    }

    pub(super) fn spend_of(&self, scope: &BudgetScope, today: Today) -> Result<PeriodSpend> {
        let mut read = self.connection.prepare_cached(
            "SELECT
                coalesce((SELECT micros FROM spent
                    WHERE scope = ?1 AND unit = 'day' AND period = ?2), 0),
                coalesce((SELECT micros FROM spent
                    WHERE scope = ?1 AND unit = 'month' AND period = ?3), 0)",
        )?;
        let scope = match scope {
            BudgetScope::Total => "total",
            BudgetScope::Caller(caller) => &caller_scope(caller),
        };
        let spent = read.query_row(params![scope, today.day, today.month], |row| {
            Ok(PeriodSpend {
                day: column::money(row, 0)?,
                month: column::money(row, 1)?,
                day_renews_at: today.day_ends(),
                month_renews_at: today.month_ends(),
            })
        })?;
        Ok(spent)
    }

    /// Changes a purchase's share of the four counters from `before` to `after`. A counter that
    /// would overflow breaks a constraint of the table.
    pub(super) fn change_spend(
        &self,
        caller: &str,
        today: Today,
        before: Usd,
        after: Usd,
    ) -> Result<()> {
        // Even a free purchase creates its counters: they record that the day was counted in.
        if before == after && before != Usd::ZERO {
            return Ok(());
        }
        let write = "INSERT INTO spent (scope, unit, period, micros) VALUES
                ('total', 'day', ?2, ?4), ('total', 'month', ?3, ?4),
                (?1, 'day', ?2, ?4), (?1, 'month', ?3, ?4)
             ON CONFLICT DO UPDATE SET micros = micros - ?5 + excluded.micros";
        let (before, after) = (before.as_micros(), after.as_micros());
        let values = params![caller_scope(caller), today.day, today.month, after, before];
        self.connection.run(write, values)?;
        Ok(())
    }

    pub(super) fn credit(&self) -> Result<Credit> {
        let mut read = self
            .connection
            .prepare_cached("SELECT held, spent, balance, since, as_of FROM credit")?;
        let credit = read.query_row([], |row| {
            let known = match row.get::<_, Option<u64>>(2)? {
                Some(balance) => Some(KnownBalance {
                    balance: Usd::micros(balance),
                    since: CreditWatermark(row.get(3)?),
                    as_of: column::moment(row, 4)?,
                }),
                None => None,
            };
            Ok(Credit { held: row.get(0)?, spent: row.get(1)?, known })
        })?;
        Ok(credit)
    }

    pub(super) fn set_credit(&self, credit: &Credit) -> Result<()> {
        let mut write = self.connection.prepare_cached(
            "UPDATE credit SET held = ?, spent = ?, balance = ?, since = ?, as_of = ?",
        )?;
        let known = credit.known.as_ref();
        write.execute(params![
            column::signed(credit.held),
            column::signed(credit.spent),
            known.map(|known| column::signed(known.balance.as_micros())),
            known.map(|known| column::signed(known.since.0)),
            known.map(|known| column::nanos(known.as_of)),
        ])?;
        Ok(())
    }
}

fn caller_scope(caller: &str) -> String {
    format!("caller {caller}")
}
