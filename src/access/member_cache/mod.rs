//! The members and their logins in memory, no older than a moment: what other processes change in the
//! store holds here at the next look.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use zeroize::Zeroizing;

use super::token::{self, Secret};
use super::{Denied, Session};
use crate::clock::{self, Instant};
use crate::store::{
    Caller, Digest, LoginSession, Member, Role, Store, Unavailable, VERSION_POLL_INTERVAL,
};

/// For how long the last list holds when the store cannot be asked; after that, nobody is let in.
const MAX_STALE: Duration = Duration::from_secs(30);
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(5);
const LOGIN_LIFETIME: Duration = Duration::from_secs(7 * 86_400);

pub struct MemberCache {
    store: Store,
    secret: Secret,
    current: ArcSwapOption<Cached>,
    is_failing: AtomicBool,
    /// One change at a time, so that no list overtakes a newer one.
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
    ended: CancellationToken,
}

struct Login {
    entry: Arc<Entry>,
    until: Duration,
    ended: CancellationToken,
}

pub struct LoginCookie {
    pub value: Zeroizing<String>,
    pub max_age: Duration,
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
    /// Nobody is let in until the list is read.
    pub fn new(store: Store, secret: Secret) -> Self {
        Self {
            store,
            secret,
            current: ArcSwapOption::empty(),
            is_failing: AtomicBool::new(false),
            updating: Mutex::default(),
        }
    }

    pub(super) async fn load(&self) -> Result<(), SecretError> {
        check_secret(&self.store, &self.secret).await?;
        self.refresh().await;
        Ok(())
    }

    pub async fn run(&self) {
        let mut looks = interval(VERSION_POLL_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.refresh().await;
        }
    }

    pub(super) fn by_token(&self, token: &str) -> Result<(Caller, Session), Denied> {
        Ok(self.list()?.entry(&token::hash_token(&self.secret, token))?.session())
    }

    pub(super) fn by_login(&self, value: &str) -> Result<(Caller, Session), Denied> {
        let known = self.list()?;
        let id = token::hash_cookie(&self.secret, value);
        let login = lookup(&known.logins, &id).filter(|login| login.until > clock::wall());
        let Login { entry, until, ended } = login.ok_or(Denied::Invalid)?;
        let (caller, standing) = entry.session();
        let (ended, until) = (Some(ended.clone()), Some(*until));
        Ok((caller, Session { revoked: ended, expires_at: until, ..standing }))
    }

    pub(super) async fn log_in(
        &self,
        token: &str,
        carried: Option<&str>,
    ) -> Result<LoginCookie, Denied> {
        let known = self.list()?;
        let entry = Arc::clone(known.entry(&token::hash_token(&self.secret, token))?);
        let value = token::random().map_err(|error| {
            error!(%error, "nobody can log in");
            Denied::Unavailable(RETRY_AFTER)
        })?;
        let session = LoginSession {
            id: token::hash_cookie(&self.secret, &value),
            member: Arc::clone(&entry.member.name),
            token: entry.member.token,
            expires_at: self.store.now() + LOGIN_LIFETIME,
        };
        let _turn = self.updating.lock().await;
        self.store.log_in(&session).await?;
        if let Some(id) = carried.and_then(|value| self.login_id(value)) {
            self.store.log_out(id).await?;
        }
        self.reload().await?;
        Ok(LoginCookie { value, max_age: LOGIN_LIFETIME })
    }

    pub(super) async fn log_out(&self, value: &str) -> Result<(), Unavailable> {
        let Some(id) = self.login_id(value) else { return Ok(()) };
        let _turn = self.updating.lock().await;
        self.store.log_out(id).await?;
        self.reload().await
    }

    /// The login of this value, where there is one: what anybody may invent costs the store nothing. While
    /// the list cannot be read, it is for the store to say.
    fn login_id(&self, value: &str) -> Option<Digest> {
        let id = token::hash_cookie(&self.secret, value);
        let latest = self.current.load();
        let is_unknown = |latest: &Arc<Cached>| lookup(&latest.list.logins, &id).is_none();
        (!latest.as_ref().is_some_and(is_unknown)).then_some(id)
    }

    pub fn count(&self) -> Option<MemberCount> {
        let known = self.list().ok()?;
        Some(MemberCount::of(known.tokens.values().map(|entry| &entry.member)))
    }

    fn list(&self) -> Result<Arc<MemberList>, Denied> {
        let latest = self.current.load();
        let holds =
            |latest: &&Arc<Cached>| clock::now().duration_since(latest.refreshed_at) <= MAX_STALE;
        let known = latest.as_ref().filter(holds).map(|latest| Arc::clone(&latest.list));
        known.ok_or(Denied::Unavailable(RETRY_AFTER))
    }

    pub(super) async fn refresh(&self) {
        let _turn = self.updating.lock().await;
        let outcome = self.refresh_locked().await;
        match (&outcome, self.is_failing.swap(outcome.is_err(), Ordering::AcqRel)) {
            (Ok(()), true) => info!("the list of members can be read again"),
            (Err(error), false) => {
                error!(%error, "the list of members cannot be read: soon nobody is let in");
            }
            (Ok(()), false) | (Err(_), true) => {}
        }
    }

