//! An open ledger: its connection, and what is known of it without asking.

use std::cell::Cell;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::fault::Fault;
use super::replies::Replies;
use crate::store::Room;

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
            warned_of_day: Cell::new(false),
        }
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
