//! Free slots for the purchases of a transaction, which then hold, take a slot and are marked as
//! sent in one COMMIT.
//!
//! The transaction locks the row `rate_limit`, as a turn does, and counts the free slots once. Each
//! purchase that takes one counts down. If any other request waits, or the database's clock has
//! jumped, no slot counts as free: then purchases only hold, and wait for their turns.
//!
//! Sales lock `account` before `rate_limit`. No transaction with a turn waits for `account`. In a
//! transaction that ends slots, purchases only hold, too.

use super::clock_jumps::ClockComparison;
use super::column::{nanos, signed};
use super::shared::Shared;
use super::step::{Statement, statement};
use super::turns::{self, free_slots};
use crate::store::SlotLimit;
use crate::store::model::SLOT_RETENTION;

/// The last slots are left to turns, which would otherwise reject others for lack of them: a hold
/// may turn out to be a duplicate.
///
/// After a jump of the clock (`$1`, `$6`), the next turn moves the replies.
const COUNT: &str = concat!(
    "WITH ",
    free_slots!(),
    "
SELECT set_config('tollgate.free_slots', (CASE
  WHEN {clock} - $1::bigint - (clock_moved - coalesce($6::bigint, clock_moved)) > 500000000 THEN 0
  WHEN EXISTS (SELECT 1 FROM waiting WHERE seen > t.now - $7::bigint) THEN 0
  ELSE greatest(free.slots - greatest(l.kept, l.kept_from_polls), 0) END)::text, true)
FROM free, l, t, rate_limit"
);

/// Returns the statements that lock the rate limit and count its free slots.
pub(super) fn statements(shared: &Shared, limit: SlotLimit) -> Vec<Statement> {
    let SlotLimit { fixed, assumed } = limit;
    let comparison = ClockComparison::new(&shared.last_reading, shared.since_boot);
    let (expected, moved) = comparison.values();
    let count = statement!(
        COUNT,
        expected,
        fixed.map(|rate| signed(rate.requests)),
        fixed.map(turns::period),
        signed(assumed.requests),
        turns::period(assumed),
        moved,
        nanos(turns::FRESHNESS),
        nanos(SLOT_RETENTION),
    );
    vec![statement!(turns::LOCK), count]
}
