//! Opens a ledger's file, or explains why it must not be used.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use nix::unistd::AccessFlags;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::schema::{self, FileKind};
use super::{OpenError, lock};
use crate::clock;
use crate::ledger::engine::StoreError;
use crate::ledger::schema::newest_version;
use crate::ledger::{Cause, Reason, StoreCapacity, Unavailable};
use crate::sync::pause;

/// How long a server waits for another process that writes.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a start or a command waits for another writer. Only its operator waits for it.
pub(super) const MAX_WRITER_WAIT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(super) const MAX_WAL_BYTES: u64 = 64 << 20;

/// For the connection that sells: keys are random, so each new one needs another page of their index.
const CACHE_KIB: i32 = 8 << 10;

const MOUNTS: &str = "/proc/self/mountinfo";

const MIN_LEDGER_BYTES: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ledger) enum Purpose {
    /// Create, migrate and write it.
    Serve,
    /// Create it, or write it if it has the newest version.
    Shared,
    /// Read it if it has the newest version.
    Read,
    /// Read it, whatever its version.
    Inspect,
}

pub(in crate::ledger) fn open(path: &Path, purpose: Purpose) -> Result<Connection, OpenError> {
    let (mut connection, kind) = connect(path, purpose)?;
    if purpose != Purpose::Read {
        let capacity = StoreCapacity::default();
        prepare(&mut connection, kind, capacity).map_err(OpenError::at(path))?;
    }
    Ok(connection)
}

pub(super) fn connect(path: &Path, purpose: Purpose) -> Result<(Connection, FileKind), OpenError> {
    let connect = || {
        let access = match purpose {
            Purpose::Serve | Purpose::Shared => OpenFlags::SQLITE_OPEN_READ_WRITE,
            Purpose::Read | Purpose::Inspect => OpenFlags::SQLITE_OPEN_READ_ONLY,
        };
        let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_EXRESCODE;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(match purpose {
            Purpose::Shared => MAX_WRITER_WAIT,
            Purpose::Serve | Purpose::Read | Purpose::Inspect => BUSY_TIMEOUT,
        })?;
        keep_plans(&connection)?;
        connection.set_prepared_statement_cache_capacity(64);
        // Sorts stay in memory: there may be no folder for temporary files.
        let pragmas =
            [("cell_size_check", "ON"), ("trusted_schema", "OFF"), ("temp_store", "MEMORY")];
        for (pragma, value) in pragmas {
            connection.pragma_update(None, pragma, value)?;
        }
        if purpose == Purpose::Serve {
            // A positive number would count pages.
            connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
        }
        let kind = schema::file_kind(&connection)?;
        check_version(kind, purpose)?;
        if matches!(kind, FileKind::Ledger(_)) && access == OpenFlags::SQLITE_OPEN_READ_WRITE {
            check_whole_pages(&connection, path)?;
        }
        Ok((connection, kind))
    };
    connect().map_err(OpenError::at::<Reason>(path))
}

/// Plans each statement once. By default SQLite looks at the value of a `LIMIT ?`, for example, and
/// prepares the statement again at each use.
pub(super) fn keep_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

pub(super) fn prepare(
    connection: &mut Connection,
    kind: FileKind,
    capacity: StoreCapacity,
) -> Result<(), Reason> {
    // A running server may be writing now.
    if kind != FileKind::Ledger(newest_version()) {
        schema::migrate(connection)?;
    }
    if use_write_ahead_log(connection)? != "wal" {
        return Err("its file system does not support a write-ahead log".into());
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    let log_limit = Some(format!("PRAGMA journal_size_limit = {MAX_WAL_BYTES}"));
    let page_limit = capacity.pages.map(|pages| format!("PRAGMA max_page_count = {pages}"));
    let mut limits = log_limit.iter().chain(&page_limit);
    Ok(limits.try_for_each(|limit| connection.query_row(limit, [], |_| Ok(())))?)
}

/// Returns the mode of the log. SQLite's own wait does not cover the change of it: of several commands
/// that make a ledger at the same time, all but one would fail.
fn use_write_ahead_log(connection: &Connection) -> rusqlite::Result<String> {
    let since = clock::now();
    loop {
        match connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)) {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && since.elapsed() < MAX_WRITER_WAIT =>
            {
                pause(POLL_INTERVAL);
            }
            done => return done,
        }
    }
}

fn check_version(kind: FileKind, purpose: Purpose) -> Result<(), Reason> {
    let newest = newest_version();
    Err(match (kind, purpose) {
        (FileKind::Foreign, _) => "it is not a tollgate ledger".into(),
        (FileKind::BeforeRelease, _) => {
            "a tollgate before the first release made it, and this one cannot read it; \
             move it away to start a new ledger"
                .into()
        }
        (FileKind::Ledger(version), _) if version > newest => Reason::new(
            Cause::NewerVersion,
            format!("its version is {version}; this tollgate supports versions up to {newest}"),
        ),
        (FileKind::Ledger(version), Purpose::Shared | Purpose::Read) if version < newest => {
            format!("its version is {version}; start the server once to migrate it to {newest}")
                .into()
        }
        (FileKind::Empty, Purpose::Read | Purpose::Inspect) => "it is empty".into(),
        (FileKind::Empty | FileKind::Ledger(_), _) => return Ok(()),
    })
}

