//! Says whose a JSON Web Token of the web app's own login is (RFC 7519, read as RFC 8725 advises).
//!
//! Invariant: nothing that a token says is believed before its signature is checked, with a key that
//! the settings lead to and an algorithm that this key is for. Nothing is fetched for a token that
//! could not pass with any key.

mod claims;
mod key_cache;
mod key_set;

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, crypto};
use moka::future::Cache;

use super::{Denied, Session};
use crate::clock;
use crate::config::{self, JwksSource};
use crate::store::Caller;
use claims::{Claims, JsonObject, Malformed};
use key_cache::{FetchError, KeyCache, KeySource, MIN_FETCH_INTERVAL};
use key_set::{KeyLookup, KeySet, algorithm};

const CACHE_TTL: Duration = Duration::from_secs(60);
const CACHE_CAPACITY: u64 = 10_000;

#[derive(Clone)]
pub struct JwtVerifier {
    config: Arc<config::JwtConfig>,
    keys: Arc<KeyCache>,
    verified: Cache<[u8; 32], Verified>,
}

#[derive(Clone)]
struct Verified {
    caller: Caller,
    standing: Session,
    /// The keys that it was checked with: with others, it is checked again.
    fingerprint: blake3::Hash,
}

impl JwtVerifier {
    /// A file is read at once and must hold a usable key; an address is fetched when [`JwtVerifier::run`] runs.
    pub fn new(settings: &config::JwtConfig) -> io::Result<Self> {
        let jwt = Self::with_source(settings, key_cache::key_source(&settings.jwks));
        if let JwksSource::File(path) = &settings.jwks {
            let read = || -> Result<(), FetchError> {
                jwt.keys.replace(&key_cache::read_file(path)?)?;
                let usable = jwt.keys.current().map_or(0, |set| set.usable());
                if usable == 0 { Err("it holds no key that can be used".into()) } else { Ok(()) }
            };
            let named = |fault: FetchError| format!("access.jwt.jwks: {}: {fault}", path.display());
            read().map_err(|fault| io::Error::other(named(fault)))?;
        }
        Ok(jwt)
    }

    fn with_source(settings: &config::JwtConfig, source: KeySource) -> Self {
        Self {
            config: Arc::new(settings.clone()),
            keys: Arc::new(KeyCache::new(source)),
            verified: Cache::builder().max_capacity(CACHE_CAPACITY).time_to_live(CACHE_TTL).build(),
        }
    }

    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static {
        self.keys.run()
    }

    pub fn refetch(&self) {
        self.keys.refetch();
    }

    /// `is_let` has a say before the signature is checked, the one costly step.
    pub async fn verify(
        &self,
        token: &str,
        is_let: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<(Caller, Session), Denied> {
        if token.len() > MAX_TOKEN {
            return Err(Denied::Invalid);
        }
        let hash = *blake3::hash(token.as_bytes()).as_bytes();
        let current = self.keys.current();
        let holds = |known: &Verified| {
            let print = current.as_ref().map(|set| set.fingerprint);
            print == Some(known.fingerprint) && !known.standing.has_ended()
        };
        let checked = match self.verified.get(&hash).await.filter(holds) {
            Some(checked) => checked,
            None => {
                let checked = self.check(token, is_let).await?;
                self.verified.insert(hash, checked.clone()).await;
                checked
            }
        };
        Ok((checked.caller, checked.standing))
    }

    async fn check(
        &self,
        token: &str,
        is_let: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<Verified, Denied> {
        let token = Token::read(token).map_err(|_| Denied::Invalid)?;
        let claims = Claims::read(&token.claims, &self.config, clock::wall());
        let Claims { subject, role, own_budget: own, expires_at: until } =
            claims.map_err(|_| Denied::Invalid)?;
        let set = self.keys_for(&token).await?;
        let KeyLookup::Key(key) = set.find(token.kid.as_deref(), token.algorithm) else {
            return Err(Denied::Invalid);
        };
        is_let()?;
        let signed = token.signed.as_bytes();
        if !crypto::verify(token.signature, signed, key, token.algorithm).unwrap_or(false) {
            return Err(Denied::Forged);
        }
        let standing =
            Session { role, own_budget: own, expires_at: Some(until), ..Session::default() };
        Ok(Verified { caller: Caller::Subject(subject), standing, fingerprint: set.fingerprint })
    }

    /// The keys to check it with: newer ones where these have never heard of its own.
    async fn keys_for(&self, token: &Token<'_>) -> Result<Arc<KeySet>, Denied> {
        let Some(set) = self.keys.current() else {
            return self.keys.refetched(None).await.ok_or(Denied::Unavailable(MIN_FETCH_INTERVAL));
        };
        match set.find(token.kid.as_deref(), token.algorithm) {
            KeyLookup::Key(_) => Ok(set),
            KeyLookup::NoMatch => Err(Denied::Invalid),
            KeyLookup::UnknownKid => self.keys.refetched(Some(&set)).await.ok_or(Denied::Invalid),
        }
    }
}

impl fmt::Debug for JwtVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwt").field("rules", &self.config).finish_non_exhaustive()
    }
}

const MAX_TOKEN: usize = 8 * 1_024;
/// What a token may call itself: an access token (RFC 9068), or a token that says no more. Others, such as
/// `logout+jwt`, are for other doors.
const TOKEN_TYPES: &[&str] = &["jwt", "at+jwt", "application/jwt", "application/at+jwt"];
/// What changes how the rest is to be read; none of it is understood here.
const REJECTED_HEADERS: &[&str] = &["crit", "zip", "enc", "b64", "cty"];

struct Token<'a> {
    algorithm: Algorithm,
    kid: Option<String>,
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
        let (algorithm, key) = read_header(&decode_part(header)?)?;
        Ok(Self { algorithm, kid: key, claims: decode_part(claims)?, signed, signature })
    }
}

/// Where the header leads to other keys (`jku`, `jwk`, `x5u`, `x5c`), nobody goes.
fn read_header(text: &str) -> Result<(Algorithm, Option<String>), Malformed> {
    let header = JsonObject::read(text)?;
    let kind = header.optional::<String>("typ")?;
    let is_ours =
        kind.is_none_or(|kind| TOKEN_TYPES.iter().any(|own| kind.eq_ignore_ascii_case(own)));
    if !is_ours || REJECTED_HEADERS.iter().any(|name| header.has(name)) {
        return Err(Malformed);
    }
    let algorithm = algorithm(&header.required::<String>("alg")?).ok_or(Malformed)?;
    Ok((algorithm, header.optional("kid")?))
}

/// The decoder takes no padding, no blanks, no dots and no bits that mean nothing.
fn decode_part(part: &str) -> Result<String, Malformed> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| Malformed)?;
    String::from_utf8(bytes).map_err(|_| Malformed)
}

#[cfg(test)]
pub(super) mod tests;
