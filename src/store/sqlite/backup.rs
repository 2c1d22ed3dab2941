//! Copies a ledger into a new file, also while a server sells from it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use rusqlite::Connection;

use super::file::{self, Purpose};
use super::handle::{SqliteStore, canonical_path};
use super::lock::with_suffix;
use super::{OpenError, column};
use crate::store::Reason;

/// A copy of a ledger, as it was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backup {
    pub bytes: u64,
    pub purchases: u64,
    /// When the last purchase began, since the Unix epoch.
    pub latest_at: Option<Duration>,
}

impl SqliteStore {
    pub(in crate::store) fn back_up(path: &Path, target: &Path) -> Result<Backup, OpenError> {
        let (connection, _) = file::connect(&canonical_path(path), Purpose::Read)?;
        copy(&connection, target).map_err(OpenError::at(target))
    }
}

/// Keeps the file as it was before its migration to `version`, and deletes the copy of an earlier
/// migration.
pub(super) fn copy_before_migration(connection: &Connection, version: i64) -> Result<(), Reason> {
    let Some(path) = connection.path().filter(|path| !path.is_empty()) else { return Ok(()) };
    let path = Path::new(path);
    for earlier in copies_before_migrations(path) {
        fs::remove_file(earlier)?;
    }
    let target = with_suffix(path, &format!(".before-{version}"));
    copy(connection, &target).map(|_| ()).map_err(|Reason { cause, text }| {
        let needed = file::size_of(path).div_ceil(1 << 20);
        let shown = target.display();
        let why = format!(
            "it must be migrated, and its copy {shown} cannot be made: {text}; the copy needs up to \
             {needed} MiB"
        );
        Reason::new(cause, why)
    })
}

fn copies_before_migrations(path: &Path) -> Vec<PathBuf> {
    let prefix = with_suffix(path, ".before-");
    let name = prefix.file_name().unwrap_or_default().as_encoded_bytes();
    let folder = path.parent().unwrap_or(Path::new("."));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_copy = |file: &OsString| {
        let version = file.as_encoded_bytes().strip_prefix(name);
        version.is_some_and(|version| !version.is_empty() && version.iter().all(u8::is_ascii_digit))
    };
    entries.map(|entry| entry.file_name()).filter(is_copy).map(|file| folder.join(file)).collect()
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
    let (mut connection, _) = opened;
    file::check_integrity(&mut connection)?;
    let latest = "SELECT count(*), max(at) FROM purchases";
    let (purchases, latest_at) = connection.query_row(latest, [], |row| {
        let at: Option<i64> = row.get(1)?;
        Ok((row.get(0)?, at.map(column::duration)))
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
