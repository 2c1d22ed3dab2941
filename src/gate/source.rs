//! The connection that a request came over.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::config::Network;
use crate::edge::tls::TlsSession;

#[derive(Clone, Debug)]
pub struct Source {
    pub peer: SocketAddr,
    /// `None` if it came over plain HTTP, or to a server that embeds the proxy.
    pub tls: Option<Arc<TlsSession>>,
}

impl Source {
    pub(super) fn is_trusted(&self, trusted: &[Network]) -> bool {
        is_trusted(self.peer.ip().to_canonical(), trusted)
    }
}

fn contains(network: Network, address: IpAddr) -> bool {
    let (differing, width): (u128, u8) = match (network.address, address) {
        (IpAddr::V4(own), IpAddr::V4(one)) => ((own.to_bits() ^ one.to_bits()).into(), 32),
        (IpAddr::V6(own), IpAddr::V6(one)) => (own.to_bits() ^ one.to_bits(), 128),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
    };
    let host_bits = width.saturating_sub(network.prefix);
    differing.checked_shr(host_bits.into()).unwrap_or(0) == 0
}

/// Returns whether an address is one of a proxy in front.
pub(super) fn is_trusted(address: IpAddr, trusted: &[Network]) -> bool {
    trusted.iter().any(|network| contains(*network, address))
}
