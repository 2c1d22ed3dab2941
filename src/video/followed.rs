//! Jobs that another server polls: this one hears of their statuses through the ledger, and tells
//! that server that someone watches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::poller::{JobUpdate, PolledJob};
use super::{Job, Shared};
use crate::clock::{self, Instant};
use crate::ledger::{JobNews, PolledJobs};
use crate::sync::lock;

/// How often a server asks for news while it follows a job or polls one.
const PULSE: Duration = Duration::from_millis(250);
/// How long the server that polls a job counts it as watched, unless it hears so again.
const WATCH: Duration = Duration::from_secs(15);
const WATCH_RENEWAL: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct FollowedJobs(Mutex<HashMap<Arc<str>, FollowedJob>>);

struct FollowedJob {
    job: Arc<PolledJob>,
    /// Of the latest status that it has.
    revision: u64,
    next_renewal: Instant,
}

impl FollowedJobs {
    pub(super) fn get(&self, request_id: &str) -> Option<Arc<PolledJob>> {
        lock(&self.0).get(request_id).map(|followed| Arc::clone(&followed.job))
    }

    pub(super) fn follow(&self, job: Job) -> Arc<PolledJob> {
        let mut all = lock(&self.0);
        let followed = all.entry(Arc::clone(&job.request_id)).or_insert_with(|| FollowedJob {
            job: Arc::new(PolledJob::new(job)),
            revision: 0,
            next_renewal: clock::now(),
        });
        Arc::clone(&followed.job)
    }

    /// Follows a job that another server has taken over. Its watchers stay.
    pub(super) fn give_up(&self, job: Arc<PolledJob>) {
        let (revision, next_renewal) = (0, clock::now());
        let request_id = Arc::clone(&job.job.request_id);
        lock(&self.0).insert(request_id, FollowedJob { job, revision, next_renewal });
    }

    /// Gives up a job that this server polls from now on. Its watchers stay.
    pub(super) fn take(&self, request_id: &str) -> Option<Arc<PolledJob>> {
        lock(&self.0).remove(request_id).map(|followed| followed.job)
    }

    /// Forgets jobs without a watcher, and returns the others with their revisions.
    fn known(&self) -> Vec<(Arc<str>, u64)> {
        let mut all = lock(&self.0);
        all.retain(|_, followed| Arc::strong_count(&followed.job) > 1 || followed.job.is_watched());
        all.iter().map(|(id, followed)| (Arc::clone(id), followed.revision)).collect()
    }

    /// Returns the watched jobs whose server has to hear so again.
    fn due_renewals(&self) -> Vec<Arc<str>> {
        let now = clock::now();
        let mut all = lock(&self.0);
        let due = all
            .iter_mut()
            .filter(|(_, followed)| followed.next_renewal <= now && followed.job.is_watched());
        due.map(|(id, followed)| {
            followed.next_renewal = now + WATCH_RENEWAL;
            Arc::clone(id)
        })
        .collect()
    }

    fn update(&self, news: JobNews) {
        let mut all = lock(&self.0);
        let Some(followed) = all.get_mut(&news.request_id) else { return };
        followed.revision = news.revision;
        followed.job.updates.send_modify(|update| {
            let polls = update.polls + 1;
            *update = JobUpdate { status: Some(news.update), problem: None, polls };
        });
        if followed.job.updates.borrow().is_final() {
            all.remove(&news.request_id);
        }
    }
}

impl Shared {
    /// Passes on what servers know of each other's jobs, until the shutdown.
    pub(super) async fn exchange_news(&self) {
        while !self.shutdown.is_cancelled() {
            self.receive_news().await;
            self.compare_polled().await;
            wait(&self.shutdown).await;
        }
    }

    /// If the ledger cannot be read now, the next attempt brings what is missing.
    async fn receive_news(&self) {
        let known = self.followed.known();
        if known.is_empty() {
            return;
        }
        for request_id in self.followed.due_renewals() {
            self.store.watch_job(request_id, WATCH).await.ok();
        }
        for news in self.store.job_news(known).await.unwrap_or_default() {
            self.followed.update(news);
        }
    }

    /// Has the jobs polled soon that someone watches at another server, and stops polling those that
    /// another server polls.
    async fn compare_polled(&self) {
        if lock(&self.polled).is_empty() {
            return;
        }
        let PolledJobs { watched, taken } = self.store.polled_jobs().await.unwrap_or_default();
        let polled = lock(&self.polled);
        for polling in watched.iter().filter_map(|request_id| polled.get(request_id)) {
            polling.job.lease();
        }
        for polling in taken.iter().filter_map(|request_id| polled.get(request_id)) {
            let job = &*polling.job.job.request_id;
            warn!(job, "job is polled by another server; polling stopped");
            polling.stop.cancel();
        }
    }
}

async fn wait(shutdown: &CancellationToken) {
    shutdown.run_until_cancelled(sleep(PULSE)).await;
}
