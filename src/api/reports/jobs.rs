//! `GET /bff/jobs`: the caller's jobs; `GET /bff/admin/jobs`: the latest jobs of all, without their
//! content.

use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Reports, list_of, unavailable};
use crate::clock::{self, iso8601};
use crate::gate::problem::{JOB_NOT_FOUND, Problem};
use crate::gate::response::{self, Response};
use crate::gateway::contract::money::Usd;
use crate::ledger::{Caller, Job};
use crate::video::kept::KeptState;
use crate::video::{JobRegistry, StatusDocument};

const OVER_QUOTA: &str = "it was removed, because videos.quota is reached";
const MAX_ADMIN_JOBS: usize = 200;

#[derive(Serialize)]
struct OwnJob<'a> {
    request_id: &'a str,
    model: &'a str,
    price: Usd,
    price_micros: u64,
    at: String,
    /// Only for the caller who ordered it; others may name a job of an open-mode caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<&'a str>,
    state: &'static str,
    status_at: Option<String>,
    status: Option<Box<RawValue>>,
    /// Whether this server has the finished video; absent if it keeps none.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<bool>,
    /// Why it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_kept: Option<String>,
    /// Whether its owner or an admin removed it for good.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    removed: bool,
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
    let caller = caller.to_string();
    let states = jobs.kept_states(&found).await;
    let states =
        states.map_or_else(|| vec![None; found.len()], |it| it.into_iter().map(Some).collect());
    let own = found.iter().zip(states).map(|(job, kept)| {
        let document = StatusDocument::new(&job.request_id, job.latest_update.as_ref());
        let StatusDocument { request_id, state, at: status_at, status } = document;
        OwnJob {
            request_id,
            model: &job.model,
            price: job.price,
            price_micros: job.price.as_micros(),
            at: iso8601(job.at),
            prompt: job.prompt.as_deref().filter(|_| *job.owner == *caller),
            state,
            status_at,
            status,
            removed: kept == Some(KeptState::Removed),
            kept: kept.as_ref().map(|kept| *kept == KeptState::Kept),
            not_kept: match kept {
                Some(KeptState::Failed(reason)) => Some(reason),
                Some(KeptState::OverQuota) => Some(OVER_QUOTA.to_owned()),
                Some(KeptState::Kept | KeptState::Missing | KeptState::Removed) | None => None,
            },
        }
    });
    Ok(response::json(StatusCode::OK, &list_of(own)))
}

impl Reports {
    pub async fn admin_jobs(&self) -> Result<Response, Problem> {
        let jobs = self.store.latest_jobs(MAX_ADMIN_JOBS).await.map_err(unavailable)?;
        Ok(response::json(StatusCode::OK, &document(&jobs)))
    }
}

/// Returns the JSON of jobs, without their content.
pub fn document(jobs: &[Job]) -> impl Serialize {
    list_of(jobs.iter().map(row))
}

fn row(job: &Job) -> Value {
    let latest = job.latest_update.as_ref();
    json!({
        "request_id": &*job.request_id,
        "purchase": job.purchase.map(|id| id.to_string()),
        "caller": &*job.owner,
        "model": &*job.model,
        "price": job.price, "price_micros": job.price.as_micros(),
        "state": latest.map_or("open", |update| update.state.name()),
        "at": iso8601(job.at),
        "age_seconds": clock::wall().saturating_sub(job.at).as_secs(),
        "status_at": latest.map(|update| iso8601(update.at)),
    })
}
