//! Reads purchases for reports on a thread of its own, so that no sale waits for it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};

use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;

use super::column;
use super::open::{self, Purpose};
use crate::store::{Answer, CallerSpending, PurchaseId, Room, Row, Spending, Unavailable};

pub(super) fn rows(
    reader: &Reader,
    since: Duration,
) -> Answer<'static, Result<Vec<Row>, Unavailable>> {
    reader.read(move |connection| all(connection, since))
}

/// Groups within the file: a month of chats is read, but not held.
pub(super) fn spending(
    reader: &Reader,
    caller: String,
    since: Duration,
) -> Answer<'static, Result<Vec<Spending>, Unavailable>> {
    reader.read(move |connection| grouped(connection, &caller, since))
}

/// The same, of everybody.
pub(super) fn spending_of_all(
    reader: &Reader,
    since: Duration,
    most: usize,
) -> Answer<'static, Result<Vec<CallerSpending>, Unavailable>> {
    reader.read(move |connection| grouped_by_caller(connection, since, most))
}

/// Those of which nobody knows, the latest first.
pub(super) fn unknown(
    reader: &Reader,
    most: usize,
) -> Answer<'static, Result<Vec<Row>, Unavailable>> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    reader.read(move |connection| {
        purchases(connection, "WHERE state = 'unknown' ORDER BY at DESC, number DESC LIMIT ?", most)
    })
}

/// How many steps of SQLite's machine pass before a query looks whether anybody still waits for it.
const STEPS_PER_LOOK: i32 = 10_000;

type Query = Box<dyn FnOnce(&Path) + Send>;

/// Reads reports, one after another. Dropping it ends the one that is being read.
pub(super) struct Reader {
    queue: Option<mpsc::Sender<Query>>,
    thread: Option<thread::JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Reader {
    /// Starts a thread for the reports on the ledger at `path`.
    pub(super) fn start(path: PathBuf) -> io::Result<Self> {
        let (queue, queued) = mpsc::channel::<Query>();
        let work = move || queued.iter().for_each(|query| query(&path));
        let thread = thread::Builder::new().name("report".to_owned()).spawn(work)?;
        Ok(Self { queue: Some(queue), thread: Some(thread), is_over: Arc::default() })
    }

    /// A query whose answer nobody waits for any more is not begun, and is ended where it has begun.
    pub(super) fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<'static, Result<T, Unavailable>> {
        let (answer, answered) = oneshot::channel();
        let (answer, is_over) = (Arc::new(answer), Arc::clone(&self.is_over));
        let work = move |path: &Path| {
            let waits = Arc::clone(&answer);
            let is_in_vain = move || waits.is_closed() || is_over.load(Ordering::Relaxed);
            if is_in_vain() {
                return;
            }
            let report = opened(path, is_in_vain, query);
            // The file is closed by now, and with it the other hold on the answer is gone.
            if let Some(answer) = Arc::into_inner(answer) {
                let _ = answer.send(report);
            }
        };
        if let Some(queue) = &self.queue {
            let _ = queue.send(Box::new(work));
        }
        Box::pin(async move {
            answered.await.unwrap_or_else(|_| Err(Unavailable("the report broke".into())))
        })
    }
}

impl Reader {
    /// Ends the report that is being read, and reads no other.
    pub(super) fn end(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.end();
    }
}

/// Each report has a connection of its own: between two, no file is held open.
fn opened<T>(
    path: &Path,
    is_in_vain: impl FnMut() -> bool + Send + 'static,
    query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> Result<T, Unavailable> {
    let mut connection = open::open(path, Purpose::Read, Room::default())
        .map_err(|error| Unavailable(error.to_string().into()))?;
    let report = connection
        .progress_handler(STEPS_PER_LOOK, Some(is_in_vain))
        .and_then(|()| query(&connection));
    report.map_err(|error| Unavailable(error.to_string().into()))
}

fn grouped(
    connection: &Connection,
    caller: &str,
    since: Duration,
) -> rusqlite::Result<Vec<Spending>> {
    let mut find = connection.prepare(
        "SELECT day, service, model, count(*), sum(coalesce(cost_micros, toll_micros))
         FROM purchases WHERE at >= ? AND caller = ? AND state <> 'voided'
         GROUP BY day, service, model ORDER BY day, service, model",
    )?;
    let groups = find.query_map(params![column::nanos(since), caller], |row| {
        Ok(Spending {
            day: row.get(0)?,
            service: column::service(row, 1)?,
            model: model(row, 2)?,
            count: row.get(3)?,
            spent: column::money(row, 4)?,
        })
    })?;
    groups.collect()
}

fn grouped_by_caller(
    connection: &Connection,
    since: Duration,
    most: usize,
) -> rusqlite::Result<Vec<CallerSpending>> {
    let mut find = connection.prepare(
        "SELECT caller, day, service, model, count(*),
                coalesce(sum(cost_micros), 0),
                sum(iif(state = 'unknown', toll_micros, 0)),
                sum(iif(state IN ('reserved', 'sent'), toll_micros, 0))
         FROM purchases WHERE at >= ? AND state <> 'voided'
         GROUP BY caller, day, service, model ORDER BY caller, day, service, model
         LIMIT ?",
    )?;
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let groups = find.query_map(params![column::nanos(since), most], |row| {
        Ok(CallerSpending {
            caller: row.get(0)?,
            day: row.get(1)?,
            service: column::service(row, 2)?,
            model: model(row, 3)?,
            count: row.get(4)?,
            settled: column::money(row, 5)?,
            unknown: column::money(row, 6)?,
            held: column::money(row, 7)?,
        })
    })?;
    groups.collect()
}

fn all(connection: &Connection, since: Duration) -> rusqlite::Result<Vec<Row>> {
    purchases(connection, "WHERE at >= ? ORDER BY at, number", column::nanos(since))
}

pub(super) fn purchase(connection: &Connection, id: PurchaseId) -> rusqlite::Result<Option<Row>> {
    let query = format!("SELECT {COLUMNS} FROM purchases WHERE id = ?");
    connection.query_row(&query, [id.0.as_bytes()], row).optional()
}

fn purchases(connection: &Connection, which: &str, value: i64) -> rusqlite::Result<Vec<Row>> {
    let mut find = connection.prepare(&format!("SELECT {COLUMNS} FROM purchases {which}"))?;
    find.query_map([value], row)?.collect()
}

/// What [`row`] reads.
const COLUMNS: &str =
    "id, at, caller, service, model, coalesce(cost_micros, toll_micros), state, ended_at";

pub(super) fn row(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    let ended: Option<u64> = row.get(7)?;
    Ok(Row {
        id: column::id(row, 0)?,
        at: column::moment(row, 1)?,
        ended: ended.map(Duration::from_nanos),
        caller: row.get(2)?,
        service: column::service(row, 3)?,
        model: model(row, 4)?,
        toll: column::money(row, 5)?,
        state: column::state(row, 6)?,
    })
}

/// A name that was damaged is no reason to show no money.
fn model(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<String> {
    Ok(String::from_utf8_lossy(row.get_ref(column)?.as_bytes()?).into_owned())
}

#[cfg(test)]
mod tests;
