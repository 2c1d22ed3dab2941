//! Asks for one job until it has ended, at the pace that its watchers and the job's usual time allow.

use std::future::ready;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
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
use crate::upstream::{Abort, BeforeSend, Error, GatewayCall, GatewayRequest};

/// For how long a caller that asked for a job's status counts as watching it.
const LEASE: Duration = Duration::from_secs(15);

/// How many earlier jobs of the same model tell how long it usually takes.
const HISTORY_SIZE: usize = 9;

/// The pause before a poller that has panicked starts again.
const PANIC_BACKOFF: Duration = Duration::from_secs(5);

/// What is known of a job.
#[derive(Clone, Debug, Default)]
pub struct JobUpdate {
    /// The gateway's latest word.
    pub status: Option<StatusUpdate>,
    /// Why the latest poll brought none.
    pub problem: Option<Problem>,
    /// Polls so far.
    pub polls: u64,
}

impl JobUpdate {
    /// Whether there will be no more of it.
    pub fn is_final(&self) -> bool {
        self.status.as_ref().is_some_and(|word| word.state != JobState::Open)
    }
}

/// What the poller of a job shares with those who watch it: whoever holds a receiver of its news.
#[derive(Debug)]
pub(super) struct PolledJob {
    pub(super) job: Job,
    pub(super) updates: watch::Sender<JobUpdate>,
    /// Until when somebody counts as watching who asked.
    lease: Mutex<Option<Instant>>,
    wake: Notify,
}

