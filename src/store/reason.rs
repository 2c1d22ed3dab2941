//! Why a ledger cannot be used: a cause that probes, metrics and commands act on, and a text.

use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Reason {
    pub cause: Cause,
    /// It may name paths, so only the log and commands show it.
    pub text: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Starting,
    /// A newer tollgate has migrated it.
    NewerVersion,
    /// It belongs to another user, or may not be written.
    Permission,
    DiskFull,
    /// A read, a write or an fsync failed.
    DiskFailed,
    Damaged,
    /// The file was removed or replaced while a server had it.
    Replaced,
    Other,
}

impl Cause {
    /// Returns the name in `/readyz`, metrics and the log.
    pub fn code(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::NewerVersion => "ledger_newer",
            Self::Permission => "ledger_permission",
            Self::DiskFull => "disk_full",
            Self::DiskFailed => "disk_failed",
            Self::Damaged => "ledger_damaged",
            Self::Replaced => "ledger_replaced",
            Self::Other => "ledger_unusable",
        }
    }

    /// Returns the cause in words, and what to do.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Starting => "starting: the ledger is opening",
            Self::NewerVersion => "a newer tollgate has migrated the ledger: start that version",
            Self::Permission => {
                "the server may not write the ledger or its folder: make its user their owner"
            }
            Self::DiskFull => "the disk is full: sales resume with free space",
            Self::DiskFailed => "the disk failed: check it, then restart the server",
            Self::Damaged => "the ledger is damaged: restore a backup",
            Self::Replaced => {
                "the ledger was removed or replaced: put it back and restart the server"
            }
            Self::Other => "the ledger is unusable: see the log",
        }
    }
}

impl Reason {
    pub fn new(cause: Cause, text: impl Into<Arc<str>>) -> Self {
        Self { cause, text: text.into() }
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        Self::new(Cause::Other, text)
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self::new(Cause::Other, text)
    }
}

impl From<io::Error> for Reason {
    fn from(error: io::Error) -> Self {
        let kind = error.kind();
        let cause = if matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) {
            Cause::Permission
        } else if matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            Cause::DiskFull
        } else {
            Cause::Other
        };
        Self::new(cause, error.to_string())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
