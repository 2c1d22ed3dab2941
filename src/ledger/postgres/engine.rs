//! PostgreSQL as the ledger's engine.
//!
//! The row of the table `ledger` orders all transactions of all servers: each one locks it. A commit
//! whose answer is lost is looked up, because each transaction that writes leaves its id in `batches`.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::{error, info, warn};
use uuid::Uuid;

use super::PostgresTarget;
use super::clock::LedgerClock;
use super::servers::{self, ServerRow};
use super::session::PostgresSession;
use super::tables;
use crate::clock::since_boot;
use crate::ledger::engine::{Begun, Engine, Result, Row, StoreError, ToSqlValue, WriterEngine};
use crate::ledger::name::new_name;
use crate::ledger::schema::SqlDialect;
use crate::ledger::tables::{ensure_not_moved, nanos};
use crate::ledger::writer::CommandGate;
use crate::ledger::{Cause, Deadlines, Reason, Unavailable};
use crate::metrics::SharedLedgerMetrics;
use crate::sync::{lock, pause};

const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(50);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// How long a batch is remembered. No server waits longer for the answer to a commit.
const BATCH_RETENTION: Duration = Duration::from_secs(86_400);
/// Old batches are deleted once per this many transactions.
const BATCHES_PER_PURGE: i64 = 1_024;

const MAX_CLOCK_DEVIATION: i64 = 500_000_000;

/// The time is read by a statement of its own, after the wait for the lock.
const LOCK: &str =
    "BEGIN; SELECT version, batch, name, cluster, floor, stepped FROM ledger FOR UPDATE;
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000";
/// The timeline changes when a replica takes over, or when a backup was rolled forward.
const CLUSTER: &str =
    "SELECT system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
    FROM pg_control_system()";

/// The ledger's row and the database's time at the begin of a transaction.
#[derive(Clone, Debug, Default)]
struct Locked {
    version: i64,
    batch: String,
    name: Arc<str>,
    cluster: String,
    /// The database's clock.
    now: i64,
    /// By how much steps have set it ahead, as far as any server has noticed.
    stepped: i64,
    /// The transaction's time; a test has its own.
    time: Duration,
    /// Whether the database has the last transaction that this process knows.
    has_known: bool,
    asked: Duration,
    answered: Duration,
}

pub(in crate::ledger) struct PostgresEngine {
    session: PostgresSession,
    clock: Arc<LedgerClock>,
    gate: CommandGate,
    metrics: SharedLedgerMetrics,
    is_open: Cell<bool>,
    /// How this transaction began.
    locked: RefCell<Locked>,
    /// The last transaction that this process knows, by its id.
    known_batch: RefCell<String>,
    /// The ledger was renamed, and no transaction of this process has ended since.
    is_renamed: Cell<bool>,
    /// The database's clock as it was read last, its steps by then, and the times since boot before and after
    /// it was asked.
    last_reading: Cell<Option<(i64, i64, [Duration; 2])>>,
    /// The ledger's public name.
    name: Arc<Mutex<Arc<str>>>,
    server: Cell<ServerRow>,
    next_renewal: Cell<Duration>,
}

impl PostgresEngine {
    /// Connects, makes the tables if there are none, and joins the processes that share the ledger.
    pub(in crate::ledger) fn open(
        target: PostgresTarget,
        clock: Arc<LedgerClock>,
        name: Arc<Mutex<Arc<str>>>,
        (gate, metrics): (&CommandGate, &SharedLedgerMetrics),
    ) -> Result<Self, Reason> {
        let fresh = Self::open_alone(target)?;
        let engine = Self { clock, gate: gate.clone(), metrics: metrics.clone(), name, ..fresh };
        if !engine.session.target.reads_only {
            ensure_not_moved(&engine.session)?;
            engine.check_cluster()?;
            engine.renew()?;
        }
        Ok(engine)
    }

