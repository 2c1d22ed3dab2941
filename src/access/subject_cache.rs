//! An in-memory copy of the sessions and tokens of a login service's users.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::cached_list::{CachedList, Listed};
use super::token::{self, MemberToken, Secret};
use super::{Denied, NO_SESSION, Session, TokenBudget, random_value};
use crate::clock;
use crate::ledger::{
    Caller, Digest, Role, SpendLimit, Store, Subject, SubjectLogin, SubjectTerms, SubjectToken,
    TokenRefusal, Unavailable, VERSION_POLL_INTERVAL,
};
use crate::sync::lock;

/// The last use of a token is recorded to the minute.
const USE_RESOLUTION: u64 = 60;

pub struct SubjectCache {
    secret: Secret,
    /// Users of another service are strangers, whatever their name.
    issuer: Arc<str>,
    logins: CachedList<LoginList>,
    /// Tokens whose use is not in the ledger yet.
    used: Mutex<HashMap<Digest, Duration>>,
}

/// The sessions and tokens of all services that the ledger knows, by keyed hash.
struct LoginList(HashMap<Digest, Entry>);

struct Entry {
    login: SubjectLogin,
    revoked: CancellationToken,
    /// The budget of a token that has its own.
    budget: Option<Arc<TokenBudget>>,
    /// When a use of the token was last noted, in seconds since the Unix epoch.
    noted: Arc<AtomicU64>,
}

impl Entry {
    fn new(login: SubjectLogin, before: Option<&Self>) -> Self {
        let revoked = before.map(|entry| entry.revoked.clone()).unwrap_or_default();
        let noted = before.map(|entry| Arc::clone(&entry.noted)).unwrap_or_default();
        let budget = login.token_budget.filter(|budget| !budget.is_none());
        let of = |budget| Arc::new(TokenBudget { id: ledger_name(&login.id), budget });
        let budget = budget.map(of);
        Self { login, revoked, budget, noted }
    }
}

/// Returns the name of a token's budget in the ledger. It reveals nothing of the token.
pub(super) fn ledger_name(id: &Digest) -> Arc<str> {
    blake3::hash(id).to_hex().chars().take(32).collect::<String>().into()
}

impl Listed for LoginList {
    async fn read(store: &Store, old: Option<&Self>) -> Result<Self, Unavailable> {
        let entry = |login: SubjectLogin| {
            let before = old.and_then(|old| old.0.get(&login.id));
            (login.id, Entry::new(login, before))
        };
        Ok(Self(store.subject_logins().await?.into_iter().map(entry).collect()))
    }

    fn replaces(&self, old: &Self) {
        let ended = old.0.iter().filter(|(id, _)| !self.0.contains_key(*id));
        ended.for_each(|(_, entry)| entry.revoked.cancel());
    }
}

impl LoginList {
    fn find(&self, id: &Digest) -> Option<&Entry> {
        token::lookup(&self.0, id).filter(|entry| entry.login.expires_at > clock::wall())
    }
}

impl SubjectCache {
    pub fn new(store: Store, secret: Secret, issuer: &str) -> Self {
        let (logins, used) = (CachedList::new(store), Mutex::default());
        Self { secret, issuer: issuer.into(), logins, used }
    }

    pub(super) async fn refresh(&self) {
        self.logins.refresh().await;
    }

    pub(super) async fn run(&self) {
        futures_util::join!(self.logins.run(), self.record_uses());
    }

    async fn record_uses(&self) {
        let mut ticks = interval(VERSION_POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let used: Vec<_> = lock(&self.used).drain().collect();
            if !used.is_empty() {
                // A use that is lost is recorded a minute later.
                self.logins.store.mark_tokens_used(used).await.ok();
            }
        }
    }

