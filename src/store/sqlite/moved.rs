//! Whether the ledger was moved to another store. Its file can then be read, and sells nothing.

use rusqlite::{Connection, OptionalExtension, Row};

use super::column;
use crate::store::Reason;

/// Returns where it was moved.
#[cfg(feature = "postgres")]
pub(super) fn destination(connection: &Connection) -> rusqlite::Result<Option<String>> {
    connection.query_row("SELECT destination FROM moved", [], |row| row.get(0)).optional()
}

/// Refuses a ledger that was moved.
pub(super) fn ensure_not_moved(connection: &Connection) -> Result<(), Reason> {
    let find = "SELECT destination, at FROM moved";
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, column::duration(row.get(1)?)));
    match connection.query_row(find, [], read).optional()? {
        Some((to, at)) => Err(Reason::moved(&to, at)),
        None => Ok(()),
    }
}
