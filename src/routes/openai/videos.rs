//! `POST /v1/videos`, `GET /v1/videos`, `GET /v1/videos/{id}` and its `/content`

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use multer::Multipart;
use serde::{Deserialize, Serialize};

use super::{gateway_refusal, text_at};
use crate::clock;
use crate::jobs::status::state_word;
use crate::jobs::{Job, JobState};
use crate::problem::{
    FORBIDDEN, INVALID_REQUEST, JOB_NOT_FOUND, MALFORMED_REQUEST, NOT_FOUND, OUTCOME_UNKNOWN,
    Problem, UNKNOWN_ENDPOINT,
};
use crate::purchase::Receipt;
use crate::redact::Redactor;
use crate::response::{self, Response};
use crate::routes::{HandlerContext, api, purchases};
use crate::validate;
use crate::validate::openai::FormValue;

const PREFIX: &str = "/v1/videos/";
const CONTENT_SUFFIX: &str = "/content";
const POLL_AFTER: HeaderName = HeaderName::from_static("openai-poll-after-ms");
/// What is watched is asked for at most this often.
const POLL_AFTER_MS: HeaderValue = HeaderValue::from_static("5000");
/// Guess: an open job with one of these words has not been begun.
const QUEUED: &[&str] = &["queued", "pending", "submitted", "accepted", "waiting", "created"];
/// Guess: where the status of a failed job says why.
const FAILURE_POINTERS: &[&str] =
    &["/error/message", "/error", "/message", "/failure_reason", "/reason", "/detail"];

/// A job as OpenAI tells of it. What nobody knows is `null`.
#[derive(Default, Serialize)]
struct VideoBody<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    completed_at: Option<u64>,
    expires_at: Option<u64>,
    model: &'a str,
    status: &'static str,
    /// 0 until it is done: the gateway tells no percentage that could be relied on.
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

pub(crate) async fn buy(cx: HandlerContext) -> Result<Response, Problem> {
    let (call, catalog) = (&cx.call, &cx.handlers.rules.catalog);
    let wanted = match form_fields(&call.head.headers, &call.body).await? {
        None => validate::openai::video(&call.body, catalog)?,
        Some(fields) => validate::openai::video_from_form(&fields, catalog)?,
    };
    let sent = wanted.order.get().clone();
    let receipt = cx.buy(wanted.order).await?;
    let redactor = &cx.handlers.redactor;
    if !receipt.status.is_success() {
        return Ok(purchases::with_ignored(&wanted.ignored, gateway_refusal(receipt, redactor)));
    }
    let request_id = receipt.video.as_ref().map(|video| Arc::clone(&video.request_id));
    let request_id = request_id.ok_or_else(|| Problem::new(&OUTCOME_UNKNOWN))?;
    let known = cx.handlers.jobs.get(&request_id, &call.caller).await.ok();
    let ordered = serde_json::from_slice::<OrderBody>(&sent.body).ok();
    let mut video = match &known {
        Some(job) => VideoBody::of(job, redactor),
        None => VideoBody::new(&request_id, &sent.model, clock::wall().as_secs()),
    };
    video.prompt = ordered.as_ref().map(|ordered| &*ordered.prompt);
    video.seconds = ordered.as_ref().map(|ordered| ordered.duration.to_string());
    video.size = wanted.size.as_deref();
    // Strings and numbers: this cannot fail.
    let body = serde_json::to_vec(&video).unwrap_or_default().into();
    let told = Receipt { status: StatusCode::OK, is_json: true, body, ..receipt };
    Ok(purchases::with_ignored(&wanted.ignored, with_poll_interval(purchases::from_receipt(told))))
}

fn with_poll_interval(mut answer: Response) -> Response {
    answer.headers_mut().insert(POLL_AFTER, POLL_AFTER_MS);
    answer
}

#[derive(Serialize)]
struct VideoList<'a> {
    object: &'static str,
    data: Vec<VideoBody<'a>>,
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
    has_more: bool,
}

