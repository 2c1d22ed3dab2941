//! The requests that were sent to the gateway in the last day, and the rate limit that it reported.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::column::{self, nanos};
use super::ledger::Ledger;
use crate::ledger::engine::{Result, Row, Sql, params};
use crate::ledger::model::SLOT_RETENTION;
use crate::ledger::writer::Durability;
use crate::ledger::{
    AccountLimit, SlotAnswer, SlotId, SlotLimit, SlotRate, Store, StoreOp, Unavailable, WantedSlot,
};
use crate::sync::lock;

/// The contract's reference payload (2.3).
const DEFAULT_PERIOD: Duration = Duration::from_secs(60);
/// Old slots are deleted once per this many new ones.
const PURGE_INTERVAL: usize = 64;
/// How many rows are searched for old slots: the first ones, as the table is in the order of requests.
const PURGE_ROWS: i64 = 2 * 64;

impl Store {
    /// Takes a slot. A crash does not release it.
    pub async fn take_slot(&self, slot: SlotId) -> Result<(), Unavailable> {
        let at = self.now();
        let take = move |ledger: &Ledger| take(ledger, slot, at);
        self.run(StoreOp::TakeSlot(slot), Durability::Buffered, take).await
    }

    /// Takes a slot, if one is free under this limit. In a ledger that one server has, it is.
    pub async fn take_free_slot(
        &self,
        WantedSlot { id, limit }: WantedSlot,
    ) -> Result<SlotAnswer, Unavailable> {
        let take = move |ledger: &Ledger| {
            let free = free(ledger, limit)?;
            if free.is_free {
                take(ledger, id, ledger.now())?;
            }
            let Free { is_free: is_taken, next_free_in, reported } = free;
            Ok(SlotAnswer { is_taken, next_free_in, reported })
        };
        self.run(StoreOp::TakeSlot(id), Durability::Buffered, take).await
    }

    /// Has no server send for a while.
    pub fn block_slots(&self, wait: Duration) {
        self.notify("block_slots", Durability::Buffered, move |ledger| block(ledger, wait));
    }

    /// Records, without waiting, the reply or failure. The slot is free one period later.
    pub fn slot_replied(&self, slot: SlotId) {
        self.notify_later(StoreOp::SlotReplied(slot), |at| {
            move |ledger: &Ledger| replied(ledger, slot, at)
        });
    }

    /// Records, without waiting, that nothing was sent. The slot is free at once.
    pub fn release_slot(&self, slot: SlotId) {
        self.notify(StoreOp::ReleaseSlot(slot), Durability::Buffered, move |ledger| {
            ledger.db.run("DELETE FROM slots WHERE number = ?", [number(slot)])?;
            Ok(())
        });
    }

    /// Records, without waiting, the rate limit that the gateway reported last. Survives a
    /// power failure.
    pub fn record_rate_limit(&self, limit: AccountLimit) {
        let latest = Arc::clone(&self.inner.latest_rate_limit);
        *lock(&latest) = Some(limit);
        let write = move |ledger: &Ledger| write_latest_limit(ledger, &latest);
        self.notify("record_rate_limit", Durability::Synced, write);
    }

    pub async fn recorded_rate_limit(&self) -> Result<Option<AccountLimit>, Unavailable> {
        self.execute("recorded_rate_limit", Durability::Buffered, read_rate_limit).await
    }

    /// Returns how long ago the replies of the last `within` arrived, in the order of the
    /// requests.
    ///
    /// A missing reply counts as arrived when the store was opened (after a crash), or now
    /// (still running). So does one that seems to lie in the future.
    pub async fn recent_replies(&self, within: Duration) -> Result<Vec<Duration>, Unavailable> {
        let replies = "SELECT reply FROM (
                SELECT at, coalesce(replied, CASE WHEN at > ?1 THEN at ELSE ?1 END) AS reply FROM slots
            ) AS slots WHERE reply >= ?2 ORDER BY at";
        self.execute("recent_replies", Durability::Buffered, move |ledger| {
            let now = ledger.now();
            let since = params![nanos(now), nanos(now.saturating_sub(within))];
            let age = |row: &Row<'_>| Ok(now.saturating_sub(row.get(0)?));
            ledger.db.all(replies, since, age)
        })
        .await
    }
}

/// Whether a slot is free in a ledger that servers share.
pub(super) struct Free {
    pub(super) is_free: bool,
    next_free_in: Option<Duration>,
    reported: Option<AccountLimit>,
}

/// The process that has a file alone counts its slots itself. Else counts the slots that are taken: until one period after their replies, and a thousandth more, as
/// clocks run at different speeds.
pub(super) fn free(ledger: &Ledger, limit: SlotLimit) -> Result<Free> {
    if !ledger.db.dialect().is_shared() {
        return Ok(Free { is_free: true, next_free_in: None, reported: None });
    }
    let (now, reported) = (ledger.now(), read_rate_limit(ledger)?);
    let known = limit.fixed.or(reported.map(|reported| SlotRate {
        requests: reported.requests,
        period: Duration::from_secs(reported.window_seconds),
    }));
    let SlotRate { requests, period } = known.unwrap_or(limit.assumed);
    let period = period.min(SLOT_RETENTION);
    let lifetime = period + period / 1_000;
    let busy = "SELECT count(*), min(replied), (SELECT blocked_until FROM ledger)
        FROM slots WHERE replied IS NULL OR replied > ?";
    let since = [nanos(now.saturating_sub(lifetime))];
    let (taken, first_reply, blocked_until) = ledger.db.one(busy, since, |row| {
        let moments = (row.get::<Option<Duration>>(1)?, row.get::<Duration>(2)?);
        Ok((row.get::<u64>(0)?, moments.0, moments.1))
    })?;
    let (is_blocked, is_free) = (now < blocked_until, taken < requests);
    let next = if is_blocked { Some(blocked_until) } else { first_reply.map(|at| at + lifetime) };
    let next_free_in = next.filter(|_| is_blocked || !is_free);
    Ok(Free {
        is_free: is_free && !is_blocked,
        next_free_in: next_free_in.map(|next| next.saturating_sub(now)),
        reported,
    })
}

