//! Serves callers: sockets, TLS, HTTP/1 and 2, and the [`runtime`] with its threads, reloads and end.

#[cfg(feature = "cli")]
pub mod acme;
mod connection;
mod http2;
mod listener;
pub mod runtime;
mod secure;
pub mod tls;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;
use tracing::warn;

pub use listener::{Acceptor, Listener, bind};

use crate::clock;
use crate::config::{Network, ServerConfig, UNIX_PEER};
use crate::edge::tls::Tls;
use crate::gate::caller::limit_key;
use crate::gate::response::Response;
use crate::gate::source::Source;
use crate::metrics::Metrics;
use crate::sync::{KeyedLimit, KeyedPermit, lock};

/// The body of a request.
pub type IncomingBody = Incoming;

/// The service of one connection.
pub trait HttpService:
    Service<Request<IncomingBody>, Response = Response, Error = Infallible, Future: Send + Unpin>
    + Clone
    + Send
    + Unpin
    + 'static
{
}

impl<S> HttpService for S
where
    S: Service<Request<IncomingBody>, Response = Response, Error = Infallible>,
    S: Clone + Send + Unpin + 'static,
    S::Future: Send + Unpin,
{
}

#[derive(Clone)]
pub struct ConnectionSettings {
    /// Limits the time to read a request's head, and the time from connect to the first head.
    pub header_timeout: Duration,
    pub idle_timeout: Duration,
    /// Limits open connections over all listeners and cores.
    pub connections: Arc<Semaphore>,
    pub address_limits: Arc<AddressLimits>,
    /// If `None`, connections are plain HTTP/1.
    pub tls: Option<Tls>,
    /// The maximum number of open HTTP/2 streams on a connection.
    pub streams: u32,
    pub metrics: Arc<Metrics>,
}

impl ConnectionSettings {
    /// Returns the settings of plain connections, without a limit for an address.
    pub fn new(server: &ServerConfig) -> Self {
        Self {
            header_timeout: server.header_timeout,
            idle_timeout: server.idle_timeout,
            connections: Arc::new(Semaphore::new(server.max_connections)),
            address_limits: Arc::default(),
            tls: None,
            streams: server.streams,
            metrics: Arc::default(),
        }
    }
}

/// The longest time that sent data may stay unacknowledged.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that the kernel may buffer before sending. With more, a response would count as taken, and
/// its connection as idle, long before the client has it.
const MAX_UNSENT: u32 = 64 * 1_024;
const MIN_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// How long a shutdown waits for the next connection of the kernel's accept queue.
const QUEUE_WAIT: Duration = Duration::from_millis(1);

/// Serves until `shutdown`, then lets each connection finish its current request.
pub async fn run<F, S>(
    listener: impl Into<Acceptor>,
    make_service: F,
    settings: ConnectionSettings,
    shutdown: CancellationToken,
) where
    F: Fn(Source) -> S + Send + Sync + 'static,
    S: HttpService,
{
    let (listener, connections) = (listener.into(), TaskTracker::new());
    let make_service = Arc::new(make_service);
    while let Some((stream, peer, slot)) = accept(&listener, &settings, &shutdown).await {
        let stream = configure(stream);
        let (settings, shutdown) = (settings.clone(), shutdown.clone());
        // A unix socket is for a web server in front, which speaks TLS itself.
        let tls = settings.tls.clone().filter(|_| peer.ip() != UNIX_PEER);
        let Some(tls) = tls else {
            let service = make_service(Source { peer, tls: None });
            connections.spawn(async move {
                let _slot = slot;
                connection::serve(stream, service, &settings, shutdown).await;
            });
            continue;
        };
        let make_service = Arc::clone(&make_service);
        connections.spawn(async move {
            let _slot = slot;
            secure::serve((stream, peer), &tls, &*make_service, &settings, shutdown).await;
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// A connection's permits and its count in the metrics, released when it ends, even by a panic.
struct ConnectionSlot {
    _address: AddressGuard,
    _permit: Option<OwnedSemaphorePermit>,
    metrics: Arc<Metrics>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.metrics.connections.dec();
    }
}

async fn accept(
    listener: &Acceptor,
    settings: &ConnectionSettings,
    shutdown: &CancellationToken,
) -> Option<(TcpStream, SocketAddr, ConnectionSlot)> {
    let mut backoff = MIN_BACKOFF;
    loop {
        let accepted = tokio::select! {
            biased;
            // The next process accepts them from a socket that both have.
            () = shutdown.cancelled(), if listener.is_passed => return None,
            // Clients in the kernel's accept queue already see an open connection.
            () = shutdown.cancelled() => Ok(timeout(QUEUE_WAIT, listener.accept()).await.ok()?.ok()?),
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                backoff = MIN_BACKOFF;
                // Checked before waiting for a permit, so one address cannot hold up the others.
                let Some(address) = settings.address_limits.try_acquire(peer.ip()) else {
                    settings.metrics.connections_refused.inc();
                    continue;
                };
                // Taken before `accept`, a quiet listener would keep it from a busy one.
                let permits = &settings.connections;
                let permit = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => Arc::clone(permits).try_acquire_owned().ok(),
                    permit = Arc::clone(permits).acquire_owned() => permit.ok(),
                };
                let metrics = Arc::clone(&settings.metrics);
                metrics.connections.inc();
                let slot = ConnectionSlot { _address: address, _permit: permit, metrics };
                return Some((stream, peer, slot));
            }
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                warn!(%error, "failed to accept connection; will retry");
                sleep(backoff).await;
                backoff = (backoff * 2).min(MAX_BACKOFF);
            }
        }
    }
}

