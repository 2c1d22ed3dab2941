//! Reads purchases for reports on a thread and a connection of its own, so that no sale waits for it.

use std::path::Path;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::params;
use tokio::sync::oneshot;

use super::column;
use super::open;
use super::open::Purpose;
use crate::store::Answer;
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

fn read<T: Send + 'static>(
    path: PathBuf,
    query: impl FnOnce(&Connection) -> rusqlite::Result<Vec<T>> + Send + 'static,
) -> Answer<'static, Result<Vec<T>, Unavailable>> {
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
    query: impl FnOnce(&Connection) -> rusqlite::Result<Vec<T>>,
) -> Result<Vec<T>, Unavailable> {
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
            model: String::from_utf8_lossy(row.get_ref(2)?.as_bytes()?).into_owned(),
            count: row.get(3)?,
            spent: column::money(row, 4)?,
        })
    })?;
    groups.collect()
}

fn all(connection: &Connection, since: Duration) -> rusqlite::Result<Vec<Row>> {
    let mut find = connection.prepare(
        "SELECT id, at, caller, service, model, coalesce(cost_micros, toll_micros), state
             FROM purchases WHERE at >= ? ORDER BY at, number",
    )?;
    let rows = find.query_map([column::nanos(since)], |row| {
        Ok(Row {
            id: column::id(row, 0)?,
            at: column::moment(row, 1)?,
            caller: row.get(2)?,
            service: column::service(row, 3)?,
            // A name that was damaged is no reason to show no money.
            model: String::from_utf8_lossy(row.get_ref(4)?.as_bytes()?).into_owned(),
            toll: column::money(row, 5)?,
            state: column::state(row, 6)?,
        })
    })?;
    rows.collect()
}
