//! Generates and hashes tokens and cookies. The ledger stores keyed hashes only.

use std::borrow::Cow;
use std::collections::HashMap;
use std::{fmt, io};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use crate::gateway::contract::member::{LINK_PREFIX, TOKEN_PREFIX};
use crate::ledger::Digest;

/// Random characters that may be shown; the rest keeps 220 bits.
const PREFIX_RANDOM: usize = 6;
const RANDOM_BYTES: usize = 32;

/// The keys of the hashes. Without them, a stolen ledger cannot be used to test tokens.
pub struct Secret {
    tokens: Zeroizing<[u8; 32]>,
    cookies: Zeroizing<[u8; 32]>,
    pub(super) quotes: Zeroizing<[u8; 32]>,
    pub(super) proofs: Zeroizing<[u8; 32]>,
    pub(super) sign_ins: Zeroizing<[u8; 32]>,
    pub(super) links: Zeroizing<[u8; 32]>,
    /// Identifies the secret without revealing it.
    pub fingerprint: Digest,
}

impl Secret {
    pub fn new(material: &[u8]) -> Self {
        let derive = |context| Zeroizing::new(blake3::derive_key(context, material));
        Self {
            tokens: derive("tollgate 2026-11 hash of a member's token"),
            cookies: derive("tollgate 2026-11 hash of a login's cookie"),
            quotes: derive("tollgate 2026-11 authentication of a quote"),
            proofs: derive("tollgate 2026-11 authentication of a challenge"),
            sign_ins: derive("tollgate 2026-11 seal of a sign-in that has begun"),
            links: derive("tollgate 2026-11 authentication of a link"),
            fingerprint: *derive("tollgate 2026-11 fingerprint of the secret"),
        }
    }

    pub fn random() -> io::Result<Self> {
        Ok(Self::new(random()?.as_bytes()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

pub struct MemberToken(Zeroizing<String>);

impl MemberToken {
    pub fn expose(&self) -> &str {
        &self.0
    }

    pub fn prefix(&self) -> &str {
        prefix(&self.0)
    }
}

impl fmt::Debug for MemberToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", self.prefix())
    }
}

pub fn mint() -> io::Result<MemberToken> {
    Ok(MemberToken(Zeroizing::new(format!("{TOKEN_PREFIX}{}", &**random()?))))
}

/// Returns 256 random bits as 43 characters of base64.
pub fn random() -> io::Result<Zeroizing<String>> {
    let mut bytes = Zeroizing::new([0; RANDOM_BYTES]);
    getrandom::fill(&mut *bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Zeroizing::new(URL_SAFE_NO_PAD.encode(*bytes)))
}

pub fn hash_token(secret: &Secret, token: &str) -> Digest {
    keyed_hash(&secret.tokens, token)
}

pub fn hash_cookie(secret: &Secret, value: &str) -> Digest {
    keyed_hash(&secret.cookies, value)
}

fn keyed_hash(key: &[u8; 32], text: &str) -> Digest {
    *blake3::keyed_hash(key, text.as_bytes()).as_bytes()
}

/// `blake3::Hash` compares in constant time; arrays do not.
pub fn constant_time_eq(one: &Digest, other: &Digest) -> bool {
    blake3::Hash::from_bytes(*one) == blake3::Hash::from_bytes(*other)
}

/// The hash is keyed, so the map's timing reveals nothing; the final comparison is constant-time.
pub(super) fn lookup<'a, T>(all: &'a HashMap<Digest, T>, id: &Digest) -> Option<&'a T> {
    let (known, value) = all.get_key_value(id)?;
    constant_time_eq(known, id).then_some(value)
}

/// Returns the part of a token that may be shown, or nothing if `token` is not one.
pub fn prefix(token: &str) -> &str {
    let is_token =
        token.starts_with(TOKEN_PREFIX) && token.len() > TOKEN_PREFIX.len() + 2 * PREFIX_RANDOM;
    token.get(..TOKEN_PREFIX.len() + PREFIX_RANDOM).filter(|_| is_token).unwrap_or_default()
}

