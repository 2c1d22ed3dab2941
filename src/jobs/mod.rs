//! How far jobs are: one poller for each open job, and as many watchers as there are.
//!
//! Every accepted job is in the store with its owner. Whoever asks for one that the store does not
//! know, or that is not theirs, is told that there is none, and the gateway is not asked.

pub mod events;
mod pace;
mod poller;
pub mod reading;
pub mod seats;

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

pub use poller::News;
pub use reading::Status;

use crate::problem::{
    DRAINING, Fault, GATEWAY_UNREACHABLE, JOB_NOT_FOUND, LEDGER_UNAVAILABLE, Problem,
};
use crate::store::{Caller, KeyId, Store, Unavailable};
use crate::sync::lock;
use crate::upstream::{Ask, Error, Reply};
use poller::Watched;
use reading::Words;
use seats::{Seat, Seats};

pub use crate::store::{Job, JobState, Word};

/// How long a client waits for the first word on a job.
const FIRST_WORD: Duration = Duration::from_secs(10);
/// How many of a caller's jobs are listed, the latest first.
const MAX_LISTED: usize = 200;

/// Between the first polls of two jobs that a server picks up at its start: half of the reported window.
const APART: Duration = Duration::from_secs(2);
/// No job waits longer for its first poll.
const LATEST: Duration = Duration::from_secs(300);

/// What jobs are polled with.
pub struct Setup {
    pub gateway: BoxCloneSyncService<Ask, Reply, Error>,
    /// The keys of the ring, in its order.
    pub keys: Arc<[KeyId]>,
    /// How a status body is read.
    pub words: Words,
    /// Whether other machines reach this server: an address is no identity then, and a caller sees only
    /// jobs that it names.
    pub is_public: bool,
}

/// All jobs, shared by every core; it outlives a change of settings.
#[derive(Clone)]
pub struct Jobs(Arc<Shared>);

struct Shared {
    book: Store,
    runtime: Handle,
    stop: CancellationToken,
    tasks: TaskTracker,
    setup: ArcSwapOption<Setup>,
    polled: Mutex<HashMap<Arc<str>, Arc<Watched>>>,
    streams: Seats,
    videos: Seats,
}

impl Jobs {
    /// Jobs of `book`, polled by tasks on `runtime` until `stop`. They rest until [`Jobs::follow`].
    pub fn new(book: Store, runtime: Handle, stop: CancellationToken) -> Self {
        Self(Arc::new(Shared {
            book,
            runtime,
            stop,
            tasks: TaskTracker::new(),
            setup: ArcSwapOption::empty(),
            polled: Mutex::default(),
            streams: Seats::new(seats::STREAMS),
            videos: Seats::new(seats::VIDEOS),
        }))
    }

    /// Applies these settings from now on. With the first, all open jobs are picked up again.
    pub fn follow(&self, setup: Setup) {
        if self.0.setup.swap(Some(Arc::new(setup))).is_some() {
            return;
        }
        let shared = Arc::clone(&self.0);
        let picking_up = async move {
            match shared.book.open_jobs().await {
                Ok(jobs) => {
                    for (number, job) in (0..).zip(jobs) {
                        shared.start(job, (APART * number).min(LATEST));
                    }
                }
                Err(error) => error!(%error, "open jobs are not picked up again until asked for"),
            }
        };
        self.0.tasks.spawn_on(picking_up, &self.0.runtime);
    }

    /// Polls a job that was accepted, and recorded where that was possible. Before the first settings it
    /// waits to be picked up with the other open jobs.
    pub fn accepted(&self, job: Job) {
        if self.0.setup.load().is_some() {
            self.0.start(job, Duration::ZERO);
        }
    }

    /// Returns the gateway's latest word on a job. The first question waits for the first word.
    pub async fn status(&self, request_id: &str, caller: &Caller) -> Result<Word, Problem> {
        let Watching { watched, mut news, stop } = self.watch(request_id, caller).await?;
        watched.lease();
        let before = news.borrow().polls;
        let is_answer = |news: &News| news.word.is_some() || news.polls > before;
        let answer = async { news.wait_for(is_answer).await.map(|news| news.clone()) };
        let no_word = || Problem::new(&GATEWAY_UNREACHABLE);
        tokio::select! {
            biased;
            Ok(News { word, trouble, .. }) = answer => {
                word.ok_or_else(|| trouble.unwrap_or_else(no_word))
            }
            () = stop.cancelled() => {
                Err(Problem::new(&DRAINING).retry_after(Duration::from_secs(1)))
            }
            () = sleep(FIRST_WORD) => Err(no_word()
                .detail("the gateway has not said yet how the job is")
                .retry_after(FIRST_WORD)),
        }
    }

