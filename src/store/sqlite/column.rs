//! Converts the ledger's values to SQLite's and back, exactly or not at all.

use std::borrow::Borrow;
use std::time::Duration;

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Params, Result, Row};
use uuid::Uuid;

use crate::contract::money::Usd;
use crate::store::{PurchaseId, PurchaseState, Service};

/// Runs statements, which are prepared once.
pub(super) trait Sql: Borrow<Connection> {
    /// Returns the number of rows that were changed.
    fn run(&self, sql: &str, values: impl Params) -> Result<usize> {
        self.borrow().prepare_cached(sql)?.execute(values)
    }

    fn first<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        self.borrow().prepare_cached(sql)?.query_row(values, read).optional()
    }

    fn all<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.borrow().prepare_cached(sql)?.query_map(values, read)?.collect()
    }
}

impl Sql for Connection {}

/// Nanoseconds, which reach to the year 2262. Later times saturate.
pub(super) fn nanos(time: Duration) -> i64 {
    signed(time.as_nanos())
}

/// SQLite's integers are signed. Larger numbers saturate.
pub(super) fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Returns the time of [`nanos`].
pub(super) fn duration(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
}

pub(super) fn moment(row: &Row<'_>, column: usize) -> Result<Duration> {
    Ok(Duration::from_nanos(row.get(column)?))
}

pub(super) fn moment_or_none(row: &Row<'_>, column: usize) -> Result<Option<Duration>> {
    Ok(row.get::<_, Option<u64>>(column)?.map(Duration::from_nanos))
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
    let text = row.get_ref(column)?.as_str()?;
    let found = all.iter().copied().find(|one| name(*one) == text);
    found.ok_or_else(|| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, "an unknown name".into())
    })
}
