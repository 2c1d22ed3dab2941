//! An HTTP/1.1 connection that tracks the progress of its request.
//!
//! HTTP/1.1 cannot tell a stray reply from the reply to the request just written, so a connection is
//! reused only with `gateway.keep_alive`. Two cases can be detected, and both end the connection:
//! - bytes that arrive before the first byte of a request is written;
//! - a reply that starts before its request is complete.
//!
//! A connection has no task of its own: the request that uses it polls it. While it is idle, nothing
//! reads from it, so it is polled before its next use, and the kernel is asked before its first byte.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::Error;

const MAX_HEAD: usize = 64 * 1_024;

#[derive(Debug)]
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// `None` once the connection has ended.
    driver: Option<Box<Driver>>,
    progress: Arc<Progress>,
    /// An empty map for the next request, with the memory of the last reply's.
    headers: HeaderMap,
}

type Driver = http1::Connection<TokioIo<TrackedIo>, Full<Bytes>>;

impl Connection {
    pub(super) async fn handshake(io: Stream) -> io::Result<Self> {
        let progress = Arc::new(Progress::default());
        let io = TrackedIo { io, progress: Arc::clone(&progress) };
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .handshake::<_, Full<Bytes>>(TokioIo::new(io))
            .await
            .map_err(io::Error::other)?;
        let headers = HeaderMap::new();
        Ok(Self { sender, driver: Some(Box::new(driver)), progress, headers })
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        if let Some(driver) = &mut self.driver
            && Pin::new(driver).poll(cx).is_ready()
        {
            self.driver = None;
        }
    }

    /// Completes `work`, which waits for this connection. Dropping the future stops both.
    pub(super) async fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.poll(cx);
            work.as_mut().poll(cx)
        })
        .await
    }

    /// Lets the body of the last reply arrive in the background.
    pub(super) fn detach(self) {
        if let Some(driver) = self.driver {
            tokio::spawn(async move { driver.await.ok() });
        }
    }

    /// Whether a request can be sent. Notices if the gateway sent bytes or hung up.
    pub(super) fn is_ready(&mut self) -> bool {
        self.poll(&mut Context::from_waker(Waker::noop()));
        self.sender.is_ready()
    }

    /// Whether it is ready, and its last reply came after its request was complete.
    pub(super) fn is_reusable(&mut self) -> bool {
        self.is_ready() && matches!(self.progress.phase(), Phase::Sent)
    }

    pub(super) fn replied_early(&self) -> bool {
        matches!(self.progress.phase(), Phase::Early)
    }

    pub(super) fn take_headers(&mut self) -> HeaderMap {
        std::mem::take(&mut self.headers)
    }

    /// Keeps the memory of a reply's headers for the next request.
    pub(super) fn recycle(&mut self, mut headers: HeaderMap) {
        headers.clear();
        self.headers = headers;
    }

    /// Call when the last reply was read to its end.
    pub(super) fn mark_idle(&self) {
        self.progress.is_used.store(true, Ordering::Relaxed);
        self.progress.enter(Phase::Idle);
    }

    /// Fails with [`Error::ClosedBeforeSend`] only if no byte was written.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Error> {
        self.progress.enter(Phase::Handed);
        let reply = self.sender.try_send_request(request);
        self.drive(reply).await.map_err(|mut failed| {
            let is_untouched = failed.take_message().is_some();
            if is_untouched || self.progress.phase() == Phase::Refused {
                return Error::ClosedBeforeSend;
            }
            Error::Lost(failed.into_error())
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    Idle,
    /// hyper has the request and has not written any of it.
    Handed,
    /// The request is never written: the gateway sent bytes or hung up first.
    Refused,
    /// Part of it may have been written.
    Writing,
    Sent,
    Early,
}

const PHASES: [Phase; 6] =
    [Phase::Idle, Phase::Handed, Phase::Refused, Phase::Writing, Phase::Sent, Phase::Early];

#[derive(Debug, Default)]
struct Progress {
    phase: AtomicU8,
    is_used: AtomicBool,
}

impl Progress {
    fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(Ordering::Acquire))]
    }

    fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Fails if the bytes just read cannot be the reply to the current request.
    fn has_read(&self) -> io::Result<()> {
        match self.phase() {
            // Without a request in flight, hyper closes the connection itself.
            Phase::Idle | Phase::Sent | Phase::Early => Ok(()),
            Phase::Handed => {
                self.enter(Phase::Refused);
                Err(io::Error::other("the gateway sent bytes before the request"))
            }
            Phase::Refused => Err(io::ErrorKind::ConnectionAborted.into()),
            Phase::Writing => {
                self.enter(Phase::Early);
                if self.is_used.load(Ordering::Relaxed) {
                    return Err(io::Error::other(
                        "a reply started before its request was complete",
                    ));
                }
                Ok(())
            }
        }
    }
}

pub(super) type Stream = Either<TcpStream, TlsStream<TcpStream>>;

#[derive(Debug)]
struct TrackedIo {
    io: Stream,
    progress: Arc<Progress>,
}

impl TrackedIo {
    /// Checks that the gateway is silent before the first byte of a request. It asks the kernel,
    /// because the runtime polls sockets only now and then.
    fn begin(&self) -> io::Result<()> {
        match self.progress.phase() {
            Phase::Handed => {}
            Phase::Refused => return Err(io::ErrorKind::ConnectionAborted.into()),
            Phase::Early => return Ok(()),
            Phase::Idle | Phase::Writing | Phase::Sent => {
                self.progress.enter(Phase::Writing);
                return Ok(());
            }
        }
        if self.progress.is_used.load(Ordering::Relaxed) {
            let socket = match &self.io {
                Either::Left(tcp) => tcp,
                Either::Right(tls) => tls.get_ref().0,
            };
            let peeked = SockRef::from(socket).peek(&mut [MaybeUninit::uninit()]);
            let is_silent = peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            if !is_silent {
                self.progress.enter(Phase::Refused);
                return Err(io::Error::other(
                    "the gateway sent bytes or hung up before the request",
                ));
            }
        }
        self.progress.enter(Phase::Writing);
        Ok(())
    }
}

impl AsyncRead for TrackedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        let has_read = buffer.filled().len() > before;
        Poll::Ready(if has_read { self.progress.has_read() } else { Ok(()) })
    }
}

impl AsyncWrite for TrackedIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.begin()?;
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.begin()?;
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    /// hyper flushes after the whole request, because each body is a single chunk.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        if self.progress.phase() == Phase::Writing {
            self.progress.enter(Phase::Sent);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
