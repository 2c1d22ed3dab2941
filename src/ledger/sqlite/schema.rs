//! Tells whether a SQLite file is a ledger, and of which version.

use rusqlite::Connection;

use crate::ledger::schema::{MIGRATIONS, SqlDialect};

/// Marks a SQLite file as ours: `tgat`.
pub(super) const APPLICATION: i64 = 0x7467_6174;
/// Marks a file of a tollgate before its first release: `toll`.
const BEFORE_RELEASE: i64 = 0x746f_6c6c;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Empty,
    Ledger(i64),
    BeforeRelease,
    Foreign,
}

pub(super) fn file_kind(connection: &Connection) -> rusqlite::Result<FileKind> {
    // In one transaction: another process may be creating the file.
    let moment = connection.unchecked_transaction()?;
    let pragma = |name| moment.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    Ok(match (application, version) {
        (APPLICATION, 1..) => FileKind::Ledger(version),
        (BEFORE_RELEASE, _) => FileKind::BeforeRelease,
        (0, 0) if pragma("page_count")? == 0 => FileKind::Empty,
        _ => FileKind::Foreign,
    })
}

pub(in crate::ledger) fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    apply_migrations(connection, MIGRATIONS)
}

fn apply_migrations(connection: &mut Connection, migrations: &[&str]) -> rusqlite::Result<()> {
    // With foreign keys, a table that others refer to could not be replaced by one with other constraints.
    // It cannot be switched within a transaction.
    connection.pragma_update(None, "foreign_keys", false)?;
    let migrated = in_one_transaction(connection, migrations);
    connection.pragma_update(None, "foreign_keys", true)?;
    migrated
}

fn in_one_transaction(connection: &mut Connection, migrations: &[&str]) -> rusqlite::Result<()> {
    let writing = rusqlite::TransactionBehavior::Immediate;
    let transaction = connection.transaction_with_behavior(writing)?;
    let version: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let mut next = version;
    for migration in migrations.iter().skip(usize::try_from(version).unwrap_or(usize::MAX)) {
        transaction.execute_batch(&SqlDialect::Sqlite.fill_in(migration))?;
        next += 1;
    }
    if next != version {
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", next)?;
    }
    transaction.commit()
}

#[cfg(test)]
mod tests;
