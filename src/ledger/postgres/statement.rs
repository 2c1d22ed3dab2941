//! Statements and values of the ledger, as PostgreSQL's client takes them.

use bytes::{BufMut, BytesMut};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::ledger::engine::{Columns, Result, SqlValue, unfit};

type Fault = Box<dyn std::error::Error + Sync + Send>;

/// Writes `?` and `?1` as `$1`.
pub(super) fn numbered(sql: &str) -> String {
    let mut parts = sql.split('?');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for (position, part) in (1..).zip(parts) {
        text.push('$');
        if !part.starts_with(|first: char| first.is_ascii_digit()) {
            text.push_str(&position.to_string());
        }
        text.push_str(part);
    }
    text
}

/// Returns the types of values. That of a missing one is left to the database.
pub(super) fn types_of(values: &[SqlValue<'_>]) -> Vec<Type> {
    let kind = |value: &SqlValue<'_>| match value {
        SqlValue::Integer(_) => Type::INT8,
        SqlValue::Text(_) => Type::TEXT,
        SqlValue::Bytes(_) => Type::BYTEA,
        SqlValue::Null | SqlValue::TooLarge => Type::UNKNOWN,
    };
    values.iter().map(kind).collect()
}

pub(super) fn values_of<'a>(values: &'a [SqlValue<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

impl ToSql for SqlValue<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Fault> {
        match *self {
            Self::TooLarge => return Err("the number is too large for the ledger".into()),
            Self::Null => return Ok(IsNull::Yes),
            Self::Integer(number) => out.put_i64(number),
            // PostgreSQL's text holds no U+0000. An order must not fail to settle for that.
            Self::Text(text) if text.contains(&0) => {
                let parts: Vec<_> = text.split(|byte| *byte == 0).collect();
                out.put_slice(&parts.join("\u{FFFD}".as_bytes()));
            }
            Self::Text(bytes) | Self::Bytes(bytes) => out.put_slice(bytes),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A value as the database sends it.
struct Sent<'a>(SqlValue<'a>);

impl<'a> FromSql<'a> for Sent<'a> {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Fault> {
        Ok(Self(match *kind {
            Type::INT8 => SqlValue::Integer(i64::from_sql(kind, raw)?),
            Type::INT4 => SqlValue::Integer(i32::from_sql(kind, raw)?.into()),
            Type::BOOL => SqlValue::Integer(bool::from_sql(kind, raw)?.into()),
            Type::BYTEA => SqlValue::Bytes(raw),
            _ => SqlValue::Text(raw),
        }))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Fault> {
        Ok(Self(SqlValue::Null))
    }

    fn accepts(kind: &Type) -> bool {
        let known = [Type::INT8, Type::INT4, Type::BOOL, Type::BYTEA, Type::TEXT, Type::VARCHAR];
        known.contains(kind)
    }
}

impl Columns for Row {
    fn value(&self, column: usize) -> Result<SqlValue<'_>> {
        let Sent(value) = self.try_get(column).map_err(|_| unfit(column))?;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbered_by_position_or_as_the_statement_says() {
        for (sql, text) in [
            ("SELECT 1", "SELECT 1"),
            ("SELECT ?, ?", "SELECT $1, $2"),
            ("a = ?1 AND b = ?2 OR a = ?1", "a = $1 AND b = $2 OR a = $1"),
        ] {
            assert_eq!(numbered(sql), text);
        }
    }

    #[test]
    fn nul_in_text_is_replaced_and_in_bytes_kept() {
        let sent = |value: SqlValue<'_>| {
            let mut out = BytesMut::new();
            value.to_sql(&Type::TEXT, &mut out).unwrap();
            out.to_vec()
        };
        assert_eq!(sent(SqlValue::Text(b"a\0b\0")), "a\u{FFFD}b\u{FFFD}".as_bytes());
        assert_eq!(sent(SqlValue::Bytes(b"a\0b")), b"a\0b");
    }
}
