//! Reads purchases for reports on a thread and a connection of its own, so that no sale waits for it.

use std::path::Path;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::OptionalExtension;
use rusqlite::params;
use tokio::sync::oneshot;

use super::column;
use super::open;
use super::open::Purpose;
use crate::store::Answer;
use crate::store::CallerSpending;
use crate::store::PurchaseId;
use crate::store::Room;
use crate::store::Row;
use crate::store::Spending;
use crate::store::Unavailable;

pub(super) fn rows(
    path: PathBuf,
    since: Duration,
) -> Answer<'static, Result<Vec<Row>, Unavailable>> {
    read(path, move |connection| all(connection, since))
}

/// Groups within the file: a month of chats is read, but not held.
pub(super) fn spending(
    path: PathBuf,
    caller: String,
    since: Duration,
) -> Answer<'static, Result<Vec<Spending>, Unavailable>> {
    read(path, move |connection| grouped(connection, &caller, since))
}

/// The same, of everybody.
pub(super) fn spending_of_all(
    path: PathBuf,
    since: Duration,
    most: usize,
) -> Answer<'static, Result<Vec<CallerSpending>, Unavailable>> {
    read(path, move |connection| grouped_by_caller(connection, since, most))
}

/// Those of which nobody knows, the latest first.
pub(super) fn unknown(
    path: PathBuf,
    most: usize,
) -> Answer<'static, Result<Vec<Row>, Unavailable>> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    read(path, move |connection| {
        purchases(connection, "WHERE state = 'unknown' ORDER BY at DESC, number DESC LIMIT ?", most)
    })
}

pub(super) fn read<T: Send + 'static>(
    path: PathBuf,
    query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
) -> Answer<'static, Result<T, Unavailable>> {
    let (answer, answered) = oneshot::channel();
    let work = move || answer.send(opened(&path, query));
    let started = thread::Builder::new().name("report".to_owned()).spawn(work);
    Box::pin(async move {
        started.map_err(|error| Unavailable(error.to_string().into()))?;
        answered.await.unwrap_or_else(|_| Err(Unavailable("the report broke".into())))
    })
}

fn opened<T>(
    path: &Path,
    query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> Result<T, Unavailable> {
    let connection = open::open(path, Purpose::Read, Room::default())
        .map_err(|error| Unavailable(error.to_string().into()))?;
    query(&connection).map_err(|error| Unavailable(error.to_string().into()))
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
