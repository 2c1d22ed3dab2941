//! Holds a price: finds duplicates, judges the budgets and the balance, inserts and counts, in one
//! statement under the account's lock.
//!
//! The statement takes its snapshot after the lock, so it sees every earlier sale, and those of its
//! own transaction. The rules of `store::rules` judge again what it has read.

use std::time::Duration;

use tokio_postgres::Row;
use tracing::error;

use super::column::{self, Read, nanos, signed};
use super::step::{Effect, Need, Statement, Step, StepRows, statement};
use crate::contract::money::Usd;
use crate::store::rules::{self, Credit, KnownBalance, Today};
use crate::store::{
    AccountStatus, CreditWatermark, DedupeKey, EarlierReply, ExistingPurchase, PeriodSpend,
    PurchaseState, Reservation, ReserveError, SlotId, Unavailable,
};

/// An expired purchase gives up its key.
const EXPIRE: &str = "UPDATE purchases SET key = NULL, payload = NULL
    WHERE key = $1 AND state = 'charged' AND keep_until <= {now}";

/// The day never goes back: a clock that does reopens no earlier one. A counted day that is more
/// than two days ahead of the clock is ignored.
macro_rules! today {
    () => {
        "t AS MATERIALIZED (SELECT {now} AS now),
latest AS MATERIALIZED (
  SELECT max(period) AS day FROM spent, t
  WHERE scope = 'total' AND unit = 'day' AND period <= t.now / 86400000000000 + 2
), today AS MATERIALIZED (
  SELECT d.day, (extract(year FROM d.date) * 12 + extract(month FROM d.date) - 1)::bigint AS month
  FROM t, latest,
    LATERAL (SELECT greatest(t.now / 86400000000000, latest.day) AS day) n,
    LATERAL (SELECT n.day, date '1970-01-01' + n.day::int AS date) d
)"
    };
}

const RESERVE: &str = concat!(
    "WITH ",
    today!(),
    ", known AS (
  (SELECT 1 AS rank, number, id, state, coalesce(cost_micros, price_micros) AS cost, keep_until,
     payload IS DISTINCT FROM $8::bytea AS is_reused
   FROM purchases WHERE key = $7::bytea)
  UNION ALL
  (SELECT 2, number, id, state, coalesce(cost_micros, price_micros), keep_until,
     payload IS DISTINCT FROM $8::bytea
   FROM purchases, t
   WHERE key = ANY($22::bytea[]) AND NOT (state = 'charged' AND keep_until <= t.now)
   ORDER BY array_position($22::bytea[], key) LIMIT 1)
  UNION ALL
  (SELECT 2, number, id, state, price_micros, keep_until, false
   FROM purchases WHERE fingerprint = $9::bytea AND ended_at IS NULL LIMIT 1)
  UNION ALL
  (SELECT 3, number, id, state, coalesce(cost_micros, price_micros), keep_until, false
   FROM purchases, t
   WHERE fingerprint = $9::bytea AND ended_at IS NOT NULL
     AND t.now - ended_at <= $10::bigint AND ended_at - t.now <= $11::bigint
     AND (state = 'unknown' OR NOT delivered OR ended_at >= $12::bigint)
   ORDER BY ended_at DESC, number DESC LIMIT 1)
  ORDER BY rank LIMIT 1
), sums AS (
  SELECT coalesce(sum(micros) FILTER (WHERE scope = 'total' AND unit = 'day'), 0)::bigint AS total_day,
    coalesce(sum(micros) FILTER (WHERE scope = 'total' AND unit = 'month'), 0)::bigint AS total_month,
    coalesce(sum(micros) FILTER (WHERE scope <> 'total' AND unit = 'day'), 0)::bigint AS caller_day,
    coalesce(sum(micros) FILTER (WHERE scope <> 'total' AND unit = 'month'), 0)::bigint AS caller_month
  FROM spent, today
  WHERE scope IN ('total', 'caller ' || $3::text)
    AND ((unit = 'day' AND period = today.day) OR (unit = 'month' AND period = today.month))
), verdict AS (
  SELECT CASE
    WHEN EXISTS (SELECT 1 FROM known) THEN 'known'
    WHEN $18::boolean THEN 'nothing'
    WHEN coalesce(total_day > $13::bigint - $6::bigint, false) OR coalesce(total_month > $14::bigint - $6::bigint, false)
      OR coalesce(caller_day > $15::bigint - $6::bigint, false) OR coalesce(caller_month > $16::bigint - $6::bigint, false)
      THEN 'over'
    WHEN greatest(total_day, total_month, caller_day, caller_month) > 9223372036854775807 - $6::bigint
      THEN 'over'
    WHEN greatest(balance - (committed - balance_mark), 0) < $17::bigint
      AND t.now - balance_as_of <= 900000000000 THEN 'short'
    ELSE 'new' END AS word
  FROM sums, account, t
), made AS (
  INSERT INTO purchases (id, owner, at, day, month, caller, service, model, price_micros, state,
    key, payload, fingerprint, unrecognised)
  SELECT $1::uuid, $2::bigint, t.now, today.day, today.month, $3::text, $4::text, $5::text, $6::bigint, $19::text, $7::bytea, $8::bytea, $9::bytea, $20::boolean
  FROM t, today, verdict WHERE word = 'new'
  ON CONFLICT (id) DO NOTHING RETURNING day, month
), slot AS (
  INSERT INTO slots (id, owner, caller, at) SELECT $21::uuid, $2::bigint, $3::text, t.now FROM t, made WHERE $21::uuid IS NOT NULL
), counted AS (
  INSERT INTO spent (scope, unit, period, micros)
  SELECT c.scope, c.unit, c.period, $6::bigint
  FROM made, LATERAL (VALUES ('total', 'day', day), ('total', 'month', month),
    ('caller ' || $3::text, 'day', day), ('caller ' || $3::text, 'month', month)) AS c(scope, unit, period)
  ON CONFLICT (scope, unit, period) DO UPDATE SET micros = spent.micros + excluded.micros
), committed AS (
  UPDATE account SET committed = account.committed + $6::bigint FROM made
)
SELECT CASE WHEN word = 'new' AND NOT EXISTS (SELECT 1 FROM made) THEN 'taken' ELSE word END,
  t.now, today.day, today.month, latest.day,
  total_day, total_month, caller_day, caller_month,
  account.committed, balance, balance_mark, balance_as_of,
  account.committed - coalesce(
    (SELECT sum(price_micros) FROM purchases WHERE ended_at IS NULL), 0)::bigint,
  known.id, known.state, known.cost, known.keep_until, known.is_reused,
  (SELECT bytes FROM replies WHERE replies.number = known.number)