    pub(super) async fn by_cookie(
        &self,
        value: &str,
        admit: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<(Caller, Session), Denied> {
        self.find(&token::hash_cookie(&self.secret, value), admit).await
    }

    pub(super) async fn by_token(
        &self,
        token: &str,
        admit: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<(Caller, Session), Denied> {
        if token::prefix(token).is_empty() {
            return Err(Denied::Invalid("not one of tollgate's tokens"));
        }
        let id = token::hash_token(&self.secret, token);
        let found = self.find(&id, admit).await?;
        self.note_use(&id);
        Ok(found)
    }

    /// Another instance may have added it a moment ago, so a miss asks the store.
    async fn find(
        &self,
        id: &Digest,
        admit: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<(Caller, Session), Denied> {
        if let Some(found) = self.session(id)? {
            return Ok(found);
        }
        admit()?;
        self.logins.refresh_since(clock::now()).await;
        self.session(id)?.ok_or(Denied::Invalid(NO_SESSION))
    }

    fn session(&self, id: &Digest) -> Result<Option<(Caller, Session)>, Denied> {
        let list = self.logins.list()?;
        let Some(Entry { login, revoked, budget, .. }) = list.find(id) else { return Ok(None) };
        let Subject { issuer, name, terms } = &login.subject;
        if *issuer != self.issuer {
            return Ok(None);
        }
        let SubjectTerms { role, own_budget, group, may_buy, display_name } = terms.clone();
        // The claims of the sign-in may be a year old, so programs are never admins.
        let role = if login.token_budget.is_some() { Role::Member } else { role };
        let session = Session {
            role,
            own_budget,
            group,
            may_buy,
            display_name,
            token: budget.clone(),
            revoked: Some(revoked.clone()),
            expires_at: Some(login.expires_at),
        };
        Ok(Some((Caller::Subject(Arc::clone(name)), session)))
    }

    fn note_use(&self, id: &Digest) {
        let Some(list) = self.logins.last() else { return };
        let Some(entry) = list.0.get(id) else { return };
        let (now, before) = (clock::wall(), entry.noted.load(Ordering::Relaxed));
        if now.as_secs() >= before + USE_RESOLUTION {
            entry.noted.store(now.as_secs(), Ordering::Relaxed);
            lock(&self.used).insert(*id, now);
        }
    }

    /// Opens a session, and ends the one of the browser's cookie `current`. Returns the new cookie's
    /// value.
    pub(super) async fn sign_in(
        &self,
        (name, terms): (Arc<str>, SubjectTerms),
        lifetime: Duration,
        current: Option<&str>,
    ) -> Result<Zeroizing<String>, Denied> {
        let value = random_value()?;
        let subject = Subject { issuer: Arc::clone(&self.issuer), name, terms };
        let store = &self.logins.store;
        let id = token::hash_cookie(&self.secret, &value);
        let expires_at = store.now() + lifetime;
        let login = SubjectLogin { id, subject, expires_at, token_budget: None };
        let guard = self.logins.lock().await;
        store.sign_in(&login).await?;
        if let Some(id) = current.and_then(|value| self.known_id(value)) {
            store.sign_out(id).await?;
        }
        self.logins.reload(&guard).await?;
        Ok(value)
    }

    pub(super) async fn sign_out(&self, value: &str) -> Result<(), Unavailable> {
        if self.known_id(value).is_none() {
            // Another instance may have opened it a moment ago.
            self.logins.refresh_since(clock::now()).await;
        }
        let Some(id) = self.known_id(value) else { return Ok(()) };
        let guard = self.logins.lock().await;
        self.logins.store.sign_out(id).await?;
        self.logins.reload(&guard).await
    }

    /// Returns the id of a session that may exist, so that made-up cookies never reach the store.
    fn known_id(&self, value: &str) -> Option<Digest> {
        let id = token::hash_cookie(&self.secret, value);
        self.logins.last().is_none_or(|list| list.0.contains_key(&id)).then_some(id)
    }

    /// Makes a token of the user with this cookie.
    pub(super) async fn add_token(
        &self,
        cookie: &str,
        name: &str,
        (budget, expires_at): (SpendLimit, Duration),
    ) -> Result<Result<(MemberToken, SubjectToken), TokenRefusal>, Denied> {
        let token = token::mint().map_err(super::no_random)?;
        let made = SubjectToken {
            id: token::hash_token(&self.secret, token.expose()),
            name: name.into(),
            prefix: token.prefix().into(),
            budget,
            created_at: self.logins.store.now(),
            expires_at,
            last_used: None,
        };
        let guard = self.logins.lock().await;
        let session = token::hash_cookie(&self.secret, cookie);
        let added = self.logins.store.add_token(session, &made).await?;
        self.logins.reload(&guard).await?;
        Ok(added.map(|()| (token, made)))
    }

    pub(super) async fn tokens(&self, cookie: &str) -> Result<Vec<SubjectToken>, Unavailable> {
        self.logins.store.tokens(token::hash_cookie(&self.secret, cookie)).await
    }

    /// Ends a token of the user with this cookie. Returns whether there was one.
    pub(super) async fn remove_token(
        &self,
        cookie: &str,
        name: Arc<str>,
    ) -> Result<bool, Unavailable> {
        let guard = self.logins.lock().await;
        let session = token::hash_cookie(&self.secret, cookie);
        let is_removed = self.logins.store.remove_token(session, name).await?;
        self.logins.reload(&guard).await?;
        Ok(is_removed)
    }
}
