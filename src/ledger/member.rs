//! Callers, members and their logins.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use super::{Digest, Extra, Unavailable};
use crate::gateway::contract::decimal;
use crate::gateway::contract::member::Role;
use crate::gateway::contract::terms::{MemberTerms, TermsChange};

/// The identity that limits, budgets, idempotency keys and jobs belong to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// A client without credentials, by address: IPv4 in full, IPv6 by its /64.
    Address(IpAddr),
    Member(Arc<str>),
    /// A user of the web app's own login, by the `sub` of its JWT.
    Subject(Arc<str>),
    /// The holders of a link, by its id.
    Link(Arc<str>),
}

const MEMBER: &str = "member:";
const SUBJECT: &str = "subject:";
const LINK: &str = "link:";

impl Caller {
    pub fn is_authenticated(written: &str) -> bool {
        [MEMBER, SUBJECT, LINK].iter().any(|kind| written.starts_with(kind))
    }

    /// Returns whether it is a person or a program with a name, and not an address or a link.
    pub fn is_known(&self) -> bool {
        matches!(self, Self::Member(_) | Self::Subject(_))
    }

    /// Returns the address's network of the given prefix length (for IPv4, for IPv6).
    pub fn network(&self, bits: (u32, u32)) -> Option<IpAddr> {
        match self {
            Self::Address(IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(u32::BITS - bits.0).unwrap_or(0);
                Some(Ipv4Addr::from_bits(address.to_bits() & mask).into())
            }
            Self::Address(IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(u128::BITS - bits.1).unwrap_or(0);
                Some(Ipv6Addr::from_bits(address.to_bits() & mask).into())
            }
            Self::Member(_) | Self::Subject(_) | Self::Link(_) => None,
        }
    }

    /// Groups callers that may be one: an IPv6 site has a /48, which holds 65,536 callers.
    pub fn site(&self) -> Self {
        self.network((32, 48)).map_or_else(|| self.clone(), Self::Address)
    }

    /// Returns the scope of this caller's idempotency keys. Addresses change, so all clients
    /// without credentials share one.
    pub fn namespace<'a>(&self, name: &'a str) -> &'a str {
        match self {
            Self::Address(_) => "open",
            Self::Member(_) | Self::Subject(_) | Self::Link(_) => name,
        }
    }

    /// Returns the caller as it is written in the ledger.
    pub fn name(&self) -> Arc<str> {
        let mut name = String::with_capacity(MAX_NAME_LEN);
        // Writing to a string cannot fail.
        write!(name, "{self}").ok();
        name.into()
    }
}

/// The form in the ledger and the log. No address looks like a member or a subject.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The peers of unix sockets have no address of their own.
            Self::Address(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => write!(f, "unix"),
            Self::Address(IpAddr::V4(address)) => {
                let [first, others @ ..] = address.octets();
                decimal::write(f, first.into(), 1)?;
                others.into_iter().try_for_each(|octet| {
                    f.write_str(".")?;
                    decimal::write(f, octet.into(), 1)
                })
            }
            Self::Address(IpAddr::V6(network)) => write!(f, "{network}/64"),
            Self::Member(name) => write!(f, "{MEMBER}{name}"),
            Self::Subject(subject) => write!(f, "{SUBJECT}{subject}"),
            Self::Link(id) => write!(f, "{LINK}{id}"),
        }
    }
}

/// How often a server polls the [version](super::Store::members_version) for changes made by
/// other processes.
pub const VERSION_POLL_INTERVAL: Duration = Duration::from_millis(250);

pub(super) const MAX_LOGINS_PER_MEMBER: usize = 100;

const MAX_NAME_LEN: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Never reused, even after the member is revoked.
    pub name: Arc<str>,
    pub terms: MemberTerms,
    /// The keyed hash of its token; the token itself is not stored.
    pub token: Digest,
    pub prefix: Arc<str>,
    pub added_at: Duration,
    pub revoked_at: Option<Duration>,
}

impl Member {
    pub(super) fn is_revoked(&self) -> bool {
        self.revoked_at.is_some()
    }

    pub(super) fn is_active_admin(&self) -> bool {
        self.terms.role == Role::Admin && !self.is_revoked()
    }
}

/// A session cookie, which stands for a member's token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginSession {
    pub id: Digest,
    pub member: Arc<str>,
    /// The keyed hash of the member's token at login. Another token ends the login.
    pub token: Digest,
    pub expires_at: Duration,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum MemberError {
    /// A name is never reused: jobs and spending stay with it.
    #[error("the name belongs to a current or former member")]
    NameTaken,
    #[error("there is no member with this name")]
    NotFound,
    #[error("this member was revoked")]
    Revoked,
    #[error("there is no such group")]
    UnknownGroup,
    /// Only the command line leaves a ledger without an admin.
    #[error("this is the last admin")]
    LastAdmin,
    #[error("other servers share this ledger and use another secret")]
    OtherSecret,
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

#[derive(Clone, Debug)]
pub enum MemberChange {
    Add(Member),
    /// Ends its token and logins for good. Does nothing if it is revoked already.
    Revoke,
    Update(TermsChange),
    /// Replaces its token. The old one and its logins end.
    Rotate(Digest, Arc<str>),
    /// Raises its limits for a time, in addition to what raises them already. `None` ends all that
    /// raises them.
    Extra(Option<Extra>),
}

impl MemberChange {
    /// Returns the member after the change. `before` is `None` if the name is new.
    pub(super) fn apply(
        &self,
        before: Option<Member>,
        now: Duration,
    ) -> Result<Member, MemberError> {
        let before = match (self, before) {
            (Self::Add(_), Some(_)) => return Err(MemberError::NameTaken),
            (Self::Add(member), None) => return Ok(member.clone()),
            (_, None) => return Err(MemberError::NotFound),
            (_, Some(before)) => before,
        };
        if before.is_revoked() && !matches!(self, Self::Revoke) {
            return Err(MemberError::Revoked);
        }
        Ok(match self.clone() {
            Self::Revoke => Member { revoked_at: before.revoked_at.or(Some(now)), ..before },
            Self::Update(change) => Member { terms: change.apply(before.terms), ..before },
            Self::Rotate(token, prefix) => Member { token, prefix, ..before },
            Self::Add(_) | Self::Extra(_) => before,
        })
    }
}

/// The outcome of [`Store::record_secret`](super::Store::record_secret).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretRecord {
    /// It is recorded.
    Accepted,
    /// Members' tokens were hashed with another secret.
    OtherOfMembers,
    /// Other running servers use another secret.
    OtherOfServers,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_caller_shows_whether_it_is_authenticated() {
        let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
        for (caller, has) in [
            (Caller::Address(v4), false),
            (Caller::Address(v6), false),
            (Caller::Member("ann".into()), true),
            (Caller::Subject("ann".into()), true),
            (Caller::Link("0123456789abcdef".into()), true),
        ] {
            assert_eq!(Caller::is_authenticated(&caller.to_string()), has, "{caller}");
        }
    }
}
