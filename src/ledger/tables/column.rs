//! Converts the ledger's values to columns and back, exactly or not at all.

use std::time::Duration;

use uuid::Uuid;

use crate::contract::money::Usd;
use crate::ledger::engine::{Result, Row, unfit};
use crate::ledger::{PurchaseId, PurchaseState, Service};

/// Nanoseconds, which reach to the year 2262. Later times saturate.
pub(in crate::ledger) fn nanos(time: Duration) -> i64 {
    signed(time.as_nanos())
}

/// The databases' integers are signed. Larger numbers saturate.
pub(super) fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Returns the time of [`nanos`].
pub(in crate::ledger) fn duration(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
}

pub(super) fn moment(row: &Row<'_>, column: usize) -> Result<Duration> {
    Ok(Duration::from_nanos(row.get(column)?))
}

pub(super) fn moment_or_none(row: &Row<'_>, column: usize) -> Result<Option<Duration>> {
    Ok(row.get::<Option<u64>>(column)?.map(Duration::from_nanos))
}

pub(super) fn money(row: &Row<'_>, column: usize) -> Result<Usd> {
    Ok(Usd::micros(row.get(column)?))
}

pub(super) fn id(row: &Row<'_>, column: usize) -> Result<PurchaseId> {
    Ok(PurchaseId(Uuid::from_bytes(row.get(column)?)))
}

pub(super) fn state(row: &Row<'_>, column: usize) -> Result<PurchaseState> {
    named(row, column, &PurchaseState::ALL, PurchaseState::name)
}

pub(super) fn service(row: &Row<'_>, column: usize) -> Result<Service> {
    named(row, column, &Service::ALL, Service::name)
}

pub(super) fn named<T: Copy>(
    row: &Row<'_>,
    column: usize,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<T> {
    let text = row.map(column, |value| value.as_str())?;
    let found = all.iter().copied().find(|one| name(*one) == text);
    found.ok_or_else(|| unfit(column))
}
