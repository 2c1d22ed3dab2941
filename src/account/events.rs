//! `GET /bff/events`: one stream of server-sent events for many jobs.
//!
//! A browser never connects again after a 429 or a 503, so what stands in the way for a while is told
//! inside the stream, with a time to come back.

mod flow;
pub mod frame;
mod told;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;

use crate::access::Standing;
use crate::answer::{Answer, Body, BoxError};
use crate::jobs::{Jobs, Watching};
use crate::problem::{JOB_NOT_FOUND, Problem};
use crate::store::Caller;
use crate::validate;
use crate::validate::{Checked, JobIds};
use flow::Flow;

const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Who wants to be told of what.
#[derive(Clone, Copy, Debug)]
pub struct Listener<'a> {
    /// Who asks.
    pub caller: &'a Caller,
    /// For how long it may be told.
    pub standing: &'a Standing,
    /// `Last-Event-ID`, or nothing.
    pub last_event_id: &'a str,
    /// The request's name in logs.
    pub id: &'a str,
}

/// Streams what becomes of the named jobs, or, where none is named, of all open jobs of the caller.
///
/// # Errors
/// `job_not_found`, when there is none of those that are named; `invalid_request`, when jobs have to
/// be named.
pub async fn stream(
    jobs: &Jobs,
    listener: Listener<'_>,
    named: Checked<JobIds>,
) -> Result<Answer, Problem> {
    let Listener { caller, standing, last_event_id, id } = listener;
    let named = named.into_inner().request_ids;
    let request_ids = match named.is_empty() {
        false => named,
        true => match jobs.own(caller).await {
            Ok(own) => own
                .iter()
                .filter(|job| job.is_open())
                .take(validate::MOST_JOBS)
                .map(|job| (&*job.request_id).into())
                .collect(),
            Err(problem) => return once(id, problem),
        },
    };
    let seat = match jobs.seat(caller) {
        Ok(seat) => seat,
        Err(problem) => return once(id, problem),
    };
    let mut watched: Vec<Watching> = Vec::with_capacity(request_ids.len());
    let mut missing = Vec::new();
    for request_id in &request_ids {
        match jobs.watch(request_id, caller).await {
            Ok(watching) => watched.push(watching),
            Err(problem) if problem.kind() == &JOB_NOT_FOUND => {
                missing.push(problem.about(request_id));
            }
            Err(problem) => return once(id, problem),
        }
    }
    if watched.is_empty() && !missing.is_empty() {
        return Err(Problem::new(&JOB_NOT_FOUND));
    }
    let flow = Flow::new(watched, last_event_id, jobs.stopped(), seat).during(standing.clone());
    if missing.is_empty() && flow.has_nothing_to_tell() {
        let mut nothing = Answer::new(Body::empty());
        *nothing.status_mut() = StatusCode::NO_CONTENT;
        return Ok(nothing);
    }
    let flow = flow.after(missing.into_iter().map(|problem| problem.document(id)));
    Ok(answer(Body::stream(StreamBody::new(stream::unfold(flow, |mut flow| async {
        let part = flow.next().await?;
        Some((Ok::<_, BoxError>(Frame::data(part)), flow))
    })))))
}

/// The whole of a stream that says why there is none. What will not change by itself is a refusal.
fn once(id: &str, problem: Problem) -> Result<Answer, Problem> {
    let Some(wait) = problem.wait() else { return Err(problem) };
    let document = problem.document(id);
    let parts = [frame::retry(wait), frame::event("problem", None, &document)];
    Ok(answer(Body::from(Bytes::from(parts.concat()))))
}

fn answer(body: Body) -> Answer {
    let mut answer = Answer::new(body);
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    answer
}
