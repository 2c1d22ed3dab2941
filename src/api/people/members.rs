//! Changes to members and groups.

use std::sync::Arc;

use super::{People, invalid, unavailable};
use crate::access::member_cache::{MemberCache, NewToken};
use crate::access::token::MemberToken;
use crate::gate::problem::{NOT_FOUND, Problem};
use crate::gateway::contract::terms::{LimitChange, MemberTerms, TermsChange};
use crate::ledger::{
    Actor, Caller, Digest, GroupChange, GroupError, Member, MemberChange, MemberError, SpendLimit,
    Unavailable,
};

impl People {
    /// Adds a member. Its token is shown once.
    pub async fn add_member(
        &self,
        by: &Caller,
        name: &str,
        terms: TermsChange,
    ) -> Result<MemberToken, Problem> {
        let NewToken { token, hash, fingerprint } = self.members()?.new_token().await?;
        let member = Member {
            name: name.into(),
            terms: terms.apply(MemberTerms::default()),
            token: hash,
            prefix: token.prefix().into(),
            added_at: self.store.now(),
            revoked_at: None,
        };
        self.change_member(by, name, MemberChange::Add(member), Some(fingerprint)).await?;
        Ok(token)
    }

    pub async fn update_member(
        &self,
        by: &Caller,
        name: &str,
        terms: TermsChange,
    ) -> Result<(), Problem> {
        self.change_member(by, name, MemberChange::Update(terms), None).await
    }

    /// Replaces a member's token. The old one and its sessions end; the new one is shown once.
    pub async fn rotate_token(&self, by: &Caller, name: &str) -> Result<MemberToken, Problem> {
        let NewToken { token, hash, fingerprint } = self.members()?.new_token().await?;
        let change = MemberChange::Rotate(hash, token.prefix().into());
        self.change_member(by, name, change, Some(fingerprint)).await?;
        Ok(token)
    }

    /// Ends a member's token and sessions for good.
    pub async fn revoke_member(&self, by: &Caller, name: &str) -> Result<(), Problem> {
        self.change_member(by, name, MemberChange::Revoke, None).await
    }

    /// Makes a change, also in this server's own list. Other servers see it at their next poll.
    pub(super) async fn change_member(
        &self,
        by: &Caller,
        name: &str,
        change: MemberChange,
        fingerprint: Option<Digest>,
    ) -> Result<(), Problem> {
        self.members()?;
        let changes = vec![(Arc::from(name), change)];
        let changed = self.store.change_members(&Actor::from(by), fingerprint, changes).await;
        changed.map_err(|(name, error)| refusal(&name, error))?;
        self.access.refresh().await;
        Ok(())
    }

    pub(super) fn members(&self) -> Result<&MemberCache, Problem> {
        self.access.members().map_err(|_| {
            let detail = "members are managed with access.mode = \"members\" only";
            Problem::new(&NOT_FOUND).detail(detail)
        })
    }

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
            GroupError::NotFound => {
                Problem::new(&NOT_FOUND).detail(format!("there is no group {name}"))
            }
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

fn refusal(name: &str, error: MemberError) -> Problem {
    match error {
        MemberError::NotFound => {
            Problem::new(&NOT_FOUND).detail(format!("there is no member {name}"))
        }
        MemberError::OtherSecret => unavailable(Unavailable(error.to_string().as_str().into())),
        MemberError::Unavailable(error) => unavailable(error),
        MemberError::NameTaken => {
            let detail = format!("{name} is a current or former member; names are never reused");
            invalid("taken", "/name", detail)
        }
        MemberError::Revoked => {
            let detail = format!("{name} is revoked, which is permanent; add another member");
            invalid("revoked", "", detail)
        }
        MemberError::UnknownGroup => invalid("unknown_group", "/group", "there is no such group"),
        MemberError::LastAdmin => {
            let detail = format!("{name} is the last admin: make another member an admin first");
            invalid("last_admin", "", detail)
        }
    }
}
