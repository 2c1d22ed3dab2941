//! The store over SQLite, in memory or in a file that survives a crash of the process; what is dear
//! survives a power cut.

mod begin;
mod books;
mod column;
mod file;
mod handle;
mod identity;
mod jobs;
mod lock;
mod members;
mod purchases;
mod reader;
mod replies;
mod reports;
mod schema;
mod window;
mod writer;

use crate::store::Unavailable;
use rusqlite::ErrorCode;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

pub use begin::Opening;
pub use handle::{Answer, Store, Tap, Verb};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A server, which operators ask at this address, where it said so.
    Server(Option<SocketAddr>),
    /// A command that asks the gateway while there is no server.
    Command,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{} uses the ledger{}{}", somebody(.holder), process(.pid), advice(.holder))]
    Locked { pid: Option<u32>, holder: Holder },
    #[error("the ledger cannot be used: {0}")]
    Unusable(Arc<str>),
}

fn somebody(holder: &Holder) -> &'static str {
    match holder {
        Holder::Server(_) => "another server",
        Holder::Command => "a command that asks the gateway",
    }
}

fn advice(holder: &Holder) -> &'static str {
    match holder {
        Holder::Server(_) => "",
        Holder::Command => "; it has not come to its end: end it, and start again",
    }
}

fn process(pid: &Option<u32>) -> String {
    pid.map(|pid| format!(": process {pid}")).unwrap_or_default()
}

impl OpenError {
    pub(super) fn unusable(path: &Path, why: impl std::fmt::Display) -> Self {
        Self::Unusable(format!("{}: {why}", path.display()).into())
    }
}

#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// Rolled back; the next one may succeed: a lock that was held too long.
    Passing(Unavailable),
    /// Rolled back for want of room, which something smaller may find.
    Full(Unavailable),
    /// What is on the disk is not known any more: nothing is written until a restart has read it anew.
    /// (A failed fsync is never tried again: the system may have dropped the pages.)
    Lasting(Unavailable),
}

impl Fault {
    pub(super) fn unavailable(&self) -> Unavailable {
        match self {
            Self::Passing(why) | Self::Full(why) | Self::Lasting(why) => why.clone(),
        }
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        let why = Unavailable(error.to_string().into());
        match error.sqlite_error_code() {
            Some(
                ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase,
            ) => Self::Lasting(why),
            Some(ErrorCode::DiskFull) => Self::Full(why),
            Some(_) | None => Self::Passing(why),
        }
    }
}

impl From<Unavailable> for Fault {
    fn from(why: Unavailable) -> Self {
        Self::Passing(why)
    }
}
