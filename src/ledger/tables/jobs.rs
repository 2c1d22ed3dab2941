//! The jobs in the ledger.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::column::{self, nanos};
use super::ledger::Ledger;
use super::outbox;
use crate::ledger::engine::{Engine, Result, Row, Sql, ToSqlValue, params};
use crate::ledger::writer::Durability;
use crate::ledger::{
    Job, JobNews, JobState, KeyId, PolledJobs, PurchaseId, StatusUpdate, Store, Unavailable,
};

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
    /// changes only to finished, and a finished one only the body of its status.
    pub async fn update_job(
        &self,
        request_id: Arc<str>,
        update: StatusUpdate,
    ) -> Result<(), Unavailable> {
        self.write_update(request_id, update).await.map(drop)
    }

    /// Records the last status of a job. If the settlement that records the job still waits for
    /// a retry, this records the job, too.
    pub async fn end_job(&self, job: &Job, update: StatusUpdate) -> Result<(), Unavailable> {
        // The job is nearly always there, and to insert it would wait for the disk.
        if !self.write_update(Arc::clone(&job.request_id), update.clone()).await? {
            self.insert_job(job).await?;
            self.update_job(Arc::clone(&job.request_id), update).await?;
        }
        Ok(())
    }

    /// Returns whether the update was recorded.
    async fn write_update(
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
            let values = params![nanos(*at), &body[..], state.name(), request_id];
            if ledger.db.run(write, values)? == 1 {
                outbox::write_job(&*ledger.db, &request_id, *state, ledger.now())?;
                return Ok(true);
            }
            // A newer address of the result. When it was finished, and that it was, are known.
            let renew = "UPDATE jobs SET body = ?1, revision = revision + 1
                WHERE request_id = ?2 AND state = 'finished' AND ?3 = 'finished'";
            Ok(ledger.db.run(renew, params![&body[..], request_id, state.name()])? == 1)
        };
        self.run("update_job", Durability::Buffered, write).await
    }

    pub async fn find_job(&self, request_id: Arc<str>) -> Result<Option<Job>, Unavailable> {
        self.query("find_job", move |ledger| {
            Ok(jobs(ledger, "WHERE request_id = ?", &[&request_id])?.pop())
        })
        .await
    }

    pub async fn open_jobs(&self) -> Result<Vec<Job>, Unavailable> {
        self.execute("open_jobs", Durability::Buffered, |ledger| {
            jobs(ledger, "WHERE state = 'open' ORDER BY number", &[])
        })
        .await
    }

    /// Claims the open jobs that no server polls, for a while, and returns all that this one has
    /// claimed. The server that accepts a job polls it from the start.
    pub async fn claim_jobs(&self) -> Result<Vec<Job>, Unavailable> {
        let claim = |ledger: &Ledger| {
            let (me, now) = (ledger.server(), nanos(ledger.now()));
            let claim = "UPDATE jobs SET poller = ?1, polled_until = ?2 WHERE state = 'open'
                AND (poller = ?1 OR coalesce(polled_until, 0) < ?3)";
            ledger.db.run(claim, params![me, claimed_until(ledger), now])?;
            jobs(ledger, "WHERE state = 'open' AND poller = ? ORDER BY number", &[&me])
        };
        self.run("claim_jobs", Durability::Buffered, claim).await
    }

    /// Returns the statuses of these jobs that are newer than the revisions that the caller knows;
    /// 0 is none.
    pub async fn job_news(&self, known: Vec<(Arc<str>, u64)>) -> Result<Vec<JobNews>, Unavailable> {
        let find = "SELECT revision, status_at, body, state FROM jobs
            WHERE request_id = ? AND revision > ?";
        let news = move |db: &dyn Engine| {
            let mut news = Vec::new();
            for (request_id, seen) in &known {
                news.extend(db.first(find, params![request_id, seen], |row| {
                    let update = StatusUpdate {
                        at: column::moment(row, 1)?,
                        body: row.get::<Vec<u8>>(2)?.into(),
                        state: column::named(row, 3, &JobState::ALL, JobState::name)?,
                    };
                    let request_id = Arc::clone(request_id);
                    Ok(JobNews { request_id, revision: row.get(0)?, update })
                })?);
            }
            Ok(news)
        };
        self.run_report("job_news", news).await
    }

    /// Tells the server that polls an open job that someone watches it here, for this long.
    pub async fn watch_job(&self, request_id: Arc<str>, wait: Duration) -> Result<(), Unavailable> {
        let watch = move |ledger: &Ledger| {
            let until = nanos(ledger.now().saturating_add(wait));
            let watch = "UPDATE jobs SET watched_until = ? WHERE request_id = ? AND state = 'open'";
            ledger.db.run(watch, params![until, request_id])?;
            Ok(())
        };
        self.run("watch_job", Durability::Buffered, watch).await
    }

    /// Returns the open jobs that this server has claimed and others watch, or that others have
    /// claimed.
    pub async fn polled_jobs(&self) -> Result<PolledJobs, Unavailable> {
        let (me, now) = (self.server(), nanos(self.now()));
        let find = "SELECT request_id, poller = ?1 FROM jobs WHERE state = 'open'
            AND ((poller = ?1 AND watched_until > ?2) OR (poller <> ?1 AND polled_until > ?2))";
        let polled = move |db: &dyn Engine| {
            let mut jobs = PolledJobs::default();
            for (request_id, is_own) in
                db.all(find, params![me, now], |row| Ok((row.get(0)?, row.get(1)?)))?
            {
                let group = if is_own { &mut jobs.watched } else { &mut jobs.taken };
                group.push(request_id);
            }
            Ok(jobs)
        };
        self.run_report("polled_jobs", polled).await
    }

    pub async fn jobs_of(&self, owner: Arc<str>, most: usize) -> Result<Vec<Job>, Unavailable> {
        let which = "WHERE owner = ? ORDER BY number DESC LIMIT ?";
        let find = move |ledger: &Ledger| jobs(ledger, which, &[&owner, &column::signed(most)]);
        self.run("jobs_of", Durability::Buffered, find).await
    }

    pub async fn latest_jobs(&self, most: usize) -> Result<Vec<Job>, Unavailable> {
        let which = "ORDER BY number DESC LIMIT ?";
        self.query("latest_jobs", move |ledger| jobs(ledger, which, &[&column::signed(most)])).await
    }

    /// Returns how long the latest finished jobs of a model took.
    pub async fn job_durations(
        &self,
        model: Arc<str>,
        most: usize,
    ) -> Result<Vec<Duration>, Unavailable> {
        let find = move |ledger: &Ledger| {
            let latest = "SELECT at, status_at FROM jobs WHERE model = ? AND state = 'finished'
                ORDER BY status_at DESC, number DESC LIMIT ?";
            let took =
                |row: &Row<'_>| Ok(column::moment(row, 1)?.saturating_sub(column::moment(row, 0)?));
            ledger.db.all(latest, params![model, column::signed(most)], took)
        };
        // A job that is resumed at the start needs it.
        self.execute("job_durations", Durability::Buffered, find).await
    }
}

