//! Lets one server at a time have a ledger's file. The lock lies beside it, since opening and closing
//! the file itself would drop SQLite's own locks.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::OpenError;

const ENDING: &str = ".lock";
/// A command that asks whether there is a server holds the lock for an instant, and so does a process
/// that is just being started by whoever has it open.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// Held for as long as the server lives; the system drops it with the process.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Lock {
    /// Takes the lock on `<path>.lock`, or names the process that has it.
    pub(super) fn take(path: &Path) -> Result<Self, OpenError> {
        let path = beside(path, ENDING);
        let unusable = |error: io::Error| OpenError::unusable(&path, error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(unusable)?;
        match patiently(|| file.try_lock()) {
            Ok(()) => {
                let was_served = file.metadata().map_err(unusable)?.len() > 0;
                let mut lock = Self(file);
                if was_served {
                    lock.sign().map_err(unusable)?;
                }
                Ok(lock)
            }
            Err(TryLockError::WouldBlock) => {
                let mut said = String::new();
                file.read_to_string(&mut said).map_err(unusable)?;
                Err(OpenError::Locked { pid: said.trim().parse().ok() })
            }
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    /// Writes who has it. From then on, the ledger counts as one that was served.
    pub(super) fn sign(&mut self) -> io::Result<()> {
        self.0.rewind()?;
        self.0.set_len(0)?;
        writeln!(self.0, "{}", std::process::id())
    }
}

/// Closing the file is not enough: a process that was being started just now still has it open.
impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

fn patiently(mut lock: impl FnMut() -> Result<(), TryLockError>) -> Result<(), TryLockError> {
    for _ in 1..TRIES {
        match lock() {
            Err(TryLockError::WouldBlock) => thread::sleep(BETWEEN_TRIES),
            done => return done,
        }
    }
    lock()
}

/// Whether a server has the ledger now.
pub(super) fn is_served(path: &Path) -> bool {
    let file = File::open(beside(path, ENDING));
    // Shared, so that commands do not take each other for a server.
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Whether a server has had the ledger before.
pub(super) fn was_served(path: &Path) -> bool {
    fs::metadata(beside(path, ENDING)).is_ok_and(|lock| lock.len() > 0)
}

/// The path of a file that belongs to another one.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_given_back_also_where_another_process_has_inherited_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let lock = Lock::take(&path).unwrap();
        let inherited = lock.0.try_clone().unwrap();
        assert!(matches!(Lock::take(&path), Err(OpenError::Locked { .. })));
        assert!(is_served(&path));
        drop(lock);
        assert!(!is_served(&path));
        Lock::take(&path).unwrap();
        drop(inherited);
    }
}
