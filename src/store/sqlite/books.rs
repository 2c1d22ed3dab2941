//! An open ledger: its connection, and what is known of it without asking.

use std::cell::Cell;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::fault::Fault;
use super::replies::Replies;
use crate::store::Room;
use crate::store::rules::Credit;

/// What steps work on.
pub(super) struct Books {
    pub(super) connection: Connection,
    pub(super) replies: Replies,
    /// How many purchases are remembered after their end; nothing is all.
    pub(super) remembered_ends: Option<usize>,
    /// How many are, where that is bounded.
    pub(super) ends: Cell<usize>,
    /// The number of the latest purchase of this transaction.
    pub(super) latest: Cell<Option<i64>>,
    /// What went wrong with steps that were undone alone.
    pub(super) fault: Cell<Option<Fault>>,
    /// Whether a purchase ended in this transaction.
    pub(super) has_ended: Cell<bool>,
    /// Whether a day ahead of the clock was logged.
    pub(super) warned_of_day: Cell<bool>,
}

impl Books {
    pub(super) fn new(connection: Connection, room: Room) -> Self {
        Self {
            connection,
            replies: Replies::within(room),
            remembered_ends: None,
            ends: Cell::default(),
            latest: Cell::default(),
            fault: Cell::default(),
            has_ended: Cell::default(),
            warned_of_day: Cell::new(false),
        }
    }

    /// As it was when it was new.
    pub(super) fn clear(&self) -> Result<(), Fault> {
        let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT IN
            ('credit', 'members_edition') ORDER BY rowid DESC";
        let mut tables = self.connection.prepare_cached(tables)?;
        let tables = tables.query_map([], |row| row.get::<_, String>(0))?;
        for table in tables.collect::<rusqlite::Result<Vec<_>>>()? {
            self.connection.prepare_cached(&format!("DELETE FROM {table}"))?.execute([])?;
        }
        self.connection.execute("UPDATE members_edition SET edition = 0", [])?;
        self.counters().set_credit(&Credit::default())?;
        self.replies.count_anew();
        self.ends.set(0);
        Ok(())
    }

    /// Does something in one transaction of its own.
    pub(super) fn transact(
        &self,
        work: impl FnOnce(&Self) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        // One that reads first would not wait for who writes just now.
        let writing = TransactionBehavior::Immediate;
        let transaction = Transaction::new_unchecked(&self.connection, writing)?;
        work(self)?;
        Ok(transaction.commit()?)
    }
}
