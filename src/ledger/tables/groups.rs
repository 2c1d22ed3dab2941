//! Groups, and the limits that the ledger itself keeps.

use std::sync::Arc;

use super::column::{exists, read, record, select, upsert};
use super::ledger::Ledger;
use crate::gateway::contract::terms::budget_text;
use crate::ledger::engine::{Result, Sql};
use crate::ledger::writer::Durability;
use crate::ledger::{
    Actor, BudgetScope, Group, GroupChange, GroupError, KeptLimit, Store, Unavailable,
};

record!(Group {
    name: "name",
    budget: "budget",
    members: "(SELECT count(*) FROM members WHERE group_name = groups.name AND revoked IS NULL)",
});

impl Store {
    /// Returns a group's limits, or what raises a caller's.
    pub async fn kept_limit(&self, scope: BudgetScope) -> Result<KeptLimit, Unavailable> {
        self.query("kept_limit", move |ledger| {
            let now = ledger.now();
            ledger.with_limits(|kept| match &scope {
                BudgetScope::Group(name) => KeptLimit { limit: kept.group(name), extra: None },
                BudgetScope::Caller(name) => {
                    KeptLimit { extra: kept.extra(name, now), ..KeptLimit::default() }
                }
                BudgetScope::Total | BudgetScope::Token(_) => KeptLimit::default(),
            })
        })
        .await
    }

    /// Returns all groups by name.
    pub async fn groups(&self) -> Result<Vec<Group>, Unavailable> {
        let all = select::<Group>("FROM groups ORDER BY name");
        self.query("groups", move |ledger| ledger.db.all(&all, (), read)).await
    }

    pub async fn change_group(
        &self,
        by: &Actor,
        name: Arc<str>,
        change: GroupChange,
    ) -> Result<(), GroupError> {
        let by = by.clone();
        let apply = move |ledger: &Ledger| ledger.change_group(&by, &name, change);
        self.run("change_group", Durability::Synced, apply).await?
    }
}

impl Ledger {
    fn change_group(
        &self,
        by: &Actor,
        name: &str,
        change: GroupChange,
    ) -> Result<Result<(), GroupError>> {
        let budget = "SELECT budget FROM groups WHERE name = ?";
        let before = self.db.first(budget, [name], read)?;
        // Also users of a login service with a session or a token.
        let members = "SELECT 1 FROM members WHERE group_name = ?1 AND revoked IS NULL UNION ALL
            SELECT 1 FROM subjects JOIN subject_logins AS login
                ON login.issuer = subjects.issuer AND login.subject = subjects.name
            WHERE group_name = ?1";
        let after = match change.apply(before, exists(&*self.db, members, [name])?) {
            Ok(after) => after,
            Err(refused) => return Ok(Err(refused)),
        };
        self.audit_group(by, name, change, (before, after))?;
        match after {
            Some(limit) => upsert!(self.db, groups (name: name) { budget: budget_text(limit) })?,
            None => self.db.run("DELETE FROM groups WHERE name = ?", [name])?,
        };
        self.forget_limits();
        Ok(Ok(()))
    }
}
