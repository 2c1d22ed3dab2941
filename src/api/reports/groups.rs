//! The groups and their spending: `GET /bff/admin/groups` and `tollgate group list`.

use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Reports, budget_rows, list_of, unavailable};
use crate::gate::problem::Problem;
use crate::gate::response::{self, Response};
use crate::ledger::{BudgetScope, Group, PeriodSpend, Store, Unavailable};

/// A group, and what its callers have spent in the current periods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpend {
    pub group: Group,
    pub spent: PeriodSpend,
}

pub async fn list_with_spend(store: &Store) -> Result<Vec<GroupSpend>, Unavailable> {
    with_spend(store, store.groups().await?).await
}

async fn with_spend(store: &Store, groups: Vec<Group>) -> Result<Vec<GroupSpend>, Unavailable> {
    let mut listed = Vec::new();
    for group in groups {
        let spent = store.current_spend(BudgetScope::Group(group.name.to_string())).await?;
        listed.push(GroupSpend { group, spent });
    }
    Ok(listed)
}

impl Reports {
    pub async fn admin_groups(&self) -> Result<Response, Problem> {
        let listed = list_with_spend(&self.store).await.map_err(unavailable)?;
        Ok(response::json(StatusCode::OK, &document(&listed)))
    }

    /// Returns the row of one group, or `None` if it cannot be read.
    pub async fn group(&self, name: &str) -> Option<Value> {
        let mut groups = self.store.groups().await.ok()?;
        groups.retain(|group| *group.name == *name);
        Some(row(with_spend(&self.store, groups).await.ok()?.first()?))
    }
}

pub fn document(listed: &[GroupSpend]) -> impl Serialize {
    list_of(listed.iter().map(row))
}

fn row(GroupSpend { group, spent }: &GroupSpend) -> Value {
    json!({
        "name": &*group.name,
        "members": group.members,
        "budgets": budget_rows(group.budget, spent, None),
    })
}
