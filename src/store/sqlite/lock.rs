//! Lets one server at a time have a ledger's file. The lock lies beside it, since opening and closing
//! the file itself would drop SQLite's own locks.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tracing::warn;

use super::OpenError;
use crate::clock;

const ENDING: &str = ".lock";
/// A command has the lock for as long as it asks the gateway; whoever comes meanwhile waits so long.
const COMMANDS_END: Duration = Duration::from_secs(120);
/// What is written in the lock may be of the last holder for a moment.
const IS_SIGNED: Duration = Duration::from_millis(200);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Who has a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A server, which operators ask at this address, where it said so.
    Server(Option<SocketAddr>),
    /// A command that asks the gateway while there is no server.
    Command,
}

/// Held for as long as the holder lives; the system drops it with the process.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    holder: Holder,
}

impl Lock {
    /// Takes the lock on `<path>.lock`, or names the process that has it.
    pub(super) fn take(path: &Path, holder: Holder) -> Result<Self, OpenError> {
        let path = beside(path, ENDING);
        let unusable = |error: io::Error| OpenError::unusable(&path, error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(unusable)?;
        let since = clock::now();
        let mut is_told = false;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    let (pid, has_it) = read(&mut file).map_err(unusable)?;
                    let patience = match has_it {
                        Holder::Command => COMMANDS_END,
                        Holder::Server(_) => IS_SIGNED,
                    };
                    if since.elapsed() >= patience {
                        return Err(OpenError::Locked { pid, holder: has_it });
                    }
                    if has_it == Holder::Command && !std::mem::replace(&mut is_told, true) {
                        let pid = pid.unwrap_or_default();
                        warn!(
                            pid,
                            "waiting for a command that asks the gateway and has the ledger"
                        );
                    }
                    thread::sleep(LOOK_AGAIN);
                }
                Err(TryLockError::Error(error)) => return Err(unusable(error)),
            }
        }
        let was_served = file.metadata().map_err(unusable)?.len() > 0;
        let mut lock = Self { file, holder };
        if was_served {
            lock.sign().map_err(unusable)?;
        }
        Ok(lock)
    }

    /// Writes who has it. From then on, the ledger counts as one that was served.
    pub(super) fn sign(&mut self) -> io::Result<()> {
        let pid = std::process::id();
        let text = match self.holder {
            Holder::Server(None) => format!("{pid}\n"),
            Holder::Server(Some(admin)) => format!("{pid}\nadmin {admin}\n"),
            Holder::Command => format!("{pid}\ncommand\n"),
        };
        self.file.rewind()?;
        self.file.set_len(0)?;
        self.file.write_all(text.as_bytes())
    }
}

fn read(file: &mut File) -> io::Result<(Option<u32>, Holder)> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    let mut lines = text.lines();
    let pid = lines.next().and_then(|line| line.trim().parse().ok());
    let holder = match lines.next() {
        Some("command") => Holder::Command,
        Some(line) => Holder::Server(line.strip_prefix("admin ").and_then(|at| at.parse().ok())),
        None => Holder::Server(None),
    };
    Ok((pid, holder))
}

/// Closing the file is not enough: a process that was being started just now still has it open.
impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
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

    const SERVER: Holder = Holder::Server(None);

    #[test]
    fn a_lock_is_given_back_also_where_another_process_has_inherited_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let lock = Lock::take(&path, SERVER).unwrap();
        let inherited = lock.file.try_clone().unwrap();
        assert!(matches!(Lock::take(&path, SERVER), Err(OpenError::Locked { .. })));
        assert!(is_served(&path));
        drop(lock);
        assert!(!is_served(&path));
        Lock::take(&path, SERVER).unwrap();
        drop(inherited);
    }

    #[test]
    fn a_lock_says_who_has_it_and_where_operators_ask() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        for admin in
            [None, Some("127.0.0.1:9464".parse().unwrap()), Some("[::1]:1".parse().unwrap())]
        {
            let mut lock = Lock::take(&path, Holder::Server(admin)).unwrap();
            lock.sign().unwrap();
            let refused = Lock::take(&path, Holder::Command).unwrap_err();
            let OpenError::Locked { pid, holder } = refused else { panic!("{refused}") };
            assert_eq!((pid, holder), (Some(std::process::id()), Holder::Server(admin)));
        }
    }

    #[test]
    fn a_server_waits_for_a_command_that_is_asking() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let mut command = Lock::take(&path, Holder::Command).unwrap();
        command.sign().unwrap();
        let starts = path.clone();
        let server = thread::spawn(move || Lock::take(&starts, SERVER).map(drop));
        thread::sleep(IS_SIGNED * 2);
        assert!(!server.is_finished());
        drop(command);
        server.join().unwrap().unwrap();
    }
}
