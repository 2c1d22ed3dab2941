//! Hands a finished video to the caller who knows its job, from our own origin.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, HeaderName};
use http::{HeaderValue, Method, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::access::Session;
use crate::jobs::concurrency::ConcurrencyPermit;
use crate::jobs::{JobRegistry, JobsConfig};
use crate::problem::{NOT_FOUND, Problem};
use crate::response::{Body, BoxError, Response};
use crate::store::Caller;
use crate::upstream::fetch::MediaClient;

const READ_TIMEOUT: Duration = Duration::from_secs(30);
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

#[derive(Clone)]
pub struct Videos {
    media: MediaClient,
    words: JobsConfig,
    jobs: JobRegistry,
    policy: HeaderValue,
}

impl Videos {
    /// If the videos `are_shared`, pages of other sites may show them, as CORS decides then.
    pub fn new(media: MediaClient, words: JobsConfig, jobs: JobRegistry, are_shared: bool) -> Self {
        let policy = if are_shared { "cross-origin" } else { "same-site" };
        Self { media, words, jobs, policy: HeaderValue::from_static(policy) }
    }

    /// The video of the job with this status body, or a range of it; it ends with the caller's credentials.
    pub async fn content(
        &self,
        status: &[u8],
        method: Method,
        range: Option<&HeaderValue>,
        (caller, standing): (&Caller, &Session),
    ) -> Result<Response, Problem> {
        let address = self.words.result_url(status).ok_or_else(|| {
            Problem::new(&NOT_FOUND).detail("the job's status names no video yet")
        })?;
        let address =
            self.media.allowed_url(&address).ok_or_else(|| origin_not_listed(&address))?;
        let seat = self.jobs.transfer_permit(caller)?;
        let fetched = self.media.fetch(&address, method.clone(), range).await;
        let reply = fetched.map_err(|error| error.read_problem())?;
        let (head, body) = reply.into_parts();
        let is_empty = method == Method::HEAD || head.status == StatusCode::RANGE_NOT_SATISFIABLE;
        let body = if is_empty {
            Body::from(Bytes::new())
        } else {
            let standing = standing.clone();
            let over = async move { standing.ended().await };
            Body::stream(stream_video(body, seat, self.jobs.shutdown_token(), over))
        };
        let mut answer = Response::new(body);
        *answer.status_mut() = head.status;
        *answer.headers_mut() = head.headers;
        let headers = answer.headers_mut();
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
        headers.insert(RESOURCE_POLICY, self.policy.clone());
        Ok(answer)
    }
}

/// Says where a video is that is not fetched, so that its caller can, and its operator lists the place.
fn origin_not_listed(address: &str) -> Problem {
    let origin = Url::parse(address).map(|address| address.origin().ascii_serialization());
    Problem::new(&NOT_FOUND).detail(format!(
        "the video is finished, and it is at {}, which is not in page.media_origins: it is not fetched \
         from there. GET /api/v1/video/status has its address (as video_url, or as jobs.result says)",
        origin.unwrap_or_default()
    ))
}

/// Why the rest of it does not come; the caller may ask for that by its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum TransferError {
    #[error("the source fell silent")]
    SourceTimeout,
    #[error("the server stops")]
    ServerStopped,
    #[error("it was slow, and somebody else got its seat")]
    Evicted,
    #[error("the caller's credentials have ended")]
    SessionEnded,
}

/// The video, piece by piece. Where it is cut it ends with an error, so that nobody takes the part for the whole.
/// `over` resolves when the caller's credentials end.
fn stream_video<B>(
    body: B,
    seat: ConcurrencyPermit,
    stop: CancellationToken,
    over: impl Future<Output = ()> + Send + 'static,
) -> impl http_body::Body<Data = Bytes, Error = BoxError> + Send + 'static
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let cut = seat.evicted();
    let end = async move {
        tokio::select! {
            biased;
            () = over => TransferError::SessionEnded,
            () = stop.cancelled() => TransferError::ServerStopped,
            () = cut => TransferError::Evicted,
        }
    };
    let transfer = (Box::pin(body), seat, Box::pin(end));
    StreamBody::new(stream::unfold(transfer, |(mut body, seat, mut end)| async move {
        let piece = tokio::select! {
            biased;
            cut = &mut end => Err(cut.into()),
            frame = body.frame() => frame?.map_err(Into::into),
            // It begins when the caller wants more: one who reads slowly is not the source's silence.
            () = sleep(READ_TIMEOUT) => Err(TransferError::SourceTimeout.into()),
        };
        if let Ok(frame) = &piece {
            seat.record_bytes(Frame::data_ref(frame).map_or(0, Bytes::len));
        }
        Some((piece, (body, seat, end)))
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
    use crate::jobs::concurrency::{ConcurrencyLimit, VIDEOS};

    /// Pieces as they are sent.
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
        /// All are taken.
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
        // One has its seat alone, so it does not make room for others that have as many.
        let others = (1..64).map(|last| seats.acquire(&caller(last)).unwrap()).collect();
        let transfer = Box::pin(stream_video(Pieces(pieces), seat, stop.clone(), pending()));
        Fake { source, transfer, seats, others, stop }
    }

    async fn cut(transfer: &mut Transfer) -> TransferError {
        let error = transfer.frame().await.expect("not its end").expect_err("no piece");
        *error.downcast::<TransferError>().expect("ours")
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_falls_silent_ends_it_and_a_caller_who_reads_slowly_does_not() {
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
        assert_eq!(cut(&mut transfer).await, TransferError::SourceTimeout);
        assert_eq!(since.elapsed(), READ_TIMEOUT);
        assert!(seats.acquire(&caller(1)).is_err(), "its seat is still taken");
        drop(transfer);
        assert!(seats.acquire(&caller(1)).is_ok());
        drop(others);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_transfer_is_cut_when_somebody_else_gets_its_seat() {
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
        assert_eq!(cut(&mut transfer).await, TransferError::Evicted);
        drop(newcomer);
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_when_the_server_stops_and_at_its_own_end() {
        let Fake { source: _source, mut transfer, stop, .. } = fake();
        timeout(READ_TIMEOUT / 2, transfer.frame()).await.expect_err("there is nothing yet");
        stop.cancel();
        assert_eq!(cut(&mut transfer).await, TransferError::ServerStopped);
        let Fake { source, mut transfer, .. } = fake();
        drop(source);
        assert!(transfer.frame().await.is_none());
    }
}
