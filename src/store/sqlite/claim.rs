//! Finds the purchase that a claim may be the repeat of.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::column::{self, nanos};
use super::fault::Fault;
use super::replies;
use crate::store::{Claim, Earlier, Identity, Refused, State, Twin};

/// Nothing in the way, save perhaps a purchase that has to let go of the key first; or a refusal.
pub(super) fn judge(
    connection: &Connection,
    claim: &Claim,
    now: Duration,
) -> Result<Result<Option<i64>, Refused>, Fault> {
    match claim {
        Claim::Key { key, payload } => by_key(connection, key, payload, now),
        Claim::Twin(twin) => by_likeness(connection, twin, now),
    }
}

/// No claim finds the purchase any more.
pub(super) fn let_go(connection: &Connection, number: i64) -> Result<(), Fault> {
    let mut clear = connection.prepare_cached(
        "UPDATE purchases SET key = NULL, payload = NULL, likeness = NULL WHERE number = ?",
    )?;
    clear.execute([number])?;
    Ok(())
}

/// A key whose keep time is over is free again.
fn by_key(
    connection: &Connection,
    key: &Identity,
    payload: &Identity,
    now: Duration,
) -> Result<Result<Option<i64>, Refused>, Fault> {
    let mut find = connection.prepare_cached(
        "SELECT number, id, state, coalesce(cost_micros, toll_micros), keep_until, payload
         FROM purchases WHERE key = ?",
    )?;
    let found = find.query_row([key], |row| Ok((Found::read(row)?, row.get::<_, Identity>(5)?)));
    let Some((found, first)) = found.optional()? else { return Ok(Ok(None)) };
    if found.is_expired(now) {
        return Ok(Ok(Some(found.number)));
    }
    if first != *payload {
        return Ok(Err(Refused::KeyReused));
    }
    Ok(Err(Refused::Known(found.earlier(connection, now)?)))
}

/// One that is running, or the latest that ended within the window and may not have been seen.
fn by_likeness(
    connection: &Connection,
    twin: &Twin,
    now: Duration,
) -> Result<Result<Option<i64>, Refused>, Fault> {
    let mut running = connection.prepare_cached(
        "SELECT number, id, state, toll_micros, keep_until FROM purchases
         WHERE likeness = ? AND ended_at IS NULL",
    )?;
    let mut ended = connection.prepare_cached(
        "SELECT number, id, state, coalesce(cost_micros, toll_micros), keep_until FROM purchases
         WHERE likeness = ? AND ended_at BETWEEN ? AND ?
           AND (state = 'unknown' OR NOT delivered OR ended_at >= ?)
         ORDER BY ended_at DESC, number DESC LIMIT 1",
    )?;
    let found = match running.query_row([twin.likeness], Found::read).optional()? {
        Some(found) => Some(found),
        None => {
            let delivered_since = twin.delivered_since.map(nanos);
            let window =
                params![twin.likeness, nanos(twin.since), nanos(twin.until), delivered_since];
            ended.query_row(window, Found::read).optional()?
        }
    };
    match found {
        Some(found) => Ok(Err(Refused::Known(found.earlier(connection, now)?))),
        None => Ok(Ok(None)),
    }
}

struct Found {
    number: i64,
    earlier: Earlier,
    keep_until: Option<i64>,
}

impl Found {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let earlier = Earlier {
            id: column::id(row, 1)?,
            state: column::state(row, 2)?,
            toll: column::money(row, 3)?,
            reply_bytes: None,
        };
        Ok(Self { number: row.get(0)?, earlier, keep_until: row.get(4)? })
    }

    fn is_expired(&self, now: Duration) -> bool {
        self.earlier.state == State::Posted
            && self.keep_until.is_none_or(|until| until <= nanos(now))
    }

    fn earlier(self, connection: &Connection, now: Duration) -> Result<Earlier, Fault> {
        let is_kept = self.earlier.state == State::Posted && !self.is_expired(now);
        let reply_bytes = if is_kept { replies::size(connection, self.number)? } else { None };
        Ok(Earlier { reply_bytes, ..self.earlier })
    }
}
