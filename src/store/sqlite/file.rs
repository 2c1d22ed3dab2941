//! Opens a ledger's file, or says why it had better not be used: nothing in it is guessed.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use rusqlite::{Connection, OpenFlags};

use super::schema::{self, FileKind};
use super::{OpenError, StoreError, lock};
use crate::store::{StoreCapacity, Unavailable};

/// How long another process may hold the file before a step gives up.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// What a write-ahead log that was larger is cut to.
pub(super) const MAX_WAL_BYTES: u64 = 64 << 20;

const MOUNTS: &str = "/proc/self/mountinfo";

const MIN_LEDGER_BYTES: u64 = 512;

/// Every counter has to be the sum of its purchases. It follows `WITH counted AS (…)`,
/// the rows of [`schema::counted`].
const WRONG_COUNTERS: &str = ", own AS (
        SELECT 'caller ' || caller AS scope, day, month, sum(micros) AS micros
        FROM counted GROUP BY caller, day
    ), sums AS (
        SELECT 'total' AS scope, 'day' AS unit, day AS period, sum(micros) AS micros FROM own GROUP BY day
        UNION ALL SELECT 'total', 'month', month, sum(micros) FROM own GROUP BY month
        UNION ALL SELECT scope, 'day', day, micros FROM own
        UNION ALL SELECT scope, 'month', month, sum(micros) FROM own GROUP BY scope, month
    )
    SELECT count(*) FROM sums FULL JOIN spent USING (scope, unit, period)
    WHERE coalesce(sums.micros, 0) <> coalesce(spent.micros, 0)";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Make it, bring it up to date, write it.
    Serve,
    /// Make it, or write one that is up to date.
    Shared,
    /// Read one that is up to date.
    Read,
    /// Read what is there, of whichever version.
    Inspect,
}

/// A connection to a ledger that is as it has to be for `purpose`, as far as a glance tells. `path` must be
/// a file already, if perhaps empty.
pub(super) fn open(
    path: &Path,
    purpose: Purpose,
    room: StoreCapacity,
) -> Result<Connection, OpenError> {
    let (mut connection, kind) = connect(path, purpose)?;
    if purpose != Purpose::Read {
        prepare(&mut connection, kind, room).map_err(|why| OpenError::unusable(path, why))?;
    }
    Ok(connection)
}

/// A connection to a file of the right kind; nothing is written yet.
pub(super) fn connect(path: &Path, purpose: Purpose) -> Result<(Connection, FileKind), OpenError> {
    let connect = || {
        let access = match purpose {
            Purpose::Serve | Purpose::Shared => OpenFlags::SQLITE_OPEN_READ_WRITE,
            Purpose::Read | Purpose::Inspect => OpenFlags::SQLITE_OPEN_READ_ONLY,
        };
        let sql = |error: rusqlite::Error| error.to_string();
        let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_EXRESCODE;
        let connection = Connection::open_with_flags(path, flags).map_err(sql)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(sql)?;
        connection.set_prepared_statement_cache_capacity(64);
        for (pragma, value) in [("cell_size_check", "ON"), ("trusted_schema", "OFF")] {
            connection.pragma_update(None, pragma, value).map_err(sql)?;
        }
        let kind = schema::file_kind(&connection).map_err(sql)?;
        check_version(kind, purpose)?;
        if matches!(kind, FileKind::Ledger(_)) && access == OpenFlags::SQLITE_OPEN_READ_WRITE {
            check_whole_pages(&connection, path)?;
        }
        Ok((connection, kind))
    };
    connect().map_err(|why: String| OpenError::unusable(path, why))
}

/// Brings the file up to date, and has it written as it has to be.
pub(super) fn prepare(
    connection: &mut Connection,
    kind: FileKind,
    room: StoreCapacity,
) -> Result<(), String> {
    let sql = |error: rusqlite::Error| error.to_string();
    // A server that runs may be writing just now.
    if kind != FileKind::Ledger(schema::newest_version()) {
        schema::migrate(connection).map_err(sql)?;
    }
    let log = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
    let mode = connection.query_row("PRAGMA journal_mode = WAL", [], log).map_err(sql)?;
    if mode != "wal" {
        return Err("its file system does not allow a write-ahead log".to_owned());
    }
    connection.pragma_update(None, "synchronous", "FULL").map_err(sql)?;
    for limit in [
        Some(format!("PRAGMA journal_size_limit = {MAX_WAL_BYTES}")),
        room.pages.map(|pages| format!("PRAGMA max_page_count = {pages}")),
    ] {
        let Some(limit) = limit else { continue };
        connection.query_row(&limit, [], |_| Ok(())).map_err(sql)?;
    }
    Ok(())
}

