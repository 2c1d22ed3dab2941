//! The table `spent`: what counts as spent, by scope, in each UTC day and month.
//!
//! Counters stay in memory. A transaction writes each one that changed once, however many purchases
//! it contains.

use std::borrow::Cow;
use std::collections::HashMap;

use rusqlite::{Connection, params};

use super::Result;
use super::column::{self, Sql};
use super::statements::Statements;
use crate::contract::money::Usd;
use crate::store::rules::{Today, checked_sum};
use crate::store::{BudgetScope, Unavailable};

/// Beyond this number, all are read again.
const MAX_COUNTERS: usize = 40_000;

/// Whose spending a counter is. Its name in the table is only made when it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope<'a> {
    Total,
    Caller(&'a str),
}

impl Scope<'_> {
    fn name(self) -> Cow<'static, str> {
        match self {
            Self::Total => "total".into(),
            Self::Caller(caller) => format!("caller {caller}").into(),
        }
    }
}

impl<'a> From<&'a BudgetScope> for Scope<'a> {
    fn from(scope: &'a BudgetScope) -> Self {
        match scope {
            BudgetScope::Total => Self::Total,
            BudgetScope::Caller(caller) => Self::Caller(caller),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Period {
    Day(u64),
    Month(u64),
}

impl Period {
    fn columns(self) -> (&'static str, u64) {
        match self {
            Self::Day(day) => ("day", day),
            Self::Month(month) => ("month", month),
        }
    }
}

struct Counter {
    scope: Cow<'static, str>,
    period: Period,
    spent: Usd,
    /// Whether the table has this value.
    is_saved: bool,
}

#[derive(Default)]
pub(super) struct Counters {
    all: Vec<Counter>,
    totals: Vec<usize>,
    by_caller: HashMap<Box<str>, Vec<usize>>,
    unsaved: Vec<usize>,
    /// The latest day that has a counter, once it was read.
    latest_day: Option<Option<u64>>,
}

impl Counters {
    /// Reads the table again, because a rollback or another process has changed it.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns what a scope has spent in this day and its month.
    pub(super) fn get(
        &mut self,
        connection: &Connection,
        scope: Scope<'_>,
        today: Today,
    ) -> Result<(Usd, Usd)> {
        let day = self.counter(connection, scope, Period::Day(today.day))?;
        let month = self.counter(connection, scope, Period::Month(today.month))?;
        let spent =
            |index| self.all.get(index).map_or(Usd::ZERO, |counter: &Counter| counter.spent);
        Ok((spent(day), spent(month)))
    }

    /// Changes a purchase's share of a scope's two counters from `before` to `after`.
    pub(super) fn change(
        &mut self,
        connection: &Connection,
        scope: Scope<'_>,
        today: Today,
        (before, after): (Usd, Usd),
    ) -> Result<()> {
        for period in [Period::Day(today.day), Period::Month(today.month)] {
            let index = self.counter(connection, scope, period)?;
            let Some(counter) = self.all.get_mut(index) else { continue };
            let others = counter.spent.checked_sub(before);
            counter.spent = others
                .and_then(|others| checked_sum(others, after))
                .ok_or_else(|| Unavailable("a spending counter is out of range".into()))?;
            if std::mem::replace(&mut counter.is_saved, false) {
                self.unsaved.push(index);
            }
        }
        if scope == Scope::Total {
            self.latest_day = self.latest_day.map(|latest| latest.max(Some(today.day)));
        }
        Ok(())
    }

    /// Writes the counters that changed since the last call.
    pub(super) fn save(&mut self, statements: &Statements<'_>) -> Result<()> {
        for index in self.unsaved.drain(..) {
            let Some(counter) = self.all.get_mut(index) else { continue };
            // One row a statement: several would need a statement journal.
            let write = "INSERT INTO spent (scope, unit, period, micros) VALUES (?, ?, ?, ?)
                ON CONFLICT DO UPDATE SET micros = excluded.micros";
            let (unit, period) = counter.period.columns();
            let values = params![
                &*counter.scope,
                unit,
                column::signed(period),
                column::signed(counter.spent.as_micros())
            ];
            statements.run(write, values)?;
            counter.is_saved = true;
        }
        if self.all.len() > MAX_COUNTERS {
            self.forget();
        }
        Ok(())
    }

    /// Returns the position of a counter, which is read if it is not known yet.
    fn counter(
        &mut self,
        connection: &Connection,
        scope: Scope<'_>,
        period: Period,
    ) -> Result<usize> {
        let known = match scope {
            Scope::Total => Some(&self.totals),
            Scope::Caller(caller) => self.by_caller.get(caller),
        };
        let known = known.into_iter().flatten().copied();
        let is_it = |index: &usize| self.all.get(*index).is_some_and(|one| one.period == period);
        if let Some(index) = known.rev().find(is_it) {
            return Ok(index);
        }
        let read = "SELECT micros FROM spent WHERE scope = ? AND unit = ? AND period = ?";
        let (unit, number) = period.columns();
        let name = scope.name();
        let values = params![&*name, unit, column::signed(number)];
        let found = connection.first(read, values, |row| column::money(row, 0))?;
        let index = self.all.len();
        self.all.push(Counter {
            scope: name,
            period,
            spent: found.unwrap_or_default(),
            is_saved: true,
        });
        let of_scope = match scope {
            Scope::Total => &mut self.totals,
            Scope::Caller(caller) => self.by_caller.entry(caller.into()).or_default(),
        };
        of_scope.push(index);
        Ok(index)
    }

    pub(super) fn latest_day(&mut self, connection: &Connection) -> Result<Option<u64>> {
        if let Some(latest) = self.latest_day {
            return Ok(latest);
        }
        let latest = latest_day_until(connection, u64::MAX)?;
        self.latest_day = Some(latest);
        Ok(latest)
    }
}

pub(super) fn latest_day_until(connection: &Connection, last: u64) -> Result<Option<u64>> {
    let latest =
        "SELECT max(period) FROM spent WHERE scope = 'total' AND unit = 'day' AND period <= ?";
    let day = connection.first(latest, [column::signed(last)], |row| row.get(0))?;
    Ok(day.flatten())
}
