//! `GET /bff/me`: what the caller has left of its limits, its budgets and the account's balance.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde::Serialize;
use tokio::time::timeout;

use super::Amounts;
use crate::access::Session;
use crate::billing::summary::BillingSummary;
use crate::clock;
use crate::downstream::rate::Limiter;
use crate::problem::{LEDGER_UNAVAILABLE, Problem};
use crate::response::{self, Response};
use crate::store::{BudgetScope, Budgets, Caller, OwnBudget, RemainingCredit, Role, Store};
use crate::upstream::rate_limit::RateLimit;

const MAX_BALANCE_WAIT: Duration = Duration::from_secs(1);

pub struct MeReport {
    /// `sandbox` or `live`.
    pub mode: &'static str,
    pub access: &'static str,
    pub shows_balance: bool,
    pub budgets: Budgets,
    pub limiter: Arc<Limiter>,
    pub window: Arc<RateLimit>,
    pub summary: BillingSummary,
    pub store: Store,
}

#[derive(Serialize)]
struct MeDocument<'a, L> {
    caller: CallerBody<'a>,
    mode: &'static str,
    access: &'static str,
    limits: L,
    budgets: Vec<Budget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    balance: Option<Balance>,
    rate_limit: QueueWait,
}

#[derive(Serialize)]
struct CallerBody<'a> {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
}

#[derive(Serialize)]
struct Budget {
    scope: &'static str,
    period: &'static str,
    #[serde(flatten)]
    money: Amounts<3>,
    renews: String,
}

#[derive(Serialize)]
struct Balance {
    #[serde(flatten)]
    amount: Amounts<1>,
    as_of: String,
    stale: bool,
}

#[derive(Serialize)]
struct QueueWait {
    wait_seconds: u64,
}

impl MeReport {
    /// Reports the limits of `caller`. The gateway is asked at most once a minute, for at most a
    /// second.
    pub async fn report(&self, caller: &Caller, standing: &Session) -> Result<Response, Problem> {
        let shows_balance = self.shows_balance || standing.role == Role::Admin;
        if shows_balance {
            self.summary.refresh().await;
        }
        let left = match shows_balance {
            true => timeout(MAX_BALANCE_WAIT, self.store.remaining_credit())
                .await
                .ok()
                .and_then(Result::ok)
                .flatten(),
            false => None,
        };
        let document = MeDocument {
            caller: caller_body(caller, standing.role),
            mode: self.mode,
            access: self.access,
            limits: self.limiter.status(caller),
            budgets: self.budgets(caller, standing.own_budget).await?,
            balance: left.map(|RemainingCredit { amount, as_of }| Balance {
                amount: Amounts([("amount", amount)]),
                as_of: clock::iso8601(as_of),
                stale: self.summary.is_stale(),
            }),
            rate_limit: QueueWait {
                wait_seconds: clock::ceil_seconds(self.window.expected_wait()),
            },
        };
        Ok(response::json(StatusCode::OK, &document))
    }

    async fn budgets(&self, caller: &Caller, own: OwnBudget) -> Result<Vec<Budget>, Problem> {
        let Budgets { total_day, total_month, caller_day, caller_month, .. } =
            self.budgets.intersect(own);
        let scopes = [
            ("total", BudgetScope::Total, total_day, total_month),
            ("caller", BudgetScope::Caller(caller.to_string()), caller_day, caller_month),
        ];
        let mut budgets = Vec::new();
        for (name, scope, of_day, of_month) in scopes {
            if of_day.is_none() && of_month.is_none() {
                continue;
            }
            let spent = self.store.current_spend(scope).await;
            let spent = spent.map_err(|_| Problem::new(&LEDGER_UNAVAILABLE))?;
            let rows = [
                ("day", of_day, spent.day, spent.day_renews_at),
                ("month", of_month, spent.month, spent.month_renews_at),
            ];
            budgets.extend(rows.into_iter().filter_map(|(period, limit, spent, renews)| {
                let (limit, renews) = (limit?, clock::iso8601(renews));
                let left = limit.saturating_sub(spent);
                let money = Amounts([("limit", limit), ("spent", spent), ("left", left)]);
                Some(Budget { scope: name, period, money, renews })
            }));
        }
        Ok(budgets)
    }
}

fn caller_body(caller: &Caller, role: Role) -> CallerBody<'_> {
    match caller {
        Caller::Address(_) => CallerBody { kind: "address", name: None, role: None },
        Caller::Member(name) => {
            CallerBody { kind: "member", name: Some(name), role: Some(role.name()) }
        }
        Caller::Subject(name) => {
            CallerBody { kind: "subject", name: Some(name), role: Some(role.name()) }
        }
    }
}
