//! Requests for more budget.

use std::sync::Arc;

use super::column::{self, nanos};
use super::ledger::Ledger;
use super::{audit_log, limits};
use crate::contract::money::Usd;
use crate::ledger::audit_log::{RAISE_MEMBER, amount_text, extra_text};
use crate::ledger::budget_requests::{DECLINE, GRANT};
use crate::ledger::engine::{Result, Row, Sql, params};
use crate::ledger::writer::Durability;
use crate::ledger::{Actor, BudgetRequest, Extra, Store, Unavailable};

const OPEN: &str = "SELECT number, caller, micros, reason, at FROM budget_requests ORDER BY number";

impl Store {
    /// Keeps a caller's request for more budget. An earlier one is replaced.
    pub async fn ask_for_budget(
        &self,
        caller: Arc<str>,
        amount: Usd,
        reason: Arc<str>,
    ) -> Result<BudgetRequest, Unavailable> {
        let step = move |ledger: &Ledger| {
            let (db, at) = (&*ledger.db, ledger.now());
            db.run("DELETE FROM budget_requests WHERE caller = ?", [&caller])?;
            let insert = "INSERT INTO budget_requests (caller, micros, reason, at)
                VALUES (?, ?, ?, ?) RETURNING number";
            let micros = column::signed(amount.as_micros());
            let values = params![caller, micros, reason, nanos(at)];
            let id = db.one(insert, values, |row| row.get(0))?;
            let (caller, reason) = (Arc::clone(&caller), Arc::clone(&reason));
            Ok(BudgetRequest { id, caller, amount, reason, at })
        };
        self.run("ask_for_budget", Durability::Synced, step).await
    }

    /// Returns the open requests, the earliest first.
    pub async fn budget_requests(&self) -> Result<Vec<BudgetRequest>, Unavailable> {
        self.query("budget_requests", |ledger| {
            ledger.db.all(OPEN, (), |row: &Row<'_>| {
                Ok(BudgetRequest {
                    id: row.get(0)?,
                    caller: row.get(1)?,
                    amount: column::money(row, 2)?,
                    reason: row.get(3)?,
                    at: column::moment(row, 4)?,
                })
            })
        })
        .await
    }

    /// Ends a request, and raises the caller's limits if it is granted. Returns whether there
    /// was one.
    pub async fn answer_budget_request(
        &self,
        by: Actor,
        id: u64,
        granted: Option<Extra>,
    ) -> Result<bool, Unavailable> {
        let step = move |ledger: &Ledger| {
            let (db, now) = (&*ledger.db, ledger.now());
            let take = "DELETE FROM budget_requests WHERE number = ? RETURNING caller, micros";
            let asked = db.first(take, [column::signed(id)], |row| {
                Ok((row.get::<Arc<str>>(0)?, column::money(row, 1)?))
            })?;
            let Some((caller, asked)) = asked else { return Ok(false) };
            if let Some(extra) = granted {
                limits::add_extra(db, &caller, extra, now)?;
                ledger.forget_limits();
            }
            let act = if granted.is_some() { GRANT } else { DECLINE };
            let (old, new) = (amount_text(asked), granted.map(extra_text));
            let values = (Some(old.as_str()), new.as_deref());
            audit_log::write(db, (&by, now), (act, &caller), values)?;
            Ok(true)
        };
        self.run("answer_budget_request", Durability::Synced, step).await
    }

    /// Raises a caller's limits for a time, or ends all that raises them.
    pub async fn change_extras(
        &self,
        by: Actor,
        caller: Arc<str>,
        extra: Option<Extra>,
    ) -> Result<(), Unavailable> {
        let step = move |ledger: &Ledger| {
            let (db, now) = (&*ledger.db, ledger.now());
            let is_changed = match extra {
                Some(extra) => limits::add_extra(db, &caller, extra, now).map(|()| true)?,
                None => limits::end_extras(db, &caller, now)? > 0,
            };
            if is_changed {
                let new = extra.map(extra_text);
                let act = (RAISE_MEMBER, &*caller);
                audit_log::write(db, (&by, now), act, (None, new.as_deref()))?;
                ledger.forget_limits();
            }
            Ok(())
        };
        self.run("change_extras", Durability::Synced, step).await
    }
}
