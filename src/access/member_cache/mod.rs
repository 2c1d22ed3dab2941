//! An in-memory copy of members and logins. Changes by other processes apply at the next refresh.

mod audit;
mod issue;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};
use zeroize::Zeroizing;

pub use self::issue::NewToken;
use super::token::{self, Secret};
use super::{Denied, Session};
use crate::clock::{self, Instant};
use crate::store::{
    Caller, Digest, LoginSession, Member, Role, Store, Unavailable, VERSION_POLL_INTERVAL,
};

/// How long the last list is used while the store is unreadable. After that, everyone is rejected.
const MAX_STALE: Duration = Duration::from_secs(30);
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(5);
pub const LOGIN_LIFETIME: Duration = Duration::from_secs(7 * 86_400);

pub struct MemberCache {
    store: Store,
    secret: Secret,
    current: ArcSwapOption<Cached>,
    is_failing: AtomicBool,
    updating: Mutex<()>,
}

struct Cached {
    list: Arc<MemberList>,
    refreshed_at: Instant,
}

struct MemberList {
    version: u64,
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
            count.admins += usize::from(member.role == Role::Admin);
        }
        count
    }
}

impl MemberCache {
    /// Starts empty: everyone is rejected until the first refresh.
    pub fn new(store: Store, secret: Secret) -> Self {
        Self {
            store,
            secret,
            current: ArcSwapOption::empty(),
            is_failing: AtomicBool::new(false),
            updating: Mutex::default(),
        }
    }

    pub async fn run(&self) {
        let mut ticks = interval(VERSION_POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.refresh().await;
        }
    }

    pub(super) fn by_token(&self, token: &str) -> Result<(Caller, Session), Denied> {
        Ok(self.list()?.entry(&token::hash_token(&self.secret, token))?.session())
    }

    pub(super) fn by_login(&self, value: &str) -> Result<(Caller, Session), Denied> {
        let list = self.list()?;
        let id = token::hash_cookie(&self.secret, value);
        let login = lookup(&list.logins, &id).filter(|login| login.expires_at > clock::wall());
        let Login { entry, expires_at, revoked } = login.ok_or(Denied::Invalid)?;
        let (caller, session) = entry.session();
        let (revoked, expires_at) = (Some(revoked.clone()), Some(*expires_at));
        Ok((caller, Session { revoked, expires_at, ..session }))
    }

    pub(super) async fn log_in(
        &self,
        token: &str,
        old_cookie: Option<&str>,
    ) -> Result<Zeroizing<String>, Denied> {
        let list = self.list()?;
        let Member { name, token, .. } =
            &list.entry(&token::hash_token(&self.secret, token))?.member;
        let value = token::random().map_err(|error| {
            error!(%error, "random number generator failed");
            Denied::Unavailable(RETRY_AFTER)
        })?;
        let session = LoginSession {
            id: token::hash_cookie(&self.secret, &value),
            member: Arc::clone(name),
            token: *token,
            expires_at: self.store.now() + LOGIN_LIFETIME,
        };
        let _guard = self.updating.lock().await;
        self.store.log_in(&session).await?;
        if let Some(id) = old_cookie.and_then(|value| self.login_id(value)) {
            self.store.log_out(id).await?;
        }
        self.reload().await?;
        Ok(value)
    }

    pub(super) async fn log_out(&self, value: &str) -> Result<(), Unavailable> {
        let Some(id) = self.login_id(value) else { return Ok(()) };
        let _guard = self.updating.lock().await;
        self.store.log_out(id).await?;
        self.reload().await
    }

    /// Returns the login's id if it may exist, so that made-up cookies never reach the store.
    fn login_id(&self, value: &str) -> Option<Digest> {
        let id = token::hash_cookie(&self.secret, value);
        let current = self.current.load();
        let may_exist = |current: &Arc<Cached>| lookup(&current.list.logins, &id).is_some();
        current.as_ref().is_none_or(may_exist).then_some(id)
    }

    pub fn count(&self) -> Option<MemberCount> {
        let list = self.list().ok()?;
        Some(MemberCount::of(list.tokens.values().map(|entry| &entry.member)))
    }

    fn list(&self) -> Result<Arc<MemberList>, Denied> {
        match &*self.current.load() {
            Some(cached) if cached.refreshed_at.elapsed() <= MAX_STALE => {
                Ok(Arc::clone(&cached.list))
            }
            Some(_) | None => Err(Denied::Unavailable(RETRY_AFTER)),
        }
    }

    pub(super) async fn refresh(&self) {
        let _guard = self.updating.lock().await;
        let result = self.refresh_locked().await;
        let was_failing = self.is_failing.swap(result.is_err(), Ordering::AcqRel);
        match result {
            Ok(()) if was_failing => info!("member list readable again"),
            Err(error) if !was_failing && !self.store.is_unusable() => {
                error!(%error, "member list unreadable")
            }
            Ok(()) | Err(_) => {}
        }
    }

    async fn refresh_locked(&self) -> Result<(), Unavailable> {
        let version = self.store.members_version().await?;
        match self.current.load_full() {
            Some(old) if old.list.version == version => self.publish(Arc::clone(&old.list)),
            Some(_) | None => self.reload().await?,
        }
        Ok(())
    }

    fn publish(&self, list: Arc<MemberList>) {
        self.current.store(Some(Arc::new(Cached { list, refreshed_at: clock::now() })));
    }

    /// Reloads the whole list. The caller holds the lock `updating`.
    async fn reload(&self) -> Result<(), Unavailable> {
        // The version comes first, so that the next refresh finds changes made while we read.
        let version = self.store.members_version().await?;
        let (members, sessions) = (self.store.members().await?, self.store.sessions().await?);
        let old = self.current.load_full().map(|cached| Arc::clone(&cached.list));
        let new = Arc::new(MemberList::new(version, members, sessions, old.as_deref()));
        self.publish(Arc::clone(&new));
        if let Some(old) = old {
            audit::log_changes(&old, &new);
            old.revoke_missing_from(&new);
        }
        Ok(())
    }
}

impl MemberList {
    fn new(
        version: u64,
        members: Vec<Member>,
        sessions: Vec<LoginSession>,
        old: Option<&Self>,
    ) -> Self {
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
        Self { version, tokens, logins }
    }

    fn entry(&self, token: &Digest) -> Result<&Arc<Entry>, Denied> {
        lookup(&self.tokens, token).ok_or(Denied::Invalid)
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

/// The hash is keyed, so the map's timing reveals nothing; the final comparison is constant-time.
fn lookup<'a, T>(all: &'a HashMap<Digest, T>, id: &Digest) -> Option<&'a T> {
    let (known, value) = all.get_key_value(id)?;
    token::constant_time_eq(known, id).then_some(value)
}

impl Entry {
    fn session(&self) -> (Caller, Session) {
        let &Member { ref name, role, own_budget, ref group, ref may_buy, .. } = &self.member;
        let (revoked, group) = (Some(self.revoked.clone()), group.clone());
        let may_buy = may_buy.clone();
        let session = Session { role, own_budget, group, may_buy, revoked, ..Session::default() };
        (Caller::Member(Arc::clone(name)), session)
    }
}

impl From<Unavailable> for Denied {
    fn from(_: Unavailable) -> Self {
        Self::Unavailable(RETRY_AFTER)
    }
}

#[cfg(test)]
mod tests;
