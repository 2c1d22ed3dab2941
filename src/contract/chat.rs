//! The chat request as the gateway takes it (2.4).

use std::borrow::Cow;

use serde::Serialize;

/// Who speaks in a message. The contract shows `user`; the others are guesses that every chat API
/// of this shape shares.
pub const ROLES: &[&str] = &["user", "assistant", "system"];

/// One message (2.4): `role` is one of [`ROLES`], `content` is text that is not blank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message<'a> {
    /// Who speaks.
    pub role: Cow<'a, str>,
    /// What is said.
    pub content: Cow<'a, str>,
}
