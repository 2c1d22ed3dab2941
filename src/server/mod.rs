//! Serves connections on one core: accept, answer, and at the end drain. It knows no routes.

mod connection;
mod crowd;

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;
use tracing::warn;

use self::crowd::Guest;
use crate::metrics::Metrics;

pub use self::crowd::Crowd;

/// How patient the server is, and how much it takes on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// From the first byte of a request's head to its last, and from a connection's start to it.
    pub header_timeout: Duration,
    /// Between two requests of a connection.
    pub idle_timeout: Duration,
    /// Connections at a time; shared by all listeners and cores.
    pub connections: Arc<Semaphore>,
    /// How many of them each address may have.
    pub crowd: Arc<Crowd>,
    pub metrics: Arc<Metrics>,
}

/// How long the other end may leave what we wrote unacknowledged.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of an answer the system may hold before it sends it, in bytes. With megabytes there, an
/// answer would count as taken that its client never saw, and one that is being sent as idle.
const MOST_UNSENT: u32 = 64 * 1_024;
/// Pauses after an accept that failed for want of descriptors or memory.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
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
    settings: Settings,
    shutdown: CancellationToken,
) where
    F: Fn(SocketAddr) -> S,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + Unpin + 'static,
    S::Future: Send + Unpin,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connections = TaskTracker::new();
    let serve = |stream: TcpStream, peer, guest: Guest, permit| {
        let service = introduce(peer);
        let (settings, shutdown) = (settings.clone(), shutdown.clone());
        connections.spawn(async move {
            // All are given back however it ends, by a panic too.
            let _held = (Counted::new(Arc::clone(&settings.metrics)), guest, permit);
            connection::serve(stream, service, &settings, shutdown).await;
        });
    };
    // Closed without a word: to say why, we would have to wait until it has asked.
    let enter = |peer: SocketAddr| {
        let guest = settings.crowd.enter(peer.ip());
        if guest.is_none() {
            settings.metrics.turned_away();
        }
        guest
    };
    let mut pause = FIRST_PAUSE;
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                pause = FIRST_PAUSE;
                // Before it waits for room: one address must not hold up the others there.
                let Some(guest) = enter(peer) else { continue };
                // Whoever comes after the first that finds no room waits in the kernel's queue, not
                // in our memory. A permit taken before `accept` would be one that a quiet listener
                // keeps from a busy one.
                let free = Arc::clone(&settings.connections);
                let permit = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => None,
                    permit = free.acquire_owned() => permit.ok(),
                };
                serve(prepared(stream), peer, guest, permit);
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                warn!(%error, "cannot accept connections for now");
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
    // Who was in the kernel's queue already had its connection accepted, as it sees it.
    while let Ok(Ok((stream, peer))) =
        tokio::time::timeout(Duration::from_millis(1), listener.accept()).await
    {
        let Some(guest) = enter(peer) else { continue };
        let permit = Arc::clone(&settings.connections).try_acquire_owned().ok();
        serve(prepared(stream), peer, guest, permit);
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// A connection in the metrics, for as long as it is there.
struct Counted(Arc<Metrics>);

impl Counted {
    fn new(metrics: Arc<Metrics>) -> Self {
        metrics.connected();
        Self(metrics)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.disconnected();
    }
}

fn prepared(stream: TcpStream) -> TcpStream {
    // Best effort: a socket that died meanwhile shows it when it is read.
    stream.set_nodelay(true).ok();
    let socket = SockRef::from(&stream);
    socket.set_tcp_user_timeout(Some(WRITE_TIMEOUT)).ok();
    socket.set_tcp_notsent_lowat(MOST_UNSENT).ok();
    stream
}

/// Errors of the connection that was about to be accepted, not of the listener.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}
