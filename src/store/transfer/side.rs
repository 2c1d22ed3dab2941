//! What a copy needs of the store that it reads, and of the one that it writes.

use uuid::Uuid;

use super::cell::{Cell, CellRow};
use super::tables::TablePlan;
use crate::store::Reason;

/// A batch ends with as many rows, or when it needs as much memory.
pub(in crate::store) const BATCH_ROWS: usize = 5_000;
const BATCH_BYTES: usize = 16 << 20;

/// What a ledger has once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct Facts {
    /// The public name; `None` if no server has had the ledger yet.
    pub(in crate::store) name: Option<String>,
    pub(in crate::store) money: Option<String>,
    /// The fingerprint of the secret that tokens are hashed with.
    pub(in crate::store) secret: Option<Vec<u8>>,
    pub(in crate::store) members_version: i64,
    /// Requests, and the length of their window in seconds.
    pub(in crate::store) rate_limit: Option<(i64, i64)>,
}

/// Where a ledger was moved to, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct MovedTo(pub(in crate::store) String);

pub(in crate::store) trait Rows {
    /// Begins to read a table in the order of its key, after this many rows.
    async fn begin_reading(&mut self, plan: &TablePlan, skip: u64) -> Result<(), Reason>;

    /// Returns the next rows; none at the end.
    async fn next_rows(&mut self, plan: &TablePlan) -> Result<Vec<CellRow>, Reason>;
}

/// The ledger that is copied. Nothing changes it meanwhile.
pub(in crate::store) trait Source: Rows {
    /// Identifies the ledger, and changes when it has sold more.
    fn mark(&self) -> Uuid;

    fn moved_to(&self) -> Option<&MovedTo>;

    async fn facts(&mut self) -> Result<Facts, Reason>;

    async fn count(&mut self, plan: &TablePlan) -> Result<u64, Reason>;

    /// Has the ledger refuse to sell from now on.
    async fn note_moved(&mut self, to: &str) -> Result<(), Reason>;
}

/// The new ledger. Nothing can be sold from it before [`finish`](Self::finish).
pub(in crate::store) trait Target: Rows {
    /// Begins or resumes a copy of this source, and returns how many rows of each table are there.
    async fn begin(&mut self, plans: &[TablePlan], source: Uuid) -> Result<Vec<u64>, Reason>;

    /// Drops what was copied.
    async fn restart(&mut self, plans: &[TablePlan], source: Uuid) -> Result<(), Reason>;

    /// Adds rows of a table, of which this many are there, in one transaction.
    async fn write(&mut self, plan: &TablePlan, rows: &[CellRow], at: u64) -> Result<(), Reason>;

    async fn finish(&mut self, facts: &Facts) -> Result<(), Reason>;
}

/// The rows of a batch, until it is full.
#[derive(Debug, Default)]
pub(in crate::store) struct Batch {
    pub(in crate::store) rows: Vec<CellRow>,
    bytes: usize,
}

impl Batch {
    pub(in crate::store) fn push(&mut self, row: CellRow) {
        self.bytes += row.iter().map(Cell::size).sum::<usize>();
        self.rows.push(row);
    }

    pub(in crate::store) fn is_full(&self) -> bool {
        self.rows.len() >= BATCH_ROWS || self.bytes >= BATCH_BYTES
    }
}
