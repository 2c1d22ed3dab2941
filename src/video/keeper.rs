//! Has finished videos fetched into the folder of kept videos, until they are there or time is up.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Method, response::Parts};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::kept::{KeepError, KeptState, KeptVideos};
use super::{Job, JobRegistry, JobState, Shared, unavailable};
use crate::clock;
use crate::gate::problem::{INTERNAL, JOB_NOT_FOUND, Problem};
use crate::gate::response::Body;
use crate::gateway::contract::event::EventKind;
use crate::ledger::{Alert, Caller};
use crate::sync::lock;

/// How many videos a server fetches at once.
const MAX_FETCHES: usize = 4;
/// The wait after a failed attempt; it doubles.
const FIRST_WAIT: Duration = Duration::from_secs(5);
const MAX_WAIT: Duration = Duration::from_secs(600);
/// How long the attempts go on.
const MAX_TRYING: Duration = Duration::from_secs(3_600);
/// The address of an older job has probably expired, so there are two attempts: the second has a
/// fresh address.
const OLD: Duration = Duration::from_secs(86_400);
/// How long the server that polled a job has the first attempts for itself.
const ADOPTED_AFTER: Duration = Duration::from_secs(120);
/// How many of the latest jobs are looked at for missing videos.
const MAX_RESUMED: usize = 200;

/// The videos that this server fetches.
pub(super) struct Keeping {
    running: Mutex<HashMap<Arc<str>, CancellationToken>>,
    slots: Semaphore,
}

impl Default for Keeping {
    fn default() -> Self {
        Self { running: Mutex::default(), slots: Semaphore::new(MAX_FETCHES) }
    }
}

impl JobRegistry {
    /// Answers with the kept video of a job, if there is one.
    pub(super) async fn kept_response(
        &self,
        job: &Job,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<(Parts, Option<Body>)> {
        self.0.kept()?.respond(job, method, headers).await
    }

    /// Returns what became of the videos of these jobs, or `None` if none is kept.
    pub async fn kept_states(&self, jobs: &[Job]) -> Option<Vec<KeptState>> {
        Some(self.0.kept()?.states(jobs.to_vec()).await)
    }

    /// Removes the kept video of a job for good, for its owner or an admin.
    pub async fn remove_video(
        &self,
        request_id: &str,
        caller: &Caller,
        is_admin: bool,
    ) -> Result<(), Problem> {
        let found = self.0.store.find_job(request_id.into()).await.map_err(unavailable)?;
        let owner = caller.to_string();
        let found = found.filter(|job| is_admin || *job.owner == *owner);
        let job = found.ok_or_else(|| Problem::new(&JOB_NOT_FOUND))?;
        let Some(kept) = self.0.kept() else { return Ok(()) };
        if let Some(stop) = lock(&self.0.keeping.running).remove(request_id) {
            stop.cancel();
        }
        kept.remove(&job).await.map_err(|error| {
            error!(%error, job = request_id, "kept video not removed");
            Problem::new(&INTERNAL).detail("the video could not be removed")
        })?;
        info!(job = request_id, by = owner, "kept video removed");
        Ok(())
    }

    /// Removes what is too old or too much, and the videos of revoked members. Fetches videos that
    /// are missing, such as those of a server that has ended.
    pub async fn tidy_videos(&self) {
        self.0.tidy_videos().await;
    }
}

impl Shared {
    fn kept(&self) -> Option<Arc<KeptVideos>> {
        self.setup.load().as_ref()?.kept.clone()
    }

    /// Has the video of a finished job fetched, unless that is going on.
    pub(super) fn keep(self: &Arc<Self>, job: Job) {
        if self.kept().is_none() {
            return;
        }
        let stop = self.shutdown.child_token();
        match lock(&self.keeping.running).entry(Arc::clone(&job.request_id)) {
            Entry::Occupied(_) => return,
            Entry::Vacant(place) => _ = place.insert(stop.clone()),
        }
        let shared = Arc::clone(self);
        let keeping = async move {
            let request_id = Arc::clone(&job.request_id);
            stop.run_until_cancelled(shared.fetch_until_kept(job)).await;
            lock(&shared.keeping.running).remove(&request_id);
        };
        self.tasks.spawn_on(keeping, &self.runtime);
    }

