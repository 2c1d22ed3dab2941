//! PostgreSQL as the ledger's engine.
//!
//! The row of the table `ledger` orders all transactions of all servers: each one locks it. A commit
//! whose answer is lost is looked up, because each transaction that writes leaves its id in `batches`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_postgres::{Error, SimpleQueryMessage, SimpleQueryRow, Statement};
use tracing::{error, info, warn};
use uuid::Uuid;

use super::PostgresTarget;
use super::clock::LedgerClock;
use super::column::nanos;
use super::connect::{PostgresConnection, connect};
use super::statement::{numbered, types_of, values_of};
use crate::clock::since_boot;
use crate::store::engine::{
    Begun, Engine, Result, Row, SqlValue, StoreError, ToSqlValue, WriterEngine,
};
use crate::store::schema::{MIGRATIONS, SqlDialect};
use crate::store::sqlite::{CommandGate, ensure_not_moved, new_name};
use crate::store::{Cause, Deadlines, Reason, Unavailable};
use crate::sync::{lock, pause};

/// How long an answer may take. The lock of another server may be waited for.
const PATIENCE: Duration = Duration::from_secs(8);
const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(50);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// How long a batch is remembered. No server waits longer for the answer to a commit.
const BATCH_RETENTION: Duration = Duration::from_secs(86_400);
/// Old batches are deleted once per this many transactions.
const BATCHES_PER_PURGE: i64 = 1_024;

/// Clocks run at different speeds.
const MAX_CLOCK_DEVIATION: i64 = 500_000_000;

/// The tables that only a shared database has.
const OWN_TABLES: &str = "
    -- One row, which each transaction locks.
    CREATE TABLE ledger (
        number  {key} CHECK (number = 1),
        version {int} NOT NULL,         -- goes up with each transaction that writes
        batch   {text} NOT NULL,        -- the id of the last of them
        schema  {int} NOT NULL,
        name    {text} NOT NULL,        -- public; changes when purchases may have been lost
        blocked_until {int} NOT NULL    -- no slot of the rate limit is free before
    ) {strict};
    -- The transactions that have been committed.
    CREATE TABLE batches (
        id {text} PRIMARY KEY,
        at {int} NOT NULL
    ) {strict};
    CREATE INDEX batches_at ON batches (at);
    CREATE INDEX slots_replied ON slots (replied);
    CREATE INDEX purchases_open ON purchases (deadline) WHERE ended_at IS NULL;
    -- The account's balance, and the prices held and spent: one row.
    CREATE TABLE credit (
        number {key} CHECK (number = 1),
        held   {int} NOT NULL,
        spent  {int} NOT NULL,
        balance {int},
        since  {int},                   -- what had been spent when the balance certainly included it
        as_of  {int},
        CHECK ((balance IS NULL) = (since IS NULL) AND (balance IS NULL) = (as_of IS NULL))
    ) {strict};
    INSERT INTO credit VALUES (1, 0, 0);
    -- The processes that use the ledger.
    CREATE TABLE servers (
        number {key},
        kind   {text} NOT NULL,
        name   {text} NOT NULL,
        pid    {int} NOT NULL,
        began  {int} NOT NULL,
        seen   {int} NOT NULL,
        ended  {int},
        schema {int} NOT NULL,
        rules  {blob},
        secret {blob}
    ) {strict};
";
/// The time is read by a statement of its own, after the wait for the lock.
const LOCK: &str = "BEGIN; SELECT version, batch, name FROM ledger FOR UPDATE;
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000";

/// The ledger's row and the database's time at the begin of a transaction.
#[derive(Clone, Debug, Default)]
struct Locked {
    version: i64,
    batch: String,
    name: Arc<str>,
    now: i64,
    /// Whether the database has the last transaction that this process knows.
    has_known: bool,
    asked: Duration,
}

