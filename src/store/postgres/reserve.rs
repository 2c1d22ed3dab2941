//! Holds a price: finds duplicates, judges the budgets and the balance, inserts and counts, in one
//! statement under the account's lock. If [`free_slots`] has found a slot for it, the statement also
//! takes the slot, and inserts the purchase as sent.
//!
//! The statement takes its snapshot after the lock, so it sees every earlier sale, and those of its
//! own transaction. The rules of `store::rules` judge again what it has read.

use std::time::Duration;

use tokio_postgres::Row;
use tracing::error;

use super::column::{self, Read, nanos, signed};
use super::events::dollars;
use super::free_slots;
use super::shared::Shared;
use super::step::{Effect, Need, Statement, Step, StepRows, statement};
use crate::contract::money::{Period, SpendLimit, Usd};
use crate::store::rules::{self, Credit, KnownBalance, ScopeBudget, Today};
use crate::store::{
    AccountStatus, BudgetScope, CreditWatermark, DedupeKey, EarlierReply, ExistingPurchase, Held,
    MissingSpend, PeriodSpend, Reservation, ReserveError, ScopeKind, Unavailable, WantedSlot,
};
use crate::sync::lock;

/// An expired purchase gives up its key, a year after its reply: see [`rules::KEY_RETENTION`].
const EXPIRE: &str = "UPDATE purchases SET key = NULL, payload = NULL
    WHERE key = $1 AND state = 'charged' AND keep_until <= {now} - 31536000000000000";

/// The day never goes back: a clock that does reopens no earlier one. A counted day that is more
/// than two days ahead of the clock is ignored.
macro_rules! today {
    () => {
        "t AS MATERIALIZED (SELECT {now} AS now),
latest AS MATERIALIZED (
  SELECT max(period) AS day FROM spent, t
  WHERE scope = 'total' AND unit = 'day' AND period <= t.now / 86400000000000 + 2
), today AS MATERIALIZED (
  SELECT d.day, d.day - (d.day + 3) % 7 AS monday,
    (extract(year FROM d.date) * 12 + extract(month FROM d.date) - 1)::bigint AS month
  FROM t, latest,
    LATERAL (SELECT greatest(t.now / 86400000000000, latest.day) AS day) n,
    LATERAL (SELECT n.day, date '1970-01-01' + n.day::int AS date) d
)"
    };
}

