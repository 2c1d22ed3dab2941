//! Slots for all instances in turn: no period holds more than the account's rate limit, and callers
//! take turns over all instances.
//!
//! The row `rate_limit` orders all turns. A slot is taken by the database's clock until one period
//! after its reply, so the clocks of instances do not matter.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::Fleet;
use super::clock_jumps::{ClockComparison, first_row};
use super::column::{self, Read, nanos, signed};
use super::shared::Shared;
use super::step::{Need, Step, StepRows, statement};
use crate::store::model::SLOT_RETENTION;
use crate::store::{AccountLimit, SlotId, SlotLimit, SlotRate, Unavailable};

/// A request that its instance has not renewed for this long is passed over.
pub(super) const FRESHNESS: Duration = Duration::from_secs(2);

pub(super) const LOCK: &str = "SELECT 1 FROM rate_limit FOR UPDATE";
const LEAVE: &str = "DELETE FROM waiting WHERE owner = $1 AND NOT slot = ANY($2::uuid[])";
/// A request whose slot was taken by a step without an answer does not wait again.
const ENTER: &str = "
INSERT INTO waiting (slot, owner, priority, caller, since, seen)
SELECT w.slot, $1::bigint, w.priority, w.caller, CASE WHEN w.is_retry THEN 0 ELSE t.now END, t.now
FROM (SELECT {now} AS now) t,
  unnest($2::uuid[], $3::smallint[], $4::text[], $5::boolean[]) AS w(slot, priority, caller, is_retry)
WHERE NOT EXISTS (SELECT 1 FROM slots WHERE slots.id = w.slot)
ON CONFLICT (slot) DO UPDATE SET owner = excluded.owner, seen = excluded.seen";
/// The free slots, as steps of a statement: the limit is `$2` to `$5`, and `$8` how long slots are kept.
///
/// With its order and limit, the database reads only taken slots, and not those of a whole day.
macro_rules! free_slots {
    () => {
        "t AS MATERIALIZED (SELECT {now} AS now),
l AS MATERIALIZED (
  SELECT requests, period + period / 1000 AS lifetime, blocked_until, purchases_since_poll,
    reported, reported_seconds,
    CASE WHEN is_known OR requests <= 1 THEN 0 ELSE 1 END AS kept,
    CASE WHEN requests < 5 THEN 0 ELSE requests / 10 + (requests % 10 > 0)::int END AS kept_from_polls
  FROM (
    SELECT coalesce($2::bigint, requests, $4::bigint) AS requests,
      coalesce($3::bigint, least(seconds, 86400) * 1000000000, $5::bigint) AS period,
      coalesce($2::bigint, requests) IS NOT NULL AS is_known,
      blocked_until, purchases_since_poll, requests AS reported, seconds AS reported_seconds
    FROM rate_limit
  ) effective
), busy AS MATERIALIZED (
  SELECT caller, count(*) AS slots, min(replied) AS first_reply FROM l, t, LATERAL (
    SELECT caller, replied FROM slots
    WHERE coalesce(replied, 9223372036854775807) > t.now - l.lifetime AND at <= t.now + $8::bigint
    ORDER BY coalesce(replied, 9223372036854775807) DESC LIMIT l.requests
  ) AS taken GROUP BY caller
), free AS MATERIALIZED (
  SELECT CASE WHEN t.now < l.blocked_until THEN 0
    ELSE greatest(l.requests - coalesce((SELECT sum(slots) FROM busy), 0)::bigint, 0) END AS slots
  FROM l, t
)"
    };
}
pub(super) use free_slots;