fn damaged(why: impl std::fmt::Display) -> Reason {
    Reason::new(Cause::Damaged, format!("it is damaged: {why}"))
}

/// SQLite reads a truncated last page as if zeros followed. A write-ahead log still has the page.
pub(super) fn check_whole_pages(connection: &Connection, path: &Path) -> Result<(), Reason> {
    let page: u64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let has_log = size_of(&lock::with_suffix(path, "-wal")) > 0;
    if has_log || size_of(path).is_multiple_of(page.max(1)) {
        Ok(())
    } else {
        Err(damaged("its last page is truncated"))
    }
}

/// How much each purchase counts.
const COUNTED: &str = "SELECT caller, day, month, CASE state WHEN 'released' THEN 0
        WHEN 'charged' THEN cost_micros ELSE price_micros END AS micros, group_name, token
    FROM purchases";

/// Checks the file's structure, its indexes, its times and its counters. Reads the
/// whole file. Only damage has the cause [`Cause::Damaged`]; the check itself may fail, too.
pub(super) fn check_integrity(connection: &Connection) -> Result<(), Reason> {
    let failed = |error: rusqlite::Error| {
        let reason = Reason::from(error);
        if reason.cause == Cause::Damaged {
            return damaged(reason);
        }
        Reason::new(reason.cause, format!("it could not be checked: {reason}"))
    };
    let view = connection.unchecked_transaction().map_err(failed)?;
    let verdict: String =
        view.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(failed)?;
    if verdict != "ok" {
        return Err(damaged(verdict));
    }
    let earlier = "SELECT count(*) FROM purchases WHERE at < 0 OR ended_at < 0 OR keep_until < 0";
    let earlier: i64 = view.query_row(earlier, [], |row| row.get(0)).map_err(failed)?;
    if earlier != 0 {
        return Err(damaged(format!("{earlier} purchases have a time before 1970")));
    }
    let wrong = count_wrong_counters(&view).map_err(failed)?;
    if wrong != 0 {
        let why = format!("{wrong} counters differ from the sum of their purchases");
        return Err(damaged(why));
    }
    view.commit().map_err(failed)
}

/// Counts the counters that are not the sum of their purchases. The sums are made here, because
/// SQLite would sort all purchases for them, and by a hash of each counter's name, because there
/// may be a million callers.
fn count_wrong_counters(view: &Connection) -> rusqlite::Result<usize> {
    let mut differences = HashMap::<[u8; 16], i64>::new();
    let mut add = |scope: [&[u8]; 2], unit: &[u8], period: i64, micros: i64| {
        let mut hasher = blake3::Hasher::new();
        scope.iter().for_each(|part| _ = hasher.update(part));
        hasher.update(b"\0").update(unit).update(&period.to_be_bytes());
        let mut counter = [0; 16];
        hasher.finalize_xof().fill(&mut counter);
        let sum = differences.entry(counter).or_default();
        *sum = sum.saturating_add(micros);
    };
    let mut purchases = view.prepare(COUNTED)?;
    let mut rows = purchases.query([])?;
    while let Some(row) = rows.next()? {
        let micros = row.get::<_, Option<i64>>(3)?.unwrap_or(0);
        let group = row.get_ref(4)?.as_bytes_or_null()?;
        let token = row.get_ref(5)?.as_bytes_or_null()?;
        let always: [[&[u8]; 2]; 2] = [[b"total", b""], [b"caller ", row.get_ref(0)?.as_bytes()?]];
        let named = group.map(|name| [b"group ".as_slice(), name]).into_iter();
        let named = named.chain(token.map(|name| [b"token ".as_slice(), name]));
        for scope in always.into_iter().chain(named) {
            add(scope, b"day", row.get(1)?, micros);
            add(scope, b"month", row.get(2)?, micros);
        }
    }
    let mut counters = view.prepare("SELECT scope, unit, period, micros FROM spent")?;
    let mut rows = counters.query([])?;
    while let Some(row) = rows.next()? {
        let (scope, unit) = (row.get_ref(0)?.as_bytes()?, row.get_ref(1)?.as_bytes()?);
        add([scope, &[]], unit, row.get(2)?, row.get::<_, i64>(3)?.saturating_neg());
    }
    Ok(differences.values().filter(|difference| **difference != 0).count())
}

/// A device is refused, because setting its permissions would change it for every process.
pub(super) fn ensure_regular_file(path: &Path) -> Result<(), OpenError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(OpenError::unusable(path, "it is not a regular file")),
        Ok(_) | Err(_) => Ok(()),
    }
}

pub(super) type FileId = (u64, u64);

