//! The database's side of a copy to another store, or from one.

mod rows;
mod source;
mod target;

pub(in crate::store) use source::PostgresSource;
pub(in crate::store) use target::PostgresTransfer;