/// Grants the requests of this instance that are among the first of all, as far as slots are free.
///
/// A caller's turn comes by how many slots it has, and by how many of its own requests are ahead.
/// A poll goes first after nine purchases. Other polls leave a tenth of the slots free, and while the
/// limit is not known, one slot is kept for the request that reports it.
const TURN: &str = concat!(
    "WITH ",
    free_slots!(),
    ", fresh AS (
  SELECT w.slot, w.owner, w.priority, w.caller, w.since, least(w.priority, 2) AS kind,
    coalesce(busy.slots, 0) + row_number() OVER (
      PARTITION BY w.priority, w.caller ORDER BY w.since, w.slot) AS turn
  FROM waiting AS w CROSS JOIN t LEFT JOIN busy ON busy.caller = w.caller
  WHERE w.seen > t.now - $7::bigint
), line AS (
  SELECT *, row_number() OVER (PARTITION BY kind ORDER BY priority, turn, since, slot) AS nth
  FROM fresh
), placed AS MATERIALIZED (
  SELECT slot, owner, caller, kind, nth,
    row_number() OVER (ORDER BY
      CASE kind WHEN 0 THEN 0 WHEN 1 THEN 2 * (l.purchases_since_poll + nth) ELSE 18 * nth + 1 END,
      kind, nth) AS place,
    count(*) FILTER (WHERE kind = 1) OVER () AS purchases,
    count(*) FILTER (WHERE kind = 2) OVER () AS polls
  FROM line, l
), granted AS (
  DELETE FROM waiting USING placed AS p, free, l
  WHERE waiting.slot = p.slot AND p.owner = $1::bigint AND p.place <= free.slots
    AND (p.kind = 0 OR free.slots - p.place >= l.kept)
    AND (p.kind < 2 OR l.purchases_since_poll + p.purchases >= 9 * p.nth
      OR free.slots - p.place >= l.kept_from_polls)
  RETURNING p.slot, p.caller, p.kind, p.place, p.polls
), taken AS (
  INSERT INTO slots (id, owner, caller, at)
  SELECT granted.slot, $1::bigint, granted.caller, t.now FROM granted, t
), last_poll AS (
  SELECT max(place) AS place FROM granted WHERE kind = 2
), counted AS (
  UPDATE rate_limit SET purchases_since_poll = CASE WHEN g.polls = 0 THEN 0
    ELSE least(g.purchases + CASE WHEN g.has_poll THEN 0 ELSE l.purchases_since_poll END, 9) END
  FROM l, (
    SELECT max(polls) - count(*) FILTER (WHERE kind = 2) AS polls,
      count(*) FILTER (WHERE kind = 1 AND granted.place > coalesce(last_poll.place, 0)) AS purchases,
      bool_or(kind = 2) AS has_poll
    FROM granted, last_poll HAVING count(*) > 0
  ) g
)
SELECT ARRAY(SELECT slot FROM granted UNION SELECT id FROM slots WHERE id = ANY($6::uuid[])),
  free.slots - (SELECT count(*) FROM granted),
  (SELECT count(*) FROM placed WHERE kind < 2) - (SELECT count(*) FROM granted WHERE kind < 2),
  CASE WHEN t.now < l.blocked_until THEN l.blocked_until
    ELSE (SELECT min(first_reply) FROM busy) + l.lifetime END - t.now,
  l.reported, l.reported_seconds
FROM free, l, t"
);
const BLOCK: &str =
    "UPDATE rate_limit SET blocked_until = greatest(blocked_until, {now} + $1::bigint)";

/// A request that waits for a slot.
#[derive(Clone, Debug)]
pub struct SlotRequest {
    /// The slot that it gets.
    pub slot: SlotId,
    pub priority: SlotPriority,
    pub caller: Arc<str>,
    /// Comes first among its caller's requests.
    pub is_retry: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotPriority {
    /// tollgate's request for the billing summary, which reports the limit.
    Internal,
    Purchase,
    /// A poll of a job that someone watches.
    Watched,
    Unwatched,
}

/// The outcome of [`Fleet::take_turns`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotTurn {
    /// The slots that this instance has taken.
    pub granted: Vec<SlotId>,
    pub free: u64,
    /// How many requests still wait at all instances, without polls.
    pub waiting: u64,
    /// When the next slot comes free by itself; `None` while no taken slot has a reply.
    pub next_free_in: Option<Duration>,
    /// The limit that the gateway reported last, to any instance.
    pub reported: Option<AccountLimit>,
}