pub(super) fn file_id(path: &Path) -> io::Result<FileId> {
    fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Refuses a path that no longer leads to `file`: its purchases would be lost.
pub(super) fn ensure_not_replaced(path: &Path, file: FileId) -> Result<(), StoreError> {
    let what = match file_id(path) {
        Ok(found) if found != file => "replaced",
        Err(error) if error.kind() == io::ErrorKind::NotFound => "removed",
        Ok(_) | Err(_) => return Ok(()),
    };
    let why = format!("{} was {what} while the server was running", path.display());
    Err(StoreError::Permanent(Unavailable(Reason::new(Cause::Replaced, why))))
}

/// The write-ahead log is named after the path, so a file with two paths would have two logs.
pub(super) fn ensure_single_path(path: &Path) -> Result<(), OpenError> {
    let found = fs::metadata(path).map_err(OpenError::at(path))?;
    if found.nlink() > 1 {
        let why = format!(
            "it has {} hard links; remove all but one (`find -samefile` lists them)",
            found.nlink()
        );
        return Err(OpenError::unusable(path, why));
    }
    // No list of mounts means that there are none.
    let mounts = fs::read(MOUNTS).unwrap_or_default();
    if is_mount_point(&mounts, path) {
        let why = "it is a mount point; mount its folder, not the file";
        return Err(OpenError::unusable(path, why));
    }
    Ok(())
}

/// Returns whether `path` is a mount point: the fifth word of a line.
fn is_mount_point(mounts: &[u8], path: &Path) -> bool {
    let escape = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    let path: Vec<u8> = path.as_os_str().as_bytes().iter().flat_map(escape).collect();
    let mut points = mounts
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.any(|point| point == path)
}

/// Refuses a file that is too short to be the ledger that was there.
pub(super) fn ensure_not_truncated(path: &Path) -> Result<(), OpenError> {
    ensure_regular_file(path)?;
    let exists = path.try_exists();
    let exists = exists.map_err(|error| OpenError::unusable(path, Reason::at(path, error)))?;
    let why: &str = match size_of(path) {
        // SQLite treats a file shorter than its smallest page as a new one.
        1..MIN_LEDGER_BYTES => "it is not a tollgate ledger",
        0 if size_of(&lock::with_suffix(path, "-wal")) > 0 => {
            "its write-ahead log exists, but the ledger is missing or empty"
        }
        0 if exists && lock::was_served(path) => {
            "it is empty, but a server has used it; remove it to start over"
        }
        _ => return Ok(()),
    };
    Err(OpenError::unusable(path, why))
}

/// Creates the file if there is none, for its owner only. An existing one is not opened, because
/// closing it would drop the locks that SQLite may hold on it in this process.
pub(super) fn create(path: &Path) -> Result<(), OpenError> {
    ensure_not_truncated(path)?;
    let created = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match created {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let private = fs::Permissions::from_mode(0o600);
            fs::set_permissions(path, private).map_err(|error| {
                if error.kind() == io::ErrorKind::PermissionDenied {
                    return OpenError::unusable(path, foreign());
                }
                OpenError::unusable(path, error)
            })
        }
        Err(error) => Err(OpenError::unusable(path, error)),
    }
}

/// Refuses what this user could not write, without a change.
pub(super) fn ensure_writable(path: &Path) -> Result<(), OpenError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let needs = |at: &Path, mode| {
        let access = nix::unistd::access(at, mode).map_err(io::Error::from);
        access.map_err(|error| OpenError::unusable(at, Reason::at(at, error)))
    };
    needs(folder, AccessFlags::W_OK | AccessFlags::X_OK)?;
    let Ok(found) = fs::metadata(path) else { return Ok(()) };
    let user = nix::unistd::geteuid();
    if !user.is_root() && user.as_raw() != found.uid() {
        return Err(OpenError::unusable(path, foreign()));
    }
    let suffixes = ["", "-wal", "-shm", ".lock"].map(|suffix| lock::with_suffix(path, suffix));
    let mut files = suffixes.iter().filter(|file| file.exists());
    files.try_for_each(|file| needs(file, AccessFlags::R_OK | AccessFlags::W_OK))
}

fn foreign() -> Reason {
    Reason::new(Cause::Permission, "it belongs to another user; chown it to the server's")
}

pub(super) fn size_of(path: &Path) -> u64 {
    fs::metadata(path).map(|file| file.len()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    #[test]
    fn statement_is_prepared_once_for_all_values() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        fs::write(&path, []).unwrap();
        let ledger = open(&path, Purpose::Serve).unwrap();
        let mut oldest = ledger.prepare("SELECT number FROM jobs LIMIT ?").unwrap();
        for most in 1..4 {
            assert!(!oldest.exists([most]).unwrap());
        }
        assert_eq!(oldest.get_status(StatementStatus::RePrepare), 0);
    }

    #[test]
    fn mounted_file_is_recognised_by_its_escaped_path() {
        let mounts = b"22 28 0:21 / /proc rw shared:1 - proc proc rw\n\
            99 28 8:1 /a/t.db /data/my\\040folder/t.db rw - ext4 /dev/sda1 rw\n";
        for (path, expected) in [
            ("/data/my folder/t.db", true),
            ("/data/my folder", false),
            ("/proc", true),
            ("/a/t.db", false),
        ] {
            assert_eq!(is_mount_point(mounts, Path::new(path)), expected, "{path}");
        }
    }
}
