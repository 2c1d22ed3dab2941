//! Serves one connection: requests one after another, deadlines for heads and silence, and an end at
//! which no refusal is lost.

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
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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
/// After a refusal, this much of an unread body is still taken, for this long: closing earlier would
/// reset the connection, the client would lose the refusal, and send everything again.
const LINGER_BYTES: usize = 4 * 1_024 * 1_024;
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
    let answering = Arc::clone(&activity);
    let service = service_fn(move |request| {
        answering.set_phase(BUSY);
        let (answer, activity) = (service.clone().oneshot(request), Arc::clone(&answering));
        answer.map_ok(|answer| {
            let written = ResponseGuard(activity);
            // It is dropped with the body. Unlike a mapped frame, a mapped error leaves the length known.
            answer.map(|body| {
                body.map_err(move |error| {
                    let _held = &written;
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
            // How it ended is the client's affair: it hung up, or sent what is no HTTP and was told so.
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

    fn set_phase(&self, phase: u64) {
        let millis = clock::now().duration_since(self.start).as_millis();
        let millis = u64::try_from(millis).unwrap_or(u64::MAX >> 2);
        self.state.store(millis << 2 | phase, Ordering::Relaxed);
    }

    fn is_in(&self, phase: u64) -> bool {
        self.state.load(Ordering::Relaxed) & 3 == phase
    }

    /// When the timer is due again, or `None` if the connection has had enough time for what it is at.
    ///
    /// The timer is re-armed only when it fires: a busy connection pays nothing for it. It fires once per
    /// `header_timeout` at least, so that a head that begins late in a long silence gets no more time
    /// than any other.
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

/// An answer is under way until this is dropped: hyper drops the body when it is written.
struct ResponseGuard(Arc<Activity>);

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        self.0.set_phase(IDLE);
    }
}
