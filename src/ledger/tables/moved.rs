//! Whether the ledger was moved to another store. It can then be read, and sells nothing.

use std::time::Duration;

use super::column;
#[cfg(feature = "postgres")]
use crate::ledger::engine::params;
use crate::ledger::engine::{Engine, Result, Sql};
use crate::ledger::{Reason, Unavailable};

/// Returns where and when it was moved.
pub(in crate::ledger) fn moved_to(db: &dyn Engine) -> Result<Option<(String, Duration)>> {
    let find = "SELECT destination, at FROM moved";
    db.first(find, (), |row| Ok((row.get(0)?, column::moment(row, 1)?)))
}

/// Refuses a ledger that was moved.
pub(in crate::ledger) fn ensure_not_moved(db: &dyn Engine) -> Result<()> {
    match moved_to(db)? {
        Some((to, at)) => Err(Unavailable(Reason::moved(&to, at)).into()),
        None => Ok(()),
    }
}

#[cfg(feature = "postgres")]
pub(in crate::ledger) fn note_moved(db: &dyn Engine, to: &str, now: Duration) -> Result<()> {
    let note =
        "INSERT INTO moved (number, destination, at) VALUES (1, ?, ?) ON CONFLICT DO NOTHING";
    db.run(note, params![to, column::nanos(now)]).map(drop)
}
