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
use super::{Denied, Standing};
use crate::clock::{self, Instant};
use crate::store::{Caller, Identity, LOOK_EVERY, Member, Role, Session, Store, Unavailable};

/// For how long the last list holds when the store cannot be asked; after that, nobody is let in.
const HOLDS_FOR: Duration = Duration::from_secs(30);
pub(super) const TRY_AGAIN: Duration = Duration::from_secs(5);
const LOGIN_LASTS: Duration = Duration::from_secs(7 * 86_400);

pub struct Roll {
    store: Store,
    secret: Secret,
    latest: ArcSwapOption<Latest>,
    is_failing: AtomicBool,
    /// One change at a time, so that no list overtakes a newer one.
    turn: Mutex<()>,
}

struct Latest {
    known: Arc<Known>,
    refreshed_at: Instant,
}

struct Known {
    edition: u64,
    tokens: HashMap<Identity, Arc<Entry>>,
    logins: HashMap<Identity, Login>,
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

pub struct Opened {
    pub value: Zeroizing<String>,
    pub lasts: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub members: usize,
    pub admins: usize,
}

impl Count {
    pub fn of<'a>(members: impl IntoIterator<Item = &'a Member>) -> Self {
        let mut count = Self::default();
        for member in members.into_iter().filter(|member| member.revoked.is_none()) {
            count.members += 1;
            count.admins += usize::from(member.role == Role::Admin);
        }
        count
    }
}

impl Roll {
    /// Nobody is let in until the list is read.
    pub fn new(store: Store, secret: Secret) -> Self {
        Self {
            store,
            secret,
            latest: ArcSwapOption::empty(),
            is_failing: AtomicBool::new(false),
            turn: Mutex::default(),
        }
    }

    pub(super) async fn open(&self) -> Result<(), SecretFault> {
        recognise(&self.store, &self.secret).await?;
        self.look().await;
        Ok(())
    }

    pub async fn follow(&self) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.look().await;
        }
    }

    pub(super) fn by_token(&self, token: &str) -> Result<(Caller, Standing), Denied> {
        Ok(self.known()?.entry(&token::hash(&self.secret, token))?.shown())
    }

    pub(super) fn by_login(&self, value: &str) -> Result<(Caller, Standing), Denied> {
        let known = self.known()?;
        let id = token::hash_cookie(&self.secret, value);
        let login = found(&known.logins, &id).filter(|login| login.until > clock::wall());
        let Login { entry, until, ended } = login.ok_or(Denied::Invalid)?;
        let (caller, standing) = entry.shown();
        let (ended, until) = (Some(ended.clone()), Some(*until));
        Ok((caller, Standing { ended, until, ..standing }))
    }

    pub(super) async fn log_in(
        &self,
        token: &str,
        carried: Option<&str>,
    ) -> Result<Opened, Denied> {
        let known = self.known()?;
        let entry = Arc::clone(known.entry(&token::hash(&self.secret, token))?);
        let value = token::random().map_err(|error| {
            error!(%error, "nobody can log in");
            Denied::Unavailable(TRY_AGAIN)
        })?;
        let session = Session {
            id: token::hash_cookie(&self.secret, &value),
            member: Arc::clone(&entry.member.name),
            token: entry.member.token,
            until: self.store.now() + LOGIN_LASTS,
        };
        let _turn = self.turn.lock().await;
        self.store.log_in(&session).await?;
        if let Some(id) = carried.and_then(|value| self.login(value)) {
            self.store.log_out(id).await?;
        }
        self.read().await?;
        Ok(Opened { value, lasts: LOGIN_LASTS })
    }

    pub(super) async fn log_out(&self, value: &str) -> Result<(), Unavailable> {
        let Some(id) = self.login(value) else { return Ok(()) };
        let _turn = self.turn.lock().await;
        self.store.log_out(id).await?;
        self.read().await
    }

    /// The login of this value, where there is one: what anybody may invent costs the store nothing. While
    /// the list cannot be read, it is for the store to say.
    fn login(&self, value: &str) -> Option<Identity> {
        let id = token::hash_cookie(&self.secret, value);
        let latest = self.latest.load();
        let is_unknown = |latest: &Arc<Latest>| found(&latest.known.logins, &id).is_none();
        (!latest.as_ref().is_some_and(is_unknown)).then_some(id)
    }

    pub fn count(&self) -> Option<Count> {
        let known = self.known().ok()?;
        Some(Count::of(known.tokens.values().map(|entry| &entry.member)))
    }

    fn known(&self) -> Result<Arc<Known>, Denied> {
        let latest = self.latest.load();
        let holds =
            |latest: &&Arc<Latest>| clock::now().duration_since(latest.refreshed_at) <= HOLDS_FOR;
        let known = latest.as_ref().filter(holds).map(|latest| Arc::clone(&latest.known));
        known.ok_or(Denied::Unavailable(TRY_AGAIN))
    }

    pub(super) async fn look(&self) {
        let _turn = self.turn.lock().await;
        let outcome = self.look_in_turn().await;
        match (&outcome, self.is_failing.swap(outcome.is_err(), Ordering::AcqRel)) {
            (Ok(()), true) => info!("the list of members can be read again"),
            (Err(error), false) => {
                error!(%error, "the list of members cannot be read: soon nobody is let in");
            }
            (Ok(()), false) | (Err(_), true) => {}
        }
    }

    async fn look_in_turn(&self) -> Result<(), Unavailable> {
        let edition = self.store.edition().await?;
        match self.latest.load_full() {
            Some(old) if old.known.edition == edition => self.refreshed(Arc::clone(&old.known)),
            Some(_) | None => self.read().await?,
        }
        Ok(())
    }

    fn refreshed(&self, known: Arc<Known>) {
        self.latest.store(Some(Arc::new(Latest { known, refreshed_at: clock::now() })));
    }

    /// Reads the whole list. Only who has the turn may.
    async fn read(&self) -> Result<(), Unavailable> {
        // The edition first: what changes while we read is found at the next look.
        let edition = self.store.edition().await?;
        let (members, sessions) = (self.store.members().await?, self.store.sessions().await?);
        let old = self.latest.load_full().map(|latest| Arc::clone(&latest.known));
        let new = Arc::new(Known::new(edition, members, sessions, old.as_deref()));
        self.refreshed(Arc::clone(&new));
        if let Some(old) = old {
            old.end_what_is_not_in(&new);
        }
        Ok(())
    }
}