FROM verdict, t, today, latest, sums, account LEFT JOIN known ON true"
);

/// What a scope has spent in the current periods, and the time.
const SPENT: &str = concat!(
    "WITH ",
    today!(),
    " SELECT t.now, latest.day, today.day, today.month,
  coalesce((SELECT micros FROM spent WHERE scope = $1 AND unit = 'day' AND period = today.day), 0),
  coalesce((SELECT micros FROM spent WHERE scope = $1 AND unit = 'month' AND period = today.month), 0)
FROM t, latest, today"
);

pub(super) fn step(
    owner: i64,
    reservation: &Reservation,
    send: Option<(SlotId, AccountStatus)>,
) -> Read<Step> {
    let too_large = || Unavailable("the amount is too large to be counted".into());
    let price: i64 = reservation.price.as_micros().try_into().map_err(|_| too_large())?;
    let (key, others, payload, duplicate) = match &reservation.dedupe_key {
        DedupeKey::IdempotencyKey { key, payload } => (Some(key), &[][..], Some(payload), None),
        DedupeKey::Quote { key, others, payload } => (Some(key), &**others, Some(payload), None),
        DedupeKey::Fingerprint(duplicate) => (None, &[][..], None, Some(duplicate)),
    };
    let (key, payload) = (key.map(|key| key.to_vec()), payload.map(|payload| payload.to_vec()));
    let others: Vec<_> = others.iter().map(|key| key.to_vec()).collect();
    let budgets = &reservation.budgets;
    let limit = |budget: Option<Usd>| budget.map(|budget| signed(budget.as_micros()));
    let needed = reservation.price.checked_add(budgets.balance_floor);
    let (state, account) = match send {
        None => (PurchaseState::Held, AccountStatus::Confirmed),
        Some((_, account)) => (PurchaseState::Sent, account),
    };
    let mut statements = Vec::with_capacity(2);
    if let Some(key) = &key {
        statements.push(statement!(EXPIRE, key.clone()));
    }
    statements.push(statement!(
        RESERVE,
        reservation.id.0,
        owner,
        reservation.caller.to_string(),
        reservation.service.name(),
        reservation.model.to_string(),
        price,
        key,
        payload,
        duplicate.map(|duplicate| duplicate.fingerprint.to_vec()),
        duplicate.map(|duplicate| nanos(duplicate.within)),
        duplicate.map(|duplicate| nanos(duplicate.clock_skew)),
        duplicate.and_then(|duplicate| duplicate.delivered_since).map(nanos),
        limit(budgets.total_day),
        limit(budgets.total_month),
        limit(budgets.caller_day),
        limit(budgets.caller_month),
        needed.map_or(i64::MAX, |needed| signed(needed.as_micros())),
        reservation.replay_only,
        state.name(),
        account == AccountStatus::Unconfirmed,
        send.map(|(slot, _)| slot.0),
        others,
    ));
    let step = Step::new(Need::Counting, statements).guarded(owner);
    Ok(step.with_effect(Effect::Begins(reservation.id)))
}

