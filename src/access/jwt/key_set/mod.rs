//! The public keys of a JWKS (RFC 7517).
//!
//! Invariant: the key determines which algorithms are accepted, not the token.

use std::ops::RangeInclusive;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::RsaPublicKeyComponents;
use serde_json::value::RawValue;

use super::claims::{JsonObject, Malformed};
use super::signature::Algorithm::{
    self, ES256, ES384, Ed25519, PS256, PS384, PS512, RS256, RS384, RS512,
};
use super::signature::VerifyingKey;

pub(super) const MAX_DOCUMENT: usize = 256 * 1_024;
const MAX_KEYS: usize = 100;
const MODULUS_BITS: RangeInclusive<usize> = 2_048..=8_192;

const RSA: &[Algorithm] = &[RS256, RS384, RS512, PS256, PS384, PS512];
const P256: &[Algorithm] = &[ES256];
const P384: &[Algorithm] = &[ES384];
const ED25519: &[Algorithm] = &[Ed25519];

#[derive(Debug)]
pub(super) struct KeySet {
    keys: Vec<PublicKey>,
    pub(super) fingerprint: blake3::Hash,
    pub(super) skipped: usize,
}

#[derive(Debug)]
struct PublicKey {
    kid: Option<String>,
    algorithms: Vec<Algorithm>,
    key: VerifyingKey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum KeySetError {
    #[error("expected a JSON Web Key Set, {{\"keys\": [ … ]}}")]
    Malformed,
    #[error("expected at most {MAX_DOCUMENT} bytes")]
    TooLarge,
    #[error("expected at most {MAX_KEYS} keys")]
    TooManyKeys,
}

pub(super) enum KeyLookup<'a> {
    /// Several keys may share a `kid` (RFC 7517, 4.5), and a token needs none.
    Keys(Vec<&'a VerifyingKey>),
    /// The set has no key for this token, and fetching a newer set would not help.
    NoMatch,
    /// A newer set may have this `kid`.
    UnknownKid,
}

impl KeySet {
    /// Skips keys that cannot verify signatures: private, for encryption, malformed or unknown.
    pub(super) fn read(document: &[u8]) -> Result<Self, KeySetError> {
        if document.len() > MAX_DOCUMENT {
            return Err(KeySetError::TooLarge);
        }
        let text = std::str::from_utf8(document).map_err(|_| KeySetError::Malformed)?;
        let written: Vec<&RawValue> = JsonObject::read(text)
            .and_then(|set| set.required("keys"))
            .map_err(|Malformed| KeySetError::Malformed)?;
        if written.len() > MAX_KEYS {
            return Err(KeySetError::TooManyKeys);
        }
        let keys: Vec<_> =
            written.iter().filter_map(|key| PublicKey::read(key.get()).ok()).collect();
        let left_out = written.len() - keys.len();
        Ok(Self { keys, fingerprint: blake3::hash(document), skipped: left_out })
    }

    pub(super) fn usable(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> KeyLookup<'_> {
        let named = |key: &&PublicKey| id.is_none_or(|id| key.kid.as_deref() == Some(id));
        if id.is_some() && !self.keys.iter().any(|key| named(&key)) {
            return KeyLookup::UnknownKid;
        }
        let accepts = |key: &&PublicKey| key.algorithms.contains(&algorithm);
        let matching = self.keys.iter().filter(named).filter(accepts);
        let keys: Vec<_> = matching.map(|key| &key.key).collect();
        if keys.is_empty() { KeyLookup::NoMatch } else { KeyLookup::Keys(keys) }
    }
}

impl PublicKey {
    fn read(written: &str) -> Result<Self, Malformed> {
        let jwk = JsonObject::read(written)?;
        let is_public = !["d", "p", "q", "k"].iter().any(|secret| jwk.has(secret));
        let signs = jwk.optional::<String>("use")?.is_none_or(|value| value == "sig");
        let verifies = jwk
            .optional::<Vec<String>>("key_ops")?
            .is_none_or(|operations| operations.iter().any(|operation| operation == "verify"));
        if !(is_public && signs && verifies) {
            return Err(Malformed);
        }
        let curve = jwk.optional::<String>("crv")?;
        let (algorithms, key) = match (jwk.required::<String>("kty")?.as_str(), curve.as_deref()) {
            ("RSA", _) => (RSA, rsa(&jwk)?),
            ("EC", Some("P-256")) => (P256, ec(&jwk, 32)?),
            ("EC", Some("P-384")) => (P384, ec(&jwk, 48)?),
            ("OKP", Some("Ed25519")) => (ED25519, VerifyingKey::Point(sized(&jwk, "x", 32)?)),
            _ => return Err(Malformed),
        };
        let algorithms = match jwk.optional::<String>("alg")? {
            None => algorithms.to_vec(),
            Some(name) => {
                let named = Algorithm::named(&name).filter(|named| algorithms.contains(named));
                vec![named.ok_or(Malformed)?]
            }
        };
        Ok(Self { kid: jwk.optional("kid")?, algorithms, key })
    }
}

fn rsa(jwk: &JsonObject<'_>) -> Result<VerifyingKey, Malformed> {
    let (modulus, exponent) = (bytes(jwk, "n")?, bytes(jwk, "e")?);
    let modulus = trim_leading_zeros(&modulus);
    let spare = modulus.first().map_or(0, |first| first.leading_zeros());
    let bits = modulus.len() * 8 - usize::try_from(spare).map_err(|_| Malformed)?;
    let exponent = trim_leading_zeros(&exponent);
    let is_odd = exponent.last().is_some_and(|last| last % 2 == 1);
    if !MODULUS_BITS.contains(&bits) || !is_odd || exponent == [1] || exponent.len() > 4 {
        return Err(Malformed);
    }
    let (n, e) = (modulus.to_vec(), exponent.to_vec());
    Ok(VerifyingKey::Rsa(RsaPublicKeyComponents { n, e }))
}

fn ec(jwk: &JsonObject<'_>, width: usize) -> Result<VerifyingKey, Malformed> {
    // An uncompressed point (SEC 1, 2.3.3).
    let point = [&[4], &*sized(jwk, "x", width)?, &*sized(jwk, "y", width)?].concat();
    Ok(VerifyingKey::Point(point))
}

fn sized(jwk: &JsonObject<'_>, name: &str, width: usize) -> Result<Vec<u8>, Malformed> {
    bytes(jwk, name).and_then(|bytes| if bytes.len() == width { Ok(bytes) } else { Err(Malformed) })
}

fn bytes(jwk: &JsonObject<'_>, name: &str) -> Result<Vec<u8>, Malformed> {
    URL_SAFE_NO_PAD.decode(jwk.required::<String>(name)?).map_err(|_| Malformed)
}

fn trim_leading_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

#[cfg(test)]
mod tests;
