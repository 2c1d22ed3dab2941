//! Polls one job until it has ended.

use std::future::ready;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either};
use http::StatusCode;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, sleep_until};
use tower::ServiceExt;
use tracing::{error, info};

use super::schedule::PollSchedule;
use super::{PollerSetup, Shared};
use crate::clock::{self, Instant};
use crate::gate::problem::{GATEWAY_UNREACHABLE, Problem};
use crate::gateway::{Abort, Authorization, BeforeSend, Error, GatewayCall, GatewayRequest};
use crate::ledger::{Job, JobState, StatusUpdate};
use crate::sync::lock;

/// How long a caller that asked for a job's status counts as watching it.
const LEASE: Duration = Duration::from_secs(15);

const HISTORY_SIZE: usize = 9;

const PANIC_BACKOFF: Duration = Duration::from_secs(5);

/// Guess: the gateway takes back a failure sooner, if it does.
const FAILURE_CONFIRMED_AFTER: Duration = Duration::from_secs(60);

/// How often a job that has ended is polled for callers that ask for it, at most.
const ENDED_POLL_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default)]
pub struct JobUpdate {
    pub status: Option<StatusUpdate>,
    pub problem: Option<Problem>,
    pub polls: u64,
}

impl JobUpdate {
    pub fn is_final(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.state != JobState::Open)
    }
}

#[derive(Debug)]
pub(super) struct PolledJob {
    pub(super) job: Job,
    pub(super) updates: watch::Sender<JobUpdate>,
    lease: Mutex<Option<Instant>>,
    /// Whether the kept status has to be read again, because the words of `[jobs]` may have changed.
    is_unread: AtomicBool,
    wake: Notify,
}

impl PolledJob {
    pub(super) fn new(job: Job) -> Self {
        let update = JobUpdate { status: job.latest_update.clone(), ..JobUpdate::default() };
        let is_unread = AtomicBool::new(job.latest_update.is_some());
        Self {
            job,
            updates: watch::Sender::new(update),
            lease: Mutex::default(),
            is_unread,
            wake: Notify::new(),
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<JobUpdate> {
        let update = self.updates.subscribe();
        self.wake.notify_one();
        update
    }

    /// Counts a caller that polls as a watcher for a while.
    pub(super) fn lease(&self) {
        *lock(&self.lease) = Some(clock::now() + LEASE);
        self.wake.notify_one();
    }

    /// Returns the status of a job that has ended.
    fn end(&self) -> Option<StatusUpdate> {
        let update = self.updates.borrow();
        update.status.clone().filter(|_| update.is_final())
    }

    /// Has the poller read the kept status again, with the settings of now.
    pub(super) fn reread(&self) {
        self.is_unread.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(super) fn is_watched(&self) -> bool {
        self.updates.receiver_count() > 0 || lock(&self.lease).is_some_and(|end| clock::now() < end)
    }

    /// Resolves when the next poll is due, or the kept status has to be read again. A new watcher
    /// makes that sooner.
    async fn due(&self, schedule: &PollSchedule) {
        loop {
            let due = schedule.next_poll(self.is_watched());
            if due <= clock::now() || self.is_unread.load(Ordering::Acquire) {
                return;
            }
            tokio::select! {
                biased;
                () = sleep_until(due) => {}
                () = self.wake.notified() => {}
            }
        }
    }
}

/// Cancels the queued poll of an unwatched job once the job is watched.
impl BeforeSend for PolledJob {
    fn authorize(&self) -> Authorization<'_> {
        Either::Left(ready(Ok(())))
    }

    fn cancelled(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            while !self.is_watched() {
                self.wake.notified().await;
            }
        })
    }
}

/// Polls until the job has ended, the first time after `later` unless it is watched. A failed poll
/// slows it down, but a job is never abandoned, because it was paid for.
///
/// If the job has ended already, polls it once. Returns a while after the last poll, so that callers
/// who ask for an ended job cause a poll a minute at most.
pub(super) async fn run(shared: Arc<Shared>, polled: Arc<PolledJob>, later: Duration) {
    loop {
        let polling = poll(Arc::clone(&shared), Arc::clone(&polled), later);
        if AssertUnwindSafe(polling).catch_unwind().await.is_ok() {
            return;
        }
        error!(job = &*polled.job.request_id, "job poller panicked; restarting");
        sleep(PANIC_BACKOFF).await;
    }
}