    async fn fetch_until_kept(self: &Arc<Self>, mut job: Job) {
        let request_id = Arc::clone(&job.request_id);
        let is_old = self.age_of_end(&job).is_none_or(|age| age > OLD);
        let (mut started, mut wait) = (None, FIRST_WAIT);
        loop {
            let slot = self.keeping.slots.acquire().await;
            let started = *started.get_or_insert_with(clock::now);
            let Some(setup) = self.setup.load_full() else { return };
            let Some(kept) = &setup.kept else { return };
            let body = job.latest_update.as_ref().map(|update| &update.body);
            let address = body.and_then(|body| setup.status_words.result_url(body));
            let fetched = kept.fetch(&job, address.as_deref()).await;
            drop(slot);
            let error = match fetched {
                Ok(Some(bytes)) => return info!(job = &*request_id, bytes, "video kept"),
                Ok(None) | Err(KeepError::Removed) => return,
                Err(error) => error,
            };
            let is_last = (is_old && wait > FIRST_WAIT) || started.elapsed() + wait > MAX_TRYING;
            if matches!(error, KeepError::Final(_)) || is_last {
                return self.give_up_video(kept, &job, &error).await;
            }
            warn!(%error, job = &*request_id, ?wait, "video not kept; will retry");
            sleep(wait).await;
            wait = (wait * 2).min(MAX_WAIT);
            // A signed address may have expired.
            if let Some(status) = self.poll_ended(job.clone()).await {
                job.latest_update = Some(status);
            }
        }
    }

    async fn give_up_video(&self, kept: &KeptVideos, job: &Job, error: &KeepError) {
        error!(%error, job = &*job.request_id, caller = &*job.owner, "video not kept");
        kept.give_up(job, error.to_string()).await;
        let data = json!({
            "request_id": &*job.request_id, "model": &*job.model, "caller": &*job.owner,
            "cost": job.price, "cost_micros": job.price.as_micros(), "reason": error.to_string(),
        });
        let alert = Alert {
            kind: EventKind::VideoNotKept,
            whose: Arc::clone(&job.request_id),
            // So it is forgotten after a while, and reported once.
            period: 1,
            data: data.to_string().into(),
        };
        if let Err(error) = self.store.raise_alert(alert).await {
            warn!(%error, "alert not recorded");
        }
    }

    /// Returns how long ago a job has finished.
    fn age_of_end(&self, job: &Job) -> Option<Duration> {
        let update = job.latest_update.as_ref();
        let update = update.filter(|update| update.state == JobState::Finished)?;
        Some(self.store.now().saturating_sub(update.at))
    }

    /// Begins after a start. Parts of an earlier process are removed, and none of another server.
    pub(super) async fn resume_videos(self: &Arc<Self>) {
        if let Some(kept) = self.kept() {
            kept.remove_stale_parts(!self.store.is_shared()).await;
        }
        self.tidy_videos().await;
    }

    async fn tidy_videos(self: &Arc<Self>) {
        let Some(kept) = self.kept().filter(|_| !self.store.is_unusable()) else { return };
        let is_shared = self.store.is_shared();
        if is_shared {
            kept.remove_stale_parts(false).await;
        }
        kept.tidy().await;
        let (Ok(members), Ok(jobs)) =
            (self.store.members().await, self.store.latest_jobs(MAX_RESUMED).await)
        else {
            return;
        };
        let revoked = members.into_iter().filter(|member| member.revoked_at.is_some());
        let revoked: Vec<_> = revoked.map(|it| Caller::Member(it.name).to_string()).collect();
        if !revoked.is_empty() {
            kept.remove_of(revoked.clone()).await;
        }
        let is_due = |job: &Job| {
            let least = if is_shared { ADOPTED_AFTER } else { Duration::ZERO };
            self.age_of_end(job).is_some_and(|age| age >= least && age < kept.keeps_for())
                && !revoked.iter().any(|owner| **owner == *job.owner)
        };
        let due: Vec<_> = jobs.into_iter().filter(is_due).collect();
        let states = kept.states(due.clone()).await;
        for (job, _) in due.into_iter().zip(states).filter(|(_, it)| *it == KeptState::Missing) {
            self.keep(job);
        }
    }
}
