//! Checks ID tokens, which say who signed in (OpenID Connect Core 1.0, 3.1.3.7).

use std::sync::Arc;
use std::time::Duration;

use ring::digest::{self, SHA256, SHA384, SHA512};

use super::claims::{self, Claims, JsonObject, Malformed, numeric_date};
use super::signature::Algorithm;
use super::{JwtVerifier, NO_SUCH_KEY, Token};
use crate::access::{Denied, subject};
use crate::clock;
use crate::config::OidcConfig;
use crate::ledger::SubjectTerms;

/// A token that lists many groups is large.
const MAX_ID_TOKEN: usize = 64 * 1_024;
/// The token is made when its code is exchanged.
const MAX_AGE: Duration = Duration::from_secs(10 * 60);

/// A reply of the token endpoint, and the request that it must fit.
pub(in crate::access) struct Proof<'a> {
    pub(in crate::access) id_token: &'a str,
    pub(in crate::access) access_token: Option<&'a str>,
    pub(in crate::access) nonce: &'a str,
}

/// A user whom the login service vouches for.
#[derive(Debug)]
pub(in crate::access) struct SignedIn {
    pub(in crate::access) subject: Arc<str>,
    pub(in crate::access) terms: SubjectTerms,
    /// Whether the user meets `access.oidc.allow`.
    pub(in crate::access) is_allowed: bool,
}

/// The reason for the log. It quotes nothing of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::access) enum ProofError {
    #[error("the ID token is larger than 64 KiB, or is an access token")]
    Malformed,
    #[error("the ID token is refused: {0}")]
    Refused(&'static str),
    #[error("azp, iat, nonce or at_hash of the ID token is missing or not as expected")]
    Claims,
    #[error("the ID token is not for this sign-in: its nonce differs")]
    Nonce,
    #[error("the ID token does not belong to the access token beside it: at_hash differs")]
    AccessToken,
    #[error("no key of the login service verifies the ID token")]
    Signature,
    #[error("the login service's keys cannot be fetched, or lack the ID token's kid")]
    NoKeys,
}

impl From<Malformed> for ProofError {
    fn from(_: Malformed) -> Self {
        Self::Claims
    }
}

impl JwtVerifier {
    pub(in crate::access) async fn verify_id_token(
        &self,
        oidc: &OidcConfig,
        proof: &Proof<'_>,
    ) -> Result<SignedIn, ProofError> {
        if proof.id_token.len() > MAX_ID_TOKEN {
            return Err(ProofError::Malformed);
        }
        let token = Token::read(proof.id_token).map_err(ProofError::Refused)?;
        if token.is_access_token {
            return Err(ProofError::Malformed);
        }
        let known = Claims::read(&token.claims, &self.rules, clock::wall());
        let known = known.map_err(ProofError::Refused)?;
        let claims = JsonObject::read(&token.claims)?;
        self.check_origin(&claims)?;
        if claims.required::<String>("nonce")? != proof.nonce {
            return Err(ProofError::Nonce);
        }
        self.check_signature(&token, || Ok(())).await.map_err(|denied| match denied {
            Denied::Unavailable(_) | Denied::Invalid(NO_SUCH_KEY) => ProofError::NoKeys,
            Denied::Invalid(_) | Denied::Ended(_) | Denied::Forged | Denied::Throttled(_) => {
                ProofError::Signature
            }
        })?;
        check_access_token(&claims, token.algorithm, proof.access_token)?;
        let Claims { subject, role, own_budget, group, may_buy, .. } = known;
        let display_name = claims::text(&claims, &oidc.name_claim);
        let display_name = display_name.and_then(|name| subject::escaped(&name));
        let meets = |rule: &_| claims::meets(&claims, rule);
        let is_allowed = oidc.allow.is_empty() || oidc.allow.iter().any(meets);
        let terms = SubjectTerms { role, own_budget, group, may_buy, display_name };
        Ok(SignedIn { subject, terms, is_allowed })
    }

    /// Checks that the token was issued just now, and to this client.
    fn check_origin(&self, claims: &JsonObject<'_>) -> Result<(), ProofError> {
        let issued_at = numeric_date(claims.raw("iat").ok_or(Malformed)?)?;
        let is_recent = clock::wall() <= issued_at + MAX_AGE + self.rules.leeway;
        let client: Option<String> = claims.optional("azp")?;
        let has_others = claims.required::<Vec<String>>("aud").is_ok_and(|all| all.len() > 1);
        let is_ours = match client {
            Some(client) => client == self.rules.audience,
            None => !has_others,
        };
        if is_recent && is_ours { Ok(()) } else { Err(ProofError::Claims) }
    }
}

/// Compares `at_hash`, if the token has it, with the left half of the access token's hash.
fn check_access_token(
    claims: &JsonObject<'_>,
    algorithm: Algorithm,
    access_token: Option<&str>,
) -> Result<(), ProofError> {
    use Algorithm::{ES256, ES384, Ed25519, PS256, PS384, PS512, RS256, RS384, RS512};
    let Some(expected) = claims.optional::<String>("at_hash")? else { return Ok(()) };
    let hash = match algorithm {
        RS256 | PS256 | ES256 => &SHA256,
        RS384 | PS384 | ES384 => &SHA384,
        // Ed25519 hashes with SHA-512, too.
        RS512 | PS512 | Ed25519 => &SHA512,
    };
    let token = access_token.ok_or(ProofError::AccessToken)?;
    let hash = digest::digest(hash, token.as_bytes());
    let half = hash.as_ref().get(..hash.as_ref().len() / 2).unwrap_or_default();
    if super::encode(half) == expected { Ok(()) } else { Err(ProofError::AccessToken) }
}