impl PolledJob {
    pub(super) fn new(job: Job) -> Self {
        let news = JobUpdate { status: job.latest_update.clone(), ..JobUpdate::default() };
        Self {
            job,
            updates: watch::Sender::new(news),
            lease: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// One more who watches, until the receiver is dropped.
    pub(super) fn subscribe(&self) -> watch::Receiver<JobUpdate> {
        let news = self.updates.subscribe();
        self.wake.notify_one();
        news
    }

    /// Somebody asked, and will ask again.
    pub(super) fn lease(&self) {
        *lock(&self.lease) = Some(clock::now() + LEASE);
        self.wake.notify_one();
    }

    fn is_watched(&self) -> bool {
        self.updates.receiver_count() > 0 || lock(&self.lease).is_some_and(|end| clock::now() < end)
    }

    /// Resolves when the job is to be asked for. The first who watches makes it sooner.
    async fn due(&self, pace: &PollSchedule) {
        loop {
            let due = pace.next_poll(self.is_watched());
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

/// Takes the poll of an unwatched job out of the queue when somebody begins to watch the job.
struct Promotion(Arc<PolledJob>);

impl BeforeSend for Promotion {
    fn authorize(&self) -> BoxFuture<'_, Result<(), Abort>> {
        Box::pin(ready(Ok(())))
    }

    fn cancelled(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            while !self.0.is_watched() {
                self.0.wake.notified().await;
            }
        })
    }
}

/// Polls until the job has ended; unless somebody watches, the first time so much `later`. Whatever goes
/// wrong keeps the last word and slows down; a job is never given up, as it was paid for.
pub(super) async fn run(shared: Arc<Shared>, watched: Arc<PolledJob>, later: Duration) {
    loop {
        let polled = poll(Arc::clone(&shared), Arc::clone(&watched), later);
        if AssertUnwindSafe(polled).catch_unwind().await.is_ok() {
            return;
        }
        error!(request_id = &*watched.job.request_id, "the poller of a job begins anew");
        sleep(PANIC_BACKOFF).await;
    }
}

async fn poll(shared: Arc<Shared>, watched: Arc<PolledJob>, later: Duration) {
    let job = &watched.job;
    let times =
        shared.store.job_durations(Arc::clone(&job.model), HISTORY_SIZE).await.unwrap_or_default();
    let age = shared.store.now().saturating_sub(job.at);
    let mut pace = PollSchedule::new(times, age, clock::now()).delayed(later);
    loop {
        watched.due(&pace).await;
        let Some(setup) = shared.setup.load_full() else { return };
        let Some(answer) = request_status(&shared.store, &setup, &watched).await else { continue };
        match answer {
            Ok(word) => {
                // A poll may have waited for long: what counts for the next one is the answer.
                pace.answered(clock::now());
                record_status(&shared, &watched, word).await;
                if watched.updates.borrow().is_final() {
                    return;
                }
            }
            Err(problem) => {
                pace.failed(clock::now());
                watched.updates.send_modify(|news| {
                    news.problem = Some(problem);
                    news.polls += 1;
                });
            }
        }
    }
}

/// The gateway's word. `None` if the job became a watched one while its poll waited for its turn: then
/// it is to be asked for as one.
async fn request_status(
    book: &Store,
    setup: &PollerSetup,
    watched: &Arc<PolledJob>,
) -> Option<Result<StatusUpdate, Problem>> {
    let job = &watched.job;
    let is_watched = watched.is_watched();
    let promotion = || Arc::new(Promotion(Arc::clone(watched))) as Arc<dyn BeforeSend>;
    let ask = GatewayRequest {
        call: GatewayCall::VideoStatus { request_id: (&*job.request_id).into(), is_watched },
        before_send: (!is_watched).then(promotion),
        caller: Arc::clone(&job.owner),
        preferred_key: job.key.and_then(|key| setup.keys.iter().position(|known| *known == key)),
        is_patient: true,
    };
    let reply = match setup.gateway.clone().oneshot(ask).await {
        Ok(reply) => reply,
        Err(Error::Aborted(Abort::Cancelled)) => return None,
        Err(error) => return Some(Err(error.read_problem())),
    };
    if reply.status.is_success() {
        let state = setup.status_words.state(&reply.body);
        return Some(Ok(StatusUpdate { at: book.now(), body: reply.body, state }));
    }
    // Guess: it accepted the job, so it may only not show it yet. What it says is not passed on: a 404
    // would read as if there were no such job.
    let detail = if reply.status == StatusCode::NOT_FOUND {
        "the gateway does not show the job yet".to_owned()
    } else {
        format!("the gateway does not say how the job is: {}", reply.status.as_u16())
    };
    Some(Err(Problem::new(&GATEWAY_UNREACHABLE).detail(detail)))
}

/// Those who watch hear it when the store has it.
async fn record_status(shared: &Shared, watched: &PolledJob, word: StatusUpdate) {
    let is_new = watched
        .updates
        .borrow()
        .status
        .as_ref()
        .is_none_or(|before| (before.state, &before.body) != (word.state, &word.body));
    let request_id = &watched.job.request_id;
    if is_new {
        let noted = async {
            if word.state != JobState::Open {
                // The entry of its purchase may still be waiting for the store, and the job with it.
                shared.store.insert_job(&watched.job).await?;
            }
            shared.store.update_job(Arc::clone(request_id), word.clone()).await
        };
        if let Err(error) = noted.await {
            error!(%error, request_id = &**request_id, "a job's state could not be recorded");
        }
        if word.state != JobState::Open {
            let took = word.at.saturating_sub(watched.job.at);
            let took = Duration::from_secs(took.as_secs());
            info!(request_id = &**request_id, state = word.state.name(), ?took, "a job ended");
        }
    }
    watched.updates.send_modify(|news| {
        *news = JobUpdate { status: Some(word), problem: None, polls: news.polls + 1 };
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
            latest_update: None,
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_who_watches_wakes_the_poller_and_the_last_lets_it_rest() {
        let (job, start) = (watched(), clock::now());
        let times = vec![Duration::from_secs(600)];
        let mut pace = PollSchedule::new(times, Duration::ZERO, start);
        pace.answered(start);
        let within = |seconds| timeout(Duration::from_secs(seconds), job.due(&pace));
        within(50).await.expect_err("nobody watches");
        let one = job.subscribe();
        within(0).await.expect("it is overdue for who watches");
        pace.answered(clock::now());
        let within = |seconds| timeout(Duration::from_secs(seconds), job.due(&pace));
        drop((job.subscribe(), one));
        assert!(!job.is_watched());
        within(20).await.expect_err("nobody watches any more");
        job.lease();
        within(0).await.expect("somebody asked");
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_while_the_poller_sleeps_wakes_it() {
        let job = watched();
        let mut pace = PollSchedule::new(vec![], Duration::ZERO, clock::now());
        pace.answered(clock::now());
        let (sleeper, start) = (Arc::clone(&job), clock::now());
        let due = tokio::spawn(async move { sleeper.due(&pace).await });
        sleep(Duration::from_secs(1)).await;
        let _watcher = job.subscribe();
        due.await.unwrap();
        assert_eq!(clock::now() - start, Duration::from_secs(5));
    }
}