fn check_version(kind: FileKind, purpose: Purpose) -> Result<(), String> {
    let newest = schema::newest_version();
    match (kind, purpose) {
        (FileKind::Foreign, _) => Err("it is not a ledger of tollgate".to_owned()),
        (FileKind::Ledger(version), _) if version > newest => {
            Err(format!("its version is {version}; this tollgate knows {newest} at most"))
        }
        (FileKind::Ledger(version), Purpose::Shared | Purpose::Read) if version < newest => {
            Err(format!("its version is {version}; start the server once to bring it to {newest}"))
        }
        (FileKind::Empty, Purpose::Read | Purpose::Inspect) => {
            Err("there is nothing in it yet".to_owned())
        }
        (FileKind::Empty | FileKind::Ledger(_), _) => Ok(()),
    }
}

/// SQLite reads a last page that was cut as if zeros followed. Where there is a log, it has that page.
pub(super) fn check_whole_pages(connection: &Connection, path: &Path) -> Result<(), String> {
    let page: u64 = connection
        .pragma_query_value(None, "page_size", |row| row.get(0))
        .map_err(|error| error.to_string())?;
    let has_log = size_of(&lock::with_suffix(path, "-wal")) > 0;
    match has_log || size_of(path).is_multiple_of(page.max(1)) {
        true => Ok(()),
        false => Err("it is damaged: its last page was cut".to_owned()),
    }
}

/// Looks for damage: in the file's structure and its indexes, then in the money. It reads the whole file.
pub(super) fn check_integrity(connection: &mut Connection) -> Result<(), String> {
    let damaged = |error: rusqlite::Error| format!("it is damaged: {error}");
    let view = connection.transaction().map_err(damaged)?;
    let version =
        view.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(damaged)?;
    let wrong_counters = format!("WITH counted AS ({}){WRONG_COUNTERS}", schema::counted(version));
    let verdict: String =
        view.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(damaged)?;
    if verdict != "ok" {
        return Err(format!("it is damaged: {verdict}"));
    }
    let wrong: i64 = view.query_row(&wrong_counters, [], |row| row.get(0)).map_err(damaged)?;
    if wrong != 0 {
        return Err(format!("it is damaged: {wrong} of its counters are not their purchases' sum"));
    }
    view.commit().map_err(damaged)
}

/// Whatever is there already is a file. A device would be changed for every process, not just for us.
pub(super) fn ensure_regular_file(path: &Path) -> Result<(), OpenError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(OpenError::unusable(path, "it is not a file")),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// A file, whatever it is called: its device and its number there.
pub(super) type FileId = (u64, u64);

pub(super) fn file_id(path: &Path) -> io::Result<FileId> {
    fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Whoever goes on with a file that nobody will find again loses what it sells.
pub(super) fn ensure_not_replaced(path: &Path, file: FileId) -> Result<(), StoreError> {
    let what = match file_id(path) {
        Ok(found) if found != file => "replaced",
        Err(error) if error.kind() == io::ErrorKind::NotFound => "removed",
        Ok(_) | Err(_) => return Ok(()),
    };
    let why = format!("{} was {what} under the server", path.display());
    Err(StoreError::Permanent(Unavailable(why.into())))
}

/// Its write-ahead log lies beside a file and is named after it, so a file with two paths would have two.
pub(super) fn ensure_single_path(path: &Path) -> Result<(), OpenError> {
    let found = fs::metadata(path).map_err(|error| OpenError::unusable(path, error))?;
    if found.nlink() > 1 {
        let why = format!(
            "it has {} hard links, and must have one; `find -samefile` names the others",
            found.nlink()
        );
        return Err(OpenError::unusable(path, why));
    }
    // Where the kernel lists no mounts, there are none to be feared.
    let mounts = fs::read(MOUNTS).unwrap_or_default();
    if is_mount_point(&mounts, path) {
        let why = "it is mounted by itself; mount its folder, never the file";
        return Err(OpenError::unusable(path, why));
    }
    Ok(())
}

/// Whether `path` is the fifth word of a line: where something is mounted.
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
    let exists = path.try_exists().map_err(|error| OpenError::unusable(path, error))?;
    // SQLite takes a file that is shorter than its smallest page for a new one.
    if (1..MIN_LEDGER_BYTES).contains(&size_of(path)) {
        return Err(OpenError::unusable(path, "it is not a ledger of tollgate"));
    }
    if size_of(path) == 0 {
        if size_of(&lock::with_suffix(path, "-wal")) > 0 {
            return Err(OpenError::unusable(path, "its write-ahead log is there, but it is not"));
        }
        if exists && lock::was_served(path) {
            return Err(OpenError::unusable(
                path,
                "it is empty, but it was not; remove it to begin anew",
            ));
        }
    }
    Ok(())
}

/// Makes sure that there is a file, for its owner alone. It is never opened here: closing it would
/// drop the locks that SQLite may hold on it in this process.
pub(super) fn create(path: &Path) -> Result<(), OpenError> {
    ensure_not_truncated(path)?;
    let created = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match created {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))
                .map_err(|error| OpenError::unusable(path, error))
        }
        Err(error) => Err(OpenError::unusable(path, error)),
    }
}

pub(super) fn size_of(path: &Path) -> u64 {
    fs::metadata(path).map(|file| file.len()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

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
