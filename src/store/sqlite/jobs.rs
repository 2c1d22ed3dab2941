//! The jobs in the ledger's file: as steps inside a transaction that somebody else commits.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use uuid::Uuid;

use super::StoreError;
use super::column::{self, nanos};
use super::handle::{Store, StoreOp};
use super::ledger::Ledger;
use super::writer::Durability;
use crate::store::{Job, JobState, KeyId, PurchaseId, StatusUpdate, Unavailable};

impl Store {
    /// Notes a job without its purchase; on return, a power cut does not forget it. One that is known
    /// stays as it is, and a word comes by [`update_job`](Self::heard) alone.
    pub async fn insert_job(&self, job: &Job) -> Result<(), Unavailable> {
        let job = job.clone();
        let accept = move |books: &Ledger| insert(&books.connection, &job);
        self.run(StoreOp::Other("accept"), Durability::Synced, accept).await
    }

    /// The gateway's latest word on a job. On one that has ended, or is not known, it changes nothing.
    pub async fn update_job(
        &self,
        request_id: Arc<str>,
        word: StatusUpdate,
    ) -> Result<(), Unavailable> {
        // What a power cut forgets is asked for again.
        let heard = move |books: &Ledger| update(&books.connection, &request_id, &word);
        self.run(StoreOp::Other("heard"), Durability::Buffered, heard).await
    }

    pub async fn find_job(&self, request_id: Arc<str>) -> Result<Option<Job>, Unavailable> {
        let find = move |books: &Ledger| job(&books.connection, &request_id);
        self.run(StoreOp::Other("job"), Durability::Buffered, find).await
    }

    pub async fn open_jobs(&self) -> Result<Vec<Job>, Unavailable> {
        self.run_while_starting("open_jobs", Durability::Buffered, |books| open(&books.connection))
            .await
    }

    pub async fn jobs_of(&self, owner: Arc<str>, most: usize) -> Result<Vec<Job>, Unavailable> {
        let find = move |books: &Ledger| of(&books.connection, &owner, most);
        self.run(StoreOp::Other("jobs_of"), Durability::Buffered, find).await
    }

    pub async fn latest_jobs(&self, most: usize) -> Result<Vec<Job>, Unavailable> {
        let find = move |books: &Ledger| latest(&books.connection, most);
        self.run(StoreOp::Other("latest_jobs"), Durability::Buffered, find).await
    }

    pub async fn job_durations(
        &self,
        model: Arc<str>,
        most: usize,
    ) -> Result<Vec<Duration>, Unavailable> {
        // A job that is picked up at the start asks it once.
        let find = move |books: &Ledger| durations(&books.connection, &model, most);
        self.run_while_starting("times", Durability::Buffered, find).await
    }
}

pub(super) fn insert(connection: &Connection, job: &Job) -> Result<(), StoreError> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO jobs (request_id, owner, key, model, price_micros, at, purchase)
         VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (request_id) DO NOTHING",
    )?;
    insert.execute(params![
        job.request_id,
        job.owner,
        job.key.map(|key| key.0),
        job.model,
        job.price.as_micros(),
        nanos(job.at),
        job.purchase.map(|id| id.0.into_bytes()),
    ])?;
    Ok(())
}

fn update(
    connection: &Connection,
    request_id: &str,
    word: &StatusUpdate,
) -> Result<(), StoreError> {
    let mut note = connection.prepare_cached(
        "UPDATE jobs SET heard_at = ?, body = ?, state = ? WHERE request_id = ? AND state = 'open'",
    )?;
    note.execute(params![nanos(word.at), &word.body[..], word.state.name(), request_id])?;
    Ok(())
}

fn job(connection: &Connection, request_id: &str) -> Result<Option<Job>, StoreError> {
    let mut find = connection.prepare_cached(&select("WHERE request_id = ?"))?;
    Ok(find.query_row([request_id], read).optional()?)
}

fn open(connection: &Connection) -> Result<Vec<Job>, StoreError> {
    all(connection, &select("WHERE state = 'open' ORDER BY number"), &[])
}

fn of(connection: &Connection, owner: &str, most: usize) -> Result<Vec<Job>, StoreError> {
    let latest = select("WHERE owner = ? ORDER BY number DESC LIMIT ?");
    all(connection, &latest, &[&owner, &column::count(most)])
}

fn latest(connection: &Connection, most: usize) -> Result<Vec<Job>, StoreError> {
    all(connection, &select("ORDER BY number DESC LIMIT ?"), &[&column::count(most)])
}

fn durations(
    connection: &Connection,
    model: &str,
    most: usize,
) -> Result<Vec<Duration>, StoreError> {
    let mut find = connection.prepare_cached(
        "SELECT at, heard_at FROM jobs WHERE model = ? AND state = 'finished'
         ORDER BY heard_at DESC, number DESC LIMIT ?",
    )?;
    let times = find.query_map(params![model, column::count(most)], |row| {
        Ok(column::moment(row, 1)?.saturating_sub(column::moment(row, 0)?))
    })?;
    Ok(times.collect::<rusqlite::Result<_>>()?)
}

fn select(which: &str) -> String {
    format!(
        "SELECT request_id, owner, key, model, price_micros, at, heard_at, body, state, purchase
         FROM jobs {which}"
    )
}

fn all(
    connection: &Connection,
    query: &str,
    values: &[&dyn ToSql],
) -> Result<Vec<Job>, StoreError> {
    let mut find = connection.prepare_cached(query)?;
    Ok(find.query_map(values, read)?.collect::<rusqlite::Result<_>>()?)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Job> {
    let text = |column| Ok::<Arc<str>, rusqlite::Error>(row.get_ref(column)?.as_str()?.into());
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
        request_id: text(0)?,
        purchase: row.get::<_, Option<[u8; 16]>>(9)?.map(|id| PurchaseId(Uuid::from_bytes(id))),
        owner: text(1)?,
        key: row.get::<_, Option<[u8; 8]>>(2)?.map(KeyId),
        model: text(3)?,
        price: column::money(row, 4)?,
        at: column::moment(row, 5)?,
        latest_update: latest,
    })
}
