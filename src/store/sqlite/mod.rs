//! The store over SQLite, in memory or in a file that survives a crash of the process; what is dear
//! survives a power cut.

mod column;
mod file;
mod handle;
mod identity;
mod jobs;
mod ledger;
mod lock;
mod members;
mod open;
mod purchases;
mod reader;
mod replies;
mod reports;
mod schema;
mod slots;
mod writer;

use crate::store::Unavailable;
use rusqlite::ErrorCode;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

pub use handle::{HookFuture, Store, StoreHook, StoreOp};
pub use open::Opening;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockHolder {
    /// A server, which operators ask at this address, where it said so.
    Server(Option<SocketAddr>),
    /// A command that asks the gateway while there is no server.
    Command,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{} uses the ledger{}{}", holder_name(.holder), process_suffix(.pid), advice(.holder))]
    Locked { pid: Option<u32>, holder: LockHolder },
    #[error("the ledger cannot be used: {0}")]
    Unusable(Arc<str>),
}

fn holder_name(holder: &LockHolder) -> &'static str {
    match holder {
        LockHolder::Server(_) => "another server",
        LockHolder::Command => "a command that asks the gateway",
    }
}

fn advice(holder: &LockHolder) -> &'static str {
    match holder {
        LockHolder::Server(_) => "",
        LockHolder::Command => "; it has not come to its end: end it, and start again",
    }
}

fn process_suffix(pid: &Option<u32>) -> String {
    pid.map(|pid| format!(": process {pid}")).unwrap_or_default()
}

impl OpenError {
    pub(super) fn unusable(path: &Path, why: impl std::fmt::Display) -> Self {
        Self::Unusable(format!("{}: {why}", path.display()).into())
    }
}

#[derive(Clone, Debug)]
pub(super) enum StoreError {
    /// Rolled back; the next one may succeed: a lock that was held too long.
    Transient(Unavailable),
    /// Rolled back for want of room, which something smaller may find.
    DiskFull(Unavailable),
    /// What is on the disk is not known any more: nothing is written until a restart has read it anew.
    /// (A failed fsync is never tried again: the system may have dropped the pages.)
    Permanent(Unavailable),
}

impl StoreError {
    pub(super) fn unavailable(&self) -> Unavailable {
        match self {
            Self::Transient(why) | Self::DiskFull(why) | Self::Permanent(why) => why.clone(),
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        let why = Unavailable(error.to_string().into());
        match error.sqlite_error_code() {
            Some(
                ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase,
            ) => Self::Permanent(why),
            Some(ErrorCode::DiskFull) => Self::DiskFull(why),
            Some(_) | None => Self::Transient(why),
        }
    }
}

impl From<Unavailable> for StoreError {
    fn from(why: Unavailable) -> Self {
        Self::Transient(why)
    }
}
