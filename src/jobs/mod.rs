//! How far jobs are: one poller for each open job, and as many watchers as there are.
//!
//! Every accepted job is in the store with its owner. Whoever asks for one that the store does not
//! know, or that is not theirs, is told that there is none, and the gateway is not asked.

pub mod concurrency;
pub mod events;
mod poller;
mod schedule;
pub mod status;

use std::collections::HashMap;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::util::BoxCloneSyncService;
use tracing::error;

pub use poller::JobUpdate;
pub use status::StatusDocument;

use crate::problem::{
    DRAINING, FieldError, GATEWAY_UNREACHABLE, JOB_NOT_FOUND, LEDGER_UNAVAILABLE, Problem,
};
use crate::store::{Caller, KeyId, Store, Unavailable};
use crate::sync::lock;
use crate::upstream::{Error, GatewayReply, GatewayRequest};
use concurrency::{ConcurrencyLimit, ConcurrencyPermit};
use poller::PolledJob;
use status::Words;

pub use crate::store::{Job, JobState, StatusUpdate};

/// How long a client waits for the first word on a job.
const FIRST_STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// How many of a caller's jobs are listed, the latest first.
const MAX_LISTED: usize = 200;

/// Between the first polls of two jobs that a server picks up at its start: half of the reported window.
const RESUME_INTERVAL: Duration = Duration::from_secs(2);
/// No job waits longer for its first poll.
const MAX_RESUME_DELAY: Duration = Duration::from_secs(300);

/// What jobs are polled with.
pub struct PollerSetup {
    pub gateway: BoxCloneSyncService<GatewayRequest, GatewayReply, Error>,
    /// The keys of the ring, in its order.
    pub keys: Arc<[KeyId]>,
    /// How a status body is read.
    pub status_words: Words,
    /// Whether other machines reach this server: an address is no identity then, and a caller sees only
    /// jobs that it names.
    pub is_public: bool,
}

/// All jobs, shared by every core; it outlives a change of settings.
#[derive(Clone)]
pub struct JobRegistry(Arc<Shared>);

struct Shared {
    store: Store,
    runtime: Handle,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    setup: ArcSwapOption<PollerSetup>,
    polled: Mutex<HashMap<Arc<str>, Arc<PolledJob>>>,
    stream_limit: ConcurrencyLimit,
    transfer_limit: ConcurrencyLimit,
}

impl JobRegistry {
    /// Jobs of `book`, polled by tasks on `runtime` until `stop`. They rest until [`JobRegistry::reconfigure`].
    pub fn new(book: Store, runtime: Handle, stop: CancellationToken) -> Self {
        Self(Arc::new(Shared {
            store: book,
            runtime,
            shutdown: stop,
            tasks: TaskTracker::new(),
            setup: ArcSwapOption::empty(),
            polled: Mutex::default(),
            stream_limit: ConcurrencyLimit::new(concurrency::STREAMS),
            transfer_limit: ConcurrencyLimit::new(concurrency::VIDEOS),
        }))
    }

    /// Applies these settings from now on. With the first, all open jobs are picked up again.
    pub fn reconfigure(&self, setup: PollerSetup) {
        if self.0.setup.swap(Some(Arc::new(setup))).is_some() {
            return;
        }
        let shared = Arc::clone(&self.0);
        let picking_up = async move {
            match shared.store.open_jobs().await {
                Ok(jobs) => {
                    for (number, job) in (0..).zip(jobs) {
                        shared.start(job, (RESUME_INTERVAL * number).min(MAX_RESUME_DELAY));
                    }
                }
                Err(error) => error!(%error, "open jobs are not picked up again until asked for"),
            }
        };
        self.0.tasks.spawn_on(picking_up, &self.0.runtime);
    }

    /// Polls a job that was accepted, and recorded where that was possible. Before the first settings it
    /// waits to be picked up with the other open jobs.
    pub fn track(&self, job: Job) {
        if self.0.setup.load().is_some() {
            self.0.start(job, Duration::ZERO);
        }
    }

    /// Returns the gateway's latest word on a job. The first question waits for the first word.
    pub async fn status(&self, request_id: &str, caller: &Caller) -> Result<StatusUpdate, Problem> {
        let JobSubscription { polled: watched, updates: mut news, shutdown: stop } =
            self.subscribe(request_id, caller).await?;
        watched.lease();
        let before = news.borrow().polls;
        let is_answer = |news: &JobUpdate| news.status.is_some() || news.polls > before;
        let answer = async { news.wait_for(is_answer).await.map(|news| news.clone()) };
        let no_word = || Problem::new(&GATEWAY_UNREACHABLE);
        tokio::select! {
            biased;
            Ok(JobUpdate { status, problem, .. }) = answer => {
                status.ok_or_else(|| problem.unwrap_or_else(no_word))
            }
            () = stop.cancelled() => {
                Err(Problem::new(&DRAINING).retry_after(Duration::from_secs(1)))
            }
            () = sleep(FIRST_STATUS_TIMEOUT) => Err(no_word()
                .detail("the gateway has not said yet how the job is")
                .retry_after(FIRST_STATUS_TIMEOUT)),
        }
    }

