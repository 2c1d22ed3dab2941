//! Reads purchases for reports on a thread and a connection of its own, so that no sale waits for it.

use std::path::Path;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

use super::column;
use super::open;
use super::open::Purpose;
use crate::store::Answer;
use crate::store::Room;
use crate::store::Row;
use crate::store::Unavailable;

pub(super) fn rows(
    path: PathBuf,
    since: Duration,
) -> Answer<'static, Result<Vec<Row>, Unavailable>> {
    let (answer, answered) = oneshot::channel();
    let work = move || answer.send(read(&path, since));
    let started = thread::Builder::new().name("report".to_owned()).spawn(work);
    Box::pin(async move {
        started.map_err(|error| Unavailable(error.to_string().into()))?;
        answered.await.unwrap_or_else(|_| Err(Unavailable("the report broke".into())))
    })
}

fn read(path: &Path, since: Duration) -> Result<Vec<Row>, Unavailable> {
    let connection = open::open(path, Purpose::Read, Room::default())
        .map_err(|error| Unavailable(error.to_string().into()))?;
    let all = || {
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
        rows.collect::<rusqlite::Result<Vec<_>>>()
    };
    all().map_err(|error| Unavailable(error.to_string().into()))
}
