//! A new file for a ledger that comes from another store.
//!
//! It has another name until it is complete, so that no server finds a part of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params, params_from_iter};
use uuid::Uuid;

use super::rows::{self, Position};
use crate::store::sqlite::backup::publish;
use crate::store::sqlite::file::{self, Purpose};
use crate::store::sqlite::handle::canonical_path;
use crate::store::sqlite::lock::{Lock, with_suffix};
use crate::store::sqlite::{LockHolder, OpenError};
use crate::store::transfer::cell::{Cell, CellRow};
use crate::store::transfer::side::{Facts, Rows, Target};
use crate::store::transfer::tables::{Key, Schema, TablePlan};
use crate::store::{Reason, StoreCapacity};

const PARTIAL_SUFFIX: &str = ".importing";

pub(in crate::store) struct SqliteTransfer {
    path: PathBuf,
    partial: PathBuf,
    /// `None` once it is closed.
    connection: Option<Connection>,
    source: Uuid,
    position: Position,
    /// Keeps servers from creating a ledger there.
    lock: Lock,
}

impl SqliteTransfer {
    pub(in crate::store) fn open(path: &Path) -> Result<Self, Reason> {
        let path = canonical_path(path);
        let partial = with_suffix(&path, PARTIAL_SUFFIX);
        file::ensure_not_truncated(&path)?;
        let lock = Lock::acquire(&path, LockHolder::Command, Duration::ZERO)?;
        if path.symlink_metadata().is_ok() {
            let why =
                "it exists, and a copy overwrites nothing: name another file, or move it away";
            return Err(OpenError::unusable(&path, why).into());
        }
        let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial);
        if let Err(error) = created
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(OpenError::unusable(&partial, Reason::at(&partial, error)).into());
        }
        let (mut connection, kind) = file::connect(&partial, Purpose::Shared)?;
        file::prepare(&mut connection, kind, StoreCapacity::default())
            .map_err(OpenError::at(&partial))?;
        let (source, position) = (Uuid::nil(), Position::default());
        Ok(Self { path, partial, connection: Some(connection), source, position, lock })
    }

    pub(in crate::store) fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::store) fn schema(&self) -> Result<Schema, Reason> {
        rows::schema(self.connection()?)
    }

    fn connection(&self) -> Result<&Connection, Reason> {
        Ok(self.connection.as_ref().ok_or("it is closed")?)
    }

    fn done(&self, plans: &[TablePlan]) -> Result<Vec<u64>, Reason> {
        let find = "SELECT last FROM imports WHERE source = ? AND done_table = ?";
        let mut done = Vec::with_capacity(plans.len());
        for plan in plans {
            let key = params![self.source.as_bytes(), plan.table.name];
            let last = self.connection()?.query_row(find, key, |row| row.get(0)).optional()?;
            done.push(last);
        }
        let known: Option<Vec<u64>> = done.into_iter().collect();
        Ok(known.unwrap_or_default())
    }
}

impl Rows for SqliteTransfer {
    async fn begin_reading(&mut self, _: &TablePlan, skip: u64) -> Result<(), Reason> {
        self.position = Position::after(skip);
        Ok(())
    }

    async fn next_rows(&mut self, plan: &TablePlan) -> Result<Vec<CellRow>, Reason> {
        let mut position = std::mem::take(&mut self.position);
        let rows = rows::next(self.connection()?, plan, &mut position);
        self.position = position;
        rows
    }
}

impl Target for SqliteTransfer {
    async fn begin(&mut self, plans: &[TablePlan], source: Uuid) -> Result<Vec<u64>, Reason> {
        self.source = source;
        let done = self.done(plans)?;
        if !done.is_empty() {
            return Ok(done);
        }
        self.restart(plans, source).await?;
        Ok(vec![0; plans.len()])
    }

