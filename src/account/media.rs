//! Hands a finished video to the caller who knows its job, from our own origin.

use bytes::Bytes;
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_SECURITY_POLICY};
use http::{HeaderValue, Method, StatusCode};

use crate::answer;
use crate::answer::{Answer, Body};
use crate::jobs::reading::Words;
use crate::problem::{NOT_FOUND, Problem};
use crate::upstream::media::Media;

/// Where finished videos are found, and where they may be fetched from.
#[derive(Clone, Debug)]
pub struct Videos {
    media: Media,
    words: Words,
}

impl Videos {
    /// `words`: how a status body is read.
    pub fn new(media: Media, words: Words) -> Self {
        Self { media, words }
    }

    /// The video of the job with this status body, or the range of it that was asked for.
    pub async fn content(
        &self,
        status: &[u8],
        method: Method,
        range: Option<&HeaderValue>,
    ) -> Result<Answer, Problem> {
        let address = self.words.address(status).ok_or_else(|| {
            Problem::new(&NOT_FOUND).detail("the job's status names no video yet")
        })?;
        let address = self.media.allowed(&address).ok_or_else(|| {
            Problem::new(&NOT_FOUND).detail(
                "the video is at an address that is not in page.media_origins; the status names it",
            )
        })?;
        let fetched = self.media.fetch(&address, method.clone(), range).await;
        let reply = fetched.map_err(|error| error.of_read())?;
        let (head, body) = reply.into_parts();
        let body = match method == Method::HEAD || head.status == StatusCode::RANGE_NOT_SATISFIABLE
        {
            true => Body::from(Bytes::new()),
            false => Body::stream(body),
        };
        let mut answer = Answer::new(body);
        *answer.status_mut() = head.status;
        *answer.headers_mut() = head.headers;
        let headers = answer.headers_mut();
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, max-age=3600"));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(answer::SEALED));
        Ok(answer)
    }
}
