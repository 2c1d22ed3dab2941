//! How the ledger's values are written to columns and read from rows, exactly or not at all.

use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use crate::gateway::contract::event::EventKind;
use crate::gateway::contract::money::{SpendLimit, Usd};
use crate::gateway::contract::selection::Selection;
use crate::gateway::contract::terms::{MemberTerms, TERMS, read_budget};
use crate::ledger::engine::{
    Engine, FromSqlValue, Result, Row, Sql, SqlParams, SqlValue, ToSqlValue, unfit,
};
use crate::ledger::{
    CreditWatermark, JobState, KeyId, MoneyKind, PurchaseId, PurchaseState, Role, Service,
    WebhookId,
};

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

macro_rules! values {
    ($($type:ty: $to:expr, $from:expr;)*) => { $(
        impl ToSqlValue for $type {
            fn to_sql_value(&self) -> SqlValue<'_> {
                let to: fn(&Self) -> SqlValue<'_> = $to;
                to(self)
            }
        }

        impl<'r> FromSqlValue<'r> for $type {
            fn from_sql(value: SqlValue<'r>) -> Option<Self> {
                FromSqlValue::from_sql(value).map($from)
            }
        }
    )* };
}
values! {
    Duration: |time| SqlValue::Integer(nanos(*time)), Duration::from_nanos;
    Usd: |amount| integer(amount.as_micros()), Usd::micros;
    CreditWatermark: |mark| integer(mark.0), CreditWatermark;
    PurchaseId: |id| SqlValue::Bytes(id.0.as_bytes()), |id| PurchaseId(Uuid::from_bytes(id));
    KeyId: |id| SqlValue::Bytes(&id.0), KeyId;
    WebhookId: |id| SqlValue::Bytes(&id.0), WebhookId;
    Bytes: |body| SqlValue::Bytes(body), |body: Vec<u8>| body.into();
}

fn integer(number: u64) -> SqlValue<'static> {
    i64::try_from(number).map_or(SqlValue::TooLarge, SqlValue::Integer)
}

macro_rules! named_values {
    ($($type:ty)*) => { $(
        impl ToSqlValue for $type {
            fn to_sql_value(&self) -> SqlValue<'_> {
                SqlValue::Text(self.name().as_bytes())
            }
        }

        impl<'r> FromSqlValue<'r> for $type {
            fn from_sql(value: SqlValue<'r>) -> Option<Self> {
                let name = <&str>::from_sql(value)?;
                Self::ALL.into_iter().find(|one| one.name() == name)
            }
        }
    )* };
}
named_values!(EventKind JobState MoneyKind PurchaseState Role Service);

/// As it is written with `to_string`.
impl<'r> FromSqlValue<'r> for Selection {
    fn from_sql(value: SqlValue<'r>) -> Option<Self> {
        <&str>::from_sql(value).map(Self::parse)
    }
}

/// As it is written with `budget_text`.
impl<'r> FromSqlValue<'r> for SpendLimit {
    fn from_sql(value: SqlValue<'r>) -> Option<Self> {
        <&str>::from_sql(value).and_then(read_budget)
    }
}

/// A name that may be damaged, which must not hide an amount.
pub(super) struct LossyText(String);

impl<'r> FromSqlValue<'r> for LossyText {
    fn from_sql(value: SqlValue<'r>) -> Option<Self> {
        <&[u8]>::from_sql(value).map(|text| Self(String::from_utf8_lossy(text).into_owned()))
    }
}

impl From<LossyText> for String {
    fn from(LossyText(text): LossyText) -> Self {
        text
    }
}

/// The columns of a row from the next one on.
pub(in crate::ledger) struct Cells<'r> {
    row: &'r Row<'r>,
    next: usize,
}

impl Cells<'_> {
    pub(super) fn next<T: FromRow>(&mut self) -> Result<T> {
        T::from_row(self)
    }
}

