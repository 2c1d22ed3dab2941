//! Serves one HTTP/1 connection, plain or TLS, with header and idle timeouts and a lingering close.
//!
//! hyper keeps 16 KB of buffers per connection. A connection without a request gives them back: it
//! leaves hyper and waits for its next byte with nothing but its socket.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::TryFutureExt;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as HyperService, service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, copy, sink};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout, timeout_at};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::{ConnectionSettings, HttpService};
use crate::clock;
use crate::gate::response::BoxError;

/// How long after its start a connection without a request outlives a shutdown.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
pub(super) const MAX_HEADERS: usize = 64;
pub(super) const MAX_HEAD_SIZE: usize = 16 * 1_024;
/// How long a connection with frequent requests keeps its buffers after a response.
const KEEP_BUFFERS: Duration = Duration::from_secs(1);
/// How much of an unread body is drained before closing, and for how long. An earlier close would
/// reset the connection; the client would lose the refusal and retry.
const LINGER_BYTES: u64 = 4 * 1_024 * 1_024;
pub(super) const LINGER_TIME: Duration = Duration::from_secs(1);

/// A connection: TCP, or TLS over it.
pub(super) trait SocketStream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Whether the first request may have been read from the socket already, with the handshake.
    const READS_AHEAD: bool;

    fn tcp(&self) -> &TcpStream;
}

