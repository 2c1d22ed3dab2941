//! The requests that were sent to the gateway in the last day, and the rate limit that it reported.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::column::{nanos, read, record, select, signed, upsert};
use super::ledger::Ledger;
use crate::ledger::engine::{Engine, Result, Row, Sql, params};
use crate::ledger::model::SLOT_RETENTION;
use crate::ledger::shared::SharedLedger;
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

record!(AccountLimit { requests: "requests", window_seconds: "seconds" });

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
        self.notify("block_slots", Durability::Buffered, move |ledger| {
            block(&*ledger.db, ledger.now(), wait)
        });
    }

    /// Records, without waiting, the reply or failure. The slot is free one period later.
    pub fn slot_replied(&self, slot: SlotId) {
        self.notify_later(StoreOp::SlotReplied(slot), |at| {
            let since_boot = (self.inner.since_boot)();
            move |ledger: &Ledger| replied(ledger, slot, (at, since_boot))
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
        let read = |ledger: &Ledger| read_rate_limit(&*ledger.db);
        self.execute("recorded_rate_limit", Durability::Buffered, read).await
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
            let since = [now, now.saturating_sub(within)];
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

/// Counts the slots that are taken: until one period after their replies, and a thousandth more, because
/// clocks run at different speeds. The process that has a file alone counts its slots itself.
pub(super) fn free(ledger: &Ledger, limit: SlotLimit) -> Result<Free> {
    if !ledger.db.dialect().is_shared() {
        return Ok(Free { is_free: true, next_free_in: None, reported: None });
    }
    let (now, reported) = (ledger.now(), read_rate_limit(&*ledger.db)?);
    let known = limit.fixed.or(reported.map(|reported| SlotRate {
        requests: reported.requests,
        period: Duration::from_secs(reported.window_seconds),
    }));
    let SlotRate { requests, period } = known.unwrap_or(limit.assumed);
    let period = period.min(SLOT_RETENTION);
    let lifetime = period + period / 1_000;
    let busy = "SELECT count(*), min(replied), (SELECT blocked_until FROM ledger)
        FROM slots WHERE replied IS NULL OR replied > ?";
    let since = [now.saturating_sub(lifetime)];
    let (taken, first_reply, blocked_until): (u64, Option<Duration>, Duration) =
        ledger.db.one(busy, since, read)?;
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
fn block(db: &dyn Engine, now: Duration, wait: Duration) -> Result<()> {
    if !db.dialect().is_shared() {
        return Ok(());
    }
    let until = now.saturating_add(wait.min(SLOT_RETENTION));
    db.run("UPDATE ledger SET blocked_until = ?1 WHERE blocked_until < ?1", [until]).map(drop)
}

impl Ledger {
    /// The ledger's clock was set ahead, so replies look older than they are.
    pub(super) fn block_for_a_period(&self) -> Result<()> {
        let fixed = self.db.shared().and_then(SharedLedger::rate_period);
        block_for_period(&*self.db, self.now(), fixed)
    }
}

/// Has no server take a slot for one period, because slots are missing, or look older than they are.
/// `fixed` is the period that settings fix.
pub(in crate::ledger) fn block_for_period(
    db: &dyn Engine,
    now: Duration,
    fixed: Option<Duration>,
) -> Result<()> {
    let reported = read_rate_limit(db)?.map(|limit| Duration::from_secs(limit.window_seconds));
    block(db, now, fixed.max(reported).unwrap_or(DEFAULT_PERIOD))
}

/// Ends slots whose servers are gone: no request takes longer.
pub(super) fn end_overdue(ledger: &Ledger, most: Duration) -> Result<()> {
    let end = "UPDATE slots SET replied = ?1 WHERE replied IS NULL AND at < ?2";
    let now = ledger.now();
    ledger.db.run(end, [now, now.saturating_sub(most)]).map(drop)
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
    signed(number & (u64::MAX >> 1))
}

pub(in crate::ledger) fn replied(
    ledger: &Ledger,
    slot: SlotId,
    (at, since_boot): (Duration, Duration),
) -> Result<()> {
    let sql = "UPDATE slots SET replied = CASE WHEN at > ?1 THEN at ELSE ?1 END, since_boot = ?3
        WHERE number = ?2";
    let since_boot = ledger.since_boot().map(|_| since_boot);
    ledger.db.run(sql, params![at, number(slot), since_boot]).map(drop)
}

/// Leaves slots of an earlier boot to the wall clock.
pub(in crate::ledger) fn forget_other_boots(ledger: &Ledger, boot: &str) -> Result<()> {
    let forget = "UPDATE slots SET since_boot = NULL
        WHERE NOT EXISTS (SELECT 1 FROM identity WHERE boot = ? AND boot <> '')";
    ledger.db.run(forget, [boot]).map(drop)
}

/// Dates the slots of this boot by the time since then: the clock may have been set meanwhile.
fn date_by_boot(ledger: &Ledger) -> Result<()> {
    let Some(since_boot) = ledger.since_boot() else { return Ok(()) };
    let date = "UPDATE slots SET replied = since_boot + ?1,
            at = CASE WHEN at > since_boot + ?1 THEN since_boot + ?1 ELSE at END
        WHERE since_boot IS NOT NULL";
    ledger.db.run(date, [nanos(ledger.now()) - nanos(since_boot)])?;
    ledger.db.run("UPDATE slots SET since_boot = ? WHERE replied IS NULL", [since_boot]).map(drop)
}

/// Treats requests that were running when the last server ended as answered now: they reached the
/// gateway before. So did those that a clock has dated ahead before it was set back.
pub(super) fn recover(ledger: &Ledger, now: Duration) -> Result<()> {
    date_by_boot(ledger)?;
    let sql = "UPDATE slots SET at = CASE WHEN at > ?1 THEN ?1 ELSE at END, replied = ?1
        WHERE replied IS NULL OR replied > ?1";
    ledger.db.run(sql, [now])?;
    purge_old(ledger, now, i64::MAX)
}

/// Searches the first `rows` slots.
fn purge_old(ledger: &Ledger, now: Duration, rows: i64) -> Result<()> {
    ledger.slots_taken.set(0);
    // The reply counts: if the clock was set ahead meanwhile, the request looks old. Running
    // requests have no reply yet, and stay.
    let sql = "DELETE FROM slots WHERE at < ?1 AND replied < ?1
        AND (since_boot IS NULL OR since_boot < ?3) AND number <= coalesce(
        (SELECT number FROM slots ORDER BY number LIMIT 1 OFFSET ?2), 9223372036854775807)";
    let earliest = |now: Duration| nanos(now) - nanos(SLOT_RETENTION);
    let since_boot = ledger.since_boot().map_or(i64::MAX, earliest);
    ledger.db.run(sql, [earliest(now), rows, since_boot]).map(drop)
}

/// Writes whichever limit is the latest when it runs: a retry may run after a newer limit's
/// command.
pub(in crate::ledger) fn write_latest_limit(
    ledger: &Ledger,
    latest: &Mutex<Option<AccountLimit>>,
) -> Result<()> {
    let Some(AccountLimit { requests, window_seconds }) = *lock(latest) else { return Ok(()) };
    let (requests, seconds) = (signed(requests), signed(window_seconds));
    upsert!(ledger.db, rate_limit (number: 1) { requests: requests, seconds: seconds }).map(drop)
}

pub(in crate::ledger) fn read_rate_limit(db: &dyn Engine) -> Result<Option<AccountLimit>> {
    db.first(&select::<AccountLimit>("FROM rate_limit"), (), read)
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