pub(in crate::store) struct PostgresEngine {
    runtime: Runtime,
    target: PostgresTarget,
    clock: Arc<LedgerClock>,
    gate: CommandGate,
    session: RefCell<Option<Session>>,
    /// The connection has failed, or hangs.
    is_lost: Cell<bool>,
    is_open: Cell<bool>,
    has_written: Cell<bool>,
    /// How this transaction began.
    locked: RefCell<Locked>,
    /// The last transaction that this process knows, by its id.
    known_batch: RefCell<String>,
    /// The database's clock as it was read last, and the time since boot before it was asked.
    last_reading: Cell<Option<(i64, Duration)>>,
    /// The ledger's public name.
    name: Arc<Mutex<Arc<str>>>,
}

struct Session {
    connection: PostgresConnection,
    statements: RefCell<HashMap<String, Statement>>,
}

impl PostgresEngine {
    /// Connects, and makes the tables if there are none.
    pub(in crate::store) fn open(
        target: PostgresTarget,
        clock: Arc<LedgerClock>,
        name: Arc<Mutex<Arc<str>>>,
        gate: &CommandGate,
    ) -> Result<Self, Reason> {
        let engine = Self {
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            target,
            clock,
            gate: gate.clone(),
            session: RefCell::default(),
            is_lost: Cell::default(),
            is_open: Cell::default(),
            has_written: Cell::default(),
            locked: RefCell::default(),
            known_batch: RefCell::default(),
            last_reading: Cell::default(),
            name,
        };
        engine.connect()?;
        engine.migrate()?;
        Ok(engine)
    }

    fn migrate(&self) -> Result<(), Reason> {
        if self.has_tables()? {
            return Ok(());
        }
        if !self.target.may_migrate {
            return Err("it has no tables: run `tollgate store migrate`".into());
        }
        let tables = [MIGRATIONS, &[OWN_TABLES]].concat().concat();
        let (tables, newest) = (SqlDialect::Postgres.fill_in(&tables), MIGRATIONS.len());
        let name = new_name(Duration::ZERO);
        let make = format!(
            "BEGIN; SELECT pg_advisory_xact_lock(7521); {tables};
            INSERT INTO ledger VALUES (1, 1, '', {newest}, '{name}', 0); COMMIT"
        );
        let made = self.simple(&make);
        self.is_open.set(made.is_err());
        self.roll_back().map_err(|fault| fault.unavailable().0)?;
        match made {
            // Another server was first.
            Err(_) if self.has_tables()? => Ok(()),
            made => made.map(drop).map_err(|fault| fault.unavailable().0),
        }
    }

    fn has_tables(&self) -> Result<bool, Reason> {
        let find = "SELECT to_regclass('ledger') IS NOT NULL";
        let found = self.simple(find).map_err(|fault| fault.unavailable().0)?;
        Ok(found.first().is_some_and(|row| row.get(0) == Some("t")))
    }

