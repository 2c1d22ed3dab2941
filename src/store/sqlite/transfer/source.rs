//! A file whose ledger moves to another store.

use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use super::rows::{self, Position};
use crate::store::sqlite::column::nanos;
use crate::store::sqlite::ledger_file::LedgerFile;
use crate::store::sqlite::moved;
use crate::store::sqlite::open::open_to_move;
use crate::store::sqlite::writer::Writer;
use crate::store::sqlite::{OpenError, file};
use crate::store::transfer::cell::CellRow;
use crate::store::transfer::side::{Facts, MovedTo, Rows, Source};
use crate::store::transfer::tables::{Schema, TablePlan};
use crate::store::{Clock, MoneyKind, Reason};

/// Its first and its last purchase tell a ledger from others, and from itself after more sales. Its
/// name may change each time that it is opened.
const ENDS: &str = "SELECT (SELECT id FROM purchases ORDER BY number LIMIT 1),
    (SELECT id FROM purchases ORDER BY number DESC LIMIT 1)";

/// Other processes may read it, but not write it, until this is dropped.
pub(in crate::store) struct SqliteSource {
    /// `None` once it is closed.
    writer: Option<Writer>,
    clock: Clock,
    mark: Uuid,
    moved_to: Option<MovedTo>,
    position: Position,
}

impl SqliteSource {
    /// Locks the file as a server does, and ends what a crash interrupted.
    pub(in crate::store) fn open(
        path: &Path,
        clock: Clock,
        money: MoneyKind,
    ) -> Result<Self, Reason> {
        let unusable = OpenError::at::<Reason>(path);
        let writer = open_to_move(path, Arc::clone(&clock), money)?;
        let mut source = Self {
            writer: Some(writer),
            clock,
            mark: Uuid::nil(),
            moved_to: None,
            position: Position::default(),
        };
        let whole = source.connection().and_then(file::check_integrity);
        if whole.is_err() {
            // Not closed cleanly, so that the next start checks it, too.
            source.writer = None;
        }
        whole.and_then(|()| source.begin()).map_err(unusable)?;
        Ok(source)
    }

    /// Begins a transaction, so that no command writes meanwhile.
    fn begin(&mut self) -> Result<(), Reason> {
        let connection = self.connection()?;
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let moved_to = moved::destination(connection)?.map(MovedTo);
        let (first, last): (Option<Vec<u8>>, Option<Vec<u8>>) =
            connection.query_row(ENDS, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&first.unwrap_or_default()).update(&last.unwrap_or_default());
        let mut mark = [0; 16];
        hasher.finalize_xof().fill(&mut mark);
        self.mark = Uuid::from_bytes(mark);
        self.moved_to = moved_to;
        Ok(())
    }

    fn connection(&self) -> Result<&Connection, Reason> {
        let file = self.writer.as_ref().and_then(|writer| LedgerFile::of(&*writer.ledger.db));
        Ok(file.ok_or("it is closed")?.connection())
    }

    pub(in crate::store) fn schema(&self) -> Result<Schema, Reason> {
        rows::schema(self.connection()?)
    }
}

impl Rows for SqliteSource {
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

impl Source for SqliteSource {
    fn mark(&self) -> Uuid {
        self.mark
    }

    fn moved_to(&self) -> Option<&MovedTo> {
        self.moved_to.as_ref()
    }

    async fn facts(&mut self) -> Result<Facts, Reason> {
        let connection = self.connection()?;
        let text = |query: &str| connection.query_row(query, [], |row| row.get(0)).optional();
        let print = "SELECT print FROM secret";
        let version = "SELECT version FROM members_version";
        let limit = "SELECT requests, seconds FROM rate_limit";
        Ok(Facts {
            name: text("SELECT name FROM identity")?,
            money: text("SELECT kind FROM money")?,
            secret: connection.query_row(print, [], |row| row.get(0)).optional()?,
            members_version: connection.query_row(version, [], |row| row.get(0))?,
            rate_limit: connection
                .query_row(limit, [], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?,
        })
    }

    async fn count(&mut self, plan: &TablePlan) -> Result<u64, Reason> {
        rows::count(self.connection()?, plan)
    }

    async fn note_moved(&mut self, to: &str) -> Result<(), Reason> {
        let (connection, now) = (self.connection()?, nanos((self.clock)()));
        let note = "INSERT OR IGNORE INTO moved (number, destination, at) VALUES (1, ?, ?)";
        connection.execute(note, params![to, now])?;
        Ok(connection.execute_batch("COMMIT")?)
    }
}

impl Drop for SqliteSource {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        writer.ledger.db.roll_back().ok();
        writer.close();
    }
}
