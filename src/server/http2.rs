//! Serves one HTTP/2 connection, with bounds for idle, silent and slow clients.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::future::OptionFuture;
use h2::server::{Builder, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream, SendStream};
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, DATE, HeaderName, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::connection::{LINGER_TIME, MAX_HEAD_SIZE, MAX_HEADERS};
use super::wire::{FollowedIo, Wire};
use super::{ConnectionSettings, HttpService, StreamBody};
use crate::clock;
use crate::response::{Body, Response};
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
/// How long a client may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Headers of one HTTP/1 connection, which HTTP/2 forbids.
const HOP_HEADERS: [HeaderName; 5] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
    UPGRADE,
];

pub(super) async fn serve<S: HttpService>(
    (stream, peer): (impl AsyncRead + AsyncWrite + Unpin, IpAddr),
    service: S,
    settings: &ConnectionSettings,
    shutdown: CancellationToken,
) {
    let wire = Arc::new(Wire::default());
    let opening = builder(settings).handshake(FollowedIo::new(stream, Arc::clone(&wire)));
    let Ok(Ok(mut connection)) = timeout(settings.header_timeout, opening).await else { return };
    let (tasks, activity) = (TaskTracker::new(), Arc::new(Activity::new()));
    let mut health = Health::new(connection.ping_pong());
    let mut timer = pin!(sleep_until(activity.deadline(settings)));
    let mut draining = false;
    loop {
        tokio::select! {
            biased;
            accepted = connection.accept() => {
                // Errors are the client's: it disconnected, or broke the protocol.
                let Some(Ok((request, mut respond))) = accepted else { break };
                let Some(counted) = settings.address_limits.try_open_stream(peer) else {
                    settings.metrics.connections_refused.inc();
                    respond.send_reset(Reason::REFUSED_STREAM);
                    continue;
                };
                let guard = (activity.open(), counted);
                let (service, wire) = (service.clone(), Arc::clone(&wire));
                tasks.spawn(async move {
                    let _guard = guard;
                    answer(request, respond, service, &wire).await;
                });
            }
            () = shutdown.cancelled(), if !draining => {
                draining = true;
                connection.graceful_shutdown();
                activity.start_closing();
                timer.as_mut().reset(activity.deadline(settings));
            }
            () = health.answered() => {}
            () = timer.as_mut() => {
                match next_check(&activity, &mut health, &wire, settings) {
                    Check::At(deadline) => timer.as_mut().reset(deadline),
                    Check::GoAway => {
                        connection.graceful_shutdown();
                        activity.start_closing();
                        timer.as_mut().reset(activity.deadline(settings));
                    }
                    Check::Close => break,
                }
            }
        }
    }
    // Ends what the streams wait for.
    drop(connection);
    wire.close();
    tasks.close();
    tasks.wait().await;
}

fn builder(settings: &ConnectionSettings) -> Builder {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(settings.streams)
        .max_header_list_size(u32::try_from(MAX_LIST_SIZE).unwrap_or(u32::MAX))
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(MAX_UNSENT)
        .max_pending_accept_reset_streams(MAX_RESET_BY_CLIENT)
        .max_local_error_reset_streams(Some(MAX_RESET_BY_SERVER));
    builder
}

enum Check {
    At(clock::Instant),
    /// The connection is idle: the client may open no more streams.
    GoAway,
    Close,
}

/// Judges a connection whose timer has fired.
fn next_check(
    activity: &Activity,
    health: &mut Health,
    wire: &Wire,
    settings: &ConnectionSettings,
) -> Check {
    let now = clock::now();
    let is_late = |since: clock::Instant, limit| now.saturating_duration_since(since) >= limit;
    if wire.head_since().is_some_and(|since| is_late(since, settings.header_timeout)) {
        return Check::Close;
    }
    match activity.phase() {
        Phase::New { since } | Phase::Closing { since }
            if is_late(since, settings.header_timeout) =>
        {
            Check::Close
        }
        Phase::Idle { since } if is_late(since, settings.idle_timeout) => Check::GoAway,
        Phase::Busy if health.is_dead(now, wire.read_at()) => Check::Close,
        Phase::Busy => {
            health.ping(now, settings.idle_timeout / 3);
            Check::At(activity.deadline(settings))
        }
        Phase::New { .. } | Phase::Closing { .. } | Phase::Idle { .. } => {
            Check::At(activity.deadline(settings))
        }
    }
}

