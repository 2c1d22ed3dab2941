//! The members, their spending and their requests for more budget: `GET /bff/admin/members`,
//! `GET /bff/admin/budget-requests` and `tollgate member list`.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::{List, Reports, add_extra, budget_rows, list_of, unavailable};
use crate::access::member_cache::LOGIN_LIFETIME;
use crate::clock::iso8601;
use crate::gate::problem::Problem;
use crate::gate::response::{self, Response};
use crate::gateway::contract::money::Usd;
use crate::gateway::contract::terms::{TERMS, TermInput, TermValue, TermsChange};
use crate::ledger::{
    BudgetRequest, BudgetScope, Caller, Extra, Member, Period, PeriodSpend, SpendLimit, Store,
    Unavailable,
};

/// A member, and what it has spent in the current periods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSpend {
    pub member: Member,
    pub spent: PeriodSpend,
    /// The sum of what raises its limits, until the first of it ends.
    pub extra: Option<Extra>,
    /// Its token was made with an earlier secret, so it is rejected until it is rotated.
    pub has_earlier_secret: bool,
    /// When it last bought something or signed in, as far as the ledger has it.
    pub last_seen_at: Option<Duration>,
}

impl MemberSpend {
    pub fn state(&self) -> &'static str {
        match self.member.revoked_at {
            Some(_) => "revoked",
            None if self.has_earlier_secret => "token invalid",
            None => "active",
        }
    }
}

pub async fn list_with_spend(store: &Store) -> Result<Vec<MemberSpend>, Unavailable> {
    with_spend(store, store.members().await?).await
}

async fn with_spend(store: &Store, members: Vec<Member>) -> Result<Vec<MemberSpend>, Unavailable> {
    let mut listed = Vec::new();
    let earlier = store.members_with_earlier_secret().await?;
    let sessions = store.sessions().await?;
    for member in members {
        let caller = Caller::Member(Arc::clone(&member.name));
        let scope = BudgetScope::Caller(caller.to_string());
        let extra = store.kept_limit(scope.clone()).await?.extra;
        let spent = store.current_spend(scope).await?;
        let has_earlier_secret = earlier.contains(&member.name);
        let own = sessions.iter().filter(|session| session.member == member.name);
        let signed_in = own.map(|session| session.expires_at.saturating_sub(LOGIN_LIFETIME)).max();
        let last_seen_at = store.latest_purchase_at(caller.to_string()).await?.max(signed_in);
        listed.push(MemberSpend { member, spent, extra, has_earlier_secret, last_seen_at });
    }
    Ok(listed)
}

impl Reports {
    pub async fn admin_members(&self) -> Result<Response, Problem> {
        let listed = list_with_spend(&self.store).await.map_err(unavailable)?;
        let document = document(&listed, self.caller_budget).with(json!({ "terms": terms() }));
        Ok(response::json(StatusCode::OK, &document))
    }

    pub async fn admin_budget_requests(&self) -> Result<Response, Problem> {
        let requests = self.store.budget_requests().await.map_err(unavailable)?;
        Ok(response::json(StatusCode::OK, &list_of(requests.iter().map(request_row))))
    }

    /// Returns the row of one member, or `None` if it cannot be read.
    pub async fn member(&self, name: &str) -> Option<Value> {
        let mut members = self.store.members().await.ok()?;
        members.retain(|member| *member.name == *name);
        Some(row(with_spend(&self.store, members).await.ok()?.first()?, self.caller_budget))
    }
}

/// Returns the row of a request for more budget, which a member has made.
pub fn request_row(request: &BudgetRequest) -> Value {
    let BudgetRequest { id, caller, amount, reason, at } = request;
    json!({
        "id": id,
        "caller": &**caller,
        "amount": amount, "amount_micros": amount.as_micros(),
        "reason": &**reason,
        "at": iso8601(*at),
    })
}

/// `shared` is `budget.caller`, which applies to each member in addition to its own budget.
pub fn document(listed: &[MemberSpend], shared: SpendLimit) -> List<Value> {
    list_of(listed.iter().map(|one| row(one, shared)))
}

/// Returns what the page's form needs to know of the terms.
fn terms() -> Vec<Value> {
    let mut change = TermsChange::default();
    let terms = TERMS.iter().map(|term| {
        let kind = match (term.input)(&mut change) {
            TermInput::Role(_) => "role",
            TermInput::Name(_) => "name",
            TermInput::Limits(_) => "limits",
            TermInput::Selection(_) => "list",
        };
        json!({ "name": term.name, "kind": kind, "help": term.help })
    });
    terms.collect()
}

fn row(listed: &MemberSpend, shared: SpendLimit) -> Value {
    let MemberSpend { member, spent, extra, .. } = listed;
    let mut budgets = budget_rows(member.terms.budget, spent, *extra);
    let effective = member.terms.budget.stricter(shared);
    let effective = effective.raised(extra.map_or(Usd::ZERO, |extra| extra.amount));
    for (row, period) in budgets.iter_mut().zip(Period::ALL) {
        let limit = effective.get(period);
        row["effective"] = json!(limit);
        row["effective_micros"] = json!(limit.map(Usd::as_micros));
    }
    let mut row = json!({
        "name": &*member.name,
        "state": listed.state(),
        "token_prefix": &*member.prefix,
        "added_at": iso8601(member.added_at),
        "revoked_at": member.revoked_at.map(iso8601),
        "last_seen_at": listed.last_seen_at.map(iso8601),
        "budgets": budgets,
    });
    for term in TERMS {
        row[term.name] = match (term.value)(&member.terms) {
            TermValue::Role(role) => json!(role.name()),
            TermValue::Name(name) => json!(name),
            TermValue::Selection(names) => {
                json!(names.map(|names| names.names().collect::<Vec<_>>()))
            }
            // The rows of `budgets` have them.
            TermValue::Limits(_) => continue,
        };
    }
    // It also raises `budget.caller`, which is no row.
    add_extra(&mut row, *extra);
    row
}
