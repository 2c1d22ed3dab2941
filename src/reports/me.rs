//! `GET /bff/me`: what the caller has left of its limits, its budgets and the account's balance.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::access::Session;
use crate::billing::summary::BillingSummary;
use crate::clock;
use crate::contract::money::Usd;
use crate::downstream::rate::Limiter;
use crate::problem::{LEDGER_UNAVAILABLE, Problem};
use crate::response::{self, Response};
use crate::store::{BudgetScope, Budgets, Caller, RemainingCredit, Role, SpendLimit, Store};
use crate::upstream::rate_limit::RateLimit;

const MAX_BALANCE_WAIT: Duration = Duration::from_secs(1);

pub struct MeReport {
    /// `sandbox` or `live`.
    pub mode: &'static str,
    pub access: &'static str,
    pub shows_balance: bool,
    pub budgets: Budgets,
    pub limiter: Arc<Limiter>,
    pub rate_limit: Arc<RateLimit>,
    pub summary: BillingSummary,
    pub store: Store,
}

impl MeReport {
    /// Reports the limits of `caller`. The gateway is asked at most once a minute, for at most a
    /// second.
    pub async fn report(&self, caller: &Caller, session: &Session) -> Result<Response, Problem> {
        let mut document = json!({
            "caller": caller_body(caller, session.role),
            "mode": self.mode,
            "access": self.access,
            "limits": self.limiter.status(caller),
            "budgets": self.budgets(caller, session.own_budget).await?,
            "rate_limit": {
                "wait_seconds": clock::ceil_seconds(self.rate_limit.expected_wait()),
            },
        });
        if let Some(name) = &session.display_name {
            document["caller"]["display_name"] = json!(&**name);
        }
        if self.shows_balance || session.role == Role::Admin {
            self.summary.refresh().await;
            let balance = timeout(MAX_BALANCE_WAIT, self.store.remaining_credit()).await;
            if let Ok(Ok(Some(RemainingCredit { amount, as_of }))) = balance {
                document["balance"] = json!({
                    "amount": amount, "amount_micros": amount.as_micros(),
                    "as_of": clock::iso8601(as_of),
                    "stale": self.summary.is_stale(),
                });
            }
        }
        Ok(response::json(StatusCode::OK, &document))
    }

    /// Returns what the caller may still spend by its tightest budget; `None` without a budget.
    pub async fn left(&self, caller: &Caller, session: &Session) -> Result<Option<Usd>, Problem> {
        let rows = self.rows(caller, session.own_budget).await?;
        Ok(rows.iter().map(BudgetRow::left).min())
    }

    async fn budgets(&self, caller: &Caller, own: SpendLimit) -> Result<Vec<Value>, Problem> {
        let rows = self.rows(caller, own).await?;
        Ok(rows.iter().map(BudgetRow::document).collect())
    }

    async fn rows(&self, caller: &Caller, own: SpendLimit) -> Result<Vec<BudgetRow>, Problem> {
        let Budgets { total_day, total_month, caller_day, caller_month, .. } =
            self.budgets.intersect(own);
        let scopes = [
            ("total", BudgetScope::Total, total_day, total_month),
            ("caller", BudgetScope::Caller(caller.to_string()), caller_day, caller_month),
        ];
        let mut rows = Vec::new();
        for (scope, of, of_day, of_month) in scopes {
            if of_day.is_none() && of_month.is_none() {
                continue;
            }
            let spent = self.store.current_spend(of).await;
            let spent = spent.map_err(|_| Problem::new(&LEDGER_UNAVAILABLE))?;
            for (period, limit, spent, renews_at) in [
                ("day", of_day, spent.day, spent.day_renews_at),
                ("month", of_month, spent.month, spent.month_renews_at),
            ] {
                rows.extend(limit.map(|limit| BudgetRow {
                    scope,
                    period,
                    limit,
                    spent,
                    renews_at,
                }));
            }
        }
        Ok(rows)
    }
}

struct BudgetRow {
    scope: &'static str,
    period: &'static str,
    limit: Usd,
    spent: Usd,
    renews_at: Duration,
}

impl BudgetRow {
    fn left(&self) -> Usd {
        self.limit.saturating_sub(self.spent)
    }

    fn document(&self) -> Value {
        let (limit, spent, left) = (self.limit, self.spent, self.left());
        json!({
            "scope": self.scope,
            "period": self.period,
            "limit": limit, "limit_micros": limit.as_micros(),
            "spent": spent, "spent_micros": spent.as_micros(),
            "left": left, "left_micros": left.as_micros(),
            "renews": clock::iso8601(self.renews_at),
        })
    }
}

fn caller_body(caller: &Caller, role: Role) -> Value {
    match caller {
        Caller::Address(_) => json!({"kind": "address"}),
        Caller::Member(name) => json!({"kind": "member", "name": &**name, "role": role.name()}),
        Caller::Subject(name) => {
            json!({"kind": "subject", "name": &**name, "role": role.name()})
        }
    }
}
