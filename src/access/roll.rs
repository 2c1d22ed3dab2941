//! The members and their logins in memory, no older than a moment: what other processes change in the
//! store holds here at the next look.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};
use zeroize::Zeroizing;

use super::keyed::{self, SecretFault};
use super::token::{self, Secret};
use super::{Denied, Standing};
use crate::clock::{self, Instant};
use crate::store::{Caller, Identity, LOOK_EVERY, Member, Role, Session, Store, Unavailable};

/// For how long the last list holds when the store cannot be asked; after that, nobody is let in.
const HOLDS_FOR: Duration = Duration::from_secs(30);
/// When to come back, as long as it cannot.
pub(super) const TRY_AGAIN: Duration = Duration::from_secs(5);
/// How long a login lasts.
const LOGIN_LASTS: Duration = Duration::from_secs(7 * 86_400);

/// Who may call where members may; shared by every core.
pub struct Roll {
    store: Store,
    secret: Secret,
    known: ArcSwapOption<Known>,
    began: Instant,
    /// When the store was last heard, in milliseconds after `began`.
    heard: AtomicU64,
    is_deaf: AtomicBool,
    /// One change at a time, so that no list overtakes a newer one.
    turn: Mutex<()>,
}

/// The list as the store has it.
struct Known {
    edition: u64,
    tokens: HashMap<Identity, Arc<Badge>>,
    logins: HashMap<Identity, Login>,
}

/// A member whose token is good.
struct Badge {
    member: Member,
    ended: CancellationToken,
}

struct Login {
    badge: Arc<Badge>,
    until: Duration,
    ended: CancellationToken,
}

/// A login that was just opened.
pub struct Opened {
    /// What the cookie carries; it is nowhere else.
    pub value: Zeroizing<String>,
    /// For how long.
    pub lasts: Duration,
}

/// How many may call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// All whose token is good.
    pub members: usize,
    /// Those of them with the role.
    pub admins: usize,
}

impl Count {
    /// Of these, revoked ones left out.
    pub fn of<'a>(members: impl IntoIterator<Item = &'a Member>) -> Self {
        let good = members.into_iter().filter(|member| member.revoked.is_none());
        good.fold(Self::default(), |Self { members, admins }, member| Self {
            members: members + 1,
            admins: admins + usize::from(member.role == Role::Admin),
        })
    }
}

impl Roll {
    /// Nobody is let in until the list is read.
    pub fn new(store: Store, secret: Secret) -> Self {
        Self {
            store,
            secret,
            known: ArcSwapOption::empty(),
            began: clock::now(),
            heard: AtomicU64::new(0),
            is_deaf: AtomicBool::new(false),
            turn: Mutex::default(),
        }
    }

    /// Reads the list for the first time. Where that fails, nobody is let in until it can be read.
    ///
    /// # Errors
    /// The tokens were made with another secret.
    pub(super) async fn open(&self) -> Result<(), SecretFault> {
        keyed::recognise(&self.store, &self.secret).await?;
        self.look().await;
        Ok(())
    }

