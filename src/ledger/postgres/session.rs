//! A connection to the database that a thread of the ledger owns, and waits for.

use std::cell::{Cell, Ref, RefCell};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, SimpleQueryRow, Statement};

use super::PostgresTarget;
use super::connect::{PostgresConnection, connect, rows_of};
use super::statement::{numbered, types_of, values_of};
use crate::ledger::engine::{Engine, Result, Row, StoreError, ToSqlValue};
use crate::ledger::schema::SqlDialect;
use crate::ledger::{Cause, Reason, Unavailable};

/// How long an answer may take. The lock of another server may be waited for.
const PATIENCE: Duration = Duration::from_secs(8);

/// Dropping it waits until the database has got everything.
pub(in crate::ledger) struct PostgresSession {
    runtime: Runtime,
    pub(super) target: PostgresTarget,
    connection: RefCell<Option<PostgresConnection>>,
    /// The statements that the connection has prepared.
    statements: RefCell<HashMap<String, Statement>>,
    /// There is no connection, or it has failed, or hangs.
    pub(super) is_lost: Cell<bool>,
    /// Whether a statement has changed rows since this was reset.
    pub(super) has_written: Cell<bool>,
}

impl PostgresSession {
    /// Returns a session that is not connected yet.
    pub(super) fn new(target: PostgresTarget) -> Result<Self, Reason> {
        Ok(Self {
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            target,
            connection: RefCell::default(),
            statements: RefCell::default(),
            is_lost: Cell::new(true),
            has_written: Cell::default(),
        })
    }

    /// Connects if there is no connection, and returns whether there was none.
    pub(super) fn connect(&self) -> Result<bool, Reason> {
        let is_open = self.connection.borrow().as_ref().is_some_and(|open| !open.is_closed());
        if is_open && !self.is_lost.get() {
            return Ok(false);
        }
        self.is_lost.set(true);
        self.connection.take();
        self.statements.take();
        let connection = self.runtime.block_on(connect(&self.target))?;
        *self.connection.borrow_mut() = Some(connection);
        self.is_lost.set(false);
        Ok(true)
    }

    /// Runs a report on one state of the ledger.
    pub(in crate::ledger) fn report<T>(
        &self,
        query: impl FnOnce(&dyn Engine) -> Result<T>,
    ) -> Result<T> {
        self.connect().map_err(Unavailable)?;
        self.simple("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
        self.end(query(self))
    }

    /// Commits the transaction, or rolls it back if its work has failed.
    pub(super) fn end<T, E: From<StoreError>>(&self, done: Result<T, E>) -> Result<T, E> {
        if !self.is_lost.get() {
            self.simple(if done.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
        }
        done
    }

    /// Waits for an answer of the database.
    fn wait<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T> {
        let patience = PATIENCE.max(self.target.min_patience);
        let reason = match self.runtime.block_on(async { timeout(patience, work).await }) {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => Reason::from(error),
            Err(_elapsed) => Reason::new(Cause::Unreachable, "the database does not answer"),
        };
        let why = Unavailable(reason);
        Err(if why.0.cause == Cause::Unreachable {
            self.is_lost.set(true);
            StoreError::Disconnected(why)
        } else if why.0.cause == Cause::DiskFull {
            StoreError::DiskFull(why)
        } else {
            StoreError::Transient(why)
        })
    }

    fn client(&self) -> Result<Ref<'_, Client>> {
        let open = Ref::filter_map(self.connection.borrow(), |open| Some(&open.as_ref()?.client));
        let lost = || Reason::new(Cause::Unreachable, "the connection to the database was lost");
        open.map_err(|_| StoreError::Disconnected(Unavailable(lost())))
    }

    /// Runs statements without values, and returns the rows of all of them.
    pub(super) fn simple(&self, sql: &str) -> Result<Vec<SimpleQueryRow>> {
        Ok(rows_of(self.wait(self.client()?.simple_query(sql))?))
    }

    /// Runs a statement, which is prepared once, with the types of its first values.
    fn run<T>(
        &self,
        sql: &str,
        values: &[&dyn ToSqlValue],
        work: impl AsyncFnOnce(&Client, &Statement, &[&(dyn ToSql + Sync)]) -> Result<T, Error>,
    ) -> Result<T> {
        let client = self.client()?;
        let values: Vec<_> = values.iter().map(|value| value.to_sql_value()).collect();
        let known = self.statements.borrow().get(sql).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let (text, types) = (numbered(sql), types_of(&values));
                let statement = self.wait(client.prepare_typed(&text, &types))?;
                self.statements.borrow_mut().insert(sql.to_owned(), statement.clone());
                statement
            }
        };
        let (given, expected) = (values.len(), statement.params().len());
        if given != expected {
            let why = format!("{given} values were given to a statement with {expected}");
            return Err(Unavailable(why.into()).into());
        }
        self.wait(work(&client, &statement, &values_of(&values)))
    }
}

impl Drop for PostgresSession {
    fn drop(&mut self) {
        if let Some(open) = self.connection.take() {
            self.runtime.block_on(open.close());
        }
    }
}

impl Engine for PostgresSession {
    fn dialect(&self) -> SqlDialect {
        SqlDialect::Postgres
    }

    fn execute(&self, sql: &str, values: &[&dyn ToSqlValue]) -> Result<usize> {
        let changed = self.run(sql, values, async |client, statement, values| {
            client.execute(statement, values).await
        })?;
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
        let rows = self.run(sql, values, async |client, statement, values| {
            client.query(statement, values).await
        })?;
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
