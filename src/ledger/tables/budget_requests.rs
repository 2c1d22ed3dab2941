//! Temporary raises of callers' limits, and callers' requests for them.

use std::sync::Arc;

use super::column::{insert, read, record, select, signed};
use super::ledger::Ledger;
use crate::gateway::contract::money::Usd;
use crate::gateway::contract::terms::amount_text;
use crate::ledger::audit_log::{DECLINE, GRANT, RAISE_MEMBER, extra_text};
use crate::ledger::engine::{Result, Sql, params};
use crate::ledger::writer::Durability;
use crate::ledger::{Actor, BudgetRequest, Extra, Store, Unavailable};

record!(BudgetRequest {
    id: "number",
    caller: "caller",
    amount: "micros",
    reason: "reason",
    at: "at",
});

impl Store {
    /// Keeps a caller's request for more budget. An earlier one is replaced.
    pub async fn ask_for_budget(
        &self,
        caller: Arc<str>,
        amount: Usd,
        reason: Arc<str>,
    ) -> Result<BudgetRequest, Unavailable> {
        let ask = move |ledger: &Ledger| {
            let (db, at) = (&ledger.db, ledger.now());
            db.run("DELETE FROM budget_requests WHERE caller = ?", [&caller])?;
            insert!(
                db,
                budget_requests { caller: caller, micros: amount, reason: reason, at: at }
            )?;
            let kept = select::<BudgetRequest>("FROM budget_requests WHERE caller = ?");
            db.one(&kept, [&caller], read)
        };
        self.run("ask_for_budget", Durability::Synced, ask).await
    }

    /// Returns the open requests, the earliest first.
    pub async fn budget_requests(&self) -> Result<Vec<BudgetRequest>, Unavailable> {
        let all = select::<BudgetRequest>("FROM budget_requests ORDER BY number");
        self.query("budget_requests", move |ledger| ledger.db.all(&all, (), read)).await
    }

    /// Ends a request, and raises the caller's limits if it is granted. Returns whether there
    /// was one.
    pub async fn answer_budget_request(
        &self,
        by: Actor,
        id: u64,
        granted: Option<Extra>,
    ) -> Result<bool, Unavailable> {
        let answer = move |ledger: &Ledger| {
            let take = "DELETE FROM budget_requests WHERE number = ? RETURNING caller, micros";
            let asked: Option<(Arc<str>, Usd)> = ledger.db.first(take, [signed(id)], read)?;
            let Some((caller, asked)) = asked else { return Ok(false) };
            if let Some(extra) = granted {
                ledger.add_extra(&caller, extra)?;
            }
            let act = if granted.is_some() { GRANT } else { DECLINE };
            let (old, new) = (Some(amount_text(asked)), granted.map(extra_text));
            ledger.audit(&by, (act, &caller), old, new)?;
            Ok(true)
        };
        self.run("answer_budget_request", Durability::Synced, answer).await
    }

    /// Raises a caller's limits for a time, or ends all that raises them.
    pub async fn change_extras(
        &self,
        by: Actor,
        caller: Arc<str>,
        extra: Option<Extra>,
    ) -> Result<(), Unavailable> {
        let change = move |ledger: &Ledger| ledger.change_extras(&by, &caller, extra);
        self.run("change_extras", Durability::Synced, change).await
    }
}

impl Ledger {
    /// Raises a caller's limits for a time, or ends all that raises them.
    pub(super) fn change_extras(
        &self,
        by: &Actor,
        caller: &str,
        extra: Option<Extra>,
    ) -> Result<()> {
        if let Some(extra) = extra {
            self.add_extra(caller, extra)?;
        } else {
            let end = "UPDATE extras SET until = ?1 WHERE caller = ?2 AND until > ?1";
            if self.db.run(end, params![self.now(), caller])? == 0 {
                return Ok(());
            }
            self.forget_limits();
        }
        self.audit(by, (RAISE_MEMBER, caller), None, extra.map(extra_text))
    }

    fn add_extra(&self, caller: &str, Extra { amount, until }: Extra) -> Result<()> {
        insert!(self.db, extras { caller: caller, micros: amount, until: until, at: self.now() })?;
        self.forget_limits();
        Ok(())
    }
}