/// Counts the open streams of a connection.
struct Activity(Mutex<ActivityState>);

struct ActivityState {
    open: usize,
    /// Since when none is open.
    since: clock::Instant,
    is_new: bool,
    /// The client was told to go.
    is_closing: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    /// No request has arrived yet.
    New {
        since: clock::Instant,
    },
    Busy,
    Idle {
        since: clock::Instant,
    },
    /// The client was told to go, and nothing keeps it.
    Closing {
        since: clock::Instant,
    },
}

impl Activity {
    fn new() -> Self {
        let since = clock::now();
        Self(Mutex::new(ActivityState { open: 0, since, is_new: true, is_closing: false }))
    }

    fn phase(&self) -> Phase {
        let ActivityState { open, since, is_new, is_closing } = *lock(&self.0);
        match (open, is_new, is_closing) {
            (1.., ..) => Phase::Busy,
            (0, _, true) => Phase::Closing { since },
            (0, true, false) => Phase::New { since },
            (0, false, false) => Phase::Idle { since },
        }
    }

    /// From now on, the connection ends soon after its last stream.
    fn start_closing(&self) {
        let mut state = lock(&self.0);
        (state.is_closing, state.since) = (true, clock::now());
    }

    fn open(self: &Arc<Self>) -> OpenStream {
        let mut state = lock(&self.0);
        (state.open, state.is_new) = (state.open + 1, false);
        OpenStream(Arc::clone(self))
    }

    /// Returns when the timer is due. A head that begins to arrive meanwhile gets at most twice its
    /// time.
    fn deadline(&self, settings: &ConnectionSettings) -> clock::Instant {
        let look_again = clock::now() + settings.header_timeout;
        match self.phase() {
            Phase::New { since } | Phase::Closing { since } => since + settings.header_timeout,
            Phase::Idle { since } => look_again.min(since + settings.idle_timeout),
            Phase::Busy => look_again.min(clock::now() + settings.idle_timeout / 3),
        }
    }
}

struct OpenStream(Arc<Activity>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut state = lock(&self.0.0);
        (state.open, state.since) = (state.open - 1, clock::now());
    }
}

/// Pings a client that waits for responses, as its device may be gone without a word.
struct Health {
    pings: Option<PingPong>,
    sent: Option<clock::Instant>,
    answered: clock::Instant,
}

impl Health {
    fn new(pings: Option<PingPong>) -> Self {
        Self { pings, sent: None, answered: clock::now() }
    }

    /// Waits for the answer to a ping.
    async fn answered(&mut self) {
        let (Some(pings), Some(_)) = (&mut self.pings, self.sent) else {
            return std::future::pending().await;
        };
        if poll_fn(|cx| pings.poll_pong(cx)).await.is_err() {
            // The connection reports why it ended.
            std::future::pending::<()>().await;
        }
        (self.sent, self.answered) = (None, clock::now());
    }

    /// Any frame proves that the client is there: behind a slow download, the answer to a ping is late.
    fn is_dead(&self, now: clock::Instant, read_at: Option<clock::Instant>) -> bool {
        let Some(sent) = self.sent else { return false };
        let heard = read_at.map_or(sent, |read_at| sent.max(read_at));
        now.saturating_duration_since(heard) >= PING_TIMEOUT
    }

    fn ping(&mut self, now: clock::Instant, interval: Duration) {
        let is_due = now.saturating_duration_since(self.answered) >= interval;
        if let (Some(pings), None, true) = (&mut self.pings, self.sent, is_due)
            && pings.send_ping(Ping::opaque()).is_ok()
        {
            self.sent = Some(now);
        }
    }
}

