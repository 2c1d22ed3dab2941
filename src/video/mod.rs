//! Video jobs: one poller per open job, for any number of watchers.
//!
//! If several servers share a ledger, one of them polls a job, and the others follow it there.
//!
//! Every accepted job is stored with its owner. A job that is unknown or belongs to another caller
//! is reported as not found, without a request to the gateway.

pub mod concurrency;
pub mod events;
mod followed;
pub mod media;
pub mod pictures;
mod poller;
mod schedule;
pub mod status;

use std::collections::HashMap;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::future;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::error;

pub use poller::JobUpdate;
pub use status::StatusDocument;

pub use crate::config::JobsConfig;
use crate::gate::problem::{
    DRAINING, FieldError, GATEWAY_UNREACHABLE, JOB_NOT_FOUND, LEDGER_UNAVAILABLE, Problem,
};
use crate::gateway::GatewayService;
use crate::ledger::{Caller, KeyId, Store, Unavailable};
use crate::sync::lock;
use concurrency::{ConcurrencyLimit, ConcurrencyPermit};
use followed::FollowedJobs;
use poller::PolledJob;

pub use crate::ledger::{Job, JobState, StatusUpdate};

const FIRST_STATUS_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_LISTED: usize = 200;

/// The interval between first polls after a start: at most half of the reported rate limit.
const RESUME_INTERVAL: Duration = Duration::from_secs(2);
/// The longest wait for the first poll after a start.
const MAX_RESUME_DELAY: Duration = Duration::from_secs(300);
/// How often a server claims its jobs again, and those that no server polls.
const CLAIM_INTERVAL: Duration = Duration::from_secs(5);

pub struct PollerSetup {
    pub gateway: GatewayService,
    pub keys: Arc<[KeyId]>,
    pub status_words: JobsConfig,
    /// Whether a failure counts at the first report, as the sandbox's do.
    pub trusts_failures: bool,
    /// Whether other machines can connect, so that an address does not identify a caller.
    pub is_public: bool,
}

/// All jobs, shared by all cores and kept across reloads.
#[derive(Clone)]
pub struct JobRegistry(Arc<Shared>);

struct Shared {
    store: Store,
    runtime: Handle,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    setup: ArcSwapOption<PollerSetup>,
    polled: Mutex<HashMap<Arc<str>, Polling>>,
    followed: FollowedJobs,
    stream_limit: ConcurrencyLimit,
    transfer_limit: ConcurrencyLimit,
}

/// A job that this server polls.
struct Polling {
    job: Arc<PolledJob>,
    /// Ends the polling once another server has taken the job over.
    stop: CancellationToken,
}

impl JobRegistry {
    /// Polling starts with the first [`reconfigure`](Self::reconfigure).
    pub fn new(store: Store, runtime: Handle, shutdown: CancellationToken) -> Self {
        Self(Arc::new(Shared {
            store,
            runtime,
            shutdown,
            tasks: TaskTracker::new(),
            setup: ArcSwapOption::empty(),
            polled: Mutex::default(),
            followed: FollowedJobs::default(),
            stream_limit: ConcurrencyLimit::new(concurrency::STREAMS),
            transfer_limit: ConcurrencyLimit::new(concurrency::VIDEOS),
        }))
    }

    /// Applies new settings. The first call resumes all open jobs, or, if several servers share the
    /// ledger, those that no other polls. Later ones read the kept statuses of open jobs again.
    pub fn reconfigure(&self, setup: PollerSetup) {
        if self.0.setup.swap(Some(Arc::new(setup))).is_some() {
            lock(&self.0.polled).values().for_each(|polling| polling.job.reread());
            return;
        }
        let shared = Arc::clone(&self.0);
        let resume = async move {
            if shared.store.is_shared() {
                future::join(shared.claim_jobs(), shared.exchange_news()).await;
                return;
            }
            match shared.store.open_jobs().await {
                Ok(jobs) => {
                    for (number, job) in (0..).zip(jobs) {
                        shared.start(job, (RESUME_INTERVAL * number).min(MAX_RESUME_DELAY));
                    }
                }
                // Why was logged when it was opened.
                Err(_) if shared.store.is_unusable() => {}
                Err(error) => error!(%error, "open jobs unreadable; resuming them on request"),
            }
        };
        self.0.tasks.spawn_on(resume, &self.0.runtime);
    }

    /// Starts to poll an accepted job, unless the first `reconfigure` is about to.
    pub fn track(&self, job: Job) {
        if self.0.setup.load().is_some() {
            self.0.start(job, Duration::ZERO);
        }
    }

