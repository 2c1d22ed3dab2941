//! Polls one job until it has ended.

use std::future::ready;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
use crate::problem::{GATEWAY_UNREACHABLE, Problem};
use crate::store::{Job, JobState, StatusUpdate, Store};
use crate::sync::lock;
use crate::upstream::{Abort, Authorization, BeforeSend, Error, GatewayCall, GatewayRequest};

/// How long a caller that asked for a job's status counts as watching it.
const LEASE: Duration = Duration::from_secs(15);

const HISTORY_SIZE: usize = 9;

const PANIC_BACKOFF: Duration = Duration::from_secs(5);

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
    wake: Notify,
}

impl PolledJob {
    pub(super) fn new(job: Job) -> Self {
        let update = JobUpdate { status: job.latest_update.clone(), ..JobUpdate::default() };
        Self {
            job,
            updates: watch::Sender::new(update),
            lease: Mutex::default(),
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

    pub(super) fn is_watched(&self) -> bool {
        self.updates.receiver_count() > 0 || lock(&self.lease).is_some_and(|end| clock::now() < end)
    }

    /// Resolves when the next poll is due. A new watcher makes that sooner.
    async fn due(&self, schedule: &PollSchedule) {
        loop {
            let due = schedule.next_poll(self.is_watched());
            if due <= clock::now() {
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
    let mut knows_durations = false;
    loop {
        polled.due(&schedule).await;
        let Some(setup) = shared.setup.load_full() else { return };
        let Some(answer) = request_status(store, &setup, &polled).await else { continue };
        match answer {
            Ok(status) => {
                // The poll may have been queued for long, so the next one counts from the answer.
                schedule.answered(clock::now());
                record_status(&shared, &polled, status).await;
                if polled.updates.borrow().is_final() {
                    return;
                }
            }
            Err(problem) => {
                schedule.failed(clock::now());
                polled.updates.send_modify(|update| {
                    update.problem = Some(problem);
                    update.polls += 1;
                });
            }
        }
        // Not before the first poll: the ledger is busy with the sale.
        if !knows_durations {
            let times = store.job_durations(Arc::clone(&job.model), HISTORY_SIZE).await;
            schedule = schedule.with_durations(times.unwrap_or_default());
            knows_durations = true;
        }
    }
}

async fn request_status(
    store: &Store,
    setup: &PollerSetup,
    polled: &Arc<PolledJob>,
) -> Option<Result<StatusUpdate, Problem>> {
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
        let state = setup.status_words.state(&reply.body);
        return Some(Ok(StatusUpdate { at: store.now(), body: reply.body, state }));
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
async fn record_status(shared: &Shared, polled: &PolledJob, status: StatusUpdate) {
    let is_change = |old: &StatusUpdate| (old.state, &old.body) != (status.state, &status.body);
    let is_new = polled.updates.borrow().status.as_ref().is_none_or(is_change);
    let request_id = &polled.job.request_id;
    if is_new {
        let stored = match status.state {
            JobState::Open => shared.store.update_job(Arc::clone(request_id), status.clone()).await,
            JobState::Finished | JobState::Failed => {
                shared.store.end_job(&polled.job, status.clone()).await
            }
        };
        if let Err(error) = stored {
            error!(%error, job = &**request_id, "job state not recorded");
        }
        if status.state != JobState::Open {
            let Job { purchase, owner, model, at, .. } = &polled.job;
            let purchase = purchase.map(|id| id.to_string());
            let took = Duration::from_secs(status.at.saturating_sub(*at).as_secs());
            let (job, caller, model, state) =
                (&**request_id, &**owner, &**model, status.state.name());
            info!(job, purchase, caller, model, state, ?took, "job ended");
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
    use crate::contract::money::Usd;

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
