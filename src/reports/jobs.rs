//! `GET /bff/jobs`: the caller's own jobs, or those that it names, each with the latest word on it.

use http::StatusCode;
use serde::Serialize;

use crate::answer::{self, Answer};
use crate::clock;
use crate::jobs::{Job, Jobs, Status};
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
