//! Renames a ledger whose database was restored from a backup, or was taken over by a replica: it
//! may lack purchases.
//!
//! A start notices another cluster, or another timeline of it. A dump that is restored in the same
//! cluster looks like the original, so the operator reports it.

use std::sync::Arc;

use tokio_postgres::error::SqlState;
use tracing::{error, warn};

use super::PostgresTarget;
use super::clock::LedgerClock;
use super::column::nanos;
use super::connect::connect;
use super::flush::PreparedConnection;
use super::moved;
use super::schema::{self, after_loss, new_name};
use super::step::statement;
use crate::store::Reason;

/// The timeline changes when a replica takes over, or when a backup was rolled forward.
const CLUSTER: &str =
    "SELECT system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
    FROM pg_control_system()";

/// Records the cluster. If it is another one, or if the operator says so (`$2`), purchases and slots
/// may be missing: the ledger gets another name, one period of the rate limit passes without a
/// request, the balance is read again, and no number of an instance is given twice.
const NOTE: &str = concat!(
    "WITH found AS MATERIALIZED (
  SELECT $2::boolean OR coalesce(cluster <> $1::text, false) AS is_other
  FROM store FOR UPDATE
), noted AS (
  UPDATE store SET cluster = coalesce($1::text, cluster), name = CASE WHEN is_other THEN ",
    new_name!("{clock}"),
    " ELSE name END
  FROM found WHERE is_other OR cluster IS NULL
), ",
    after_loss!("found WHERE is_other", "$3::bigint"),
    "
SELECT is_other, CASE WHEN is_other THEN setval(of, nextval(of) + 1000000) END
FROM found, instance_numbers"
);

/// Compares the cluster with the one that the ledger was in, and notes it.
pub(super) async fn check_cluster(
    session: &PreparedConnection,
    target: &PostgresTarget,
) -> Result<(), Reason> {
    if note(session, target, false).await? {
        error!("ledger is in another database cluster or timeline; ledger renamed");
    }
    Ok(())
}

async fn note(
    session: &PreparedConnection,
    target: &PostgresTarget,
    is_restored: bool,
) -> Result<bool, Reason> {
    let cluster: Option<String> = match session.query(CLUSTER, &[]).await {
        Ok(rows) => rows.first().map(|row| row.try_get(0)).transpose()?,
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            warn!(%error, "database cluster not identified; restores and failovers go unnoticed");
            None
        }
        Err(error) => return Err(error.into()),
    };
    let note = statement!(NOTE, cluster, is_restored, target.rate_period.map(nanos));
    let rows = session.query(note.sql, &note.values).await?;
    let row = rows.first().ok_or("its table `store` is empty")?;
    Ok(row.try_get(0)?)
}

/// Renames a ledger that was restored from a backup, and returns its name. Fails while an instance
/// uses it.
pub async fn report_restore(target: &PostgresTarget) -> Result<String, Reason> {
    let clock = Arc::new(LedgerClock::new(None));
    let session = PreparedConnection::new(connect(target).await?, clock);
    schema::prepare(&session, target.may_migrate).await?;
    moved::ensure_here(&session, false).await?;
    moved::ensure_idle(&session).await?;
    note(&session, target, true).await?;
    let rows = session.query("SELECT name FROM store", &[]).await?;
    let name = rows.first().ok_or("its table `store` is empty")?.try_get(0)?;
    session.close().await;
    Ok(name)
}
