//! The statements that write events of purchases and jobs.

use super::column::nanos;
use super::step::{Statement, statement};
use crate::contract::event::EventKind;
use crate::store::outbox::{
    ALERT_RETENTION, EVENT_RETENTION, event_id, job_events, unknown_event_id,
};
use crate::store::{JobState, PurchaseId, StatusUpdate};

/// Text as of `Usd`.
macro_rules! dollars {
    ($column:literal) => {
        concat!($column, " / 1000000 || '.' || lpad((", $column, " % 1000000)::text, 6, '0')")
    };
}

/// Selects the data of the event `outcome.unknown` from a row of `purchases`.
macro_rules! unknown_data {
    ($id:literal) => {
        concat!(
            "json_build_object('purchase', ",
            $id,
            "::text, 'caller', caller, 'model', model, 'price', ",
            $crate::store::postgres::events::dollars!("price_micros"),
            ", 'price_micros', price_micros)::text"
        )
    };
}
pub(super) use {dollars, unknown_data};

const WRITE_UNKNOWN: &str = concat!(
    "WITH t AS MATERIALIZED (SELECT {now} AS now)
INSERT INTO outbox (id, webhook, event, at, due, data)
SELECT $2::text, webhook, event, t.now, t.now, ",
    unknown_data!("purchases.id"),
    "
FROM t, purchases, webhooks
WHERE purchases.id = $1::uuid AND state = 'unknown' AND event = 'outcome.unknown'
ON CONFLICT DO NOTHING"
);
/// Records a status, and reports the end of the job: `$5` and `$6` are events, `$7` and `$8` their ids.
/// A newer address of a result leaves the time of the end, and is not reported.
const UPDATE_JOB: &str = concat!(
    "WITH t AS MATERIALIZED (SELECT {now} AS now),
updated AS (
  UPDATE jobs SET status_at = $2::bigint, body = $3::bytea, state = $4::text, revision = revision + 1
  WHERE request_id = $1::text
    AND (state = 'open' OR (state = 'failed' AND $4::text = 'finished'))
  RETURNING request_id, model, owner, price_micros
), renewed AS (
  UPDATE jobs SET body = $3::bytea, revision = revision + 1
  WHERE request_id = $1::text AND state = 'finished' AND $4::text = 'finished'
)
INSERT INTO outbox (id, webhook, event, at, due, data)
SELECT CASE event WHEN $5::text THEN $7::text ELSE $8::text END, webhook, event, t.now, t.now,
  CASE event WHEN $5::text THEN json_build_object('request_id', request_id, 'model', model,
      'caller', owner, 'cost', ",
    dollars!("price_micros"),
    ", 'cost_micros', price_micros)
    ELSE json_build_object('id', request_id) END::text
FROM t, updated, webhooks WHERE event IN ($5::text, $6::text)
ON CONFLICT DO NOTHING"
);
/// Reports a purchase, if it is unknown.
pub(super) fn unknown_event(id: PurchaseId) -> Statement {
    statement!(WRITE_UNKNOWN, id.0, unknown_event_id(id))
}

/// Records a job's status and reports its end. A job that has ended changes only to finished.
pub(super) fn job_update(request_id: &str, update: StatusUpdate) -> Statement {
    let StatusUpdate { at, body, state } = update;
    let events = job_events(state);
    let names = events.map(|events| events.map(EventKind::name)).unwrap_or_default();
    let ids = events.map(|events| events.map(|kind| event_id(kind, request_id)));
    let [own_id, openai_id] = ids.unwrap_or_default();
    let [own, openai] = names;
    statement!(
        UPDATE_JOB,
        request_id.to_owned(),
        nanos(at),
        body.to_vec(),
        JobState::name(state),
        own,
        openai,
        own_id,
        openai_id,
    )
}

/// Deletes events that nothing has delivered, and alerts of periods that are over.
pub(super) fn purge() -> [Statement; 2] {
    [
        statement!("DELETE FROM outbox WHERE at < {now} - $1", nanos(EVENT_RETENTION)),
        statement!(
            "DELETE FROM alerts WHERE period <> 0 AND at < {now} - $1",
            nanos(ALERT_RETENTION)
        ),
    ]
}
