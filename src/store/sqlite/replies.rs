//! Keeps replies for replay, within bounds: those that are kept for the shortest time go first.

use std::cell::Cell;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::column::nanos;
use super::fault::Fault;
use crate::store::{KeptReply, PurchaseId, Room};

/// The replies' bounds, and how much room is taken.
pub(super) struct Replies {
    room: Room,
    /// Nothing when it has to be counted anew.
    kept: Cell<Option<Kept>>,
}

/// How much room they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kept {
    replies: usize,
    bytes: usize,
}

impl Kept {
    /// One fewer, of so many bytes.
    fn without(self, bytes: usize) -> Self {
        Self { replies: self.replies.saturating_sub(1), bytes: self.bytes.saturating_sub(bytes) }
    }
}

/// How many bytes the reply to a purchase has, unless it was dropped.
pub(super) fn size(connection: &Connection, number: i64) -> Result<Option<usize>, Fault> {
    let mut find =
        connection.prepare_cached("SELECT length(body) FROM replies WHERE number = ?")?;
    Ok(find.query_row([number], |row| row.get(0)).optional()?)
}

/// The reply to a purchase, unless it was dropped.
pub(super) fn of(connection: &Connection, id: PurchaseId) -> Result<Option<KeptReply>, Fault> {
    let mut find = connection.prepare_cached(
        "SELECT status, is_json, body FROM replies
         WHERE number = (SELECT number FROM purchases WHERE id = ?)",
    )?;
    let found = find.query_row([id.0.as_bytes()], |row| {
        let body: Vec<u8> = row.get(2)?;
        Ok(KeptReply { status: row.get(0)?, is_json: row.get(1)?, body: body.into() })
    });
    Ok(found.optional()?)
}

impl Replies {
    pub(super) fn within(room: Room) -> Self {
        Self { room, kept: Cell::new(None) }
    }

    /// Something was undone: what is taken has to be counted anew.
    pub(super) fn count_anew(&self) {
        self.kept.set(None);
    }

    /// Keeps one more, and drops those whose time comes next while there are too many.
    pub(super) fn keep(
        &self,
        connection: &Connection,
        number: i64,
        reply: &KeptReply,
        until: i64,
    ) -> Result<(), Fault> {
        if reply.body.len() > self.room.reply_bytes {
            return Ok(());
        }
        let mut kept = match self.kept.get() {
            Some(kept) => kept,
            None => count(connection)?,
        };
        let mut insert = connection.prepare_cached(
            "INSERT INTO replies (number, until, status, is_json, body) VALUES (?, ?, ?, ?, ?)",
        )?;
        insert.execute(params![number, until, reply.status, reply.is_json, &reply.body[..]])?;
        kept = Kept { replies: kept.replies + 1, bytes: kept.bytes + reply.body.len() };
        while kept.replies > self.room.replies || kept.bytes > self.room.reply_bytes {
            let mut next = connection.prepare_cached(
                "DELETE FROM replies
             WHERE number = (SELECT number FROM replies ORDER BY until, number LIMIT 1)
             RETURNING length(body)",
            )?;
            let Some(bytes) = next.query_row([], |row| row.get::<_, usize>(0)).optional()? else {
                kept = Kept::default();
                break;
            };
            kept = kept.without(bytes);
        }
        self.kept.set(Some(kept));
        Ok(())
    }

    /// Drops those whose time has come.
    pub(super) fn forget(&self, connection: &Connection, now: Duration) -> Result<(), Fault> {
        let mut expired = connection
            .prepare_cached("DELETE FROM replies WHERE until <= ? RETURNING length(body)")?;
        let mut expired = expired.query([nanos(now)])?;
        // Counting all of them again would take the longer, the more are kept.
        let mut kept = self.kept.get();
        while let Some(row) = expired.next()? {
            let bytes = row.get(0)?;
            kept = kept.map(|kept| kept.without(bytes));
        }
        self.kept.set(kept);
        Ok(())
    }
}

fn count(connection: &Connection) -> Result<Kept, Fault> {
    let sizes = "SELECT count(*), coalesce(sum(length(body)), 0) FROM replies";
    let count = |row: &rusqlite::Row<'_>| Ok(Kept { replies: row.get(0)?, bytes: row.get(1)? });
    Ok(connection.query_row(sizes, [], count)?)
}
