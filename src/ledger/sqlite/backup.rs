//! Copies a ledger into a new file, also while a server sells from it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use rusqlite::Connection;

use super::file::{self, Purpose};
use super::lock::with_suffix;
use super::{OpenError, canonical_path};
use crate::ledger::Reason;
use crate::ledger::Store;
use crate::ledger::tables::duration;

/// A copy of a ledger, as it was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backup {
    pub bytes: u64,
    pub purchases: u64,
    /// When the last purchase began, since the Unix epoch.
    pub latest_at: Option<Duration>,
}

impl Store {
    /// Writes a checked copy of the ledger at `path` to `target`, which must not exist. A failure
    /// leaves no file. Blocks, and needs no lock.
    pub fn back_up(path: &Path, target: &Path) -> Result<Backup, OpenError> {
        let (connection, _) = file::connect(&canonical_path(path), Purpose::Read)?;
        copy(&connection, target).map_err(OpenError::at(target))
    }
}

fn copy(source: &Connection, target: &Path) -> Result<Backup, Reason> {
    if target.symlink_metadata().is_ok() {
        return Err("it exists; a backup overwrites nothing".into());
    }
    let partial = with_suffix(target, ".partial");
    let copied = write(source, &partial).and_then(|backup| {
        publish(&partial, target)?;
        Ok(backup)
    });
    if copied.is_err() {
        fs::remove_file(&partial).ok();
    }
    copied
}

fn write(source: &Connection, partial: &Path) -> Result<Backup, Reason> {
    // From an earlier attempt that was killed.
    match fs::remove_file(partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    // SQLite writes into an empty file, and keeps its permissions.
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(partial)?;
    let name = partial.to_str().ok_or("its path is not valid UTF-8")?;
    source.execute("VACUUM INTO ?", [name])?;
    let backup = checked(partial)?;
    File::open(partial)?.sync_all()?;
    Ok(backup)
}

/// Checks a copy as [`file::check_integrity`] does.
fn checked(path: &Path) -> Result<Backup, Reason> {
    let opened = file::connect(path, Purpose::Inspect).map_err(Reason::from)?;
    let (connection, _) = opened;
    file::check_integrity(&connection)?;
    let latest = "SELECT count(*), max(at) FROM purchases";
    let (purchases, latest_at) = connection.query_row(latest, [], |row| {
        let at: Option<i64> = row.get(1)?;
        Ok((row.get(0)?, at.map(duration)))
    })?;
    Ok(Backup { bytes: file::size_of(path), purchases, latest_at })
}

/// Renames a complete file, and overwrites nothing.
pub(super) fn publish(partial: &Path, target: &Path) -> Result<(), Reason> {
    renameat2(AT_FDCWD, partial, AT_FDCWD, target, RenameFlags::RENAME_NOREPLACE)
        .map_err(io::Error::from)?;
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok(File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?)
}
