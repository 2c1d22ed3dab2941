//! The words on the wire: paths, the key's prefix, error names (4, 5, 7), and messages (2.4).

use std::borrow::Cow;

use serde::Serialize;

pub const KEY_PREFIX: &str = "svc_sk_";
/// The most active keys that an account may hold (3.1).
pub const MAX_KEYS: usize = 5;

pub const CHAT: &str = "/api/v1/chat";
pub const VIDEO: &str = "/api/v1/video";
pub const VIDEO_STATUS: &str = "/api/v1/video/status";
/// `GET`: keys, statistics and billing (4). It has no version segment (9).
pub const API_KEYS: &str = "/api/api-keys";

pub const MISSING_API_KEY: &str = "missing_api_key";
pub const INVALID_API_KEY: &str = "invalid_api_key";

/// The window that the billing summary of the reference payload reports (2.3): requests, seconds.
pub const REPORTED_RATE_LIMIT: (u32, u64) = (60, 60);

/// Who speaks in a message. The contract shows `user`; the others are guesses that every chat API
/// of this shape shares.
pub const ROLES: &[&str] = &["user", "assistant", "system"];

/// One message (2.4): `role` is one of [`ROLES`], `content` is text that is not blank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message<'a> {
    pub role: Cow<'a, str>,
    pub content: Cow<'a, str>,
}