    /// Looks for changes, for ever.
    pub async fn follow(&self) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.look().await;
        }
    }

    /// Whose token it is.
    pub(super) fn by_token(&self, token: &str) -> Result<(Caller, Standing), Denied> {
        let known = self.known()?;
        Ok(known.badge(&token::hash(&self.secret, token))?.shown())
    }

    /// Whose login it is.
    pub(super) fn by_login(&self, value: &str) -> Result<(Caller, Standing), Denied> {
        let known = self.known()?;
        let id = token::hash_cookie(&self.secret, value);
        let login = found(&known.logins, &id).filter(|login| login.until > clock::wall());
        let Login { badge, until, ended } = login.ok_or(Denied::Invalid)?;
        let (caller, standing) = badge.shown();
        let (ended, until) = (Some(ended.clone()), Some(*until));
        Ok((caller, Standing { ended, until, ..standing }))
    }

    /// Opens a login for whoever has this token. Its value is always new, and the one that the browser
    /// carried until now is over.
    pub(super) async fn log_in(
        &self,
        token: &str,
        carried: Option<&str>,
    ) -> Result<Opened, Denied> {
        let known = self.known()?;
        let badge = Arc::clone(known.badge(&token::hash(&self.secret, token))?);
        let value = token::random().map_err(|error| {
            error!(%error, "nobody can log in");
            Denied::Unavailable { retry_after: TRY_AGAIN }
        })?;
        let session = Session {
            id: token::hash_cookie(&self.secret, &value),
            member: Arc::clone(&badge.member.name),
            token: badge.member.token,
            until: clock::wall() + LOGIN_LASTS,
        };
        let _turn = self.turn.lock().await;
        self.store.log_in(&session).await?;
        if let Some(id) = carried.and_then(|value| self.login(value)) {
            self.store.log_out(id).await?;
        }
        self.read().await?;
        Ok(Opened { value, lasts: LOGIN_LASTS })
    }

    /// Ends a login.
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
        let known = self.known.load();
        let is_unknown = known.as_ref().is_some_and(|known| found(&known.logins, &id).is_none());
        (!is_unknown).then_some(id)
    }

    /// How many may call; `None` while the list cannot be read.
    pub fn count(&self) -> Option<Count> {
        let known = self.known().ok()?;
        Some(Count::of(known.tokens.values().map(|badge| &badge.member)))
    }

    fn known(&self) -> Result<Arc<Known>, Denied> {
        let since = self.since_began().saturating_sub(self.heard.load(Ordering::Acquire));
        let holds = u128::from(since) <= HOLDS_FOR.as_millis();
        let known = self.known.load_full().filter(|_| holds);
        known.ok_or(Denied::Unavailable { retry_after: TRY_AGAIN })
    }

    fn since_began(&self) -> u64 {
        u64::try_from(clock::now().duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    /// Reads the list if it is another one.
    pub(super) async fn look(&self) {
        let _turn = self.turn.lock().await;
        let outcome = match self.store.edition().await {
            Ok(edition) if self.edition() == Some(edition) => {
                self.note_heard();
                Ok(())
            }
            Ok(_) => self.read().await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) if self.is_deaf.swap(false, Ordering::AcqRel) => {
                info!("the list of members can be read again");
            }
            Ok(()) => {}
            Err(error) if !self.is_deaf.swap(true, Ordering::AcqRel) => {
                error!(%error, "the list of members cannot be read: soon nobody is let in");
            }
            Err(_still) => {}
        }
    }

    fn edition(&self) -> Option<u64> {
        self.known.load().as_ref().map(|known| known.edition)
    }

    fn note_heard(&self) {
        self.heard.store(self.since_began(), Ordering::Release);
    }

    /// Reads the whole list. Only who has the turn may.
    async fn read(&self) -> Result<(), Unavailable> {
        // The edition first: what changes while we read is found at the next look.
        let edition = self.store.edition().await?;
        let (members, sessions) = (self.store.members().await?, self.store.sessions().await?);
        let old = self.known.load_full();
        let new = Arc::new(Known::new(edition, members, sessions, old.as_deref()));
        self.known.store(Some(Arc::clone(&new)));
        self.note_heard();
        if let Some(old) = old {
            old.end_what_is_not_in(&new);
        }
        Ok(())
    }
}

impl Known {
    fn new(edition: u64, members: Vec<Member>, sessions: Vec<Session>, old: Option<&Self>) -> Self {
        let badge = |member: Member| {
            let before = old.and_then(|old| old.tokens.get(&member.token));
            let ended = before.map_or_else(CancellationToken::new, |badge| badge.ended.clone());
            (member.token, Arc::new(Badge { member, ended }))
        };
        let good = members.into_iter().filter(|member| member.revoked.is_none());
        let tokens: HashMap<_, _> = good.map(badge).collect();
        let login = |session: Session| {
            let badge = tokens.get(&session.token)?;
            if badge.member.name != session.member {
                return None;
            }
            let before = old.and_then(|old| old.logins.get(&session.id));
            let ended =
                before.map_or_else(|| badge.ended.child_token(), |login| login.ended.clone());
            Some((session.id, Login { badge: Arc::clone(badge), until: session.until, ended }))
        };
        let logins = sessions.into_iter().filter_map(login).collect();
        Self { edition, tokens, logins }
    }

    fn badge(&self, token: &Identity) -> Result<&Arc<Badge>, Denied> {
        found(&self.tokens, token).ok_or(Denied::Invalid)
    }

    fn end_what_is_not_in(&self, new: &Self) {
        for (id, badge) in &self.tokens {
            if !new.tokens.contains_key(id) {
                badge.ended.cancel();
            }
        }
        for (id, login) in &self.logins {
            if !new.logins.contains_key(id) {
                login.ended.cancel();
            }
        }
    }
}

/// A hash with a key of ours: what the map's own comparing tells in time says nothing of a token. The
/// last word has a comparison that takes the same time for all.
fn found<'a, T>(all: &'a HashMap<Identity, T>, id: &Identity) -> Option<&'a T> {
    let (known, value) = all.get_key_value(id)?;
    token::is_same(known, id).then_some(value)
}

impl Badge {
    fn shown(&self) -> (Caller, Standing) {
        let Member { name, role, own, .. } = &self.member;
        let ended = Some(self.ended.clone());
        (Caller::Member(Arc::clone(name)), Standing { role: *role, own: *own, ended, until: None })
    }
}

impl From<Unavailable> for Denied {
    fn from(_: Unavailable) -> Self {
        Self::Unavailable { retry_after: TRY_AGAIN }
    }
}

#[cfg(test)]
mod tests;
