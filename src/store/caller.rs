//! Who a purchase belongs to.

use std::fmt;
use std::net::IpAddr;

/// Who is asking: limits, budgets, keys and jobs count per caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// Somebody without credentials, by address: IPv4 as it is, IPv6 by its /64.
    Address(IpAddr),
}

/// As the ledger and the log write it.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(network)) => write!(f, "{network}/64"),
        }
    }
}
