//! Serves one HTTP/2 connection, with bounds for idle, silent and slow clients.
//!
//! No response counts as delivered: hyper does not say when it has written the last byte. So an identical
//! purchase without a key is replayed, and never bought again by mistake.

use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::header::{CONTENT_LENGTH, COOKIE};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::connection::{LINGER_TIME, MAX_HEAD_SIZE, MAX_HEADERS};
use super::{AddressGuard, ConnectionSettings, HttpService};
use crate::clock;
use crate::gate::response::{Body, BoxError, Response};
use crate::sync::lock;

/// The size of a head as HTTP/2 counts it: with 32 bytes and a name for each cookie, of which browsers keep
/// 180 a site.
const MAX_LIST_SIZE: usize = MAX_HEAD_SIZE + 180 * (32 + "cookie".len());
const STREAM_WINDOW: u32 = 64 * 1_024;
/// Bodies that are not read yet may take this much memory on a connection.
const CONNECTION_WINDOW: u32 = 4 * STREAM_WINDOW;
const MAX_UNSENT: usize = 64 * 1_024;
/// Streams that the client has reset before they were accepted ("rapid reset").
const MAX_RESET_BY_CLIENT: usize = 20;
/// Streams that this side has reset because of the client's mistakes ("MadeYouReset").
const MAX_RESET_BY_SERVER: usize = 100;
/// The longest time in which a client may take nothing of a response that it has asked for.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take to answer a ping. Behind a slow download, the answer is late.
const PING_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn serve<S: HttpService>(
    (stream, peer): (impl AsyncRead + AsyncWrite + Unpin, IpAddr),
    service: S,
    settings: &ConnectionSettings,
    shutdown: CancellationToken,
) {
    let streams = Streams::new(settings, peer);
    let service = answer(service, Arc::clone(&streams));
    let connection = builder(&streams).serve_connection(TokioIo::new(stream), service);
    let mut connection = Box::pin(connection);
    let mut timer = pin!(sleep_until(streams.deadline()));
    let mut draining = false;
    loop {
        let must_end = tokio::select! {
            biased;
            // Errors are the client's: it disconnected, or broke the protocol.
            _ended = connection.as_mut() => break,
            () = shutdown.cancelled(), if !draining => true,
            () = timer.as_mut() => match streams.check() {
                Check::Wait => false,
                Check::GoAway => true,
                Check::Close => break,
            },
        };
        if must_end {
            draining = true;
            connection.as_mut().graceful_shutdown();
            streams.start_closing();
        }
        timer.as_mut().reset(streams.deadline());
    }
    // Ends what the streams wait for.
    drop(connection);
    streams.tasks.close();
    streams.tasks.wait().await;
}

