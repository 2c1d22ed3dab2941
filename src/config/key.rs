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
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("svc_sk_…")
    }
}
