//! The requests that were sent to the gateway in the last day, and the rate limit that it reported.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{OptionalExtension, params};

use super::Result;
use super::column::{self, nanos};
use super::handle::{Store, StoreOp};
use super::ledger::Ledger;
use super::writer::Durability;
use crate::store::model::SLOT_RETENTION;
use crate::store::{AccountLimit, SlotId, Unavailable};

/// Old slots are deleted once per this many new ones.
const PURGE_INTERVAL: usize = 64;

/// After a restart, the rate limit still includes what was sent before.
impl Store {
    /// Takes a slot, which a crash does not forget.
    pub async fn take_slot(&self, slot: SlotId) -> Result<(), Unavailable> {
        let at = self.now();
        let take = move |ledger: &Ledger| take_slot(ledger, slot, at);
        self.run(StoreOp::TakeSlot(slot), Durability::Buffered, take).await
    }

    /// Records, without waiting, the reply or failure. The slot is free one period later.
    pub fn slot_replied(&self, slot: SlotId) {
        let at = self.now();
        self.notify(StoreOp::SlotReplied(slot), Durability::Buffered, move |ledger| {
            let sql = "UPDATE slots SET replied = max(at, ?) WHERE id = ?";
            let mut update = ledger.connection.prepare_cached(sql)?;
            update.execute(params![nanos(at), slot.0.as_bytes()])?;
            Ok(())
        });
    }

    /// Records, without waiting, that nothing was sent. The slot is free at once.
    pub fn release_slot(&self, slot: SlotId) {
        self.notify(StoreOp::ReleaseSlot(slot), Durability::Buffered, move |ledger| {
            let mut delete = ledger.connection.prepare_cached("DELETE FROM slots WHERE id = ?")?;
            delete.execute([slot.0.as_bytes()])?;
            Ok(())
        });
    }

    /// Records, without waiting, the rate limit that the gateway reported last. Survives a power
    /// failure.
    pub fn record_rate_limit(&self, limit: AccountLimit) {
        let latest = Arc::clone(&self.inner.latest_rate_limit);
        *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(limit);
        let note = move |ledger: &Ledger| write_latest_limit(ledger, &latest);
        self.notify(StoreOp::Other("record_rate_limit"), Durability::Synced, note);
    }

    pub async fn recorded_rate_limit(&self) -> Result<Option<AccountLimit>, Unavailable> {
        self.run_while_starting("recorded_rate_limit", Durability::Buffered, read_rate_limit).await
    }

    /// Returns how long ago the replies of the last `within` arrived, in the order of the requests.
    ///
    /// A missing reply counts as arrived when the store was opened (after a crash), or now (still
    /// running). So does one that seems to lie in the future.
    pub async fn recent_replies(&self, within: Duration) -> Result<Vec<Duration>, Unavailable> {
        let clock = self.inner.clock.clone();
        self.run_while_starting("recent_replies", Durability::Buffered, move |ledger| {
            recent_replies(ledger, within, clock())
        })
        .await
    }
}

/// Treats requests that were running when the last server ended as answered now: they reached the
/// gateway before.
pub(super) fn recover(ledger: &Ledger, now: Duration) -> Result<()> {
    let sql = "UPDATE slots SET replied = max(at, ?) WHERE replied IS NULL";
    ledger.connection.prepare_cached(sql)?.execute([nanos(now)])?;
    // A clock that was wrong may have dated them far ahead; they would stay for ever.
    let ahead = nanos(now + SLOT_RETENTION);
    ledger.connection.prepare_cached("DELETE FROM slots WHERE at > ?")?.execute([ahead])?;
    purge_old(ledger, now)
}

fn take_slot(ledger: &Ledger, slot: SlotId, at: Duration) -> Result<()> {
    let sql = "INSERT INTO slots (id, at) VALUES (?, ?)";
    let mut insert = ledger.connection.prepare_cached(sql)?;
    insert.execute(params![slot.0.as_bytes(), nanos(at)])?;
    ledger.slots_taken.set(ledger.slots_taken.get() + 1);
    if ledger.slots_taken.get() < PURGE_INTERVAL {
        return Ok(());
    }
    purge_old(ledger, at)
}

fn purge_old(ledger: &Ledger, now: Duration) -> Result<()> {
    ledger.slots_taken.set(0);
    // The reply counts: if the clock was set ahead meanwhile, the request looks old. Running
    // requests have no reply yet, and stay.
    let sql = "DELETE FROM slots WHERE at < ?1 AND replied < ?1";
    let mut old = ledger.connection.prepare_cached(sql)?;
    old.execute([nanos(now.saturating_sub(SLOT_RETENTION))])?;
    Ok(())
}

/// Writes whichever limit is the latest when it runs: a retry may run after a newer limit's
/// command.
pub(super) fn write_latest_limit(
    ledger: &Ledger,
    latest: &Mutex<Option<AccountLimit>>,
) -> Result<()> {
    let limit = *latest.lock().unwrap_or_else(PoisonError::into_inner);
    limit.map_or(Ok(()), |limit| write_rate_limit(ledger, limit))
}

fn write_rate_limit(ledger: &Ledger, limit: AccountLimit) -> Result<()> {
    let AccountLimit { requests, window_seconds } = limit;
    let whole = |number| i64::try_from(number).unwrap_or(i64::MAX);
    let sql = "INSERT OR REPLACE INTO rate_limit (number, requests, seconds) VALUES (1, ?, ?)";
    ledger.connection.prepare_cached(sql)?.execute([whole(requests), whole(window_seconds)])?;
    Ok(())
}

pub(super) fn read_rate_limit(ledger: &Ledger) -> Result<Option<AccountLimit>> {
    let sql = "SELECT requests, seconds FROM rate_limit";
    let row = ledger.connection.query_row(sql, [], |row| {
        Ok(AccountLimit { requests: row.get(0)?, window_seconds: row.get(1)? })
    });
    Ok(row.optional()?)
}

fn recent_replies(ledger: &Ledger, within: Duration, now: Duration) -> Result<Vec<Duration>> {
    let mut taken = ledger.connection.prepare_cached(
        "SELECT coalesce(replied, max(at, ?1)) FROM slots
         WHERE coalesce(replied, max(at, ?1)) >= ?2 ORDER BY at",
    )?;
    let since = nanos(now.saturating_sub(within));
    let taken = taken.query_map(params![nanos(now), since], |row| {
        Ok(now.saturating_sub(column::moment(row, 0)?))
    })?;
    Ok(taken.collect::<rusqlite::Result<_>>()?)
}
