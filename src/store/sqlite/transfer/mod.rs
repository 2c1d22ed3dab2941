//! The file's side of a copy to another store, or from one.

mod rows;
mod source;
mod target;

pub(in crate::store) use source::SqliteSource;
pub(in crate::store) use target::SqliteTransfer;
