//! Converts the ledger's values to PostgreSQL's and back, exactly or not at all.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::contract::member::LimitChange;
use crate::contract::money::{SpendLimit, Usd};
use crate::store::{PurchaseId, PurchaseState, Service, Unavailable};

pub(super) type Read<T> = Result<T, Unavailable>;

/// Nanoseconds, which reach to the year 2262. Later times saturate.
pub(super) fn nanos(time: Duration) -> i64 {
    signed(time.as_nanos())
}

/// PostgreSQL's integers are signed. Larger numbers saturate.
pub(super) fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Read<T> {
    row.try_get(column).map_err(|error| Unavailable(error.to_string().into()))
}

pub(super) fn text(row: &Row, column: usize) -> Read<Arc<str>> {
    Ok(get::<&str>(row, column)?.into())
}

pub(super) fn text_or_none(row: &Row, column: usize) -> Read<Option<Arc<str>>> {
    Ok(get::<Option<&str>>(row, column)?.map(Arc::from))
}

fn out_of_range() -> Unavailable {
    Unavailable("a number in the ledger is out of range".into())
}

pub(super) fn count(row: &Row, column: usize) -> Read<u64> {
    u64::try_from(get::<i64>(row, column)?).map_err(|_| out_of_range())
}

pub(super) fn count_or_none(row: &Row, column: usize) -> Read<Option<u64>> {
    let number = get::<Option<i64>>(row, column)?;
    number.map(u64::try_from).transpose().map_err(|_| out_of_range())
}

pub(super) fn moment(row: &Row, column: usize) -> Read<Duration> {
    Ok(Duration::from_nanos(count(row, column)?))
}

pub(super) fn moment_or_none(row: &Row, column: usize) -> Read<Option<Duration>> {
    Ok(count_or_none(row, column)?.map(Duration::from_nanos))
}

pub(super) fn money(row: &Row, column: usize) -> Read<Usd> {
    Ok(Usd::micros(count(row, column)?))
}

pub(super) fn digest<const N: usize>(row: &Row, column: usize) -> Read<[u8; N]> {
    let bytes: &[u8] = get(row, column)?;
    bytes.try_into().map_err(|_| Unavailable("a hash in the ledger has another length".into()))
}

pub(super) fn id(row: &Row, column: usize) -> Read<PurchaseId> {
    Ok(PurchaseId(get(row, column)?))
}

pub(super) fn state(row: &Row, column: usize) -> Read<PurchaseState> {
    named(row, column, &PurchaseState::ALL, PurchaseState::name)
}

pub(super) fn service(row: &Row, column: usize) -> Read<Service> {
    named(row, column, &Service::ALL, Service::name)
}

pub(super) fn named<T: Copy>(
    row: &Row,
    column: usize,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Read<T> {
    let text: &str = get(row, column)?;
    let found = all.iter().copied().find(|one| name(*one) == text);
    found.ok_or_else(|| Unavailable("the ledger has an unknown name".into()))
}

/// Writes a change of limits as two lists: which it changes, and the amounts.
pub(super) fn limit_change(LimitChange(all): LimitChange) -> (Vec<bool>, Vec<Option<i64>>) {
    let amount = |change: Option<Option<Usd>>| change.flatten().map(Usd::as_micros).map(signed);
    (all.iter().map(Option::is_some).collect(), all.into_iter().map(amount).collect())
}

/// Computes the limit of the `$nth` period after a change, whose lists are `$sets` and `$amounts`.
macro_rules! changed_limit {
    ($nth:literal, $column:literal, $sets:literal, $amounts:literal) => {
        concat!(
            "CASE WHEN (",
            $sets,
            "::boolean[])[",
            $nth,
            "] THEN (",
            $amounts,
            "::bigint[])[",
            $nth,
            "] ELSE ",
            $column,
            " END"
        )
    };
}
pub(super) use changed_limit;

/// Sets all limits of a row to those after a change.
macro_rules! changed_limits {
    ($sets:literal, $amounts:literal) => {
        concat!(
            "day_micros = ",
            $crate::store::postgres::column::changed_limit!("1", "day_micros", $sets, $amounts),
            ", week_micros = ",
            $crate::store::postgres::column::changed_limit!("2", "week_micros", $sets, $amounts),
            ", month_micros = ",
            $crate::store::postgres::column::changed_limit!("3", "month_micros", $sets, $amounts),
            ", ever_micros = ",
            $crate::store::postgres::column::changed_limit!("4", "ever_micros", $sets, $amounts)
        )
    };
}
pub(super) use changed_limits;

/// Reads the amounts of a day, a week, a month and ever from four columns.
pub(super) fn limit(row: &Row, first: usize) -> Read<SpendLimit> {
    let amount = |at| Ok::<_, Unavailable>(count_or_none(row, at)?.map(Usd::micros));
    Ok(SpendLimit {
        day: amount(first)?,
        week: amount(first + 1)?,
        month: amount(first + 2)?,
        ever: amount(first + 3)?,
    })
}
