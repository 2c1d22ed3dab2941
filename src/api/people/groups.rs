//! Adds, changes and removes groups.

use super::{People, invalid, unavailable};
use crate::gate::problem::{NOT_FOUND, Problem};
use crate::gateway::contract::terms::LimitChange;
use crate::ledger::{Actor, Caller, GroupChange, GroupError, SpendLimit};

impl People {
    pub async fn add_group(
        &self,
        by: &Caller,
        name: &str,
        budget: LimitChange,
    ) -> Result<(), Problem> {
        self.change_group(by, name, GroupChange::Add(budget.apply(SpendLimit::NONE))).await
    }

    pub async fn update_group(
        &self,
        by: &Caller,
        name: &str,
        budget: LimitChange,
    ) -> Result<(), Problem> {
        self.change_group(by, name, GroupChange::Update(budget)).await
    }

    pub async fn remove_group(&self, by: &Caller, name: &str) -> Result<(), Problem> {
        self.change_group(by, name, GroupChange::Remove).await
    }

    async fn change_group(
        &self,
        by: &Caller,
        name: &str,
        change: GroupChange,
    ) -> Result<(), Problem> {
        let changed = self.store.change_group(&Actor::from(by), name.into(), change).await;
        changed.map_err(|error| match error {
            GroupError::NotFound => not_found(name),
            GroupError::Unavailable(error) => unavailable(error),
            GroupError::NameTaken => {
                invalid("taken", "/name", format!("there is already a group {name}"))
            }
            GroupError::HasMembers => {
                let detail = format!("move the members of {name} to another group, or revoke them");
                invalid("has_members", "", detail)
            }
        })
    }
}

fn not_found(name: &str) -> Problem {
    Problem::new(&NOT_FOUND).detail(format!("there is no group {name}"))
}
