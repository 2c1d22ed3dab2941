//! Paths, the key's prefix, error names (4, 5, 7) and messages (2.4) of the gateway's API.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub const KEY_PREFIX: &str = "svc_sk_";
pub const MAX_KEYS: usize = 5;

pub const CHAT: &str = "/api/v1/chat";
pub const VIDEO: &str = "/api/v1/video";
pub const VIDEO_STATUS: &str = "/api/v1/video/status";
/// Keys, statistics and billing (4), without a version segment (9).
pub const API_KEYS: &str = "/api/api-keys";

pub const MISSING_API_KEY: &str = "missing_api_key";
pub const INVALID_API_KEY: &str = "invalid_api_key";

/// Requests and seconds in the contract's example of a billing summary (2.3).
pub const REPORTED_RATE_LIMIT: (u32, u64) = (60, 60);

/// The contract shows `user`. Guess: the others, which all such APIs share.
pub const ROLES: &[&str] = &["user", "assistant", "system"];

/// `role` is one of [`ROLES`], and `content` is not blank (2.4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message<'a> {
    pub role: Cow<'a, str>,
    pub content: Cow<'a, str>,
}

#[derive(Deserialize)]
struct ChatReply<'a> {
    #[serde(borrow)]
    message: ReplyMessage<'a>,
}

#[derive(Deserialize)]
struct ReplyMessage<'a> {
    #[serde(borrow)]
    content: &'a RawValue,
}

/// Returns whether this is the response to a chat (2.4): an object whose `message.content` is text.
pub fn is_chat_reply(body: &[u8]) -> bool {
    let body = String::from_utf8_lossy(body);
    // The text may have a lone surrogate, which JSON allows and a `String` does not.
    serde_json::from_str::<ChatReply<'_>>(&body)
        .is_ok_and(|reply| reply.message.content.get().starts_with('"'))
}
