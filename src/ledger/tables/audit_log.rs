//! The audit log.

use std::time::Duration;

use super::column::{self, nanos};
use super::ledger::Ledger;
use crate::ledger::audit_log::{
    self, ADD_GROUP, ADD_MEMBER, CHANGE_GROUP, NewValue, RAISE_MEMBER, REMOVE_GROUP,
    RESOLVE_PURCHASE, REVOKE_MEMBER,
};
use crate::ledger::engine::{Engine, Result, Sql, params};
use crate::ledger::writer::Durability;
use crate::ledger::{
    Actor, AuditEntry, AuditQuery, Caller, GroupChange, Member, MemberChange, PurchaseId,
    PurchaseState, Settlement, SpendLimit, Store, Unavailable,
};

const WRITE: &str = "INSERT INTO audit (at, by, act, of, old, new) VALUES (?, ?, ?, ?, ?, ?)";
const READ: &str = "SELECT number, at, by, act, of, old, new FROM audit
    WHERE number < ?1 AND at >= ?2 ORDER BY number DESC LIMIT ?3";

impl Store {
    /// Returns entries of the audit log, the latest first.
    pub async fn audit_log(
        &self,
        AuditQuery { before, since, most }: AuditQuery,
    ) -> Result<Vec<AuditEntry>, Unavailable> {
        self.run_report("audit_log", move |db| {
            let before = before.map_or(i64::MAX, column::signed);
            let values = params![before, nanos(since), column::signed(most)];
            db.all(READ, values, |row| {
                Ok(AuditEntry {
                    id: row.get(0)?,
                    at: column::moment(row, 1)?,
                    by: row.get(2)?,
                    act: row.get(3)?,
                    of: row.get(4)?,
                    old: row.get(5)?,
                    new: row.get(6)?,
                })
            })
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
            let act = (RESOLVE_PURCHASE, &*purchase.caller);
            let (by, values) = ((&by, ledger.now()), (Some("unknown"), Some(&*new)));
            write(&*ledger.db, by, act, values)
        };
        self.run("resolve", Durability::Synced, resolve).await
    }
}

/// Writes one act.
pub(super) fn write(
    db: &dyn Engine,
    (by, now): (&Actor, Duration),
    (act, of): (&str, &str),
    (old, new): (Option<&str>, Option<&str>),
) -> Result<()> {
    db.run(WRITE, params![nanos(now), by.name(), act, of, old, new])?;
    Ok(())
}

/// Writes what a change does to a member. `before` is the member without it.
pub(super) fn write_member_change(
    db: &dyn Engine,
    by: (&Actor, Duration),
    (name, before): (&str, Option<&Member>),
    change: &MemberChange,
) -> Result<()> {
    let of = Caller::Member(name.into()).name();
    if let MemberChange::Add(member) = change {
        let new = audit_log::describe(member);
        write(db, by, (ADD_MEMBER, &of), (None, Some(&new)))?;
    }
    let Some(before) = before else { return Ok(()) };
    if matches!(change, MemberChange::Revoke) && before.revoked_at.is_none() {
        write(db, by, (REVOKE_MEMBER, &of), (None, None))?;
    }
    if let MemberChange::Extra(extra) = change {
        let new = audit_log::extra_text(*extra);
        write(db, by, (RAISE_MEMBER, &of), (None, Some(&new)))?;
    }
    if matches!(change, MemberChange::EndExtras) {
        let in_force = "SELECT 1 FROM extras WHERE caller = ? AND until > ?";
        if db.first(in_force, params![of, nanos(by.1)], |_| Ok(()))?.is_some() {
            write(db, by, (RAISE_MEMBER, &of), (None, None))?;
        }
    }
    for (field, new) in audit_log::changed_fields(change) {
        let old = field.text(before);
        let new = match new {
            NewValue::Text(text) => text,
            NewValue::Budget(change) => audit_log::budget_text(change.apply(before.own_budget)),
        };
        if old != new {
            write(db, by, (field.act(), &of), (old.as_deref(), new.as_deref()))?;
        }
    }
    Ok(())
}

/// Writes what a change does to a group, and to its budget.
pub(super) fn write_group_change(
    db: &dyn Engine,
    by: (&Actor, Duration),
    (name, change): (&str, GroupChange),
    (old, new): (SpendLimit, SpendLimit),
) -> Result<()> {
    let (old, new) = (audit_log::budget_text(old), audit_log::budget_text(new));
    let act = match change {
        GroupChange::Add(_) => ADD_GROUP,
        GroupChange::Update(_) => CHANGE_GROUP,
        GroupChange::Remove => REMOVE_GROUP,
    };
    if act == CHANGE_GROUP && old == new {
        return Ok(());
    }
    write(db, by, (act, &audit_log::group(name)), (old.as_deref(), new.as_deref()))
}
