//! `POST /v1/videos`, `GET /v1/videos`, `GET /v1/videos/{id}` and its `/content`

use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use tower::ServiceExt;

use super::{Purchases, form, refusal, text_at};
use crate::answer::{self, Answer};
use crate::clock;
use crate::downstream::Call;
use crate::jobs::reading::word;
use crate::jobs::{Job, JobState};
use crate::problem::{
    FORBIDDEN, INVALID_REQUEST, JOB_NOT_FOUND, NOT_FOUND, OUTCOME_UNKNOWN, Problem,
    UNKNOWN_ENDPOINT,
};
use crate::purchase::{Purchase, Receipt};
use crate::redact::Redactor;
use crate::routes::{Parts, claim, receipt};
use crate::validate;

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
#[derive(Serialize)]
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

/// What was ordered, from the order as it was sent.
#[derive(Deserialize)]
struct Ordered {
    prompt: String,
    duration: u32,
}

/// Checks the order, buys the job, and tells of it in OpenAI's shape.
pub(super) async fn buy(
    parts: &Parts,
    purchases: Purchases,
    call: &Call<Bytes>,
) -> Result<Answer, Problem> {
    let catalog = &parts.rules.catalog;
    let wanted = match form::fields(&call.head.headers, &call.body).await? {
        None => validate::openai::video(&call.body, catalog)?,
        Some(fields) => validate::openai::video_of_form(&fields, catalog)?,
    };
    let claim = claim::of(&call.head.headers)?;
    let sent = wanted.order.get().clone();
    let purchase =
        Purchase::new(call.caller.clone(), wanted.order, claim).by(call.standing.clone());
    let receipt = purchases.oneshot(purchase).await?;
    if !receipt.status.is_success() {
        return Ok(receipt::naming(&wanted.ignored, refusal::answer(receipt, &parts.redactor)));
    }
    let request_id = receipt.video.as_ref().map(|video| Arc::clone(&video.request_id));
    let request_id = request_id.ok_or_else(|| Problem::new(&OUTCOME_UNKNOWN))?;
    let known = parts.jobs.look(&request_id, &call.caller).await.ok();
    let ordered = serde_json::from_slice::<Ordered>(&sent.body).ok();
    let mut video = match &known {
        Some(job) => Video::of(job, &parts.redactor),
        None => Video::new(&request_id, &sent.model, clock::wall().as_secs()),
    };
    video.prompt = ordered.as_ref().map(|ordered| &*ordered.prompt);
    video.seconds = ordered.as_ref().map(|ordered| ordered.duration.to_string());
    video.size = wanted.size.as_deref();
    // Strings and numbers: this cannot fail.
    let body = serde_json::to_vec(&video).unwrap_or_default().into();
    let told = Receipt { status: StatusCode::OK, is_json: true, body, ..receipt };
    Ok(receipt::naming(&wanted.ignored, polled(receipt::answer(told))))
}

/// Tells when to ask again.
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

/// The caller's jobs, newest first unless it wants them otherwise.
pub(super) async fn list(parts: &Parts, call: &Call<Bytes>) -> Result<Answer, Problem> {
    let page = validate::openai::page(call.head.uri.query())?.into_inner();
    let mut jobs = parts.jobs.own(&call.caller).await.map_err(|problem| {
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
        data: shown.iter().map(|job| Video::of(job, &parts.redactor)).collect(),
        first_id: shown.first().map(|job| &*job.request_id),
        last_id: shown.last().map(|job| &*job.request_id),
        has_more: rest.len() > shown.len(),
    };
    Ok(answer::json(StatusCode::OK, &list))
}

/// How far the job is that the path names, or its video.
pub(super) async fn named(parts: &Parts, call: &Call<Bytes>) -> Result<Answer, Problem> {
    let rest = call.head.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let (id, is_content) = match rest.strip_suffix(CONTENT) {
        Some(id) => (id, true),
        None => (rest, false),
    };
    if id.contains('/') {
        return Err(Problem::new(&UNKNOWN_ENDPOINT)
            .detail("of a video there are GET /v1/videos/{id} and GET /v1/videos/{id}/content"));
    }
    let query = validate::request_id(id)?;
    let request_id = &query.get().request_id;
    // Waits for the gateway's first word; whatever it brings is in the job then.
    let word = parts.jobs.status(request_id, &call.caller).await?;
    if is_content {
        return content(parts, call, &word.body).await;
    }
    let job = parts.jobs.look(request_id, &call.caller).await?;
    let job = Job { latest: Some(word), ..job };
    Ok(polled(answer::json(StatusCode::OK, &Video::of(&job, &parts.redactor))))
}

async fn content(parts: &Parts, call: &Call<Bytes>, status: &[u8]) -> Result<Answer, Problem> {
    let variant = call.head.uri.query().unwrap_or_default().split('&');
    let is_other =
        |pair: &str| pair.strip_prefix("variant=").is_some_and(|variant| variant != "video");
    if variant.into_iter().any(is_other) {
        return Err(Problem::new(&NOT_FOUND).detail("the gateway makes videos only, no variants"));
    }
    let range = call.head.headers.get(header::RANGE);
    parts
        .videos
        .content(status, call.head.method.clone(), range, (&call.caller, &call.standing))
        .await
}

impl<'a> Video<'a> {
    /// A job on which there is no word yet.
    fn new(id: &'a str, model: &'a str, created_at: u64) -> Self {
        Self {
            id,
            object: "video",
            created_at,
            completed_at: None,
            expires_at: None,
            model,
            status: "queued",
            progress: 0,
            prompt: None,
            seconds: None,
            size: None,
            remixed_from_video_id: None,
            error: None,
        }
    }

    /// A job by the latest word on it.
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
                let status = match QUEUED.contains(&&*word) {
                    true => "queued",
                    false => "in_progress",
                };
                Self { status, ..video }
            }
        }
    }
}
