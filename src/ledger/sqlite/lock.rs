//! Lets one server at a time use a ledger's file. The lock is a file beside it, because opening and
//! closing the ledger itself would drop SQLite's locks.
//!
//! A file can have several paths: hard links, or a mount of the file alone. So the server also
//! locks the ledger with `flock`, on a descriptor that is opened before SQLite and closed after it.
//!
//! The lock file also has the ledger's state. A folder that is put back brings the lock file along, so a
//! server keeps a copy of it elsewhere: the mark.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::identity::{FileStamp, LedgerIdentity, LedgerState};
use super::{LockHolder, OpenError, canonical_path};
use crate::clock;
use crate::ledger::Reason;
use crate::sync::pause;

const LOCK_SUFFIX: &str = ".lock";
const MAX_COMMAND_WAIT: Duration = Duration::from_secs(120);
/// A new holder writes its name after it has locked, so the file may still name the last one.
const MAX_SERVER_WAIT: Duration = Duration::from_millis(200);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const PROC_LOCKS: &str = "/proc/locks";
/// The second one is for a container or unit that hides the first.
const HOST_NAMES: [&str; 2] = ["/proc/sys/kernel/hostname", "/etc/hostname"];

/// The content of the lock file and of the mark.
#[derive(Serialize, Deserialize)]
struct LockContents {
    pid: Option<u32>,
    host: Option<String>,
    holder: LockHolder,
    ledger: Option<LedgerState>,
}

/// Held for as long as the holder lives; the system releases it with the process.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    mark: Option<File>,
    path: PathBuf,
    host: Option<String>,
    holder: LockHolder,
    pub(super) state: Option<LedgerState>,
    /// The state that the mark had.
    pub(super) marked: Option<LedgerState>,
    ledger_file: Option<File>,
    /// The ledger was closed cleanly.
    pub(super) is_clean: bool,
    /// The file is not as the last server closed it.
    is_suspect: bool,
}

impl Lock {
    /// Locks `<path>.lock`, or names the process that holds it. Waits at most `wait` for another
    /// server, and longer for a command.
    pub(super) fn acquire(
        ledger: &Path,
        holder: LockHolder,
        wait: Duration,
    ) -> Result<Self, OpenError> {
        let path = with_suffix(ledger, LOCK_SUFFIX);
        let unusable = |error: io::Error| OpenError::unusable(&path, error);
        let opened = open(&path).map_err(|error| Reason::at(&path, error));
        let file = opened.map_err(OpenError::at(&path))?;
        let since = clock::now();
        let mut has_warned = false;
        while !try_lock(&file).map_err(unusable)? {
            let LockContents { pid, host, holder, .. } = read(&file).map_err(unusable)?;
            let is_command = holder == LockHolder::Command;
            let max_wait = if is_command { MAX_COMMAND_WAIT } else { MAX_SERVER_WAIT };
            if since.elapsed() >= max_wait.max(wait) {
                return Err(OpenError::Locked { pid, host: host.map(Into::into), holder });
            }
            if (is_command || !wait.is_zero()) && !std::mem::replace(&mut has_warned, true) {
                let pid = pid.unwrap_or_default();
                if is_command {
                    warn!(pid, host, "waiting for command that holds the ledger lock");
                } else {
                    warn!(pid, host, "waiting for server that holds the ledger lock");
                }
            }
            pause(POLL_INTERVAL);
        }
        Self::locked(file, ledger, holder).map_err(unusable)
    }

    /// Locks a ledger that no process has, and that is as its last server closed it. The command
    /// that changes it then closes it as a server does, so that the next start need not check it.
    pub(super) fn acquire_closed(ledger: &Path) -> Option<Self> {
        let path = with_suffix(ledger, LOCK_SUFFIX);
        let file = File::options().read(true).write(true).open(path).ok()?;
        if !try_lock(&file).ok()? {
            return None;
        }
        let mut lock = Self::locked(file, ledger, LockHolder::Command).ok()?;
        let closed = lock.state?.closed?;
        if file_stamp(ledger) != Some(closed) {
            return None;
        }
        lock.lock_ledger_file(ledger).ok()?;
        Some(lock)
    }

    fn locked(file: File, ledger: &Path, holder: LockHolder) -> io::Result<Self> {
        let was_served = file.metadata()?.len() > 0;
        let state = read(&file)?.ledger;
        let mut lock = Self {
            file,
            mark: None,
            path: ledger.to_owned(),
            host: host_name(),
            holder,
            state,
            marked: None,
            ledger_file: None,
            is_clean: false,
            is_suspect: false,
        };
        if was_served {
            lock.write()?;
        }
        Ok(lock)
    }

