//! Serves connections on one core: accept, answer, and at the end drain. It knows no routes.

mod connection;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;
use tracing::warn;

use crate::clock;
use crate::config::Network;
use crate::downstream::caller::limit_key;
use crate::metrics::Metrics;
use crate::response::BoxError;
use crate::sync::{KeyedLimit, KeyedPermit, lock};

#[derive(Clone, Debug)]
pub struct ConnectionSettings {
    /// From the first byte of a request's head to its last, and from a connection's start to it.
    pub header_timeout: Duration,
    pub idle_timeout: Duration,
    /// Connections at a time; shared by all listeners and cores.
    pub connections: Arc<Semaphore>,
    pub address_limits: Arc<AddressLimits>,
    pub metrics: Arc<Metrics>,
}

impl ConnectionSettings {
    /// Counts a connection by its peer's address. One too many is closed without a word: to say why, the
    /// server would have to wait until it has asked.
    fn try_admit(&self, peer: SocketAddr) -> Option<AddressGuard> {
        let guest = self.address_limits.try_acquire(peer.ip());
        if guest.is_none() {
            self.metrics.connections_refused.inc();
        }
        guest
    }
}

/// How long the other end may leave what we wrote unacknowledged.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of an answer the system may hold before it sends it, in bytes. With megabytes there, an
/// answer would count as taken that its client never saw, and one that is being sent as idle.
const MAX_UNSENT: u32 = 64 * 1_024;
const MIN_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_secs(1);
const BACKLOG: i32 = 1_024;

/// Opens a listening socket, before anything is served. A port that somebody else has is an error.
pub fn bind(address: SocketAddr) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for connections in TIME_WAIT; a live listener still keeps us out.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // An IPv6 address means just that; who wants both lists both.
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Serves until `shutdown`, then lets every connection finish what it is at. `introduce` makes a
/// connection's service from its peer.
pub async fn run<F, S, B>(
    listener: TcpListener,
    introduce: F,
    settings: ConnectionSettings,
    shutdown: CancellationToken,
) where
    F: Fn(SocketAddr) -> S,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + Unpin + 'static,
    S::Future: Send + Unpin,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let connections = TaskTracker::new();
    let serve = |stream: TcpStream, peer, room: ConnectionSlot| {
        let (stream, service) = (configure(stream), introduce(peer));
        let (settings, shutdown) = (settings.clone(), shutdown.clone());
        connections.spawn(async move {
            let _held = room;
            connection::serve(stream, service, &settings, shutdown).await;
        });
    };
    while let Some((stream, peer, room)) = accept(&listener, &settings, &shutdown).await {
        serve(stream, peer, room);
    }
    // Who was in the kernel's queue already had its connection accepted, as it sees it.
    while let Ok(Ok((stream, peer))) = timeout(Duration::from_millis(1), listener.accept()).await {
        let Some(guest) = settings.try_admit(peer) else { continue };
        let permit = Arc::clone(&settings.connections).try_acquire_owned().ok();
        serve(stream, peer, ConnectionSlot::new(&settings, guest, permit));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// What a connection takes of the room that there is, and its place in the metrics: all are given back however it
/// ends, by a panic too.
struct ConnectionSlot {
    _guest: AddressGuard,
    _permit: Option<OwnedSemaphorePermit>,
    metrics: Arc<Metrics>,
}

impl ConnectionSlot {
    fn new(
        settings: &ConnectionSettings,
        guest: AddressGuard,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        settings.metrics.connections.inc();
        Self { _guest: guest, _permit: permit, metrics: Arc::clone(&settings.metrics) }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.metrics.connections.dec();
    }
}

async fn accept(
    listener: &TcpListener,
    settings: &ConnectionSettings,
    shutdown: &CancellationToken,
) -> Option<(TcpStream, SocketAddr, ConnectionSlot)> {
    let mut pause = MIN_BACKOFF;
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => return None,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                pause = MIN_BACKOFF;
                // Before it waits for room: one address must not hold up the others there.
                let Some(guest) = settings.try_admit(peer) else { continue };
                // Whoever comes after the first that finds no room waits in the kernel's queue, not
                // in our memory. A permit taken before `accept` would be one that a quiet listener
                // keeps from a busy one.
                let free = Arc::clone(&settings.connections);
                let permit = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => None,
                    permit = free.acquire_owned() => permit.ok(),
                };
                return Some((stream, peer, ConnectionSlot::new(settings, guest, permit)));
            }
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                warn!(%error, "cannot accept connections for now");
                sleep(pause).await;
                pause = (pause * 2).min(MAX_BACKOFF);
            }
        }
    }
}