/// Composes the statement. `$report` are more steps of it.
macro_rules! reserve {
    ($report:expr) => {
        concat!(
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
   WHERE cardinality($22::bytea[]) > 0 AND key = ANY($22::bytea[]) AND NOT (state = 'charged' AND keep_until <= t.now - 31536000000000000)
   ORDER BY array_position($22::bytea[], key) LIMIT 1)
  UNION ALL
  (SELECT 2, number, id, state, price_micros, keep_until, false
   FROM purchases WHERE fingerprint = $9::bytea AND ended_at IS NULL AND id <> ALL($25::uuid[]) LIMIT 1)
  UNION ALL
  (SELECT 3, number, id, state, coalesce(cost_micros, price_micros), keep_until, false
   FROM purchases, t
   WHERE fingerprint = $9::bytea AND ended_at IS NOT NULL
     AND t.now - ended_at <= $10::bigint AND ended_at - t.now <= $11::bigint
     AND (state = 'unknown' OR id <> ALL($25::uuid[]) AND (NOT delivered OR ended_at >= $12::bigint))
   ORDER BY ended_at DESC, number DESC LIMIT 1)
  ORDER BY rank LIMIT 1
), scopes AS MATERIALIZED (
  SELECT 1 AS rank, 'total' AS scope, ($13::bigint[])[1] AS day, ($13::bigint[])[2] AS week,
    ($13::bigint[])[3] AS month, ($13::bigint[])[4] AS ever
  UNION ALL
  SELECT 2, 'group ' || $14::text, day_micros, week_micros, month_micros, ever_micros
  FROM (VALUES (1)) AS one LEFT JOIN groups ON groups.name = $14::text
  UNION ALL
  SELECT 3, 'caller ' || $3::text, (l.own)[1] + extra, (l.own)[2] + extra, (l.own)[3] + extra, (l.own)[4] + extra
  FROM (SELECT $15::bigint[] AS own,
    least(coalesce((SELECT sum(micros) FROM extras, t WHERE extras.caller = $3::text AND until > t.now), 0), 4611686018427387903)::bigint
      AS extra) AS l
  UNION ALL
  SELECT 4, 'token ' || $16::text, ($21::bigint[])[1], ($21::bigint[])[2], ($21::bigint[])[3], ($21::bigint[])[4]
), sums AS MATERIALIZED (
  SELECT s.rank, p.nth, p.most, coalesce(p.spent, 0) AS spent
  FROM scopes AS s, today, LATERAL (VALUES
    (1, s.day, (SELECT micros FROM spent WHERE scope = s.scope AND unit = 'day' AND period = today.day)),
    (2, s.week, CASE WHEN s.week IS NOT NULL THEN
      (SELECT least(coalesce(sum(micros), 0), 9223372036854775807)::bigint FROM spent
       WHERE scope = s.scope AND unit = 'day' AND period BETWEEN today.monday AND today.monday + 6) END),
    (3, s.month, (SELECT micros FROM spent WHERE scope = s.scope AND unit = 'month' AND period = today.month)),
    (4, s.ever, CASE WHEN s.ever IS NOT NULL THEN
      (SELECT least(coalesce(sum(micros), 0), 9223372036854775807)::bigint FROM spent WHERE scope = s.scope AND unit = 'month') END)
  ) AS p(nth, most, spent)
), verdict AS (
  SELECT CASE
    WHEN EXISTS (SELECT 1 FROM known) THEN 'known'
    WHEN $23::text <> (SELECT name FROM store) THEN 'changed'
    WHEN $24::uuid IS NOT NULL AND NOT EXISTS (SELECT 1 FROM purchases WHERE id = $24::uuid) THEN 'changed'
    WHEN $18::boolean THEN 'nothing'
    WHEN EXISTS (SELECT 1 FROM sums WHERE spent > most - $6::bigint) THEN 'over'
    WHEN EXISTS (SELECT 1 FROM sums WHERE spent > 9223372036854775807 - $6::bigint) THEN 'over'
    WHEN greatest(balance - (committed - balance_mark), 0) < $17::bigint
      AND t.now - balance_as_of <= 900000000000 THEN 'short'
    ELSE 'new' END AS word
  FROM account, t
), free AS MATERIALIZED (
  SELECT $19::uuid AS slot
  WHERE $19::uuid IS NOT NULL AND nullif(current_setting('tollgate.free_slots', true), '')::bigint > 0
), made AS (
  INSERT INTO purchases (id, owner, at, day, month, caller, group_name, token, service, model, price_micros, state,
    key, payload, fingerprint, unrecognised)
  SELECT $1::uuid, $2::bigint, t.now, today.day, today.month, $3::text, $14::text, $16::text, $4::text, $5::text, $6::bigint,
    CASE WHEN free.slot IS NULL THEN 'held' ELSE 'sent' END, $7::bytea, $8::bytea, $9::bytea, free.slot IS NOT NULL AND $20::boolean
  FROM t, today, verdict LEFT JOIN free ON true WHERE word = 'new'
  ON CONFLICT (id) DO NOTHING RETURNING day, month
), slot AS (
  INSERT INTO slots (id, owner, caller, at) SELECT free.slot, $2::bigint, $3::text, t.now FROM t, made, free
), counted AS (
  INSERT INTO spent (scope, unit, period, micros)
  SELECT scopes.scope, c.unit, c.period, $6::bigint
  FROM made, scopes, LATERAL (VALUES ('day', made.day), ('month', made.month)) AS c(unit, period)
  WHERE scopes.scope IS NOT NULL
  ON CONFLICT (scope, unit, period) DO UPDATE SET micros = spent.micros + excluded.micros
), committed AS (
  UPDATE account SET committed = account.committed + $6::bigint FROM made
)",
            $report,
            "
SELECT CASE WHEN word = 'new' AND NOT EXISTS (SELECT 1 FROM made) THEN 'taken' ELSE word END,
  t.now, today.day, today.month, latest.day,
  (SELECT array_agg(most ORDER BY rank, nth) FROM sums),
  (SELECT array_agg(spent ORDER BY rank, nth) FROM sums),
  account.committed, balance, balance_mark, balance_as_of,
  account.committed - coalesce(
    (SELECT sum(price_micros) FROM purchases WHERE ended_at IS NULL), 0)::bigint,
  known.id, known.state, known.cost, known.keep_until, known.is_reused,
  (SELECT bytes FROM replies WHERE replies.number = known.number),
  (SELECT set_config('tollgate.free_slots', (current_setting('tollgate.free_slots')::bigint - 1)::text, true)
   FROM made, free) IS NOT NULL,
  (SELECT name FROM store)
FROM verdict, t, today, latest, account LEFT JOIN known ON true"
)
    };
}

