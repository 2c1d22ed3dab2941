//! `GET /bff/jobs` and `GET /bff/events`

use bytes::Bytes;
use http::header::HeaderName;

use crate::answer::Answer;
use crate::downstream::Call;
use crate::jobs::Jobs;
use crate::jobs::events::{self, Listener};
use crate::problem::Problem;
use crate::reports::jobs;
use crate::validate;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The jobs that the query names, or the caller's own.
pub(super) async fn list(jobs: &Jobs, call: &Call<Bytes>) -> Result<Answer, Problem> {
    let named = validate::job_ids(call.head.uri.query())?;
    jobs::list(jobs, &call.caller, named).await
}

/// What becomes of them, as it happens.
pub(super) async fn events(jobs: &Jobs, call: &Call<Bytes>) -> Result<Answer, Problem> {
    let named = validate::job_ids(call.head.uri.query())?;
    let last = call.head.headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
    let last_event_id = last.unwrap_or_default();
    let (caller, standing, id) = (&call.caller, &call.standing, call.id.as_str());
    let listener = Listener { caller, standing, last_event_id, id };
    events::stream(jobs, listener, named).await
}
