//! Tells a caller what is left to it: of its limits, of budgets, and of the account where it may see that.

use std::time::Duration;

use http::StatusCode;
use serde::Serialize;

use crate::access::Standing;
use crate::answer::{self, Answer};
use crate::billing::summary::Books;
use crate::clock;
use crate::contract::money::Usd;
use crate::problem::{LEDGER_UNAVAILABLE, Problem};
use crate::store::{Caller, Limits, Own, Role, Scope, Store};

/// What of it does not change while the gate stands.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// `sandbox` or `live`.
    pub mode: &'static str,
    /// `access.mode`.
    pub access: &'static str,
    /// Whether every caller may see the account's balance; admins always may.
    pub shows_balance: bool,
    /// `[budget]`.
    pub budgets: Limits,
}

/// A caller's room for paid calls (`[limits]`).
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Allowance {
    /// So many calls.
    pub requests: u32,
    /// In so many seconds.
    pub seconds: u64,
    /// So many at once.
    pub burst: u32,
    /// So many right now.
    pub left: u32,
    /// Until all of `burst` is there again.
    pub reset_seconds: u64,
}

/// The account's balance, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub struct Balance {
    /// What is left to be sold against.
    pub amount: Usd,
    /// When the gateway said so: wall-clock time since the Unix epoch.
    pub as_of: Duration,
}

/// Where the rest of it is found; none of these waits or counts as a call.
pub struct Sources {
    /// A caller's room.
    pub allowance: Box<dyn Fn(&Caller) -> Allowance + Send + Sync>,
    /// The balance.
    pub balance: Box<dyn Fn() -> Option<Balance> + Send + Sync>,
    /// How long a purchase would wait for the gateway's window now.
    pub wait: Box<dyn Fn() -> Duration + Send + Sync>,
}

/// Answers `GET /bff/me`.
pub struct Me {
    facts: Facts,
    sources: Sources,
    books: Books,
    ledger: Store,
}

#[derive(Serialize)]
struct Document<'a> {
    caller: Who<'a>,
    mode: &'static str,
    access: &'static str,
    limits: Allowance,
    budgets: Vec<Budget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    balance: Option<Shown>,
    window: Window,
}

#[derive(Serialize)]
struct Who<'a> {
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
    limit: String,
    limit_micros: u64,
    spent: String,
    spent_micros: u64,
    left: String,
    left_micros: u64,
    renews: String,
}

#[derive(Serialize)]
struct Shown {
    amount: String,
    amount_micros: u64,
    as_of: String,
    stale: bool,
}

#[derive(Serialize)]
struct Window {
    wait_seconds: u64,
}

impl Me {
    /// What is left is read from these.
    pub fn new(facts: Facts, sources: Sources, books: Books, ledger: Store) -> Self {
        Self { facts, sources, books, ledger }
    }

    /// What `caller` may know. The gateway is asked for the balance at most once a minute, and nobody
    /// waits for it for longer than a second.
    ///
    /// # Errors
    /// 503 `ledger_unavailable` where a budget is set and what was spent cannot be read.
    pub async fn of(&self, caller: &Caller, standing: &Standing) -> Result<Answer, Problem> {
        let Facts { mode, access, .. } = self.facts;
        let shows_balance = self.facts.shows_balance || standing.role == Role::Admin;
        if shows_balance {
            self.books.refresh().await;
        }
        let balance = (self.sources.balance)().filter(|_| shows_balance);
        let wait = (self.sources.wait)();
        let document = Document {
            caller: who(caller, standing.role),
            mode,
            access,
            limits: (self.sources.allowance)(caller),
            budgets: self.budgets(caller, standing.own).await?,
            balance: balance.map(|Balance { amount, as_of }| Shown {
                amount: amount.to_string(),
                amount_micros: amount.as_micros(),
                as_of: clock::iso8601(as_of),
                stale: self.books.is_stale(),
            }),
            window: Window { wait_seconds: clock::whole_seconds(wait) },
        };
        Ok(answer::json(StatusCode::OK, &document))
    }

    async fn budgets(&self, caller: &Caller, own: Own) -> Result<Vec<Budget>, Problem> {
        let Limits { total_day, total_month, caller_day, caller_month } =
            self.facts.budgets.and(own);
        let scopes = [
            ("total", Scope::Total, total_day, total_month),
            ("caller", Scope::Caller(caller.to_string()), caller_day, caller_month),
        ];
        let mut budgets = Vec::new();
        for (name, scope, of_day, of_month) in scopes {
            if of_day.is_none() && of_month.is_none() {
                continue;
            }
            let spent = self.ledger.spent(scope).await;
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
