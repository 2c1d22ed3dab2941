//! Who may call, what they may spend and what they spent: `GET /bff/admin/members` and `tollgate member list`.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::{Reports, unavailable};
use crate::answer::{self, Answer};
use crate::clock::iso8601;
use crate::contract::money::Usd;
use crate::problem::Problem;
use crate::store::{Caller, Member, Scope, Spent, Store, Unavailable};

/// A member, and what it has spent, set aside or lost track of in this UTC day and month.
pub struct Listed {
    pub member: Member,
    pub spent: Spent,
}

impl Listed {
    pub fn state(&self) -> &'static str {
        if self.member.revoked.is_none() { "active" } else { "revoked" }
    }
}

/// All members by name, revoked ones too.
pub async fn list(store: &Store) -> Result<Vec<Listed>, Unavailable> {
    let mut listed = Vec::new();
    for member in store.members().await? {
        let caller = Caller::Member(Arc::clone(&member.name));
        let spent = store.spent(Scope::Caller(caller.to_string())).await?;
        listed.push(Listed { member, spent });
    }
    Ok(listed)
}

impl Reports {
    pub async fn members(&self) -> Result<Answer, Problem> {
        let listed = list(&self.store).await.map_err(unavailable)?;
        let members: Vec<_> = listed.iter().map(row).collect();
        Ok(answer::json(StatusCode::OK, &json!({ "members": members })))
    }
}

/// There is one budget for each period, whether or not the member has a limit of its own there.
fn row(listed: &Listed) -> Value {
    let Listed { member, spent } = listed;
    let budget = |period, limit: Option<Usd>, spent: Usd| {
        json!({
            "period": period,
            "limit": limit,
            "limit_micros": limit.map(Usd::as_micros),
            "spent": spent,
            "spent_micros": spent.as_micros(),
        })
    };
    json!({
        "name": &*member.name,
        "role": member.role.name(),
        "state": listed.state(),
        "token_prefix": &*member.prefix,
        "added": iso8601(member.added),
        "revoked": member.revoked.map(iso8601),
        "budgets": [
            budget("day", member.own.day, spent.day),
            budget("month", member.own.month, spent.month),
        ],
    })
}
