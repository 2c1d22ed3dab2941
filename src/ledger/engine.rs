//! The interface between the ledger's tables and a database: statements, their values, and rows.
//!
//! Values are integers, text and bytes.

use std::any::Any;
use std::borrow::Cow;
use std::ops::{ControlFlow, Deref};
use std::sync::Arc;
use std::time::Duration;

use super::schema::SqlDialect;
use super::shared::SharedLedger;
use super::{Reason, Unavailable};

/// A connection, within the transaction that the writer has begun.
pub(super) trait Engine {
    fn dialect(&self) -> SqlDialect;

    /// Returns the number of rows that were changed.
    fn execute(&self, sql: &str, values: &[&dyn ToSqlValue]) -> Result<usize>;

    /// Reads rows until `read` breaks. `read` must not use the engine.
    fn query(
        &self,
        sql: &str,
        values: &[&dyn ToSqlValue],
        read: &mut dyn FnMut(&Row<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()>;
}

/// The ledger's time and news at the begin of a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    /// Whether another process may have written since the last transaction of this one.
    pub(super) has_changed: bool,
    /// The ledger's time.
    pub(super) now: Duration,
    /// The ledger's time without the steps of its clock.
    pub(super) steady: Duration,
    /// The time since this machine was booted, if one process has the ledger.
    pub(super) since_boot: Option<Duration>,
    /// Whether the ledger's clock was set ahead since the last transaction of this process.
    pub(super) has_jumped: bool,
}

/// The connection of the writer. Its transactions exclude every other writer.
pub(super) trait WriterEngine: Any + Send {
    /// Returns what runs the statements of a transaction.
    fn statements(&self) -> &(dyn Engine + 'static);

    /// Returns what this process knows of a ledger that servers share.
    fn shared(&self) -> Option<&SharedLedger> {
        None
    }

    /// Returns the ledger's public name, if it may change, or has changed, while the ledger is open.
    fn name(&self) -> Option<Arc<str>> {
        self.shared().map(SharedLedger::name)
    }

    /// Takes in the new name of a ledger that was renamed while it is open.
    fn renamed(&self, _name: &Arc<str>) {}

    /// Returns whether a transaction may be committed without waiting for the disk.
    fn chooses_durability(&self) -> bool {
        false
    }

    /// Begins a transaction. If this fails, [`roll_back`](Self::roll_back) follows, too.
    fn begin(&self, is_synced: bool) -> Result<Begun>;

    /// Returns whether anything was written. `latest_number` is that of the newest purchase, if the
    /// transaction has one.
    fn commit(&self, latest_number: Option<i64>) -> Result<bool>;

    fn roll_back(&self) -> Result<()>;

    /// Fails if the ledger is no longer the one that this process has opened.
    fn ensure_own(&self) -> Result<()> {
        Ok(())
    }

    /// Does what is due between two transactions.
    fn maintain(&self);

    /// Notes that nothing is written until a restart.
    fn fail(&self) {}

    /// Ends its threads. Returns whether a check of the ledger, if there was one, has passed.
    fn stop(&self) -> bool {
        true
    }

    /// Closes it, cleanly if everything was written.
    fn close(self: Box<Self>, is_whole: bool, is_checked: bool);
}

impl Deref for dyn WriterEngine {
    type Target = dyn Engine;

    fn deref(&self) -> &Self::Target {
        self.statements()
    }
}

/// Why a statement or a transaction failed.
#[derive(Clone, Debug)]
pub(super) enum StoreError {
    /// Rolled back. The next transaction may succeed: a lock was held too long.
    Transient(Unavailable),
    /// Rolled back, because the connection has ended. The same transaction may succeed on another one.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "a file has no connection"))]
    Disconnected(Unavailable),
    /// Rolled back for lack of space. A smaller transaction may succeed.
    DiskFull(Unavailable),
    /// The state of the ledger is unknown, so nothing is written until a restart reads it again.
    ///
    /// A failed fsync is never retried, because the system may have dropped the pages.
    Permanent(Unavailable),
}

pub(super) type Result<T, E = StoreError> = std::result::Result<T, E>;

impl StoreError {
    pub(super) fn unavailable(&self) -> Unavailable {
        match self {
            Self::Transient(why)
            | Self::Disconnected(why)
            | Self::DiskFull(why)
            | Self::Permanent(why) => why.clone(),
        }
    }
}

impl From<StoreError> for Reason {
    fn from(fault: StoreError) -> Self {
        fault.unavailable().0
    }
}

impl From<Unavailable> for StoreError {
    fn from(why: Unavailable) -> Self {
        Self::Transient(why)
    }
}

/// How the tables run statements.
pub(super) trait Sql: Engine {
    /// Returns the number of rows that were changed.
    fn run(&self, sql: &str, values: impl SqlParams) -> Result<usize> {
        values.with(|values| self.execute(sql, values))
    }

