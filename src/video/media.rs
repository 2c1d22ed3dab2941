//! Serves finished videos from our own origin.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, HeaderName, RANGE};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::access::Session;
use crate::gate::problem::{NOT_FOUND, Problem};
use crate::gate::response::{Body, BoxError, HandlerResult, Response};
use crate::gateway::media::MediaClient;
use crate::ledger::Caller;
use crate::video::concurrency::ConcurrencyPermit;
use crate::video::kept::KeptState;
use crate::video::{JobRegistry, JobsConfig};

const READ_TIMEOUT: Duration = Duration::from_secs(30);
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

#[derive(Clone)]
pub struct Videos {
    media: MediaClient,
    config: JobsConfig,
    jobs: JobRegistry,
    policy: HeaderValue,
}

impl Videos {
    /// With `is_shared`, pages of other origins may load videos, subject to CORS.
    pub fn new(media: MediaClient, config: JobsConfig, jobs: JobRegistry, is_shared: bool) -> Self {
        let policy = if is_shared { "cross-origin" } else { "same-site" };
        Self { media, config, jobs, policy: HeaderValue::from_static(policy) }
    }

    /// Returns the address of the finished video that a job's status names.
    pub fn result_url(&self, status: &[u8]) -> Option<String> {
        self.config.result_url(status)
    }

    /// Streams the kept video of a job, or else the one that its status names, until the caller's
    /// credentials expire.
    pub async fn content(
        &self,
        request_id: &str,
        (method, headers): (&Method, &HeaderMap),
        (caller, session): (&Caller, &Session),
    ) -> HandlerResult {
        let job = self.jobs.get(request_id, caller).await?;
        if let Some((head, body)) = self.jobs.kept_response(&job, method, headers).await {
            let Some(body) = body else { return Ok(self.response(head, None)) };
            let permit = self.jobs.transfer_permit(caller)?;
            return Ok(self.response(head, Some(self.streamed(body, permit, session))));
        }
        let states = self.jobs.kept_states(std::slice::from_ref(&job)).await;
        if states.is_some_and(|states| states.contains(&KeptState::Removed)) {
            return Err(Problem::new(&NOT_FOUND).detail("the video was removed"));
        }
        let (reply, permit) = self.fetch(request_id, (method, headers.get(RANGE)), caller).await?;
        let (head, body) = reply.into_parts();
        let has_none = *method == Method::HEAD || head.status == StatusCode::RANGE_NOT_SATISFIABLE;
        let body = (!has_none).then(|| self.streamed(body, permit, session));
        Ok(self.response(head, body))
    }

    /// Fetches the video that a job's status names. If its address fails, looks for a newer one.
    async fn fetch(
        &self,
        request_id: &str,
        (method, range): (&Method, Option<&HeaderValue>),
        caller: &Caller,
    ) -> Result<(http::Response<Incoming>, ConcurrencyPermit), Problem> {
        let not_finished =
            || Problem::new(&NOT_FOUND).detail("the job's status names no video yet");
        let status = self.jobs.kept_status(request_id, caller).await?;
        let address = self.config.result_url(&status.body).ok_or_else(not_finished)?;
        let known = self.media.allowed_url(&address).ok_or_else(|| not_allowed(&address))?;
        let permit = self.jobs.transfer_permit(caller)?;
        let mut fetched = self.media.fetch(&known, method.clone(), range).await;
        if fetched.is_err()
            && let Some(status) = self.jobs.polled_status(request_id, caller).await
            && let Some(address) = self.config.result_url(&status.body)
            && let Some(newer) = self.media.allowed_url(&address).filter(|newer| *newer != known)
        {
            fetched = self.media.fetch(&newer, method.clone(), range).await;
        }
        fetched.map(|reply| (reply, permit)).map_err(|error| error.read_problem())
    }

    fn streamed<B>(&self, body: B, permit: ConcurrencyPermit, session: &Session) -> Body
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let session = session.clone();
        let session_end = async move { session.ended().await };
        Body::stream(stream_video(body, permit, self.jobs.shutdown_token(), session_end))
    }

    fn response(&self, head: Parts, body: Option<Body>) -> Response {
        let mut response = Response::from_parts(head, body.unwrap_or_default());
        let headers = response.headers_mut();
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
        headers.insert(RESOURCE_POLICY, self.policy.clone());
        response
    }
}

fn not_allowed(address: &str) -> Problem {
    let origin = Url::parse(address).map(|address| address.origin().ascii_serialization());
    Problem::new(&NOT_FOUND).detail(format!(
        "the video is finished, but it is at {}, which is not fetched: only https addresses are, and \
         if page.media_origins lists any, only those. GET /api/v1/video/status has its address (as \
         video_url, or as jobs.result says)",
        origin.unwrap_or_default()
    ))
}

/// Why a transfer ended early. The client can resume it with a range request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum TransferError {
    #[error("the source sent nothing for 30 seconds")]
    SourceTimeout,
    #[error("the server is shutting down")]
    ServerStopped,
    #[error("a slow transfer made room for another caller")]
    Evicted,
    #[error("the caller's credentials have expired")]
    SessionEnded,
}

