//! Knows what a connection is doing, so that a slow head and a long silence get different deadlines.
//!
//! hyper's own head timer also runs between requests; this one starts with a head's first byte.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower::Service;

use crate::clock;

/// What a connection is at, and since when: two bits of phase, the rest milliseconds.
#[derive(Debug)]
pub(super) struct Activity {
    start: clock::Instant,
    state: AtomicU64,
}

const IDLE: u64 = 0;
const HEAD: u64 = 1;
const BUSY: u64 = 2;

impl Activity {
    /// A new connection owes us a head from its first moment.
    pub(super) fn new() -> Arc<Self> {
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
    pub(super) fn deadline(&self, head: Duration, idle: Duration) -> Option<clock::Instant> {
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
pub(super) struct Watched<T> {
    pub(super) io: T,
    pub(super) activity: Arc<Activity>,
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
pub(super) struct Noticing<S> {
    pub(super) inner: S,
    pub(super) activity: Arc<Activity>,
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
    pub(super) struct Answering<F> {
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
    pub(super) struct Noticed<B> {
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