    /// Connects, and makes the tables if there are none.
    pub(in crate::ledger) fn open_alone(target: PostgresTarget) -> Result<Self, Reason> {
        let may_migrate = target.may_migrate;
        let engine = Self {
            session: PostgresSession::new(target)?,
            clock: Arc::new(LedgerClock::new(None)),
            gate: CommandGate::opened(),
            metrics: SharedLedgerMetrics::default(),
            is_open: Cell::default(),
            locked: RefCell::default(),
            known_batch: RefCell::default(),
            is_renamed: Cell::default(),
            last_reading: Cell::default(),
            name: Arc::default(),
            server: Cell::default(),
            next_renewal: Cell::default(),
        };
        engine.session.connect()?;
        tables::prepare(&engine.session, may_migrate)?;
        Ok(engine)
    }

    /// Changes a ledger for an operator in one transaction, unless `change` refuses it. The process does
    /// not join those that share the ledger.
    pub(super) fn change_once<T>(
        target: PostgresTarget,
        change: impl FnOnce(&Self, Duration) -> Result<T>,
    ) -> Result<T, Reason> {
        let engine = Self::open_alone(target)?;
        ensure_not_moved(&engine.session)?;
        let done = engine.lock().and_then(|_| change(&engine, engine.clock.now()));
        // An end that fails rolls it back.
        let ended = engine.simple(if done.is_ok() { "COMMIT" } else { "ROLLBACK" });
        engine.session.close();
        let done = done?;
        ended?;
        Ok(done)
    }

    /// Renames a ledger that was restored from a backup, and returns its name. Fails while a process uses
    /// it.
    pub(super) fn report_restore(target: PostgresTarget) -> Result<String, Reason> {
        Self::change_once(target, |engine, now| {
            servers::ensure_idle(&engine.session, now)?;
            engine.rename(engine.cluster()?.as_deref())?;
            Ok(lock(&engine.name).to_string())
        })
    }

    /// Connects again if the connection was lost.
    fn connect(&self) -> Result<()> {
        let connected = self.session.connect();
        self.gate.note_outage(connected.as_ref().err());
        if connected.map_err(Unavailable)? {
            self.is_open.set(false);
            if !self.session.target.reads_only {
                self.check_cluster()?;
            }
        }
        Ok(())
    }

