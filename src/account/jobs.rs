//! `GET /bff/jobs`: the caller's own jobs, or those that it names, each with the latest word on it.

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::answer::{self, Answer};
use crate::clock;
use crate::jobs::{Job, Jobs, Word};
use crate::problem::{JOB_NOT_FOUND, Problem};
use crate::store::Caller;
use crate::validate::{Checked, JobIds};

#[derive(Serialize)]
struct List<'a> {
    jobs: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    model: &'a str,
    toll: String,
    toll_micros: u64,
    ordered_at: String,
    #[serde(flatten)]
    status: Status<'a>,
}

/// How far a job is, as lists and events tell it.
#[derive(Serialize)]
pub(super) struct Status<'a> {
    request_id: &'a str,
    /// `open`, `finished` or `failed`, by the words of `[jobs]`.
    state: &'static str,
    /// When the gateway said so; `null` before it said anything.
    at: Option<String>,
    /// The gateway's status body, unchanged.
    status: Option<Box<RawValue>>,
}

impl<'a> Status<'a> {
    pub(super) fn new(request_id: &'a str, word: Option<&Word>) -> Self {
        Self {
            request_id,
            state: word.map_or("open", |word| word.state.name()),
            at: word.map(|word| clock::iso8601(word.at)),
            status: word.and_then(|word| raw(&word.body)),
        }
    }
}

/// The body as it came. It was found to be JSON when it did.
fn raw(body: &Bytes) -> Option<Box<RawValue>> {
    serde_json::from_str(&String::from_utf8_lossy(body)).ok()
}

/// Lists the named jobs that there are, or the caller's own where none is named.
///
/// # Errors
/// `invalid_request`, when jobs have to be named; or the store cannot be asked.
pub async fn list(jobs: &Jobs, caller: &Caller, named: Checked<JobIds>) -> Result<Answer, Problem> {
    let named = named.into_inner().request_ids;
    let listed = match named.is_empty() {
        true => jobs.own(caller).await?,
        false => some(jobs, caller, &named).await?,
    };
    let rows = listed.iter().map(|job| Row {
        model: &job.model,
        toll: job.toll.to_string(),
        toll_micros: job.toll.as_micros(),
        ordered_at: clock::iso8601(job.at),
        status: Status::new(&job.request_id, job.latest.as_ref()),
    });
    Ok(answer::json(StatusCode::OK, &List { jobs: rows.collect() }))
}

/// Those of the named jobs that there are, in the order in which they are named.
async fn some(jobs: &Jobs, caller: &Caller, named: &[Box<str>]) -> Result<Vec<Job>, Problem> {
    let mut found = Vec::with_capacity(named.len());
    for request_id in named {
        match jobs.look(request_id, caller).await {
            Ok(job) => found.push(job),
            Err(problem) if problem.kind() == &JOB_NOT_FOUND => {}
            Err(problem) => return Err(problem),
        }
    }
    Ok(found)
}
