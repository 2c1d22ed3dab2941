//! Why a ledger cannot be used: a cause that probes, metrics and commands act on, and a text.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs};

use crate::clock::iso8601;

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
    /// Another store has it now.
    Moved,
    /// The database does not answer, and may again.
    Unreachable,
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
            Self::Moved => "ledger_moved",
            Self::Unreachable => "ledger_unreachable",
            Self::Other => "ledger_unusable",
        }
    }

    /// Returns the cause in words, and what to do.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Starting => "starting: the ledger is opening",
            Self::NewerVersion => "a newer tollgate has migrated the ledger: start that version",
            Self::Permission => {
                "the server may not write the ledger or its folder: chown them to the server's user, or \
                 mount them writable"
            }
            Self::DiskFull => "the disk is full: sales resume with free space",
            Self::DiskFailed => "the disk failed: check it, then restart the server",
            Self::Damaged => "the ledger is damaged: restore a backup (docs/operations.md)",
            Self::Replaced => {
                "the ledger was removed or replaced: put it back and restart the server"
            }
            Self::Moved => "the ledger was moved to another store: change store.url (see the log)",
            Self::Unreachable => "the ledger's database does not answer: sales resume when it does",
            Self::Other => "the ledger is unusable: see the log",
        }
    }
}

impl Reason {
    pub fn new(cause: Cause, text: impl Into<Arc<str>>) -> Self {
        Self { cause, text: text.into() }
    }

    /// Explains that the ledger was moved to another store.
    pub(super) fn moved(to: &str, at: Duration) -> Self {
        let why = format!(
            "it was moved to {to} at {}, and sells nothing any more; it can still be read. Change \
             store.url",
            iso8601(at)
        );
        Self::new(Cause::Moved, why)
    }

    /// Adds whose folder or file it is, if that is why this user may not open or create `path`.
    pub(super) fn at(path: &Path, error: io::Error) -> Self {
        let at = if path.exists() { Some(path) } else { path.parent() };
        let found = at.and_then(|at| Some((at, fs::metadata(at).ok()?.uid())));
        let user = nix::unistd::geteuid().as_raw();
        match found {
            Some((at, owner)) if error.kind() == ErrorKind::PermissionDenied && owner != user => {
                let at = at.display();
                let why =
                    format!("{error}: {at} belongs to user {owner}, tollgate runs as user {user}");
                Self::new(Cause::Permission, format!("{why}; chown it"))
            }
            Some(_) | None => error.into(),
        }
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
        let is = |kinds: [ErrorKind; 2]| kinds.contains(&error.kind());
        let cause = if is([ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem]) {
            Cause::Permission
        } else if is([ErrorKind::StorageFull, ErrorKind::QuotaExceeded]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denial_names_the_owner_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let user = nix::unistd::geteuid();
        // Others' folders are root's; root makes one.
        let folder = if user.is_root() {
            nix::unistd::chown(folder.path(), Some(65_532.into()), None).unwrap();
            folder.path()
        } else {
            Path::new("/proc")
        };
        let owner = if user.is_root() { 65_532 } else { 0 };
        let path = folder.join("ledger.db.lock");
        let reason = Reason::at(&path, ErrorKind::PermissionDenied.into());
        let says = format!(
            "{} belongs to user {owner}, tollgate runs as user {user}; chown",
            folder.display()
        );
        assert!(reason.text.contains(&says), "{reason}");
        assert_eq!(reason.cause, Cause::Permission);
        let missing = Reason::at(&path, ErrorKind::NotFound.into());
        assert_eq!(missing.cause, Cause::Other);
    }
}