    /// Returns the latest status of a job, and waits for the first one. A job that has ended is
    /// polled again, at most once a minute, for the next caller that asks.
    pub async fn status(&self, request_id: &str, caller: &Caller) -> Result<StatusUpdate, Problem> {
        let status = self.kept_status(request_id, caller).await?;
        if status.state != JobState::Open {
            let job = self.get(request_id, caller).await?;
            self.0.start(job, Duration::ZERO);
        }
        Ok(status)
    }

    /// Returns the status of a job that has ended after another poll, or after one less than a minute
    /// ago.
    pub async fn polled_status(&self, request_id: &str, caller: &Caller) -> Option<StatusUpdate> {
        let job = self.get(request_id, caller).await.ok().filter(|job| !job.is_open())?;
        let mut updates = self.0.start(job, Duration::ZERO).subscribe();
        let polled = updates.wait_for(|update| update.polls > 0);
        timeout(FIRST_STATUS_TIMEOUT, polled).await.ok()?.ok()?.status.clone()
    }

    /// Returns the latest status of a job, and waits for the first one.
    pub async fn kept_status(
        &self,
        request_id: &str,
        caller: &Caller,
    ) -> Result<StatusUpdate, Problem> {
        let JobSubscription { polled, mut updates } = self.subscribe(request_id, caller).await?;
        polled.lease();
        let before = updates.borrow().polls;
        let is_answer = |update: &JobUpdate| update.status.is_some() || update.polls > before;
        let answer = async { updates.wait_for(is_answer).await.map(|update| update.clone()) };
        let no_status = || Problem::new(&GATEWAY_UNREACHABLE);
        tokio::select! {
            biased;
            Ok(JobUpdate { status, problem, .. }) = answer => {
                status.ok_or_else(|| problem.unwrap_or_else(no_status))
            }
            () = self.0.shutdown.cancelled() => {
                Err(Problem::new(&DRAINING).retry_after(Duration::from_secs(1)))
            }
            () = sleep(FIRST_STATUS_TIMEOUT) => Err(no_status()
                .detail("the gateway has not reported the job's status yet")
                .retry_after(FIRST_STATUS_TIMEOUT)),
        }
    }

    pub async fn subscribe(
        &self,
        request_id: &str,
        caller: &Caller,
    ) -> Result<JobSubscription, Problem> {
        let not_found = || Problem::new(&JOB_NOT_FOUND);
        let known = self.0.known(request_id);
        let polled = match known {
            // A caller that may not see a job must not wake its poller.
            Some(polled) if may_see(caller, &polled.job) => polled,
            Some(_) => return Err(not_found()),
            None => {
                let found = self.0.store.find_job(request_id.into()).await.map_err(unavailable)?;
                let mut job = found.filter(|job| may_see(caller, job)).ok_or_else(not_found)?;
                let was_open = job.is_open();
                self.0.reread(&mut job);
                match (was_open, job.is_open()) {
                    (true, _) => self.0.poll_or_follow(job),
                    (false, true) => self.0.start(job, Duration::ZERO),
                    (false, false) => Arc::new(PolledJob::new(job)),
                }
            }
        };
        let updates = polled.subscribe();
        Ok(JobSubscription { polled, updates })
    }

    pub async fn get(&self, request_id: &str, caller: &Caller) -> Result<Job, Problem> {
        let mut job = self.subscribe(request_id, caller).await?;
        Ok(Job { latest_update: job.latest().status, ..job.job().clone() })
    }

    /// Returns the caller's jobs with their latest status, newest first.
    pub async fn list(&self, caller: &Caller) -> Result<Vec<Job>, Problem> {
        let is_public = self.0.setup.load().as_ref().is_none_or(|setup| setup.is_public);
        if is_public && matches!(caller, Caller::Address(_)) {
            return Err(Problem::invalid(vec![FieldError {
                pointer: "/request_id".to_owned(),
                code: "required",
                detail: "required: name the jobs, because this server is public and an IP \
                         address does not identify a caller"
                    .to_owned(),
            }]));
        }
        let owner = caller.to_string().into();
        let mut jobs = self.0.store.jobs_of(owner, MAX_LISTED).await.map_err(unavailable)?;
        let polled = lock(&self.0.polled);
        for job in &mut jobs {
            match polled.get(&job.request_id) {
                Some(polling) => {
                    job.latest_update.clone_from(&polling.job.updates.borrow().status);
                }
                None => self.0.reread(job),
            }
        }
        Ok(jobs)
    }

