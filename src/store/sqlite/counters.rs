//! Counts what is spent, per scope and period, in the same transaction as the purchases.

use rusqlite::{Connection, params};

use super::column;
use super::fault::Fault;
use crate::contract::money::Usd;
use crate::store::rules::{Credit, KnownBalance, Today};
use crate::store::{CreditMark, Scope, Spent};

/// The tables `spent` and `credit`.
pub(super) struct Counters<'a> {
    pub(super) connection: &'a Connection,
}

impl Counters<'_> {
    /// The latest day that anything was counted in, among those up to `last`.
    pub(super) fn latest_day(&self, last: Option<u64>) -> Result<Option<u64>, Fault> {
        let mut latest = self.connection.prepare_cached(
            "SELECT max(period) FROM spent WHERE scope = 'total' AND unit = 'day' AND period <= ?",
        )?;
        let last = column::signed(last.unwrap_or(u64::MAX));
        Ok(latest.query_row([last], |row| row.get(0))?)
    }

    pub(super) fn of(&self, scope: &Scope, today: Today) -> Result<Spent, Fault> {
        let mut read = self.connection.prepare_cached(
            "SELECT (SELECT micros FROM spent WHERE scope = ?1 AND unit = 'day' AND period = ?2),
                    (SELECT micros FROM spent WHERE scope = ?1 AND unit = 'month' AND period = ?3)",
        )?;
        let scope = match scope {
            Scope::Total => "total",
            Scope::Caller(caller) => &own(caller),
        };
        let spent = read.query_row(params![scope, today.day, today.month], |row| {
            let micros = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<u64>>(column)?);
            Ok(Spent {
                day: Usd::micros(micros(0)?.unwrap_or_default()),
                month: Usd::micros(micros(1)?.unwrap_or_default()),
                day_renews: today.day_ends(),
                month_renews: today.month_ends(),
            })
        })?;
        Ok(spent)
    }

    /// Moves all four counters of a purchase: it counted for `before`, and counts for `after`. An amount
    /// that cannot be counted breaks a constraint of the table.
    pub(super) fn change(
        &self,
        caller: &str,
        today: Today,
        before: Usd,
        after: Usd,
    ) -> Result<(), Fault> {
        // A counter is made even by a purchase that costs nothing: its day was counted in.
        if before == after && before != Usd::ZERO {
            return Ok(());
        }
        let mut write = self.connection.prepare_cached(
            "INSERT INTO spent (scope, unit, period, micros) VALUES
                ('total', 'day', ?2, ?4), ('total', 'month', ?3, ?4),
                (?1, 'day', ?2, ?4), (?1, 'month', ?3, ?4)
             ON CONFLICT DO UPDATE SET micros = micros - ?5 + excluded.micros",
        )?;
        let (before, after) = (before.as_micros(), after.as_micros());
        write.execute(params![own(caller), today.day, today.month, after, before])?;
        Ok(())
    }

    /// What the account's balance covers.
    pub(super) fn credit(&self) -> Result<Credit, Fault> {
        let mut read = self
            .connection
            .prepare_cached("SELECT held, spent, balance, since, as_of FROM credit")?;
        let credit = read.query_row([], |row| {
            let known = match row.get::<_, Option<u64>>(2)? {
                Some(balance) => Some(KnownBalance {
                    balance: Usd::micros(balance),
                    since: CreditMark(row.get(3)?),
                    as_of: column::moment(row, 4)?,
                }),
                None => None,
            };
            Ok(Credit { held: row.get(0)?, spent: row.get(1)?, known })
        })?;
        Ok(credit)
    }

    pub(super) fn set_credit(&self, credit: &Credit) -> Result<(), Fault> {
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

fn own(caller: &str) -> String {
    format!("caller {caller}")
}
