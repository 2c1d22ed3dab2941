//! The groups and their spending: `tollgate group list`.

use serde_json::{Value, json};

use super::budget_rows;
use crate::store::{BudgetScope, Group, PeriodSpend, Store, Unavailable};

/// A group, and what its callers have spent in the current periods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpend {
    pub group: Group,
    pub spent: PeriodSpend,
}

pub async fn list_with_spend(store: &Store) -> Result<Vec<GroupSpend>, Unavailable> {
    let mut listed = Vec::new();
    for group in store.groups().await? {
        let spent = store.current_spend(BudgetScope::Group(group.name.to_string())).await?;
        listed.push(GroupSpend { group, spent });
    }
    Ok(listed)
}

pub fn document(listed: &[GroupSpend]) -> Value {
    let row = |GroupSpend { group, spent }: &GroupSpend| {
        json!({
            "name": &*group.name,
            "members": group.members,
            "budgets": budget_rows(group.budget, spent, None),
        })
    };
    json!({ "groups": listed.iter().map(row).collect::<Vec<_>>() })
}