    /// Keeps a mark in the first of these folders that is not within the ledger's own.
    pub(super) fn keep_mark(&mut self, folders: &[PathBuf]) {
        let own = self.path.parent().unwrap_or(Path::new("/"));
        let hash = blake3::hash(self.path.as_os_str().as_bytes()).to_hex();
        let open_in = |folder: PathBuf| {
            DirBuilder::new().recursive(true).mode(0o700).create(&folder).ok()?;
            open(&folder.join(format!("ledger-{}.mark", &hash[..16]))).ok()
        };
        let elsewhere = folders.iter().map(|folder| canonical_path(folder));
        self.mark = elsewhere.filter(|folder| !folder.starts_with(own)).find_map(open_in);
        self.marked = self.mark.as_ref().and_then(|mark| read(mark).ok()?.ledger);
        if self.mark.is_none() && !folders.is_empty() {
            info!(?folders, "ledger mark not kept; an old copy of its folder may go unnoticed");
        }
    }

    /// Locks the ledger file, or names the process that locked it under another path. SQLite must
    /// not have it open yet in this process.
    pub(super) fn lock_ledger_file(&mut self, path: &Path) -> Result<(), OpenError> {
        let unusable = |error: io::Error| OpenError::unusable(path, error);
        let ledger = File::open(path).map_err(unusable)?;
        let since = clock::now();
        while !try_lock(&ledger).map_err(unusable)? {
            if since.elapsed() >= MAX_SERVER_WAIT {
                let pid = flock_owner(&ledger);
                // Closing it would drop the locks that SQLite may hold on it in this process.
                std::mem::forget(ledger);
                let holder = LockHolder::Server(None);
                return Err(OpenError::Locked { pid, host: None, holder });
            }
            // A process that is being started may have inherited a copy for a moment.
            pause(POLL_INTERVAL);
        }
        self.ledger_file = Some(ledger);
        Ok(())
    }

    pub(super) fn is_server(&self) -> bool {
        matches!(self.holder, LockHolder::Server(_))
    }

    /// Writes the holder and, for a server, the ledger's state. A command leaves the state: if the
    /// file is not as the last server closed it, the next server has to find that, too.
    pub(super) fn write_opened(&mut self, identity: &LedgerIdentity) -> io::Result<()> {
        if self.is_server() {
            self.state = Some(identity.state);
        } else {
            self.is_suspect = identity.suspect_reason.is_some();
        }
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        [Some(&self.file), self.mark.as_ref()]
            .into_iter()
            .flatten()
            .try_for_each(|f| f.set_len(0))?;
        self.write_over()
    }

    /// Writes over contents that are not longer. They are not synced: a lock file that a power failure
    /// put back disagrees with the ledger.
    fn write_over(&mut self) -> io::Result<()> {
        let pid = Some(std::process::id());
        let (host, holder, ledger) = (self.host.clone(), self.holder, self.state);
        let contents = serde_json::to_vec(&LockContents { pid, host, holder, ledger })?;
        self.file.write_all_at(&contents, 0)?;
        // A mark that is too old renames no ledger.
        if let Err(error) =
            self.mark.as_ref().map_or(Ok(()), |mark| mark.write_all_at(&contents, 0))
        {
            warn!(%error, "ledger mark not written; an old copy of its folder may go unnoticed");
            self.mark = None;
        }
        Ok(())
    }

    /// Has the next server check the ledger before it sells. If this cannot be written, the next
    /// server may sell while it checks.
    pub(super) fn require_check(&mut self) {
        let Some(state) = &mut self.state else { return };
        state.must_check = true;
        if let Err(error) = self.write() {
            warn!(%error, "ledger lock file not written; the next start checks the ledger");
        }
    }

    /// Records a new ledger that this process is about to put in place, as if a server had closed it.
    #[cfg(feature = "postgres")]
    pub(super) fn write_new(&mut self, file: &Path, state: LedgerState) -> io::Result<()> {
        self.state = Some(LedgerState { closed: file_stamp(file), ..state });
        self.write()
    }

    fn write_closed(&mut self) -> io::Result<()> {
        let was_closed = self.state.is_some_and(|state| state.closed.is_some());
        // A purchase that a server left open stays so.
        let may_write = self.is_server() || (was_closed && !self.is_suspect);
        if let Some(state) = &mut self.state
            && may_write
            && self.is_clean
        {
            state.closed = file_stamp(&self.path);
            self.write()?;
        }
        Ok(())
    }

