//! A reply that was paid for and that nobody can read: what of it is shown to the operator.

use std::fmt;

use bytes::Bytes;

/// So much of it is kept, in bytes.
const MOST: usize = 1 << 20;
/// Where a reply was cut, a key could have been cut in two, and half of one is not found.
const LONGEST_LOOK: usize = 4_096;

/// The beginning of such a body, without our keys. It is never printed: it may hold what a caller said.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Unread(Bytes);

impl Unread {
    /// A whole body, in which no key is left.
    pub fn whole(body: &Bytes) -> Self {
        Self(body.slice(..body.len().min(MOST)))
    }

    /// The beginning of one that is larger than tollgate takes.
    pub(super) fn cut(beginning: &Bytes) -> Self {
        Self(beginning.slice(..beginning.len().saturating_sub(LONGEST_LOOK).min(MOST)))
    }

    /// What there is; nothing where it was empty, or never read.
    pub fn body(&self) -> Option<&Bytes> {
        Some(&self.0).filter(|body| !body.is_empty())
    }
}

impl fmt::Debug for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unread({} bytes)", self.0.len())
    }
}
