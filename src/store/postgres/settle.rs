//! The end of a purchase.

use tracing::error;

use super::column::{self, nanos, signed};
use super::events;
use super::shared::Shared;
use super::step::{Effect, Need, Statement, Step, StepRows, statement};
use crate::store::{Job, PurchaseId, PurchaseState, Settlement};

/// Ends a purchase that is running, or one with an unknown outcome.
///
/// Counters move by the difference between what it counted for and what it counts for now. Unless
/// that is zero, the account's row must be locked. A purchase with an unknown outcome has left the
/// credit's sum already, so `committed` stays: the balance may have been learnt since.
///
/// Returns what no budget counts: whether a purchase that was charged had been released, and whether one
/// that may be charged is not in the ledger, which a failover can lose.
const SETTLE: &str = "
WITH t AS MATERIALIZED (SELECT {now} AS now),
found AS MATERIALIZED (
  SELECT number, state, caller, group_name, token, day, month,
    CASE $2::text WHEN 'charged' THEN $3::bigint WHEN 'released' THEN 0 ELSE price_micros END - price_micros AS change
  FROM purchases WHERE id = $1::uuid FOR UPDATE
), was AS (
  SELECT * FROM found
  WHERE state IN ('held', 'sent') OR (state = 'unknown' AND $2::text <> 'unknown')
), ended AS (
  UPDATE purchases SET state = $2::text, cost_micros = $3::bigint, assumed = $5::boolean,
    keep_until = CASE WHEN $2::text = 'charged' THEN t.now + least($4::bigint, 9223372036854775807 - t.now) END,
    ended_at = coalesce(ended_at, t.now),
    key = CASE WHEN $2::text = 'released' THEN NULL ELSE key END,
    payload = CASE WHEN $2::text = 'released' THEN NULL ELSE payload END,
    fingerprint = CASE WHEN $2::text = 'released' THEN NULL ELSE fingerprint END
  FROM was, t WHERE purchases.number = was.number
  RETURNING purchases.number, purchases.keep_until
), counted AS (
  UPDATE spent SET micros = micros + was.change
  FROM was, LATERAL (VALUES ('total'), ('caller ' || was.caller), ('group ' || was.group_name),
    ('token ' || was.token)) AS s(scope),
    LATERAL (VALUES ('day', was.day), ('month', was.month)) AS c(unit, period)
  WHERE was.change <> 0
    AND spent.scope = s.scope AND spent.unit = c.unit AND spent.period = c.period
), credited AS (
  UPDATE account SET committed = committed + was.change
  FROM was WHERE was.change <> 0 AND was.state <> 'unknown'
), kept AS (
  INSERT INTO replies (number, until, status, is_json, bytes, body)
  SELECT number, keep_until, $6::int, $7::boolean, length($8::bytea), $8::bytea FROM ended WHERE $8::bytea IS NOT NULL
)
SELECT coalesce($2::text = 'charged' AND state = 'released', false),
  $2::text <> 'released' AND state IS NULL
FROM (VALUES (true)) AS one LEFT JOIN found ON true";

/// A known job stays as it is.
const INSERT_JOB: &str = "INSERT INTO jobs
    (request_id, purchase, owner, key, model, price_micros, at, prompt, poller)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (request_id) DO NOTHING";

/// Returns the statement that records a job. The instance that accepts it also polls it.
pub(super) fn job_insertion(job: &Job, instance: i64) -> Statement {
    statement!(
        INSERT_JOB,
        job.request_id.to_string(),
        job.purchase.map(|id| id.0),
        job.owner.to_string(),
        job.key.map(|key| key.0.to_vec()),
        job.model.to_string(),
        signed(job.price.as_micros()),
        nanos(job.at),
        job.prompt.as_ref().map(|prompt| prompt.as_bytes().to_vec()),
        instance,
    )
}

/// Returns the step that ends a purchase.
///
/// It takes the account's lock unless it certainly moves no counter, so the usual end of a purchase
/// waits for no other.
pub(super) fn step(shared: &Shared, id: PurchaseId, settlement: &Settlement) -> Step {
    let held = shared.held_price(id);
    let (state, cost, is_even) = match settlement {
        Settlement::Charged { cost, .. } => {
            (PurchaseState::Charged, Some(*cost), held == Some(*cost))
        }
        Settlement::Released => (PurchaseState::Released, None, false),
        Settlement::Unknown => (PurchaseState::Unknown, None, held.is_some()),
    };
    let (reply, keep, job) = match settlement {
        Settlement::Charged { reply, keep, job, .. } => (reply.as_ref(), Some(*keep), job.as_ref()),
        Settlement::Released | Settlement::Unknown => (None, None, None),
    };
    let is_assumed = state == PurchaseState::Charged && reply.is_none();
    let mut statements = vec![statement!(
        SETTLE,
        id.0,
        state.name(),
        // A cost that is too large violates the constraint, as a negative one.
        cost.map(|cost| i64::try_from(cost.as_micros()).unwrap_or(-1)),
        keep.map(nanos),
        is_assumed,
        reply.map(|reply| i32::from(reply.status)),
        reply.map(|reply| reply.is_json),
        reply.map(|reply| reply.body.to_vec()),
    )];
    if let Some(job) = job {
        statements.push(job_insertion(job, shared.number()));
    }
    if state == PurchaseState::Unknown {
        statements.push(events::unknown_event(id));
    }
    let need = if is_even { Need::Plain } else { Need::Counting };
    Step::new(need, statements).with_effect(Effect::Ends(id))
}

/// Reports a charge that came too late, because another instance had declared this one dead, or the
/// operator had released the purchase; and one of a purchase that the database has lost.
pub(super) fn check(shared: &Shared, id: PurchaseId, rows: &StepRows) {
    let Some(row) = rows.first().and_then(|rows| rows.first()) else { return };
    if column::get(row, 0).unwrap_or_default() {
        shared.metrics.charges_of_released.inc();
        error!(purchase = %id, "charged purchase had been released; no budget counts it");
    }
    if column::get(row, 1).unwrap_or_default() {
        let price = shared.price(id).map(|price| price.to_string());
        shared.metrics.charges_of_lost.inc();
        error!(purchase = %id, price, "ledger lost a purchase that was sent; no budget counts it");
    }
}

/// Returns the notification that releases a purchase which may never have been held.
pub(super) fn release(shared: &Shared, id: PurchaseId) -> Step {
    let mut step = step(shared, id, &Settlement::Released);
    step.stamp = shared.clock.stamp();
    step
}
