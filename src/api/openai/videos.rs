//! `POST /v1/videos`, `GET /v1/videos`, `GET /v1/videos/{id}` and its `/content`

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use multer::Multipart;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{gateway_refusal, paid_json};
use crate::api::translation::text_at;
use crate::api::validate;
use crate::api::validate::openai::FormValue;
use crate::api::{HandlerContext, passthrough, purchases};
use crate::clock;
use crate::gate::problem::{
    FORBIDDEN, INVALID_REQUEST, JOB_NOT_FOUND, MALFORMED_REQUEST, NOT_FOUND, OUTCOME_UNKNOWN,
    Problem, UNKNOWN_ENDPOINT,
};
use crate::gate::response::{self, HandlerResult, Response};
use crate::gateway::redact::Redactor;
use crate::purchase::Receipt;
use crate::video::status::state_word;
use crate::video::{Job, JobState};

const PREFIX: &str = "/v1/videos/";
const CONTENT_SUFFIX: &str = "/content";
const POLL_AFTER: HeaderName = HeaderName::from_static("openai-poll-after-ms");
/// A watched job is polled at most this often.
const POLL_AFTER_MS: HeaderValue = HeaderValue::from_static("5000");
/// Assumption: an open job with one of these words has not started.
const QUEUED: &[&str] = &["queued", "pending", "submitted", "accepted", "waiting", "created"];
/// Assumption: where a failed job's status has the reason.
const FAILURE_POINTERS: &[&str] =
    &["/error/message", "/error", "/message", "/failure_reason", "/reason", "/detail"];

/// A job in OpenAI's format.
#[derive(Default, Serialize)]
struct VideoBody<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    completed_at: Option<u64>,
    expires_at: Option<u64>,
    model: &'a str,
    status: &'static str,
    /// 0 until it is done: the gateway reports no reliable percentage.
    progress: u32,
    prompt: Option<&'a str>,
    seconds: Option<String>,
    size: Option<&'a str>,
    remixed_from_video_id: Option<&'a str>,
    error: Option<VideoError>,
}

#[derive(Serialize)]
struct VideoError {
    code: &'static str,
    message: String,
}

#[derive(Deserialize)]
struct OrderBody {
    prompt: String,
    duration: u32,
}

pub(crate) async fn buy(cx: HandlerContext) -> HandlerResult {
    let call = &cx.call;
    let catalog = &cx.handlers.rules.catalog;
    let parsed = match form_fields(&call.head.headers, &call.body).await? {
        None => validate::openai::video(&call.body, catalog)?,
        Some(fields) => validate::openai::video_from_form(&fields, catalog)?,
    };
    let sent = parsed.order.get().clone();
    let receipt = cx.buy(parsed.order).await?;
    let redactor = &cx.handlers.redactor;
    if !receipt.status.is_success() {
        return Ok(purchases::with_ignored(&parsed.ignored, gateway_refusal(receipt, redactor)));
    }
    let request_id = receipt.video.as_ref().map(|video| Arc::clone(&video.request_id));
    let request_id = request_id.ok_or_else(|| Problem::new(&OUTCOME_UNKNOWN))?;
    let job = cx.handlers.jobs.get(&request_id, &call.caller).await.ok();
    let order = serde_json::from_slice::<OrderBody>(&sent.body).ok();
    let mut video = match &job {
        Some(job) => VideoBody::of(job, redactor),
        None => VideoBody::new(&request_id, &sent.model, clock::wall().as_secs()),
    };
    video.prompt = order.as_ref().map(|order| &*order.prompt);
    video.seconds = order.as_ref().map(|order| order.duration.to_string());
    video.size = parsed.size.as_deref();
    let body = paid_json(&video)?;
    let receipt = Receipt { status: StatusCode::OK, is_json: true, body, ..receipt };
    let response = with_poll_interval(purchases::from_receipt(receipt));
    Ok(purchases::with_ignored(&parsed.ignored, response))
}

fn with_poll_interval(mut response: Response) -> Response {
    response.headers_mut().insert(POLL_AFTER, POLL_AFTER_MS);
    response
}

pub(crate) async fn list(cx: HandlerContext) -> HandlerResult {
    let page = validate::openai::list_query(cx.query())?;
    let mut jobs = cx.handlers.jobs.list(&cx.call.caller).await.map_err(|problem| {
        if problem.kind() != &INVALID_REQUEST {
            return problem;
        }
        Problem::new(&FORBIDDEN).detail(
            "in open mode on a public address, an IP address does not identify a user: get each \
             video by its id, at GET /v1/videos/{id}",
        )
    })?;
    if page.is_ascending {
        jobs.reverse();
    }
    let start = match &page.after {
        None => 0,
        Some(id) => {
            let index = jobs.iter().position(|job| *job.request_id == **id);
            index.map(|index| index + 1).ok_or_else(|| Problem::new(&JOB_NOT_FOUND))?
        }
    };
    let rest = jobs.get(start..).unwrap_or_default();
    let page_jobs = rest.get(..page.limit.min(rest.len())).unwrap_or_default();
    let videos = page_jobs.iter().map(|job| VideoBody::of(job, &cx.handlers.redactor));
    let list = json!({
        "object": "list",
        "data": videos.collect::<Vec<_>>(),
        "first_id": page_jobs.first().map(|job| &*job.request_id),
        "last_id": page_jobs.last().map(|job| &*job.request_id),
        "has_more": rest.len() > page_jobs.len(),
    });
    Ok(response::json(StatusCode::OK, &list))
}

