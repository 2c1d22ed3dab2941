//! One value of a row, as both stores know it.

use std::error::Error;

use bytes::BytesMut;
use rusqlite::types::{FromSqlError, FromSqlResult, ToSqlOutput, Type as SqliteType, ValueRef};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

type Failure = Box<dyn Error + Sync + Send>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) enum Cell {
    Null,
    Integer(i64),
    Text(String),
    Bytes(Vec<u8>),
}

pub(in crate::store) type CellRow = Vec<Cell>;

/// The type of a column in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum CellKind {
    Integer,
    Text,
    Bytes,
}

impl CellKind {
    pub(super) fn of(declared: &str) -> Option<Self> {
        match declared {
            "INTEGER" => Some(Self::Integer),
            "TEXT" => Some(Self::Text),
            "BLOB" => Some(Self::Bytes),
            _ => None,
        }
    }
}

impl Cell {
    /// Returns the value as a file has it. PostgreSQL keeps text as bytes where it may contain NUL.
    pub(in crate::store) fn into_kind(self, kind: CellKind) -> Option<Self> {
        match (self, kind) {
            (Self::Null, _) => Some(Self::Null),
            (Self::Bytes(bytes), CellKind::Text) => String::from_utf8(bytes).ok().map(Self::Text),
            (cell @ Self::Integer(_), CellKind::Integer)
            | (cell @ Self::Text(_), CellKind::Text)
            | (cell @ Self::Bytes(_), CellKind::Bytes) => Some(cell),
            (Self::Integer(_) | Self::Text(_) | Self::Bytes(_), _) => None,
        }
    }

    /// Returns how much memory the value needs, about.
    pub(in crate::store) fn size(&self) -> usize {
        size_of::<Self>() + self.bytes().len()
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Null | Self::Integer(_) => &[],
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }

    /// Adds the value to a hash, so that different rows are different inputs.
    pub(super) fn hash(&self, hasher: &mut blake3::Hasher) {
        let (tag, number) = match self {
            Self::Null => (0, 0),
            Self::Integer(number) => (1, *number),
            Self::Text(_) => (2, 0),
            Self::Bytes(_) => (3, 0),
        };
        let length = self.bytes().len() as u64;
        hasher.update(&[tag]).update(&number.to_be_bytes()).update(&length.to_be_bytes());
        hasher.update(self.bytes());
    }
}

impl rusqlite::ToSql for Cell {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl rusqlite::types::FromSql for Cell {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value.data_type() {
            SqliteType::Null => Ok(Self::Null),
            SqliteType::Integer => value.as_i64().map(Self::Integer),
            SqliteType::Text => value.as_str().map(|text| Self::Text(text.to_owned())),
            SqliteType::Blob => value.as_blob().map(|bytes| Self::Bytes(bytes.to_vec())),
            SqliteType::Real => Err(FromSqlError::InvalidType),
        }
    }
}

impl ToSql for Cell {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Failure> {
        match (self, kind) {
            (Self::Null, _) => Ok(IsNull::Yes),
            (Self::Integer(number), &Type::INT8) => number.to_sql(kind, out),
            (Self::Integer(number), &Type::INT4) => i32::try_from(*number)?.to_sql(kind, out),
            (Self::Integer(number), &Type::INT2) => i16::try_from(*number)?.to_sql(kind, out),
            (Self::Integer(number), &Type::BOOL) => (*number != 0).to_sql(kind, out),
            (Self::Text(text), &Type::TEXT) => text.to_sql(kind, out),
            (Self::Text(text), &Type::BYTEA) => text.as_bytes().to_sql(kind, out),
            (Self::Bytes(bytes), &Type::BYTEA) => bytes.to_sql(kind, out),
            (Self::Bytes(bytes), &Type::UUID) => Uuid::from_slice(bytes)?.to_sql(kind, out),
            (Self::Integer(_) | Self::Text(_) | Self::Bytes(_), _) => {
                Err(format!("a value does not fit into a column of type {kind}").into())
            }
        }
    }

    fn accepts(kind: &Type) -> bool {
        <Self as FromSql<'_>>::accepts(kind)
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Cell {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Failure> {
        match kind {
            &Type::INT8 => i64::from_sql(kind, raw).map(Self::Integer),
            &Type::INT4 => i32::from_sql(kind, raw).map(|number| Self::Integer(number.into())),
            &Type::INT2 => i16::from_sql(kind, raw).map(|number| Self::Integer(number.into())),
            &Type::BOOL => bool::from_sql(kind, raw).map(|is_set| Self::Integer(is_set.into())),
            &Type::TEXT => String::from_sql(kind, raw).map(Self::Text),
            &Type::BYTEA => Vec::from_sql(kind, raw).map(Self::Bytes),
            &Type::UUID => Uuid::from_sql(kind, raw).map(|id| Self::Bytes(id.into_bytes().into())),
            other => Err(format!("a column has the type {other}").into()),
        }
    }

    fn from_sql_null(_: &Type) -> Result<Self, Failure> {
        Ok(Self::Null)
    }

    fn accepts(kind: &Type) -> bool {
        let known = [Type::INT8, Type::INT4, Type::INT2, Type::BOOL];
        known.contains(kind) || [Type::TEXT, Type::BYTEA, Type::UUID].contains(kind)
    }
}
