//! Lists who may call, with what each has spent.

use std::sync::Arc;

use crate::contract::money::Usd;
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
