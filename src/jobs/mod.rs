//! How far jobs are: one poller for each open job, and as many watchers as there are.
//!
//! Every accepted job is in the store with its owner. Whoever asks for one that the store does not
//! know, or that is not theirs, is told that there is none, and the gateway is not asked.

pub mod events;
mod pace;
mod poller;
pub mod reading;
pub mod seats;
mod watch;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::util::BoxCloneSyncService;
use tracing::error;

pub use reading::Status;
pub use watch::News;

use crate::problem::{
    DRAINING, Fault, GATEWAY_UNREACHABLE, JOB_NOT_FOUND, LEDGER_UNAVAILABLE, Problem,
};
use crate::store::{Caller, KeyId, Store, Unavailable};
use crate::upstream::{Ask, Error, Reply};
use reading::Words;
use seats::{Seat, Seats};
use watch::{Watched, Watcher};

pub use crate::store::{Job, JobState, Word};

/// How long somebody who asks waits for the first word on a job.
const FIRST_WORD: Duration = Duration::from_secs(10);
/// A caller's jobs that are listed, the latest first.
const MOST_LISTED: usize = 200;

/// Between the first polls of two jobs that a server picks up at its start: half of the reported window.
const APART: Duration = Duration::from_secs(2);
/// No job waits longer for its first poll.
const LATEST: Duration = Duration::from_secs(300);

/// What the settings say of jobs.
pub struct Setup {
    /// Whom to ask.
    pub gateway: BoxCloneSyncService<Ask, Reply, Error>,
    /// The keys of the ring, in its order.
    pub keys: Arc<[KeyId]>,
    /// How a status body is read.
    pub words: Words,
    /// Whether others than this machine reach us: an address is no identity then, and only who names
    /// a job may see it.
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

    /// From now on, these settings hold. With the first, all open jobs are picked up again.
    pub fn follow(&self, setup: Setup) {
        if self.0.setup.swap(Some(Arc::new(setup))).is_some() {
            return;
        }
        let shared = Arc::clone(&self.0);
        self.0.tasks.spawn_on(
            async move {
                match shared.book.open_jobs().await {
                    Ok(jobs) => {
                        for (number, job) in (0..).zip(jobs) {
                            drop(shared.start_later(job, (APART * number).min(LATEST)));
                        }
                    }
                    Err(error) => {
                        error!(%error, "open jobs are not picked up again until asked for")
                    }
                }
            },
            &self.0.runtime,
        );
    }

    /// Where accepted jobs are written down.
    pub fn book(&self) -> Store {
        self.0.book.clone()
    }

    /// A job was accepted, and written down where that was possible. Before the first settings it waits to
    /// be picked up with the other open jobs.
    pub fn accepted(&self, job: Job) {
        if self.0.setup.load().is_some() {
            drop(self.0.start(job));
        }
    }

    /// The gateway's latest word on a job. The first question waits for the first word.
    ///
    /// # Errors
    /// `job_not_found`; 502 or 503 where there is no word at all.
    pub async fn status(&self, request_id: &str, caller: &Caller) -> Result<Word, Problem> {
        let mut watching = self.watch(request_id, caller).await?;
        watching.lease();
        match timeout(FIRST_WORD, watching.first_word()).await {
            Ok(word) => word,
            Err(_elapsed) => Err(Problem::new(&GATEWAY_UNREACHABLE)
                .detail("the gateway has not said yet how the job is")
                .retry_after(FIRST_WORD)),
        }
    }

    /// Watches a job for as long as the guard is held.
    ///
    /// # Errors
    /// `job_not_found`, or that the store cannot be asked.
    pub async fn watch(&self, request_id: &str, caller: &Caller) -> Result<Watching, Problem> {
        // Who may not see a job must not even wake its poller.
        let see = |watched: &Arc<Watched>| may_see(caller, &watched.job).then(|| watched.join());
        let polled = self.0.polled().get(request_id).map(see);
        let not_found = || Problem::new(&JOB_NOT_FOUND);
        if let Some(watcher) = polled {
            return watcher.map(|watcher| Watching::open(&self.0, watcher)).ok_or_else(not_found);
        }
        let found = self.0.book.job(request_id.into()).await.map_err(unavailable)?;
        let job = found.filter(|job| may_see(caller, job)).ok_or_else(not_found)?;
        match job.is_open() {
            true => Ok(Watching::open(&self.0, self.0.start(job))),
            false => Ok(Watching::ended(job)),
        }
    }

    /// A job with the latest word on it, without waiting for one.
    ///
    /// # Errors
    /// As [`Jobs::watch`].
    pub async fn look(&self, request_id: &str, caller: &Caller) -> Result<Job, Problem> {
        let mut watching = self.watch(request_id, caller).await?;
        let latest = watching.news().word;
        Ok(Job { latest, ..watching.job().clone() })
    }