    fn first<T>(
        &self,
        sql: &str,
        values: impl SqlParams,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let (mut read, mut found) = (Some(read), None);
        let mut once = |row: &Row<'_>| {
            if let Some(read) = read.take() {
                found = Some(read(row)?);
            }
            Ok(ControlFlow::Break(()))
        };
        values.with(|values| self.query(sql, values, &mut once))?;
        Ok(found)
    }

    /// Returns what a statement always finds.
    fn one<T>(
        &self,
        sql: &str,
        values: impl SqlParams,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<T> {
        let found = self.first(sql, values, read)?;
        found.ok_or_else(|| Unavailable("the ledger lacks a row that it always has".into()).into())
    }

    fn all<T>(
        &self,
        sql: &str,
        values: impl SqlParams,
        mut read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut rows = Vec::new();
        let mut each = |row: &Row<'_>| {
            rows.push(read(row)?);
            Ok(ControlFlow::Continue(()))
        };
        values.with(|values| self.query(sql, values, &mut each))?;
        Ok(rows)
    }
}

impl<E: Engine + ?Sized> Sql for E {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SqlValue<'a> {
    /// A number that the databases' signed integers cannot hold: the statement fails.
    TooLarge,
    Null,
    Integer(i64),
    /// UTF-8, unless the ledger is damaged.
    Text(&'a [u8]),
    Bytes(&'a [u8]),
}

/// The values of a statement, in order.
pub(super) trait SqlParams {
    fn with<T>(self, run: impl FnOnce(&[&dyn ToSqlValue]) -> T) -> T;
}

impl SqlParams for &[&dyn ToSqlValue] {
    fn with<T>(self, run: impl FnOnce(&[&dyn ToSqlValue]) -> T) -> T {
        run(self)
    }
}

impl<V: ToSqlValue, const N: usize> SqlParams for [V; N] {
    fn with<T>(self, run: impl FnOnce(&[&dyn ToSqlValue]) -> T) -> T {
        run(&self.each_ref().map(|value| value as &dyn ToSqlValue))
    }
}

impl SqlParams for () {
    fn with<T>(self, run: impl FnOnce(&[&dyn ToSqlValue]) -> T) -> T {
        run(&[])
    }
}

/// The values of a statement, of different types.
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        &[$(&$value as &dyn $crate::ledger::engine::ToSqlValue),*]
            as &[&dyn $crate::ledger::engine::ToSqlValue]
    };
}
pub(super) use params;

pub(super) trait ToSqlValue {
    fn to_sql_value(&self) -> SqlValue<'_>;
}

macro_rules! integers {
    ($($type:ty)*) => { $(
        impl ToSqlValue for $type {
            fn to_sql_value(&self) -> SqlValue<'_> {
                i64::try_from(*self).map_or(SqlValue::TooLarge, SqlValue::Integer)
            }
        }

        impl<'r> FromSqlValue<'r> for $type {
            fn from_sql(value: SqlValue<'r>) -> Option<Self> {
                i64::from_sql(value)?.try_into().ok()
            }
        }
    )* };
}
integers!(u64 u32 u16 usize i32);

