//! A key of the paid account, held so that it cannot be printed by accident.

use std::fmt;

use zeroize::Zeroizing;

/// A gateway key. It has no `Display` and no `Serialize`; its `Debug` shows the public prefix only;
/// its memory is wiped when the last copy goes.
#[derive(Clone)]
pub struct Key(std::sync::Arc<Zeroizing<String>>);

impl Key {
    /// Wraps a key that was checked to start with the contract's prefix (5.2).
    pub fn new(secret: String) -> Self {
        Self(std::sync::Arc::new(Zeroizing::new(secret)))
    }

    /// The secret itself: for the `authorization` header and for finding it in replies, nothing else.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What tells this key among others, and nothing of what it is: the start of a hash that is used
    /// for nothing else.
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
