//! `GET /bff/me`: what the caller has left of its limits, its budgets and the account's balance.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::add_extra;
use crate::access::{Session, TokenBudget};
use crate::account::summary::BillingSummary;
use crate::clock::{self, Date};
use crate::gate::problem::{LEDGER_UNAVAILABLE, Problem, ShortBudget};
use crate::gate::rate::Limiter;
use crate::gate::response::{self, Response};
use crate::gateway::contract::money::Usd;
use crate::gateway::rate_limit::RateLimit;
use crate::ledger::{
    BudgetScope, Budgets, Caller, Extra, Period, RemainingCredit, Role, ScopeKind, SpendLimit,
    Store, SubjectToken, Unavailable,
};

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
            "budgets": self.budgets(caller, session).await?,
            "rate_limit": {
                "wait_seconds": clock::ceil_seconds(self.rate_limit.expected_wait()),
            },
        });
        if caller.is_known() {
            document["may_ask"] = json!(true);
        }
        if let Some(name) = &session.display_name {
            document["caller"]["display_name"] = json!(&**name);
        }
        if let Some(group) = &session.group {
            document["group"] = json!(&**group);
        }
        if self.shows_balance || session.role == Role::Admin {
            self.summary.refresh().await;
            let balance = timeout(MAX_BALANCE_WAIT, self.store.remaining_credit()).await;
            if let Ok(Ok(Some(RemainingCredit { amount, as_of }))) = balance {
                document["balance"] = json!({
                    "amount": amount, "amount_micros": amount.as_micros(),
                    "at": clock::iso8601(as_of),
                    "stale": self.summary.is_stale(),
                });
            }
        }
        Ok(response::json(StatusCode::OK, &document))
    }

    /// Returns what the caller's tightest budget leaves after a purchase; `None` without a budget.
    ///
    /// # Errors
    /// A budget that does not cover the price.
    pub async fn left_after(
        &self,
        price: Usd,
        (caller, session): (&Caller, &Session),
    ) -> Result<Option<Usd>, Problem> {
        let rows = self.rows(caller, session).await?;
        let short = rows.iter().filter(|row| row.left() < price);
        if let Some(row) = short.max_by_key(|row| row.renews_at.unwrap_or(Duration::MAX)) {
            let BudgetRow { scope, period, limit, renews_at, .. } = *row;
            let (scope, left) = (scope.name(), row.left());
            let short = ShortBudget { scope, period, limit, left, renews_at };
            return Err(Problem::budget_exhausted(price, &short));
        }
        Ok(rows.iter().map(|row| row.left().saturating_sub(price)).min())
    }

    /// Returns what is left of the day's total budget, and that budget; `None` without one.
    pub async fn left_today(&self) -> Result<Option<(Usd, Usd)>, Problem> {
        let Some(budget) = self.budgets.total.day else { return Ok(None) };
        let spent = self.store.current_spend(BudgetScope::Total).await;
        let spent = spent.map_err(|_| Problem::new(&LEDGER_UNAVAILABLE))?;
        Ok(Some((budget.saturating_sub(spent.get(Period::Day)), budget)))
    }

    async fn budgets(&self, caller: &Caller, session: &Session) -> Result<Vec<Value>, Problem> {
        let rows = self.rows(caller, session).await?;
        Ok(rows.iter().map(BudgetRow::document).collect())
    }

    async fn rows(&self, caller: &Caller, session: &Session) -> Result<Vec<BudgetRow>, Problem> {
        let Budgets { total, caller: own, .. } = self.budgets.of(caller, session.own_budget);
        let group = session.group.as_ref().map(|name| BudgetScope::Group(name.to_string()));
        let token = session.token.as_ref();
        let token = token.map(|token| (BudgetScope::Token(token.id.to_string()), token.budget));
        let scopes = [
            Some((BudgetScope::Total, total)),
            group.map(|group| (group, SpendLimit::NONE)),
            Some((BudgetScope::Caller(caller.to_string()), own)),
            token,
        ];
        let mut rows = Vec::new();
        for (scope, limit) in scopes.into_iter().flatten() {
            let read = self.scope_rows(scope, limit).await;
            rows.extend(read.map_err(|_| Problem::new(&LEDGER_UNAVAILABLE))?);
        }
        Ok(rows)
    }

    /// Describes a token to its user.
    pub async fn own_token(&self, token: &SubjectToken) -> Result<Value, Problem> {
        let mut rows = Vec::new();
        if let Some(TokenBudget { id, budget }) = TokenBudget::of(token) {
            let read = self.scope_rows(BudgetScope::Token(id.to_string()), budget).await;
            rows = read.map_err(|_| Problem::new(&LEDGER_UNAVAILABLE))?;
        }
        let SubjectToken { name, prefix, created_at, expires_at, last_used, .. } = token;
        Ok(json!({
            "name": &**name,
            "prefix": &**prefix,
            "added_at": clock::iso8601(*created_at),
            "last_used_at": last_used.map(clock::iso8601),
            "until": Date::before(*expires_at).to_string(),
            "budgets": rows.iter().map(BudgetRow::document).collect::<Vec<_>>(),
        }))
    }

    async fn scope_rows(
        &self,
        scope: BudgetScope,
        limit: SpendLimit,
    ) -> Result<Vec<BudgetRow>, Unavailable> {
        let kind = scope.kind();
        let (limit, extra) = match kind {
            ScopeKind::Group => (self.store.kept_limit(scope.clone()).await?.limit, None),
            ScopeKind::Caller if !limit.is_none() => {
                (limit, self.store.kept_limit(scope.clone()).await?.extra)
            }
            ScopeKind::Total | ScopeKind::Caller | ScopeKind::Token => (limit, None),
        };
        if limit.is_none() {
            return Ok(Vec::new());
        }
        let limit = limit.raised(extra.map_or(Usd::ZERO, |extra| extra.amount));
        let spent = self.store.current_spend(scope).await?;
        let row = |(period, limit)| BudgetRow {
            scope: kind,
            period,
            limit,
            spent: spent.get(period),
            renews_at: spent.renews_at(period),
            extra,
        };
        Ok(limit.rows().map(row).collect())
    }
}

struct BudgetRow {
    scope: ScopeKind,
    period: Period,
    /// With the extra.
    limit: Usd,
    spent: Usd,
    renews_at: Option<Duration>,
    extra: Option<Extra>,
}

impl BudgetRow {
    fn left(&self) -> Usd {
        self.limit.saturating_sub(self.spent)
    }

    fn document(&self) -> Value {
        let limit = self.limit;
        let spent = self.spent;
        let left = self.left();
        let mut document = json!({
            "scope": self.scope.name(),
            "period": self.period.name(),
            "limit": limit, "limit_micros": limit.as_micros(),
            "spent": spent, "spent_micros": spent.as_micros(),
            "left": left, "left_micros": left.as_micros(),
            "renews_at": self.renews_at.map(clock::iso8601),
        });
        add_extra(&mut document, self.extra);
        document
    }
}

fn caller_body(caller: &Caller, role: Role) -> Value {
    match caller {
        Caller::Address(_) => json!({"kind": "address"}),
        Caller::Member(name) => json!({"kind": "member", "name": &**name, "role": role.name()}),
        Caller::Subject(name) => {
            json!({"kind": "subject", "name": &**name, "role": role.name()})
        }
        Caller::Link(id) => json!({"kind": "link", "name": &**id, "role": role.name()}),
    }
}