    fn simple(&self, sql: &str) -> Result<Vec<tokio_postgres::SimpleQueryRow>> {
        self.session.simple(sql)
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
            let now = number(1, 0)?;
            Some(Locked {
                version: number(0, 0)?,
                batch: cell(0, 1)?.to_owned(),
                name: cell(0, 2)?.into(),
                cluster: cell(0, 3)?.to_owned(),
                now,
                stepped: number(0, 5)?,
                time: self.clock.read(now, asked),
                has_known: known.is_empty() || number(2, 0)? > 0,
                asked,
                answered: since_boot(),
            })
        };
        tables::check_floor(number(0, 4).unwrap_or_default()).map_err(Unavailable)?;
        read().ok_or_else(|| Unavailable("the table `ledger` is empty".into()).into())
    }

    /// Compares the database cluster with the one that the ledger was in. A restored backup, or a replica
    /// that took over, may lack purchases. A dump that is restored in the same cluster looks like the
    /// original, so the operator reports it.
    fn check_cluster(&self) -> Result<()> {
        let Some(cluster) = self.cluster()? else { return Ok(()) };
        let locked = self.lock()?;
        if locked.cluster.is_empty() {
            self.simple(&format!("UPDATE ledger SET cluster = '{cluster}'; COMMIT"))?;
            self.is_open.set(false);
        } else if locked.cluster != cluster {
            error!("ledger is in another database cluster or timeline; ledger renamed");
            self.rename(Some(&cluster))?;
            self.simple("COMMIT")?;
            self.is_open.set(false);
        }
        self.roll_back()
    }

    /// Returns the database cluster and its timeline, if this role may know it.
    fn cluster(&self) -> Result<Option<String>> {
        match self.simple(CLUSTER) {
            Ok(rows) => Ok(rows.first().and_then(|row| row.get(0)).map(str::to_owned)),
            Err(fault) if fault.unavailable().0.cause == Cause::Permission => {
                let error = fault.unavailable();
                warn!(%error, "database cluster not identified; restores and failovers go unnoticed");
                Ok(None)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Renames a ledger that may lack purchases, before the commit that follows. Slots may be missing, too,
    /// so one period of the rate limit passes without a request; and the balance is read again.
    fn rename(&self, cluster: Option<&str>) -> Result<()> {
        let (name, now) = (new_name(self.clock.now()), nanos(self.clock.now()));
        let period = nanos(self.least_period());
        let cluster = cluster.map(|cluster| format!(", cluster = '{cluster}'"));
        let cluster = cluster.unwrap_or_default();
        self.simple(&format!(
            "INSERT INTO batches VALUES ('{name}', {now});
            UPDATE ledger SET name = '{name}', version = version + 1, batch = '{name}'{cluster},
                blocked_until = greatest(blocked_until, {now} + greatest({period},
                    coalesce((SELECT least(seconds, 86400) FROM rate_limit), 60) * 1000000000));
            UPDATE credit SET balance = NULL, since = NULL, as_of = NULL"
        ))?;
        self.metrics.rewinds.inc();
        self.is_renamed.set(true);
        *self.known_batch.borrow_mut() = name.to_string();
        *lock(&self.name) = name;
        Ok(())
    }

    /// Renames a ledger that has forgotten transactions, unless another server has: names sort by their
    /// time.
    fn notice_loss(&self, locked: Locked) -> Result<Locked> {
        if locked.has_known {
            return Ok(locked);
        }
        if locked.name > *lock(&self.name) {
            // Once is enough, also if this transaction is rolled back.
            self.is_renamed.set(true);
            self.known_batch.borrow_mut().clone_from(&locked.batch);
            return Ok(locked);
        }
        error!("ledger database lost commits; ledger renamed");
        self.rename(None)?;
        self.simple("COMMIT")?;
        self.lock()
    }

    /// Returns by how much the database's clock was set ahead, or back, since this process has read it.
    /// A difference that a slow answer may explain is no step.
    fn step(&self, locked: &Locked) -> i64 {
        let Some((before, stepped, [asked, answered])) = self.last_reading.get() else { return 0 };
        if stepped != locked.stepped {
            // Another server has noticed it.
            return 0;
        }
        let passed = |from: Duration, to: Duration| nanos(to.saturating_sub(from));
        let (least, most) = (passed(answered, locked.asked), passed(asked, locked.answered));
        let elapsed = locked.now.saturating_sub(before);
        // Clocks run at different speeds.
        let deviation = MAX_CLOCK_DEVIATION.saturating_add(most / 1_000);
        if elapsed > most.saturating_add(deviation) {
            elapsed - most
        } else if elapsed < least.saturating_sub(deviation) {
            elapsed - least
        } else {
            0
        }
    }

    /// Records a step of the database's clock for all servers. Returns whether it was set ahead.
    fn note_step(&self, locked: &mut Locked) -> Result<bool> {
        let step = self.step(locked);
        if step == 0 || self.session.target.reads_only {
            return Ok(false);
        }
        locked.stepped = locked.stepped.saturating_add(step);
        self.execute("UPDATE ledger SET stepped = ?", &[&locked.stepped])?;
        if step > 0 {
            self.metrics.clock_jumps.inc();
            warn!("database clock jumped ahead; rate limit slots kept");
        }
        Ok(step > 0)
    }

    /// Takes in what the transaction began with, now that it has ended well: after a rollback, all of it
    /// is news once more.
    fn note_end(&self, batch: String) {
        let Locked { now, stepped, asked, answered, .. } = *self.locked.borrow();
        self.last_reading.set(Some((now, stepped, [asked, answered])));
        self.is_renamed.set(false);
        *self.known_batch.borrow_mut() = batch;
    }

    /// Finds out, however long it takes, whether a transaction was committed.
    fn resolve(&self, id: &str, why: &StoreError) -> Result<bool> {
        let mut delay = MIN_RECONNECT_DELAY;
        loop {
            let found = self.connect().and_then(|()| {
                // The old connection's transaction may still be running: the lock waits for its end.
                self.lock()?;
                self.simple(&format!("SELECT 1 FROM batches WHERE id = '{id}'"))
            });
            if let Ok(rows) = found {
                self.roll_back()?;
                info!(is_committed = !rows.is_empty(), "lost commit looked up");
                return Ok(!rows.is_empty());
            }
            self.session.is_lost.set(true);
            if self.gate.stop.load(Ordering::Relaxed) {
                return Err(StoreError::Transient(why.unavailable()));
            }
            pause(delay);
            delay = (delay * 2).min(MAX_RECONNECT_DELAY);
        }
    }

    /// Notes that this process is alive. So an idle process notices lost commits, too.
    fn renew(&self) -> Result<()> {
        self.connect()?;
        let locked = self.lock()?;
        let locked = self.notice_loss(locked)?;
        *lock(&self.name) = Arc::clone(&locked.name);
        let (target, now) = (&self.session.target, self.clock.now());
        let (row, others) = servers::renew(&self.session, self.server.get(), target, now)?;
        self.simple("COMMIT")?;
        self.is_open.set(false);
        self.server.set(row);
        self.gate.server.store(row.number, Ordering::Relaxed);
        let before = self.metrics.settings_differ.set(others);
        if before == 0 && others > 0 {
            warn!(servers = others, "other servers have other budgets or limits");
        }
        Ok(())
    }
}

impl Engine for PostgresEngine {
    fn dialect(&self) -> SqlDialect {
        self.session.dialect()
    }

    fn execute(&self, sql: &str, values: &[&dyn ToSqlValue]) -> Result<usize> {
        self.session.execute(sql, values)
    }

    fn query(
        &self,
        sql: &str,
        values: &[&dyn ToSqlValue],
        read: &mut dyn FnMut(&Row<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.session.query(sql, values, read)
    }
}

impl WriterEngine for PostgresEngine {
    fn deadlines(&self) -> Option<Deadlines> {
        Some(self.session.target.deadlines)
    }

    fn server(&self) -> Option<i64> {
        Some(self.server.get().number)
    }

    fn least_period(&self) -> Duration {
        self.session.target.rate_period.unwrap_or_default()
    }

    fn name(&self) -> Option<Arc<str>> {
        Some(Arc::clone(&lock(&self.name)))
    }

    fn chooses_durability(&self) -> bool {
        false
    }

    fn begin(&self, _: bool) -> Result<Begun> {
        self.connect()?;
        self.session.has_written.set(false);
        let locked = self.lock()?;
        let mut locked = self.notice_loss(locked)?;
        let has_jumped = self.note_step(&mut locked)?;
        *lock(&self.name) = Arc::clone(&locked.name);
        let has_changed = self.is_renamed.get() || *self.known_batch.borrow() != locked.batch;
        if has_changed && !self.session.target.reads_only {
            ensure_not_moved(self)?;
        }
        let now = locked.time;
        let steady = nanos(now).saturating_sub(locked.stepped);
        let steady = Duration::from_nanos(steady.try_into().unwrap_or_default());
        *self.locked.borrow_mut() = locked;
        Ok(Begun { has_changed, now, steady, since_boot: None, has_jumped })
    }

    fn commit(&self, _: Option<i64>) -> Result<bool> {
        if !self.session.has_written.get() {
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
        if self.is_open.replace(false) && !self.session.is_lost.get() {
            // A connection that has ended has rolled it back.
            let done = self.simple("ROLLBACK").map(drop);
            return done
                .or_else(|fault| if self.session.is_lost.get() { Ok(()) } else { Err(fault) });
        }
        Ok(())
    }

    fn ensure_own(&self) -> Result<()> {
        Ok(())
    }

    /// Connects again after an outage, and notes that this process is alive.
    fn maintain(&self) {
        let now = since_boot();
        if self.session.target.reads_only
            || (self.gate.is_reached() && now < self.next_renewal.get())
        {
            return;
        }
        if self.renew().is_err() {
            // The next transaction, or the next renewal, meets the same fault.
            self.roll_back().ok();
        }
        self.next_renewal.set(since_boot() + servers::RENEWAL);
    }

    fn fail(&self) {}

    fn stop(&self) -> bool {
        true
    }

    fn close(self: Box<Self>, _: bool, _: bool) {
        if !self.session.target.reads_only && !self.session.is_lost.get() {
            let left = servers::leave(&self.session, self.server.get(), self.clock.now());
            if let Err(error) = left.map_err(|fault| fault.unavailable()) {
                warn!(%error, "server not signed off; others take its videos over in 30 s");
            }
        }
        self.session.close();
    }
}
