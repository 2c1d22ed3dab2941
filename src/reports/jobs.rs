//! `GET /bff/jobs`: the caller's own jobs, or those that it names; and `GET /bff/admin/jobs`: everybody's latest
//! jobs, without what they show.

use http::StatusCode;
use serde::Serialize;

use super::{Reports, unavailable};
use crate::answer::{self, Answer};
use crate::clock::{self, iso8601};
use crate::jobs::{Job, Jobs, Status};
use crate::problem::{JOB_NOT_FOUND, Problem};
use crate::store::Caller;
use crate::validate::{Checked, JobIds};

/// Jobs of everybody that are listed, the latest first.
const MAX_OF_ALL: usize = 200;

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
    let listed =
        if named.is_empty() { jobs.own(caller).await? } else { some(jobs, caller, &named).await? };
    let rows = listed.iter().map(|job| Row {
        model: &job.model,
        toll: job.toll.to_string(),
        toll_micros: job.toll.as_micros(),
        ordered_at: iso8601(job.at),
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

#[derive(Serialize)]
struct OfAll<'a> {
    jobs: Vec<OfAllRow<'a>>,
}

#[derive(Serialize)]
struct OfAllRow<'a> {
    request_id: &'a str,
    owner: &'a str,
    model: &'a str,
    toll: String,
    toll_micros: u64,
    /// `open`, `finished` or `failed`.
    state: &'static str,
    ordered_at: String,
    age_seconds: u64,
    /// When the gateway said so; nothing before it said anything.
    heard_at: Option<String>,
}

impl Reports {
    /// Everybody's latest jobs.
    ///
    /// # Errors
    /// 503 `ledger_unavailable`.
    pub async fn jobs_of_all(&self) -> Result<Answer, Problem> {
        let jobs = self.store.latest_jobs(MAX_OF_ALL).await.map_err(unavailable)?;
        Ok(answer::json(StatusCode::OK, &OfAll { jobs: jobs.iter().map(row).collect() }))
    }
}

fn row(job: &Job) -> OfAllRow<'_> {
    OfAllRow {
        request_id: &job.request_id,
        owner: &job.owner,
        model: &job.model,
        toll: job.toll.to_string(),
        toll_micros: job.toll.as_micros(),
        state: job.latest.as_ref().map_or("open", |word| word.state.name()),
        ordered_at: iso8601(job.at),
        age_seconds: clock::wall().saturating_sub(job.at).as_secs(),
        heard_at: job.latest.as_ref().map(|word| iso8601(word.at)),
    }
}
