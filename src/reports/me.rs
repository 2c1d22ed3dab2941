//! Tells a caller what is left to it: of its limits, of budgets, and of the account where it may see that.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde::Serialize;

use crate::access::Standing;
use crate::answer::{self, Answer};
use crate::billing::summary::Summary;
use crate::clock;
use crate::contract::money::Usd;
use crate::downstream::rate::{Allowed, Limiter};
use crate::problem::{LEDGER_UNAVAILABLE, Problem};
use crate::store::{Caller, Left, Limits, Own, Role, Scope, Store};
use crate::upstream::window::Window;

/// Answers `GET /bff/me`.
pub struct Me {
    /// `sandbox` or `live`.
    pub mode: &'static str,
    /// `access.mode`.
    pub access: &'static str,
    /// Whether every caller may see the account's balance; admins always may.
    pub shows_balance: bool,
    /// `[budget]`.
    pub budgets: Limits,
    /// `[limits]`.
    pub limiter: Arc<Limiter>,
    /// The account's rate limit.
    pub window: Arc<Window>,
    /// What the gateway says of the account.
    pub summary: Summary,
    /// What was spent.
    pub store: Store,
}

#[derive(Serialize)]
struct Document<'a> {
    caller: Who<'a>,
    mode: &'static str,
    access: &'static str,
    limits: Allowance,
    budgets: Vec<Budget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    balance: Option<Balance>,
    window: RateLimit,
}

#[derive(Serialize)]
struct Who<'a> {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
}

/// A caller's room for paid calls.
#[derive(Serialize)]
struct Allowance {
    requests: u32,
    seconds: u64,
    burst: u32,
    left: u32,
    /// Until all of `burst` is there again.
    reset_seconds: u64,
}

#[derive(Serialize)]
struct Budget {
    scope: &'static str,
    period: &'static str,
    limit: String,
    limit_micros: u64,
    spent: String,
    spent_micros: u64,
    left: String,
    left_micros: u64,
    renews: String,
}

#[derive(Serialize)]
struct Balance {
    amount: String,
    amount_micros: u64,
    as_of: String,
    stale: bool,
}

#[derive(Serialize)]
struct RateLimit {
    wait_seconds: u64,
}

impl Me {
    /// What `caller` may know. The gateway is asked for the balance at most once a minute, and nobody
    /// waits for it for longer than a second.
    ///
    /// # Errors
    /// 503 `ledger_unavailable` where a budget is set and what was spent cannot be read.
    pub async fn of(&self, caller: &Caller, standing: &Standing) -> Result<Answer, Problem> {
        let shows_balance = self.shows_balance || standing.role == Role::Admin;
        if shows_balance {
            self.summary.refresh().await;
        }
        let left = match shows_balance {
            true => self.store.credit_left().await.ok().flatten(),
            false => None,
        };
        let wait = self.window.wait_expected();
        let document = Document {
            caller: who(caller, standing.role),
            mode: self.mode,
            access: self.access,
            limits: self.allowance(caller),
            budgets: self.budgets(caller, standing.own).await?,
            balance: left.map(|Left { amount, as_of }| Balance {
                amount: amount.to_string(),
                amount_micros: amount.as_micros(),
                as_of: clock::iso8601(as_of),
                stale: self.summary.is_stale(),
            }),
            window: RateLimit { wait_seconds: clock::whole_seconds(wait) },
        };
        Ok(answer::json(StatusCode::OK, &document))
    }

    fn allowance(&self, caller: &Caller) -> Allowance {
        let Allowed { requests, period, burst, left, reset_seconds } = self.limiter.allowed(caller);
        Allowance { requests, seconds: period.as_secs(), burst, left, reset_seconds }
    }

    async fn budgets(&self, caller: &Caller, own: Own) -> Result<Vec<Budget>, Problem> {
        let Limits { total_day, total_month, caller_day, caller_month, .. } = self.budgets.and(own);
        let scopes = [
            ("total", Scope::Total, total_day, total_month),
            ("caller", Scope::Caller(caller.to_string()), caller_day, caller_month),
        ];
        let mut budgets = Vec::new();
        for (name, scope, of_day, of_month) in scopes {
            if of_day.is_none() && of_month.is_none() {
                continue;
            }
            let spent = self.store.spent(scope).await;
            let spent = spent.map_err(|_| Problem::new(&LEDGER_UNAVAILABLE))?;
            let rows = [
                ("day", of_day, spent.day, spent.day_renews),
                ("month", of_month, spent.month, spent.month_renews),
            ];
            budgets.extend(rows.into_iter().filter_map(|(period, limit, spent, renews)| {
                Some(budget(name, period, limit?, spent, renews))
            }));
        }
        Ok(budgets)
    }
}

fn budget(
    scope: &'static str,
    period: &'static str,
    limit: Usd,
    spent: Usd,
    renews: Duration,
) -> Budget {
    let left = limit.saturating_sub(spent);
    Budget {
        scope,
        period,
        limit: limit.to_string(),
        limit_micros: limit.as_micros(),
        spent: spent.to_string(),
        spent_micros: spent.as_micros(),
        left: left.to_string(),
        left_micros: left.as_micros(),
        renews: clock::iso8601(renews),
    }
}

/// How the caller is known.
fn who(caller: &Caller, role: Role) -> Who<'_> {
    match caller {
        Caller::Address(_) => Who { kind: "address", name: None, role: None },
        Caller::Member(name) => Who { kind: "member", name: Some(name), role: Some(role.name()) },
        Caller::Subject(name) => Who { kind: "subject", name: Some(name), role: Some(role.name()) },
    }
}
