//! Keeps what was sent to the gateway where a restart finds it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{OptionalExtension, params};

use super::StoreError;
use super::column::{self, nanos};
use super::handle::{Store, StoreOp};
use super::ledger::Ledger;
use super::writer::Durability;
use crate::store::model::SLOT_RETENTION;
use crate::store::{AccountLimit, SlotId, Unavailable};

/// One place in so many drops what is too old.
const PURGE_INTERVAL: usize = 64;

/// The log of what was sent to the gateway in the last day, and the limit that it told, so that a restart
/// does not forget the window.
impl Store {
    /// A place in the window is taken; on return, a crash does not forget it.
    pub async fn take_slot(&self, place: SlotId) -> Result<(), Unavailable> {
        let at = self.now();
        let take = move |books: &Ledger| take_slot(books, place, at);
        self.run(StoreOp::TakeSlot(place), Durability::Buffered, take).await
    }

    /// Notes, without waiting, that the reply or the failure came: the place is free one window later.
    pub fn slot_replied(&self, place: SlotId) {
        let at = self.now();
        self.notify(StoreOp::SlotReplied(place), Durability::Buffered, move |books| {
            let sql = "UPDATE places SET replied = max(at, ?) WHERE id = ?";
            let mut update = books.connection.prepare_cached(sql)?;
            update.execute(params![nanos(at), place.0.as_bytes()])?;
            Ok(())
        });
    }

    /// Notes, without waiting, that nothing was sent: the place is free at once.
    pub fn release_slot(&self, place: SlotId) {
        self.notify(StoreOp::ReleaseSlot(place), Durability::Buffered, move |books| {
            let mut delete = books.connection.prepare_cached("DELETE FROM places WHERE id = ?")?;
            delete.execute([place.0.as_bytes()])?;
            Ok(())
        });
    }

    /// Keeps, without waiting, the rate limit that the gateway told last. It outlives power cuts.
    pub fn record_rate_limit(&self, limit: AccountLimit) {
        let latest = Arc::clone(&self.inner.latest_rate_limit);
        *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(limit);
        let note = move |books: &Ledger| write_latest_limit(books, &latest);
        self.notify(StoreOp::Other("note_limit"), Durability::Synced, note);
    }

    pub async fn recorded_rate_limit(&self) -> Result<Option<AccountLimit>, Unavailable> {
        self.run_while_starting("noted_limit", Durability::Buffered, read_rate_limit).await
    }

    /// How long ago the replies came to what was sent, if not longer ago than `within`, in the order of the requests.
    /// What nobody knows the reply of counts as replied to when the store was opened (a crash), or just now
    /// (it is under way); so does what seems to come from the future.
    pub async fn recent_replies(&self, within: Duration) -> Result<Vec<Duration>, Unavailable> {
        let clock = self.inner.clock.clone();
        let find = move |books: &Ledger| recent_replies(books, within, clock());
        self.run_while_starting("replies_since", Durability::Buffered, find).await
    }
}

/// Whoever was under way when the last server ended is taken to have been answered now: its arrival
/// at the gateway lies before.
pub(super) fn recover(books: &Ledger, now: Duration) -> Result<(), StoreError> {
    let sql = "UPDATE places SET replied = max(at, ?) WHERE replied IS NULL";
    books.connection.prepare_cached(sql)?.execute([nanos(now)])?;
    // What a clock that went wrong dated far ahead would else be there at every start.
    let ahead = nanos(now + SLOT_RETENTION);
    books.connection.prepare_cached("DELETE FROM places WHERE at > ?")?.execute([ahead])?;
    purge_old(books, now)
}

fn take_slot(books: &Ledger, place: SlotId, at: Duration) -> Result<(), StoreError> {
    let sql = "INSERT INTO places (id, at) VALUES (?, ?)";
    let mut insert = books.connection.prepare_cached(sql)?;
    insert.execute(params![place.0.as_bytes(), nanos(at)])?;
    books.slots_taken.set(books.slots_taken.get() + 1);
    if books.slots_taken.get() < PURGE_INTERVAL {
        return Ok(());
    }
    purge_old(books, at)
}

fn purge_old(books: &Ledger, now: Duration) -> Result<(), StoreError> {
    books.slots_taken.set(0);
    // What counts is the reply: a clock that was set ahead meanwhile makes its request look old. What is
    // under way has none yet, and stays.
    let sql = "DELETE FROM places WHERE at < ?1 AND replied < ?1";
    let mut old = books.connection.prepare_cached(sql)?;
    old.execute([nanos(now.saturating_sub(SLOT_RETENTION))])?;
    Ok(())
}

/// Writes whichever limit is the latest when it runs: a step that is tried again after a fault may run after
/// that of a newer limit.
pub(super) fn write_latest_limit(
    books: &Ledger,
    latest: &Mutex<Option<AccountLimit>>,
) -> Result<(), StoreError> {
    let limit = *latest.lock().unwrap_or_else(PoisonError::into_inner);
    limit.map_or(Ok(()), |limit| write_rate_limit(books, limit))
}

fn write_rate_limit(books: &Ledger, limit: AccountLimit) -> Result<(), StoreError> {
    let AccountLimit { requests, window_seconds } = limit;
    let whole = |number| i64::try_from(number).unwrap_or(i64::MAX);
    let sql = "INSERT OR REPLACE INTO rate_limit (number, requests, seconds) VALUES (1, ?, ?)";
    books.connection.prepare_cached(sql)?.execute([whole(requests), whole(window_seconds)])?;
    Ok(())
}

pub(super) fn read_rate_limit(books: &Ledger) -> Result<Option<AccountLimit>, StoreError> {
    let sql = "SELECT requests, seconds FROM rate_limit";
    let row = books.connection.query_row(sql, [], |row| {
        Ok(AccountLimit { requests: row.get(0)?, window_seconds: row.get(1)? })
    });
    Ok(row.optional()?)
}

fn recent_replies(
    books: &Ledger,
    within: Duration,
    now: Duration,
) -> Result<Vec<Duration>, StoreError> {
    let mut taken = books.connection.prepare_cached(
        "SELECT coalesce(replied, max(at, ?1)) FROM places
         WHERE coalesce(replied, max(at, ?1)) >= ?2 ORDER BY at",
    )?;
    let since = nanos(now.saturating_sub(within));
    let taken = taken.query_map(params![nanos(now), since], |row| {
        Ok(now.saturating_sub(column::moment(row, 0)?))
    })?;
    Ok(taken.collect::<rusqlite::Result<_>>()?)
}