    /// Watches a job for as long as the guard is held.
    pub async fn subscribe(
        &self,
        request_id: &str,
        caller: &Caller,
    ) -> Result<JobSubscription, Problem> {
        let not_found = || Problem::new(&JOB_NOT_FOUND);
        let polled = self.0.polled().get(request_id).cloned();
        let watched = match polled {
            // A caller that may not see a job must not even wake its poller.
            Some(watched) if may_see(caller, &watched.job) => watched,
            Some(_) => return Err(not_found()),
            None => {
                let found = self.0.store.find_job(request_id.into()).await.map_err(unavailable)?;
                let job = found.filter(|job| may_see(caller, job)).ok_or_else(not_found)?;
                if job.is_open() {
                    self.0.start(job, Duration::ZERO)
                } else {
                    Arc::new(PolledJob::new(job))
                }
            }
        };
        Ok(JobSubscription {
            updates: watched.subscribe(),
            polled: watched,
            shutdown: self.0.shutdown.clone(),
        })
    }

    /// Returns a job with the latest word on it, without waiting for one.
    pub async fn get(&self, request_id: &str, caller: &Caller) -> Result<Job, Problem> {
        let mut watching = self.subscribe(request_id, caller).await?;
        Ok(Job { latest_update: watching.latest().status, ..watching.job().clone() })
    }

    /// Returns the caller's latest jobs, newest first, with the latest words.
    pub async fn list(&self, caller: &Caller) -> Result<Vec<Job>, Problem> {
        self.may_list(caller)?;
        let owner = caller.to_string().into();
        let mut jobs = self.0.store.jobs_of(owner, MAX_LISTED).await.map_err(unavailable)?;
        let polled = self.0.polled();
        for job in &mut jobs {
            if let Some(watched) = polled.get(&job.request_id) {
                job.latest_update.clone_from(&watched.updates.borrow().status);
            }
        }
        Ok(jobs)
    }

    /// Takes a seat for one more event stream.
    pub fn stream_permit(&self, caller: &Caller) -> Result<ConcurrencyPermit, Problem> {
        self.0.stream_limit.acquire(caller)
    }

    /// Takes a seat for one more finished video on its way.
    pub fn transfer_permit(&self, caller: &Caller) -> Result<ConcurrencyPermit, Problem> {
        self.0.transfer_limit.acquire(caller)
    }

    /// Is cancelled when the server stops.
    pub fn shutdown_token(&self) -> CancellationToken {
        self.0.shutdown.clone()
    }

    fn may_list(&self, caller: &Caller) -> Result<(), Problem> {
        let is_public = self.0.setup.load().as_ref().is_none_or(|setup| setup.is_public);
        match caller {
            Caller::Address(_) if is_public => Err(Problem::invalid(vec![FieldError {
                pointer: "/request_id".to_owned(),
                code: "required",
                detail: "required: others than this machine reach this server, and an address is \
                         no identity; name the jobs that you know"
                    .to_owned(),
            }])),
            Caller::Address(_) | Caller::Member(_) | Caller::Subject(_) => Ok(()),
        }
    }
}

/// Whether a job is this caller's to see. A caller known by its address alone may see whatever such callers
/// ordered and it can name: the gateway's ids are not guessed. A job of a member or subject stays its
/// owner's, also when `access.mode` becomes open.
fn may_see(caller: &Caller, job: &Job) -> bool {
    match caller {
        Caller::Address(_) => !Caller::is_authenticated(&job.owner),
        Caller::Member(_) | Caller::Subject(_) => *job.owner == *caller.to_string(),
    }
}

fn unavailable(error: Unavailable) -> Problem {
    error!(%error, "jobs cannot be looked up");
    Problem::new(&LEDGER_UNAVAILABLE).retry_after(Duration::from_secs(5))
}

impl Shared {
    fn polled(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<PolledJob>>> {
        lock(&self.polled)
    }

    /// Starts the job's poller unless it runs already; unless somebody watches, so much `later`. When the
    /// job has ended it is forgotten here: the store remembers it.
    fn start(self: &Arc<Self>, job: Job, later: Duration) -> Arc<PolledJob> {
        let mut polled = self.polled();
        if let Some(watched) = polled.get(&job.request_id) {
            return Arc::clone(watched);
        }
        let watched = Arc::new(PolledJob::new(job));
        polled.insert(Arc::clone(&watched.job.request_id), Arc::clone(&watched));
        let (shared, polled) = (Arc::clone(self), Arc::clone(&watched));
        let polling = async move {
            let run = poller::run(Arc::clone(&shared), Arc::clone(&polled), later);
            shared.shutdown.run_until_cancelled(run).await;
            shared.polled().remove(&polled.job.request_id);
        };
        self.tasks.spawn_on(polling, &self.runtime);
        watched
    }
}

/// Somebody who watches a job.
pub struct JobSubscription {
    polled: Arc<PolledJob>,
    updates: watch::Receiver<JobUpdate>,
    shutdown: CancellationToken,
}

impl JobSubscription {
    /// The job as it was accepted.
    pub fn job(&self) -> &Job {
        &self.polled.job
    }

    /// Whether there will be no more news of it.
    pub fn has_ended(&self) -> bool {
        self.updates.borrow().is_final()
    }

    /// Returns what is known now; what comes later is news again.
    pub fn latest(&mut self) -> JobUpdate {
        self.updates.borrow_and_update().clone()
    }

    /// Resolves when there is more than [`updates`](Self::news) told; never after the last.
    pub async fn changed(&mut self) {
        if self.updates.changed().await.is_err() {
            pending().await
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
