//! Reads the tables of a file, their rows in the order of their key.

use rusqlite::{Connection, params_from_iter};

use crate::store::Reason;
use crate::store::transfer::cell::CellRow;
use crate::store::transfer::side::{BATCH_ROWS, Batch};
use crate::store::transfer::tables::{Key, Schema, SchemaColumn, TablePlan};

const COLUMNS: &str = "SELECT tables.name, columns.name, columns.type, columns.pk
    FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns
    WHERE tables.type = 'table' AND tables.name NOT LIKE 'sqlite_%'
    ORDER BY tables.name, columns.cid";

/// Where a table is read.
#[derive(Debug, Default)]
pub(super) struct Position {
    skip: u64,
    /// The last row that was read, if the next ones can be found by its key.
    last: Option<CellRow>,
}

impl Position {
    pub(super) fn after(skip: u64) -> Self {
        Self { skip, last: None }
    }
}

pub(super) fn schema(connection: &Connection) -> Result<Schema, Reason> {
    let mut schema = Schema::new();
    let mut columns = connection.prepare(COLUMNS)?;
    let mut rows = columns.query([])?;
    while let Some(row) = rows.next()? {
        let column = SchemaColumn { name: row.get(1)?, kind: row.get(2)?, key: row.get(3)? };
        schema.entry(row.get(0)?).or_default().push(column);
    }
    Ok(schema)
}

pub(super) fn count(connection: &Connection, plan: &TablePlan) -> Result<u64, Reason> {
    let count = format!("SELECT count(*) FROM {}", plan.table.name);
    Ok(connection.query_row(&count, [], |row| row.get(0))?)
}

pub(super) fn next(
    connection: &Connection,
    plan: &TablePlan,
    position: &mut Position,
) -> Result<Vec<CellRow>, Reason> {
    let names: Vec<_> = plan.names().collect();
    let key: Vec<_> = match plan.table.key {
        Key::Columns => plan.key.iter().filter_map(|at| names.get(*at).copied()).collect(),
        Key::Position { sqlite, .. } => vec![sqlite],
    };
    let (key, columns, table) = (key.join(", "), names.join(", "), plan.table.name);
    let last = position.last.take();
    let (condition, values): (String, CellRow) = match &last {
        Some(last) => {
            let values: Vec<_> = plan.key.iter().filter_map(|at| last.get(*at)).cloned().collect();
            let marks = vec!["?"; values.len()].join(", ");
            (format!("WHERE ({key}) > ({marks})"), values)
        }
        None => (String::new(), Vec::new()),
    };
    let offset = if last.is_some() { 0 } else { position.skip };
    let query = format!(
        "SELECT {columns} FROM {table} {condition} ORDER BY {key} LIMIT {BATCH_ROWS} OFFSET {offset}"
    );
    let mut statement = connection.prepare_cached(&query)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let mut batch = Batch::default();
    while !batch.is_full()
        && let Some(row) = rows.next()?
    {
        let cells = (0..names.len()).map(|at| row.get(at)).collect::<Result<_, _>>()?;
        batch.push(cells);
    }
    position.skip += batch.rows.len() as u64;
    if !plan.key.is_empty() {
        position.last = batch.rows.last().cloned();
    }
    Ok(batch.rows)
}
