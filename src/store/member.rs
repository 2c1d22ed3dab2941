//! Who may call where members may: what the store keeps of a member and of a login.

use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Identity, Unavailable};
use crate::contract::money::Usd;

/// How often a server looks at the [`edition`](Members::edition): what another process changes holds
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

/// The list of members and their logins. Every verb is durable when it returns, and other processes on
/// the same store see it at their next [`edition`](Members::edition).
pub trait Members: Send + Sync + 'static {
    /// Adds a member.
    fn enlist<'a>(&'a self, member: &'a Member) -> Answer<'a, Result<(), MemberFault>>;

    /// Ends a member's token and logins for good; one that is revoked already stays as it is.
    fn revoke(&self, name: Arc<str>) -> Answer<'_, Result<(), MemberFault>>;

    /// Changes what is given.
    fn update(
        &self,
        name: Arc<str>,
        role: Option<Role>,
        own: Option<Own>,
    ) -> Answer<'_, Result<(), MemberFault>>;

    /// Gives a member another token; the old one and its logins end.
    fn rotate(
        &self,
        name: Arc<str>,
        token: Identity,
        prefix: Arc<str>,
    ) -> Answer<'_, Result<(), MemberFault>>;

    /// All of them, revoked ones too, by name.
    fn members(&self) -> Answer<'_, Result<Vec<Member>, Unavailable>>;

    /// Keeps a login; those whose time is over are forgotten with it, and so is the oldest of a member
    /// who has a hundred.
    fn log_in<'a>(&'a self, session: &'a Session) -> Answer<'a, Result<(), Unavailable>>;

    /// Ends a login.
    fn log_out(&self, id: Identity) -> Answer<'_, Result<(), Unavailable>>;

    /// The logins that are not over.
    fn sessions(&self) -> Answer<'_, Result<Vec<Session>, Unavailable>>;

    /// The fingerprint of the secret that tokens are hashed with, where one is noted and a member's token
    /// depends on it. What ends with the process has none.
    fn keyed_by(&self) -> Answer<'_, Result<Option<Identity>, Unavailable>>;

    /// Notes it, in the place of any other.
    fn key_by(&self, print: Identity) -> Answer<'_, Result<(), Unavailable>>;

    /// Another number after any change of members or logins, by whichever process. Cheap: asked several
    /// times a second.
    fn edition(&self) -> Answer<'_, Result<u64, Unavailable>>;
}
