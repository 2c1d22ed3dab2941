//! `[admin]`: the listener for operators, with `/metrics` and `/readyz`. It has no password.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::listen::Listen;
use super::read::{Section, section};

pub(super) const DEFAULT_OPS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

section! {
    pub(super) struct AdminConfig {
        /// It is not [`Listen::Unix`].
        pub listen: Listen = text("listen", Listen::parse_tcp, DEFAULT_OPS.into()),
    }
}
