//! A connection to the database that a thread of the ledger owns, and waits for.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_postgres::{Error, SimpleQueryMessage, SimpleQueryRow, Statement};

use super::PostgresTarget;
use super::connect::{PostgresConnection, connect};
use super::statement::{numbered, types_of, values_of};
use crate::ledger::engine::{Engine, Result, Row, SqlValue, StoreError, ToSqlValue};
use crate::ledger::schema::SqlDialect;
use crate::ledger::{Cause, Reason, Unavailable};

/// How long an answer may take. The lock of another server may be waited for.
const PATIENCE: Duration = Duration::from_secs(8);

pub(in crate::ledger) struct PostgresSession {
    runtime: Runtime,
    pub(super) target: PostgresTarget,
    connection: RefCell<Option<PreparedConnection>>,
    /// The connection has failed, or hangs.
    pub(super) is_lost: Cell<bool>,
    /// Whether a statement has changed rows since this was reset.
    pub(super) has_written: Cell<bool>,
}

struct PreparedConnection {
    connection: PostgresConnection,
    statements: RefCell<HashMap<String, Statement>>,
}

impl PostgresSession {
    /// Returns a session that is not connected yet.
    pub(in crate::ledger) fn new(target: PostgresTarget) -> Result<Self, Reason> {
        Ok(Self {
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            target,
            connection: RefCell::default(),
            is_lost: Cell::default(),
            has_written: Cell::default(),
        })
    }

    /// Connects if there is no connection, and returns whether there was none.
    pub(in crate::ledger) fn connect(&self) -> Result<bool, Reason> {
        let is_open =
            self.connection.borrow().as_ref().is_some_and(|open| !open.connection.is_closed());
        if is_open && !self.is_lost.get() {
            return Ok(false);
        }
        self.connection.take();
        let connection = self.runtime.block_on(connect(&self.target))?;
        let connection = PreparedConnection { connection, statements: RefCell::default() };
        *self.connection.borrow_mut() = Some(connection);
        self.is_lost.set(false);
        Ok(true)
    }

    /// Runs a report on one state of the ledger.
    pub(in crate::ledger) fn report(
        &self,
        query: &mut dyn FnMut(&dyn Engine) -> Result<()>,
    ) -> Result<()> {
        self.connect().map_err(Unavailable)?;
        self.simple("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
        let found = query(self);
        if !self.is_lost.get() {
            self.simple("ROLLBACK")?;
        }
        found
    }

    /// Says goodbye to the database.
    pub(super) fn close(&self) {
        if let Some(open) = self.connection.take() {
            self.runtime.block_on(open.connection.close());
        }
    }

    /// Waits for an answer of the database.
    fn wait<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T> {
        let patience = PATIENCE.max(self.target.min_patience);
        let answered = self.runtime.block_on(async { timeout(patience, work).await });
        let answered = answered
            .map_err(|_elapsed| Reason::new(Cause::Unreachable, "the database does not answer"));
        let (reason, is_refused) = match answered {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => {
                let is_refused = error.as_db_error().is_some();
                (Reason::from(error), is_refused)
            }
            Err(reason) => (reason, false),
        };
        let why = Unavailable(reason);
        Err(if why.0.cause == Cause::Unreachable {
            self.is_lost.set(true);
            StoreError::Disconnected(why)
        } else if is_refused && why.0.cause == Cause::DiskFull {
            StoreError::DiskFull(why)
        } else {
            StoreError::Transient(why)
        })
    }

    /// Runs statements without values, and returns the rows of all of them.
    pub(super) fn simple(&self, sql: &str) -> Result<Vec<SimpleQueryRow>> {
        let open = self.connection.borrow();
        let client = &open.as_ref().ok_or_else(lost)?.connection.client;
        let answers = self.wait(client.simple_query(sql))?;
        let row = |answer| {
            if let SimpleQueryMessage::Row(row) = answer { Some(row) } else { None }
        };
        Ok(answers.into_iter().filter_map(row).collect())
    }

    /// Prepares a statement once, with the types of its first values.
    fn prepared(&self, sql: &str, values: &[SqlValue<'_>]) -> Result<Statement> {
        let open = self.connection.borrow();
        let open = open.as_ref().ok_or_else(lost)?;
        let known = open.statements.borrow().get(sql).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let (text, types) = (numbered(sql), types_of(values));
                let statement = self.wait(open.connection.client.prepare_typed(&text, &types))?;
                open.statements.borrow_mut().insert(sql.to_owned(), statement.clone());
                statement
            }
        };
        let (given, expected) = (values.len(), statement.params().len());
        if given != expected {
            let why = format!("{given} values were given to a statement with {expected}");
            return Err(Unavailable(why.into()).into());
        }
        Ok(statement)
    }
}

fn lost() -> StoreError {
    let why = Reason::new(Cause::Unreachable, "the connection to the database was lost");
    StoreError::Disconnected(Unavailable(why))
}

impl Engine for PostgresSession {
    fn dialect(&self) -> SqlDialect {
        SqlDialect::Postgres
    }

    fn execute(&self, sql: &str, values: &[&dyn ToSqlValue]) -> Result<usize> {
        let values: Vec<_> = values.iter().map(|value| value.to_sql_value()).collect();
        let statement = self.prepared(sql, &values)?;
        let open = self.connection.borrow();
        let client = &open.as_ref().ok_or_else(lost)?.connection.client;
        let changed = self.wait(client.execute(&statement, &values_of(&values)))?;
        if changed > 0 {
            self.has_written.set(true);
        }
        Ok(usize::try_from(changed).unwrap_or(usize::MAX))
    }

    fn query(
        &self,
        sql: &str,
        values: &[&dyn ToSqlValue],
        read: &mut dyn FnMut(&Row<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let values: Vec<_> = values.iter().map(|value| value.to_sql_value()).collect();
        let statement = self.prepared(sql, &values)?;
        let open = self.connection.borrow();
        let client = &open.as_ref().ok_or_else(lost)?.connection.client;
        let rows = self.wait(client.query(&statement, &values_of(&values)))?;
        drop(open);
        let reads = ["SELECT", "WITH"].iter().any(|word| sql.trim_start().starts_with(word));
        if !reads && !rows.is_empty() {
            self.has_written.set(true);
        }
        for row in &rows {
            if read(&Row(row))?.is_break() {
                break;
            }
        }
        Ok(())
    }
}