    pub(super) fn write_latest(&mut self, latest: i64) -> io::Result<()> {
        let Some(state) = self.state.as_mut().filter(|state| state.latest_number < latest) else {
            return Ok(());
        };
        state.latest_number = latest;
        self.write_over()
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Reads what a holder wrote; an incomplete file names none.
fn read(mut file: &File) -> io::Result<LockContents> {
    file.rewind()?;
    let unknown =
        LockContents { pid: None, host: None, holder: LockHolder::Server(None), ledger: None };
    Ok(serde_json::from_str(&io::read_to_string(file)?).unwrap_or(unknown))
}

/// Returns the name of this machine or container.
pub fn host_name() -> Option<String> {
    let read = |path| fs::read_to_string(path).ok().map(|name| name.trim().to_owned());
    HOST_NAMES.into_iter().filter_map(read).find(|name| !name.is_empty())
}

/// Describes a ledger file that no process has open; `None` if it has a write-ahead log.
pub(super) fn file_stamp(ledger: &Path) -> Option<FileStamp> {
    if fs::metadata(with_suffix(ledger, "-wal")).is_ok_and(|log| log.len() > 0) {
        return None;
    }
    let found = fs::metadata(ledger).ok()?;
    let written = found.mtime().checked_mul(1_000_000_000)?.checked_add(found.mtime_nsec())?;
    Some(FileStamp { size: found.len(), modified: written, inode: found.ino() })
}

fn flock_owner(file: &File) -> Option<u32> {
    let inode = format!(":{}", file.metadata().ok()?.ino());
    let locks = fs::read_to_string(PROC_LOCKS).ok()?;
    locks.lines().find_map(|line| {
        // 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF
        let mut words = line.split_whitespace().skip(1);
        let is_this = words.next()? == "FLOCK" && words.nth(1)? == "WRITE";
        let pid = words.next()?.parse().ok()?;
        (is_this && pid > 0 && words.next()?.ends_with(&inode)).then_some(pid)
    })
}

/// Unlocks, because a process that is being started may still have copies of the descriptors.
impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = self.write_closed() {
            warn!(%error, "ledger lock file not written; the next start checks the ledger");
        }
        // Closed before another server of this process can open it: that would drop its locks.
        if let Some(ledger) = self.ledger_file.take() {
            let _ = ledger.unlock();
        }
        let _ = self.file.unlock();
    }
}

pub(in crate::ledger) fn lock_holder(path: &Path) -> Option<LockHolder> {
    let file = File::open(with_suffix(path, LOCK_SUFFIX)).ok()?;
    // Shared, so that two commands do not mistake each other for a server.
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => read(&file).ok().map(|contents| contents.holder),
        Ok(()) | Err(TryLockError::Error(_)) => None,
    }
}

pub(super) fn was_served(path: &Path) -> bool {
    fs::metadata(with_suffix(path, LOCK_SUFFIX)).is_ok_and(|lock| lock.len() > 0)
}

pub(in crate::ledger) fn with_suffix(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: LockHolder = LockHolder::Server(None);

    #[test]
    fn lock_is_released_even_if_a_child_inherited_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let lock = Lock::acquire(&path, SERVER, Duration::ZERO).unwrap();
        let inherited = lock.file.try_clone().unwrap();
        assert!(matches!(
            Lock::acquire(&path, SERVER, Duration::ZERO),
            Err(OpenError::Locked { .. })
        ));
        assert!(lock_holder(&path).is_some());
        drop(lock);
        assert!(lock_holder(&path).is_none());
        Lock::acquire(&path, SERVER, Duration::ZERO).unwrap();
        drop(inherited);
    }

    #[test]
    fn lock_names_its_holder_and_the_ops_address() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        for admin in
            [None, Some("127.0.0.1:9464".parse().unwrap()), Some("[::1]:1".parse().unwrap())]
        {
            let mut lock = Lock::acquire(&path, LockHolder::Server(admin), Duration::ZERO).unwrap();
            lock.write().unwrap();
            let refused = Lock::acquire(&path, LockHolder::Command, Duration::ZERO).unwrap_err();
            let OpenError::Locked { pid, host, holder } = refused else { panic!("{refused}") };
            assert_eq!((pid, holder), (Some(std::process::id()), LockHolder::Server(admin)));
            assert_eq!(host.as_deref(), host_name().as_deref());
        }
    }

    #[test]
    fn process_of_another_container_is_named_with_its_host() {
        let (pid, holder) = (Some(std::process::id()), SERVER);
        let said = |host: Option<&str>| {
            OpenError::Locked { pid, host: host.map(Into::into), holder }.to_string()
        };
        let id = std::process::id();
        let other = format!("another server uses the ledger: process {id} on host 3f2a9c");
        assert_eq!(said(Some("3f2a9c")), other);
        assert!(said(host_name().as_deref()).starts_with("this process already uses the ledger"));
    }

    #[test]
    fn server_waits_for_a_command_that_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let mut command = Lock::acquire(&path, LockHolder::Command, Duration::ZERO).unwrap();
        command.write().unwrap();
        let starts = path.clone();
        let starting = move || Lock::acquire(&starts, SERVER, Duration::ZERO).map(drop);
        let server = std::thread::spawn(starting);
        assert!(MAX_COMMAND_WAIT >= 100 * MAX_SERVER_WAIT);
        for _ in 0..1_000 {
            assert!(!server.is_finished());
            std::thread::yield_now();
        }
        drop(command);
        server.join().unwrap().unwrap();
    }
}
