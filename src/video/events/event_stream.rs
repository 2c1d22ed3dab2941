//! One event stream: a snapshot, then each change, with heartbeats in between.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::select_all;
use tokio::time::{sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{comment, event, retry_field};
use crate::access::Session;
use crate::clock::{self, Instant};
use crate::video::concurrency::ConcurrencyPermit;
use crate::video::{JobSubscription, JobUpdate, StatusDocument, StatusUpdate};

const HEARTBEAT: Duration = Duration::from_secs(15);
const MAX_AGE: Duration = Duration::from_secs(300);

pub(super) struct EventStream {
    jobs: Vec<StreamedJob>,
    pub(super) pending: VecDeque<Bytes>,
    ends_at: Instant,
    next_heartbeat: Instant,
    shutdown: CancellationToken,
    pub(super) session: Session,
    pub(super) prefix: Box<str>,
    _permit: Option<ConcurrencyPermit>,
}

struct StreamedJob {
    subscription: JobSubscription,
    sent: Option<String>,
    is_final: bool,
    has_problem: bool,
}

impl EventStream {
    /// `last_event_id` names the states that the browser knows. It reconnects after `reconnect_after`.
    pub(super) fn new(
        subscriptions: Vec<JobSubscription>,
        last_event_id: &str,
        reconnect_after: Duration,
        shutdown: CancellationToken,
        permit: Option<ConcurrencyPermit>,
    ) -> Self {
        let known = read_event_id(last_event_id);
        let jobs = subscriptions.into_iter().map(|mut subscription| {
            let update = subscription.latest();
            let mark = state_mark(&subscription.job().request_id, &update);
            let sent = mark.filter(|mark| known.contains(mark));
            StreamedJob { subscription, sent, is_final: update.is_final(), has_problem: false }
        });
        let now = clock::now();
        let mut stream = Self {
            jobs: jobs.collect(),
            pending: VecDeque::from([retry_field(reconnect_after)]),
            ends_at: now + MAX_AGE,
            next_heartbeat: now + HEARTBEAT,
            shutdown,
            session: Session::default(),
            prefix: Box::default(),
            _permit: permit,
        };
        for job in 0..stream.jobs.len() {
            stream.push_update(job, true);
        }
        stream
    }

    pub(super) fn is_up_to_date(&self) -> bool {
        self.pending.len() == 1 && self.is_finished()
    }

    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.pending.pop_front() {
                return Some(bytes);
            }
            if self.is_finished() {
                return None;
            }
            let changes = self.jobs.iter_mut().map(|job| Box::pin(job.subscription.changed()));
            let changed = async { select_all(changes).await.1 };
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return None,
                () = self.session.ended() => return None,
                () = sleep_until(self.ends_at) => return None,
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

    /// Queues an event if the job has changed. A snapshot includes jobs without a status.
    fn push_update(&mut self, index: usize, is_snapshot: bool) {
        let Some(job) = self.jobs.get_mut(index) else { return };
        let update = job.subscription.latest();
        let request_id = job.subscription.job().request_id.clone();
        let mark = state_mark(&request_id, &update);
        job.is_final = update.is_final();
        let is_new = match &mark {
            Some(_) => mark != job.sent,
            None => is_snapshot,
        };
        let had_problem = std::mem::replace(&mut job.has_problem, update.problem.is_some());
        let problem = update.problem.filter(|_| !had_problem);
        if is_new {
            job.sent = mark;
            let status = StatusDocument::new(&request_id, update.status.as_ref());
            // Cannot fail: strings and parsed JSON.
            let data = serde_json::to_vec(&status).unwrap_or_default();
            let id = event_id(self.jobs.iter().filter_map(|job| job.sent.as_ref()));
            let id = Some(&*id).filter(|id| !id.is_empty());
            self.pending.push_back(event("job", id, &data));
        }
        if let Some(problem) = problem {
            let document = problem.for_job(&request_id).below(&self.prefix).to_json("");
            self.pending.push_back(event("problem", None, &document));
        }
    }
}

const MAX_ID: usize = 4_096;
const SEPARATOR: char = '.';

/// Identifies one state of one job: the start of a hash of both.
fn state_mark(request_id: &str, update: &JobUpdate) -> Option<String> {
    let StatusUpdate { body, state, .. } = update.status.as_ref()?;
    let mut hasher = blake3::Hasher::new();
    for part in [request_id.as_bytes(), state.name().as_bytes(), body] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    Some(hasher.finalize().to_hex()[..12].to_owned())
}

fn event_id<'a>(marks: impl Iterator<Item = &'a String>) -> String {
    marks.map(String::as_str).collect::<Vec<_>>().join(&SEPARATOR.to_string())
}

fn read_event_id(last_event_id: &str) -> HashSet<String> {
    let readable = if last_event_id.len() <= MAX_ID { last_event_id } else { "" };
    readable.split(SEPARATOR).filter(|mark| !mark.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