fn builder(streams: &Arc<Streams>) -> http2::Builder<Spawner> {
    let settings = &streams.settings;
    let mut builder = http2::Builder::new(Spawner(Arc::clone(streams)));
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(settings.streams)
        .max_header_list_size(u32::try_from(MAX_LIST_SIZE).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(MAX_UNSENT)
        .max_pending_accept_reset_streams(MAX_RESET_BY_CLIENT)
        .max_local_error_reset_streams(MAX_RESET_BY_SERVER)
        .keep_alive_interval(settings.idle_timeout / 3)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// The open streams of a connection.
struct Streams {
    settings: ConnectionSettings,
    peer: IpAddr,
    tasks: TaskTracker,
    state: Mutex<State>,
}

struct State {
    open: usize,
    /// Since when none is open.
    since: clock::Instant,
    is_new: bool,
    /// The client was told to go.
    is_closing: bool,
    /// The stream whose request was accepted, until its task starts.
    accepted: Option<Arc<OpenStream>>,
}

enum Check {
    Wait,
    /// The connection is idle: the client may open no more streams.
    GoAway,
    Close,
}

impl Streams {
    fn new(settings: &ConnectionSettings, peer: IpAddr) -> Arc<Self> {
        let since = clock::now();
        let state = State { open: 0, since, is_new: true, is_closing: false, accepted: None };
        let (settings, tasks) = (settings.clone(), TaskTracker::new());
        Arc::new(Self { settings, peer, tasks, state: Mutex::new(state) })
    }

    /// Returns `None` at the limit of the client's address.
    fn open(self: &Arc<Self>) -> Option<Arc<OpenStream>> {
        let Some(counted) = self.settings.address_limits.try_open_stream(self.peer) else {
            self.settings.metrics.connections_refused.inc();
            return None;
        };
        let mut state = lock(&self.state);
        (state.open, state.is_new) = (state.open + 1, false);
        let streams = Arc::clone(self);
        let (held, may_be_unread) = (Mutex::default(), AtomicBool::default());
        let stream = OpenStream { streams, _counted: counted, held, may_be_unread };
        let stream = Arc::new(stream);
        state.accepted = Some(Arc::clone(&stream));
        Some(stream)
    }

    /// From now on, the connection ends soon after its last stream.
    fn start_closing(&self) {
        let mut state = lock(&self.state);
        (state.is_closing, state.since) = (true, clock::now());
    }

    /// Returns when [`check`](Self::check) is due.
    fn deadline(&self) -> clock::Instant {
        let ConnectionSettings { header_timeout, idle_timeout, .. } = self.settings;
        let state = lock(&self.state);
        match (state.open, state.is_new || state.is_closing) {
            (1.., _) => clock::now() + header_timeout.min(idle_timeout),
            (0, true) => state.since + header_timeout,
            (0, false) => state.since + idle_timeout,
        }
    }

    /// Judges the connection when it is due.
    fn check(&self) -> Check {
        let (deadline, state) = (self.deadline(), lock(&self.state));
        match (deadline <= clock::now(), state.is_new || state.is_closing) {
            (false, _) => Check::Wait,
            (true, true) => Check::Close,
            (true, false) => Check::GoAway,
        }
    }
}

/// A stream, until its response has been handed over.
struct OpenStream {
    streams: Arc<Streams>,
    _counted: AddressGuard,
    /// Since when hyper has held a part of the response that the client does not take.
    held: Mutex<Option<clock::Instant>>,
    /// Whether it is a refusal, of which the request's body may be unread.
    may_be_unread: AtomicBool,
}

impl OpenStream {
    async fn stalled(&self) {
        loop {
            let now = clock::now();
            let due = lock(&self.held).unwrap_or(now) + STALL_TIMEOUT;
            if due <= now {
                return;
            }
            sleep_until(due).await;
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut state = lock(&self.streams.state);
        (state.open, state.since) = (state.open - 1, clock::now());
    }
}

/// Runs each stream as a task, which resets it if the client takes nothing.
#[derive(Clone)]
struct Spawner(Arc<Streams>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Spawner {
    /// hyper calls this right after the service, which has left its stream.
    fn execute(&self, task: F) {
        let stream = lock(&self.0.state).accepted.take();
        self.0.tasks.spawn(async move {
            let Some(stream) = stream else { return task.await };
            let mut task = pin!(task);
            tokio::select! {
                () = task.as_mut() => {}
                () = stream.stalled() => return,
            }
            // h2 resets a stream with an unread body when its task is dropped. Some clients lose a
            // response that a reset follows at once.
            if stream.may_be_unread.load(Ordering::Relaxed) {
                sleep(LINGER_TIME).await;
            }
        });
    }
}

/// Answers each request. If the client resets the stream, the service's future is dropped.
fn answer<S: HttpService>(
    service: S,
    streams: Arc<Streams>,
) -> impl Service<
    Request<Incoming>,
    Response = http::Response<ResponseBody>,
    Error = h2::Error,
    Future: Send,
> {
    service_fn(move |mut request: Request<Incoming>| {
        let (service, stream) = (service.clone(), streams.open());
        async move {
            // The client may send a refused stream again.
            let stream = stream.ok_or(Reason::REFUSED_STREAM)?;
            let is_head = request.method() == Method::HEAD;
            let has_body = !request.body().is_end_stream();
            join_cookies(request.headers_mut());
            let mut response = if is_too_large(&request) {
                let mut refusal = Response::new(Body::default());
                *refusal.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                refusal
            } else {
                service.oneshot(request).await.unwrap_or_else(|never| match never {})
            };
            let may_be_unread = has_body && !response.status().is_success();
            stream.may_be_unread.store(may_be_unread, Ordering::Relaxed);
            set_length(&mut response);
            // It would count as delivered when it is handed over.
            response.body_mut().take_on_end();
            Ok(response.map(|body| ResponseBody {
                body: if is_head { Body::default() } else { body },
                stream,
            }))
        }
    })
}

/// Joins the cookies, of which clients may send each by itself (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

/// Returns whether the head would be too large for HTTP/1.
fn is_too_large<B>(request: &Request<B>) -> bool {
    const SEPARATORS: usize = ": \r\n".len();
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let lines = request.headers().iter();
    let lines = lines.map(|(name, value)| name.as_str().len() + value.len() + SEPARATORS);
    request.headers().len() > MAX_HEADERS || path + lines.sum::<usize>() > MAX_HEAD_SIZE
}

/// hyper sets no length of an empty body, and knows none of a response to HEAD.
fn set_length(response: &mut Response) {
    let has_body = !matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if let Some(length) = response.body().size_hint().exact().filter(|_| has_body) {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert(length.into());
    }
}

/// Tells its stream what hyper holds: hyper takes the next part once the client has taken the last.
struct ResponseBody {
    body: Body,
    stream: Arc<OpenStream>,
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        *lock(&self.stream.held) = None;
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        *lock(&self.stream.held) = Some(clock::now());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
