//! SQLite as the ledger's engine.

use std::ops::ControlFlow;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Statement, ToSql};

use crate::ledger::engine::{
    Columns, Engine, Result, Row, SqlValue, StoreError, ToSqlValue, unfit,
};
use crate::ledger::schema::SqlDialect;
use crate::ledger::{Cause, Reason, Unavailable};

impl Engine for Connection {
    fn dialect(&self) -> SqlDialect {
        SqlDialect::Sqlite
    }

    fn execute(&self, sql: &str, values: &[&dyn ToSqlValue]) -> Result<usize> {
        let mut statement = self.prepare_cached(sql)?;
        bind(&mut statement, values)?;
        Ok(statement.raw_execute()?)
    }

    fn query(
        &self,
        sql: &str,
        values: &[&dyn ToSqlValue],
        read: &mut dyn FnMut(&Row<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut statement = self.prepare_cached(sql)?;
        bind(&mut statement, values)?;
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next()? {
            if read(&Row(row))?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn bind(statement: &mut Statement<'_>, values: &[&dyn ToSqlValue]) -> Result<()> {
    // A value that is not bound would be NULL.
    let (given, expected) = (values.len(), statement.parameter_count());
    if given != expected {
        return Err(rusqlite::Error::InvalidParameterCount(given, expected).into());
    }
    for (at, value) in values.iter().enumerate() {
        statement.raw_bind_parameter(at + 1, value.to_sql_value())?;
    }
    Ok(())
}

impl ToSql for SqlValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self {
            SqlValue::TooLarge => {
                let why = "the number is too large for the ledger";
                return Err(rusqlite::Error::ToSqlConversionFailure(why.into()));
            }
            SqlValue::Null => ValueRef::Null,
            SqlValue::Integer(number) => ValueRef::Integer(number),
            SqlValue::Text(text) => ValueRef::Text(text),
            SqlValue::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl Columns for rusqlite::Row<'_> {
    fn value(&self, column: usize) -> Result<SqlValue<'_>> {
        Ok(match self.get_ref(column)? {
            ValueRef::Null => SqlValue::Null,
            ValueRef::Integer(number) => SqlValue::Integer(number),
            ValueRef::Text(text) => SqlValue::Text(text),
            ValueRef::Blob(bytes) => SqlValue::Bytes(bytes),
            ValueRef::Real(_) => return Err(unfit(column)),
        })
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        let reason = Reason::from(error);
        match reason.cause {
            Cause::DiskFailed | Cause::Damaged => Self::Permanent(Unavailable(reason)),
            Cause::DiskFull => Self::DiskFull(Unavailable(reason)),
            Cause::Starting
            | Cause::NewerVersion
            | Cause::Permission
            | Cause::Replaced
            | Cause::Moved
            | Cause::Unreachable
            | Cause::Other => Self::Transient(Unavailable(reason)),
        }
    }
}
