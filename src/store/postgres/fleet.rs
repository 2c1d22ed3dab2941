//! What the instances of a shared ledger do together: who polls a job, and who hears of it.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;

use super::column::{self, Read, nanos, signed};
use super::handle::PostgresStore;
use super::jobs::{read_job, select_jobs};
use super::step::{Need, Step, statement};
use crate::store::{Digest, Job, JobState, StatusUpdate, Unavailable};
use crate::sync::lock;

/// Jobs without a living poller. A server takes its share, so that others get theirs; what they leave,
/// it takes at its next call. Returns its own, too: if the database failed meanwhile, their pollers may
/// have ended.
const CLAIM: &str = concat!(
    "WITH share AS MATERIALIZED (
  SELECT ceil(count(*)::numeric / greatest(1, (
    SELECT count(*) FROM instances WHERE ended IS NULL AND kind = 'server')))::bigint AS most
  FROM jobs WHERE state = 'open' AND NOT EXISTS (
    SELECT 1 FROM instances WHERE instances.id = jobs.poller AND ended IS NULL)
), claimed AS (
  UPDATE jobs SET poller = $1 WHERE number IN (
    SELECT number FROM jobs WHERE state = 'open' AND NOT EXISTS (
      SELECT 1 FROM instances WHERE instances.id = jobs.poller AND ended IS NULL)
    ORDER BY number LIMIT (SELECT most FROM share) FOR UPDATE OF jobs SKIP LOCKED)
  RETURNING jobs.*
), mine AS (
  SELECT * FROM claimed UNION ALL SELECT * FROM jobs WHERE state = 'open' AND poller = $1
) ",
    select_jobs!("mine ORDER BY number")
);
const NEWS: &str = "SELECT request_id, revision, status_at, body, state
    FROM jobs JOIN unnest($1::text[], $2::bigint[]) AS known(id, seen) ON request_id = known.id
    WHERE revision > known.seen";
const WATCH: &str = "UPDATE jobs SET wanted_until = {now} + $2::bigint
    WHERE request_id = $1 AND state = 'open'";
const POLLED: &str = "SELECT request_id, poller = $1 FROM jobs
    WHERE state = 'open' AND request_id = ANY($2)
        AND ((poller = $1 AND wanted_until > {now})
            OR EXISTS (SELECT 1 FROM instances WHERE id = poller AND id <> $1 AND ended IS NULL))
    ORDER BY number";

/// The instances that share a ledger, as one of them sees them.
#[derive(Clone, Debug)]
pub struct Fleet(pub(super) PostgresStore);

/// A status that some instance has recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobNews {
    pub request_id: Arc<str>,
    /// Goes up with each status of the job.
    pub revision: u64,
    pub update: StatusUpdate,
}

/// What the ledger says of the jobs that an instance polls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolledJobs {
    /// Someone watches these at another instance.
    pub watched: Vec<Arc<str>>,
    /// Another instance polls these: it has declared this one dead.
    pub taken: Vec<Arc<str>>,
}

impl Fleet {
    pub(in crate::store) fn new(store: PostgresStore) -> Self {
        Self(store)
    }

    /// Has the next heartbeats tell others what budgets and limits this server goes by.
    pub fn set_rules(&self, fingerprint: Digest) {
        *lock(&self.0.shared().rules) = Some(fingerprint);
    }

    /// Takes over this server's share of the open jobs that no living instance polls, oldest first.
    ///
    /// The instance that accepts a job polls it from the start.
    pub async fn claim_jobs(&self) -> Result<Vec<Job>, Unavailable> {
        let me = self.0.shared().number();
        let claim = Step::plain(statement!(CLAIM, me)).guarded(me);
        let rows = self.0.run(&self.0.lanes().marks, claim).await?;
        rows.iter().flatten().map(read_job).collect()
    }

    /// Returns the statuses of these jobs that are newer than the revisions that the caller knows;
    /// 0 is none.
    pub async fn job_news(&self, known: &[(Arc<str>, u64)]) -> Result<Vec<JobNews>, Unavailable> {
        let ids: Vec<_> = known.iter().map(|(id, _)| id.to_string()).collect();
        let revisions: Vec<_> = known.iter().map(|(_, revision)| signed(*revision)).collect();
        let ask = Step::new(Need::Plain, vec![statement!(NEWS, ids, revisions)]);
        let rows = self.0.run(&self.0.lanes().reads, ask).await?;
        rows.iter().flatten().map(read_news).collect()
    }

    /// Tells the poller of an open job that someone watches it here, for this long.
    pub async fn watch_job(&self, request_id: Arc<str>, wait: Duration) -> Result<(), Unavailable> {
        let watch = Step::plain(statement!(WATCH, request_id.to_string(), nanos(wait)));
        self.0.run(&self.0.lanes().marks, watch).await.map(drop)
    }

    /// Returns those of the jobs that this instance polls which others watch, or poll.
    pub async fn polled_jobs(&self, polled: Vec<String>) -> Result<PolledJobs, Unavailable> {
        let ask = Step::plain(statement!(POLLED, self.0.shared().number(), polled));
        let rows = self.0.run(&self.0.lanes().reads, ask).await?;
        let mut jobs = PolledJobs::default();
        for row in rows.iter().flatten() {
            let is_own = column::get(row, 1)?;
            let group = if is_own { &mut jobs.watched } else { &mut jobs.taken };
            group.push(column::text(row, 0)?);
        }
        Ok(jobs)
    }
}

fn read_news(row: &Row) -> Read<JobNews> {
    let update = StatusUpdate {
        at: column::moment(row, 2)?,
        body: column::get::<Vec<u8>>(row, 3)?.into(),
        state: column::named(row, 4, &JobState::ALL, JobState::name)?,
    };
    Ok(JobNews { request_id: column::text(row, 0)?, revision: column::count(row, 1)?, update })
}
