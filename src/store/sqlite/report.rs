//! What reports read of the purchases.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::column;
use super::handle::Store;
use crate::store::{PurchaseId, Row, Spending, Unavailable};

/// Reports. They group within the file: a month of chats is read, but not held.
impl Store {
    /// Purchases since a wall-clock time, oldest first.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn rows(&self, since: Duration) -> Result<Vec<Row>, Unavailable> {
        let since = column::nanos(since);
        let read =
            move |file: &Connection| purchases(file, "WHERE at >= ? ORDER BY at, number", since);
        self.report("rows", read).await
    }

    /// Purchases whose outcome nobody knows, the latest first, at most `most`.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn unknown(&self, most: usize) -> Result<Vec<Row>, Unavailable> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let which = "WHERE state = 'unknown' ORDER BY at DESC, number DESC LIMIT ?";
        self.report("unknown", move |file| purchases(file, which, most)).await
    }

    /// One purchase.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn purchase(&self, id: PurchaseId) -> Result<Option<Row>, Unavailable> {
        let query = format!("SELECT {COLUMNS} FROM purchases WHERE id = ?");
        let read =
            move |file: &Connection| file.query_row(&query, [id.0.as_bytes()], row).optional();
        self.report("purchase", read).await
    }

    /// What `caller`, or everybody, has spent by caller, UTC day, service and model since a wall-clock time,
    /// in this order, at most `most` rows; what was voided counts nothing.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn spending(
        &self,
        caller: Option<String>,
        since: Duration,
        most: usize,
    ) -> Result<Vec<Spending>, Unavailable> {
        self.report("spending", move |file| grouped(file, caller.as_deref(), since, most)).await
    }
}

fn grouped(
    connection: &Connection,
    caller: Option<&str>,
    since: Duration,
    most: usize,
) -> rusqlite::Result<Vec<Spending>> {
    let mut find = connection.prepare(
        "SELECT caller, day, service, model, count(*),
                coalesce(sum(cost_micros), 0),
                sum(iif(state = 'unknown', toll_micros, 0)),
                sum(iif(state IN ('reserved', 'sent'), toll_micros, 0))
         FROM purchases WHERE at >= ?1 AND state <> 'voided' AND (?2 IS NULL OR caller = ?2)
         GROUP BY caller, day, service, model ORDER BY caller, day, service, model
         LIMIT ?3",
    )?;
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let groups = find.query_map(params![column::nanos(since), caller, most], |row| {
        Ok(Spending {
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

fn purchases(connection: &Connection, which: &str, value: i64) -> rusqlite::Result<Vec<Row>> {
    let mut find =
        connection.prepare_cached(&format!("SELECT {COLUMNS} FROM purchases {which}"))?;
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
