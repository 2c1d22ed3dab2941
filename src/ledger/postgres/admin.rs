//! Commands of operators on a shared ledger.

use std::sync::Arc;
use std::time::Duration;

use super::PostgresTarget;
use super::engine::PostgresEngine;
use super::servers::{self, InstanceRecord};
use super::session::PostgresSession;
use crate::ledger::Reason;
use crate::ledger::engine::{Engine, Result, Sql};
use crate::ledger::tables::find_other_issuer;

/// The clock of this machine may be wrong.
const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000";

/// Returns the processes that share the ledger, oldest first.
pub async fn list_instances(target: &PostgresTarget) -> Result<Vec<InstanceRecord>, Reason> {
    let missing = "there are no tables: start a server, or run `tollgate store migrate`";
    let list = |db: &dyn Engine| {
        if !has_tables(db)? {
            return Ok(None);
        }
        let now = Duration::from_nanos(db.one(NOW, (), |row| row.get(0))?);
        Ok(Some(servers::list(db, now)?))
    };
    read(target, list).await?.ok_or_else(|| missing.into())
}

/// Returns the issuer of a ledger's users, if it is another one. A ledger without tables has none.
pub async fn other_issuer(
    target: &PostgresTarget,
    issuer: &str,
) -> Result<Option<Arc<str>>, Reason> {
    let issuer = issuer.to_owned();
    read(target, move |db| if has_tables(db)? { find_other_issuer(db, &issuer) } else { Ok(None) })
        .await
}

/// Returns whether the ledger has the other kind of money. A database without tables has none.
pub async fn has_other_money(target: &PostgresTarget) -> Result<bool, Reason> {
    let money = target.money.name();
    read(target, move |db| {
        let find = "SELECT 1 FROM money WHERE kind <> ?";
        Ok(has_tables(db)? && db.first(find, [money], |_| Ok(()))?.is_some())
    })
    .await
}

/// Refuses programs that know only earlier versions of the tables. Fails while one of them runs.
pub async fn contract(target: &PostgresTarget) -> Result<(), Reason> {
    on_thread(target.clone(), |target| {
        PostgresEngine::change_once(target, |engine, now| servers::contract(engine, now))
    })
    .await
}

/// Renames a ledger that was restored from a backup, and returns its name. Fails while a process uses
/// it.
pub async fn report_restore(target: &PostgresTarget) -> Result<String, Reason> {
    on_thread(target.clone(), PostgresEngine::report_restore).await
}

fn has_tables(db: &dyn Engine) -> Result<bool> {
    db.one("SELECT to_regclass('ledger') IS NOT NULL", (), |row| row.get(0))
}

async fn read<T: Send + 'static>(
    target: &PostgresTarget,
    query: impl Fn(&dyn Engine) -> Result<T> + Send + 'static,
) -> Result<T, Reason> {
    on_thread(target.clone(), move |target| {
        let session = PostgresSession::new(target)?;
        let mut found = None;
        let done = session.report(&mut |db| {
            found = Some(query(db)?);
            Ok(())
        });
        session.close();
        done.map_err(|fault| fault.unavailable().0)?;
        found.ok_or_else(|| "the report failed".into())
    })
    .await
}

/// Runs what waits for the database on a thread of its own.
async fn on_thread<T: Send + 'static>(
    target: PostgresTarget,
    work: impl FnOnce(PostgresTarget) -> Result<T, Reason> + Send + 'static,
) -> Result<T, Reason> {
    let done = tokio::task::spawn_blocking(move || work(target)).await;
    done.unwrap_or_else(|_| Err("the ledger's thread has ended".into()))
}