pub(crate) async fn get(cx: HandlerContext) -> HandlerResult {
    let rest = cx.call.head.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let content_of = rest.strip_suffix(CONTENT_SUFFIX);
    let id = content_of.unwrap_or(rest);
    if id.contains('/') {
        return Err(Problem::new(&UNKNOWN_ENDPOINT)
            .detail("a video has GET /v1/videos/{id} and GET /v1/videos/{id}/content only"));
    }
    let request_id = &validate::request_id(id)?;
    if content_of.is_some() {
        return content(&cx, request_id).await;
    }
    // Waits for the gateway's first status, which is then in the job.
    let status = cx.handlers.jobs.status(request_id, &cx.call.caller).await?;
    let job = cx.handlers.jobs.get(request_id, &cx.call.caller).await?;
    let job = Job { latest_update: Some(status), ..job };
    let video = VideoBody::of(&job, &cx.handlers.redactor);
    Ok(with_poll_interval(response::json(StatusCode::OK, &video)))
}

async fn content(cx: &HandlerContext, request_id: &str) -> HandlerResult {
    let mut pairs = cx.query().unwrap_or_default().split('&');
    let is_other =
        |pair: &str| pair.strip_prefix("variant=").is_some_and(|variant| variant != "video");
    if pairs.any(is_other) {
        return Err(Problem::new(&NOT_FOUND).detail("the only variant is video"));
    }
    passthrough::content(cx, request_id).await
}

impl<'a> VideoBody<'a> {
    fn new(id: &'a str, model: &'a str, created_at: u64) -> Self {
        Self { id, object: "video", created_at, model, status: "queued", ..Self::default() }
    }

    fn of(job: &'a Job, redactor: &Redactor) -> Self {
        let video = Self::new(&job.request_id, &job.model, job.at.as_secs());
        let Some(latest) = &job.latest_update else { return video };
        match latest.state {
            JobState::Finished => Self {
                status: "completed",
                progress: 100,
                completed_at: Some(latest.at.as_secs()),
                ..video
            },
            JobState::Failed => {
                let message = text_at(redactor, &latest.body, FAILURE_POINTERS)
                    .unwrap_or_else(|| "the gateway gave no reason".to_owned());
                let error = VideoError { code: "failed", message };
                Self { status: "failed", error: Some(error), ..video }
            }
            JobState::Open => {
                let state = state_word(&latest.body).unwrap_or_default().to_lowercase();
                let status = if QUEUED.contains(&&*state) { "queued" } else { "in_progress" };
                Self { status, ..video }
            }
        }
    }
}

const MAX_FIELDS: usize = 64;

/// Returns the form's fields in order, or `None` for a JSON body.
async fn form_fields(
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Option<Vec<(String, FormValue)>>, Problem> {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.unwrap_or_default();
    if !media_type.trim_start().to_ascii_lowercase().starts_with("multipart/") {
        return Ok(None);
    }
    let boundary = multer::parse_boundary(media_type)
        .map_err(|_| malformed("expected a boundary in the form's Content-Type"))?;
    let whole = body.clone();
    let mut form = Multipart::new(stream::once(async { Ok::<_, Infallible>(whole) }), boundary);
    let mut fields = Vec::new();
    while let Some(field) = form.next_field().await.map_err(unreadable)? {
        if fields.len() == MAX_FIELDS {
            return Err(malformed("expected at most 64 fields"));
        }
        let name = field.name().unwrap_or_default().to_owned();
        let is_file = field.file_name().is_some();
        let bytes = field.bytes().await.map_err(unreadable)?;
        fields.push((
            name,
            match String::from_utf8(bytes.into()) {
                _ if is_file => FormValue::File,
                Ok(text) => FormValue::Text(text),
                Err(_) => return Err(malformed("expected UTF-8 in the form's fields")),
            },
        ));
    }
    Ok(Some(fields))
}

fn unreadable(_error: multer::Error) -> Problem {
    malformed("the form is malformed: a part is incomplete, or its header is invalid")
}

fn malformed(expected: &'static str) -> Problem {
    Problem::new(&MALFORMED_REQUEST).detail(expected)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Key;
    use crate::gateway::contract::money::Usd;
    use crate::metrics::Metrics;
    use crate::video::StatusUpdate;

    /// Escaped letters pass the redaction of the reply's bytes, and decoding reveals them.
    #[test]
    fn key_in_the_reason_of_a_failure_is_redacted() {
        let redactor = Redactor::new(Arc::new(Metrics::default()));
        redactor.add_keys(&[Key::new("svc_sk_0123456789abcdef".to_owned())]);
        let escaped: String = "svc_sk_0123456789abcdef"
            .chars()
            .map(|letter| format!("\\u{:04x}", letter as u32))
            .collect();
        let body = format!(r#"{{"status":"failed","reason":"the key {escaped} is bad"}}"#);
        let job = Job {
            request_id: "job-1".into(),
            purchase: None,
            owner: "ann".into(),
            key: None,
            model: "video-a-2".into(),
            price: Usd::dollars(3),
            at: Duration::ZERO,
            prompt: None,
            latest_update: Some(StatusUpdate {
                at: Duration::ZERO,
                body: body.into(),
                state: JobState::Failed,
            }),
        };
        let reason = VideoBody::of(&job, &redactor).error.expect("it failed").message;
        assert!(reason.starts_with("the key *") && !reason.contains("0123"), "{reason}");
    }
}
