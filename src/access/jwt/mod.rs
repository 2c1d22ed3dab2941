//! Verifies JSON Web Tokens of the web app's own login (RFC 7519, following RFC 8725).
//!
//! Invariant: claims count only after the signature is verified with a configured key and one of its
//! algorithms. A token that no key could validate never triggers a fetch.

mod claims;
mod id_token;
pub(super) mod key_cache;
mod key_set;
mod signature;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use moka::future::Cache;

use super::{Denied, Session};
use crate::clock;
use crate::config::{JwksSource, JwtConfig, TokenRules};
use crate::ledger::Caller;
use claims::{Claims, JsonObject, Malformed};
use key_cache::{FetchError, KeyCache, KeySource, MIN_FETCH_INTERVAL};
use key_set::{KeyLookup, KeySet};
use signature::Algorithm;

pub(super) use id_token::{Proof, ProofError, SignedIn};

const CACHE_TTL: Duration = Duration::from_secs(60);
const CACHE_CAPACITY: u64 = 10_000;

#[derive(Clone)]
pub struct JwtVerifier {
    rules: Arc<TokenRules>,
    keys: Arc<KeyCache>,
    verified: Cache<[u8; 32], Verified>,
}

#[derive(Clone)]
struct Verified {
    caller: Caller,
    session: Session,
    /// The key set that verified it. With another set, it is verified again.
    fingerprint: blake3::Hash,
}

impl JwtVerifier {
    /// Reads a key file, which must hold a usable key. A URL is first fetched by [`Self::run`].
    pub fn new(settings: &JwtConfig) -> io::Result<Self> {
        let verifier = Self::with_source(&settings.token, key_cache::key_source(&settings.jwks));
        if let JwksSource::File(path) = &settings.jwks {
            verifier.load(path).map_err(|error| {
                io::Error::other(format!("access.jwt.jwks: {}: {error}", path.display()))
            })?;
        }
        Ok(verifier)
    }

    fn load(&self, path: &Path) -> Result<(), FetchError> {
        self.keys.replace(&key_cache::read_file(path)?)?;
        let usable = self.keys.current().map_or(0, |set| set.usable());
        if usable == 0 { Err("it contains no usable key".into()) } else { Ok(()) }
    }

