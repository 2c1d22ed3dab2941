//! Says whose a JSON Web Token of the web app's own login is (RFC 7519, read as RFC 8725 advises).
//!
//! Invariant: nothing that a token says is believed before its signature is checked, with a key that
//! the settings lead to and an algorithm that this key is for. Nothing is fetched for a token that
//! could not pass with any key.

mod claims;
mod fresh;
mod key_set;

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, crypto};
use moka::future::Cache;

use super::{Denied, Standing};
use crate::clock;
use crate::config::{self, Jwks};
use crate::store::Caller;
use claims::{Claims, Malformed, Object};
use fresh::{Fault, Keys, PAUSE, Source};
use key_set::{Found, KeySet, algorithm};

const REMEMBERED_FOR: Duration = Duration::from_secs(60);
const MAX_REMEMBERED: u64 = 10_000;

#[derive(Clone)]
pub struct Jwt {
    rules: Arc<config::Jwt>,
    keys: Arc<Keys>,
    checked: Cache<[u8; 32], Checked>,
}

#[derive(Clone)]
struct Checked {
    caller: Caller,
    standing: Standing,
    /// The keys that it was checked with: with others, it is checked again.
    print: blake3::Hash,
}

impl Jwt {
    /// A file is read at once and must hold a usable key; an address is fetched when [`Jwt::keep`] runs.
    pub fn new(settings: &config::Jwt) -> io::Result<Self> {
        let jwt = Self::with(settings, fresh::source(&settings.jwks));
        if let Jwks::File(path) = &settings.jwks {
            let read = || -> Result<(), Fault> {
                jwt.keys.take(&fresh::read_file(path)?)?;
                let usable = jwt.keys.current().map_or(0, |set| set.usable());
                if usable == 0 { Err("it holds no key that can be used".into()) } else { Ok(()) }
            };
            let named = |fault: Fault| format!("access.jwt.jwks: {}: {fault}", path.display());
            read().map_err(|fault| io::Error::other(named(fault)))?;
        }
        Ok(jwt)
    }

    fn with(settings: &config::Jwt, source: Source) -> Self {
        Self {
            rules: Arc::new(settings.clone()),
            keys: Arc::new(Keys::new(source)),
            checked: Cache::builder()
                .max_capacity(MAX_REMEMBERED)
                .time_to_live(REMEMBERED_FOR)
                .build(),
        }
    }

    pub fn keep(&self) -> impl Future<Output = ()> + Send + 'static {
        self.keys.keep()
    }

    pub fn look_again(&self) {
        self.keys.look_again();
    }

    /// `is_let` has a say before the signature is checked, the one costly step.
    pub async fn verify(
        &self,
        token: &str,
        is_let: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<(Caller, Standing), Denied> {
        if token.len() > MAX_TOKEN {
            return Err(Denied::Invalid);
        }
        let hash = *blake3::hash(token.as_bytes()).as_bytes();
        let current = self.keys.current();
        let holds = |known: &Checked| {
            let print = current.as_ref().map(|set| set.print);
            print == Some(known.print) && !known.standing.is_over()
        };
        let checked = match self.checked.get(&hash).await.filter(holds) {
            Some(checked) => checked,
            None => {
                let checked = self.check(token, is_let).await?;
                self.checked.insert(hash, checked.clone()).await;
                checked
            }
        };
        Ok((checked.caller, checked.standing))
    }

    async fn check(
        &self,
        token: &str,
        is_let: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<Checked, Denied> {
        let token = Token::read(token).map_err(|_| Denied::Invalid)?;
        let claims = Claims::read(&token.claims, &self.rules, clock::wall());
        let Claims { subject, role, own, until } = claims.map_err(|_| Denied::Invalid)?;
        let set = self.set_for(&token).await?;
        let Found::Key(key) = set.find(token.key.as_deref(), token.algorithm) else {
            return Err(Denied::Invalid);
        };
        is_let()?;
        let signed = token.signed.as_bytes();
        if !crypto::verify(token.signature, signed, key, token.algorithm).unwrap_or(false) {
            return Err(Denied::Forged);
        }
        let standing = Standing { role, own, until: Some(until), ..Standing::default() };
        Ok(Checked { caller: Caller::Subject(subject), standing, print: set.print })
    }

    /// The keys to check it with: newer ones where these have never heard of its own.
    async fn set_for(&self, token: &Token<'_>) -> Result<Arc<KeySet>, Denied> {
        let Some(set) = self.keys.current() else {
            return self.keys.newer(None).await.ok_or(Denied::Unavailable(PAUSE));
        };
        match set.find(token.key.as_deref(), token.algorithm) {
            Found::Key(_) => Ok(set),
            Found::Unfit => Err(Denied::Invalid),
            Found::Unknown => self.keys.newer(Some(&set)).await.ok_or(Denied::Invalid),
        }
    }
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwt").field("rules", &self.rules).finish_non_exhaustive()
    }
}

const MAX_TOKEN: usize = 8 * 1_024;
/// What a token may call itself: an access token (RFC 9068), or a token that says no more. Others, such as
/// `logout+jwt`, are for other doors.
const KINDS: &[&str] = &["jwt", "at+jwt", "application/jwt", "application/at+jwt"];
/// What changes how the rest is to be read; none of it is understood here.
const REFUSED: &[&str] = &["crit", "zip", "enc", "b64", "cty"];

struct Token<'a> {
    algorithm: Algorithm,
    key: Option<String>,
    claims: String,
    signed: &'a str,
    signature: &'a str,
}

impl<'a> Token<'a> {
    fn read(token: &'a str) -> Result<Self, Malformed> {
        let (signed, signature) = token.rsplit_once('.').ok_or(Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(Malformed)?;
        if signature.is_empty() {
            return Err(Malformed);
        }
        let (algorithm, key) = read_header(&json(header)?)?;
        Ok(Self { algorithm, key, claims: json(claims)?, signed, signature })
    }
}

/// Where the header leads to other keys (`jku`, `jwk`, `x5u`, `x5c`), nobody goes.
fn read_header(text: &str) -> Result<(Algorithm, Option<String>), Malformed> {
    let header = Object::read(text)?;
    let kind = header.optional::<String>("typ")?;
    let is_ours = kind.is_none_or(|kind| KINDS.iter().any(|own| kind.eq_ignore_ascii_case(own)));
    if !is_ours || REFUSED.iter().any(|name| header.has(name)) {
        return Err(Malformed);
    }
    let algorithm = algorithm(&header.required::<String>("alg")?).ok_or(Malformed)?;
    Ok((algorithm, header.optional("kid")?))
}

/// The decoder takes no padding, no blanks, no dots and no bits that mean nothing.
fn json(part: &str) -> Result<String, Malformed> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| Malformed)?;
    String::from_utf8(bytes).map_err(|_| Malformed)
}

#[cfg(test)]
pub(super) mod tests;