/// Answers one request. If the client resets the stream, the service's future is dropped.
async fn answer<S: HttpService>(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    service: S,
    wire: &Wire,
) {
    let is_head = request.method() == Method::HEAD;
    let (mut request, is_unread) = StreamBody::of(request);
    join_cookies(request.headers_mut());
    let response = if is_too_large(&request) {
        drop(request);
        let mut refusal = Response::new(Body::default());
        *refusal.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        refusal
    } else {
        tokio::select! {
            biased;
            _reset = poll_fn(|cx| respond.poll_reset(cx)) => return,
            Ok(response) = service.oneshot(request) => response,
        }
    };
    let (mut head, mut body) = response.into_parts();
    complete_headers(&mut head.headers, head.status, &body);
    let on_end = body.take_on_end();
    let is_empty = is_head || body.is_end_stream();
    let end = on_end.as_ref().map(|_| wire.end_of(respond.stream_id().as_u32()));
    let head = http::Response::from_parts(head, ());
    let Ok(mut stream) = respond.send_response(head, is_empty) else { return };
    if !is_empty && let Err(reason) = send(body, &mut stream).await {
        return stream.send_reset(reason);
    }
    // Until here, the response may still be in a buffer.
    let written = timeout(STALL_TIMEOUT, OptionFuture::from(end)).await;
    if let (Ok(Some(Ok(()))), Some(delivered)) = (written, on_end) {
        delivered();
    }
    // The end of this function resets a stream that still sends. Some clients lose a response that
    // a reset follows at once.
    if is_unread.load(Ordering::Relaxed) {
        timeout(LINGER_TIME, poll_fn(|cx| stream.poll_reset(cx))).await.ok();
    }
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

fn complete_headers(headers: &mut HeaderMap, status: StatusCode, body: &Body) {
    for name in HOP_HEADERS {
        headers.remove(name);
    }
    let date = || httpdate::fmt_http_date(UNIX_EPOCH + clock::wall());
    if !headers.contains_key(DATE)
        && let Ok(date) = HeaderValue::try_from(date())
    {
        headers.insert(DATE, date);
    }
    let has_body = !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if let Some(length) = body.size_hint().exact().filter(|_| has_body) {
        headers.entry(CONTENT_LENGTH).or_insert(length.into());
    }
}

/// Sends no more than the client has asked for, so that h2 holds no part of a response for a client
/// that reads slowly.
///
/// # Errors
/// The reason to reset the stream.
async fn send(mut body: Body, stream: &mut SendStream<Bytes>) -> Result<(), Reason> {
    loop {
        let frame = tokio::select! {
            biased;
            reset = poll_fn(|cx| stream.poll_reset(cx)) => return Err(reset.unwrap_or(Reason::CANCEL)),
            frame = body.frame() => frame,
        };
        let frame = frame.transpose().map_err(|_broken| Reason::INTERNAL_ERROR)?;
        let Some(frame) = frame else {
            return stream.send_data(Bytes::new(), true).map_err(|_ended| Reason::CANCEL);
        };
        let Ok(mut data) = frame.into_data() else { continue };
        let is_last = body.is_end_stream();
        while !data.is_empty() {
            let part = data.split_to(capacity(stream, data.len()).await?);
            let is_end = is_last && data.is_empty();
            stream.send_data(part, is_end).map_err(|_ended| Reason::CANCEL)?;
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Waits until the client takes some of this many bytes. Returns how many.
async fn capacity(stream: &mut SendStream<Bytes>, wanted: usize) -> Result<usize, Reason> {
    stream.reserve_capacity(wanted);
    let granted = timeout(STALL_TIMEOUT, async {
        while stream.capacity() == 0 {
            poll_fn(|cx| stream.poll_capacity(cx)).await?.ok()?;
        }
        Some(stream.capacity().min(wanted))
    });
    granted.await.ok().flatten().ok_or(Reason::CANCEL)
}

#[cfg(test)]
mod tests;