/// Streams the video. A transfer that ends early returns an error, so it is not mistaken for the whole.
fn stream_video<B>(
    body: B,
    permit: ConcurrencyPermit,
    shutdown: CancellationToken,
    session_end: impl Future<Output = ()> + Send + 'static,
) -> impl http_body::Body<Data = Bytes, Error = BoxError> + Send + 'static
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let evicted = permit.evicted();
    let end = async move {
        tokio::select! {
            biased;
            () = session_end => TransferError::SessionEnded,
            () = shutdown.cancelled() => TransferError::ServerStopped,
            () = evicted => TransferError::Evicted,
        }
    };
    let transfer = (Box::pin(body), permit, Box::pin(end));
    StreamBody::new(stream::unfold(transfer, |(mut body, permit, mut end)| async move {
        let frame = tokio::select! {
            biased;
            error = &mut end => Err(error.into()),
            frame = body.frame() => frame?.map_err(Into::into),
            // Starts when the client asks for more: a slow client does not time out the source.
            () = sleep(READ_TIMEOUT) => Err(TransferError::SourceTimeout.into()),
        };
        if let Ok(frame) = &frame {
            permit.record_bytes(Frame::data_ref(frame).map_or(0, Bytes::len));
        }
        Some((frame, (body, permit, end)))
    }))
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;
    use crate::clock;
    use crate::video::concurrency::{ConcurrencyLimit, VIDEOS};

    struct Pieces(mpsc::Receiver<&'static str>);

    impl http_body::Body for Pieces {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            let piece = |piece: &'static str| Ok(Frame::data(Bytes::from_static(piece.as_bytes())));
            self.0.poll_recv(cx).map(|next| next.map(piece))
        }
    }

    type Transfer = Pin<Box<dyn http_body::Body<Data = Bytes, Error = BoxError> + Send>>;

    struct Fake {
        source: mpsc::Sender<&'static str>,
        transfer: Transfer,
        /// All seats are taken.
        seats: ConcurrencyLimit,
        others: Vec<ConcurrencyPermit>,
        stop: CancellationToken,
    }

    fn caller(last: u8) -> Caller {
        Caller::Address([192, 0, 2, last].into())
    }

    fn fake() -> Fake {
        let (source, pieces) = mpsc::channel(8);
        let (seats, stop) = (ConcurrencyLimit::new(VIDEOS), CancellationToken::new());
        let seat = seats.acquire(&caller(0)).unwrap();
        // A caller's only seat is not evicted for callers that also have one.
        let others = (1..64).map(|last| seats.acquire(&caller(last)).unwrap()).collect();
        let transfer = Box::pin(stream_video(Pieces(pieces), seat, stop.clone(), pending()));
        Fake { source, transfer, seats, others, stop }
    }

    async fn transfer_error(transfer: &mut Transfer) -> TransferError {
        let error = transfer.frame().await.expect("not its end").expect_err("no piece");
        *error.downcast::<TransferError>().expect("ours")
    }

    #[tokio::test(start_paused = true)]
    async fn silent_source_ends_transfer_and_slow_client_does_not() {
        let Fake { source, mut transfer, seats, others, .. } = fake();
        source.send("a").await.unwrap();
        sleep(READ_TIMEOUT * 2).await;
        for pause in [READ_TIMEOUT / 2, READ_TIMEOUT * 3] {
            assert!(transfer.frame().await.unwrap().is_ok());
            sleep(pause).await;
            source.send("b").await.unwrap();
        }
        assert!(transfer.frame().await.unwrap().is_ok());
        let since = clock::now();
        assert_eq!(transfer_error(&mut transfer).await, TransferError::SourceTimeout);
        assert_eq!(since.elapsed(), READ_TIMEOUT);
        assert!(seats.acquire(&caller(1)).is_err(), "its seat is still taken");
        drop(transfer);
        assert!(seats.acquire(&caller(1)).is_ok());
        drop(others);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_transfer_is_cut_when_its_seat_is_given_away() {
        let Fake { source, mut transfer, seats, others, .. } = fake();
        for _ in 0..6 {
            // The others are fast.
            others.iter().for_each(|seat| seat.record_bytes(1 << 20));
            source.send("a").await.unwrap();
            assert!(transfer.frame().await.unwrap().is_ok());
            sleep(Duration::from_secs(1)).await;
        }
        let newcomer = seats.acquire(&caller(99)).expect("the slow one makes room");
        source.send("b").await.unwrap();
        assert_eq!(transfer_error(&mut transfer).await, TransferError::Evicted);
        drop(newcomer);
    }

    #[tokio::test(start_paused = true)]
    async fn transfer_ends_at_shutdown_and_at_end_of_source() {
        let Fake { source: _source, mut transfer, stop, .. } = fake();
        timeout(READ_TIMEOUT / 2, transfer.frame()).await.expect_err("there is nothing yet");
        stop.cancel();
        assert_eq!(transfer_error(&mut transfer).await, TransferError::ServerStopped);
        let Fake { source, mut transfer, .. } = fake();
        drop(source);
        assert!(transfer.frame().await.is_none());
    }
}
