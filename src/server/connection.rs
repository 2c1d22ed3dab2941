//! Serves one HTTP/1 connection with header and idle timeouts and a lingering close.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryFutureExt;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};
use tokio_util::io::InspectReader;
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt};

use super::ConnectionSettings;
use crate::clock;
use crate::response::BoxError;

const MAX_HEADERS: usize = 64;
const MAX_HEAD_SIZE: usize = 16 * 1_024;
/// How much of an unread body is drained before closing, and for how long. An earlier close would
/// reset the connection; the client would lose the refusal and retry.
const LINGER_BYTES: u64 = 4 * 1_024 * 1_024;
const LINGER_TIME: Duration = Duration::from_secs(1);

pub(super) async fn serve<S, B>(
    stream: TcpStream,
    service: S,
    settings: &ConnectionSettings,
    shutdown: CancellationToken,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + Unpin + 'static,
    S::Future: Send + Unpin,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let activity = Activity::new();
    let seen = Arc::clone(&activity);
    let io = TokioIo::new(InspectReader::new(stream, move |bytes: &[u8]| {
        // The first byte of a head.
        if !bytes.is_empty() && seen.is_in(IDLE) {
            seen.set_phase(HEAD);
        }
    }));
    let state = Arc::clone(&activity);
    let service = service_fn(move |request| {
        state.set_phase(BUSY);
        let (response, activity) = (service.clone().oneshot(request), Arc::clone(&state));
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
    });
    let mut connection = http1::Builder::new()
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_SIZE)
        .header_read_timeout(None) // `Activity` does this
        .half_close(false)
        .serve_connection(io, service);

    let mut timer = pin!(sleep_until(clock::now() + settings.header_timeout));
    let mut draining = false;
    loop {
        tokio::select! {
            // Errors are the client's: it disconnected, or sent invalid HTTP and got a 400.
            _ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => break,
            () = shutdown.cancelled(), if !draining => {
                draining = true;
                std::pin::Pin::new(&mut connection).graceful_shutdown();
            }
            () = timer.as_mut() => match activity.next_deadline(settings) {
                Some(at) => timer.as_mut().reset(at),
                None => break,
            },
        }
    }
    linger(connection.into_parts().io.into_inner().into_inner()).await;
}

async fn linger(mut stream: TcpStream) {
    if stream.shutdown().await.is_ok() {
        let mut rest = stream.take(LINGER_BYTES);
        timeout(LINGER_TIME, copy(&mut rest, &mut sink())).await.ok();
    }
}

/// The phase of a connection and its start: two bits of phase, the rest milliseconds.
///
/// hyper's header timeout also runs between requests; this one starts at a head's first byte.
#[derive(Debug)]
struct Activity {
    start: clock::Instant,
    state: AtomicU64,
}

const IDLE: u64 = 0;
const HEAD: u64 = 1;
const BUSY: u64 = 2;

impl Activity {
    fn new() -> Arc<Self> {
        Arc::new(Self { start: clock::now(), state: AtomicU64::new(HEAD) })
    }

    fn set_phase(&self, phase: u64) {
        let millis = clock::now().duration_since(self.start).as_millis();
        let millis = u64::try_from(millis).unwrap_or(u64::MAX >> 2);
        self.state.store(millis << 2 | phase, Ordering::Relaxed);
    }

    fn is_in(&self, phase: u64) -> bool {
        self.state.load(Ordering::Relaxed) & 3 == phase
    }

    /// Returns when the timer is due again, or `None` if the phase took too long.
    ///
    /// The timer is reset only when it fires, so a busy connection pays nothing. It fires at least
    /// once per `header_timeout`, so that a head after a long idle time gets no extra time.
    fn next_deadline(&self, settings: &ConnectionSettings) -> Option<clock::Instant> {
        let now = clock::now();
        let look_again = now + settings.header_timeout;
        let state = self.state.load(Ordering::Relaxed);
        let since = self.start + Duration::from_millis(state >> 2);
        let due = match state & 3 {
            IDLE => since + settings.idle_timeout,
            HEAD => since + settings.header_timeout,
            _ => look_again,
        };
        (due > now).then(|| due.min(look_again))
    }
}

/// Ends the busy phase when hyper drops the written body.
struct ResponseGuard(Arc<Activity>);

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        self.0.set_phase(IDLE);
    }
}
