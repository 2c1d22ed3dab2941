//! Takes a token apart (RFC 7515, compact form), and reads of its header only what tells the key.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;

use crate::access::key_set::algorithm;
use crate::access::object::{Malformed, Object};

/// The largest token that is looked at, in bytes.
pub(super) const LARGEST: usize = 8 * 1_024;
/// What a token may call itself: an access token (RFC 9068), or a token that says no more. Others, such as
/// `logout+jwt`, are for other doors.
const KINDS: &[&str] = &["jwt", "at+jwt", "application/jwt", "application/at+jwt"];
/// What changes how the rest is to be read; none of it is understood here.
const REFUSED: &[&str] = &["crit", "zip", "enc", "b64", "cty"];

/// A token, not yet believed.
pub(super) struct Token<'a> {
    /// How it says it is signed.
    pub(super) algorithm: Algorithm,
    /// The name of the key that it says it is signed with.
    pub(super) key: Option<String>,
    /// Its claims, as JSON.
    pub(super) claims: String,
    /// What its signature is over.
    pub(super) signed: &'a str,
    /// Its signature, as written.
    pub(super) signature: &'a str,
}

impl<'a> Token<'a> {
    pub(super) fn read(token: &'a str) -> Result<Self, Malformed> {
        let (signed, signature) = token.rsplit_once('.').ok_or(Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(Malformed)?;
        if signature.is_empty() {
            return Err(Malformed);
        }
        let (algorithm, key) = self::header(&json(header)?)?;
        Ok(Self { algorithm, key, claims: json(claims)?, signed, signature })
    }
}

/// Where the header leads to other keys (`jku`, `jwk`, `x5u`, `x5c`), nobody goes.
fn header(text: &str) -> Result<(Algorithm, Option<String>), Malformed> {
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
