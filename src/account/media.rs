//! Hands a finished video to the caller who knows its job, from our own origin.

use bytes::Bytes;
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_SECURITY_POLICY};
use http::{HeaderValue, Method, StatusCode};

use crate::answer;
use crate::answer::{Answer, Body};
use crate::jobs::Jobs;
use crate::jobs::reading::text_at;
use crate::problem::{NOT_FOUND, Problem};
use crate::upstream::media::Media;
use crate::validate::{Checked, StatusQuery};

/// Where finished videos are found, and where they may be fetched from.
#[derive(Clone, Debug)]
pub struct Videos {
    media: Media,
    result: Vec<String>,
}

impl Videos {
    /// `result`: JSON pointers into the status body (`jobs.result`).
    pub fn new(media: Media, result: Vec<String>) -> Self {
        Self { media, result }
    }

    /// The video of a job, or the range of it that was asked for.
    pub async fn content(
        &self,
        jobs: &Jobs,
        query: Checked<StatusQuery>,
        method: Method,
        range: Option<&HeaderValue>,
    ) -> Result<Answer, Problem> {
        let status = jobs.status(query).await?;
        let address = text_at(&status.body, &self.result).ok_or_else(|| {
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
