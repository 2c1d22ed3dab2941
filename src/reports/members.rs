//! Who may call, what they may spend and what they did: `GET /bff/admin/members` and `tollgate member list`.

use std::sync::Arc;

use http::StatusCode;
use serde::Serialize;

use super::{Reports, unavailable};
use crate::answer::{self, Answer};
use crate::clock::iso8601;
use crate::contract::money::Usd;
use crate::problem::Problem;
use crate::store::{Caller, Member, Scope, Spent, Store, Unavailable};

/// A member, and what it has spent, set aside or lost track of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The member.
    pub member: Member,
    /// In this UTC day and month.
    pub spent: Spent,
}

impl Listed {
    /// Whether its token is good: `active` or `revoked`.
    pub fn state(&self) -> &'static str {
        if self.member.revoked.is_none() { "active" } else { "revoked" }
    }

    /// What may be spent and what was, by period: `day`, then `month`.
    pub fn periods(&self) -> [(&'static str, Option<Usd>, Usd); 2] {
        let (own, spent) = (self.member.own, self.spent);
        [("day", own.day, spent.day), ("month", own.month, spent.month)]
    }
}

/// All members by name, revoked ones too.
///
/// # Errors
/// The store cannot be read.
pub async fn list(store: &Store) -> Result<Vec<Listed>, Unavailable> {
    let mut listed = Vec::new();
    for member in store.members().await? {
        let caller = Caller::Member(Arc::clone(&member.name));
        let spent = store.spent(Scope::Caller(caller.to_string())).await?;
        listed.push(Listed { member, spent });
    }
    Ok(listed)
}

#[derive(Serialize)]
struct Document<'a> {
    members: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    role: &'static str,
    /// `active` or `revoked`.
    state: &'static str,
    token_prefix: &'a str,
    added: String,
    revoked: Option<String>,
    budgets: Vec<Budget>,
}

/// Of one period; there is one of each, whether or not the member has a limit of its own there.
#[derive(Serialize)]
struct Budget {
    period: &'static str,
    limit: Option<String>,
    limit_micros: Option<u64>,
    spent: String,
    spent_micros: u64,
}

impl Reports {
    /// All members with their budgets and spend, and without tokens.
    ///
    /// # Errors
    /// 503 `ledger_unavailable`.
    pub async fn members(&self) -> Result<Answer, Problem> {
        let listed = list(&self.store).await.map_err(unavailable)?;
        let document = Document { members: listed.iter().map(row).collect() };
        Ok(answer::json(StatusCode::OK, &document))
    }
}

fn row(listed: &Listed) -> Row<'_> {
    let member = &listed.member;
    Row {
        name: &member.name,
        role: member.role.name(),
        state: listed.state(),
        token_prefix: &member.prefix,
        added: iso8601(member.added),
        revoked: member.revoked.map(iso8601),
        budgets: listed.periods().into_iter().map(budget).collect(),
    }
}

fn budget((period, limit, spent): (&'static str, Option<Usd>, Usd)) -> Budget {
    Budget {
        period,
        limit: limit.map(|limit| limit.to_string()),
        limit_micros: limit.map(Usd::as_micros),
        spent: spent.to_string(),
        spent_micros: spent.as_micros(),
    }
}
