//! The jobs in the ledger.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::Result;
use super::column::{self, nanos};
use super::command::Durability;
use super::handle::SqliteStore;
use super::ledger::Ledger;
use super::outbox;
use crate::store::engine::{Engine, Row, Sql, ToSqlValue, params};
use crate::store::{Job, JobState, KeyId, PurchaseId, StatusUpdate, Unavailable};

impl SqliteStore {
    pub(in crate::store) async fn insert_job(&self, job: &Job) -> Result<(), Unavailable> {
        let job = job.clone();
        let write = move |ledger: &Ledger| insert(&*ledger.db, &job);
        self.run(Durability::Synced, write).await
    }

    pub(in crate::store) async fn update_job(
        &self,
        request_id: Arc<str>,
        update: StatusUpdate,
    ) -> Result<(), Unavailable> {
        self.write_update(request_id, update).await.map(drop)
    }

    pub(in crate::store) async fn end_job(
        &self,
        job: &Job,
        update: StatusUpdate,
    ) -> Result<(), Unavailable> {
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
            let write = "UPDATE jobs SET status_at = ?1, body = ?2, state = ?3
                WHERE request_id = ?4
                    AND (state = 'open' OR (state = 'failed' AND ?3 = 'finished'))";
            let StatusUpdate { at, body, state } = &update;
            let values = params![nanos(*at), &body[..], state.name(), request_id];
            if ledger.db.run(write, values)? == 1 {
                outbox::write_job(&*ledger.db, &request_id, *state, ledger.now())?;
                return Ok(true);
            }
            // A newer address of the result. When it was finished, and that it was, are known.
            let renew = "UPDATE jobs SET body = ?1
                WHERE request_id = ?2 AND state = 'finished' AND ?3 = 'finished'";
            Ok(ledger.db.run(renew, params![&body[..], request_id, state.name()])? == 1)
        };
        self.run(Durability::Buffered, write).await
    }

    pub(in crate::store) async fn find_job(
        &self,
        request_id: Arc<str>,
    ) -> Result<Option<Job>, Unavailable> {
        self.query(move |ledger| Ok(jobs(ledger, "WHERE request_id = ?", &[&request_id])?.pop()))
            .await
    }

    pub(in crate::store) async fn open_jobs(&self) -> Result<Vec<Job>, Unavailable> {
        self.run_while_starting(Durability::Buffered, |ledger| {
            jobs(ledger, "WHERE state = 'open' ORDER BY number", &[])
        })
        .await
    }

    pub(in crate::store) async fn jobs_of(
        &self,
        owner: Arc<str>,
        most: usize,
    ) -> Result<Vec<Job>, Unavailable> {
        let which = "WHERE owner = ? ORDER BY number DESC LIMIT ?";
        let find = move |ledger: &Ledger| jobs(ledger, which, &[&owner, &column::signed(most)]);
        self.run(Durability::Buffered, find).await
    }

    pub(in crate::store) async fn latest_jobs(&self, most: usize) -> Result<Vec<Job>, Unavailable> {
        let which = "ORDER BY number DESC LIMIT ?";
        self.query(move |ledger| jobs(ledger, which, &[&column::signed(most)])).await
    }

    pub(in crate::store) async fn job_durations(
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
        self.run_while_starting(Durability::Buffered, find).await
    }
}

pub(super) fn insert(db: &dyn Engine, job: &Job) -> Result<()> {
    let insert = "INSERT INTO jobs
        (request_id, owner, key, model, price_micros, at, purchase, prompt)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (request_id) DO NOTHING";
    let values = params![
        job.request_id,
        job.owner,
        job.key.map(|key| key.0),
        job.model,
        job.price.as_micros(),
        nanos(job.at),
        job.purchase.map(|id| id.0.into_bytes()),
        job.prompt,
    ];
    db.run(insert, values)?;
    Ok(())
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
