//! The jobs in the ledger.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;

use super::column::{self, Read, signed};
use super::handle::PostgresStore;
use super::step::{Need, Statement, Step, statement};
use super::{events, settle};
use crate::store::{Job, JobState, KeyId, PurchaseId, StatusUpdate, Unavailable};

/// Selects the columns that [`read_job`] reads.
macro_rules! select_jobs {
    ($from:literal) => {
        concat!(
            "SELECT request_id, owner, key, model, price_micros, at, status_at, body, state,
                purchase, prompt FROM ",
            $from
        )
    };
}
pub(super) use select_jobs;

const DURATIONS: &str = "SELECT at, status_at FROM jobs WHERE model = $1 AND state = 'finished'
    ORDER BY status_at DESC, number DESC LIMIT $2";

impl PostgresStore {
    pub(in crate::store) async fn insert_job(&self, job: &Job) -> Result<(), Unavailable> {
        let insert = settle::job_insertion(job, self.shared().number());
        self.write_job(insert).await
    }

    pub(in crate::store) async fn update_job(
        &self,
        request_id: Arc<str>,
        update: StatusUpdate,
    ) -> Result<(), Unavailable> {
        self.write_job(events::job_update(&request_id, update)).await
    }

    pub(in crate::store) async fn end_job(
        &self,
        job: &Job,
        update: StatusUpdate,
    ) -> Result<(), Unavailable> {
        self.insert_job(job).await?;
        self.update_job(Arc::clone(&job.request_id), update).await
    }

    /// Writes after the settlements that were asked for before, which record jobs, too.
    async fn write_job(&self, statement: Statement) -> Result<(), Unavailable> {
        // If they cannot be written now, they are retried, and the poller asks the gateway again.
        self.run(&self.lanes().sales, Step::new(Need::Plain, Vec::new())).await.ok();
        self.run(&self.lanes().marks, Step::plain(statement)).await.map(drop)
    }

    pub(in crate::store) async fn find_job(
        &self,
        request_id: Arc<str>,
    ) -> Result<Option<Job>, Unavailable> {
        const FIND: &str = select_jobs!("jobs WHERE request_id = $1");
        self.query_one(&self.lanes().reads, statement!(FIND, request_id.to_string()), read_job)
            .await
    }

    /// Returns those of all instances; see [`Fleet::claim_jobs`](super::Fleet::claim_jobs).
    pub(in crate::store) async fn open_jobs(&self) -> Result<Vec<Job>, Unavailable> {
        const OPEN: &str = select_jobs!("jobs WHERE state = 'open' ORDER BY number");
        self.query(&self.lanes().reads, statement!(OPEN), read_job).await
    }

    pub(in crate::store) async fn jobs_of(
        &self,
        owner: Arc<str>,
        most: usize,
    ) -> Result<Vec<Job>, Unavailable> {
        const OWN: &str = select_jobs!("jobs WHERE owner = $1 ORDER BY number DESC LIMIT $2");
        let find = statement!(OWN, owner.to_string(), signed(most));
        self.query(&self.lanes().reads, find, read_job).await
    }

    pub(in crate::store) async fn latest_jobs(&self, most: usize) -> Result<Vec<Job>, Unavailable> {
        const LATEST: &str = select_jobs!("jobs ORDER BY number DESC LIMIT $1");
        self.query(&self.lanes().reports, statement!(LATEST, signed(most)), read_job).await
    }

    pub(in crate::store) async fn job_durations(
        &self,
        model: Arc<str>,
        most: usize,
    ) -> Result<Vec<Duration>, Unavailable> {
        let find = statement!(DURATIONS, model.to_string(), signed(most));
        self.query(&self.lanes().reads, find, |row| {
            Ok(column::moment(row, 1)?.saturating_sub(column::moment(row, 0)?))
        })
        .await
    }
}

pub(super) fn read_job(row: &Row) -> Read<Job> {
    let damaged = |_| Unavailable("a job in the ledger cannot be read".into());
    let key = column::get::<Option<&[u8]>>(row, 2)?;
    let prompt = column::get::<Option<Vec<u8>>>(row, 10)?;
    let prompt = prompt.map(String::from_utf8).transpose().map_err(|_| damaged(()))?;
    let latest_update = match column::get::<Option<Vec<u8>>>(row, 7)? {
        Some(body) => Some(StatusUpdate {
            at: column::moment(row, 6)?,
            body: body.into(),
            state: column::named(row, 8, &JobState::ALL, JobState::name)?,
        }),
        None => None,
    };
    Ok(Job {
        request_id: column::text(row, 0)?,
        purchase: column::get::<Option<uuid::Uuid>>(row, 9)?.map(PurchaseId),
        owner: column::text(row, 1)?,
        key: key.map(|key| key.try_into().map(KeyId).map_err(|_| damaged(()))).transpose()?,
        model: column::text(row, 3)?,
        price: column::money(row, 4)?,
        at: column::moment(row, 5)?,
        prompt: prompt.map(Into::into),
        latest_update,
    })
}
