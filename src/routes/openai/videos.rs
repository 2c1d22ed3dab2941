//! `POST /v1/videos`, `GET /v1/videos`, `GET /v1/videos/{id}` and its `/content`

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use multer::Multipart;
use serde::{Deserialize, Serialize};

use super::{refusal, text_at};
use crate::answer::{self, Answer};
use crate::clock;
use crate::jobs::reading::word;
use crate::jobs::{Job, JobState};
use crate::problem::{
    FORBIDDEN, INVALID_REQUEST, JOB_NOT_FOUND, MALFORMED_REQUEST, NOT_FOUND, OUTCOME_UNKNOWN,
    Problem, UNKNOWN_ENDPOINT,
};
use crate::purchase::Receipt;
use crate::redact::Redactor;
use crate::routes::{Context, api, purchases};
use crate::validate;
use crate::validate::openai::Input;

const PREFIX: &str = "/v1/videos/";
const CONTENT: &str = "/content";
const POLL_AFTER: HeaderName = HeaderName::from_static("openai-poll-after-ms");
/// What is watched is asked for at most this often.
const POLL_AFTER_MS: HeaderValue = HeaderValue::from_static("5000");
/// Guess: an open job with one of these words has not been begun.
const QUEUED: &[&str] = &["queued", "pending", "submitted", "accepted", "waiting", "created"];
/// Guess: where the status of a failed job says why.
const REASONS: &[&str] =
    &["/error/message", "/error", "/message", "/failure_reason", "/reason", "/detail"];

/// A job as OpenAI tells of it. What nobody knows is `null`.
#[derive(Default, Serialize)]
struct Video<'a> {
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
    error: Option<Failure>,
}

#[derive(Serialize)]
struct Failure {
    code: &'static str,
    message: String,
}

#[derive(Deserialize)]
struct Ordered {
    prompt: String,
    duration: u32,
}

pub(crate) async fn buy(cx: Context) -> Result<Answer, Problem> {
    let (call, catalog) = (&cx.call, &cx.handlers.rules.catalog);
    let wanted = match form_fields(&call.head.headers, &call.body).await? {
        None => validate::openai::video(&call.body, catalog)?,
        Some(fields) => validate::openai::video_of_form(&fields, catalog)?,
    };
    let sent = wanted.order.get().clone();
    let receipt = cx.buy(wanted.order).await?;
    let redactor = &cx.handlers.redactor;
    if !receipt.status.is_success() {
        return Ok(purchases::naming(&wanted.ignored, refusal(receipt, redactor)));
    }
    let request_id = receipt.video.as_ref().map(|video| Arc::clone(&video.request_id));
    let request_id = request_id.ok_or_else(|| Problem::new(&OUTCOME_UNKNOWN))?;
    let known = cx.handlers.jobs.look(&request_id, &call.caller).await.ok();
    let ordered = serde_json::from_slice::<Ordered>(&sent.body).ok();
    let mut video = match &known {
        Some(job) => Video::of(job, redactor),
        None => Video::new(&request_id, &sent.model, clock::wall().as_secs()),
    };
    video.prompt = ordered.as_ref().map(|ordered| &*ordered.prompt);
    video.seconds = ordered.as_ref().map(|ordered| ordered.duration.to_string());
    video.size = wanted.size.as_deref();
    // Strings and numbers: this cannot fail.
    let body = serde_json::to_vec(&video).unwrap_or_default().into();
    let told = Receipt { status: StatusCode::OK, is_json: true, body, ..receipt };
    Ok(purchases::naming(&wanted.ignored, polled(purchases::answer(told))))
}

fn polled(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(POLL_AFTER, POLL_AFTER_MS);
    answer
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Video<'a>>,
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
    has_more: bool,
}

pub(crate) async fn list(cx: Context) -> Result<Answer, Problem> {
    let page = validate::openai::page(cx.query())?;
    let mut jobs = cx.handlers.jobs.own(&cx.call.caller).await.map_err(|problem| {
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
    let list = List {
        object: "list",
        data: shown.iter().map(|job| Video::of(job, &cx.handlers.redactor)).collect(),
        first_id: shown.first().map(|job| &*job.request_id),
        last_id: shown.last().map(|job| &*job.request_id),
        has_more: rest.len() > shown.len(),
    };
    Ok(answer::json(StatusCode::OK, &list))
}

pub(crate) async fn named(cx: Context) -> Result<Answer, Problem> {
    let rest = cx.call.head.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let (id, is_content) = match rest.strip_suffix(CONTENT) {
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
    let job = cx.handlers.jobs.look(request_id, &cx.call.caller).await?;
    let job = Job { latest: Some(word), ..job };
    Ok(polled(answer::json(StatusCode::OK, &Video::of(&job, &cx.handlers.redactor))))
}

async fn content(cx: &Context, status: &[u8]) -> Result<Answer, Problem> {
    let mut pairs = cx.query().unwrap_or_default().split('&');
    let is_other =
        |pair: &str| pair.strip_prefix("variant=").is_some_and(|variant| variant != "video");
    if pairs.any(is_other) {
        return Err(Problem::new(&NOT_FOUND).detail("the gateway makes videos only, no variants"));
    }
    api::content(cx, status).await
}

impl<'a> Video<'a> {
    fn new(id: &'a str, model: &'a str, created_at: u64) -> Self {
        Self { id, object: "video", created_at, model, status: "queued", ..Self::default() }
    }

    fn of(job: &'a Job, redactor: &Redactor) -> Self {
        let video = Self::new(&job.request_id, &job.model, job.at.as_secs());
        let Some(latest) = &job.latest else { return video };
        match latest.state {
            JobState::Finished => Self {
                status: "completed",
                progress: 100,
                completed_at: Some(latest.at.as_secs()),
                ..video
            },
            JobState::Failed => {
                let message = text_at(redactor, &latest.body, REASONS)
                    .unwrap_or_else(|| "the gateway says that it failed, and not why".to_owned());
                Self { status: "failed", error: Some(Failure { code: "failed", message }), ..video }
            }
            JobState::Open => {
                let word = word(&latest.body).unwrap_or_default().to_lowercase();
                let status = if QUEUED.contains(&&*word) { "queued" } else { "in_progress" };
                Self { status, ..video }
            }
        }
    }
}

const MOST_FIELDS: usize = 64;

/// The form's fields in their order; `None` where the body is no form.
async fn form_fields(
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Option<Vec<(String, Input)>>, Problem> {
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
        if fields.len() == MOST_FIELDS {
            return Err(malformed("expected at most 64 fields"));
        }
        let name = field.name().unwrap_or_default().to_owned();
        let is_file = field.file_name().is_some();
        let bytes = field.bytes().await.map_err(unreadable)?;
        fields.push((
            name,
            match String::from_utf8(bytes.into()) {
                _ if is_file => Input::File,
                Ok(text) => Input::Text(text),
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