    async fn restart(&mut self, plans: &[TablePlan], source: Uuid) -> Result<(), Reason> {
        let transaction = self.connection()?.unchecked_transaction()?;
        for plan in plans.iter().rev() {
            transaction.execute(&format!("DELETE FROM {}", plan.table.name), [])?;
        }
        transaction.execute("DELETE FROM imports", [])?;
        let begin = "INSERT INTO imports (source, done_table, last) VALUES (?, ?, 0)";
        for plan in plans {
            transaction.execute(begin, params![source.as_bytes(), plan.table.name])?;
        }
        Ok(transaction.commit()?)
    }

    async fn write(&mut self, plan: &TablePlan, rows: &[CellRow], at: u64) -> Result<(), Reason> {
        let mut names: Vec<_> = plan.names().collect();
        if let Key::Position { sqlite, .. } = plan.table.key {
            names.push(sqlite);
        }
        let marks = vec!["?"; names.len()].join(", ");
        let (table, names) = (plan.table.name, names.join(", "));
        let insert = format!("INSERT INTO {table} ({names}) VALUES ({marks})");
        let transaction = self.connection()?.unchecked_transaction()?;
        for (number, row) in (at + 1..).zip(rows) {
            let number = match plan.table.key {
                Key::Columns => None,
                Key::Position { .. } => Some(Cell::Integer(number.try_into().unwrap_or(i64::MAX))),
            };
            let mut insert = transaction.prepare_cached(&insert)?;
            insert.execute(params_from_iter(row.iter().chain(&number)))?;
        }
        let note = "UPDATE imports SET last = ? WHERE source = ? AND done_table = ?";
        let last = at + rows.len() as u64;
        transaction.execute(note, params![last, self.source.as_bytes(), plan.table.name])?;
        Ok(transaction.commit()?)
    }

    async fn finish(&mut self, facts: &Facts) -> Result<(), Reason> {
        let nonce = Uuid::now_v7().into_bytes();
        self.write_facts(facts, nonce)?;
        let connection = self.connection.take().ok_or("it is closed")?;
        file::check_integrity(&connection)?;
        let latest = "SELECT coalesce(max(number), 0) FROM purchases";
        let latest = connection.query_row(latest, [], |row| row.get(0))?;
        // The last connection empties the write-ahead log.
        connection.close().map_err(|(_, error)| error)?;
        File::open(&self.partial)?.sync_all()?;
        // Before the file is there: a server that finds it without this would rename the ledger.
        self.lock.write_new(&self.partial, nonce, latest)?;
        publish(&self.partial, &self.path)
    }
}

impl SqliteTransfer {
    fn write_facts(&self, facts: &Facts, nonce: [u8; 16]) -> Result<(), Reason> {
        let transaction = self.connection()?.unchecked_transaction()?;
        if let Some(name) = &facts.name {
            let identity =
                "INSERT OR REPLACE INTO identity (number, name, nonce, boot, ended_through)
                VALUES (1, ?, ?, '', (SELECT coalesce(max(number), 0) FROM purchases))";
            transaction.execute(identity, params![name, nonce])?;
        }
        if let Some(money) = &facts.money {
            let kind = "INSERT OR REPLACE INTO money (number, kind) VALUES (1, ?)";
            transaction.execute(kind, [money])?;
        }
        if let Some(secret) = &facts.secret {
            let print = "INSERT OR REPLACE INTO secret (number, print) VALUES (1, ?)";
            transaction.execute(print, [secret])?;
        }
        let version = "UPDATE members_version SET version = ?";
        transaction.execute(version, [facts.members_version])?;
        if let Some((requests, seconds)) = facts.rate_limit {
            let limit =
                "INSERT OR REPLACE INTO rate_limit (number, requests, seconds) VALUES (1, ?, ?)";
            transaction.execute(limit, [requests, seconds])?;
        }
        transaction.execute("DELETE FROM imports", [])?;
        Ok(transaction.commit()?)
    }
}