    /// Connects again if the connection was lost.
    fn connect(&self) -> Result<(), Reason> {
        let is_closed =
            self.session.borrow().as_ref().is_none_or(|session| session.connection.is_closed());
        if !is_closed && !self.is_lost.get() {
            return Ok(());
        }
        self.session.take();
        let connected = self.runtime.block_on(connect(&self.target));
        self.gate.note_outage(connected.as_ref().err());
        let session = Session { connection: connected?, statements: RefCell::default() };
        *self.session.borrow_mut() = Some(session);
        self.is_lost.set(false);
        self.is_open.set(false);
        Ok(())
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
    fn simple(&self, sql: &str) -> Result<Vec<SimpleQueryRow>> {
        let session = self.session.borrow();
        let client = &session.as_ref().ok_or_else(lost)?.connection.client;
        let answers = self.wait(client.simple_query(sql))?;
        Ok(answers
            .into_iter()
            .filter_map(
                |answer| {
                    if let SimpleQueryMessage::Row(row) = answer { Some(row) } else { None }
                },
            )
            .collect())
    }

    /// Prepares a statement once, with the types of its first values.
    fn prepared(&self, sql: &str, values: &[SqlValue<'_>]) -> Result<Statement> {
        let session = self.session.borrow();
        let session = session.as_ref().ok_or_else(lost)?;
        let known = session.statements.borrow().get(sql).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let (text, types) = (numbered(sql), types_of(values));
                let made = session.connection.client.prepare_typed(&text, &types);
                let statement = self.wait(made)?;
                session.statements.borrow_mut().insert(sql.to_owned(), statement.clone());
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

    /// Locks the ledger.
    fn lock(&self) -> Result<Locked> {
        self.is_open.set(true);
        let asked = since_boot();
        let known = self.known_batch.borrow().clone();
        let find = format!("{LOCK}; SELECT count(*) FROM batches WHERE id = '{known}'");
        let rows = self.simple(&find)?;
        let cell = |row: usize, column| rows.get(row).and_then(|row| row.get(column));
        let number = |row, column| cell(row, column).and_then(|text| text.parse::<i64>().ok());
        let read = || {
            Some(Locked {
                version: number(0, 0)?,
                batch: cell(0, 1)?.to_owned(),
                name: cell(0, 2)?.into(),
                now: number(1, 0)?,
                has_known: known.is_empty() || number(2, 0)? > 0,
                asked,
            })
        };
        read().ok_or_else(|| Unavailable("the table `ledger` is empty".into()).into())
    }

    /// Renames a ledger that has forgotten transactions, unless another server has.
    fn notice_loss(&self, locked: Locked) -> Result<Locked> {
        if locked.has_known || locked.name != *lock(&self.name) {
            return Ok(locked);
        }
        let name = new_name(Duration::from_nanos(locked.now.unsigned_abs()));
        error!("ledger database lost commits; ledger renamed");
        self.simple(&format!("UPDATE ledger SET name = '{name}', version = version + 1; COMMIT"))?;
        self.lock()
    }

    /// Returns whether the database's clock is further ahead than the time that has passed: a slow answer
    /// looks like a jump back.
    fn has_jumped(&self, now: i64) -> bool {
        let Some((before, asked_before)) = self.last_reading.get() else { return false };
        let passed = nanos(since_boot().saturating_sub(asked_before));
        let has_jumped = now.saturating_sub(before) > passed.saturating_add(MAX_CLOCK_DEVIATION);
        if has_jumped {
            warn!("database clock jumped ahead; rate limit slots kept");
        }
        has_jumped
    }

    /// Takes in what the transaction began with, now that it has ended well: after a rollback, all of it
    /// is news once more.
    fn note_end(&self, batch: String) {
        let Locked { now, asked, .. } = *self.locked.borrow();
        self.last_reading.set(Some((now, asked)));
        *self.known_batch.borrow_mut() = batch;
    }

    /// Finds out, however long it takes, whether a transaction was committed.
    fn resolve(&self, id: &str, why: &StoreError) -> Result<bool> {
        let mut delay = MIN_RECONNECT_DELAY;
        loop {
            let found =
                self.connect().map_err(|reason| Unavailable(reason).into()).and_then(|()| {
                    // The old connection's transaction may still be running: the lock waits for its end.
                    self.lock()?;
                    self.simple(&format!("SELECT 1 FROM batches WHERE id = '{id}'"))
                });
            if let Ok(rows) = found {
                self.roll_back()?;
                info!(is_committed = !rows.is_empty(), "lost commit looked up");
                return Ok(!rows.is_empty());
            }
            self.is_lost.set(true);
            if self.gate.stop.load(Ordering::Relaxed) {
                return Err(StoreError::Transient(why.unavailable()));
            }
            pause(delay);
            delay = (delay * 2).min(MAX_RECONNECT_DELAY);
        }
    }
}

fn lost() -> StoreError {
    let why = Reason::new(Cause::Unreachable, "the connection to the database was lost");
    StoreError::Disconnected(Unavailable(why))
}

impl Engine for PostgresEngine {
    fn dialect(&self) -> SqlDialect {
        SqlDialect::Postgres
    }

    fn execute(&self, sql: &str, values: &[&dyn ToSqlValue]) -> Result<usize> {
        let values: Vec<_> = values.iter().map(|value| value.to_sql_value()).collect();
        let statement = self.prepared(sql, &values)?;
        let session = self.session.borrow();
        let client = &session.as_ref().ok_or_else(lost)?.connection.client;
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
        let session = self.session.borrow();
        let client = &session.as_ref().ok_or_else(lost)?.connection.client;
        let rows = self.wait(client.query(&statement, &values_of(&values)))?;
        drop(session);
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

impl WriterEngine for PostgresEngine {
    fn deadlines(&self) -> Option<Deadlines> {
        Some(self.target.deadlines)
    }

    fn least_period(&self) -> Duration {
        self.target.rate_period.unwrap_or_default()
    }

    fn name(&self) -> Option<Arc<str>> {
        Some(Arc::clone(&lock(&self.name)))
    }

    fn chooses_durability(&self) -> bool {
        false
    }

    fn begin(&self, _: bool) -> Result<Begun> {
        self.connect().map_err(Unavailable)?;
        self.has_written.set(false);
        let locked = self.lock()?;
        let has_jumped = self.has_jumped(locked.now);
        let locked = self.notice_loss(locked)?;
        self.clock.note(locked.now);
        *lock(&self.name) = Arc::clone(&locked.name);
        let has_changed = *self.known_batch.borrow() != locked.batch;
        if has_changed && !self.target.reads_only {
            ensure_not_moved(self)?;
        }
        *self.locked.borrow_mut() = locked;
        Ok(Begun { has_changed, now: self.clock.now(), has_jumped })
    }

    fn commit(&self, _: Option<i64>) -> Result<bool> {
        if !self.has_written.get() {
            // Nothing depends on its answer.
            self.roll_back()?;
            let batch = self.locked.borrow().batch.clone();
            self.note_end(batch);
            return Ok(false);
        }
        let (id, now) = (Uuid::now_v7().simple().to_string(), nanos(self.clock.now()));
        let Locked { version, batch, .. } = self.locked.borrow().clone();
        let (next, before) = (version + 1, now.saturating_sub(nanos(BATCH_RETENTION)));
        let purge = if next % BATCHES_PER_PURGE == 0 {
            // The last one stays: other servers know it.
            format!("DELETE FROM batches WHERE at < {before} AND id <> '{batch}';")
        } else {
            String::new()
        };
        let sent = self.simple(&format!(
            "UPDATE ledger SET version = {next}, batch = '{id}';
            INSERT INTO batches VALUES ('{id}', {now}); {purge} COMMIT"
        ));
        match sent {
            Ok(_) => {}
            Err(why @ StoreError::Disconnected(_)) => {
                if !self.resolve(&id, &why)? {
                    return Err(why);
                }
            }
            Err(refused) => return Err(refused),
        }
        self.is_open.set(false);
        self.note_end(id);
        Ok(true)
    }

    fn roll_back(&self) -> Result<()> {
        if self.is_open.replace(false) && !self.is_lost.get() {
            // A connection that has ended has rolled it back.
            let done = self.simple("ROLLBACK").map(drop);
            return done.or_else(|fault| if self.is_lost.get() { Ok(()) } else { Err(fault) });
        }
        Ok(())
    }

    fn ensure_own(&self) -> Result<()> {
        Ok(())
    }

    /// Connects again, so that the end of an outage is noticed.
    fn maintain(&self) {
        if !self.gate.is_reached() {
            self.connect().ok();
        }
    }

    fn fail(&self) {}

    fn stop(&self) -> bool {
        true
    }

    fn close(self: Box<Self>, _: bool, _: bool) {
        if let Some(session) = self.session.take() {
            self.runtime.block_on(session.connection.close());
        }
    }
}
