//! An in-memory copy of members and logins. Changes by other processes apply at the next refresh.

mod audit;
mod issue;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

pub use self::issue::NewToken;
use super::cached_list::{CachedList, Listed};
use super::token::{self, Secret};
use super::{Denied, NO_MEMBER, NO_SESSION, Session, random_value};
use crate::clock;
use crate::ledger::{Caller, Digest, LoginSession, Member, Role, Store, Unavailable};

pub const LOGIN_LIFETIME: Duration = Duration::from_secs(7 * 86_400);

pub struct MemberCache {
    store: Store,
    secret: Secret,
    cached: CachedList<MemberList>,
}

struct MemberList {
    tokens: HashMap<Digest, Arc<Entry>>,
    logins: HashMap<Digest, Login>,
}

struct Entry {
    member: Member,
    revoked: CancellationToken,
}

struct Login {
    entry: Arc<Entry>,
    expires_at: Duration,
    revoked: CancellationToken,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberCount {
    pub members: usize,
    pub admins: usize,
}

impl MemberCount {
    pub fn of<'a>(members: impl IntoIterator<Item = &'a Member>) -> Self {
        let mut count = Self::default();
        for member in members.into_iter().filter(|member| member.revoked_at.is_none()) {
            count.members += 1;
            count.admins += usize::from(member.terms.role == Role::Admin);
        }
        count
    }
}

impl MemberCache {
    /// Starts empty: everyone is rejected until the first refresh.
    pub fn new(store: Store, secret: Secret) -> Self {
        Self { cached: CachedList::new(store.clone()), store, secret }
    }

    pub async fn run(&self) {
        self.cached.run().await;
    }

    pub(super) fn by_token(&self, token: &str) -> Result<(Caller, Session), Denied> {
        Ok(self.cached.list()?.entry(&token::hash_token(&self.secret, token))?.session())
    }

    pub(super) fn by_login(&self, value: &str) -> Result<(Caller, Session), Denied> {
        let list = self.cached.list()?;
        let id = token::hash_cookie(&self.secret, value);
        let login =
            token::lookup(&list.logins, &id).filter(|login| login.expires_at > clock::wall());
        let Login { entry, expires_at, revoked } = login.ok_or(Denied::Invalid(NO_SESSION))?;
        let (caller, session) = entry.session();
        let (revoked, expires_at) = (Some(revoked.clone()), Some(*expires_at));
        Ok((caller, Session { revoked, expires_at, ..session }))
    }

    pub(super) async fn log_in(
        &self,
        token: &str,
        old_cookie: Option<&str>,
    ) -> Result<Zeroizing<String>, Denied> {
        let list = self.cached.list()?;
        let Member { name, token, .. } =
            &list.entry(&token::hash_token(&self.secret, token))?.member;
        let value = random_value()?;
        let session = LoginSession {
            id: token::hash_cookie(&self.secret, &value),
            member: Arc::clone(name),
            token: *token,
            expires_at: self.store.now() + LOGIN_LIFETIME,
        };
        let guard = self.cached.lock().await;
        self.store.log_in(&session).await?;
        if let Some(id) = old_cookie.and_then(|value| self.login_id(value)) {
            self.store.log_out(id).await?;
        }
        self.cached.reload(&guard).await?;
        Ok(value)
    }

    pub(super) async fn log_out(&self, value: &str) -> Result<(), Unavailable> {
        let Some(id) = self.login_id(value) else { return Ok(()) };
        let guard = self.cached.lock().await;
        self.store.log_out(id).await?;
        self.cached.reload(&guard).await
    }

    /// Returns the login's id if it may exist, so that made-up cookies never reach the store.
    fn login_id(&self, value: &str) -> Option<Digest> {
        let id = token::hash_cookie(&self.secret, value);
        let may_exist = |list: Arc<MemberList>| token::lookup(&list.logins, &id).is_some();
        self.cached.last().is_none_or(may_exist).then_some(id)
    }

    pub fn count(&self) -> Option<MemberCount> {
        let list = self.cached.list().ok()?;
        Some(MemberCount::of(list.tokens.values().map(|entry| &entry.member)))
    }

    pub(super) async fn refresh(&self) {
        self.cached.refresh().await;
    }
}

impl Listed for MemberList {
    async fn read(store: &Store, old: Option<&Self>) -> Result<Self, Unavailable> {
        let (members, sessions) = (store.members().await?, store.sessions().await?);
        Ok(Self::new(members, sessions, old))
    }

    fn replaces(&self, old: &Self) {
        audit::log_changes(old, self);
        old.revoke_missing_from(self);
    }
}

impl MemberList {
    fn new(members: Vec<Member>, sessions: Vec<LoginSession>, old: Option<&Self>) -> Self {
        let entry = |member: Member| {
            let before = old.and_then(|old| old.tokens.get(&member.token));
            let revoked = before.map(|entry| entry.revoked.clone()).unwrap_or_default();
            (member.token, Arc::new(Entry { member, revoked }))
        };
        let active = members.into_iter().filter(|member| member.revoked_at.is_none());
        let tokens: HashMap<_, _> = active.map(entry).collect();
        let login = |session: LoginSession| {
            let entry = tokens.get(&session.token)?;
            if entry.member.name != session.member {
                return None;
            }
            let before = old.and_then(|old| old.logins.get(&session.id));
            let revoked =
                before.map_or_else(|| entry.revoked.child_token(), |login| login.revoked.clone());
            let expires_at = session.expires_at;
            Some((session.id, Login { entry: Arc::clone(entry), expires_at, revoked }))
        };
        let logins = sessions.into_iter().filter_map(login).collect();
        Self { tokens, logins }
    }

    fn entry(&self, token: &Digest) -> Result<&Arc<Entry>, Denied> {
        token::lookup(&self.tokens, token).ok_or(Denied::Invalid(NO_MEMBER))
    }

    fn revoke_missing_from(&self, new: &Self) {
        let tokens = self.tokens.iter().filter(|(id, _)| !new.tokens.contains_key(*id));
        tokens.for_each(|(_, entry)| entry.revoked.cancel());
        let logins = self.logins.iter().filter(|(id, _)| !new.logins.contains_key(*id));
        logins.for_each(|(_, login)| login.revoked.cancel());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error(
        "the members' tokens in this ledger were made with another secret and would all be invalid: \
         restore TOLLGATE_SECRET or the file tollgate.secret, or keep the new secret and replace each \
         token: `tollgate member rotate NAME --new-secret`"
    )]
    Mismatch,
    #[error(
        "other servers share this ledger and use another secret: set the same TOLLGATE_SECRET in all \
         of them; to change it, stop all of them first (one that died counts for 15 s)"
    )]
    OfServers,
    #[error(
        "the secret that the members' tokens in this ledger were made with is missing: restore \
         TOLLGATE_SECRET or the file tollgate.secret beside the ledger, or make a new secret and \
         replace each token: `tollgate member rotate NAME`"
    )]
    Lost,
}

impl Entry {
    fn session(&self) -> (Caller, Session) {
        let Member { name, terms, .. } = &self.member;
        let session = Session {
            role: terms.role,
            own_budget: terms.budget,
            group: terms.group.clone(),
            may_buy: terms.may_buy.clone(),
            revoked: Some(self.revoked.clone()),
            ..Session::default()
        };
        (Caller::Member(Arc::clone(name)), session)
    }
}

#[cfg(test)]
mod tests;
