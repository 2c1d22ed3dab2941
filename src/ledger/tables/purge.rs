//! Deletes what has expired.

use tracing::warn;

use super::column::nanos;
use super::{notes, outbox, replies};
use crate::ledger::engine::{Sql, params};
use crate::ledger::{Store, Unavailable};

impl Store {
    pub async fn purge_expired(&self) -> Result<(), Unavailable> {
        let path = self.inner.path.clone();
        self.query("purge_expired", move |ledger| {
            ledger.db.ensure_own()?;
            if !path.as_os_str().is_empty()
                && let Err(error) = replies::purge_unparsable(&path, ledger.now())
            {
                warn!(%error, "failed to delete unparsable replies");
            }
            if ledger.db.dialect().is_shared() {
                let before = nanos(ledger.now().saturating_sub(replies::UNPARSABLE_RETENTION));
                let trim = "DELETE FROM unparsable_replies WHERE at <= ? OR id NOT IN
                    (SELECT id FROM unparsable_replies ORDER BY at DESC LIMIT ?)";
                ledger.db.run(trim, params![before, replies::MAX_UNPARSABLE])?;
            }
            notes::purge(&*ledger.db, ledger.steady())?;
            outbox::purge(&*ledger.db, ledger.now())?;
            ledger.replies.purge_expired(&*ledger.db, ledger.now())
        })
        .await
    }
}
