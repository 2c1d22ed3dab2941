//! The limits that the ledger itself keeps: those of groups, and what raises a caller's.

use std::collections::HashMap;
use std::time::Duration;

use super::column::{self, nanos};
use crate::contract::money::Usd;
use crate::ledger::engine::{Engine, Result, Row, Sql, StoreError, params};
use crate::ledger::{Extra, SpendLimit};

/// In memory, so that a purchase reads no table for them.
pub(super) struct KeptLimits {
    groups: HashMap<Box<str>, SpendLimit>,
    /// By caller.
    extras: HashMap<Box<str>, Vec<Extra>>,
}

impl KeptLimits {
    /// Returns the limits of a group. One that was never added has none.
    pub(super) fn group(&self, name: &str) -> SpendLimit {
        self.groups.get(name).copied().unwrap_or_default()
    }

    /// Returns the sum of a caller's extras that are in force, until the first of them ends.
    pub(super) fn extra(&self, caller: &str, now: Duration) -> Option<Extra> {
        let in_force = self.extras.get(caller)?.iter().filter(|extra| extra.until > now);
        in_force.copied().reduce(|sum, extra| Extra {
            amount: Usd::micros(sum.amount.as_micros().saturating_add(extra.amount.as_micros())),
            until: sum.until.min(extra.until),
        })
    }

    pub(super) fn read(db: &dyn Engine) -> Result<Self> {
        let groups = "SELECT name, day_micros, week_micros, month_micros, ever_micros FROM groups";
        let read = |row: &Row<'_>| Ok((row.get::<String>(0)?.into_boxed_str(), limit(row, 1)?));
        let groups = db.all(groups, (), read)?.into_iter().collect();
        let all = db.all("SELECT caller, micros, until FROM extras", (), |row| {
            let (amount, until) = (column::money(row, 1)?, column::moment(row, 2)?);
            Ok((row.get::<String>(0)?.into_boxed_str(), Extra { amount, until }))
        })?;
        let mut extras = HashMap::<_, Vec<_>>::new();
        for (caller, extra) in all {
            extras.entry(caller).or_default().push(extra);
        }
        Ok(Self { groups, extras })
    }
}

pub(super) fn add_extra(
    db: &dyn Engine,
    caller: &str,
    Extra { amount, until }: Extra,
    now: Duration,
) -> Result<()> {
    let insert = "INSERT INTO extras (caller, micros, until, at) VALUES (?, ?, ?, ?)";
    let amount = column::signed(amount.as_micros());
    db.run(insert, params![caller, amount, nanos(until), nanos(now)])?;
    Ok(())
}

/// Ends the extras of a caller that are in force, and returns their number.
pub(super) fn end_extras(db: &dyn Engine, caller: &str, now: Duration) -> Result<usize> {
    let end = "UPDATE extras SET until = ?1 WHERE caller = ?2 AND until > ?1";
    db.run(end, params![nanos(now), caller])
}

/// Reads the amounts of a day, a week, a month and ever from four columns.
pub(super) fn limit(row: &Row<'_>, first: usize) -> Result<SpendLimit> {
    let amount = |at| Ok::<_, StoreError>(row.get::<Option<u64>>(at)?.map(Usd::micros));
    Ok(SpendLimit {
        day: amount(first)?,
        week: amount(first + 1)?,
        month: amount(first + 2)?,
        ever: amount(first + 3)?,
    })
}
