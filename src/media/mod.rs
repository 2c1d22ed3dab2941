//! Hands a finished video to the caller who knows its job, from our own origin.

mod transfer;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, HeaderName};
use http::{HeaderValue, Method, StatusCode};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use url::Url;

use crate::access::Standing;
use crate::answer::{Answer, Body, BoxError};
use crate::jobs::Jobs;
use crate::jobs::reading::Words;
use crate::problem::{NOT_FOUND, Problem};
use crate::store::Caller;
use crate::upstream::media::Media;
use transfer::Transfer;

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Where finished videos are found, and where they may be fetched from.
#[derive(Clone, Debug)]
pub struct Videos {
    media: Media,
    words: Words,
    jobs: Jobs,
    policy: HeaderValue,
}

impl Videos {
    /// `words`: how a status body is read. `jobs` bounds what is on its way, and ends it when the server
    /// stops. Pages of other sites may show the videos where `are_shared`, as CORS decides then.
    pub fn new(media: Media, words: Words, jobs: Jobs, are_shared: bool) -> Self {
        let policy = if are_shared { "cross-origin" } else { "same-site" };
        Self { media, words, jobs, policy: HeaderValue::from_static(policy) }
    }

    /// The video of the job with this status body, or the range of it that was asked for. It is broken
    /// off when the caller's credentials end.
    pub async fn content(
        &self,
        status: &[u8],
        method: Method,
        range: Option<&HeaderValue>,
        (caller, standing): (&Caller, &Standing),
    ) -> Result<Answer, Problem> {
        let address = self.words.address(status).ok_or_else(|| {
            Problem::new(&NOT_FOUND).detail("the job's status names no video yet")
        })?;
        let address = self.media.allowed(&address).ok_or_else(|| elsewhere(&address))?;
        let seat = self.jobs.video_seat(caller)?;
        let fetched = self.media.fetch(&address, method.clone(), range).await;
        let reply = fetched.map_err(|error| error.of_read())?;
        let (head, body) = reply.into_parts();
        let body = match method == Method::HEAD || head.status == StatusCode::RANGE_NOT_SATISFIABLE
        {
            true => Body::from(Bytes::new()),
            false => {
                let transfer = Transfer::new(body, seat, self.jobs.stopped());
                Body::stream(During::new(transfer, standing.clone()))
            }
        };
        let mut answer = Answer::new(body);
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
fn elsewhere(address: &str) -> Problem {
    let origin = Url::parse(address).map(|address| address.origin().ascii_serialization());
    Problem::new(&NOT_FOUND).detail(format!(
        "the video is finished, and it is at {}, which is not in page.media_origins: it is not fetched \
         from there. GET /api/v1/video/status has its address (as video_url, or as jobs.result says)",
        origin.unwrap_or_default()
    ))
}

/// A transfer for as long as somebody may have it.
struct During {
    body: Transfer<Incoming>,
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_over: bool,
}

impl During {
    fn new(body: Transfer<Incoming>, standing: Standing) -> Self {
        Self { body, over: Box::pin(async move { standing.over().await }), is_over: false }
    }
}

impl http_body::Body for During {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if self.over.as_mut().poll(cx).is_ready() {
            self.is_over = true;
            // An error, so that nobody takes the part for the whole.
            return Poll::Ready(Some(Err("the caller's credentials have ended".into())));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