    /// The caller's latest jobs, newest first, with the latest words.
    ///
    /// # Errors
    /// `invalid_request` where jobs have to be named; or that the store cannot be asked.
    pub async fn own(&self, caller: &Caller) -> Result<Vec<Job>, Problem> {
        self.may_list(caller)?;
        let owner = caller.to_string().into();
        let mut jobs = self.0.book.jobs_of(owner, MOST_LISTED).await.map_err(unavailable)?;
        let polled = self.0.polled();
        for job in &mut jobs {
            if let Some(watched) = polled.get(&job.request_id) {
                job.latest.clone_from(&watched.news.borrow().word);
            }
        }
        Ok(jobs)
    }

    /// A seat for one more event stream.
    ///
    /// # Errors
    /// `rate_limited`, `overloaded`: there are enough.
    pub fn seat(&self, caller: &Caller) -> Result<Seat, Problem> {
        self.0.streams.take(caller)
    }

    /// A seat for one more finished video on its way.
    ///
    /// # Errors
    /// `rate_limited`, `overloaded`: there are enough.
    pub fn video_seat(&self, caller: &Caller) -> Result<Seat, Problem> {
        self.0.videos.take(caller)
    }

    /// Resolves when the server stops.
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

/// Whether a job is this caller's to see. Who is known by an address alone may see whatever such callers
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
        self.polled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job's poller, which is started unless it runs already.
    fn start(self: &Arc<Self>, job: Job) -> Watcher {
        self.start_later(job, Duration::ZERO)
    }

    fn start_later(self: &Arc<Self>, job: Job, later: Duration) -> Watcher {
        let mut polled = self.polled();
        if let Some(watched) = polled.get(&job.request_id) {
            return watched.join();
        }
        let watched = Arc::new(Watched::new(job));
        polled.insert(Arc::clone(&watched.job.request_id), Arc::clone(&watched));
        let (shared, polled) = (Arc::clone(self), Arc::clone(&watched));
        let polling = async move {
            let run = poller::run(Arc::clone(&shared), Arc::clone(&polled), later);
            shared.stop.run_until_cancelled(run).await;
            shared.let_go(&polled);
        };
        self.tasks.spawn_on(polling, &self.runtime);
        watched.join()
    }

    /// Forgets a job that has ended and that nobody watches; the store remembers it.
    fn let_go(&self, watched: &Arc<Watched>) {
        let mut polled = self.polled();
        let is_this = |kept: &Arc<Watched>| Arc::ptr_eq(kept, watched);
        if watched.news.borrow().is_last()
            && watched.is_alone()
            && polled.get(&watched.job.request_id).is_some_and(is_this)
        {
            polled.remove(&watched.job.request_id);
        }
    }
}

/// Somebody who watches a job.
pub struct Watching {
    job: Job,
    news: tokio::sync::watch::Receiver<News>,
    held: Option<(Watcher, Arc<Shared>)>,
    stop: CancellationToken,
}

impl Watching {
    fn open(shared: &Arc<Shared>, watcher: Watcher) -> Self {
        let watched = Arc::clone(watcher.job());
        let held = Some((watcher, Arc::clone(shared)));
        let (news, stop) = (watched.news.subscribe(), shared.stop.clone());
        Self { job: watched.job.clone(), news, held, stop }
    }

    fn ended(job: Job) -> Self {
        let news = News { word: job.latest.clone(), ..News::default() };
        let (_, news) = tokio::sync::watch::channel(news);
        Self { job, news, held: None, stop: CancellationToken::new() }
    }

    /// The job as it was accepted.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Whether there will be no more news of it.
    pub fn has_ended(&self) -> bool {
        self.news.borrow().is_last()
    }

    /// What is known now; what comes later is news again.
    pub fn news(&mut self) -> News {
        self.news.borrow_and_update().clone()
    }

    /// Resolves when there is more than [`news`](Self::news) told; never after the last.
    pub async fn changed(&mut self) {
        // After the last word nobody sends: whoever has seen it waits for nothing.
        if self.news.changed().await.is_err() {
            std::future::pending().await
        }
    }

    fn lease(&self) {
        if let Some((watcher, _)) = &self.held {
            watcher.job().lease();
        }
    }

    /// The latest word; where there is none yet, what the next poll brings.
    async fn first_word(&mut self) -> Result<Word, Problem> {
        let before = self.news.borrow().polls;
        let is_answer = |news: &News| news.word.is_some() || news.polls > before;
        let answer = self.stop.run_until_cancelled(self.news.wait_for(is_answer)).await;
        let news = match answer {
            Some(Ok(news)) => news.clone(),
            Some(Err(_)) | None => {
                return Err(Problem::new(&DRAINING).retry_after(Duration::from_secs(1)));
            }
        };
        news.word.ok_or_else(|| news.trouble.unwrap_or_else(|| Problem::new(&GATEWAY_UNREACHABLE)))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some((watcher, shared)) = self.held.take() {
            let watched = Arc::clone(watcher.job());
            drop(watcher);
            shared.let_go(&watched);
        }
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").field("polled", &self.0.polled().len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watching").field("job", &self.job.request_id).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
