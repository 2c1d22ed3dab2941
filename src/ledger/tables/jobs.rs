//! The jobs in the ledger.

use std::sync::Arc;
use std::time::Duration;

use super::column::{Cells, FromRow, insert, read, record, select, signed};
use super::ledger::Ledger;
use super::outbox;
use crate::ledger::engine::{Engine, Result, Sql, params};
use crate::ledger::writer::Durability;
use crate::ledger::{Job, JobNews, PolledJobs, StatusUpdate, Store, Unavailable};

record!(Job {
    request_id: "request_id",
    purchase: "purchase",
    owner: "owner",
    key: "key",
    model: "model",
    price: "price_micros",
    at: "at",
    prompt: "prompt",
    latest_update: "status_at, body, state",
});
record!(StatusUpdate { at: "status_at", body: "body", state: "state" });
record!(JobNews {
    request_id: "request_id",
    revision: "revision",
    update: "status_at, body, state"
});

/// A job that was never polled has neither a time nor a body.
impl FromRow for Option<StatusUpdate> {
    fn from_row(cells: &mut Cells<'_>) -> Result<Self> {
        let (at, body, state) =
            (cells.next::<Option<_>>()?, cells.next::<Option<_>>()?, cells.next()?);
        Ok(at.zip(body).map(|(at, body)| StatusUpdate { at, body, state }))
    }
}

/// How long a server polls the jobs that it has claimed, unless it claims them again.
const CLAIM: Duration = Duration::from_secs(30);

impl Store {
    /// Records a job without its purchase, durably. A known job stays as it is: its status
    /// changes only by [`update_job`](Self::update_job).
    pub async fn insert_job(&self, job: &Job) -> Result<(), Unavailable> {
        let job = job.clone();
        let write = move |ledger: &Ledger| insert(ledger, &job);
        self.run("insert_job", Durability::Synced, write).await
    }

    /// Records the gateway's latest status of a job, unless it is not known. A job that has ended
    /// changes only to finished, and a finished one only the body of its status. Returns whether the
    /// update was recorded.
    pub async fn update_job(
        &self,
        request_id: Arc<str>,
        update: StatusUpdate,
    ) -> Result<bool, Unavailable> {
        // Not synced: the gateway is asked again after a power failure.
        let write = move |ledger: &Ledger| {
            let write =
                "UPDATE jobs SET status_at = ?1, body = ?2, state = ?3, revision = revision + 1
                WHERE request_id = ?4
                    AND (state = 'open' OR (state = 'failed' AND ?3 = 'finished'))";
            let StatusUpdate { at, body, state } = &update;
            if ledger.db.run(write, params![at, body, state, request_id])? == 1 {
                outbox::write_job(ledger, &request_id, *state)?;
                return Ok(true);
            }
            // A newer address of the result. When it was finished, and that it was, are known.
            let renew = "UPDATE jobs SET body = ?1, revision = revision + 1
                WHERE request_id = ?2 AND state = 'finished' AND ?3 = 'finished'";
            Ok(ledger.db.run(renew, params![body, request_id, state])? == 1)
        };
        self.run("update_job", Durability::Buffered, write).await
    }

    /// Records the last status of a job. If the settlement that records the job still waits for
    /// a retry, this records the job, too.
    pub async fn end_job(&self, job: &Job, update: StatusUpdate) -> Result<(), Unavailable> {
        // The job is nearly always there, and to insert it would wait for the disk.
        if !self.update_job(Arc::clone(&job.request_id), update.clone()).await? {
            self.insert_job(job).await?;
            self.update_job(Arc::clone(&job.request_id), update).await?;
        }
        Ok(())
    }

    pub async fn find_job(&self, request_id: Arc<str>) -> Result<Option<Job>, Unavailable> {
        let find = select::<Job>("FROM jobs WHERE request_id = ?");
        self.query("find_job", move |ledger| ledger.db.first(&find, [&request_id], read)).await
    }

    pub async fn open_jobs(&self) -> Result<Vec<Job>, Unavailable> {
        let open = select::<Job>("FROM jobs WHERE state = 'open' ORDER BY number");
        let find = move |ledger: &Ledger| ledger.db.all(&open, (), read);
        self.execute("open_jobs", Durability::Buffered, find).await
    }