    pub(super) fn with_source(rules: &TokenRules, source: KeySource) -> Self {
        Self {
            rules: Arc::new(rules.clone()),
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

    /// Waits for the first keys, for as long as a fetch may take.
    pub(super) async fn wait_for_keys(&self) {
        if self.keys.current().is_none() {
            self.keys.refetched(None).await;
        }
    }

    /// Calls `admit` before the signature is verified, which is the only expensive step.
    pub async fn verify(
        &self,
        token: &str,
        admit: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<(Caller, Session), Denied> {
        let hash = *blake3::hash(token.as_bytes()).as_bytes();
        let current = self.keys.current();
        let is_valid = |verified: &Verified| {
            current.as_ref().is_some_and(|set| set.fingerprint == verified.fingerprint)
                && !verified.session.has_ended()
        };
        let verified = match self.verified.get(&hash).await.filter(is_valid) {
            Some(verified) => verified,
            None => {
                let verified = self.check(token, admit).await?;
                self.verified.insert(hash, verified.clone()).await;
                verified
            }
        };
        Ok((verified.caller, verified.session))
    }

    async fn check(
        &self,
        token: &str,
        admit: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<Verified, Denied> {
        let token = Token::read(token).map_err(Denied::Invalid)?;
        let claims = Claims::read(&token.claims, &self.rules, clock::wall());
        let Claims { subject, role, own_budget, group, may_buy, expires_at } =
            claims.map_err(Denied::Invalid)?;
        let fingerprint = self.check_signature(&token, admit).await?;
        let expires_at = Some(expires_at);
        let session =
            Session { role, own_budget, group, may_buy, expires_at, ..Session::default() };
        Ok(Verified { caller: Caller::Subject(subject), session, fingerprint })
    }

    /// Returns the fingerprint of the key set that verified the token.
    async fn check_signature(
        &self,
        token: &Token<'_>,
        admit: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<blake3::Hash, Denied> {
        let set = self.keys_for(token).await?;
        let keys = match set.find(token.kid.as_deref(), token.algorithm) {
            KeyLookup::Keys(keys) => keys,
            KeyLookup::NoMatch => return Err(Denied::Invalid(NO_KEY_FOR_ALGORITHM)),
            KeyLookup::UnknownKid => return Err(Denied::Invalid(NO_SUCH_KEY)),
        };
        admit()?;
        let signature = URL_SAFE_NO_PAD.decode(token.signature).map_err(|_| Denied::Forged)?;
        let signed = token.signed.as_bytes();
        if !keys.iter().any(|key| key.verifies(token.algorithm, signed, &signature)) {
            return Err(Denied::Forged);
        }
        Ok(set.fingerprint)
    }

    /// Returns the current keys, or newer ones if the token's `kid` is unknown.
    async fn keys_for(&self, token: &Token<'_>) -> Result<Arc<KeySet>, Denied> {
        let Some(set) = self.keys.current() else {
            return self.keys.refetched(None).await.ok_or(Denied::Unavailable(MIN_FETCH_INTERVAL));
        };
        match set.find(token.kid.as_deref(), token.algorithm) {
            KeyLookup::Keys(_) | KeyLookup::NoMatch => Ok(set),
            KeyLookup::UnknownKid => {
                let newer = self.keys.refetched(Some(&set)).await;
                newer.ok_or(Denied::Invalid(NO_SUCH_KEY))
            }
        }
    }
}

impl fmt::Debug for JwtVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtVerifier").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// A newer set may have it.
const NO_SUCH_KEY: &str = "no key of the key set has the token's kid";
const NO_KEY_FOR_ALGORITHM: &str = "no key of the key set fits the token's kid and alg";
const MALFORMED_HEADER: &str = "the token's header is malformed";
const MALFORMED_CLAIMS: &str = "the token's claims are malformed";
/// Plain tokens and access tokens (RFC 9068); others, such as `logout+jwt`, are rejected.
const TOKEN_TYPES: &[&str] = &["jwt", "at+jwt", "application/jwt", "application/at+jwt"];
const ACCESS_TOKEN_TYPES: &[&str] = &["at+jwt", "application/at+jwt"];
/// Header members that change how the token is read. None is supported.
const REJECTED_HEADERS: &[&str] = &["crit", "zip", "enc", "b64", "cty"];

struct Token<'a> {
    algorithm: Algorithm,
    /// Whether its type says that it is one (RFC 9068).
    is_access_token: bool,
    kid: Option<String>,
    claims: String,
    signed: &'a str,
    signature: &'a str,
}

impl<'a> Token<'a> {
    /// Fails with the reason for the log.
    fn read(token: &'a str) -> Result<Self, &'static str> {
        const NO_JWT: &str = "the token is no JWT";
        let (signed, signature) = token.rsplit_once('.').ok_or(NO_JWT)?;
        let (header, claims) = signed.split_once('.').ok_or(NO_JWT)?;
        if signature.is_empty() {
            return Err("the token is not signed");
        }
        let header = decode_part(header).map_err(|_| MALFORMED_HEADER)?;
        // Keys that the header refers to (`jku`, `jwk`, `x5u`, `x5c`) are ignored.
        let header = JsonObject::read(&header).map_err(|_| MALFORMED_HEADER)?;
        let is_one_of = |name: &String, known: &[&str]| {
            known.iter().any(|known| name.eq_ignore_ascii_case(known))
        };
        let kind: Option<String> = header.optional("typ").map_err(|_| MALFORMED_HEADER)?;
        let is_accepted = kind.as_ref().is_none_or(|kind| is_one_of(kind, TOKEN_TYPES));
        if !is_accepted || REJECTED_HEADERS.iter().any(|name| header.has(name)) {
            return Err("the token's header has an unsupported typ, crit, zip, enc, b64 or cty");
        }
        let algorithm = header.required::<String>("alg").map_err(|_| MALFORMED_HEADER)?;
        let algorithm = Algorithm::named(&algorithm).ok_or("the token's alg is not supported")?;
        Ok(Self {
            algorithm,
            is_access_token: kind.is_some_and(|kind| is_one_of(&kind, ACCESS_TOKEN_TYPES)),
            kid: header.optional("kid").map_err(|_| MALFORMED_HEADER)?,
            claims: decode_part(claims).map_err(|_| MALFORMED_CLAIMS)?,
            signed,
            signature,
        })
    }
}

fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The decoder rejects padding, whitespace and non-canonical trailing bits.
fn decode_part(part: &str) -> Result<String, Malformed> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| Malformed)?;
    String::from_utf8(bytes).map_err(|_| Malformed)
}

#[cfg(test)]
pub(super) mod tests;
