//! `GET /bff/jobs`: the caller's jobs; `GET /bff/admin/jobs`: the latest jobs of all, without their
//! content.

use std::collections::HashMap;

use http::StatusCode;
use serde::Serialize;
use serde_json::json;

use super::{Reports, unavailable};
use crate::clock::{self, iso8601};
use crate::contract::money::Usd;
use crate::jobs::{JobRegistry, StatusDocument};
use crate::problem::{JOB_NOT_FOUND, Problem};
use crate::response::{self, Response};
use crate::store::{Caller, Job};

const MAX_ADMIN_JOBS: usize = 200;

#[derive(Serialize)]
struct OwnJob<'a> {
    model: &'a str,
    price: Usd,
    price_micros: u64,
    ordered_at: String,
    /// Only for the caller who ordered it; others may name a job of an open-mode caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<&'a str>,
    #[serde(flatten)]
    status: StatusDocument<'a>,
}

/// Lists the named jobs that exist, in that order, or all of the caller's if none is named.
pub async fn list(
    jobs: &JobRegistry,
    caller: &Caller,
    named: Vec<Box<str>>,
) -> Result<Response, Problem> {
    let mut found = Vec::with_capacity(named.len());
    for request_id in &named {
        match jobs.get(request_id, caller).await {
            Ok(job) => found.push(job),
            Err(problem) if problem.kind() == &JOB_NOT_FOUND => {}
            Err(problem) => return Err(problem),
        }
    }
    if named.is_empty() {
        found = jobs.list(caller).await?;
    }
    let owner = caller.to_string();
    let rows = found.iter().map(|job| OwnJob {
        model: &job.model,
        price: job.price,
        price_micros: job.price.as_micros(),
        ordered_at: iso8601(job.at),
        prompt: job.prompt.as_deref().filter(|_| *job.owner == *owner),
        status: StatusDocument::new(&job.request_id, job.latest_update.as_ref()),
    });
    Ok(response::json(StatusCode::OK, &HashMap::from([("jobs", rows.collect::<Vec<_>>())])))
}

impl Reports {
    pub async fn admin_jobs(&self) -> Result<Response, Problem> {
        let jobs = self.store.latest_jobs(MAX_ADMIN_JOBS).await.map_err(unavailable)?;
        let row = |job: &Job| {
            let latest = job.latest_update.as_ref();
            json!({
                "request_id": &*job.request_id,
                "purchase": job.purchase.map(|id| id.to_string()),
                "owner": &*job.owner,
                "model": &*job.model,
                "price": job.price, "price_micros": job.price.as_micros(),
                "state": latest.map_or("open", |update| update.state.name()),
                "ordered_at": iso8601(job.at),
                "age_seconds": clock::wall().saturating_sub(job.at).as_secs(),
                "status_at": latest.map(|update| iso8601(update.at)),
            })
        };
        let document = json!({ "jobs": jobs.iter().map(row).collect::<Vec<_>>() });
        Ok(response::json(StatusCode::OK, &document))
    }
}
