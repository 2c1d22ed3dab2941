//! The connection that a request came over.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::tls::TlsSession;

/// The address of the connection's other end, for a request's extensions.
///
/// Limits and budgets count per caller, and a request does not say where it came from. Without a
/// `Peer`, requests that depend on the caller get a 500 that says so.
///
/// ```
/// use std::net::SocketAddr;
/// use tollgate::Peer;
///
/// fn with_peer<B>(mut request: http::Request<B>, peer: SocketAddr) -> http::Request<B> {
///     request.extensions_mut().insert(Peer(peer));
///     request
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Peer(
    /// The other end of the connection, which may be a proxy of yours.
    pub SocketAddr,
);

/// The connection that a request came over.
#[derive(Clone, Debug)]
pub struct Source {
    pub peer: SocketAddr,
    /// `None` if it came over plain HTTP, or to a server that embeds the proxy.
    pub tls: Option<Arc<TlsSession>>,
}

impl From<Peer> for Source {
    fn from(Peer(peer): Peer) -> Self {
        Self { peer, tls: None }
    }
}