const RESERVE: &str = reserve!("");

/// The same, and reports the budgets whose spending has reached one of the percentages `$26`, each
/// once in its period.
const RESERVE_AND_REPORT: &str = reserve!(concat!(
    ", crossed AS MATERIALIZED (
  SELECT b.kind, b.whose, p.name AS period, p.number, rule.percent, sums.most,
    sums.spent + $6::bigint AS spent,
    concat_ws(' ', b.kind, b.whose, p.name, rule.percent || '% of', sums.most) AS alert
  FROM made, today, sums, unnest($26::bigint[]) AS rule(percent),
    LATERAL (VALUES (1, 'total', NULL), (2, 'group', $14::text), (3, 'caller', $3::text), (4, 'token', $16::text))
      AS b(rank, kind, whose),
    LATERAL (VALUES (1, 'day', today.day), (2, 'week', today.monday), (3, 'month', today.month), (4, 'ever', 0))
      AS p(nth, name, number)
  WHERE b.rank = sums.rank AND p.nth = sums.nth AND sums.most IS NOT NULL
    AND (sums.spent + $6::bigint)::numeric * 100 >= sums.most::numeric * rule.percent
), raised AS (
  INSERT INTO alerts (rule, whose, period, at)
  SELECT 'budget.threshold', alert, number, t.now FROM crossed, t
  WHERE EXISTS (SELECT 1 FROM webhooks WHERE event = 'budget.threshold')
  ON CONFLICT DO NOTHING RETURNING whose
), reported AS (
  INSERT INTO outbox (id, webhook, event, at, due, data)
  SELECT concat_ws('_', 'evt', replace($1::uuid::text, '-', ''), kind, period, percent),
    webhook, event, t.now, t.now,
    json_build_object('scope', kind, 'name', crossed.whose, 'period', period, 'percent', percent,
      'limit', ",
    dollars!("most"),
    ", 'limit_micros', most, 'spent', ",
    dollars!("spent"),
    ", 'spent_micros', spent)::text
  FROM raised JOIN crossed ON crossed.alert = raised.whose, t, webhooks
  WHERE event = 'budget.threshold'
  ON CONFLICT DO NOTHING
)"
));

/// Neither `committed` nor the balance changes: the gateway's next balance includes the spending.
const MISSING_SPEND: &str = concat!(
    "WITH ",
    today!(),
    ", made AS (
  INSERT INTO purchases (id, owner, at, day, month, caller, service, model, price_micros,
    cost_micros, state, ended_at, keep_until, assumed)
  SELECT $1::uuid, $2::bigint, t.now, today.day, today.month, $3::text, 'other', $4::text,
    $5::bigint, $5::bigint, 'charged', t.now, t.now, true
  FROM t, today RETURNING day, month
)
INSERT INTO spent (scope, unit, period, micros)
SELECT c.scope, c.unit, c.period, $5::bigint
FROM made, LATERAL (VALUES ('total', 'day', day), ('total', 'month', month),
  ('caller ' || $3::text, 'day', day), ('caller ' || $3::text, 'month', month)) AS c(scope, unit, period)
ON CONFLICT (scope, unit, period) DO UPDATE SET micros = spent.micros + excluded.micros"
);

/// What a scope has spent in the current periods, and the time.
const SPENT: &str = concat!(
    "WITH ",
    today!(),
    " SELECT t.now, latest.day,
  coalesce((SELECT micros FROM spent WHERE scope = $1 AND unit = 'day' AND period = today.day), 0),
  coalesce((SELECT sum(micros) FROM spent
    WHERE scope = $1 AND unit = 'day' AND period BETWEEN today.monday AND today.monday + 6), 0)::bigint,
  coalesce((SELECT micros FROM spent WHERE scope = $1 AND unit = 'month' AND period = today.month), 0),
  coalesce((SELECT sum(micros) FROM spent WHERE scope = $1 AND unit = 'month'), 0)::bigint
FROM t, latest, today"
);

/// Returns the statement that records spending which the ledger lacks.
pub(super) fn missing_spend(owner: i64, missing: &MissingSpend) -> Read<Statement> {
    let MissingSpend { id, caller, model, amount } = *missing;
    Ok(statement!(MISSING_SPEND, id.0, owner, caller, model, countable(amount)?))
}

fn countable(amount: Usd) -> Read<i64> {
    let too_large = |_| Unavailable("the amount is too large to be counted".into());
    amount.as_micros().try_into().map_err(too_large)
}

