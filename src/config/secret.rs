//! What keys the hashes of tokens and cookies, as given: read from where secrets may stand, and never repeated.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::Source;
use super::fault::{Fault, Place};
use crate::contract::wire::KEY_PREFIX;

const SECRET: &str = "TOLLGATE_SECRET";
const SECRET_FILE: &str = "TOLLGATE_SECRET_FILE";
/// Shorter ones could be guessed from a stolen ledger.
const SHORTEST: usize = 32;
/// So few different characters are a placeholder, such as `xxxx…` or `change-me-change-me…`.
const FEWEST_DIFFERENT: usize = 10;

/// A secret that is long enough. It has no `Display`; its memory is wiped when the last copy goes.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(Arc<Zeroizing<String>>);

impl SecretText {
    /// Takes what was written, without the blanks around it.
    ///
    /// # Errors
    /// What was expected, without what was written.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        let mut different: Vec<char> = text.chars().collect();
        different.sort_unstable();
        different.dedup();
        match () {
            () if text.contains(KEY_PREFIX) => {
                Err("expected a secret of its own, not the gateway's key")
            }
            () if text.len() < SHORTEST || different.len() < FEWEST_DIFFERENT => {
                Err("expected at least 32 random characters, as `openssl rand -hex 32` prints them")
            }
            () => Ok(Self(Arc::new(Zeroizing::new(text.to_owned())))),
        }
    }

    /// The secret itself: for deriving keys from it, nothing else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

/// The secret as given; `None` where none is, or where it is at fault.
pub(super) fn read(source: &Source<'_>, faults: &mut Vec<Fault>) -> Option<SecretText> {
    let given = |name| source.environment.get(name).filter(|value| !value.trim().is_empty());
    let (name, text) = match (given(SECRET), given(SECRET_FILE)) {
        (None, None) => return None,
        (Some(text), None) => (SECRET, Ok(text.clone())),
        (Some(_), Some(_)) => {
            (SECRET, Err(format!("expected {SECRET} or {SECRET_FILE}, not both")))
        }
        (None, Some(path)) => {
            let text = (source.key_file)(&source.folder.join(Path::new(path.trim())));
            let reason = |reason| format!("expected a file with the secret: {reason}");
            (SECRET_FILE, text.map_err(reason))
        }
    };
    match text.and_then(|text| SecretText::new(&text).map_err(str::to_owned)) {
        Ok(secret) => Some(secret),
        Err(why) => {
            faults.push(Fault::new(Place::Variable(name.to_owned()), why));
            None
        }
    }
}
