//! Makes members' tokens and cookies, and hashes them: what the ledger keeps of them opens nothing.

use std::borrow::Cow;
use std::{fmt, io};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use crate::store::Digest;

/// What every token begins with, so that people and secret scanners know one.
pub const TOKEN_PREFIX: &str = "tg_";

/// Characters after that by which a person tells a token from others; the rest keeps 220 bits.
const PREFIX_RANDOM: usize = 6;

const RANDOM_BYTES: usize = 32;

/// The keys of the hashes. Without it, a stolen ledger tells nobody whether a token is right.
pub struct Secret {
    tokens: Zeroizing<[u8; 32]>,
    cookies: Zeroizing<[u8; 32]>,
    fingerprint: Digest,
}

impl Secret {
    pub fn new(material: &[u8]) -> Self {
        let derive = |context| Zeroizing::new(blake3::derive_key(context, material));
        Self {
            tokens: derive("tollgate 2026-11 hash of a member's token"),
            cookies: derive("tollgate 2026-11 hash of a login's cookie"),
            fingerprint: *derive("tollgate 2026-11 fingerprint of the secret"),
        }
    }

    /// By which it is told from another one, and which opens nothing.
    pub fn fingerprint(&self) -> Digest {
        self.fingerprint
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

/// 256 random bits as text of 43 visible characters: a cookie's value, or a secret's material.
pub fn random() -> io::Result<Zeroizing<String>> {
    let mut bytes = Zeroizing::new([0; RANDOM_BYTES]);
    getrandom::fill(&mut *bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Zeroizing::new(URL_SAFE_NO_PAD.encode(*bytes)))
}

pub fn hash_token(secret: &Secret, token: &str) -> Digest {
    keyed_hash(&secret.tokens, token)
}

/// What the ledger keeps of a login's cookie; a token's hash is never that of a cookie.
pub fn hash_cookie(secret: &Secret, value: &str) -> Digest {
    keyed_hash(&secret.cookies, value)
}

fn keyed_hash(key: &[u8; 32], text: &str) -> Digest {
    *blake3::keyed_hash(key, text.as_bytes()).as_bytes()
}

/// Whether two hashes are the same, in a time that does not tell how much of them is:
/// `blake3::Hash` compares so, arrays do not.
pub fn constant_time_eq(one: &Digest, other: &Digest) -> bool {
    blake3::Hash::from_bytes(*one) == blake3::Hash::from_bytes(*other)
}

/// `tg_` and six characters more, which may be shown; of what is no token, nothing.
pub fn prefix(token: &str) -> &str {
    let is_token =
        token.starts_with(TOKEN_PREFIX) && token.len() > TOKEN_PREFIX.len() + 2 * PREFIX_RANDOM;
    token.get(..TOKEN_PREFIX.len() + PREFIX_RANDOM).filter(|_| is_token).unwrap_or_default()
}

/// The text with every token in it cut down to what may be shown: for whatever repeats a user's words.
pub fn redact_tokens(text: &str) -> Cow<'_, str> {
    let mut parts = text.split(TOKEN_PREFIX);
    let mut clean = parts.next().unwrap_or_default().to_owned();
    let mut found = false;
    for part in parts {
        let is_random = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let rest = part.trim_start_matches(is_random);
        let secret = &part[..part.len() - rest.len()];
        clean.push_str(TOKEN_PREFIX);
        match secret.get(..PREFIX_RANDOM).filter(|_| secret.len() > 2 * PREFIX_RANDOM) {
            Some(shown) => {
                found = true;
                clean.extend([shown, "…", rest]);
            }
            None => clean.push_str(part),
        }
    }
    if found { Cow::Owned(clean) } else { Cow::Borrowed(text) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_token_is_long_random_and_fit_for_a_header() {
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
    fn hashes_depend_on_the_secret_the_use_and_every_character() {
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
    fn a_token_is_redacted_from_every_text() {
        let (one, other) = (mint().unwrap(), mint().unwrap());
        let said = format!("'{}' and {}, not tg_no", one.expose(), other.expose());
        let shown = format!("'{}…' and {}…, not tg_no", one.prefix(), other.prefix());
        assert_eq!(redact_tokens(&said), shown);
        assert!(matches!(redact_tokens("nothing, tg_no"), Cow::Borrowed(_)));
    }

    #[test]
    fn two_random_secrets_are_not_the_same() {
        let hashes = [(); 2].map(|()| hash_token(&Secret::random().unwrap(), "tg_a"));
        assert_ne!(hashes[0], hashes[1]);
    }

    #[test]
    fn neither_secret_nor_token_is_shown_to_those_who_debug() {
        assert_eq!(format!("{:?}", Secret::new(b"hunter2")), "Secret(…)");
        let token = mint().unwrap();
        assert_eq!(format!("{token:?}"), format!("{}…", &token.expose()[..9]));
    }

    #[test]
    fn no_more_than_the_start_of_a_real_token_is_shown() {
        for text in ["", "tg_", "tg_short", "hunter2-hunter2-hunter2", "tg_ééééééééé"] {
            assert!(prefix(text).len() <= 9 && !prefix(text).contains("hunter2"), "{text}");
        }
        assert_eq!((prefix("hunter2-hunter2-hunter2"), prefix("tg_short")), ("", ""));
    }
}