impl SocketStream for TcpStream {
    const READS_AHEAD: bool = false;

    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl SocketStream for TlsStream<TcpStream> {
    const READS_AHEAD: bool = true;

    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

pub(super) async fn serve<S: HttpService, T: SocketStream>(
    stream: T,
    service: S,
    settings: &ConnectionSettings,
    shutdown: CancellationToken,
) {
    let activity = Activity::new();
    let mut io = TrackedIo { stream, unread: Bytes::new(), activity: Arc::clone(&activity) };
    let mut idle_since = None;
    loop {
        let now = clock::now();
        let (deadline, fresh_until) = match idle_since {
            // A client that has just connected is about to send.
            None => (now + settings.header_timeout, now + FIRST_REQUEST),
            Some(since) => (since + settings.idle_timeout, now),
        };
        // After a request, TLS holds nothing back: hyper has read until the socket was empty.
        let may_hold = !io.unread.is_empty() || (T::READS_AHEAD && idle_since.is_none());
        let stream = io.stream.tcp();
        if !may_hold && !is_readable(stream, (deadline, fresh_until), &shutdown).await {
            break;
        }
        let is_frequent = idle_since.is_some_and(|since| clock::now() - since < KEEP_BUFFERS);
        // A first request may still be on its way through TLS.
        let drain = async {
            shutdown.cancelled().await;
            if may_hold {
                sleep_until(fresh_until).await;
            }
        };
        let is_ended;
        let serving = serve_requests(io, service.clone(), settings, drain, is_frequent);
        // Boxed, so that a waiting connection has no memory for it.
        (io, is_ended) = Box::pin(serving).await;
        if is_ended {
            break;
        }
        idle_since = Some(activity.since());
    }
    linger(io.stream).await;
}

/// Waits for the first byte of a request. Returns whether it arrived before the deadline and, once
/// the server shuts down, before `fresh_until`.
async fn is_readable(
    stream: &TcpStream,
    (deadline, fresh_until): (clock::Instant, clock::Instant),
    shutdown: &CancellationToken,
) -> bool {
    let mut byte = [0];
    tokio::select! {
        biased;
        // A new stream counts as readable before anything has arrived, so `readable` is no proof.
        peeked = stream.peek(&mut byte) => return peeked.is_ok(),
        () = shutdown.cancelled() => {}
        () = sleep_until(deadline) => return false,
    }
    let until = fresh_until.min(deadline);
    // A timer that is due still waits for its tick.
    until > clock::now()
        && timeout_at(until, stream.peek(&mut byte)).await.is_ok_and(|it| it.is_ok())
}

/// Serves requests until the connection ends or is idle. Returns whether it ended. After `drain`, no
/// further request is accepted.
async fn serve_requests<S: HttpService, T: SocketStream>(
    io: TrackedIo<T>,
    service: S,
    settings: &ConnectionSettings,
    drain: impl Future<Output = ()>,
    is_frequent: bool,
) -> (TrackedIo<T>, bool) {
    let mut drain = pin!(drain);
    let activity = Arc::clone(&io.activity);
    let service = tracked(service, Arc::clone(&activity));
    let mut connection = http1::Builder::new()
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_SIZE)
        .header_read_timeout(None) // `Activity` does this
        .half_close(false)
        .serve_connection(TokioIo::new(io), service);

    let mut timer = pin!(sleep_until(activity.deadline(settings)));
    let mut draining = false;
    let is_ended = loop {
        tokio::select! {
            biased;
            // Errors are the client's: it disconnected, or sent invalid HTTP and got a 400.
            is_ended = poll_fn(|cx| {
                let mut polled = connection.poll_without_shutdown(cx);
                if polled.is_pending() && !is_frequent && activity.is_in(WRITTEN) {
                    // Now it reads the next head, or closes if the body was not read.
                    polled = connection.poll_without_shutdown(cx);
                }
                match polled {
                    Poll::Ready(_ended) => Poll::Ready(true),
                    Poll::Pending if !is_frequent && activity.is_in(IDLE) => Poll::Ready(false),
                    Poll::Pending => Poll::Pending,
                }
            }) => break is_ended,
            () = drain.as_mut(), if !draining => {
                draining = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            () = timer.as_mut() => {
                let deadline = activity.deadline(settings);
                if deadline <= clock::now() {
                    break !activity.is_in(IDLE);
                }
                timer.as_mut().reset(deadline);
            }
        }
    };
    (into_io(connection.into_parts()), is_ended)
}

/// Returns the stream with what hyper has already read of the next request.
fn into_io<S, T>(parts: http1::Parts<TokioIo<TrackedIo<T>>, S>) -> TrackedIo<T> {
    // An empty slice would keep hyper's whole buffer.
    let unread = if parts.read_buf.is_empty() { Bytes::new() } else { parts.read_buf };
    TrackedIo { unread, ..parts.io.into_inner() }
}

/// Tells the [`Activity`] when a request starts and when its response ends.
fn tracked<S: HttpService>(
    service: S,
    activity: Arc<Activity>,
) -> impl HyperService<
    Request<Incoming>,
    Response = http::Response<impl http_body::Body<Data = Bytes, Error = BoxError> + Send>,
    Error = Infallible,
    Future: Send + Unpin,
> {
    service_fn(move |request: Request<Incoming>| {
        activity.set_phase(BUSY);
        let (response, activity) = (service.clone().oneshot(request), Arc::clone(&activity));
        response.map_ok(|response| {
            let guard = ResponseGuard(activity);
            // Dropped with the body. `map_err` keeps the size hint, `map_frame` does not.
            response.map(|body| {
                body.map_err(move |error| {
                    let _guard = &guard;
                    error
                })
            })
        })
    })
}

pub(super) async fn linger(mut stream: impl SocketStream) {
    // TLS first writes all that it still holds.
    if timeout(LINGER_TIME, stream.shutdown()).await.is_ok_and(|it| it.is_ok()) {
        let mut rest = stream.take(LINGER_BYTES);
        timeout(LINGER_TIME, copy(&mut rest, &mut sink())).await.ok();
    }
}

/// The phase of a connection and its start: three bits of phase, the rest milliseconds.
///
/// hyper's header timeout also runs between requests; this one starts at a head's first byte.
#[derive(Debug)]
struct Activity {
    start: clock::Instant,
    state: AtomicU64,
}

/// hyper waits for the first byte of a request, and holds nothing to write.
const IDLE: u64 = 0;
/// A head is arriving.
const HEAD: u64 = 1;
const BUSY: u64 = 2;
/// hyper has the whole response and may still hold some of it.
const WRITING: u64 = 3;
/// The whole response is written. Until hyper reads again, part of the request may be unread.
const WRITTEN: u64 = 4;

impl Activity {
    fn new() -> Arc<Self> {
        Arc::new(Self { start: clock::now(), state: AtomicU64::new(HEAD) })
    }

    fn set_phase(&self, phase: u64) {
        let millis = clock::now().duration_since(self.start).as_millis();
        let millis = u64::try_from(millis).unwrap_or(u64::MAX >> 3);
        self.state.store(millis << 3 | phase, Ordering::Relaxed);
    }

    fn is_in(&self, phase: u64) -> bool {
        self.state.load(Ordering::Relaxed) & 7 == phase
    }

    fn since(&self) -> clock::Instant {
        self.start + Duration::from_millis(self.state.load(Ordering::Relaxed) >> 3)
    }

    fn has_read(&self, is_pending: bool) {
        if is_pending && self.is_in(WRITTEN) {
            // It has been idle since the response was written.
            let written = self.state.load(Ordering::Relaxed);
            self.state.store(written & !7 | IDLE, Ordering::Relaxed);
        } else if !is_pending && (self.is_in(IDLE) || self.is_in(WRITING) || self.is_in(WRITTEN)) {
            self.set_phase(HEAD);
        }
    }

    /// Returns when the timer is due, which is in the past if the phase took too long.
    ///
    /// The timer is reset only when it fires, so a busy connection pays nothing. It fires at least
    /// once per `header_timeout`, so that a head after a long idle time gets no extra time.
    fn deadline(&self, settings: &ConnectionSettings) -> clock::Instant {
        let look_again = clock::now() + settings.header_timeout.min(KEEP_BUFFERS);
        let due = match self.state.load(Ordering::Relaxed) & 7 {
            // The timer polls the connection first, and so `WRITTEN` becomes `IDLE`.
            IDLE | WRITTEN => self.since() + KEEP_BUFFERS.min(settings.idle_timeout),
            HEAD => return self.since() + settings.header_timeout,
            WRITING => self.since() + settings.idle_timeout,
            _ => look_again,
        };
        due.min(look_again)
    }
}

/// Ends the busy phase when hyper drops the written body.
struct ResponseGuard(Arc<Activity>);

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        self.0.set_phase(WRITING);
    }
}

/// Tells the [`Activity`] what hyper reads and writes.
struct TrackedIo<T> {
    stream: T,
    /// What hyper had read beyond the last request.
    unread: Bytes,
    activity: Arc<Activity>,
}

impl<T: SocketStream> AsyncRead for TrackedIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let length = self.unread.len().min(buffer.remaining());
            buffer.put_slice(&self.unread[..length]);
            self.unread.advance(length);
            self.activity.has_read(false);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        // At the end of the stream, hyper ends the connection.
        if read.is_pending() || buffer.filled().len() > before {
            self.activity.has_read(read.is_pending());
        }
        read
    }
}

impl<T: SocketStream> AsyncWrite for TrackedIo<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes once its own buffer is empty.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        if self.activity.is_in(WRITING) {
            self.activity.set_phase(WRITTEN);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
