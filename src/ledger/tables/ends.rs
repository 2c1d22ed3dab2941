//! Ends the purchases of servers that are gone, and deletes what has expired.

use std::time::Duration;

use tracing::warn;

use super::column::read;
use super::ledger::Ledger;
use super::{notes, outbox, replies, slots};
use crate::ledger::engine::{Result, Sql, SqlParams, params};
use crate::ledger::rules::Credit;
use crate::ledger::schema::IS_RUNNING;
use crate::ledger::shared::SharedLedger;
use crate::ledger::{Deadlines, PurchaseId, PurchaseState, Settlement, Store, Unavailable};

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

impl Ledger {
    /// Ends the purchases that a crash left running: unsent ones are released, sent ones become
    /// unknown.
    pub(in crate::ledger) fn recover(&self) -> Result<()> {
        self.opened_at.set(Some(self.steady()));
        self.end_those(IS_RUNNING, ())?;
        self.write_counters()?;
        self.credit.set(Credit::default());
        outbox::recover(self)?;
        notes::recover(self)?;
        slots::recover(self, self.now())
    }

    /// Ends what other servers have left, once a second. Their late outcomes are still recorded.
    pub(super) fn end_overdue(&self) -> Result<()> {
        let now = self.now();
        let Some(deadlines) = self.db.shared().map(SharedLedger::deadlines) else { return Ok(()) };
        if now < self.next_sweep.get() {
            return Ok(());
        }
        self.next_sweep.set(now.saturating_add(SWEEP_INTERVAL));
        let overdue = "ended_at IS NULL AND deadline < ? ORDER BY deadline LIMIT 100";
        self.end_those(overdue, [now])?;
        // A slot may be taken long before its purchase is recorded as sent.
        slots::end_overdue(self, deadlines.held + deadlines.sent)
    }

    /// Ends running purchases: unsent ones are released, sent ones become unknown.
    fn end_those(&self, which: &str, values: impl SqlParams) -> Result<()> {
        let find = format!("SELECT id, state, caller, model FROM purchases WHERE {which}");
        let found: Vec<(PurchaseId, PurchaseState, String, String)> =
            self.db.all(&find, values, read)?;
        for (id, state, caller, model) in found {
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
    pub(super) fn deadline(&self, state: PurchaseState) -> Option<Duration> {
        let Deadlines { held, sent } = self.db.shared()?.deadlines();
        let most = if state == PurchaseState::Held { held } else { sent };
        Some(self.now().saturating_add(most))
    }
}

impl Store {
    pub async fn purge_expired(&self) -> Result<(), Unavailable> {
        let path = self.inner.path.clone();
        let purge = move |ledger: &Ledger| {
            let now = ledger.now();
            ledger.db.ensure_own()?;
            if !path.as_os_str().is_empty()
                && let Err(error) = replies::purge_unparsable(&path, now)
            {
                warn!(%error, "failed to delete unparsable replies");
            }
            if ledger.db.dialect().is_shared() {
                let before = now.saturating_sub(replies::UNPARSABLE_RETENTION);
                let trim = "DELETE FROM unparsable_replies WHERE at <= ? OR id NOT IN
                    (SELECT id FROM unparsable_replies ORDER BY at DESC LIMIT ?)";
                ledger.db.run(trim, params![before, replies::MAX_UNPARSABLE])?;
            }
            notes::purge(ledger)?;
            outbox::purge(ledger)?;
            ledger.replies.purge_expired(&*ledger.db, now)
        };
        self.query("purge_expired", purge).await
    }
}
