//! Renames a ledger that was restored from a backup, as the operator reports it.

use std::sync::Arc;

use super::PostgresTarget;
use super::clock::LedgerClock;
use super::cluster::note_cluster;
use super::connect::connect;
use super::flush::PreparedConnection;
use super::moved;
use super::schema;
use crate::store::Reason;

/// Renames a ledger that was restored from a backup, and returns its name. Fails while an instance
/// uses it.
pub async fn report_restore(target: &PostgresTarget) -> Result<String, Reason> {
    let clock = Arc::new(LedgerClock::new(None));
    let session = PreparedConnection::new(connect(target).await?, clock);
    schema::prepare(&session, target.may_migrate).await?;
    moved::ensure_here(&session, false).await?;
    moved::ensure_idle(&session).await?;
    let (_, name) = note_cluster(&session, target, true).await?;
    session.close().await;
    Ok(name)
}
