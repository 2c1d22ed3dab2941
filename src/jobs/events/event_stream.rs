//! What one stream tells, in which order: a snapshot, then whatever changes, a sign of life in
//! between, and its own end.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::select_all;
use tokio::time::{sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{comment, event, retry_field};
use crate::access::Session;
use crate::clock::{self, Instant};
use crate::jobs::concurrency::ConcurrencyPermit;
use crate::jobs::{JobSubscription, JobUpdate, StatusDocument, StatusUpdate};

/// Between two signs of life.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a stream lasts; the browser goes on with another one.
const MAX_AGE: Duration = Duration::from_secs(300);

pub(super) struct EventStream {
    jobs: Vec<StreamedJob>,
    pub(super) pending: VecDeque<Bytes>,
    ends_at: Instant,
    next_heartbeat: Instant,
    shutdown: CancellationToken,
    /// The stream ends when the caller's credentials do.
    pub(super) session: Session,
    is_over: bool,
    _permit: Option<ConcurrencyPermit>,
}

struct StreamedJob {
    subscription: JobSubscription,
    sent: Option<StateMark>,
    is_final: bool,
    has_problem: bool,
}

impl EventStream {
    /// A stream about these jobs, for a browser that was told what its last event's id says, and that is
    /// to connect `again` after the end.
    pub(super) fn new(
        watched: Vec<JobSubscription>,
        last_event_id: &str,
        again: Duration,
        stop: CancellationToken,
        seat: Option<ConcurrencyPermit>,
    ) -> Self {
        let known = read_event_id(last_event_id);
        let jobs = watched.into_iter().map(|mut watching| {
            let news = watching.latest();
            let mark = state_mark(&watching.job().request_id, &news);
            let told = mark.filter(|mark| known.contains(mark));
            StreamedJob {
                subscription: watching,
                sent: told,
                is_final: news.is_final(),
                has_problem: false,
            }
        });
        let now = clock::now();
        let mut flow = Self {
            jobs: jobs.collect(),
            pending: VecDeque::from([retry_field(again)]),
            ends_at: now + MAX_AGE,
            next_heartbeat: now + HEARTBEAT,
            shutdown: stop,
            session: Session::default(),
            is_over: false,
            _permit: seat,
        };
        for job in 0..flow.jobs.len() {
            flow.push_update(job, true);
        }
        flow
    }

    /// Whether the browser knows all that there is, and there will be no more.
    pub(super) fn is_up_to_date(&self) -> bool {
        self.pending.len() == 1 && self.is_finished()
    }

    /// Returns the next bytes, or `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.pending.pop_front() {
                return Some(bytes);
            }
            if self.is_over || self.is_finished() {
                return None;
            }
            let changes = self.jobs.iter_mut().map(|job| Box::pin(job.subscription.changed()));
            let changed = async {
                let ((), job, _) = select_all(changes).await;
                job
            };
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => self.is_over = true,
                () = self.session.ended() => self.is_over = true,
                () = sleep_until(self.ends_at) => self.is_over = true,
                changed = timeout_at(self.next_heartbeat, changed) => match changed {
                    Ok(job) => self.push_update(job, false),
                    Err(_elapsed) => {
                        self.next_heartbeat = clock::now() + HEARTBEAT;
                        self.pending.push_back(comment());
                    }
                },
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.jobs.iter().all(|job| job.is_final)
    }

    /// Tells what is new of a job. A snapshot also tells of a job on which there is no word yet.
    fn push_update(&mut self, place: usize, is_snapshot: bool) {
        let Some(job) = self.jobs.get_mut(place) else { return };
        let news = job.subscription.latest();
        let request_id = job.subscription.job().request_id.clone();
        let mark = state_mark(&request_id, &news);
        job.is_final = news.is_final();
        let is_new = match &mark {
            Some(_) => mark != job.sent,
            None => is_snapshot,
        };
        // Told once: that it lasts is no news.
        let was_troubled = std::mem::replace(&mut job.has_problem, news.problem.is_some());
        let trouble = news.problem.filter(|_| !was_troubled);
        if is_new {
            job.sent = mark;
            let status = StatusDocument::new(&request_id, news.status.as_ref());
            // Strings and JSON that was read before: this cannot fail.
            let data = serde_json::to_vec(&status).unwrap_or_default();
            let id = event_id(self.jobs.iter().filter_map(|job| job.sent.as_ref()));
            let id = Some(&*id).filter(|id| !id.is_empty());
            self.pending.push_back(event("job", id, &data));
        }
        if let Some(problem) = trouble {
            let document = problem.for_job(&request_id).to_json("");
            self.pending.push_back(event("problem", None, &document));
        }
    }
}

/// What was told of one state of one job: the start of a hash of both.
type StateMark = String;

/// The longest `Last-Event-ID` that is read, in bytes.
const MAX_ID: usize = 4_096;
const SEPARATOR: char = '.';

/// The mark of what is known of a job; `None` before the first word.
fn state_mark(request_id: &str, news: &JobUpdate) -> Option<StateMark> {
    let StatusUpdate { body, state, .. } = news.status.as_ref()?;
    let mut hasher = blake3::Hasher::new();
    for part in [request_id.as_bytes(), state.name().as_bytes(), body] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    Some(hasher.finalize().to_hex()[..12].to_owned())
}

/// The id of an event after which all of these were told.
fn event_id<'a>(marks: impl Iterator<Item = &'a StateMark>) -> String {
    marks.map(String::as_str).collect::<Vec<_>>().join(&SEPARATOR.to_string())
}

/// What the browser that sends this `Last-Event-ID` was told.
fn read_event_id(last_event_id: &str) -> HashSet<StateMark> {
    let readable = if last_event_id.len() <= MAX_ID { last_event_id } else { "" };
    readable.split(SEPARATOR).filter(|mark| !mark.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
