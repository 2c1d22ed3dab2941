//! Users of a login service, their sessions, and their tokens for programs.

use std::sync::Arc;
use std::time::Duration;

use super::{Digest, Role};
use crate::gateway::contract::money::SpendLimit;
use crate::gateway::contract::selection::Selection;

/// No user has this name: its row stands for the issuer whose users call.
pub(super) const NO_NAME: &str = "";

/// A login service's claims about a user at the last sign-in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectTerms {
    pub role: Role,
    pub own_budget: SpendLimit,
    pub group: Option<Arc<str>>,
    /// `None` is `access.may_buy`.
    pub may_buy: Option<Selection>,
    /// A name for display only. Two users may share it.
    pub display_name: Option<Arc<str>>,
}

/// A user, who is known by the service's `iss` and by `sub`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub issuer: Arc<str>,
    pub name: Arc<str>,
    pub terms: SubjectTerms,
}

/// A session cookie, or a token for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectLogin {
    /// The keyed hash of the cookie or the token.
    pub id: Digest,
    pub subject: Subject,
    pub expires_at: Duration,
    /// `None` for a cookie.
    pub token_budget: Option<SpendLimit>,
}

/// A token that a user made for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectToken {
    /// The token's keyed hash.
    pub id: Digest,
    /// Tells it from the user's other tokens.
    pub name: Arc<str>,
    pub prefix: Arc<str>,
    /// In addition to the user's own.
    pub budget: SpendLimit,
    pub created_at: Duration,
    pub expires_at: Duration,
    pub last_used: Option<Duration>,
}

/// Why a user gets no further token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    #[error("the session has ended")]
    SessionEnded,
    #[error("there is already a token of this name")]
    NameTaken,
    #[error("there are already {MAX_TOKENS_PER_SUBJECT} tokens")]
    TooMany,
}

/// One user has at most as many sessions. The oldest ends.
pub(super) const MAX_SESSIONS_PER_SUBJECT: usize = 100;
/// One user has at most as many tokens.
pub const MAX_TOKENS_PER_SUBJECT: usize = 20;
