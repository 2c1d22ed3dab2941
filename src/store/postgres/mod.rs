//! The store over PostgreSQL, which several instances share.

mod connect;
mod target;

pub use connect::{PostgresConnection, connect};
pub use target::{InstanceKind, PostgresTarget};
