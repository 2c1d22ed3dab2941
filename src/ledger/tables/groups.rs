//! Groups and extras, as they are read and changed.

use std::sync::Arc;

use super::audit_log;
use super::ledger::Ledger;
use super::limits;
use crate::contract::money::Usd;
use crate::ledger::engine::{Result, Sql, params};
use crate::ledger::writer::Durability;
use crate::ledger::{
    Actor, BudgetScope, Group, GroupChange, GroupError, KeptLimit, Period, SpendLimit, Store,
    Unavailable,
};

impl Store {
    /// Returns a group's limits, or what raises a caller's.
    pub async fn kept_limit(&self, scope: BudgetScope) -> Result<KeptLimit, Unavailable> {
        self.query("kept_limit", move |ledger| {
            Ok(match &scope {
                BudgetScope::Group(name) => {
                    KeptLimit { limit: ledger.with_limits(|kept| kept.group(name))?, extra: None }
                }
                BudgetScope::Caller(name) => {
                    let now = ledger.now();
                    let extra = ledger.with_limits(|kept| kept.extra(name, now))?;
                    KeptLimit { limit: SpendLimit::NONE, extra }
                }
                BudgetScope::Total | BudgetScope::Token(_) => KeptLimit::default(),
            })
        })
        .await
    }

    /// Returns all groups by name.
    pub async fn groups(&self) -> Result<Vec<Group>, Unavailable> {
        let all = "SELECT name, day_micros, week_micros, month_micros, ever_micros,
                (SELECT count(*) FROM members WHERE group_name = groups.name AND revoked IS NULL)
            FROM groups ORDER BY name";
        self.query("groups", move |ledger| {
            ledger.db.all(all, (), |row| {
                let budget = limits::limit(row, 1)?;
                Ok(Group { name: row.get(0)?, budget, members: row.get(5)? })
            })
        })
        .await
    }

    pub async fn change_group(
        &self,
        by: &Actor,
        name: Arc<str>,
        change: GroupChange,
    ) -> Result<(), GroupError> {
        let by = by.clone();
        let step = move |ledger: &Ledger| ledger.change_group(&by, &name, change);
        self.run("change_group", Durability::Synced, step).await?
    }
}

impl Ledger {
    fn change_group(
        &self,
        by: &Actor,
        name: &str,
        change: GroupChange,
    ) -> Result<Result<(), GroupError>> {
        // Also users of a login service with a session or a token.
        let known = "SELECT EXISTS (SELECT 1 FROM groups WHERE name = ?1),
            EXISTS (SELECT 1 FROM members WHERE group_name = ?1 AND revoked IS NULL)
            OR EXISTS (SELECT 1 FROM subjects JOIN subject_logins AS login
                ON login.issuer = subjects.issuer AND login.subject = subjects.name
                WHERE group_name = ?1)";
        let known = self.db.one(known, [name], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if let Err(refused) = change.check(known) {
            return Ok(Err(refused));
        }
        let budget =
            "SELECT day_micros, week_micros, month_micros, ever_micros FROM groups WHERE name = ?";
        let old = self.db.first(budget, [name], |row| limits::limit(row, 0))?;
        let old = old.unwrap_or_default();
        let new = match change {
            GroupChange::Add(limit) => Some(limit),
            GroupChange::Update(change) => Some(change.apply(old)),
            GroupChange::Remove => None,
        };
        let (by, limits) = ((by, self.now()), (old, new.unwrap_or_default()));
        audit_log::write_group_change(&*self.db, by, (name, change), limits)?;
        if let Some(limit) = new {
            let [day, week, month, ever] =
                Period::ALL.map(|period| limit.get(period).map(Usd::as_micros));
            let write = "INSERT INTO groups
                (name, day_micros, week_micros, month_micros, ever_micros) VALUES (?, ?, ?, ?, ?)
                ON CONFLICT (name) DO UPDATE SET day_micros = excluded.day_micros,
                    week_micros = excluded.week_micros, month_micros = excluded.month_micros,
                    ever_micros = excluded.ever_micros";
            self.db.run(write, params![name, day, week, month, ever])?;
        } else {
            self.db.run("DELETE FROM groups WHERE name = ?", [name])?;
        }
        self.forget_limits();
        Ok(Ok(()))
    }
}
