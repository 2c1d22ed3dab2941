//! Lists the instances of a shared ledger, for operators.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::PostgresTarget;
use super::clock::LedgerClock;
use super::column;
use super::connect::connect;
use super::flush::PreparedConnection;
use super::handle::PostgresStore;
use super::schema;
use super::step::statement;
use crate::store::{InstanceCounts, Reason, Unavailable};

/// The living, and those that ended within a day.
const LIST: &str = "
WITH t AS MATERIALIZED (
  SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000 AS clock
)
SELECT id, kind, name, pid, began, ended, until < t.clock AS is_late
FROM instances, t WHERE ended IS NULL OR ended > t.clock - 86400000000000
ORDER BY id";

const COUNTS: &str = "
SELECT count(*) FILTER (WHERE until >= {clock}), count(*) FILTER (WHERE until < {clock})
FROM instances WHERE ended IS NULL AND kind = 'server'";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceState {
    Alive,
    /// It has not beaten for its whole lease. Others end it soon.
    Late,
    Ended(Duration),
}

/// A process that has, or had, the ledger open.
#[derive(Clone, Debug)]
pub struct InstanceRecord {
    /// It is never used again.
    pub id: i64,
    /// `server` or `command`.
    pub kind: String,
    pub name: String,
    pub process: i64,
    /// By the database's clock.
    pub began: Duration,
    pub state: InstanceState,
}

/// Returns the instances, oldest first.
pub async fn list_instances(target: &PostgresTarget) -> Result<Vec<InstanceRecord>, Reason> {
    let connection = connect(target).await?;
    let rows = match connection.client.query(LIST, &[]).await {
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => {
            return Err(
                "there are no tables: start a server, or run `tollgate store migrate`".into()
            );
        }
        rows => rows?,
    };
    connection.close().await;
    Ok(rows.iter().map(read).collect::<Result<_, _>>()?)
}

/// Refuses programs that know only earlier versions of the tables. Fails while one of them lives.
pub async fn contract(target: &PostgresTarget) -> Result<(), Reason> {
    let clock = Arc::new(LedgerClock::new(None));
    let session = PreparedConnection::new(connect(target).await?, clock);
    schema::contract(&session).await?;
    session.close().await;
    Ok(())
}

impl PostgresStore {
    pub(in crate::store) async fn instance_counts(&self) -> Result<InstanceCounts, Unavailable> {
        let counts = self.query_one(&self.lanes().reports, statement!(COUNTS), |row| {
            Ok(InstanceCounts { alive: column::count(row, 0)?, late: column::count(row, 1)? })
        });
        Ok(counts.await?.unwrap_or_default())
    }
}

fn read(row: &Row) -> Result<InstanceRecord, tokio_postgres::Error> {
    let moment = |nanos: i64| Duration::from_nanos(nanos.unsigned_abs());
    let ended: Option<i64> = row.try_get("ended")?;
    let state = match (ended, row.try_get("is_late")?) {
        (Some(ended), _) => InstanceState::Ended(moment(ended)),
        (None, true) => InstanceState::Late,
        (None, false) => InstanceState::Alive,
    };
    Ok(InstanceRecord {
        id: row.try_get("id")?,
        kind: row.try_get("kind")?,
        name: row.try_get("name")?,
        process: row.try_get("pid")?,
        began: moment(row.try_get("began")?),
        state,
    })
}
