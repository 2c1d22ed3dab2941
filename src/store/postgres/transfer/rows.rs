//! Reads the tables of a database, their rows in the order of their key.

use std::sync::Arc;

use tokio_postgres::{Client, Row};

use crate::store::postgres::PostgresTarget;
use crate::store::postgres::clock::LedgerClock;
use crate::store::postgres::connect::connect;
use crate::store::postgres::flush::PreparedConnection;
use crate::store::postgres::schema;
use crate::store::transfer::cell::{Cell, CellKind, CellRow};
use crate::store::transfer::side::Batch;
use crate::store::transfer::tables::{Key, Schema, SchemaColumn, TablePlan};
use crate::store::{Cause, Reason};

const COLUMNS: &str = "SELECT tables.relname::text, attname::text, atttypid::regtype::text
    FROM pg_class AS tables JOIN pg_attribute ON attrelid = tables.oid
    WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p')
        AND attnum > 0 AND NOT attisdropped
    ORDER BY 1, attnum";
/// Batches wait for the other side's disk.
const SESSION: &str = "SET idle_in_transaction_session_timeout = 0";
const FETCH: &str = "FETCH 250 FROM copied";
const CLOSE: &str = "CLOSE copied";

/// Connects, and checks the version of the tables.
pub(super) async fn open(
    target: &PostgresTarget,
    may_migrate: bool,
) -> Result<PreparedConnection, Reason> {
    let connection = connect(target).await?;
    let session = PreparedConnection::new(connection, Arc::new(LedgerClock::new(None)));
    schema::prepare(&session, may_migrate).await?;
    session.client().batch_execute(SESSION).await?;
    Ok(session)
}

pub(super) async fn columns(client: &Client) -> Result<Schema, Reason> {
    let mut schema = Schema::new();
    for row in client.query(COLUMNS, &[]).await? {
        let column = SchemaColumn { name: row.try_get(1)?, kind: row.try_get(2)?, key: 0 };
        schema.entry(row.try_get(0)?).or_default().push(column);
    }
    Ok(schema)
}

/// Begins to read a table in the current transaction.
pub(super) async fn begin_reading(
    client: &Client,
    plan: &TablePlan,
    skip: u64,
) -> Result<(), Reason> {
    let names: Vec<_> = plan.names().collect();
    // Sorts text by bytes, as files do.
    let ordered = |at: &usize| {
        let column = plan.columns.get(*at)?;
        let collation = if column.kind == CellKind::Text { " COLLATE \"C\"" } else { "" };
        Some(format!("{}{collation}", column.name))
    };
    let key: Vec<_> = match plan.table.key {
        Key::Columns => plan.key.iter().filter_map(ordered).collect(),
        Key::Position { postgres, .. } => vec![postgres.to_owned()],
    };
    let (names, key, table) = (names.join(", "), key.join(", "), plan.table.name);
    let declare = format!(
        "DECLARE copied NO SCROLL CURSOR FOR SELECT {names} FROM {table} ORDER BY {key} OFFSET {skip}"
    );
    Ok(client.batch_execute(&declare).await?)
}

/// Returns the next rows. At the end there are none, and reading is over.
pub(super) async fn next(client: &Client, plan: &TablePlan) -> Result<Vec<CellRow>, Reason> {
    let mut batch = Batch::default();
    while !batch.is_full() {
        let rows = client.query(FETCH, &[]).await?;
        if rows.is_empty() {
            break;
        }
        for row in rows {
            batch.push(cells(plan, &row)?);
        }
    }
    if batch.rows.is_empty() {
        client.batch_execute(CLOSE).await?;
    }
    Ok(batch.rows)
}

fn cells(plan: &TablePlan, row: &Row) -> Result<CellRow, Reason> {
    let cells = plan.columns.iter().enumerate().map(|(at, column)| {
        let cell: Cell = row.try_get(at)?;
        cell.into_kind(column.kind).ok_or_else(|| {
            let why = format!("{}.{} has another type", plan.table.name, column.name);
            Reason::new(Cause::Damaged, why)
        })
    });
    cells.collect()
}
