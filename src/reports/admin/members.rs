//! `GET /bff/admin/members`: who may call, what they may spend and what they did. No token is in it.

use http::StatusCode;
use serde::Serialize;

use crate::answer::{self, Answer};
use crate::clock::iso8601;
use crate::contract::money::Usd;
use crate::reports::members::{self, Listed};
use crate::store::{Store, Unavailable};

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

pub(super) async fn answer(store: &Store) -> Result<Answer, Unavailable> {
    let listed = members::list(store).await?;
    let document = Document { members: listed.iter().map(row).collect() };
    Ok(answer::json(StatusCode::OK, &document))
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