pub(super) fn step(
    shared: &Shared,
    owner: i64,
    reservation: &Reservation,
    send: Option<(WantedSlot, AccountStatus)>,
) -> Read<Step> {
    let price = countable(reservation.price)?;
    let (key, others, payload, duplicate) = match &reservation.dedupe_key {
        DedupeKey::IdempotencyKey { key, payload } => (Some(key), &[][..], Some(payload), None),
        DedupeKey::Quote { key, others, payload } => (Some(key), &**others, Some(payload), None),
        DedupeKey::Fingerprint(duplicate) => (None, &[][..], None, Some(duplicate)),
    };
    let separate = duplicate.map_or(&[][..], |duplicate| &duplicate.separate_from);
    let separate: Vec<_> = separate.iter().map(|id| id.0).collect();
    let (key, payload) = (key.map(|key| key.to_vec()), payload.map(|payload| payload.to_vec()));
    let others: Vec<_> = others.iter().map(|key| key.to_vec()).collect();
    let (budgets, requires) = (&reservation.budgets, &reservation.requires);
    let needed = reservation.price.checked_add(budgets.balance_floor);
    let mut statements = Vec::with_capacity(2);
    if let Some(key) = &key {
        statements.push(statement!(EXPIRE, key.clone()));
    }
    let mut reserve = statement!(
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
        amounts(budgets.total),
        reservation.group.as_deref().map(str::to_owned),
        amounts(budgets.caller),
        reservation.token.as_deref().map(str::to_owned),
        needed.map_or(i64::MAX, |needed| signed(needed.as_micros())),
        reservation.replay_only,
        send.map(|(slot, _)| slot.id.0),
        send.is_some_and(|(_, account)| account == AccountStatus::Unconfirmed),
        amounts(reservation.token.as_ref().map_or(SpendLimit::NONE, |_| budgets.token)),
        others,
        requires.name.as_deref().map(str::to_owned),
        requires.earlier.map(|earlier| earlier.0),
        separate,
    );
    if !budgets.thresholds.is_none() {
        reserve.sql = RESERVE_AND_REPORT;
        let percents: Vec<_> = budgets.thresholds.iter().map(i64::from).collect();
        reserve.values.push(Box::new(percents));
    }
    statements.push(reserve);
    let prologue = send.map(|(slot, _)| free_slots::statements(shared, slot.limit));
    let step = Step::new(Need::Counting, statements).preceded_by(prologue.unwrap_or_default());
    Ok(step.guarded(owner).with_effect(Effect::Begins(reservation.id)))
}

/// Returns what the statement decided.
pub(super) fn verdict(
    shared: &Shared,
    reservation: &Reservation,
    rows: &StepRows,
) -> Result<Held, ReserveError> {
    let row = rows.last().and_then(|rows| rows.first());
    let row = row.ok_or_else(|| Unavailable("the database sent no verdict".into()))?;
    let word: &str = column::get(row, 0)?;
    match word {
        "known" => Err(existing(row)?),
        "nothing" => Err(ReserveError::NothingToReplay),
        "changed" => {
            // Until the next heartbeat, callers would be told the former name.
            *lock(&shared.name) = column::text(row, 19)?;
            Err(ReserveError::LedgerChanged)
        }
        "taken" => Err(Unavailable("the purchase is already in the ledger".into()).into()),
        _ => {
            let judged = judge(shared, reservation, row)?;
            let agrees = matches!(
                (&judged, word),
                (Ok(()), "new")
                    | (Err(ReserveError::InsufficientCredit), "short")
                    | (Err(ReserveError::OverBudget(_) | ReserveError::Unavailable(_)), "over")
            );
            if !agrees {
                report_difference(shared, reservation, word);
            }
            match (word, judged) {
                ("new", _) => Ok(Held {
                    watermark: CreditWatermark(column::count(row, 11)?),
                    is_sent: column::get(row, 18)?,
                }),
                (_, Err(refused)) => Err(refused),
                (_, Ok(())) => Err(Unavailable("the ledger's rules differ".into()).into()),
            }
        }
    }
}

fn report_difference(shared: &Shared, reservation: &Reservation, verdict: &str) {
    shared.metrics.rules_differ.inc();
    error!(purchase = %reservation.id, verdict, "ledger rules differ");
}