fn configure(stream: TcpStream) -> TcpStream {
    // Best effort: a closed socket fails when it is read.
    stream.set_nodelay(true).ok();
    let socket = SockRef::from(&stream);
    socket.set_tcp_user_timeout(Some(WRITE_TIMEOUT)).ok();
    socket.set_tcp_notsent_lowat(MAX_UNSENT).ok();
    stream
}

fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | ConnectionRefused | Interrupted)
}

/// The shortest time between two warnings about addresses at their limit.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The per-address limit of connections and streams, shared by all listeners and cores.
#[derive(Debug, Default)]
pub struct AddressLimits {
    state: Mutex<AddressLimitState>,
    open: Arc<KeyedLimit<IpAddr>>,
    /// Open HTTP/2 streams, of which an address may have as many as connections.
    streams: Arc<KeyedLimit<IpAddr>>,
}

#[derive(Debug, Default)]
struct AddressLimitState {
    /// The limit and the trusted proxies, which are exempt. `None` means no limit.
    limit: Option<(usize, Arc<[Network]>)>,
    logged_at: Option<clock::Instant>,
}

/// Counts a connection while it lives. `None` for an exempt address.
type AddressGuard = Option<KeyedPermit<IpAddr>>;

impl AddressLimits {
    /// Changes the limit. Open connections beyond it stay open.
    pub fn reconfigure(&self, limit: usize, trusted: Arc<[Network]>) {
        lock(&self.state).limit = Some((limit, trusted));
    }

    fn try_acquire(&self, peer: IpAddr) -> Option<AddressGuard> {
        self.acquire(&self.open, "connections", peer)
    }

    fn try_open_stream(&self, peer: IpAddr) -> Option<AddressGuard> {
        self.acquire(&self.streams, "streams", peer)
    }

    fn acquire(
        &self,
        counts: &Arc<KeyedLimit<IpAddr>>,
        what: &'static str,
        peer: IpAddr,
    ) -> Option<AddressGuard> {
        let mut state = lock(&self.state);
        let Some((limit, trusted)) = &state.limit else { return Some(None) };
        let (Some(address), limit) = (limit_key(peer, trusted), *limit) else { return Some(None) };
        let guard = counts.try_acquire(address, limit);
        let now = clock::now();
        if guard.is_none() && state.logged_at.is_none_or(|at| now - at >= LOG_INTERVAL) {
            state.logged_at = Some(now);
            warn!(%address, limit, what, "per-address connection limit reached");
        }
        guard.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn closed_connections_are_not_counted() {
        let limits = AddressLimits::default();
        limits.reconfigure(2, Arc::default());
        let two = [limits.try_acquire(peer(1)), limits.try_acquire(peer(1))];
        assert!(two.iter().all(Option::is_some));
        assert!(limits.try_acquire(peer(1)).is_none());
        assert!(limits.try_acquire(peer(2)).is_some(), "another address has room of its own");
        drop(two);
        assert!(limits.open.is_empty());
        assert!(limits.try_acquire(peer(1)).is_some());
    }

    #[test]
    fn new_limit_keeps_open_connections_and_applies_to_new_ones() {
        let limits = AddressLimits::default();
        let early = limits.try_acquire(peer(1));
        limits.reconfigure(2, Arc::default());
        let mut three = vec![
            limits.try_acquire(peer(1)),
            limits.try_acquire(peer(1)),
            limits.try_acquire(peer(1)),
        ];
        assert!(three.pop().is_some_and(|third| third.is_none()));
        limits.reconfigure(1, [Network { address: peer(9), prefix: 32 }].into());
        three.pop();
        assert!(limits.try_acquire(peer(1)).is_none(), "one of it is still open");
        let exempt: Vec<_> = (0..9).map(|_| limits.try_acquire(peer(9))).collect();
        assert!(exempt.iter().all(Option::is_some));
        drop((early, three));
        assert!(limits.try_acquire(peer(1)).is_some());
    }
}