    pub fn stream_permit(&self, caller: &Caller) -> Result<ConcurrencyPermit, Problem> {
        self.0.stream_limit.acquire(caller)
    }

    pub fn transfer_permit(&self, caller: &Caller) -> Result<ConcurrencyPermit, Problem> {
        self.0.transfer_limit.acquire(caller)
    }

    pub fn shutdown_token(&self) -> CancellationToken {
        self.0.shutdown.clone()
    }
}

/// A caller without credentials may see any job of such callers that it can name, because ids
/// cannot be guessed. A member's job stays private even if `access.mode` becomes open.
fn may_see(caller: &Caller, job: &Job) -> bool {
    match caller {
        Caller::Address(_) => !Caller::is_authenticated(&job.owner),
        Caller::Member(_) | Caller::Subject(_) | Caller::Link(_) => {
            *job.owner == *caller.to_string()
        }
    }
}

fn unavailable(error: Unavailable) -> Problem {
    error!(%error, "jobs unreadable");
    Problem::new(&LEDGER_UNAVAILABLE).retry_after(Duration::from_secs(5))
}

impl Shared {
    /// Claims jobs again and again, also those of servers that have ended, until the shutdown.
    async fn claim_jobs(self: &Arc<Self>) {
        let mut was_readable = true;
        while !self.shutdown.is_cancelled() {
            let claimed = self.store.claim_jobs().await;
            if let Err(error) = &claimed
                && was_readable
            {
                error!(%error, "open jobs unreadable; resuming them on request");
            }
            was_readable = claimed.is_ok();
            for (number, job) in (0..).zip(claimed.unwrap_or_default()) {
                self.start(job, (RESUME_INTERVAL * number).min(MAX_RESUME_DELAY));
            }
            self.shutdown.run_until_cancelled(sleep(CLAIM_INTERVAL)).await;
        }
    }

    fn known(&self, request_id: &str) -> Option<Arc<PolledJob>> {
        let polled = lock(&self.polled).get(request_id).map(|polling| Arc::clone(&polling.job));
        polled.or_else(|| self.followed.get(request_id))
    }

    /// Reads the status of a job that has ended again, by the words of today.
    fn reread(&self, job: &mut Job) {
        let setup = self.setup.load();
        if let (Some(setup), Some(update)) = (&*setup, &mut job.latest_update)
            && update.state != JobState::Open
        {
            update.state = setup.status_words.reread(update);
        }
    }

    /// An open job that this server does not poll is polled by another, if there are any.
    fn poll_or_follow(self: &Arc<Self>, job: Job) -> Arc<PolledJob> {
        if self.store.is_shared() {
            let polled = lock(&self.polled);
            let running = polled.get(&job.request_id).map(|polling| Arc::clone(&polling.job));
            return running.unwrap_or_else(|| self.followed.follow(job));
        }
        self.start(job, Duration::ZERO)
    }

    fn start(self: &Arc<Self>, job: Job, later: Duration) -> Arc<PolledJob> {
        let mut polled = lock(&self.polled);
        if let Some(running) = polled.get(&job.request_id) {
            return Arc::clone(&running.job);
        }
        let followed = self.followed.take(&job.request_id);
        let started = followed.unwrap_or_else(|| Arc::new(PolledJob::new(job)));
        let stop = self.shutdown.child_token();
        let polling = Polling { job: Arc::clone(&started), stop: stop.clone() };
        polled.insert(Arc::clone(&started.job.request_id), polling);
        let (shared, job) = (Arc::clone(self), Arc::clone(&started));
        let polling = async move {
            let run = poller::run(Arc::clone(&shared), Arc::clone(&job), later);
            stop.run_until_cancelled(run).await;
            let mut polled = lock(&shared.polled);
            polled.remove(&job.job.request_id);
            if stop.is_cancelled() && !job.updates.borrow().is_final() {
                shared.followed.give_up(job);
            }
        };
        self.tasks.spawn_on(polling, &self.runtime);
        started
    }
}

pub struct JobSubscription {
    polled: Arc<PolledJob>,
    updates: watch::Receiver<JobUpdate>,
}

impl JobSubscription {
    pub fn job(&self) -> &Job {
        &self.polled.job
    }

    pub fn has_ended(&self) -> bool {
        self.updates.borrow().is_final()
    }

    pub fn latest(&mut self) -> JobUpdate {
        self.updates.borrow_and_update().clone()
    }

    /// Resolves when there is a newer update; never after the final one.
    pub async fn changed(&mut self) {
        if self.updates.changed().await.is_err() {
            pending().await
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