/// Judges what the statement has read by the rules that all backends share.
fn judge(shared: &Shared, reservation: &Reservation, row: &Row) -> Read<Result<(), ReserveError>> {
    let now = column::moment(row, 1)?;
    let today = Today::at(now, column::count_or_none(row, 4)?);
    if (today.day, today.month) != (column::count(row, 2)?, column::count(row, 3)?) {
        report_difference(shared, reservation, "day");
    }
    let scopes = scope_budgets(row, today)?;
    let (floor, price) = (reservation.budgets.balance_floor, reservation.price);
    let mut credit =
        Credit { held: 0, spent: column::count(row, 7)?, known: known_balance(row, 8)? };
    Ok(rules::check_budgets(&scopes, price).and_then(|()| credit.hold(price, floor, now)))
}

/// Reads the limits of all scopes and what they have spent from two arrays, four periods a scope.
fn scope_budgets(row: &Row, today: Today) -> Read<Vec<ScopeBudget>> {
    let limits: Vec<Option<i64>> = column::get(row, 5)?;
    let spent: Vec<i64> = column::get(row, 6)?;
    let amount = |micros: i64| u64::try_from(micros).map(Usd::micros).map_err(|_| out_of_range());
    let scopes = ScopeKind::ALL.into_iter().zip(limits.chunks(4).zip(spent.chunks(4)));
    scopes
        .map(|(scope, (limits, spent))| {
            let (&[day, week, month, ever], &[of_day, of_week, of_month, of_ever]) =
                (limits, spent)
            else {
                return Err(out_of_range());
            };
            let limit = |micros: Option<i64>| micros.map(amount).transpose();
            let limit = SpendLimit {
                day: limit(day)?,
                week: limit(week)?,
                month: limit(month)?,
                ever: limit(ever)?,
            };
            let spent = today.spend(|period| match period {
                Period::Day => amount(of_day),
                Period::Week => amount(of_week),
                Period::Month => amount(of_month),
                Period::Ever => amount(of_ever),
            })?;
            Ok(ScopeBudget { scope, limit, spent })
        })
        .collect()
}

/// Returns the limits of a day, a week, a month and ever.
fn amounts(limit: SpendLimit) -> Vec<Option<i64>> {
    // Half of what can be counted, so that an extra fits on top.
    let amount =
        |period| limit.get(period).map(|limit| signed(limit.as_micros()).min(i64::MAX / 2));
    Period::ALL.map(amount).to_vec()
}

fn out_of_range() -> Unavailable {
    Unavailable("the database sent sums that are out of range".into())
}

/// Reads a balance, its watermark and its time from three columns.
pub(super) fn known_balance(row: &Row, first: usize) -> Read<Option<KnownBalance>> {
    let Some(balance) = column::count_or_none(row, first)? else { return Ok(None) };
    let since = CreditWatermark(column::count(row, first + 1)?);
    let as_of = column::moment(row, first + 2)?;
    Ok(Some(KnownBalance { balance: Usd::micros(balance), since, as_of }))
}

fn existing(row: &Row) -> Read<ReserveError> {
    if column::get(row, 16)? {
        return Ok(ReserveError::KeyReused);
    }
    let (now, state) = (column::moment(row, 1)?, column::state(row, 13)?);
    let is_expired = rules::is_reply_expired(state, column::moment_or_none(row, 15)?, now);
    let bytes = column::count_or_none(row, 17)?.filter(|_| !is_expired);
    Ok(ReserveError::Duplicate(ExistingPurchase {
        id: column::id(row, 12)?,
        state,
        cost: column::money(row, 14)?,
        reply: match bytes.map(usize::try_from) {
            Some(Ok(bytes)) => EarlierReply::Kept { bytes },
            Some(Err(_)) | None => EarlierReply::NotKept,
        },
    }))
}

pub(super) fn spent_query(scope: &BudgetScope) -> Statement {
    let kind = scope.kind().name();
    statement!(
        SPENT,
        match scope {
            BudgetScope::Total => kind.to_owned(),
            BudgetScope::Group(name) | BudgetScope::Caller(name) | BudgetScope::Token(name) => {
                format!("{kind} {name}")
            }
        }
    )
}

pub(super) fn read_spent(rows: &StepRows) -> Read<PeriodSpend> {
    let row = rows.first().and_then(|rows| rows.first());
    let row = row.ok_or_else(|| Unavailable("the database sent no sums".into()))?;
    let now: Duration = column::moment(row, 0)?;
    let today = Today::at(now, column::count_or_none(row, 1)?);
    today.spend(|period| match period {
        Period::Day => column::money(row, 2),
        Period::Week => column::money(row, 3),
        Period::Month => column::money(row, 4),
        Period::Ever => column::money(row, 5),
    })
}
