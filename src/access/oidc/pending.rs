//! A sign-in that has begun: bound to the browser by a cookie, sealed with our secret.
//!
//! The `state` carries what we need to finish, so that any instance can, and no row is written for
//! a visitor. The nonce and the code's verifier are derived from it with a key that only we have.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use zeroize::Zeroizing;

use crate::access::{Denied, random_value};

/// How long a sign-in may take.
pub(super) const MAX_TIME: Duration = Duration::from_secs(10 * 60);
const BROWSER_LENGTH: usize = 43;
const SECONDS: usize = size_of::<u64>();
const RANDOM: usize = 16;

pub(super) struct Pending {
    pub(super) state: String,
    pub(super) nonce: String,
    pub(super) verifier: Zeroizing<String>,
}

/// Seals the sign-ins of one browser.
pub(super) struct Sealer<'a> {
    key: &'a [u8; 32],
    browser: &'a str,
}

impl<'a> Sealer<'a> {
    /// Returns `None` if the cookie `browser` is none of ours.
    pub(super) fn new(key: &'a [u8; 32], browser: &'a str) -> Option<Self> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let is_ours = browser.len() == BROWSER_LENGTH && browser.bytes().all(is_plain);
        is_ours.then_some(Self { key, browser })
    }

    pub(super) fn begin(&self, return_path: &str, now: Duration) -> Result<Pending, Denied> {
        let random = random_value()?;
        let mut content =
            random.as_bytes().first_chunk::<RANDOM>().copied().unwrap_or_default().to_vec();
        content.extend((now + MAX_TIME).as_secs().to_be_bytes());
        content.extend(return_path.as_bytes());
        let content = URL_SAFE_NO_PAD.encode(content);
        let state = format!("{content}.{}", self.derive("state", &content));
        Ok(self.pending(state))
    }

    /// Returns the sign-in of a callback, and where it returns to. `None` if it was begun by another
    /// browser, or too long ago.
    pub(super) fn open(&self, state: &str, now: Duration) -> Option<(Pending, String)> {
        let (content, seal) = state.split_once('.')?;
        let expected = self.derive("state", content);
        // Hashes of both, so that the comparison takes the same time wherever they differ.
        if blake3::hash(seal.as_bytes()) != blake3::hash(expected.as_bytes()) {
            return None;
        }
        let content = URL_SAFE_NO_PAD.decode(content).ok()?;
        let (expires_at, return_path) = content.get(RANDOM..)?.split_first_chunk::<SECONDS>()?;
        if u64::from_be_bytes(*expires_at) <= now.as_secs() {
            return None;
        }
        let return_path = String::from_utf8(return_path.to_vec()).ok()?;
        Some((self.pending(state.to_owned()), return_path))
    }

    fn pending(&self, state: String) -> Pending {
        let (nonce, verifier) = (self.derive("nonce", &state), self.derive("verifier", &state));
        Pending { state, nonce, verifier: Zeroizing::new(verifier) }
    }

    fn derive(&self, purpose: &str, text: &str) -> String {
        let mut hasher = blake3::Hasher::new_keyed(self.key);
        // None of the parts before the last contains a zero.
        for part in [purpose, "\0", self.browser, "\0", text] {
            hasher.update(part.as_bytes());
        }
        URL_SAFE_NO_PAD.encode(hasher.finalize().as_bytes())
    }
}

impl Pending {
    /// Returns the `S256` challenge of the verifier (RFC 7636).
    pub(super) fn challenge(&self) -> String {
        URL_SAFE_NO_PAD.encode(digest(&SHA256, self.verifier.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);
    const KEY: [u8; 32] = [7; 32];

    fn browser(letter: &str) -> String {
        letter.repeat(BROWSER_LENGTH)
    }

    #[test]
    fn sign_in_is_opened_by_its_browser_in_time_only() {
        let (one, other) = (browser("a"), browser("b"));
        let sealer = Sealer::new(&KEY, &one).unwrap();
        let begun = sealer.begin("/usage?since=7d#top", NOW).ok().unwrap();
        let soon = NOW + MAX_TIME - Duration::from_secs(1);
        let (opened, return_path) = sealer.open(&begun.state, soon).unwrap();
        assert_eq!(return_path, "/usage?since=7d#top");
        assert_eq!((&opened.nonce, &*opened.verifier), (&begun.nonce, &*begun.verifier));
        assert_ne!(opened.nonce, *opened.verifier);
        assert!((43..=128).contains(&opened.verifier.len()));
        assert!(sealer.open(&begun.state, NOW + MAX_TIME).is_none(), "too late");
        assert!(Sealer::new(&KEY, &other).unwrap().open(&begun.state, NOW).is_none());
        assert!(Sealer::new(&[8; 32], &one).unwrap().open(&begun.state, NOW).is_none());
    }

    #[test]
    fn altered_state_is_rejected() {
        let one = browser("a");
        let sealer = Sealer::new(&KEY, &one).unwrap();
        let state = sealer.begin("/", NOW).ok().unwrap().state;
        let again = sealer.begin("/", NOW).ok().unwrap().state;
        assert_ne!(state, again);
        let (content, seal) = state.split_once('.').unwrap();
        let (other_content, _) = again.split_once('.').unwrap();
        for forged in [
            String::new(),
            ".".to_owned(),
            content.to_owned(),
            format!("{content}."),
            format!("{other_content}.{seal}"),
            format!("{content}.{seal}A"),
            format!("A{state}"),
            format!("{state}."),
        ] {
            assert!(sealer.open(&forged, NOW).is_none(), "{forged}");
        }
    }

    #[test]
    fn cookie_of_another_shape_is_none_of_ours() {
        for browser in ["", "short", &"é".repeat(22), &" ".repeat(43), &"a".repeat(44)] {
            assert!(Sealer::new(&KEY, browser).is_none(), "{browser}");
        }
    }

    /// The example of RFC 7636, appendix B.
    #[test]
    fn challenge_is_the_hash_of_the_verifier() {
        let verifier = Zeroizing::new("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk".to_owned());
        let pending = Pending { state: String::new(), nonce: String::new(), verifier };
        assert_eq!(pending.challenge(), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }
}
