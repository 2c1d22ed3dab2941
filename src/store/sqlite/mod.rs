//! The store over SQLite: in memory, or in a file that survives a crash of the process. Expensive
//! purchases also survive a power failure.

mod check;
mod checkpoint;
mod column;
mod command;
mod command_gate;
mod command_queue;
mod dedupe;
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
mod spent;
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
    /// A server, and the address of its ops listener, if it has one.
    Server(Option<SocketAddr>),
    /// A command that calls the gateway while no server runs.
    Command,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{}", describe(*.holder, *.pid))]
    Locked { pid: Option<u32>, holder: LockHolder },
    #[error("the ledger cannot be used: {0}")]
    Unusable(Arc<str>),
}

fn describe(holder: LockHolder, pid: Option<u32>) -> String {
    let (name, advice) = match holder {
        LockHolder::Server(_) => ("another server", ""),
        LockHolder::Command => (
            "a command that calls the gateway",
            "; wait for it to finish or stop it, then start again",
        ),
    };
    if pid == Some(std::process::id()) {
        return "this process already uses the ledger: shut down its other Tollgate first".into();
    }
    let process = pid.map(|pid| format!(": process {pid}")).unwrap_or_default();
    format!("{name} uses the ledger{process}{advice}")
}

impl OpenError {
    pub(super) fn unusable(path: &Path, why: impl std::fmt::Display) -> Self {
        Self::Unusable(format!("{}: {why}", path.display()).into())
    }

    pub(super) fn at<E: std::fmt::Display>(path: &Path) -> impl Fn(E) -> Self {
        move |why| Self::unusable(path, why)
    }
}

#[derive(Clone, Debug)]
pub(super) enum StoreError {
    /// Rolled back. The next transaction may succeed: a lock was held too long.
    Transient(Unavailable),
    /// Rolled back for lack of space. A smaller transaction may succeed.
    DiskFull(Unavailable),
    /// The state of the file is unknown, so nothing is written until a restart reads it again.
    ///
    /// A failed fsync is never retried, because the system may have dropped the pages.
    Permanent(Unavailable),
}

pub(super) type Result<T, E = StoreError> = std::result::Result<T, E>;

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