impl Fleet {
    /// Enters the requests of this instance that wait, and takes the slots that are theirs now.
    ///
    /// `requests` are all of them: earlier ones that are missing leave the queue. Ask again within a
    /// second, else those of others are served first. Each slot is taken once, however often its
    /// request is entered, and is given back with `slot_replied` or `release_slot`.
    pub async fn take_turns(
        &self,
        requests: &[SlotRequest],
        limit: SlotLimit,
    ) -> Result<SlotTurn, Unavailable> {
        let (store, me) = (&self.0, self.0.shared().number());
        let slots: Vec<Uuid> = requests.iter().map(|request| request.slot.0).collect();
        let fixed = limit.fixed;
        let comparison =
            ClockComparison::new(&store.shared().last_reading, store.shared().since_boot);
        let [compare, move_replies] = comparison.statements();
        let mut statements = vec![
            compare,
            statement!(LOCK),
            move_replies,
            statement!(LEAVE, me, slots.clone()),
            statement!(
                ENTER,
                me,
                slots.clone(),
                requests.iter().map(|request| request.priority.rank()).collect::<Vec<_>>(),
                requests.iter().map(|request| request.caller.to_string()).collect::<Vec<_>>(),
                requests.iter().map(|request| request.is_retry).collect::<Vec<_>>(),
            ),
            statement!(
                TURN,
                me,
                fixed.map(|rate| signed(rate.requests)),
                fixed.map(period),
                signed(limit.assumed.requests),
                period(limit.assumed),
                slots,
                nanos(FRESHNESS),
                nanos(SLOT_RETENTION),
            ),
        ];
        statements.extend(store.purge_if_due());
        let step = Step::new(Need::Plain, statements).guarded(me);
        let rows = store.run(&store.lanes().marks, step).await?;
        let Shared { last_reading, metrics, .. } = store.shared();
        let compared = [first_row(&rows, 0), first_row(&rows, 2)];
        comparison.finish(last_reading, metrics, compared)?;
        let turn = read_turn(&rows)?;
        store.shared().slots.take(turn.granted.iter().copied());
        Ok(turn)
    }

    /// Has no instance take a slot for this long, because the gateway has refused a request.
    pub fn block_slots(&self, wait: Duration) {
        let block = Step::plain(statement!(BLOCK, nanos(wait.min(SLOT_RETENTION))));
        self.0.lanes().notify(&self.0.lanes().marks, block);
    }
}

impl SlotPriority {
    fn rank(self) -> i16 {
        match self {
            Self::Internal => 0,
            Self::Purchase => 1,
            Self::Watched => 2,
            Self::Unwatched => 3,
        }
    }
}

/// No slot is remembered for longer.
pub(super) fn period(rate: SlotRate) -> i64 {
    nanos(rate.period.min(SLOT_RETENTION))
}

fn read_turn(rows: &StepRows) -> Read<SlotTurn> {
    let row = first_row(rows, 5).ok_or_else(|| Unavailable("the database sent no turn".into()))?;
    let next = column::get::<Option<i64>>(row, 3)?;
    let next_free_in = next.map(|nanos| Duration::from_nanos(nanos.try_into().unwrap_or_default()));
    let (requests, seconds) = (column::count_or_none(row, 4)?, column::count_or_none(row, 5)?);
    let reported = requests.zip(seconds);
    Ok(SlotTurn {
        granted: column::get::<Vec<Uuid>>(row, 0)?.into_iter().map(SlotId).collect(),
        free: column::count(row, 1)?,
        waiting: column::count(row, 2)?,
        next_free_in,
        reported: reported
            .map(|(requests, window_seconds)| AccountLimit { requests, window_seconds }),
    })
}