fn configure(stream: TcpStream) -> TcpStream {
    // Best effort: a socket that died meanwhile shows it when it is read.
    stream.set_nodelay(true).ok();
    let socket = SockRef::from(&stream);
    socket.set_tcp_user_timeout(Some(WRITE_TIMEOUT)).ok();
    socket.set_tcp_notsent_lowat(MAX_UNSENT).ok();
    stream
}

fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// The log tells of an address that has too many this often at most: it is not to be flooded, too.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Who is connected, on all listeners and cores. Without a rule, anybody may connect.
#[derive(Debug, Default)]
pub struct AddressLimits {
    state: Mutex<AddressLimitState>,
    open: Arc<KeyedLimit<IpAddr>>,
}

#[derive(Debug, Default)]
struct AddressLimitState {
    /// How many each may have, and `server.trusted_proxies`, which have no limit.
    limit: Option<(usize, Arc<[Network]>)>,
    logged_at: Option<clock::Instant>,
}

/// A connection that is counted for as long as this lives; none for whom there is no limit.
type AddressGuard = Option<KeyedPermit<IpAddr>>;

impl AddressLimits {
    /// From now on `most` connections of each may be open; whoever has more keeps them.
    pub fn reconfigure(&self, most: usize, trusted: Arc<[Network]>) {
        lock(&self.state).limit = Some((most, trusted));
    }

    /// One more connection of this peer, or `None` when it has enough.
    fn try_acquire(&self, peer: IpAddr) -> Option<AddressGuard> {
        let mut rule = lock(&self.state);
        let Some((most, trusted)) = &rule.limit else { return Some(None) };
        let (Some(address), most) = (limit_key(peer, trusted), *most) else { return Some(None) };
        let guest = self.open.try_acquire(address, most);
        let now = clock::now();
        if guest.is_none() && rule.logged_at.is_none_or(|told| now - told >= LOG_INTERVAL) {
            rule.logged_at = Some(now);
            warn!(%address, most, "an address has too many connections open: more of it are closed");
        }
        guest.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn who_is_gone_is_not_remembered() {
        let crowd = AddressLimits::default();
        crowd.reconfigure(2, Arc::default());
        let two = [crowd.try_acquire(peer(1)), crowd.try_acquire(peer(1))];
        assert!(two.iter().all(Option::is_some));
        assert!(crowd.try_acquire(peer(1)).is_none());
        assert!(crowd.try_acquire(peer(2)).is_some(), "another address has room of its own");
        drop(two);
        assert!(crowd.open.is_empty());
        assert!(crowd.try_acquire(peer(1)).is_some());
    }

    #[test]
    fn a_new_rule_throws_nobody_out_and_holds_for_the_next() {
        let crowd = AddressLimits::default();
        let early = crowd.try_acquire(peer(1));
        crowd.reconfigure(2, Arc::default());
        let mut three = vec![
            crowd.try_acquire(peer(1)),
            crowd.try_acquire(peer(1)),
            crowd.try_acquire(peer(1)),
        ];
        assert!(three.pop().is_some_and(|third| third.is_none()));
        crowd.reconfigure(1, [Network { address: peer(9), prefix: 32 }].into());
        three.pop();
        assert!(crowd.try_acquire(peer(1)).is_none(), "one of it is still open");
        let exempt: Vec<_> = (0..9).map(|_| crowd.try_acquire(peer(9))).collect();
        assert!(exempt.iter().all(Option::is_some));
        drop((early, three));
        assert!(crowd.try_acquire(peer(1)).is_some());
    }
}