async fn poll(shared: Arc<Shared>, polled: Arc<PolledJob>, later: Duration) {
    let (store, job) = (&shared.store, &polled.job);
    let age = store.now().saturating_sub(job.at);
    let mut schedule = PollSchedule::new(age, clock::now()).delayed(later);
    let (mut knows_durations, mut failed_since) = (false, None);
    loop {
        polled.due(&schedule).await;
        let Some(setup) = shared.setup.load_full() else { return };
        if polled.is_unread.swap(false, Ordering::AcqRel) {
            if finish_by_kept_status(&shared, &setup, &polled).await {
                return sleep(ENDED_POLL_INTERVAL).await;
            }
            continue;
        }
        let Some(answer) = request_status(&setup, &polled).await else { continue };
        match answer {
            Ok(body) => {
                // The poll may have been queued for long, so the next one counts from the answer.
                if setup.status_words.claims_end(&body) {
                    schedule.failed(clock::now());
                } else {
                    schedule.answered(clock::now());
                }
                let state = read_state(&setup, &body, &mut failed_since);
                // Only a result changes a job that has ended. A newer one leaves its time.
                let status = match polled.end() {
                    Some(ended) if state != JobState::Finished => ended,
                    Some(ended) if ended.state == state => StatusUpdate { body, ..ended },
                    Some(_) | None => StatusUpdate { at: store.now(), body, state },
                };
                record_status(&shared, &polled, status).await;
            }
            Err(problem) => {
                schedule.failed(clock::now());
                polled.updates.send_modify(|update| {
                    update.problem = Some(problem).filter(|_| !update.is_final());
                    update.polls += 1;
                });
            }
        }
        if polled.updates.borrow().is_final() {
            return sleep(ENDED_POLL_INTERVAL).await;
        }
        // Not before the first poll: the ledger is busy with the sale.
        if !knows_durations {
            let times = store.job_durations(Arc::clone(&job.model), HISTORY_SIZE).await;
            schedule = schedule.with_durations(times.unwrap_or_default());
            knows_durations = true;
        }
    }
}

/// Returns whether the kept status of an open job, read again, is that of a finished one.
async fn finish_by_kept_status(
    shared: &Arc<Shared>,
    setup: &PollerSetup,
    polled: &PolledJob,
) -> bool {
    let state = JobState::Finished;
    let known = polled.updates.borrow().status.clone().filter(|_| polled.end().is_none());
    let Some(known) = known.filter(|known| setup.status_words.reread(known) == state) else {
        return false;
    };
    record_status(shared, polled, StatusUpdate { state, ..known }).await;
    true
}

/// Reads a status body. A failure counts once it has been reported for a while.
fn read_state(setup: &PollerSetup, body: &[u8], failed_since: &mut Option<Instant>) -> JobState {
    let state = setup.status_words.state(body);
    if state != JobState::Failed {
        *failed_since = None;
        return state;
    }
    let lasts = failed_since.get_or_insert_with(clock::now).elapsed() >= FAILURE_CONFIRMED_AFTER;
    if lasts || setup.trusts_failures { JobState::Failed } else { JobState::Open }
}

