//! The table `spent`: what counts as spent, by scope, in each UTC day and month.
//!
//! Counters stay in memory. A transaction writes each one that changed once, however many purchases
//! it contains.

use std::borrow::Cow;

use super::column::{read, upsert};
use crate::gateway::contract::money::{Period, Usd};
use crate::ledger::engine::{Engine, Result, Sql, params};
use crate::ledger::rules::{MAX_AMOUNT, Today, checked_sum};
use crate::ledger::{BudgetScope, ScopeKind, Unavailable};
use crate::sync::FastMap;

/// Beyond this number, all are read again.
const MAX_COUNTERS: usize = 40_000;

/// The owner of a spending counter. Its name in the table is only made when it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scope<'a> {
    pub(super) kind: ScopeKind,
    pub(super) name: &'a str,
}

impl<'a> Scope<'a> {
    pub(super) const TOTAL: Scope<'static> = Scope { kind: ScopeKind::Total, name: "" };

    pub(super) fn caller(name: &'a str) -> Self {
        Self { kind: ScopeKind::Caller, name }
    }

    fn written(self) -> Cow<'static, str> {
        match self.kind {
            ScopeKind::Total => "total".into(),
            ScopeKind::Group | ScopeKind::Caller | ScopeKind::Token => {
                format!("{} {}", self.kind.name(), self.name).into()
            }
        }
    }
}

impl<'a> From<&'a BudgetScope> for Scope<'a> {
    fn from(scope: &'a BudgetScope) -> Self {
        Self { kind: scope.kind(), name: scope.name() }
    }
}

/// A row of the table for each day and month; all other periods are sums of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Unit {
    Day(u64),
    Month(u64),
    /// Only in memory: the sum of all months.
    Ever,
}

impl Unit {
    fn columns(self) -> Option<(&'static str, u64)> {
        match self {
            Self::Day(day) => Some(("day", day)),
            Self::Month(month) => Some(("month", month)),
            Self::Ever => None,
        }
    }
}

struct Counter {
    scope: Cow<'static, str>,
    unit: Unit,
    spent: Usd,
    /// Whether the table has this value.
    is_saved: bool,
}

#[derive(Default)]
pub(super) struct Counters {
    all: Vec<Counter>,
    /// The positions in `all`, by kind and name of the scope.
    by_name: [FastMap<Box<str>, Vec<usize>>; ScopeKind::ALL.len()],
    unsaved: Vec<usize>,
    /// The latest day that has a counter, once it was read.
    latest_day: Option<Option<u64>>,
}

impl Counters {
    /// Reads the table again, because a rollback or another process has changed it.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns what a scope has spent in a period that contains this day.
    pub(super) fn get(
        &mut self,
        db: &dyn Engine,
        scope: Scope<'_>,
        period: Period,
        today: Today,
    ) -> Result<Usd> {
        match period {
            Period::Day => self.value(db, scope, Unit::Day(today.day)),
            Period::Month => self.value(db, scope, Unit::Month(today.month)),
            Period::Ever => self.value(db, scope, Unit::Ever),
            Period::Week => today.week().try_fold(Usd::ZERO, |sum, day| {
                let day = self.value(db, scope, Unit::Day(day))?;
                Ok(sum.checked_add(day).unwrap_or(MAX_AMOUNT))
            }),
        }
    }

    fn value(&mut self, db: &dyn Engine, scope: Scope<'_>, unit: Unit) -> Result<Usd> {
        let index = self.counter(db, scope, unit)?;
        Ok(self.all.get(index).map_or(Usd::ZERO, |counter| counter.spent))
    }

    /// Changes a purchase's share of a scope's counters from `before` to `after`.
    pub(super) fn change(
        &mut self,
        db: &dyn Engine,
        scope: Scope<'_>,
        today: Today,
        (before, after): (Usd, Usd),
    ) -> Result<()> {
        let day = self.counter(db, scope, Unit::Day(today.day))?;
        let month = self.counter(db, scope, Unit::Month(today.month))?;
        let ever = self.known(scope, Unit::Ever);
        for index in [Some(day), Some(month), ever].into_iter().flatten() {
            let Some(counter) = self.all.get_mut(index) else { continue };
            let others = counter.spent.checked_sub(before);
            counter.spent = others
                .and_then(|others| checked_sum(others, after))
                .ok_or_else(|| Unavailable("a spending counter is out of range".into()))?;
            if counter.unit != Unit::Ever && std::mem::replace(&mut counter.is_saved, false) {
                self.unsaved.push(index);
            }
        }
        if scope.kind == ScopeKind::Total {
            self.latest_day = self.latest_day.map(|latest| latest.max(Some(today.day)));
        }
        Ok(())
    }

    /// Writes the counters that changed since the last call.
    pub(super) fn save(&mut self, db: &dyn Engine) -> Result<()> {
        for index in self.unsaved.drain(..) {
            let Some(counter) = self.all.get_mut(index) else { continue };
            let Some((unit, period)) = counter.unit.columns() else { continue };
            // One row a statement: several would need a statement journal.
            upsert!(db, spent (scope: &*counter.scope, unit: unit, period: period) {
                micros: counter.spent,
            })?;
            counter.is_saved = true;
        }
        if self.all.len() > MAX_COUNTERS {
            self.forget();
        }
        Ok(())
    }

    fn known(&self, scope: Scope<'_>, unit: Unit) -> Option<usize> {
        let known = self.by_name.get(scope.kind as usize)?.get(scope.name)?;
        let is_it = |index: &usize| self.all.get(*index).is_some_and(|one| one.unit == unit);
        known.iter().copied().rev().find(is_it)
    }

    /// Returns the position of a counter, which is read if it is not known yet.
    fn counter(&mut self, db: &dyn Engine, scope: Scope<'_>, unit: Unit) -> Result<usize> {
        if let Some(index) = self.known(scope, unit) {
            return Ok(index);
        }
        let name = scope.written();
        let found = match unit.columns() {
            Some((unit, number)) => {
                let sql = "SELECT micros FROM spent WHERE scope = ? AND unit = ? AND period = ?";
                db.first(sql, params![name, unit, number], read)?
            }
            None => {
                // The table does not have the counts of this transaction yet.
                self.save(db)?;
                let sql = "SELECT CAST(coalesce(sum(micros), 0) AS BIGINT) FROM spent
                    WHERE scope = ? AND unit = 'month'";
                db.first(sql, [&name], read)?
            }
        };
        let index = self.all.len();
        let spent = found.unwrap_or_default();
        self.all.push(Counter { scope: name, unit, spent, is_saved: true });
        if let Some(named) = self.by_name.get_mut(scope.kind as usize) {
            named.entry(scope.name.into()).or_default().push(index);
        }
        Ok(index)
    }

    pub(super) fn latest_day(&mut self, db: &dyn Engine) -> Result<Option<u64>> {
        if let Some(latest) = self.latest_day {
            return Ok(latest);
        }
        let latest = latest_day_until(db, i64::MAX.unsigned_abs())?;
        self.latest_day = Some(latest);
        Ok(latest)
    }
}

pub(super) fn latest_day_until(db: &dyn Engine, last: u64) -> Result<Option<u64>> {
    let latest =
        "SELECT max(period) FROM spent WHERE scope = 'total' AND unit = 'day' AND period <= ?";
    db.one(latest, [last], read)
}
