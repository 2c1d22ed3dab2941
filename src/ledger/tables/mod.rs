//! The tables of the ledger: what each operation reads and writes, within the writer's transaction.

mod audit_log;
mod budget_requests;
mod column;
mod dedupe;
mod ends;
mod groups;
mod jobs;
mod ledger;
mod limits;
mod links;
mod members;
mod notes;
mod outbox;
mod purchases;
mod replies;
pub(super) mod reports;
mod servers;
pub(super) mod slots;
mod spent;
mod subjects;

#[cfg(feature = "postgres")]
pub(super) use column::nanos;
pub(super) use column::{duration, read};
pub(super) use ledger::{Ledger, ensure_not_moved};
#[cfg(feature = "postgres")]
pub(super) use ledger::{moved_to, note_moved};
pub(super) use members::token_secret_fingerprint;
#[cfg(feature = "postgres")]
pub(super) use servers::ALIVE;
#[cfg(feature = "postgres")]
pub(super) use subjects::find_other_issuer;
