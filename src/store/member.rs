//! Who may call where members may: what the store keeps of a member and of a login.

use std::sync::Arc;
use std::time::Duration;

use super::{Identity, Unavailable};
use crate::contract::money::Usd;

/// How often a server looks at the [`edition`](super::Store::edition): what another process changes holds
/// there after this and the time that reading the list takes.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Logins of one member that are kept; where there are more, the first to be opened are over.
pub(super) const MOST_LOGINS: usize = 100;

/// The longest name of a member.
const LONGEST_NAME: usize = 64;

/// Whether a member may be called so: 1 to 64 of `a-z 0-9 . _ -`.
pub fn is_member_name(text: &str) -> bool {
    let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
    (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(is_plain)
}

/// What a caller may do besides buying for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Nothing more.
    #[default]
    Member,
    /// Sees everybody's spend and jobs, and the account's numbers.
    Admin,
}

impl Role {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Member, Self::Admin];

    /// As settings, ledger and answers write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::Admin => "admin",
        }
    }

    /// The role of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// A caller's own budget, which holds besides `budget.caller`; `None` is no limit of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Own {
    /// Per UTC day.
    pub day: Option<Usd>,
    /// Per UTC month.
    pub month: Option<Usd>,
}

/// Who holds a token that tollgate issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// 1 to 64 of `a-z 0-9 . _ -`; never given to another once it was used.
    pub name: Arc<str>,
    /// What it may do.
    pub role: Role,
    /// Its own budget.
    pub own: Own,
    /// The keyed hash of its token; the token itself is nowhere.
    pub token: Identity,
    /// The token's first characters, by which a person tells it from others.
    pub prefix: Arc<str>,
    /// When it was added: wall-clock time since the Unix epoch.
    pub added: Duration,
    /// When it was revoked, if it was.
    pub revoked: Option<Duration>,
}

/// A login: the cookie that stands for a member's token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The keyed hash of the cookie's value.
    pub id: Identity,
    /// Whose login it is.
    pub member: Arc<str>,
    /// The keyed hash of the token it was opened with: with another token it is over.
    pub token: Identity,
    /// When it ends at the latest: wall-clock time since the Unix epoch.
    pub until: Duration,
}

/// Why a change of the list of members is refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MemberFault {
    /// Someone has, or had, this name: jobs and spend stay with it.
    #[error("there is, or was, a member of this name")]
    Taken,
    /// Nobody has this name.
    #[error("there is no member of this name")]
    Unknown,
    /// The member was revoked, and stays so.
    #[error("this member was revoked")]
    Revoked,
    /// The store cannot record anything.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// One change of the list.
#[derive(Clone, Debug)]
pub enum MemberChange {
    /// Adds a member.
    Added(Member),
    /// Ends its token and logins for good; one that is revoked already stays as it is.
    Revoked,
    /// Changes what is given.
    Updated(Option<Role>, Option<Own>),
    /// Gives it another token; the old one and its logins end.
    Rotated(Identity, Arc<str>),
}
