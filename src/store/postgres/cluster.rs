//! The database cluster that a ledger is in: a restored backup, or a replica that took over, may lack
//! purchases.
//!
//! A start and each new connection of the sales lane notice another cluster, or another timeline of
//! it. A dump that is restored in the same cluster looks like the original, so the operator reports it.

use tokio_postgres::error::SqlState;
use tracing::{error, warn};

use super::PostgresTarget;
use super::column::nanos;
use super::flush::PreparedConnection;
use super::schema::{after_loss, new_name};
use super::step::statement;
use crate::store::Reason;

/// The timeline changes when a replica takes over, or when a backup was rolled forward.
const CLUSTER: &str =
    "SELECT system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
    FROM pg_control_system()";

/// Records the cluster. If it is another one, or if the operator says so (`$2`), purchases and slots
/// may be missing: the ledger gets another name, one period of the rate limit passes without a
/// request, the balance is read again, and no number of an instance is given twice. The name is read
/// under the lock: another server may just have renamed the ledger.
const NOTE: &str = concat!(
    "WITH found AS MATERIALIZED (
  SELECT $2::boolean OR coalesce(cluster <> $1::text, false) AS is_other, name
  FROM store FOR UPDATE
), noted AS (
  UPDATE store SET cluster = coalesce($1::text, cluster), name = CASE WHEN is_other THEN ",
    new_name!("{clock}"),
    " ELSE store.name END
  FROM found WHERE is_other OR cluster IS NULL RETURNING store.name
), ",
    after_loss!("found WHERE is_other", "$3::bigint"),
    "
SELECT is_other, coalesce(noted.name, found.name),
  CASE WHEN is_other THEN setval(of, nextval(of) + 1000000) END
FROM instance_numbers, found LEFT JOIN noted ON true"
);

/// Compares the cluster with the one that the ledger was in, notes it, and returns the ledger's name.
pub(super) async fn check_cluster(
    session: &PreparedConnection,
    target: &PostgresTarget,
) -> Result<String, Reason> {
    let (is_other, name) = note_cluster(session, target, false).await?;
    if is_other {
        error!("ledger is in another database cluster or timeline; ledger renamed");
    }
    Ok(name)
}

/// Notes the cluster. Returns whether the ledger was renamed, and its name.
pub(super) async fn note_cluster(
    session: &PreparedConnection,
    target: &PostgresTarget,
    is_restored: bool,
) -> Result<(bool, String), Reason> {
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
    Ok((row.try_get(0)?, row.try_get(1)?))
}