/// A value of one or more columns.
pub(in crate::ledger) trait FromRow: Sized {
    fn from_row(cells: &mut Cells<'_>) -> Result<Self>;
}

impl<T: for<'r> FromSqlValue<'r>> FromRow for T {
    fn from_row(cells: &mut Cells<'_>) -> Result<Self> {
        cells.next += 1;
        cells.row.get(cells.next - 1)
    }
}

impl FromRow for MemberTerms {
    fn from_row(cells: &mut Cells<'_>) -> Result<Self> {
        let mut terms = Self::default();
        for term in TERMS {
            let text: Option<String> = cells.next()?;
            (term.read)(&mut terms, text.as_deref()).ok_or_else(|| unfit(cells.next - 1))?;
        }
        Ok(terms)
    }
}

macro_rules! tuples {
    ($(($($part:ident)*))*) => { $(
        impl<$($part: FromRow),*> FromRow for ($($part,)*) {
            fn from_row(cells: &mut Cells<'_>) -> Result<Self> {
                Ok(($(cells.next::<$part>()?,)*))
            }
        }
    )* };
}
tuples!((A B) (A B C) (A B C D) (A B C D E));

/// Reads a value whose parts are in the order of the columns.
pub(in crate::ledger) fn read<T: FromRow>(row: &Row<'_>) -> Result<T> {
    Cells { row, next: 0 }.next()
}

/// A struct that is read from these columns.
pub(super) trait Record: FromRow {
    const COLUMNS: &'static str;
}

/// Lists the columns of a struct's fields, once for all queries. With `as`, a column is read as
/// another type first.
macro_rules! record {
    ($type:ident {
        $first:ident: $column:literal $(as $kind:ty)?
        $(, $field:ident: $columns:literal $(as $kinds:ty)?)* $(,)?
    }) => {
        impl $crate::ledger::tables::column::FromRow for $type {
            fn from_row(
                cells: &mut $crate::ledger::tables::column::Cells<'_>,
            ) -> $crate::ledger::engine::Result<Self> {
                use $crate::ledger::tables::column::cell;
                Ok(Self {
                    $first: cell!(cells $(, $kind)?) $(, $field: cell!(cells $(, $kinds)?))*
                })
            }
        }

        impl $crate::ledger::tables::column::Record for $type {
            const COLUMNS: &'static str = concat!($column $(, ", ", $columns)*);
        }
    };
}
pub(super) use record;

macro_rules! cell {
    ($cells:ident) => {
        $cells.next()?
    };
    ($cells:ident, $kind:ty) => {
        $cells.next::<$kind>()?.into()
    };
}
pub(super) use cell;

/// Returns the statement that reads a struct's columns; `rest` follows them.
pub(super) fn select<T: Record>(rest: &str) -> String {
    format!("SELECT {} {rest}", T::COLUMNS)
}

pub(super) fn exists(db: &dyn Engine, sql: &str, values: impl SqlParams) -> Result<bool> {
    Ok(db.first(sql, values, |_| Ok(()))?.is_some())
}

/// Inserts a row. Each column has its value.
macro_rules! insert {
    ($db:expr, $table:ident {
        $first:ident: $value:expr $(, $column:ident: $values:expr)* $(,)?
    } $($rest:literal)?) => {
        $db.run(
            concat!(
                "INSERT INTO ", stringify!($table), " (", stringify!($first),
                $(", ", stringify!($column),)* ") VALUES (?",
                $($crate::ledger::tables::column::mark!($column),)* ")" $(, " ", $rest)?
            ),
            $crate::ledger::engine::params![$value $(, $values)*],
        )
    };
}
pub(super) use insert;

/// Inserts a row, or changes the one with this key.
macro_rules! upsert {
    ($db:expr, $table:ident ($key:ident: $of:expr $(, $keys:ident: $ofs:expr)*) {
        $first:ident: $value:expr $(, $column:ident: $values:expr)* $(,)?
    }) => {
        $db.run(
            concat!(
                "INSERT INTO ", stringify!($table), " (", stringify!($key),
                $(", ", stringify!($keys),)* ", ", stringify!($first),
                $(", ", stringify!($column),)* ") VALUES (?",
                $($crate::ledger::tables::column::mark!($keys),)* ", ?",
                $($crate::ledger::tables::column::mark!($column),)* ") ON CONFLICT (",
                stringify!($key), $(", ", stringify!($keys),)* ") DO UPDATE SET ",
                stringify!($first), " = excluded.", stringify!($first)
                $(, ", ", stringify!($column), " = excluded.", stringify!($column))*
            ),
            $crate::ledger::engine::params![$of $(, $ofs)*, $value $(, $values)*],
        )
    };
}
pub(super) use upsert;

macro_rules! mark {
    ($column:ident) => {
        ", ?"
    };
}
pub(super) use mark;
