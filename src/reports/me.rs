//! `GET /bff/me`: what is left of a caller's limits and budgets, and of the account if it may see that.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use crate::access::Standing;
use crate::answer::{self, Answer};
use crate::billing::summary::Summary;
use crate::clock;
use crate::downstream::rate::Limiter;
use crate::problem::{LEDGER_UNAVAILABLE, Problem};
use crate::store::{Caller, Left, Limits, Own, Role, Scope, Store};
use crate::upstream::window::Window;

pub struct Me {
    /// `sandbox` or `live`.
    pub mode: &'static str,
    pub access: &'static str,
    /// Whether every caller may see the account's balance; admins always may.
    pub shows_balance: bool,
    pub budgets: Limits,
    pub limiter: Arc<Limiter>,
    pub window: Arc<Window>,
    pub summary: Summary,
    pub store: Store,
}

impl Me {
    /// What `caller` may know. The gateway is asked for the balance at most once a minute, and nobody
    /// waits for it for longer than a second.
    pub async fn of(&self, caller: &Caller, standing: &Standing) -> Result<Answer, Problem> {
        let mut balance = None;
        if self.shows_balance || standing.role == Role::Admin {
            self.summary.refresh().await;
            balance = self.store.credit_left().await.ok().flatten();
        }
        let allowed = self.limiter.allowed(caller);
        let mut document = json!({
            "caller": who(caller, standing.role),
            "mode": self.mode,
            "access": self.access,
            "limits": {
                "requests": allowed.requests,
                "seconds": allowed.period.as_secs(),
                "burst": allowed.burst,
                "left": allowed.left,
                // Until all of `burst` is there again.
                "reset_seconds": allowed.reset_seconds,
            },
            "budgets": self.budgets(caller, standing.own).await?,
            "window": { "wait_seconds": clock::whole_seconds(self.window.wait_expected()) },
        });
        if let Some(Left { amount, as_of }) = balance {
            document["balance"] = json!({
                "amount": amount,
                "amount_micros": amount.as_micros(),
                "as_of": clock::iso8601(as_of),
                "stale": self.summary.is_stale(),
            });
        }
        Ok(answer::json(StatusCode::OK, &document))
    }

    async fn budgets(&self, caller: &Caller, own: Own) -> Result<Vec<Value>, Problem> {
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
            for (period, limit, spent, renews) in rows {
                let Some(limit) = limit else { continue };
                let left = limit.saturating_sub(spent);
                budgets.push(json!({
                    "scope": name,
                    "period": period,
                    "limit": limit,
                    "limit_micros": limit.as_micros(),
                    "spent": spent,
                    "spent_micros": spent.as_micros(),
                    "left": left,
                    "left_micros": left.as_micros(),
                    "renews": clock::iso8601(renews),
                }));
            }
        }
        Ok(budgets)
    }
}

fn who(caller: &Caller, role: Role) -> Value {
    let (kind, name) = match caller {
        Caller::Address(_) => return json!({ "kind": "address" }),
        Caller::Member(name) => ("member", name),
        Caller::Subject(name) => ("subject", name),
    };
    json!({ "kind": kind, "name": &**name, "role": role.name() })
}