/// Has no server take a slot for a while.
fn block(ledger: &Ledger, wait: Duration) -> Result<()> {
    if !ledger.db.dialect().is_shared() {
        return Ok(());
    }
    let until = nanos(ledger.now().saturating_add(wait.min(SLOT_RETENTION)));
    ledger.db.run("UPDATE ledger SET blocked_until = ?1 WHERE blocked_until < ?1", [until])?;
    Ok(())
}

impl Ledger {
    /// The ledger's clock was set ahead, so replies look older than they are.
    pub(super) fn block_for_a_period(&self) -> Result<()> {
        let reported = read_rate_limit(self)?;
        let reported = reported.map(|limit| Duration::from_secs(limit.window_seconds));
        block(self, reported.unwrap_or(DEFAULT_PERIOD).max(self.db.least_period()))
    }
}

/// Ends slots whose servers are gone: no request takes longer.
pub(super) fn end_overdue(ledger: &Ledger, most: Duration) -> Result<()> {
    let end = "UPDATE slots SET replied = ?1 WHERE replied IS NULL AND at < ?2";
    let now = ledger.now();
    ledger.db.run(end, [nanos(now), nanos(now.saturating_sub(most))])?;
    Ok(())
}

pub(super) fn take(ledger: &Ledger, slot: SlotId, at: Duration) -> Result<()> {
    let sql = "INSERT INTO slots (number, at) VALUES (?, ?)";
    ledger.db.run(sql, [number(slot), nanos(at)])?;
    ledger.slots_taken.set(ledger.slots_taken.get() + 1);
    if ledger.slots_taken.get() < PURGE_INTERVAL {
        return Ok(());
    }
    purge_old(ledger, at, PURGE_ROWS)
}

/// Returns the slot's number in the table: the id's milliseconds, and the lower bits of the counter
/// that tells ids of one millisecond apart. Later slots have larger numbers, so they are appended.
fn number(slot: SlotId) -> i64 {
    const COUNTER_BITS: u32 = 21;
    let (time, rest) = slot.0.as_u64_pair();
    let (millis, counter) = (time >> 16, rest >> 32);
    let number = (millis << COUNTER_BITS) | (counter & ((1 << COUNTER_BITS) - 1));
    column::signed(number & (u64::MAX >> 1))
}

pub(in crate::ledger) fn replied(ledger: &Ledger, slot: SlotId, at: Duration) -> Result<()> {
    let sql = "UPDATE slots SET replied = CASE WHEN at > ?1 THEN at ELSE ?1 END WHERE number = ?2";
    ledger.db.run(sql, [nanos(at), number(slot)])?;
    Ok(())
}

/// Treats requests that were running when the last server ended as answered now: they reached the
/// gateway before.
pub(super) fn recover(ledger: &Ledger, now: Duration) -> Result<()> {
    let sql =
        "UPDATE slots SET replied = CASE WHEN at > ?1 THEN at ELSE ?1 END WHERE replied IS NULL";
    ledger.db.run(sql, [nanos(now)])?;
    // A clock that was wrong may have dated them far ahead; they would stay for ever.
    let ahead = nanos(now + SLOT_RETENTION);
    ledger.db.run("DELETE FROM slots WHERE at > ?", [ahead])?;
    purge_old(ledger, now, i64::MAX)
}

/// Searches the first `rows` slots.
fn purge_old(ledger: &Ledger, now: Duration, rows: i64) -> Result<()> {
    ledger.slots_taken.set(0);
    // The reply counts: if the clock was set ahead meanwhile, the request looks old. Running
    // requests have no reply yet, and stay.
    let sql = "DELETE FROM slots WHERE at < ?1 AND replied < ?1 AND number <= coalesce(
        (SELECT number FROM slots ORDER BY number LIMIT 1 OFFSET ?2), 9223372036854775807)";
    ledger.db.run(sql, [nanos(now.saturating_sub(SLOT_RETENTION)), rows])?;
    Ok(())
}

/// Writes whichever limit is the latest when it runs: a retry may run after a newer limit's
/// command.
pub(in crate::ledger) fn write_latest_limit(
    ledger: &Ledger,
    latest: &Mutex<Option<AccountLimit>>,
) -> Result<()> {
    let Some(AccountLimit { requests, window_seconds }) = *lock(latest) else { return Ok(()) };
    let sql = "INSERT INTO rate_limit (number, requests, seconds) VALUES (1, ?, ?)
        ON CONFLICT (number) DO UPDATE SET requests = excluded.requests, seconds = excluded.seconds";
    ledger.db.run(sql, [column::signed(requests), column::signed(window_seconds)])?;
    Ok(())
}

pub(in crate::ledger) fn read_rate_limit(ledger: &Ledger) -> Result<Option<AccountLimit>> {
    ledger.db.first("SELECT requests, seconds FROM rate_limit", (), |row| {
        Ok(AccountLimit { requests: row.get(0)?, window_seconds: row.get(1)? })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn slots_of_one_millisecond_have_different_numbers() {
        let (mut numbers, mut latest) = (HashSet::new(), 0);
        for _ in 0..100_000 {
            let next = number(SlotId::generate());
            assert!(numbers.insert(next), "{next} twice");
            let millis = next >> 21;
            assert!(millis >= latest, "{millis} after {latest}");
            latest = millis;
        }
    }
}
