//! Notices that the database's clock has jumped ahead, which would free slots too early.
//!
//! Each instance compares that clock with the time since its own boot. Whoever notices a jump moves
//! the replies of all slots by it, under the lock of the rate limit, and counts how far: other
//! instances find that and move nothing twice.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use tokio_postgres::Row;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tracing::warn;

use super::column::{self, Read, nanos};
use super::step::{Statement, StepRows, statement};
use crate::metrics::SharedLedgerMetrics;
use crate::store::Unavailable;
use crate::sync::lock;

/// A slow answer looks like a jump of this size.
const TOLERANCE: i64 = 500_000_000;

/// Before the lock, because the wait for it is no jump.
const COMPARE: &str = "SELECT {clock},
    set_config('tollgate.ahead', coalesce({clock} - $1::bigint, 0)::text, true)";
/// Slots of dead instances count as answered in up to 15 seconds; no other reply is later than now.
const MOVE: &str = "
WITH jump AS MATERIALIZED (
  SELECT CASE WHEN ahead > 500000000 THEN ahead ELSE 0 END AS by
  FROM (
    SELECT current_setting('tollgate.ahead')::bigint - (clock_moved - coalesce($1::bigint, clock_moved))
      AS ahead
    FROM rate_limit
  ) compared
), replies AS (
  UPDATE slots SET replied = least(replied + jump.by, greatest(replied, {now} + 15000000000))
  FROM jump WHERE jump.by > 0 AND replied > {now} - jump.by - 86400000000000
), counted AS (
  UPDATE rate_limit SET clock_moved = clock_moved + jump.by,
    blocked_until = blocked_until + CASE WHEN blocked_until > {now} - jump.by THEN jump.by ELSE 0 END
  FROM jump WHERE jump.by > 0
)
SELECT clock_moved + jump.by, jump.by FROM rate_limit, jump";

/// The database's clock as it was read last.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    pub(super) database: i64,
    /// How far replies had been moved by then, in all.
    pub(super) moved: i64,
    /// The time since boot when the question left.
    pub(super) asked: Duration,
}

/// The last reading of the database's clock; `None` before the first.
pub(super) type LastReading = Mutex<Option<ClockReading>>;

/// A comparison that is part of a step under the lock of the rate limit.
pub(super) struct ClockComparison {
    last: Option<ClockReading>,
    since_boot: fn() -> Duration,
    asked: Arc<AtomicU64>,
}

impl ClockComparison {
    pub(super) fn new(last: &LastReading, since_boot: fn() -> Duration) -> Self {
        Self { last: *lock(last), since_boot, asked: Arc::default() }
    }

    /// Returns the statements before and after the lock.
    pub(super) fn statements(&self) -> [Statement; 2] {
        let (expected, moved) = self.values();
        [statement!(COMPARE, expected), statement!(MOVE, moved)]
    }

    /// Returns the time that the database's clock should show when a statement is sent, and how far
    /// replies had been moved by the last reading.
    pub(super) fn values(&self) -> (ExpectedClock, Option<i64>) {
        let Self { last, since_boot, ref asked } = *self;
        let expected = ExpectedClock { last, since_boot, asked: Arc::clone(asked) };
        (expected, last.map(|last| last.moved))
    }

    /// Takes in the rows of both.
    pub(super) fn finish(
        &self,
        last: &LastReading,
        metrics: &SharedLedgerMetrics,
        rows: [Option<&Row>; 2],
    ) -> Read<()> {
        let [Some(compared), Some(moved)] = rows else {
            return Err(Unavailable("the database did not tell its time".into()));
        };
        let asked = Duration::from_nanos(self.asked.load(Ordering::Relaxed));
        let by = column::get::<i64>(moved, 1)?;
        let reading = ClockReading {
            database: column::get(compared, 0)?,
            moved: column::get(moved, 0)?,
            asked,
        };
        *lock(last) = Some(reading);
        if by > 0 {
            metrics.clock_jumps.inc();
            let seconds = Duration::from_nanos(by.unsigned_abs()).as_secs();
            warn!(seconds, "database clock jumped ahead; rate limit slots kept");
        }
        Ok(())
    }
}

/// Takes in the clock that a heartbeat has read. Returns whether it has jumped ahead; the reading
/// then stays, so that a [`ClockComparison`] finds the jump, too.
pub(super) fn has_jumped(last: &LastReading, reading: ClockReading, now: Duration) -> bool {
    let ClockReading { database, moved, .. } = reading;
    let mut last = lock(last);
    let jump = last.map_or(0, |last| {
        let moved = moved.saturating_sub(last.moved);
        database.saturating_sub(last.expected(now)).saturating_sub(moved)
    });
    if jump <= TOLERANCE {
        *last = Some(reading);
    }
    jump > TOLERANCE
}

/// Returns the first row of a statement of a step.
pub(super) fn first_row(rows: &StepRows, statement: usize) -> Option<&Row> {
    rows.get(statement).and_then(|rows| rows.first())
}

impl ClockReading {
    /// Returns the latest time that the database's clock can show, unless it jumps.
    fn expected(self, now: Duration) -> i64 {
        self.database.saturating_add(nanos(now.saturating_sub(self.asked)))
    }
}

/// The time that the database's clock should show when the statement is sent.
#[derive(Debug)]
pub(super) struct ExpectedClock {
    last: Option<ClockReading>,
    since_boot: fn() -> Duration,
    asked: Arc<AtomicU64>,
}

impl ToSql for ExpectedClock {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let now = (self.since_boot)();
        self.asked.store(nanos(now).unsigned_abs(), Ordering::Relaxed);
        self.last.map(|last| last.expected(now)).to_sql(kind, out)
    }

    fn accepts(kind: &Type) -> bool {
        <i64 as ToSql>::accepts(kind)
    }

    to_sql_checked!();
}
