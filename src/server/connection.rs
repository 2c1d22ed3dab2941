//! Serves one connection: requests one after another, deadlines for heads and silence, and an end at
//! which no refusal is lost.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::Settings;
use crate::clock;

const MOST_HEADERS: usize = 64;
const LARGEST_HEAD: usize = 16 * 1_024;
/// After a refusal, this much of an unread body is still taken, for this long: closing earlier would
/// reset the connection, the client would lose the refusal, and send everything again.
const LINGER_BYTES: usize = 4 * 1_024 * 1_024;
const LINGER_TIME: Duration = Duration::from_secs(1);

pub(super) async fn serve<S, B>(
    stream: TcpStream,
    service: S,
    settings: &Settings,
    shutdown: CancellationToken,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + Unpin + 'static,
    S::Future: Send + Unpin,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let activity = Activity::new();
    let io = TokioIo::new(Watched { io: stream, activity: activity.clone() });
    let service = TowerToHyperService::new(Noticing { inner: service, activity: activity.clone() });
    let mut connection = http1::Builder::new()
        .max_headers(MOST_HEADERS)
        .max_buf_size(LARGEST_HEAD)
        .header_read_timeout(None) // `Activity` does this
        .half_close(false)
        .serve_connection(io, service);

    let patience = (settings.header_timeout, settings.idle_timeout);
    let mut timer = pin!(sleep_until(clock::now() + patience.0));
    let mut draining = false;
    loop {
        let finished = tokio::select! {
            finished = poll_fn(|cx| connection.poll_without_shutdown(cx)) => finished,
            () = shutdown.cancelled(), if !draining => {
                draining = true;
                Pin::new(&mut connection).graceful_shutdown();
                continue;
            }
            () = timer.as_mut() => {
                let now = clock::now();
                // Re-armed only when it fires: a busy connection pays nothing for it. It looks once
                // per `header_timeout` at least, so that a head that begins late in a long silence
                // gets no more time than any other.
                let look_again = now + patience.0;
                match activity.deadline(patience.0, patience.1).unwrap_or(look_again) {
                    passed if passed <= now => break,
                    later => timer.as_mut().reset(later.min(look_again)),
                }
                continue;
            }
        };
        // How it ended is the client's affair: it hung up, or sent what is no HTTP and was told so.
        drop(finished);
        break;
    }
    linger(connection.into_parts().io.into_inner().io).await;
}

async fn linger(mut stream: TcpStream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut sink = [0; 4_096];
    let mut left = LINGER_BYTES;
    let drain = async {
        while left > 0 {
            match stream.read(&mut sink).await {
                Ok(0) | Err(_) => return,
                Ok(read) => left = left.saturating_sub(read),
            }
        }
    };
    timeout(LINGER_TIME, drain).await.ok();
}

/// What a connection is at, and since when: two bits of phase, the rest milliseconds. hyper's own head timer
/// also runs between requests; this one starts with a head's first byte.
#[derive(Debug)]
struct Activity {
    start: clock::Instant,
    state: AtomicU64,
}

const IDLE: u64 = 0;
const HEAD: u64 = 1;
const BUSY: u64 = 2;

impl Activity {
    /// A new connection owes us a head from its first moment.
    fn new() -> Arc<Self> {
        Arc::new(Self { start: clock::now(), state: AtomicU64::new(HEAD) })
    }

    fn enter(&self, phase: u64) {
        let millis = clock::now().duration_since(self.start).as_millis();
        let millis = u64::try_from(millis).unwrap_or(u64::MAX >> 2);
        self.state.store(millis << 2 | phase, Ordering::Relaxed);
    }

    fn is(&self, phase: u64) -> bool {
        self.state.load(Ordering::Relaxed) & 3 == phase
    }

    /// When the connection has had enough time for what it is at; `None` while it is answered.
    fn deadline(&self, head: Duration, idle: Duration) -> Option<clock::Instant> {
        let state = self.state.load(Ordering::Relaxed);
        let since = self.start + Duration::from_millis(state >> 2);
        match state & 3 {
            IDLE => Some(since + idle),
            HEAD => Some(since + head),
            _ => None,
        }
    }
}

/// A stream that notices the first byte of a head.
#[derive(Debug)]
struct Watched<T> {
    io: T,
    activity: Arc<Activity>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut this.io).poll_read(cx, buffer);
        if buffer.filled().len() > before && this.activity.is(IDLE) {
            this.activity.enter(HEAD);
        }
        outcome
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

/// A service that notices when a request begins to be answered, and when its answer is written.
#[derive(Clone, Debug)]
struct Noticing<S> {
    inner: S,
    activity: Arc<Activity>,
}

impl<S, R, B> Service<Request<R>> for Noticing<S>
where
    S: Service<Request<R>, Response = Response<B>>,
{
    type Response = Response<Noticed<B>>;
    type Error = S::Error;
    type Future = Answering<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        self.activity.enter(BUSY);
        Answering { inner: self.inner.call(request), activity: Arc::clone(&self.activity) }
    }
}

pin_project! {
    /// The future of [`Noticing`].
    struct Answering<F> {
        #[pin]
        inner: F,
        activity: Arc<Activity>,
    }
}

impl<F, B, E> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<Noticed<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        this.inner.poll(cx).map_ok(|answer| {
            let written = Written(Arc::clone(this.activity));
            answer.map(|body| Noticed { body, _written: written })
        })
    }
}

pin_project! {
    /// A body whose end is noticed: hyper drops it when it is written.
    struct Noticed<B> {
        #[pin]
        body: B,
        _written: Written,
    }
}

struct Written(Arc<Activity>);

impl Drop for Written {
    fn drop(&mut self) {
        self.0.enter(IDLE);
    }
}

impl<B: http_body::Body> http_body::Body for Noticed<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
