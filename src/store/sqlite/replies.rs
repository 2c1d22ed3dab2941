//! Keeps replies for replay, within bounds: the oldest go first.

use std::time::Duration;

use rusqlite::Connection;
use rusqlite::OptionalExtension;
use rusqlite::params;

use super::books::Books;
use super::column::nanos;
use super::fault::Fault;
use crate::store::KeptReply;

/// How much room they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    replies: usize,
    bytes: usize,
}

/// The reply to a purchase, unless it was dropped.
pub(super) fn of(connection: &Connection, number: i64) -> Result<Option<KeptReply>, Fault> {
    let mut find =
        connection.prepare_cached("SELECT status, is_json, body FROM replies WHERE number = ?")?;
    let found = find.query_row([number], |row| {
        let body: Vec<u8> = row.get(2)?;
        Ok(KeptReply { status: row.get(0)?, is_json: row.get(1)?, body: body.into() })
    });
    Ok(found.optional()?)
}

/// Keeps one more, and drops the oldest while there are too many.
pub(super) fn keep(books: &Books, number: i64, reply: &KeptReply, until: i64) -> Result<(), Fault> {
    if reply.body.len() > books.room.reply_bytes {
        return Ok(());
    }
    let mut kept = match books.kept.get() {
        Some(kept) => kept,
        None => count(&books.connection)?,
    };
    let mut insert = books.connection.prepare_cached(
        "INSERT INTO replies (number, until, status, is_json, body) VALUES (?, ?, ?, ?, ?)",
    )?;
    insert.execute(params![number, until, reply.status, reply.is_json, &reply.body[..]])?;
    kept = Kept { replies: kept.replies + 1, bytes: kept.bytes + reply.body.len() };
    while kept.replies > books.room.replies || kept.bytes > books.room.reply_bytes {
        let mut oldest = books.connection.prepare_cached(
            "DELETE FROM replies WHERE number = (SELECT min(number) FROM replies)
             RETURNING length(body)",
        )?;
        let Some(bytes) = oldest.query_row([], |row| row.get::<_, usize>(0)).optional()? else {
            kept = Kept::default();
            break;
        };
        kept = Kept {
            replies: kept.replies.saturating_sub(1),
            bytes: kept.bytes.saturating_sub(bytes),
        };
    }
    books.kept.set(Some(kept));
    Ok(())
}

/// Drops those whose time has come.
pub(super) fn forget(books: &Books, now: Duration) -> Result<(), Fault> {
    let mut expired = books.connection.prepare_cached("DELETE FROM replies WHERE until <= ?")?;
    if expired.execute([nanos(now)])? > 0 {
        books.kept.set(None);
    }
    Ok(())
}

fn count(connection: &Connection) -> Result<Kept, Fault> {
    let sizes = "SELECT count(*), coalesce(sum(length(body)), 0) FROM replies";
    let count = |row: &rusqlite::Row<'_>| Ok(Kept { replies: row.get(0)?, bytes: row.get(1)? });
    Ok(connection.query_row(sizes, [], count)?)
}
