//! Raises budgets for a time: on an admin's own account, or when a caller asked for more.

use super::{People, unavailable};
use crate::clock::Date;
use crate::gate::problem::{NOT_FOUND, Problem};
use crate::gateway::contract::money::Usd;
use crate::ledger::{Actor, BudgetRequest, Caller, Extra, MemberChange};

impl People {
    /// Raises a member's limits until the end of a UTC day.
    pub async fn raise_member(
        &self,
        by: &Caller,
        name: &str,
        (amount, until): (Usd, Date),
    ) -> Result<(), Problem> {
        let extra = MemberChange::Extra(Some(Extra::through(amount, until)));
        self.change_member(by, name, extra, None).await
    }

    /// Keeps a caller's request for more budget. An earlier one is replaced.
    pub async fn ask_for_budget(
        &self,
        by: &Caller,
        amount: Usd,
        reason: String,
    ) -> Result<BudgetRequest, Problem> {
        if !by.is_known() {
            let detail = "only members and users of a login can ask for more budget";
            return Err(Problem::new(&NOT_FOUND).detail(detail));
        }
        self.store.ask_for_budget(by.name(), amount, reason.into()).await.map_err(unavailable)
    }

    /// Grants a request until the end of a UTC day, or declines it. Either way it is gone.
    pub async fn answer_budget_request(
        &self,
        by: &Caller,
        id: &str,
        granted: Option<(Usd, Date)>,
    ) -> Result<(), Problem> {
        let missing = || Problem::new(&NOT_FOUND).detail("there is no such open request");
        let id = id.parse().map_err(|_| missing())?;
        let granted = granted.map(|(amount, until)| Extra::through(amount, until));
        let answered = self.store.answer_budget_request(Actor::from(by), id, granted).await;
        answered.map_err(unavailable)?.then_some(()).ok_or_else(missing)
    }
}