pub(crate) async fn list(cx: HandlerContext) -> Result<Response, Problem> {
    let page = validate::openai::list_query(cx.query())?;
    let mut jobs = cx.handlers.jobs.list(&cx.call.caller).await.map_err(|problem| {
        match problem.kind() == &INVALID_REQUEST {
            true => Problem::new(&FORBIDDEN).detail(
                "others than this machine reach this server, and an address is no identity: ask \
                 for the videos that you know, at GET /v1/videos/{id}",
            ),
            false => problem,
        }
    })?;
    if page.is_ascending {
        jobs.reverse();
    }
    let start = match &page.after {
        None => 0,
        Some(id) => {
            let place = jobs.iter().position(|job| *job.request_id == **id);
            place.map(|place| place + 1).ok_or_else(|| Problem::new(&JOB_NOT_FOUND))?
        }
    };
    let rest = jobs.get(start..).unwrap_or_default();
    let shown = rest.get(..page.limit.min(rest.len())).unwrap_or_default();
    let list = VideoList {
        object: "list",
        data: shown.iter().map(|job| VideoBody::of(job, &cx.handlers.redactor)).collect(),
        first_id: shown.first().map(|job| &*job.request_id),
        last_id: shown.last().map(|job| &*job.request_id),
        has_more: rest.len() > shown.len(),
    };
    Ok(response::json(StatusCode::OK, &list))
}

pub(crate) async fn get(cx: HandlerContext) -> Result<Response, Problem> {
    let rest = cx.call.head.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let (id, is_content) = match rest.strip_suffix(CONTENT_SUFFIX) {
        Some(id) => (id, true),
        None => (rest, false),
    };
    if id.contains('/') {
        return Err(Problem::new(&UNKNOWN_ENDPOINT)
            .detail("of a video there are GET /v1/videos/{id} and GET /v1/videos/{id}/content"));
    }
    let request_id = &validate::request_id(id)?;
    // Waits for the gateway's first word; whatever it brings is in the job then.
    let word = cx.handlers.jobs.status(request_id, &cx.call.caller).await?;
    if is_content {
        return content(&cx, &word.body).await;
    }
    let job = cx.handlers.jobs.get(request_id, &cx.call.caller).await?;
    let job = Job { latest_update: Some(word), ..job };
    Ok(with_poll_interval(response::json(
        StatusCode::OK,
        &VideoBody::of(&job, &cx.handlers.redactor),
    )))
}

async fn content(cx: &HandlerContext, status: &[u8]) -> Result<Response, Problem> {
    let mut pairs = cx.query().unwrap_or_default().split('&');
    let is_other =
        |pair: &str| pair.strip_prefix("variant=").is_some_and(|variant| variant != "video");
    if pairs.any(is_other) {
        return Err(Problem::new(&NOT_FOUND).detail("the gateway makes videos only, no variants"));
    }
    api::content(cx, status).await
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
                    .unwrap_or_else(|| "the gateway says that it failed, and not why".to_owned());
                Self {
                    status: "failed",
                    error: Some(VideoError { code: "failed", message }),
                    ..video
                }
            }
            JobState::Open => {
                let word = state_word(&latest.body).unwrap_or_default().to_lowercase();
                let status = if QUEUED.contains(&&*word) { "queued" } else { "in_progress" };
                Self { status, ..video }
            }
        }
    }
}

const MAX_FIELDS: usize = 64;

/// The form's fields in their order; `None` where the body is no form.
async fn form_fields(
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Option<Vec<(String, FormValue)>>, Problem> {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.unwrap_or_default();
    let is_json = media_type
        .trim_start()
        .get(..16)
        .is_some_and(|start| start.eq_ignore_ascii_case("application/json"));
    if is_json {
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
    malformed("the form cannot be read: a part is cut off, or its head is malformed")
}

fn malformed(expected: &'static str) -> Problem {
    Problem::new(&MALFORMED_REQUEST).detail(expected)
}
