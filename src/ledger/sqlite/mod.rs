//! The store over SQLite: in memory, or in a file that survives a crash of the process. Expensive
//! purchases also survive a power failure.

mod backup;
mod check;
mod engine;
mod file;
mod identity;
pub(super) mod ledger_file;
mod lock;
#[cfg(feature = "postgres")]
mod new_file;
mod open;
pub(super) mod schema;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::ErrorCode;
use serde::{Deserialize, Serialize};

use crate::ledger::{Cause, Reason};

pub use backup::Backup;
pub(super) use file::{Purpose, open as open_file};
pub use lock::host_name;
pub(super) use lock::{lock_holder, with_suffix};
#[cfg(feature = "postgres")]
pub(super) use new_file::NewFile;
pub use open::{Opening, ServerOptions};
#[cfg(feature = "postgres")]
pub(super) use open::{open_to_move, spawn};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockHolder {
    /// A server, and the address of its ops listener, if it has one.
    Server(Option<SocketAddr>),
    /// A command that calls the gateway while no server runs.
    Command,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// `host` is where the process runs: another container's may have the same id.
    #[error("{}", describe(*.holder, *.pid, .host.as_deref()))]
    Locked { pid: Option<u32>, host: Option<Arc<str>>, holder: LockHolder },
    #[error("the ledger cannot be used: {0}")]
    Unusable(Reason),
}

fn describe(holder: LockHolder, pid: Option<u32>, host: Option<&str>) -> String {
    let (name, advice) = match holder {
        LockHolder::Server(_) => ("another server", ""),
        LockHolder::Command => (
            "a command that calls the gateway",
            "; wait for it to finish or stop it, then start again",
        ),
    };
    if pid == Some(std::process::id()) && (host.is_none() || host == host_name().as_deref()) {
        return "this process already uses the ledger: shut down its other Tollgate first".into();
    }
    let process = pid.map(|pid| format!(": process {pid}")).unwrap_or_default();
    let host = host.map(|host| format!(" on host {host}")).unwrap_or_default();
    format!("{name} uses the ledger{process}{host}{advice}")
}

impl OpenError {
    pub(super) fn unusable(path: &Path, why: impl Into<Reason>) -> Self {
        let Reason { cause, text } = why.into();
        Self::Unusable(Reason::new(cause, format!("{}: {text}", path.display())))
    }

    pub(super) fn at<E: Into<Reason>>(path: &Path) -> impl Fn(E) -> Self {
        move |why| Self::unusable(path, why)
    }
}

pub(super) fn canonical_path(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

impl From<OpenError> for Reason {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Unusable(reason) => reason,
            OpenError::Locked { .. } => error.to_string().into(),
        }
    }
}

impl From<rusqlite::Error> for Reason {
    fn from(error: rusqlite::Error) -> Self {
        let cause = match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Cause::DiskFull,
            Some(ErrorCode::SystemIoFailure) => Cause::DiskFailed,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Cause::Damaged,
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
                Cause::Permission
            }
            Some(_) | None => Cause::Other,
        };
        // Its text would have the whole migration, too.
        if let rusqlite::Error::SqlInputError { msg, .. } = error {
            return Self::new(cause, msg);
        }
        Self::new(cause, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use rusqlite::ffi;

    use super::*;

    #[test]
    fn errors_of_sqlite_and_the_system_name_their_cause() {
        for (code, cause) in [
            (ffi::SQLITE_FULL, Cause::DiskFull),
            (ffi::SQLITE_IOERR_FSYNC, Cause::DiskFailed),
            (ffi::SQLITE_CORRUPT, Cause::Damaged),
            (ffi::SQLITE_NOTADB, Cause::Damaged),
            (ffi::SQLITE_READONLY_DIRECTORY, Cause::Permission),
            (ffi::SQLITE_CANTOPEN, Cause::Permission),
            (ffi::SQLITE_BUSY, Cause::Other),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(Reason::from(error).cause, cause, "{code}");
        }
        for (kind, cause) in [
            (io::ErrorKind::StorageFull, Cause::DiskFull),
            (io::ErrorKind::QuotaExceeded, Cause::DiskFull),
            (io::ErrorKind::PermissionDenied, Cause::Permission),
            (io::ErrorKind::ReadOnlyFilesystem, Cause::Permission),
            (io::ErrorKind::NotFound, Cause::Other),
        ] {
            let opened = OpenError::at::<io::Error>(Path::new("l.db"))(kind.into());
            let reason = Reason::from(opened);
            assert_eq!(reason.cause, cause, "{kind}");
            assert!(reason.text.starts_with("l.db: "), "{reason}");
        }
    }
}