    async fn refresh_locked(&self) -> Result<(), Unavailable> {
        let edition = self.store.members_version().await?;
        match self.current.load_full() {
            Some(old) if old.list.version == edition => self.publish(Arc::clone(&old.list)),
            Some(_) | None => self.reload().await?,
        }
        Ok(())
    }

    fn publish(&self, known: Arc<MemberList>) {
        self.current.store(Some(Arc::new(Cached { list: known, refreshed_at: clock::now() })));
    }

    /// Reads the whole list. Only who has the turn may.
    async fn reload(&self) -> Result<(), Unavailable> {
        // The edition first: what changes while we read is found at the next look.
        let edition = self.store.members_version().await?;
        let (members, sessions) = (self.store.members().await?, self.store.sessions().await?);
        let old = self.current.load_full().map(|latest| Arc::clone(&latest.list));
        let new = Arc::new(MemberList::new(edition, members, sessions, old.as_deref()));
        self.publish(Arc::clone(&new));
        if let Some(old) = old {
            old.revoke_missing_from(&new);
        }
        Ok(())
    }
}

impl MemberList {
    fn new(
        edition: u64,
        members: Vec<Member>,
        sessions: Vec<LoginSession>,
        old: Option<&Self>,
    ) -> Self {
        let entry = |member: Member| {
            let before = old.and_then(|old| old.tokens.get(&member.token));
            let ended = before.map_or_else(CancellationToken::new, |entry| entry.ended.clone());
            (member.token, Arc::new(Entry { member, ended }))
        };
        let good = members.into_iter().filter(|member| member.revoked_at.is_none());
        let tokens: HashMap<_, _> = good.map(entry).collect();
        let login = |session: LoginSession| {
            let entry = tokens.get(&session.token)?;
            if entry.member.name != session.member {
                return None;
            }
            let before = old.and_then(|old| old.logins.get(&session.id));
            let ended =
                before.map_or_else(|| entry.ended.child_token(), |login| login.ended.clone());
            Some((session.id, Login { entry: Arc::clone(entry), until: session.expires_at, ended }))
        };
        let logins = sessions.into_iter().filter_map(login).collect();
        Self { version: edition, tokens, logins }
    }

    fn entry(&self, token: &Digest) -> Result<&Arc<Entry>, Denied> {
        lookup(&self.tokens, token).ok_or(Denied::Invalid)
    }

    fn revoke_missing_from(&self, new: &Self) {
        let tokens = self.tokens.iter().filter(|(id, _)| !new.tokens.contains_key(*id));
        tokens.for_each(|(_, entry)| entry.ended.cancel());
        let logins = self.logins.iter().filter(|(id, _)| !new.logins.contains_key(*id));
        logins.for_each(|(_, login)| login.ended.cancel());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error(
        "the secret is not the one that the members' tokens in this ledger were made with, and none of \
         them would hold: set TOLLGATE_SECRET, or put the file tollgate.secret back, as they were; or \
         go on with the secret as it is, and give each member another token: \
         `tollgate member rotate NAME --new-secret`"
    )]
    Mismatch,
    #[error(
        "the secret that the members' tokens in this ledger were made with is gone, and none of them \
         would hold: set TOLLGATE_SECRET, or put the file tollgate.secret back beside the ledger; or \
         make another, and give each member another token: `tollgate member rotate NAME`"
    )]
    Lost,
}

/// Refuses a secret other than the one the tokens were made with, and notes it the first time.
async fn check_secret(members: &Store, secret: &Secret) -> Result<(), SecretError> {
    match members.token_secret_fingerprint().await {
        Ok(Some(print)) if print != secret.fingerprint() => Err(SecretError::Mismatch),
        Ok(Some(_)) | Err(_) => Ok(()),
        Ok(None) => {
            if let Err(error) = members.set_token_secret_fingerprint(secret.fingerprint()).await {
                warn!(%error, "which secret the tokens are made with could not be noted");
            }
            Ok(())
        }
    }
}

/// The hash is keyed, so the map's timing says nothing of a token; the last comparison takes the same time
/// for all.
fn lookup<'a, T>(all: &'a HashMap<Digest, T>, id: &Digest) -> Option<&'a T> {
    let (known, value) = all.get_key_value(id)?;
    token::constant_time_eq(known, id).then_some(value)
}

impl Entry {
    fn session(&self) -> (Caller, Session) {
        let Member { name, role, own_budget: own, .. } = &self.member;
        let ended = Some(self.ended.clone());
        (
            Caller::Member(Arc::clone(name)),
            Session { role: *role, own_budget: *own, revoked: ended, expires_at: None },
        )
    }
}

impl From<Unavailable> for Denied {
    fn from(_: Unavailable) -> Self {
        Self::Unavailable(RETRY_AFTER)
    }
}

#[cfg(test)]
mod tests;
