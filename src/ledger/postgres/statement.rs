//! Statements and values of the ledger, as PostgreSQL's client takes them.

use bytes::{BufMut, BytesMut};
use rusqlite::types::{ToSqlOutput, ValueRef};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::ledger::engine::{Columns, Result, unfit};

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

/// A value of a statement, as the ledger's tables convert it.
#[derive(Debug)]
pub(super) struct Bound<'a>(ToSqlOutput<'a>);

impl<'a> Bound<'a> {
    pub(super) fn all(values: &[&'a dyn rusqlite::ToSql]) -> Result<Vec<Self>> {
        values.iter().map(|value| Ok(Self(value.to_sql()?))).collect()
    }

    fn value(&self) -> Option<ValueRef<'_>> {
        match &self.0 {
            ToSqlOutput::Borrowed(value) => Some(*value),
            ToSqlOutput::Owned(value) => Some(value.into()),
            _ => None,
        }
    }

    /// Returns the type of the value. That of a missing one is left to the database.
    pub(super) fn kind(&self) -> Type {
        match self.value() {
            Some(ValueRef::Integer(_)) => Type::INT8,
            Some(ValueRef::Text(_)) => Type::TEXT,
            Some(ValueRef::Blob(_)) => Type::BYTEA,
            Some(ValueRef::Null | ValueRef::Real(_)) | None => Type::UNKNOWN,
        }
    }
}

impl ToSql for Bound<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Fault> {
        match self.value() {
            Some(ValueRef::Null) => return Ok(IsNull::Yes),
            Some(ValueRef::Integer(number)) => out.put_i64(number),
            // PostgreSQL's text holds no U+0000. An order must not fail to settle for that.
            Some(ValueRef::Text(text)) if text.contains(&0) => {
                let parts: Vec<_> = text.split(|byte| *byte == 0).collect();
                out.put_slice(&parts.join("\u{FFFD}".as_bytes()));
            }
            Some(ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => out.put_slice(bytes),
            Some(ValueRef::Real(_)) | None => return Err("the ledger has no such values".into()),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A value as the database sends it.
struct Sent<'a>(ValueRef<'a>);

impl<'a> FromSql<'a> for Sent<'a> {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Fault> {
        Ok(Self(match *kind {
            Type::INT8 => ValueRef::Integer(i64::from_sql(kind, raw)?),
            Type::INT4 => ValueRef::Integer(i32::from_sql(kind, raw)?.into()),
            Type::BOOL => ValueRef::Integer(bool::from_sql(kind, raw)?.into()),
            Type::BYTEA => ValueRef::Blob(raw),
            _ => ValueRef::Text(raw),
        }))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Fault> {
        Ok(Self(ValueRef::Null))
    }

    fn accepts(kind: &Type) -> bool {
        let known = [Type::INT8, Type::INT4, Type::BOOL, Type::BYTEA, Type::TEXT, Type::VARCHAR];
        known.contains(kind)
    }
}

impl Columns for Row {
    fn value(&self, column: usize) -> Result<ValueRef<'_>> {
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
        let sent = |value: ValueRef<'_>| {
            let mut out = BytesMut::new();
            Bound(ToSqlOutput::Borrowed(value)).to_sql(&Type::TEXT, &mut out).unwrap();
            out.to_vec()
        };
        assert_eq!(sent(ValueRef::Text(b"a\0b\0")), "a\u{FFFD}b\u{FFFD}".as_bytes());
        assert_eq!(sent(ValueRef::Blob(b"a\0b")), b"a\0b");
    }
}
