//! Ends the purchases of servers that are gone.

use std::time::Duration;

use tracing::warn;

use super::column::{self, nanos};
use super::ledger::Ledger;
use super::{notes, outbox, slots};
use crate::ledger::engine::{Result, Row, Sql, SqlParams};
use crate::ledger::rules::Credit;
use crate::ledger::schema::IS_RUNNING;
use crate::ledger::{Deadlines, PurchaseState, Settlement};

/// The columns of a purchase that is to be ended.
const ENDED: &str = "id, state, caller, model";
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

impl Ledger {
    /// Ends the purchases that a crash left running: unsent ones are released, sent ones become
    /// unknown.
    pub(in crate::ledger) fn recover(&self) -> Result<()> {
        self.opened_at.set(Some(self.steady()));
        self.end_those(&format!("SELECT {ENDED} FROM purchases WHERE {IS_RUNNING}"), ())?;
        self.write_counters()?;
        self.credit.set(Credit::default());
        outbox::recover(self)?;
        notes::recover(self)?;
        slots::recover(self, self.now())
    }

    /// Ends what other servers have left, once a second. Their late outcomes are still recorded.
    pub(super) fn end_overdue(&self) -> Result<()> {
        let now = self.now();
        let Some(deadlines) = self.db.deadlines() else { return Ok(()) };
        if now < self.next_sweep.get() {
            return Ok(());
        }
        self.next_sweep.set(now.saturating_add(SWEEP_INTERVAL));
        let overdue = format!(
            "SELECT {ENDED} FROM purchases WHERE ended_at IS NULL AND deadline < ? ORDER BY deadline LIMIT 100"
        );
        self.end_those(&overdue, [nanos(now)])?;
        // A slot may be taken long before its purchase is recorded as sent.
        slots::end_overdue(self, deadlines.held + deadlines.sent)
    }

    /// Ends running purchases: unsent ones are released, sent ones become unknown.
    fn end_those(&self, which: &str, values: impl SqlParams) -> Result<()> {
        let read = |row: &Row<'_>| {
            let texts: (String, String) = (row.get(2)?, row.get(3)?);
            Ok((column::id(row, 0)?, column::state(row, 1)?, texts))
        };
        for (id, state, (caller, model)) in self.db.all(which, values, read)? {
            let was_sent = state == PurchaseState::Sent;
            let settlement = if was_sent { Settlement::Unknown } else { Settlement::Released };
            let state = state.name();
            warn!(purchase = %id, caller, model, state, "recovered in-flight purchase after crash");
            self.settle(id, &settlement)?;
            self.metrics.count_recovered(if was_sent { "unknown" } else { "released" });
        }
        Ok(())
    }

    /// Returns when others may end a purchase that comes into this state now.
    pub(super) fn deadline(&self, state: PurchaseState) -> Option<i64> {
        let Deadlines { held, sent } = self.db.deadlines()?;
        let most = if state == PurchaseState::Held { held } else { sent };
        Some(nanos(self.now().saturating_add(most)))
    }
}
