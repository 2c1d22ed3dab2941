//! `GET /bff/admin/jobs`: everybody's latest jobs, without what they show.

use http::StatusCode;
use serde::Serialize;

use crate::answer::{self, Answer};
use crate::clock::{self, iso8601};
use crate::store::{Job, Store, Unavailable};

/// Jobs that are listed, the latest first.
const MOST: usize = 200;

#[derive(Serialize)]
struct Document<'a> {
    jobs: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
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

pub(super) async fn answer(book: &Store) -> Result<Answer, Unavailable> {
    let jobs = book.latest_jobs(MOST).await?;
    Ok(answer::json(StatusCode::OK, &Document { jobs: jobs.iter().map(row).collect() }))
}

fn row(job: &Job) -> Row<'_> {
    Row {
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
