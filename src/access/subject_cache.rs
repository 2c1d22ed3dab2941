//! An in-memory copy of the sessions of a login service's users.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::cached_list::{CachedList, Listed};
use super::token::{self, Secret};
use super::{Denied, Session, random_value};
use crate::clock;
use crate::store::{Caller, Digest, Store, Subject, SubjectLogin, SubjectTerms, Unavailable};

pub struct SubjectCache {
    secret: Secret,
    /// Users of another service are strangers, whatever their name.
    issuer: Arc<str>,
    pub(super) logins: CachedList<LoginList>,
}

/// The sessions of all services that the ledger knows, by the hash of the cookie.
pub(super) struct LoginList(HashMap<Digest, Entry>);

struct Entry {
    login: SubjectLogin,
    revoked: CancellationToken,
}

impl Listed for LoginList {
    async fn read(store: &Store, old: Option<&Self>) -> Result<Self, Unavailable> {
        let entry = |login: SubjectLogin| {
            let before = old.and_then(|old| old.0.get(&login.id));
            let revoked = before.map(|entry| entry.revoked.clone()).unwrap_or_default();
            (login.id, Entry { login, revoked })
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
        Self { secret, issuer: issuer.into(), logins: CachedList::new(store) }
    }

    /// Looks a cookie up. Another instance may have set it a moment ago, so a miss asks the store.
    pub(super) async fn by_cookie(
        &self,
        value: &str,
        admit: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<(Caller, Session), Denied> {
        let id = token::hash_cookie(&self.secret, value);
        if let Some(found) = self.session(&id)? {
            return Ok(found);
        }
        admit()?;
        self.logins.refresh_since(clock::now()).await;
        self.session(&id)?.ok_or(Denied::Invalid)
    }

    fn session(&self, id: &Digest) -> Result<Option<(Caller, Session)>, Denied> {
        let list = self.logins.list()?;
        let Some(Entry { login, revoked }) = list.find(id) else { return Ok(None) };
        let Subject { issuer, name, terms } = &login.subject;
        if *issuer != self.issuer {
            return Ok(None);
        }
        let SubjectTerms { role, own_budget, may_buy, display_name } = terms.clone();
        let session = Session {
            role,
            own_budget,
            may_buy,
            display_name,
            revoked: Some(revoked.clone()),
            expires_at: Some(login.expires_at),
            ..Session::default()
        };
        Ok(Some((Caller::Subject(Arc::clone(name)), session)))
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
        let login = SubjectLogin { id, subject, expires_at: store.now() + lifetime };
        let guard = self.logins.lock().await;
        store.sign_in(&login).await?;
        if let Some(id) = current.and_then(|value| self.known_id(value)) {
            store.sign_out(id).await?;
        }
        self.logins.reload(&guard).await?;
        Ok(value)
    }

    pub(super) async fn sign_out(&self, value: &str) -> Result<(), Unavailable> {
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
}
