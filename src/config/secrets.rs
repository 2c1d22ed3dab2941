//! The gateway's keys, and the secret that keys the hashes of tokens: read from a variable or a file, held
//! so that they are not printed by accident, and never repeated in a fault.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::SettingsSource;
use super::error::{Location, SettingError};
use crate::contract::wire::{KEY_PREFIX, MAX_KEYS};

/// Shorter secrets could be guessed from a stolen ledger.
const MIN_SECRET_LENGTH: usize = 32;
/// So few different characters are a placeholder, such as `xxxx…` or `change-me-change-me…`.
const MIN_DISTINCT_CHARS: usize = 10;

/// A gateway key. It has no `Display` and no `Serialize`; its `Debug` shows the public prefix only;
/// its memory is wiped when the last copy goes.
#[derive(Clone)]
pub struct Key(Arc<Zeroizing<String>>);

impl Key {
    /// Wraps a key that was checked to start with the contract's prefix (5.2).
    pub fn new(secret: String) -> Self {
        Self(Arc::new(Zeroizing::new(secret)))
    }

    /// The secret itself: for the `authorization` header and for finding it in replies, nothing else.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The start of a hash that is used for nothing else: it tells keys apart and reveals nothing.
    pub fn id(&self) -> [u8; 8] {
        let hash = blake3::derive_key("tollgate 2025-11 id of a gateway key", self.0.as_bytes());
        hash.first_chunk().copied().unwrap_or_default()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("svc_sk_…")
    }
}

/// A secret that is long enough. It has no `Display`; its memory is wiped when the last copy goes.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(Arc<Zeroizing<String>>);

impl SecretText {
    pub fn new(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        let different: HashSet<char> = text.chars().collect();
        if text.contains(KEY_PREFIX) {
            return Err("expected a secret of its own, not the gateway's key");
        }
        if text.len() < MIN_SECRET_LENGTH || different.len() < MIN_DISTINCT_CHARS {
            return Err(
                "expected at least 32 random characters, as `openssl rand -hex 32` prints them",
            );
        }
        Ok(Self(Arc::new(Zeroizing::new(text.to_owned()))))
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

fn read_secret(
    source: &SettingsSource<'_>,
    what: &str,
    (name, file): (&'static str, &'static str),
) -> Option<(Location, Result<Zeroizing<String>, String>)> {
    let set = |name| source.environment.get(name).filter(|value| !value.trim().is_empty());
    let (name, text) = match (set(name), set(file)) {
        (None, None) => return None,
        (Some(text), None) => (name, Ok(text.clone())),
        (Some(_), Some(_)) => (name, Err(format!("expected {name} or {file}, not both"))),
        (None, Some(path)) => {
            let text = (source.key_file)(&source.folder.join(path.trim()));
            (file, text.map_err(|why| format!("expected a file with the {what}: {why}")))
        }
    };
    Some((Location::Variable(name.to_owned()), text))
}

pub(super) fn secret(
    source: &SettingsSource<'_>,
    faults: &mut Vec<SettingError>,
) -> Option<SecretText> {
    let names = ("TOLLGATE_SECRET", "TOLLGATE_SECRET_FILE");
    let (place, text) = read_secret(source, "secret", names)?;
    let secret = text.and_then(|text| SecretText::new(&text).map_err(str::to_owned));
    secret.map_err(|why| faults.push(SettingError::new(place, why))).ok()
}

/// `None` if no key is given; a list that is at fault is still given.
pub(super) fn keys(
    source: &SettingsSource<'_>,
    faults: &mut Vec<SettingError>,
) -> Option<(Location, Vec<Key>)> {
    let names = ("GATEWAY_API_KEY", "GATEWAY_API_KEY_FILE");
    let (place, text) = read_secret(source, "key", names)?;
    let keys = text.map(|text| list(&text, &place, faults));
    let keys = keys.map_err(|why| faults.push(SettingError::new(place.clone(), why)));
    Some((place, keys.unwrap_or_default()))
}

/// Guess: keys are made of these (the contract shows none in full). No encoder escapes them, so that an
/// echoed key is found in plain text.
fn is_key_char(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-')
}

const NO_QUOTES: &str =
    "; leave out the quotes, and the comment after it: here they count as its part";

fn list(text: &str, place: &Location, faults: &mut Vec<SettingError>) -> Vec<Key> {
    let keys: Vec<_> = text.split(',').map(str::trim).collect();
    let mut fault = |text: String| faults.push(SettingError::new(place.clone(), text));
    if keys.len() > MAX_KEYS {
        fault(format!("expected at most {MAX_KEYS} keys, not {}", keys.len()));
    }
    for (index, key) in keys.iter().enumerate() {
        let number = index + 1;
        let hint = if key.contains(['"', '\'', '#']) { NO_QUOTES } else { "" };
        let rest = key.strip_prefix(KEY_PREFIX).unwrap_or_default();
        if key.is_empty() {
            fault(format!("key {number}: expected a key, nothing is there"));
        } else if rest.is_empty() {
            fault(format!("key {number}: expected a key that begins with {KEY_PREFIX}{hint}"));
        } else if let Some(place) = key.chars().position(|letter| !is_key_char(letter)) {
            let place = place + 1;
            fault(format!(
                "key {number}: character {place}: expected a letter, digit, _ or -{hint}"
            ));
        } else if let Some(first) = keys[..index].iter().position(|other| other == key) {
            fault(format!("key {number}: expected another key than key {}", first + 1));
        }
    }
    keys.into_iter().map(|key| Key::new(key.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_key_has_the_same_id_and_another_one_another() {
        let id = |secret: &str| Key::new(secret.to_owned()).id();
        assert_eq!(id("svc_sk_a"), id("svc_sk_a"));
        assert_ne!(id("svc_sk_a"), id("svc_sk_b"));
        assert_ne!(id("svc_sk_a"), *blake3::hash(b"svc_sk_a").as_bytes().first_chunk().unwrap());
    }
}
