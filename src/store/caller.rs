//! Who a purchase belongs to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
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

const MEMBER: &str = "member:";
const SUBJECT: &str = "subject:";

impl Caller {
    /// Whether text that a caller is written as is that of a member or a subject.
    pub fn has_credentials(written: &str) -> bool {
        written.starts_with(MEMBER) || written.starts_with(SUBJECT)
    }

    /// The network of so many leading bits (of IPv4, of IPv6) that an address is in.
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
            Self::Member(_) | Self::Subject(_) => None,
        }
    }

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
            Self::Member(name) => write!(f, "{MEMBER}{name}"),
            Self::Subject(subject) => write!(f, "{SUBJECT}{subject}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_caller_tells_whether_it_has_credentials() {
        let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
        for (caller, has) in [
            (Caller::Address(v4), false),
            (Caller::Address(v6), false),
            (Caller::Member("ann".into()), true),
            (Caller::Subject("ann".into()), true),
        ] {
            assert_eq!(Caller::has_credentials(&caller.to_string()), has, "{caller}");
        }
    }
}
