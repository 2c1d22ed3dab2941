//! The gateway's keys and the secret for token hashes, which are never printed.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::error::{Location, SettingError};
use super::{ClientSecret, SettingsSource};
use crate::gateway::contract::wire::{KEY_PREFIX, MAX_KEYS};

/// A shorter secret could be guessed from a stolen ledger.
const MIN_SECRET_LENGTH: usize = 32;
/// A secret with fewer distinct characters is a placeholder such as `change-me-change-me…`.
const MIN_DISTINCT_CHARS: usize = 10;

/// A gateway key. `Debug` prints its public prefix only; its memory is wiped on drop.
#[derive(Clone)]
pub struct Key(Arc<Zeroizing<String>>);

impl Key {
    /// Wraps a key that starts with the contract's prefix (5.2).
    pub fn new(secret: String) -> Self {
        Self(Arc::new(Zeroizing::new(secret)))
    }

    /// Returns the key, for the `authorization` header and for redaction only.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns an identifier that reveals nothing about the key: the start of its hash.
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

/// A secret of sufficient length. Its memory is wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(Arc<Zeroizing<String>>);

impl SecretText {
    pub fn new(text: &str) -> Result<Self, &'static str> {
        let text = bare(text);
        let distinct: HashSet<char> = text.chars().collect();
        if text.contains(KEY_PREFIX) {
            return Err("expected a separate secret, not the gateway's key");
        }
        if text.len() < MIN_SECRET_LENGTH || distinct.len() < MIN_DISTINCT_CHARS {
            return Err(
                "expected at least 32 random characters, for example from `openssl rand -hex 32`",
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

/// The address of a database, which may hold a password. Its memory is wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(Arc<Zeroizing<String>>);

impl DatabaseUrl {
    pub fn new(text: &str) -> Self {
        Self(Arc::new(Zeroizing::new(text.trim().to_owned())))
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatabaseUrl(…)")
    }
}

/// Returns the text of a secret without the blanks around it, and without the byte order mark that some
/// editors write.
fn bare(text: &str) -> &str {
    text.trim_matches(|letter: char| letter.is_whitespace() || letter == '\u{feff}')
}

/// Reads a secret from its variable, or from the file that another variable names.
pub(super) fn read_secret(
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
    let text = text.map(|text| Zeroizing::new(bare(&text).to_owned()));
    Some((Location::Variable(name.to_owned()), text))
}

pub(super) fn secret(
    source: &SettingsSource<'_>,
    errors: &mut Vec<SettingError>,
) -> Option<SecretText> {
    let names = ("TOLLGATE_SECRET", "TOLLGATE_SECRET_FILE");
    let (location, text) = read_secret(source, "secret", names)?;
    let secret = text.and_then(|text| SecretText::new(&text).map_err(str::to_owned));
    secret.map_err(|why| errors.push(SettingError::new(location, why))).ok()
}

/// Returns the database's address; `None` if it is not set.
pub(super) fn database_url(
    source: &SettingsSource<'_>,
) -> Option<(Location, Result<DatabaseUrl, String>)> {
    let names = ("DATABASE_URL", "DATABASE_URL_FILE");
    let (location, text) = read_secret(source, "database's address", names)?;
    Some((location, text.map(|text| DatabaseUrl::new(&text))))
}

/// Returns the secret of our client at the login service; `None` if it is not set.
pub(super) fn client_secret(
    source: &SettingsSource<'_>,
) -> Option<(Location, Result<ClientSecret, String>)> {
    let names = ("OIDC_CLIENT_SECRET", "OIDC_CLIENT_SECRET_FILE");
    let (location, text) = read_secret(source, "client's secret", names)?;
    Some((location, text.and_then(|text| ClientSecret::new(&text).map_err(str::to_owned))))
}

/// Returns the keys; `None` if none are set. Invalid keys are reported in `errors`.
pub(super) fn keys(
    source: &SettingsSource<'_>,
    errors: &mut Vec<SettingError>,
) -> Option<(Location, Vec<Key>)> {
    let names = ("GATEWAY_API_KEY", "GATEWAY_API_KEY_FILE");
    let (location, text) = read_secret(source, "key", names)?;
    let keys = text.map(|text| list(&text, &location, errors));
    let keys = keys.map_err(|why| errors.push(SettingError::new(location.clone(), why)));
    Some((location, keys.unwrap_or_default()))
}

/// Assumption: keys consist of these characters, which no encoder escapes when a key is echoed.
fn is_key_char(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-')
}

const NO_QUOTES: &str =
    "; leave out the quotes, and the comment after it, which would be part of the key";

fn list(text: &str, location: &Location, errors: &mut Vec<SettingError>) -> Vec<Key> {
    let keys: Vec<_> = text.split(',').map(str::trim).collect();
    let mut error = |text: String| errors.push(SettingError::new(location.clone(), text));
    if keys.len() > MAX_KEYS {
        error(format!("expected at most {MAX_KEYS} keys, not {}", keys.len()));
    }
    for (index, key) in keys.iter().enumerate() {
        let number = index + 1;
        let hint = if key.contains(['"', '\'', '#']) {
            NO_QUOTES
        } else if key.starts_with('$') {
            " (variables are not expanded)"
        } else {
            ""
        };
        let rest = key.strip_prefix(KEY_PREFIX).unwrap_or_default();
        if key.is_empty() {
            error(format!("key {number}: expected a key, found nothing"));
        } else if rest.is_empty() {
            error(format!("key {number}: expected a key that begins with {KEY_PREFIX}{hint}"));
        } else if let Some(index) = key.chars().position(|letter| !is_key_char(letter)) {
            let character = index + 1;
            error(format!(
                "key {number}: character {character}: expected a letter, digit, _ or -{hint}"
            ));
        } else if let Some(first) = keys[..index].iter().position(|other| other == key) {
            error(format!("key {number}: expected a key other than key {}", first + 1));
        }
    }
    keys.into_iter().map(|key| Key::new(key.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_distinct_stable_ids() {
        let id = |secret: &str| Key::new(secret.to_owned()).id();
        assert_eq!(id("svc_sk_a"), id("svc_sk_a"));
        assert_ne!(id("svc_sk_a"), id("svc_sk_b"));
        assert_ne!(id("svc_sk_a"), *blake3::hash(b"svc_sk_a").as_bytes().first_chunk().unwrap());
    }
}
