//! Says whose a JSON Web Token of the web app's own login is (RFC 7519, read as RFC 8725 advises).
//!
//! Invariant: nothing that a token says is believed before its signature is checked, with a key that
//! the settings lead to and an algorithm that this key is for. Nothing is fetched for a token that
//! could not pass with any key.

mod claims;
mod numeric_date;
mod token;

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use jsonwebtoken::{DecodingKey, crypto};
use moka::future::Cache;

use self::claims::Claims;
use self::token::Token;
use super::fetch::{self, Address, InFile, Source};
use super::fresh::{Keys, PAUSE};
use super::key_set::{Found, KeySet};
use super::{Denied, Standing};
use crate::clock;
use crate::config::{self, Jwks};
use crate::store::Caller;

/// A checked token is not checked again for this long.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// The most tokens that are remembered.
const MOST_REMEMBERED: u64 = 10_000;

type Wall = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Checks tokens. Clones share keys and memory.
#[derive(Clone)]
pub struct Jwt {
    rules: Arc<config::Jwt>,
    keys: Arc<Keys>,
    checked: Cache<[u8; 32], Checked>,
    wall: Wall,
}

/// What a token turned out to be.
#[derive(Clone)]
struct Checked {
    caller: Caller,
    standing: Standing,
    until: Duration,
    /// The keys that it was checked with: with others, it is checked again.
    print: blake3::Hash,
}

impl Jwt {
    /// Checks tokens by these settings. A file is read at once; an address is asked when [`Jwt::keep`]
    /// runs.
    ///
    /// # Errors
    /// The file cannot be read, or holds no key that can be used.
    pub fn new(settings: &config::Jwt) -> io::Result<Self> {
        let source: Box<dyn Source> = match &settings.jwks {
            Jwks::Address(address) => Box::new(Address(address.clone())),
            Jwks::File(path) => Box::new(InFile(path.clone())),
        };
        let jwt = Self::with(settings, source, Arc::new(clock::wall));
        if let Jwks::File(path) = &settings.jwks {
            let named = |fault: &dyn fmt::Display| {
                io::Error::other(format!("access.jwt.jwks: {}: {fault}", path.display()))
            };
            let document = fetch::read(path).map_err(|fault| named(&fault))?;
            jwt.keys.take(&document).map_err(|fault| named(&fault))?;
            if jwt.keys.current().is_none_or(|set| set.usable() == 0) {
                return Err(named(&"it holds no key that can be used"));
            }
        }
        Ok(jwt)
    }

    fn with(settings: &config::Jwt, source: Box<dyn Source>, wall: Wall) -> Self {
        Self {
            rules: Arc::new(settings.clone()),
            keys: Arc::new(Keys::new(source)),
            checked: Cache::builder()
                .max_capacity(MOST_REMEMBERED)
                .time_to_live(REMEMBERED_FOR)
                .build(),
            wall,
        }
    }

    /// Keeps the keys fresh for as long as anybody checks tokens with them. Without it, an address is
    /// never asked.
    pub fn keep(&self) -> impl Future<Output = ()> + Send + 'static {
        self.keys.keep()
    }

    /// Asks for the keys soon, as an operator wants who has changed them.
    pub fn look_again(&self) {
        self.keys.look_again();
    }

    /// Whose token it is, and what it may do. `is_let` has a say before its signature is checked, the one
    /// costly step.
    ///
    /// # Errors
    /// It is refused, or there are no keys to tell.
    pub async fn verify(
        &self,
        token: &str,
        is_let: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<(Caller, Standing), Denied> {
        if token.len() > token::LARGEST {
            return Err(Denied::Invalid);
        }
        let hash = *blake3::hash(token.as_bytes()).as_bytes();
        if let Some(checked) = self.remembered(&hash).await {
            return Ok((checked.caller, checked.standing));
        }
        let checked = self.check(token, is_let).await?;
        let who = (checked.caller.clone(), checked.standing.clone());
        self.checked.insert(hash, checked).await;
        Ok(who)
    }

    async fn remembered(&self, hash: &[u8; 32]) -> Option<Checked> {
        let set = self.keys.current()?;
        let checked = self.checked.get(hash).await?;
        let holds = checked.print == set.print() && (self.wall)() < checked.until;
        holds.then_some(checked)
    }

    async fn check(
        &self,
        token: &str,
        is_let: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<Checked, Denied> {
        let token = Token::read(token).map_err(|_| Denied::Invalid)?;
        let claims = Claims::read(&token.claims, &self.rules, (self.wall)());
        let Claims { subject, role, own, until } = claims.map_err(|_| Denied::Invalid)?;
        let set = self.set_for(&token).await?;
        let Found::Key(key) = set.find(token.key.as_deref(), token.algorithm) else {
            return Err(Denied::Invalid);
        };
        is_let()?;
        if !is_signed(&token, key) {
            return Err(Denied::Forged);
        }
        let standing = Standing { role, own, until: Some(until), ..Standing::default() };
        Ok(Checked { caller: Caller::Subject(subject), standing, until, print: set.print() })
    }

    /// The keys to check it with: newer ones where these have never heard of its own.
    async fn set_for(&self, token: &Token<'_>) -> Result<Arc<KeySet>, Denied> {
        let Some(set) = self.keys.current() else {
            return self.keys.newer(None).await.ok_or(Denied::Unavailable { retry_after: PAUSE });
        };
        match set.find(token.key.as_deref(), token.algorithm) {
            Found::Key(_) => Ok(set),
            Found::Unfit => Err(Denied::Invalid),
            Found::Unknown => self.keys.newer(Some(&set)).await.ok_or(Denied::Invalid),
        }
    }
}

/// The keys' names are public, and tokens are in none of these fields; still, less is better in a log.
impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwt").field("rules", &self.rules).finish_non_exhaustive()
    }
}

fn is_signed(token: &Token<'_>, key: &DecodingKey) -> bool {
    let (signature, signed) = (token.signature, token.signed.as_bytes());
    crypto::verify(signature, signed, key, token.algorithm).unwrap_or(false)
}

#[cfg(test)]
pub(super) mod tests;