    /// Claims the open jobs that no server polls, for a while, and returns all that this one has
    /// claimed. The server that accepts a job polls it from the start.
    pub async fn claim_jobs(&self) -> Result<Vec<Job>, Unavailable> {
        let claimed =
            select::<Job>("FROM jobs WHERE state = 'open' AND poller = ? ORDER BY number");
        let claim = move |ledger: &Ledger| {
            let (me, now) = (ledger.server(), ledger.now());
            let claim = "UPDATE jobs SET poller = ?1, polled_until = ?2 WHERE state = 'open'
                AND (poller = ?1 OR coalesce(polled_until, 0) < ?3)";
            ledger.db.run(claim, params![me, now.saturating_add(CLAIM), now])?;
            ledger.db.all(&claimed, [me], read)
        };
        self.run("claim_jobs", Durability::Buffered, claim).await
    }

    /// Returns the statuses of these jobs that are newer than the revisions that the caller knows;
    /// 0 is none.
    pub async fn job_news(&self, known: Vec<(Arc<str>, u64)>) -> Result<Vec<JobNews>, Unavailable> {
        let find = select::<JobNews>("FROM jobs WHERE request_id = ? AND revision > ?");
        let news = move |db: &dyn Engine| {
            let news = known.iter().map(|(id, seen)| db.first(&find, params![id, seen], read));
            news.filter_map(Result::transpose).collect()
        };
        self.run_report("job_news", news).await
    }

    /// Tells the server that polls an open job that someone watches it here, for this long.
    pub async fn watch_job(&self, request_id: Arc<str>, wait: Duration) -> Result<(), Unavailable> {
        let watch = move |ledger: &Ledger| {
            let until = ledger.now().saturating_add(wait);
            let watch = "UPDATE jobs SET watched_until = ? WHERE request_id = ? AND state = 'open'";
            ledger.db.run(watch, params![until, request_id]).map(drop)
        };
        self.run("watch_job", Durability::Buffered, watch).await
    }

    /// Returns the open jobs that this server has claimed and others watch, or that others have
    /// claimed.
    pub async fn polled_jobs(&self) -> Result<PolledJobs, Unavailable> {
        let (me, now) = (self.server(), self.now());
        let find = "SELECT request_id, poller = ?1 FROM jobs WHERE state = 'open'
            AND ((poller = ?1 AND watched_until > ?2) OR (poller <> ?1 AND polled_until > ?2))";
        let polled = move |db: &dyn Engine| {
            let mut jobs = PolledJobs::default();
            for (request_id, is_own) in db.all(find, params![me, now], read)? {
                let group = if is_own { &mut jobs.watched } else { &mut jobs.taken };
                group.push(request_id);
            }
            Ok(jobs)
        };
        self.run_report("polled_jobs", polled).await
    }

    pub async fn jobs_of(&self, owner: Arc<str>, most: usize) -> Result<Vec<Job>, Unavailable> {
        let latest = select::<Job>("FROM jobs WHERE owner = ? ORDER BY number DESC LIMIT ?");
        let find =
            move |ledger: &Ledger| ledger.db.all(&latest, params![owner, signed(most)], read);
        self.query("jobs_of", find).await
    }

    pub async fn latest_jobs(&self, most: usize) -> Result<Vec<Job>, Unavailable> {
        let latest = select::<Job>("FROM jobs ORDER BY number DESC LIMIT ?");
        self.query("latest_jobs", move |ledger| ledger.db.all(&latest, [signed(most)], read)).await
    }

    /// Returns how long the latest finished jobs of a model took.
    pub async fn job_durations(
        &self,
        model: Arc<str>,
        most: usize,
    ) -> Result<Vec<Duration>, Unavailable> {
        let latest = "SELECT CASE WHEN status_at > at THEN status_at - at ELSE 0 END FROM jobs
            WHERE model = ? AND state = 'finished' ORDER BY status_at DESC, number DESC LIMIT ?";
        let find = move |ledger: &Ledger| ledger.db.all(latest, params![model, signed(most)], read);
        // A job that is resumed at the start needs it.
        self.execute("job_durations", Durability::Buffered, find).await
    }
}

/// The server that accepts a job polls it.
pub(super) fn insert(ledger: &Ledger, job: &Job) -> Result<()> {
    let poller = ledger.server();
    let inserted = insert!(ledger.db, jobs {
        request_id: job.request_id,
        owner: job.owner,
        key: job.key,
        model: job.model,
        price_micros: job.price,
        at: job.at,
        purchase: job.purchase,
        prompt: job.prompt,
        poller: poller,
        polled_until: poller.map(|_| ledger.now().saturating_add(CLAIM)),
    } "ON CONFLICT (request_id) DO NOTHING");
    inserted.map(drop)
}