/// Returns what the statement decided.
pub(super) fn verdict(
    reservation: &Reservation,
    rows: &StepRows,
) -> Result<CreditWatermark, ReserveError> {
    let row = rows.last().and_then(|rows| rows.first());
    let row = row.ok_or_else(|| Unavailable("the database sent no verdict".into()))?;
    let word: &str = column::get(row, 0)?;
    match word {
        "known" => Err(existing(row)?),
        "nothing" => Err(ReserveError::NothingToReplay),
        "taken" => Err(Unavailable("the purchase is already in the ledger".into()).into()),
        _ => {
            let judged = judge(reservation, row)?;
            let agrees = matches!(
                (&judged, word),
                (Ok(()), "new")
                    | (Err(ReserveError::InsufficientCredit), "short")
                    | (Err(ReserveError::OverBudget(_) | ReserveError::Unavailable(_)), "over")
            );
            if !agrees {
                error!(purchase = %reservation.id, verdict = word, "ledger rules differ");
            }
            match (word, judged) {
                ("new", _) => Ok(CreditWatermark(column::count(row, 13)?)),
                (_, Err(refused)) => Err(refused),
                (_, Ok(())) => Err(Unavailable("the ledger's rules differ".into()).into()),
            }
        }
    }
}

/// Judges what the statement has read by the rules that all backends share.
fn judge(reservation: &Reservation, row: &Row) -> Read<Result<(), ReserveError>> {
    let now = column::moment(row, 1)?;
    let today = Today::at(now, column::count_or_none(row, 4)?);
    if (today.day, today.month) != (column::count(row, 2)?, column::count(row, 3)?) {
        error!(purchase = %reservation.id, "ledger rules differ");
    }
    let spend = |day: usize, month: usize| -> Read<PeriodSpend> {
        period_spend(today, column::money(row, day)?, column::money(row, month)?)
    };
    let (total, own) = (spend(5, 6)?, spend(7, 8)?);
    let (budgets, price) = (&reservation.budgets, reservation.price);
    let mut credit =
        Credit { held: 0, spent: column::count(row, 9)?, known: known_balance(row, 10)? };
    Ok(rules::check_budgets(budgets, total, own, price, today)
        .and_then(|()| credit.hold(price, budgets.balance_floor, now)))
}

/// Reads a balance, its watermark and its time from three columns.
pub(super) fn known_balance(row: &Row, first: usize) -> Read<Option<KnownBalance>> {
    let Some(balance) = column::count_or_none(row, first)? else { return Ok(None) };
    let since = CreditWatermark(column::count(row, first + 1)?);
    let as_of = column::moment(row, first + 2)?;
    Ok(Some(KnownBalance { balance: Usd::micros(balance), since, as_of }))
}

fn existing(row: &Row) -> Read<ReserveError> {
    if column::get(row, 18)? {
        return Ok(ReserveError::KeyReused);
    }
    let (now, state) = (column::moment(row, 1)?, column::state(row, 15)?);
    let is_expired = rules::is_expired(state, column::moment_or_none(row, 17)?, now);
    let bytes = column::count_or_none(row, 19)?.filter(|_| !is_expired);
    Ok(ReserveError::Duplicate(ExistingPurchase {
        id: column::id(row, 14)?,
        state,
        cost: column::money(row, 16)?,
        reply: match bytes.map(usize::try_from) {
            Some(Ok(bytes)) => EarlierReply::Kept { bytes },
            Some(Err(_)) | None => EarlierReply::NotKept,
        },
    }))
}

pub(super) fn spent_query(scope: String) -> Statement {
    statement!(SPENT, scope)
}

pub(super) fn read_spent(rows: &StepRows) -> Read<PeriodSpend> {
    let row = rows.first().and_then(|rows| rows.first());
    let row = row.ok_or_else(|| Unavailable("the database sent no sums".into()))?;
    let now: Duration = column::moment(row, 0)?;
    let today = Today::at(now, column::count_or_none(row, 1)?);
    period_spend(today, column::money(row, 4)?, column::money(row, 5)?)
}

fn period_spend(today: Today, day: Usd, month: Usd) -> Read<PeriodSpend> {
    let (day_renews_at, month_renews_at) = (today.day_ends(), today.month_ends());
    Ok(PeriodSpend { day, month, day_renews_at, month_renews_at })
}
