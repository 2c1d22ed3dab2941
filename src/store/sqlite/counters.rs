//! Counts what is spent, per scope and period, in the same transaction as the purchases.

use rusqlite::{Connection, OptionalExtension, params};

use super::column;
use super::fault::Fault;
use crate::contract::money::Usd;
use crate::store::rules::{self, Today};
use crate::store::{Scope, Spent};

const TOTAL: &str = "total";

/// The table `spent`.
pub(super) struct Counters<'a> {
    pub(super) connection: &'a Connection,
}

impl Counters<'_> {
    /// The latest day that anything was counted in, among those up to `last`.
    pub(super) fn latest_day(&self, last: Option<u64>) -> Result<Option<u64>, Fault> {
        let last = last.and_then(|last| i64::try_from(last).ok()).unwrap_or(i64::MAX);
        let mut latest = self.connection.prepare_cached(
            "SELECT max(period) FROM spent WHERE scope = 'total' AND unit = 'day' AND period <= ?",
        )?;
        Ok(latest.query_row([last], |row| row.get(0))?)
    }

    /// What all have spent, and what a caller has.
    pub(super) fn of_purchase(&self, caller: &str, today: Today) -> Result<(Spent, Spent), Fault> {
        Ok((self.both(TOTAL, today)?, self.both(&own(caller), today)?))
    }

    pub(super) fn of(&self, scope: &Scope, today: Today) -> Result<Spent, Fault> {
        match scope {
            Scope::Total => self.both(TOTAL, today),
            Scope::Caller(caller) => self.both(&own(caller), today),
        }
    }

    /// Moves all four counters of a purchase.
    pub(super) fn change(
        &self,
        caller: &str,
        today: Today,
        before: Usd,
        after: Usd,
    ) -> Result<(), Fault> {
        // A counter is made even by a purchase that costs nothing: its day was counted in.
        let mut write = self.connection.prepare_cached(
            "INSERT INTO spent (scope, unit, period, micros) VALUES (?, ?, ?, ?)
             ON CONFLICT DO UPDATE SET micros = excluded.micros",
        )?;
        if before == after && before != Usd::ZERO {
            return Ok(());
        }
        for scope in [TOTAL, &own(caller)] {
            for (unit, period) in [("day", today.day), ("month", today.month)] {
                let changed = rules::change(self.one(scope, unit, period)?, before, after)?;
                write.execute(params![scope, unit, period, changed.as_micros()])?;
            }
        }
        Ok(())
    }

    fn both(&self, scope: &str, today: Today) -> Result<Spent, Fault> {
        Ok(Spent {
            day: self.one(scope, "day", today.day)?,
            month: self.one(scope, "month", today.month)?,
            day_renews: today.day_ends(),
            month_renews: today.month_ends(),
        })
    }

    fn one(&self, scope: &str, unit: &str, period: u64) -> Result<Usd, Fault> {
        let mut read = self.connection.prepare_cached(
            "SELECT micros FROM spent WHERE scope = ? AND unit = ? AND period = ?",
        )?;
        let found = read.query_row(params![scope, unit, period], |row| column::money(row, 0));
        Ok(found.optional()?.unwrap_or(Usd::ZERO))
    }
}

fn own(caller: &str) -> String {
    format!("caller {caller}")
}