    /// Watches a job for as long as the guard is held.
    pub async fn watch(&self, request_id: &str, caller: &Caller) -> Result<Watching, Problem> {
        let not_found = || Problem::new(&JOB_NOT_FOUND);
        let polled = self.0.polled().get(request_id).cloned();
        let watched = match polled {
            // A caller that may not see a job must not even wake its poller.
            Some(watched) if may_see(caller, &watched.job) => watched,
            Some(_) => return Err(not_found()),
            None => {
                let found = self.0.book.job(request_id.into()).await.map_err(unavailable)?;
                let job = found.filter(|job| may_see(caller, job)).ok_or_else(not_found)?;
                if job.is_open() {
                    self.0.start(job, Duration::ZERO)
                } else {
                    Arc::new(Watched::new(job))
                }
            }
        };
        Ok(Watching { news: watched.join(), watched, stop: self.0.stop.clone() })
    }

    /// Returns a job with the latest word on it, without waiting for one.
    pub async fn look(&self, request_id: &str, caller: &Caller) -> Result<Job, Problem> {
        let mut watching = self.watch(request_id, caller).await?;
        Ok(Job { latest: watching.news().word, ..watching.job().clone() })
    }

    /// Returns the caller's latest jobs, newest first, with the latest words.
    pub async fn own(&self, caller: &Caller) -> Result<Vec<Job>, Problem> {
        self.may_list(caller)?;
        let owner = caller.to_string().into();
        let mut jobs = self.0.book.jobs_of(owner, MAX_LISTED).await.map_err(unavailable)?;
        let polled = self.0.polled();
        for job in &mut jobs {
            if let Some(watched) = polled.get(&job.request_id) {
                job.latest.clone_from(&watched.news.borrow().word);
            }
        }
        Ok(jobs)
    }

    /// Takes a seat for one more event stream.
    pub fn seat(&self, caller: &Caller) -> Result<Seat, Problem> {
        self.0.streams.take(caller)
    }

    /// Takes a seat for one more finished video on its way.
    pub fn video_seat(&self, caller: &Caller) -> Result<Seat, Problem> {
        self.0.videos.take(caller)
    }

    /// Is cancelled when the server stops.
    pub fn stopped(&self) -> CancellationToken {
        self.0.stop.clone()
    }

    fn may_list(&self, caller: &Caller) -> Result<(), Problem> {
        let is_public = self.0.setup.load().as_ref().is_none_or(|setup| setup.is_public);
        match caller {
            Caller::Address(_) if is_public => Err(Problem::invalid(vec![Fault {
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
        Caller::Address(_) => !Caller::has_credentials(&job.owner),
        Caller::Member(_) | Caller::Subject(_) => *job.owner == *caller.to_string(),
    }
}

fn unavailable(error: Unavailable) -> Problem {
    error!(%error, "jobs cannot be looked up");
    Problem::new(&LEDGER_UNAVAILABLE).retry_after(Duration::from_secs(5))
}

impl Shared {
    fn polled(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Watched>>> {
        lock(&self.polled)
    }

    /// Starts the job's poller unless it runs already; unless somebody watches, so much `later`. When the
    /// job has ended it is forgotten here: the store remembers it.
    fn start(self: &Arc<Self>, job: Job, later: Duration) -> Arc<Watched> {
        let mut polled = self.polled();
        if let Some(watched) = polled.get(&job.request_id) {
            return Arc::clone(watched);
        }
        let watched = Arc::new(Watched::new(job));
        polled.insert(Arc::clone(&watched.job.request_id), Arc::clone(&watched));
        let (shared, polled) = (Arc::clone(self), Arc::clone(&watched));
        let polling = async move {
            let run = poller::run(Arc::clone(&shared), Arc::clone(&polled), later);
            shared.stop.run_until_cancelled(run).await;
            shared.polled().remove(&polled.job.request_id);
        };
        self.tasks.spawn_on(polling, &self.runtime);
        watched
    }
}

/// Somebody who watches a job.
pub struct Watching {
    watched: Arc<Watched>,
    news: watch::Receiver<News>,
    stop: CancellationToken,
}

impl Watching {
    /// The job as it was accepted.
    pub fn job(&self) -> &Job {
        &self.watched.job
    }

    /// Whether there will be no more news of it.
    pub fn has_ended(&self) -> bool {
        self.news.borrow().is_last()
    }

    /// Returns what is known now; what comes later is news again.
    pub fn news(&mut self) -> News {
        self.news.borrow_and_update().clone()
    }

    /// Resolves when there is more than [`news`](Self::news) told; never after the last.
    pub async fn changed(&mut self) {
        if self.news.changed().await.is_err() {
            pending().await
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
