//! `GET /bff/events`: one stream of server-sent events for many jobs.
//!
//! A browser never connects again after a 429 or a 503, so what stands in the way for a while is told
//! inside the stream, with a time to come back.

mod flow;
pub mod frame;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http_body::Frame;
use http_body_util::StreamBody;

use crate::access::Standing;
use crate::answer::{self, Answer, Body, BoxError};
use crate::jobs::seats::Seat;
use crate::jobs::{Jobs, Watching};
use crate::problem::{JOB_NOT_FOUND, Problem};
use crate::store::Caller;
use crate::validate::{self, Checked, JobIds};
use flow::Flow;

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
    let (mut watched, mut missing) = match watch(jobs, caller, named).await {
        Ok(found) => found,
        Err(problem) => return once(id, problem),
    };
    if watched.is_empty() && !missing.is_empty() {
        return Err(Problem::new(&JOB_NOT_FOUND));
    }
    // What has ended is told at once, and takes no seat.
    let takes_seat = watched.iter().any(|watching| !watching.has_ended());
    let flow = |watched, seat: Option<Seat>| {
        Flow::new(watched, last_event_id, jobs.stopped(), seat).during(standing.clone())
    };
    let flow = match takes_seat.then(|| jobs.seat(caller)).transpose() {
        Ok(seat) => flow(watched, seat),
        Err(problem) => {
            let Some(wait) = problem.wait() else { return Err(problem) };
            missing.push(problem);
            watched.retain(Watching::has_ended);
            flow(watched, None).again_in(spread(wait))
        }
    };
    if missing.is_empty() && flow.has_nothing_to_tell() {
        let mut nothing = Answer::new(Body::empty());
        *nothing.status_mut() = StatusCode::NO_CONTENT;
        return Ok(nothing);
    }
    let flow = flow.after(missing.into_iter().map(|problem| problem.document(id)));
    let parts = stream::unfold(flow, |mut flow| async {
        let part = flow.next().await?;
        Some((Ok::<_, BoxError>(Frame::data(part)), flow))
    });
    Ok(answer::events(Answer::new(Body::stream(StreamBody::new(parts)))))
}

/// Watches the named jobs, or, where none is named, all open jobs of the caller; and says which of them
/// there are not.
async fn watch(
    jobs: &Jobs,
    caller: &Caller,
    named: Vec<Box<str>>,
) -> Result<(Vec<Watching>, Vec<Problem>), Problem> {
    let request_ids = if named.is_empty() {
        let own = jobs.own(caller).await?;
        let open = own.iter().filter(|job| job.is_open()).take(validate::MOST_JOBS);
        open.map(|job| (&*job.request_id).into()).collect()
    } else {
        named
    };
    let mut watched = Vec::with_capacity(request_ids.len());
    let mut missing = Vec::new();
    for request_id in &request_ids {
        match jobs.watch(request_id, caller).await {
            Ok(watching) => watched.push(watching),
            Err(problem) if problem.kind() == &JOB_NOT_FOUND => {
                missing.push(problem.about(request_id));
            }
            Err(problem) => return Err(problem),
        }
    }
    Ok((watched, missing))
}

/// The whole of a stream that says why there is none. What will not change by itself is a refusal.
fn once(id: &str, problem: Problem) -> Result<Answer, Problem> {
    let Some(wait) = problem.wait() else { return Err(problem) };
    let document = problem.document(id);
    let parts = [frame::retry(spread(wait)), frame::event("problem", None, &document)];
    Ok(answer::events(Answer::new(Body::from(Bytes::from(parts.concat())))))
}

/// A time from `wait` to twice that, at random, so that those who were told to wait in one moment do not
/// all come back in another.
fn spread(wait: Duration) -> Duration {
    let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let more = RandomState::new().build_hasher().finish() % millis.saturating_add(1).max(1);
    wait.saturating_add(Duration::from_millis(more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_are_told_to_wait_come_back_at_different_times() {
        let wait = Duration::from_secs(30);
        let told: std::collections::HashSet<_> = (0..100).map(|_| spread(wait)).collect();
        assert!(told.iter().all(|told| (wait..=wait * 2).contains(told)));
        assert!(told.len() > 90, "{told:?}");
        assert_eq!(spread(Duration::ZERO), Duration::ZERO);
    }
}
