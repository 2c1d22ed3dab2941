//! Whether the ledger was moved to another store. Then it can be read, and sells nothing.

use super::column;
use crate::store::Reason;
use crate::store::engine::{Engine, Result, Sql, StoreError};

/// Refuses a ledger that was moved.
pub(in crate::store) fn ensure_not_moved(db: &dyn Engine) -> Result<(), Reason> {
    let find = "SELECT destination, at FROM moved";
    let moved = db.first(find, (), |row| Ok((row.get::<String>(0)?, column::moment(row, 1)?)));
    match moved.map_err(|fault: StoreError| fault.unavailable().0)? {
        Some((to, at)) => Err(Reason::moved(&to, at)),
        None => Ok(()),
    }
}