impl Known {
    fn new(edition: u64, members: Vec<Member>, sessions: Vec<Session>, old: Option<&Self>) -> Self {
        let entry = |member: Member| {
            let before = old.and_then(|old| old.tokens.get(&member.token));
            let ended = before.map_or_else(CancellationToken::new, |entry| entry.ended.clone());
            (member.token, Arc::new(Entry { member, ended }))
        };
        let good = members.into_iter().filter(|member| member.revoked.is_none());
        let tokens: HashMap<_, _> = good.map(entry).collect();
        let login = |session: Session| {
            let entry = tokens.get(&session.token)?;
            if entry.member.name != session.member {
                return None;
            }
            let before = old.and_then(|old| old.logins.get(&session.id));
            let ended =
                before.map_or_else(|| entry.ended.child_token(), |login| login.ended.clone());
            Some((session.id, Login { entry: Arc::clone(entry), until: session.until, ended }))
        };
        let logins = sessions.into_iter().filter_map(login).collect();
        Self { edition, tokens, logins }
    }

    fn entry(&self, token: &Identity) -> Result<&Arc<Entry>, Denied> {
        found(&self.tokens, token).ok_or(Denied::Invalid)
    }

    fn end_what_is_not_in(&self, new: &Self) {
        let tokens = self.tokens.iter().filter(|(id, _)| !new.tokens.contains_key(*id));
        tokens.for_each(|(_, entry)| entry.ended.cancel());
        let logins = self.logins.iter().filter(|(id, _)| !new.logins.contains_key(*id));
        logins.for_each(|(_, login)| login.ended.cancel());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretFault {
    #[error(
        "the secret is not the one that the members' tokens in this ledger were made with, and none of \
         them would hold: set TOLLGATE_SECRET, or put the file tollgate.secret back, as they were; or \
         go on with the secret as it is, and give each member another token: \
         `tollgate member rotate NAME --new-secret`"
    )]
    Another,
    #[error(
        "the secret that the members' tokens in this ledger were made with is gone, and none of them \
         would hold: set TOLLGATE_SECRET, or put the file tollgate.secret back beside the ledger; or \
         make another, and give each member another token: `tollgate member rotate NAME`"
    )]
    Lost,
}

/// Refuses a secret other than the one the tokens were made with, and notes it the first time.
async fn recognise(members: &Store, secret: &Secret) -> Result<(), SecretFault> {
    match members.keyed_by().await {
        Ok(Some(print)) if print != secret.print() => Err(SecretFault::Another),
        Ok(Some(_)) | Err(_) => Ok(()),
        Ok(None) => {
            if let Err(error) = members.key_by(secret.print()).await {
                warn!(%error, "which secret the tokens are made with could not be noted");
            }
            Ok(())
        }
    }
}

/// The hash is keyed, so the map's timing says nothing of a token; the last comparison takes the same time
/// for all.
fn found<'a, T>(all: &'a HashMap<Identity, T>, id: &Identity) -> Option<&'a T> {
    let (known, value) = all.get_key_value(id)?;
    token::is_same(known, id).then_some(value)
}

impl Entry {
    fn shown(&self) -> (Caller, Standing) {
        let Member { name, role, own, .. } = &self.member;
        let ended = Some(self.ended.clone());
        (Caller::Member(Arc::clone(name)), Standing { role: *role, own: *own, ended, until: None })
    }
}

impl From<Unavailable> for Denied {
    fn from(_: Unavailable) -> Self {
        Self::Unavailable(TRY_AGAIN)
    }
}

#[cfg(test)]
mod tests;
