//! The store over PostgreSQL, which several instances share.
//!
//! Each instance has a few connections (`lanes`). A caller's request is a `step`; a lane
//! sends the steps that wait as one transaction, COMMIT included (`flush`). Rules run in SQL under
//! the lock of one row, `account`, and are judged again here. A second table fences the dead:
//! each instance has a row with a lease (`instance`).

mod audit;
mod audit_log;
mod budget_requests;
mod clock;
mod clock_jumps;
mod cluster;
mod column;
mod connect;
mod engine;
mod events;
mod fleet;
mod flush;
mod free_slots;
mod groups;
mod handle;
mod instance;
mod jobs;
mod lane;
mod lanes;
mod lease;
mod members;
mod moved;
mod outbox;
mod own_slots;
mod purchases;
mod reports;
mod reserve;
mod restored;
mod roster;
mod schema;
mod settle;
mod shared;
mod slots;
mod statement;
mod step;
mod subjects;
mod target;
mod turns;

pub(in crate::store) use clock::LedgerClock;
pub use connect::{PostgresConnection, connect};
pub(super) use engine::PostgresEngine;
pub use fleet::{Fleet, JobNews, PolledJobs};
pub(super) use handle::PostgresStore;
pub use restored::report_restore;
pub use roster::{InstanceRecord, InstanceState, contract, list_instances};
pub use subjects::other_issuer;
pub use target::{InstanceKind, PostgresTarget};
pub use turns::{SlotPriority, SlotRequest, SlotTurn};
