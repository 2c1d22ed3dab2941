//! Commands of operators on a shared ledger.

use std::sync::Arc;

use super::PostgresTarget;
use super::engine::PostgresEngine;
use super::servers::{self, InstanceRecord};
use super::session::PostgresSession;
use super::tables::has_tables;
use crate::ledger::Reason;
use crate::ledger::engine::{Engine, Result, Sql};
use crate::ledger::tables::find_other_issuer;

/// The clock of this machine may be wrong.
const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000";

/// Returns the processes that share the ledger, oldest first.
pub async fn list_instances(target: &PostgresTarget) -> Result<Vec<InstanceRecord>, Reason> {
    let missing = "there are no tables: start a server, or run `tollgate store migrate`";
    let list = |db: &dyn Engine| servers::list(db, db.one(NOW, (), |row| row.get(0))?);
    read(target, list).await?.ok_or_else(|| missing.into())
}

/// Returns the issuer of a ledger's users, if it is another one. A ledger without tables has none.
pub async fn other_issuer(
    target: &PostgresTarget,
    issuer: &str,
) -> Result<Option<Arc<str>>, Reason> {
    let issuer = issuer.to_owned();
    Ok(read(target, move |db| find_other_issuer(db, &issuer)).await?.flatten())
}

/// Returns whether the ledger has the other kind of money. A database without tables has none.
pub async fn has_other_money(target: &PostgresTarget) -> Result<bool, Reason> {
    let money = target.money.name();
    let find = "SELECT count(*) > 0 FROM money WHERE kind <> ?";
    let found = read(target, move |db| db.one(find, [money], |row| row.get(0))).await?;
    Ok(found.unwrap_or_default())
}

/// Refuses programs that know only earlier versions of the tables. Fails while one of them runs.
pub async fn contract(target: &PostgresTarget) -> Result<(), Reason> {
    on_thread(target, |target| PostgresEngine::change_once(target, PostgresEngine::contract)).await
}

/// Renames a ledger that was restored from a backup, and returns its name. Fails while a process uses
/// it.
pub async fn report_restore(target: &PostgresTarget) -> Result<String, Reason> {
    on_thread(target, |target| PostgresEngine::change_once(target, PostgresEngine::report_restore))
        .await
}

/// Reads a ledger, if there are tables.
async fn read<T: Send + 'static>(
    target: &PostgresTarget,
    query: impl Fn(&dyn Engine) -> Result<T> + Send + 'static,
) -> Result<Option<T>, Reason> {
    on_thread(target, move |target| {
        let session = PostgresSession::new(target)?;
        Ok(session.report(|db| has_tables(db)?.then(|| query(db)).transpose())?)
    })
    .await
}

/// Runs what waits for the database on a thread of its own.
pub(super) async fn on_thread<T: Send + 'static>(
    target: &PostgresTarget,
    work: impl FnOnce(PostgresTarget) -> Result<T, Reason> + Send + 'static,
) -> Result<T, Reason> {
    let target = target.clone();
    let done = tokio::task::spawn_blocking(move || work(target)).await;
    done.unwrap_or_else(|_| Err("the ledger's thread has ended".into()))
}
