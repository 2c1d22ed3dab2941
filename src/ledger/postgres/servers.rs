//! The processes that share a ledger, for operators. No purchase depends on this table.

use std::time::Duration;

use super::PostgresTarget;
use crate::ledger::Unavailable;
use crate::ledger::engine::{Engine, Result, Sql, params};
use crate::ledger::schema::newest_version;
use crate::ledger::tables::{ALIVE, read};

/// How often a process notes that it is alive.
pub(super) const RENEWAL: Duration = Duration::from_secs(10);
/// How long ended processes are listed.
const RETENTION: Duration = Duration::from_secs(86_400);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceState {
    Alive,
    /// It has not been seen for half a minute.
    Late,
    Ended(Duration),
}

/// A process that has, or had, the ledger open.
#[derive(Clone, Debug)]
pub struct InstanceRecord {
    pub id: i64,
    /// `server` or `command`.
    pub kind: String,
    pub name: String,
    pub process: i64,
    /// By the ledger's clock.
    pub began: Duration,
    pub state: InstanceState,
}

/// The row of this process. A database that has lost it may have given its number to another one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServerRow {
    pub(super) number: i64,
    began: Duration,
}

/// Adds the row of this process, within a transaction.
fn enter(db: &dyn Engine, target: &PostgresTarget, now: Duration) -> Result<ServerRow> {
    let old = [now.saturating_sub(RETENTION)];
    db.run("DELETE FROM servers WHERE ended < ?1 OR seen < ?1", old)?;
    let next = "SELECT coalesce(max(number), 0) + 1 FROM servers";
    let row = ServerRow { number: db.one(next, (), read)?, began: now };
    let insert = "INSERT INTO servers (number, kind, name, pid, schema, began, seen)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)";
    let (kind, pid) = (target.kind.name(), std::process::id());
    db.run(
        insert,
        params![row.number, kind, target.instance_name, pid, newest_version(), row.began],
    )?;
    Ok(row)
}

/// Notes that this process is alive, and returns its row and how many servers have other rules.
pub(super) fn renew(
    db: &dyn Engine,
    row: ServerRow,
    target: &PostgresTarget,
    now: Duration,
) -> Result<(ServerRow, i64)> {
    let seen = "UPDATE servers SET seen = ?3, ended = NULL WHERE number = ?1 AND began = ?2";
    let is_known = db.run(seen, params![row.number, row.began, now])? > 0;
    let row = if is_known { row } else { enter(db, target, now)? };
    let others = "SELECT count(*) FROM servers AS own, servers AS other
        WHERE own.number = ?1 AND other.rules <> own.rules AND other.ended IS NULL AND other.seen > ?2";
    let since = alive_since(now);
    Ok((row, db.one(others, params![row.number, since], read)?))
}

/// Notes the end of this process, and leaves its jobs to others.
pub(super) fn leave(db: &dyn Engine, row: ServerRow, now: Duration) -> Result<()> {
    let end = "UPDATE servers SET ended = ?3 WHERE number = ?1 AND began = ?2";
    db.run(end, params![row.number, row.began, now])?;
    let give_up = "UPDATE jobs SET polled_until = 0 WHERE poller = ? AND state = 'open'";
    db.run(give_up, [row.number])?;
    Ok(())
}

/// Refuses a ledger that living processes use.
pub(in crate::ledger) fn ensure_idle(db: &dyn Engine, now: Duration) -> Result<()> {
    let alive = "SELECT name FROM servers WHERE ended IS NULL AND seen > ? ORDER BY name";
    let names: Vec<String> = db.all(alive, [alive_since(now)], read)?;
    refuse(&names, "use it: stop all servers and commands, or wait 30 s if they died")
}

/// Refuses programs of earlier versions from now on, so that a later migration may remove what only
/// they need. Fails while one is alive.
pub(super) fn contract(db: &dyn Engine, now: Duration) -> Result<()> {
    let older = "SELECT name FROM servers
        WHERE ended IS NULL AND seen > ? AND schema < ? ORDER BY number";
    let values = params![alive_since(now), newest_version()];
    let names: Vec<String> = db.all(older, values, read)?;
    refuse(&names, "run an older tollgate: stop or upgrade them first")?;
    db.run("UPDATE ledger SET floor = ?1 WHERE floor < ?1", [newest_version()])?;
    Ok(())
}

fn alive_since(now: Duration) -> Duration {
    now.saturating_sub(ALIVE)
}

fn refuse(names: &[String], why: &str) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let why = format!("{} {why}", names.join(", "));
    Err(Unavailable(why.into()).into())
}

/// Returns the processes, oldest first.
pub(super) fn list(db: &dyn Engine, now: Duration) -> Result<Vec<InstanceRecord>> {
    let all = "SELECT number, kind, name, pid, began, ended, seen > ? FROM servers
        WHERE ended IS NULL OR ended > ? ORDER BY number";
    let since = [ALIVE, RETENTION].map(|age| now.saturating_sub(age));
    db.all(all, since, |row| {
        let state = match (row.get(5)?, row.get(6)?) {
            (Some(ended), _) => InstanceState::Ended(ended),
            (None, true) => InstanceState::Alive,
            (None, false) => InstanceState::Late,
        };
        Ok(InstanceRecord {
            id: row.get(0)?,
            kind: row.get(1)?,
            name: row.get(2)?,
            process: row.get(3)?,
            began: row.get(4)?,
            state,
        })
    })
}
