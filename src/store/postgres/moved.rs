//! Whether the ledger was moved to a file, or is just coming from one.

use std::time::Duration;

use super::column;
use super::flush::PreparedConnection;
use super::instance::LIVING;
use super::step::statement;
use crate::store::Reason;

const STATE: &str = "SELECT moved_to, moved_at, EXISTS (SELECT 1 FROM imports) FROM store";

pub(super) struct MoveState {
    /// Where and when it was moved.
    pub(super) moved_to: Option<(String, Duration)>,
    /// A copy into it is not complete.
    pub(super) is_importing: bool,
}

pub(super) async fn state(session: &PreparedConnection) -> Result<MoveState, Reason> {
    let query = statement!(STATE);
    let rows = session.query(query.sql, &query.values).await?;
    let row = rows.first().ok_or("its table `store` is empty")?;
    let at = column::moment_or_none(row, 1).map_err(|error| error.0)?;
    let to: Option<String> = row.try_get(0)?;
    Ok(MoveState { moved_to: to.zip(at), is_importing: row.try_get(2)? })
}

/// Refuses a ledger that cannot be used, because another store has it. Who only reads may use one that
/// was moved.
pub(super) async fn ensure_here(
    session: &PreparedConnection,
    reads_only: bool,
) -> Result<(), Reason> {
    let state = state(session).await?;
    if state.is_importing {
        let why = "a copy into it was not finished: run the same `tollgate store copy` again";
        return Err(why.into());
    }
    match state.moved_to {
        Some((to, at)) if !reads_only => Err(Reason::moved(&to, at)),
        Some(_) | None => Ok(()),
    }
}

/// Refuses a ledger that living instances use.
pub(super) async fn ensure_idle(session: &PreparedConnection) -> Result<(), Reason> {
    let rows = session.query(LIVING, &[]).await?;
    let mut names = Vec::new();
    for row in &rows {
        if row.try_get(2)? {
            names.push(row.try_get::<_, String>(1)?);
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    let names = names.join(", ");
    Err(format!("{names} use it: stop all servers and commands, or wait 15 s if they died").into())
}
