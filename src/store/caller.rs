//! Who a purchase belongs to.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Who is asking: limits, budgets, keys and jobs count per caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// Somebody without credentials, by address: IPv4 as it is, IPv6 by its /64.
    Address(IpAddr),
    /// Who holds a token that tollgate issued, by the member's name.
    Member(Arc<str>),
    /// A user of the web app's own login, by its JWT's `sub`.
    Subject(Arc<str>),
}

impl Caller {
    /// Where this caller's idempotency keys live. Addresses move, so those who are known by nothing
    /// else share one namespace.
    pub fn namespace(&self) -> String {
        match self {
            Self::Address(_) => "open".to_owned(),
            Self::Member(_) | Self::Subject(_) => self.to_string(),
        }
    }
}

/// As the ledger and the log write it. No address looks like a member or a subject.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(network)) => write!(f, "{network}/64"),
            Self::Member(name) => write!(f, "member:{name}"),
            Self::Subject(subject) => write!(f, "subject:{subject}"),
        }
    }
}