/// Shortens every token in `text`, also those of links, to its prefix.
pub fn redact_tokens(text: &str) -> Cow<'_, str> {
    let clean = redact(text, TOKEN_PREFIX);
    match redact(&clean, LINK_PREFIX) {
        Cow::Owned(clean) => Cow::Owned(clean),
        Cow::Borrowed(_) => clean,
    }
}

fn redact<'a>(text: &'a str, prefix: &str) -> Cow<'a, str> {
    let mut parts = text.split(prefix);
    let before = parts.next().unwrap_or_default().to_owned();
    let clean = parts.fold(before, |clean, part| {
        let is_random = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let rest = part.trim_start_matches(is_random);
        let secret = &part[..part.len() - rest.len()];
        match secret.get(..PREFIX_RANDOM).filter(|_| secret.len() > 2 * PREFIX_RANDOM) {
            Some(start) => clean + prefix + start + "…" + rest,
            None => clean + prefix + part,
        }
    });
    if clean == text { Cow::Borrowed(text) } else { Cow::Owned(clean) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn token_is_long_random_and_valid_in_a_header() {
        let tokens: HashSet<_> = (0..100).map(|_| mint().unwrap().expose().to_owned()).collect();
        assert_eq!(tokens.len(), 100);
        for token in tokens {
            let rest = token.strip_prefix("tg_").expect("its prefix");
            assert_eq!(rest.len(), 43, "256 bits in base64");
            assert!(rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
            assert_eq!(prefix(&token), &token[..9]);
        }
    }

    #[test]
    fn hash_depends_on_secret_purpose_and_every_character() {
        let (secret, other) = (Secret::new(b"one secret"), Secret::new(b"another secret"));
        let token = hash_token(&secret, "tg_a");
        assert_eq!(hash_token(&Secret::new(b"one secret"), "tg_a"), token);
        assert!(constant_time_eq(&token, &hash_token(&secret, "tg_a")));
        let others = [
            hash_token(&other, "tg_a"),
            hash_token(&secret, "tg_b"),
            hash_token(&secret, "tg_a "),
            hash_token(&secret, ""),
            hash_cookie(&secret, "tg_a"),
            *blake3::hash(b"tg_a").as_bytes(),
        ];
        for other in others {
            assert_ne!(other, token);
            assert!(!constant_time_eq(&token, &other));
        }
        let mut last = token;
        last[31] ^= 1;
        assert!(!constant_time_eq(&token, &last));
    }

    #[test]
    fn tokens_in_text_are_redacted() {
        let (one, other) = (mint().unwrap(), mint().unwrap());
        let said = format!("'{}' and {}, not tg_no", one.expose(), other.expose());
        let shown = format!("'{}…' and {}…, not tg_no", one.prefix(), other.prefix());
        assert_eq!(redact_tokens(&said), shown);
        assert!(matches!(redact_tokens("nothing, tg_no"), Cow::Borrowed(_)));
    }

    #[test]
    fn random_secrets_differ() {
        let hashes = [(); 2].map(|()| hash_token(&Secret::random().unwrap(), "tg_a"));
        assert_ne!(hashes[0], hashes[1]);
    }

    #[test]
    fn debug_output_hides_secret_and_token() {
        assert_eq!(format!("{:?}", Secret::new(b"hunter2")), "Secret(…)");
        let token = mint().unwrap();
        assert_eq!(format!("{token:?}"), format!("{}…", &token.expose()[..9]));
    }

    #[test]
    fn prefix_shows_only_the_start_of_a_real_token() {
        for text in ["", "tg_", "tg_short", "hunter2-hunter2-hunter2", "tg_ééééééééé"] {
            assert!(prefix(text).len() <= 9 && !prefix(text).contains("hunter2"), "{text}");
        }
        assert_eq!((prefix("hunter2-hunter2-hunter2"), prefix("tg_short")), ("", ""));
    }
}