macro_rules! texts {
    ($($type:ty)*) => { $(
        impl ToSqlValue for $type {
            fn to_sql_value(&self) -> SqlValue<'_> {
                SqlValue::Text(self.as_bytes())
            }
        }
    )* };
}
texts!(str String Arc<str> Box<str> Cow<'_, str>);

macro_rules! owned_texts {
    ($($type:ty)*) => { $(
        impl<'r> FromSqlValue<'r> for $type {
            fn from_sql(value: SqlValue<'r>) -> Option<Self> {
                <&str>::from_sql(value).map(Self::from)
            }
        }
    )* };
}
owned_texts!(String Arc<str> Box<str>);

impl ToSqlValue for i64 {
    fn to_sql_value(&self) -> SqlValue<'_> {
        SqlValue::Integer(*self)
    }
}

impl ToSqlValue for bool {
    fn to_sql_value(&self) -> SqlValue<'_> {
        SqlValue::Integer((*self).into())
    }
}

impl ToSqlValue for [u8] {
    fn to_sql_value(&self) -> SqlValue<'_> {
        SqlValue::Bytes(self)
    }
}

impl<const N: usize> ToSqlValue for [u8; N] {
    fn to_sql_value(&self) -> SqlValue<'_> {
        SqlValue::Bytes(self)
    }
}

impl<T: ToSqlValue + ?Sized> ToSqlValue for &T {
    fn to_sql_value(&self) -> SqlValue<'_> {
        (*self).to_sql_value()
    }
}

impl<T: ToSqlValue> ToSqlValue for Option<T> {
    fn to_sql_value(&self) -> SqlValue<'_> {
        self.as_ref().map_or(SqlValue::Null, ToSqlValue::to_sql_value)
    }
}

/// The columns of a row that is being read.
pub(super) trait Columns {
    fn value(&self, column: usize) -> Result<SqlValue<'_>>;
}

pub(super) struct Row<'a>(pub(super) &'a dyn Columns);

impl Row<'_> {
    pub(super) fn get<'r, T: FromSqlValue<'r>>(&'r self, column: usize) -> Result<T> {
        T::from_sql(self.0.value(column)?).ok_or_else(|| unfit(column))
    }
}

/// Reports a value that this version cannot have written.
pub(super) fn unfit(column: usize) -> StoreError {
    Unavailable(Reason::from(format!("column {column} of a row holds an unexpected value"))).into()
}

pub(super) trait FromSqlValue<'r>: Sized {
    fn from_sql(value: SqlValue<'r>) -> Option<Self>;
}

impl<'r> FromSqlValue<'r> for i64 {
    fn from_sql(value: SqlValue<'r>) -> Option<Self> {
        if let SqlValue::Integer(number) = value { Some(number) } else { None }
    }
}

impl<'r> FromSqlValue<'r> for bool {
    fn from_sql(value: SqlValue<'r>) -> Option<Self> {
        i64::from_sql(value).map(|number| number != 0)
    }
}

impl<'r> FromSqlValue<'r> for &'r str {
    fn from_sql(value: SqlValue<'r>) -> Option<Self> {
        if let SqlValue::Text(text) = value { std::str::from_utf8(text).ok() } else { None }
    }
}

/// Text, too, as its bytes.
impl<'r> FromSqlValue<'r> for &'r [u8] {
    fn from_sql(value: SqlValue<'r>) -> Option<Self> {
        match value {
            SqlValue::Bytes(bytes) | SqlValue::Text(bytes) => Some(bytes),
            SqlValue::TooLarge | SqlValue::Null | SqlValue::Integer(_) => None,
        }
    }
}

impl<'r> FromSqlValue<'r> for Vec<u8> {
    fn from_sql(value: SqlValue<'r>) -> Option<Self> {
        if let SqlValue::Bytes(bytes) = value { Some(bytes.to_vec()) } else { None }
    }
}

impl<'r, const N: usize> FromSqlValue<'r> for [u8; N] {
    fn from_sql(value: SqlValue<'r>) -> Option<Self> {
        if let SqlValue::Bytes(bytes) = value { bytes.try_into().ok() } else { None }
    }
}

impl<'r, T: FromSqlValue<'r>> FromSqlValue<'r> for Option<T> {
    fn from_sql(value: SqlValue<'r>) -> Option<Self> {
        if value == SqlValue::Null { Some(None) } else { T::from_sql(value).map(Some) }
    }
}
