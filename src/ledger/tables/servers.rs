//! The processes that share a ledger: by which rules and with which secret each runs.

use std::time::Duration;

use super::column::{exists, read};
use super::ledger::Ledger;
use crate::ledger::engine::{Engine, Result, Sql, params};
use crate::ledger::shared::SharedLedger;
use crate::ledger::writer::Durability;
use crate::ledger::{Digest, InstanceCounts, Store};

/// A process that was seen within this time counts as alive.
pub(in crate::ledger) const ALIVE: Duration = Duration::from_secs(30);

impl Store {
    /// Returns how many servers share the ledger; `None` if one has it alone, or if that cannot be
    /// read.
    pub async fn instance_counts(&self) -> Option<InstanceCounts> {
        if !self.is_shared() {
            return None;
        }
        let since = self.now().saturating_sub(ALIVE);
        let count = "SELECT coalesce(sum(CASE WHEN seen > ? THEN 1 ELSE 0 END), 0), count(*)
            FROM servers WHERE kind = 'server' AND ended IS NULL";
        let counts = move |db: &dyn Engine| {
            let (alive, all): (u64, u64) = db.one(count, [since], read)?;
            Ok(InstanceCounts { alive, late: all - alive })
        };
        self.run_report("instance_counts", counts).await.ok()
    }

    /// Notes, for operators, by which budgets and limits this server sells.
    pub fn note_rules(&self, rules: Digest) {
        self.notify("note_rules", Durability::Buffered, move |ledger| {
            let Some(server) = ledger.server() else { return Ok(()) };
            let note = "UPDATE servers SET rules = ? WHERE number = ?";
            ledger.db.run(note, params![rules, server]).map(drop)
        });
    }
}

impl Ledger {
    /// Returns the number of this process in a ledger that servers share.
    pub(super) fn server(&self) -> Option<i64> {
        self.db.shared().map(SharedLedger::server)
    }

    pub(super) fn note_secret(&self, secret: Digest) -> Result<()> {
        let Some(server) = self.server() else { return Ok(()) };
        let note = "UPDATE servers SET secret = ? WHERE number = ?";
        self.db.run(note, params![secret, server]).map(drop)
    }

    /// Returns whether another server that is alive hashes tokens with another secret.
    pub(super) fn is_other_secret_in_use(&self, secret: Digest) -> Result<bool> {
        let Some(server) = self.server() else { return Ok(false) };
        let others = "SELECT 1 FROM servers WHERE kind = 'server' AND number <> ? AND secret <> ?
            AND ended IS NULL AND seen > ?";
        let values = params![server, secret, self.now().saturating_sub(ALIVE)];
        exists(&*self.db, others, values)
    }
}