/// The server that accepts a job polls it.
pub(super) fn insert(ledger: &Ledger, job: &Job) -> Result<()> {
    let insert = "INSERT INTO jobs
        (request_id, owner, key, model, price_micros, at, purchase, prompt, poller, polled_until)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (request_id) DO NOTHING";
    let poller = ledger.server();
    let values = params![
        job.request_id,
        job.owner,
        job.key.map(|key| key.0),
        job.model,
        job.price.as_micros(),
        nanos(job.at),
        job.purchase.map(|id| id.0.into_bytes()),
        job.prompt,
        poller,
        poller.map(|_| claimed_until(ledger)),
    ];
    ledger.db.run(insert, values)?;
    Ok(())
}

fn claimed_until(ledger: &Ledger) -> i64 {
    nanos(ledger.now().saturating_add(CLAIM))
}

fn jobs(ledger: &Ledger, which: &str, values: &[&dyn ToSqlValue]) -> Result<Vec<Job>> {
    let query = format!(
        "SELECT request_id, owner, key, model, price_micros, at, status_at, body, state, purchase,
            prompt
         FROM jobs {which}"
    );
    ledger.db.all(&query, values, read)
}

fn read(row: &Row<'_>) -> Result<Job> {
    let body: Option<Vec<u8>> = row.get(7)?;
    let latest = match body {
        Some(body) => Some(StatusUpdate {
            at: column::moment(row, 6)?,
            body: body.into(),
            state: column::named(row, 8, &JobState::ALL, JobState::name)?,
        }),
        None => None,
    };
    Ok(Job {
        request_id: row.get(0)?,
        purchase: row.get::<Option<[u8; 16]>>(9)?.map(|id| PurchaseId(Uuid::from_bytes(id))),
        owner: row.get(1)?,
        key: row.get::<Option<[u8; 8]>>(2)?.map(KeyId),
        model: row.get(3)?,
        price: column::money(row, 4)?,
        at: column::moment(row, 5)?,
        prompt: row.get(10)?,
        latest_update: latest,
    })
}
