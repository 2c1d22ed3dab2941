//! The audit log.

use super::column::{insert, read, record, select, signed};
use super::ledger::Ledger;
use crate::gateway::contract::terms::budget_text;
use crate::ledger::audit_log::{ADD_MEMBER, RESOLVE_PURCHASE, REVOKE_MEMBER, fields};
use crate::ledger::engine::{Result, Sql, params};
use crate::ledger::writer::Durability;
use crate::ledger::{
    Actor, AuditEntry, AuditQuery, GroupChange, Member, PurchaseId, PurchaseState, Settlement,
    SpendLimit, Store, Unavailable,
};

record!(AuditEntry {
    id: "number",
    at: "at",
    by: "by",
    act: "act",
    of: "of",
    old: "old",
    new: "new",
});

impl Store {
    /// Returns entries of the audit log, the latest first.
    pub async fn audit_log(
        &self,
        AuditQuery { before, since, most }: AuditQuery,
    ) -> Result<Vec<AuditEntry>, Unavailable> {
        let entries = select::<AuditEntry>(
            "FROM audit WHERE number < ? AND at >= ? ORDER BY number DESC LIMIT ?",
        );
        self.run_report("audit_log", move |db| {
            let before = before.map_or(i64::MAX, signed);
            db.all(&entries, params![before, since, signed(most)], read)
        })
        .await
    }

    /// Settles a purchase whose outcome is unknown. The audit log says who did, and `new`.
    pub async fn resolve(
        &self,
        by: Actor,
        id: PurchaseId,
        settlement: Settlement,
        new: String,
    ) -> Result<(), Unavailable> {
        let resolve = move |ledger: &Ledger| {
            let purchase = ledger.purchase(id)?;
            let Some(purchase) = purchase.filter(|it| it.state == PurchaseState::Unknown) else {
                return Ok(());
            };
            ledger.settle(id, &settlement)?;
            let (old, new) = (Some("unknown".to_owned()), Some(new.clone()));
            ledger.audit(&by, (RESOLVE_PURCHASE, &purchase.caller), old, new)
        };
        self.run("resolve", Durability::Synced, resolve).await
    }
}

impl Ledger {
    /// Writes one act.
    pub(super) fn audit(
        &self,
        by: &Actor,
        (act, of): (&str, &str),
        old: Option<String>,
        new: Option<String>,
    ) -> Result<()> {
        let (at, by) = (self.now(), by.name());
        insert!(self.db, audit { at: at, by: by, act: act, of: of, old: old, new: new }).map(drop)
    }

    /// Writes what a change does to a member.
    pub(super) fn audit_member(
        &self,
        by: &Actor,
        of: &str,
        before: Option<&Member>,
        after: &Member,
    ) -> Result<()> {
        let Some(before) = before else {
            return self.audit(by, (ADD_MEMBER, of), None, Some(after.terms.to_string()));
        };
        if before.revoked_at != after.revoked_at {
            self.audit(by, (REVOKE_MEMBER, of), None, None)?;
        }
        for ((act, old), (_, new)) in fields(before).zip(fields(after)) {
            if old != new {
                self.audit(by, (&act, of), old, new)?;
            }
        }
        Ok(())
    }

    /// Writes what a change does to a group, and to its budget.
    pub(super) fn audit_group(
        &self,
        by: &Actor,
        name: &str,
        change: GroupChange,
        (before, after): (Option<SpendLimit>, Option<SpendLimit>),
    ) -> Result<()> {
        if matches!(change, GroupChange::Update(_)) && before == after {
            return Ok(());
        }
        let text = |limit: Option<SpendLimit>| limit.filter(|it| !it.is_none()).map(budget_text);
        self.audit(by, (change.act(), &format!("group:{name}")), text(before), text(after))
    }
}
