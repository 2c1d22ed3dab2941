//! The list of tables that a copy of a ledger consists of. Their columns are those of the two schemas.

use std::collections::BTreeMap;

use super::cell::{Cell, CellKind, CellRow};
use crate::store::Reason;

/// A table of both stores. Each row is copied.
#[derive(Debug)]
pub(in crate::store) struct Table {
    pub(in crate::store) name: &'static str,
    pub(in crate::store) key: Key,
    /// Columns that files do not have.
    only_postgres: &'static [(&'static str, Fill)],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Key {
    /// The columns of the primary key, which both stores have.
    Columns,
    /// Each store has a key of its own in this column. Only the order of rows is kept.
    Position { sqlite: &'static str, postgres: &'static str },
}

/// What a column of PostgreSQL gets for a row of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Fill {
    Default,
    /// No instance has this number.
    Zero,
    LengthOf(&'static str),
}

/// No purchase runs while a ledger is copied, so none has a deadline.
const ONLY_SQLITE: &str = "deadline";

const fn same(name: &'static str) -> Table {
    Table { name, key: Key::Columns, only_postgres: &[] }
}

/// Rows may refer to rows of tables before theirs.
const TABLES: &[Table] = &[
    Table { only_postgres: &[("owner", Fill::Zero)], ..same("purchases") },
    Table { only_postgres: &[("bytes", Fill::LengthOf("body"))], ..same("replies") },
    same("spent"),
    Table {
        only_postgres: &[
            ("poller", Fill::Default),
            ("wanted_until", Fill::Default),
            ("revision", Fill::Default),
        ],
        ..same("jobs")
    },
    same("checkpoints"),
    same("account_keys"),
    Table {
        key: Key::Position { sqlite: "number", postgres: "id" },
        only_postgres: &[("owner", Fill::Zero), ("caller", Fill::Default)],
        ..same("slots")
    },
    same("members"),
    same("logins"),
    same("subjects"),
    same("subject_logins"),
    same("groups"),
    same("extras"),
    same("budget_requests"),
    same("audit"),
    same("outbox"),
    same("alerts"),
];

/// Tables of files with at most one row, which [`Facts`](super::side::Facts) has, those of a copy, and
/// what a server writes from its settings or from other tables.
const NOT_ROWS_OF_SQLITE: &[&str] = &[
    "identity",
    "money",
    "secret",
    "members_version",
    "rate_limit",
    "moved",
    "imports",
    "webhooks",
];
/// The same of PostgreSQL, what only living instances need, and replies that are kept for a day for
/// the operator.
const NOT_ROWS_OF_POSTGRES: &[&str] = &[
    "store",
    "account",
    "members_version",
    "rate_limit",
    "imports",
    "instances",
    "waiting",
    "unparsable_replies",
    "webhooks",
];

/// The columns of each table.
pub(in crate::store) type Schema = BTreeMap<String, Vec<SchemaColumn>>;

#[derive(Clone, Debug)]
pub(in crate::store) struct SchemaColumn {
    pub(in crate::store) name: String,
    /// The declared type.
    pub(in crate::store) kind: String,
    /// Its place in the primary key, from 1; 0 if it is not part of it. Only known of files.
    pub(in crate::store) key: usize,
}

/// How a table is copied.
#[derive(Debug)]
pub(in crate::store) struct TablePlan {
    pub(in crate::store) table: &'static Table,
    /// The columns of both.
    pub(in crate::store) columns: Vec<Column>,
    /// The positions of the key in `columns`; empty with [`Key::Position`].
    pub(in crate::store) key: Vec<usize>,
}

#[derive(Debug)]
pub(in crate::store) struct Column {
    pub(in crate::store) name: String,
    pub(in crate::store) kind: CellKind,
}

impl TablePlan {
    pub(in crate::store) fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }

    /// Returns the columns that PostgreSQL gets besides, and their value for this row.
    pub(in crate::store) fn fills(&self) -> impl Iterator<Item = (&'static str, Fill)> {
        let fills = self.table.only_postgres.iter().copied();
        fills.filter(|(_, fill)| *fill != Fill::Default)
    }

    pub(in crate::store) fn filled(&self, fill: Fill, row: &CellRow) -> Cell {
        let Fill::LengthOf(of) = fill else { return Cell::Integer(0) };
        let cell = self.names().zip(row).find(|(name, _)| *name == of).map(|(_, cell)| cell);
        Cell::Integer(match cell {
            Some(Cell::Bytes(bytes)) => bytes.len().try_into().unwrap_or(i64::MAX),
            _ => 0,
        })
    }
}

/// Matches the tables of a file with those of a database.
///
/// # Errors
///
/// Returns the first table or column that the list does not know. To copy a ledger without it would
/// lose it.
pub(in crate::store) fn plan(sqlite: &Schema, postgres: &Schema) -> Result<Vec<TablePlan>, Reason> {
    let is_copied_from_file = |name: &str| TABLES.iter().any(|table| table.name == name);
    let is_copied = |name: &str| TABLES.iter().any(|table| table.name == name);
    let unknown = |name: &String| format!("the table {name} cannot be copied by this tollgate");
    for name in sqlite.keys() {
        if !is_copied_from_file(name) && !NOT_ROWS_OF_SQLITE.contains(&name.as_str()) {
            return Err(unknown(name).into());
        }
    }
    for name in postgres.keys() {
        if !is_copied(name) && !NOT_ROWS_OF_POSTGRES.contains(&name.as_str()) {
            return Err(unknown(name).into());
        }
    }
    TABLES.iter().map(|table| plan_table(table, sqlite, postgres)).collect()
}

fn plan_table(
    table: &'static Table,
    sqlite: &Schema,
    postgres: &Schema,
) -> Result<TablePlan, Reason> {
    let missing = || Reason::from(format!("the table {} is missing", table.name));
    let ours = sqlite.get(table.name).ok_or_else(missing)?;
    let theirs = postgres.get(table.name).ok_or_else(missing)?;
    let unmatched = |name: &str| {
        let table = table.name;
        Reason::from(format!("the column {table}.{name} cannot be copied by this tollgate"))
    };
    let (own_key, their_key) = match table.key {
        Key::Columns => (None, None),
        Key::Position { sqlite, postgres } => (Some(sqlite), Some(postgres)),
    };
    let mut columns = Vec::new();
    let mut key = Vec::new();
    let is_copied =
        |column: &&SchemaColumn| Some(&*column.name) != own_key && column.name != ONLY_SQLITE;
    for column in ours.iter().filter(is_copied) {
        let kind = CellKind::of(&column.kind).ok_or_else(|| unmatched(&column.name))?;
        if !theirs.iter().any(|other| other.name == column.name) {
            return Err(unmatched(&column.name));
        }
        if column.key > 0 {
            key.push((column.key, columns.len()));
        }
        columns.push(Column { name: column.name.clone(), kind });
    }
    for column in theirs.iter().map(|column| column.name.as_str()) {
        let is_filled = table.only_postgres.iter().any(|(name, _)| *name == column);
        let is_copied = columns.iter().any(|copied| copied.name == column);
        if !is_copied && !is_filled && Some(column) != their_key {
            return Err(unmatched(column));
        }
    }
    key.sort_unstable();
    Ok(TablePlan { table, columns, key: key.into_iter().map(|(_, at)| at).collect() })
}
