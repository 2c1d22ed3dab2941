//! The connection that a request came over.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::tls::TlsSession;

#[derive(Clone, Debug)]
pub struct Source {
    pub peer: SocketAddr,
    /// `None` if it came over plain HTTP, or to a server that embeds the proxy.
    pub tls: Option<Arc<TlsSession>>,
}
