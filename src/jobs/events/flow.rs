//! What one stream tells, in which order: a snapshot, then whatever changes, a sign of life in
//! between, and its own end.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::select_all;
use tokio::time::{sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{comment, event, retry};
use crate::access::Standing;
use crate::clock::{self, Instant};
use crate::jobs::seats::Seat;
use crate::jobs::{News, Status, Watching, Word};

/// Between two signs of life.
const BEAT: Duration = Duration::from_secs(15);
/// How long a stream lasts; the browser goes on with another one.
const LONGEST: Duration = Duration::from_secs(300);

pub(super) struct Flow {
    jobs: Vec<Followed>,
    pub(super) pending: VecDeque<Bytes>,
    ends: Instant,
    beat: Instant,
    stop: CancellationToken,
    /// The stream ends when the caller's credentials do.
    pub(super) standing: Standing,
    is_over: bool,
    _seat: Option<Seat>,
}

struct Followed {
    watching: Watching,
    told: Option<Mark>,
    is_last: bool,
    is_troubled: bool,
}

impl Flow {
    /// A stream about these jobs, for a browser that was told what its last event's id says, and that is
    /// to connect `again` after the end.
    pub(super) fn new(
        watched: Vec<Watching>,
        last_event_id: &str,
        again: Duration,
        stop: CancellationToken,
        seat: Option<Seat>,
    ) -> Self {
        let known = read_event_id(last_event_id);
        let jobs = watched.into_iter().map(|mut watching| {
            let news = watching.news();
            let mark = state_mark(&watching.job().request_id, &news);
            let told = mark.filter(|mark| known.contains(mark));
            Followed { watching, told, is_last: news.is_last(), is_troubled: false }
        });
        let now = clock::now();
        let mut flow = Self {
            jobs: jobs.collect(),
            pending: VecDeque::from([retry(again)]),
            ends: now + LONGEST,
            beat: now + BEAT,
            stop,
            standing: Standing::default(),
            is_over: false,
            _seat: seat,
        };
        for job in 0..flow.jobs.len() {
            flow.tell(job, true);
        }
        flow
    }

    /// Whether the browser knows all that there is, and there will be no more.
    pub(super) fn has_nothing_to_tell(&self) -> bool {
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
            let changes = self.jobs.iter_mut().map(|job| Box::pin(job.watching.changed()));
            let changed = async {
                let ((), job, _) = select_all(changes).await;
                job
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => self.is_over = true,
                () = self.standing.over() => self.is_over = true,
                () = sleep_until(self.ends) => self.is_over = true,
                changed = timeout_at(self.beat, changed) => match changed {
                    Ok(job) => self.tell(job, false),
                    Err(_elapsed) => {
                        self.beat = clock::now() + BEAT;
                        self.pending.push_back(comment());
                    }
                },
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.jobs.iter().all(|job| job.is_last)
    }

    /// Tells what is new of a job. A snapshot also tells of a job on which there is no word yet.
    fn tell(&mut self, place: usize, is_snapshot: bool) {
        let Some(job) = self.jobs.get_mut(place) else { return };
        let news = job.watching.news();
        let request_id = job.watching.job().request_id.clone();
        let mark = state_mark(&request_id, &news);
        job.is_last = news.is_last();
        let is_new = match &mark {
            Some(_) => mark != job.told,
            None => is_snapshot,
        };
        // Told once: that it lasts is no news.
        let was_troubled = std::mem::replace(&mut job.is_troubled, news.trouble.is_some());
        let trouble = news.trouble.filter(|_| !was_troubled);
        if is_new {
            job.told = mark;
            let status = Status::new(&request_id, news.word.as_ref());
            // Strings and JSON that was read before: this cannot fail.
            let data = serde_json::to_vec(&status).unwrap_or_default();
            let id = event_id(self.jobs.iter().filter_map(|job| job.told.as_ref()));
            let id = Some(&*id).filter(|id| !id.is_empty());
            self.pending.push_back(event("job", id, &data));
        }
        if let Some(problem) = trouble {
            let document = problem.about(&request_id).document("");
            self.pending.push_back(event("problem", None, &document));
        }
    }
}

/// What was told of one state of one job: the start of a hash of both.
type Mark = String;

/// The longest `Last-Event-ID` that is read, in bytes.
const MAX_ID: usize = 4_096;
const BETWEEN: char = '.';

/// The mark of what is known of a job; `None` before the first word.
fn state_mark(request_id: &str, news: &News) -> Option<Mark> {
    let Word { body, state, .. } = news.word.as_ref()?;
    let mut hasher = blake3::Hasher::new();
    for part in [request_id.as_bytes(), state.name().as_bytes(), body] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    Some(hasher.finalize().to_hex()[..12].to_owned())
}

/// The id of an event after which all of these were told.
fn event_id<'a>(marks: impl Iterator<Item = &'a Mark>) -> String {
    marks.map(String::as_str).collect::<Vec<_>>().join(&BETWEEN.to_string())
}

/// What the browser that sends this `Last-Event-ID` was told.
fn read_event_id(last_event_id: &str) -> HashSet<Mark> {
    let readable = if last_event_id.len() <= MAX_ID { last_event_id } else { "" };
    readable.split(BETWEEN).filter(|mark| !mark.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