/// Returns the body of a status.
async fn request_status(
    setup: &PollerSetup,
    polled: &Arc<PolledJob>,
) -> Option<Result<Bytes, Problem>> {
    let (job, is_watched) = (&polled.job, polled.is_watched());
    let request = GatewayRequest {
        call: GatewayCall::VideoStatus { request_id: (&*job.request_id).into(), is_watched },
        before_send: (!is_watched).then(|| Arc::clone(polled) as _),
        caller: Arc::clone(&job.owner),
        preferred_key: job.key.and_then(|key| setup.keys.iter().position(|known| *known == key)),
        is_patient: true,
    };
    let reply = match setup.gateway.clone().oneshot(request).await {
        Ok(reply) => reply,
        Err(Error::Aborted(Abort::Cancelled)) => return None,
        Err(error) => return Some(Err(error.read_problem())),
    };
    if reply.status.is_success() {
        return Some(Ok(reply.body));
    }
    // Guess: the job was accepted and is not shown yet, so a 404 is not passed on.
    let detail = if reply.status == StatusCode::NOT_FOUND {
        "the gateway does not show the job yet".to_owned()
    } else {
        format!("the gateway returned {} for the job's status", reply.status.as_u16())
    };
    Some(Err(Problem::new(&GATEWAY_UNREACHABLE).detail(detail)))
}

/// Stores a new status, then notifies the watchers.
async fn record_status(shared: &Arc<Shared>, polled: &PolledJob, status: StatusUpdate) {
    let before = polled.updates.borrow().status.clone();
    let is_change = |old: &StatusUpdate| (old.state, &old.body) != (status.state, &status.body);
    let is_new = before.as_ref().is_none_or(is_change);
    let is_same_state = before.is_some_and(|old| old.state == status.state);
    let request_id = &polled.job.request_id;
    if is_new {
        let stored = match status.state {
            JobState::Open => {
                shared.store.update_job(Arc::clone(request_id), status.clone()).await.map(drop)
            }
            JobState::Finished | JobState::Failed => {
                shared.store.end_job(&polled.job, status.clone()).await
            }
        };
        if let Err(error) = stored {
            error!(%error, job = &**request_id, "job state not recorded");
        }
        if status.state != JobState::Open && !is_same_state {
            let Job { purchase, owner, model, at, .. } = &polled.job;
            let purchase = purchase.map(|id| id.to_string());
            let took = Duration::from_secs(status.at.saturating_sub(*at).as_secs());
            let (job, caller, model, state) =
                (&**request_id, &**owner, &**model, status.state.name());
            info!(job, purchase, caller, model, state, ?took, "job ended");
            if status.state == JobState::Finished {
                let latest_update = Some(status.clone());
                shared.keep(Job { latest_update, ..polled.job.clone() });
            }
        }
    }
    polled.updates.send_modify(|update| {
        *update = JobUpdate { status: Some(status), problem: None, polls: update.polls + 1 };
    });
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::gateway::contract::money::Usd;

    fn watched() -> Arc<PolledJob> {
        Arc::new(PolledJob::new(Job {
            request_id: "r".into(),
            purchase: None,
            owner: "ann".into(),
            key: None,
            model: "m".into(),
            price: Usd::ZERO,
            at: Duration::ZERO,
            prompt: None,
            latest_update: None,
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn first_watcher_wakes_poller_and_last_one_slows_it_down() {
        let (job, start) = (watched(), clock::now());
        let times = vec![Duration::from_secs(600)];
        let mut pace = PollSchedule::new(Duration::ZERO, start).with_durations(times);
        pace.answered(start);
        let within = |seconds| timeout(Duration::from_secs(seconds), job.due(&pace));
        within(50).await.expect_err("it is not watched");
        let one = job.subscribe();
        within(0).await.expect("it is overdue for a watcher");
        pace.answered(clock::now());
        let within = |seconds| timeout(Duration::from_secs(seconds), job.due(&pace));
        drop((job.subscribe(), one));
        assert!(!job.is_watched());
        within(20).await.expect_err("it is no longer watched");
        job.lease();
        within(0).await.expect("a caller has asked");
    }

    #[tokio::test(start_paused = true)]
    async fn new_watcher_wakes_sleeping_poller() {
        let job = watched();
        let mut pace = PollSchedule::new(Duration::ZERO, clock::now());
        pace.answered(clock::now());
        let (sleeper, start) = (Arc::clone(&job), clock::now());
        let due = tokio::spawn(async move { sleeper.due(&pace).await });
        sleep(Duration::from_secs(1)).await;
        let _watcher = job.subscribe();
        due.await.unwrap();
        assert_eq!(clock::now() - start, Duration::from_secs(5));
    }
}
