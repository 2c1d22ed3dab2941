//! PostgreSQL as the store of a ledger that several servers share.

mod admin;
mod connect;
mod engine;
mod open;
mod servers;
mod session;
mod statement;
mod tables;
mod target;

pub use admin::{contract, has_other_money, list_instances, other_issuer, report_restore};
pub use connect::{PostgresConnection, connect};
pub(super) use engine::PostgresEngine;
pub(super) use servers::ensure_idle;
pub use servers::{InstanceRecord, InstanceState};
pub(super) use session::PostgresSession;
pub use target::{InstanceKind, PostgresTarget};
