//! PostgreSQL as the ledger's engine.
//!
//! The row of the table `ledger` orders all transactions of all servers: each one locks it. A commit
//! whose answer is lost is looked up, because each transaction that writes leaves its id in `batches`.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_postgres::SimpleQueryRow;
use tracing::{error, info, warn};
use uuid::Uuid;

use super::PostgresTarget;
use super::servers::{self, ServerRow};
use super::session::PostgresSession;
use super::tables;
use crate::clock::since_boot;
use crate::ledger::engine::{Begun, Engine, Result, StoreError, WriterEngine};
use crate::ledger::name::new_name;
use crate::ledger::shared::SharedLedger;
use crate::ledger::tables::{duration, ensure_not_moved, nanos, slots};
use crate::ledger::writer::CommandGate;
use crate::ledger::{Cause, Clock, Reason, Unavailable};
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

/// The state that an engine shares with the callers of the ledger.
pub(super) type Parts = (CommandGate, Arc<SharedLedger>);

pub(super) fn parts(target: &PostgresTarget, test_clock: Option<Clock>) -> Parts {
    let shared = SharedLedger::new(target.deadlines, target.rate_period, test_clock);
    (CommandGate::opened(), Arc::new(shared))
}

/// The database's clock, as an answer told it.
#[derive(Clone, Copy, Debug, Default)]
struct ClockReading {
    /// How far it is ahead of the time since boot: at least, and at most.
    least_ahead: i64,
    most_ahead: i64,
    /// By how much steps have set it ahead, as far as any server has noticed.
    stepped: i64,
    answered: Duration,
}

impl ClockReading {
    /// Returns by how much the clock was set ahead, or back, since another reading. What a slow answer may
    /// explain is no step.
    fn step_since(&self, before: Self) -> i64 {
        if before.stepped != self.stepped {
            // Another server has noticed it.
            return 0;
        }
        // Clocks run at different speeds.
        let passed = nanos(self.answered.saturating_sub(before.answered));
        let deviation = MAX_CLOCK_DEVIATION.saturating_add(passed / 1_000);
        let ahead = self.least_ahead.saturating_sub(before.most_ahead);
        let behind = self.most_ahead.saturating_sub(before.least_ahead);
        if ahead > deviation {
            ahead
        } else if behind < -deviation {
            behind
        } else {
            0
        }
    }
}

/// The ledger's row and its time at the begin of a transaction.
#[derive(Debug, Default)]
struct Locked {
    version: i64,
    batch: String,
    name: Arc<str>,
    cluster: String,
    floor: i64,
    /// The database's clock.
    reading: ClockReading,
    /// The transaction's time; a test has its own.
    time: Duration,
    /// Whether the database has the last transaction that this process knows.
    has_known: bool,
}

pub(in crate::ledger) struct PostgresEngine {
    session: PostgresSession,
    gate: CommandGate,
    shared: Arc<SharedLedger>,
    /// How this transaction began.
    locked: RefCell<Locked>,
    /// The last transaction that this process knows, by its id.
    known_batch: RefCell<String>,
    /// The ledger was renamed, and no transaction of this process has ended since.
    is_renamed: Cell<bool>,
    /// The database's clock as it was read last.
    last_reading: Cell<Option<ClockReading>>,
    row: Cell<ServerRow>,
    next_renewal: Cell<Duration>,
}

impl PostgresEngine {
    /// Connects, makes the tables if there are none, and joins the processes that share the ledger.
    pub(super) fn open(target: PostgresTarget, parts: Parts) -> Result<Self, Reason> {
        let engine = Self::connected(target, parts)?;
        if !engine.session.target.reads_only {
            ensure_not_moved(&engine.session)?;
            engine.check_cluster()?;
            engine.renew()?;
        }
        Ok(engine)
    }

    /// Connects, and makes the tables if there are none.
    pub(in crate::ledger) fn open_alone(target: PostgresTarget) -> Result<Self, Reason> {
        let parts = parts(&target, None);
        Self::connected(target, parts)
    }

    fn connected(target: PostgresTarget, (gate, shared): Parts) -> Result<Self, Reason> {
        let session = PostgresSession::new(target)?;
        session.connect()?;
        tables::prepare(&session)?;
        Ok(Self {
            session,
            gate,
            shared,
            locked: RefCell::default(),
            known_batch: RefCell::default(),
            is_renamed: Cell::default(),
            last_reading: Cell::default(),
            row: Cell::default(),
            next_renewal: Cell::default(),
        })
    }

    /// Changes a ledger for an operator in one transaction, unless `change` refuses it. The process does
    /// not join those that share the ledger.
    pub(super) fn change_once<T>(
        target: PostgresTarget,
        change: impl FnOnce(&Self, Duration) -> Result<T>,
    ) -> Result<T, Reason> {
        let engine = Self::open_alone(target)?;
        ensure_not_moved(&engine.session)?;
        let done = engine.lock().and_then(|locked| change(&engine, locked.time));
        Ok(engine.session.end(done)?)
    }

    /// Refuses programs that know only earlier versions of the tables. Fails while one of them runs.
    pub(super) fn contract(&self, now: Duration) -> Result<()> {
        servers::contract(&self.session, now)
    }

    /// Renames a ledger that was restored from a backup, and returns its name. Fails while a process uses
    /// it.
    pub(super) fn report_restore(&self, now: Duration) -> Result<String> {
        servers::ensure_idle(&self.session, now)?;
        self.rename(self.cluster()?.as_deref())?;
        Ok(self.shared.name().to_string())
    }

    /// Connects again if the connection was lost.
    fn connect(&self) -> Result<()> {
        let connected = self.session.connect();
        self.gate.note_outage(connected.as_ref().err());
        if connected.map_err(Unavailable)? && !self.session.target.reads_only {
            self.check_cluster()?;
        }
        Ok(())
    }

    fn simple(&self, sql: &str) -> Result<Vec<SimpleQueryRow>> {
        self.session.simple(sql)
    }

    /// Locks the ledger.
    fn lock(&self) -> Result<Locked> {
        self.session.has_written.set(false);
        let asked = since_boot();
        let known = self.known_batch.borrow().clone();
        let find = format!("{LOCK}, (SELECT count(*) FROM batches WHERE id = '{known}')");
        let rows = self.simple(&find)?;
        let answered = since_boot();
        let read = || {
            let [row, time] = &rows[..] else { return None };
            let number = |row: &SimpleQueryRow, at| row.get(at)?.parse::<i64>().ok();
            let database = number(time, 0)?;
            Some(Locked {
                version: number(row, 0)?,
                batch: row.get(1)?.to_owned(),
                name: row.get(2)?.into(),
                cluster: row.get(3)?.to_owned(),
                floor: number(row, 4)?,
                reading: ClockReading {
                    least_ahead: database.saturating_sub(nanos(answered)),
                    most_ahead: database.saturating_sub(nanos(asked)),
                    stepped: number(row, 5)?,
                    answered,
                },
                time: self.shared.clock.read(database, asked),
                has_known: known.is_empty() || number(time, 1)? > 0,
            })
        };
        let locked = read().ok_or_else(|| Unavailable("the table `ledger` is empty".into()))?;
        tables::check_floor(locked.floor).map_err(Unavailable)?;
        Ok(locked)
    }

    /// Locks the ledger, by a new connection if the last one was lost, and renames one that has forgotten
    /// transactions.
    fn lock_known(&self) -> Result<Locked> {
        self.connect()?;
        let locked = self.lock()?;
        let locked = self.notice_loss(locked)?;
        *lock(&self.shared.name) = Arc::clone(&locked.name);
        Ok(locked)
    }

    /// Compares the database cluster with the one that the ledger was in. A restored backup, or a replica
    /// that took over, may lack purchases. A dump that is restored in the same cluster looks like the
    /// original, so the operator reports it.
    fn check_cluster(&self) -> Result<()> {
        let Some(cluster) = self.cluster()? else { return Ok(()) };
        let locked = self.lock()?;
        if locked.cluster.is_empty() {
            self.simple(&format!("UPDATE ledger SET cluster = '{cluster}'"))?;
        } else if locked.cluster != cluster {
            error!("ledger is in another database cluster or timeline; ledger renamed");
            self.rename(Some(&cluster))?;
        }
        self.simple("COMMIT").map(drop)
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
        let now = self.shared.clock.now();
        let (name, at) = (new_name(now), nanos(now));
        let cluster = cluster.map(|cluster| format!(", cluster = '{cluster}'")).unwrap_or_default();
        self.simple(&format!(
            "INSERT INTO batches VALUES ('{name}', {at});
            UPDATE ledger SET name = '{name}', version = version + 1, batch = '{name}'{cluster};
            UPDATE members_version SET version = version + 1;
            UPDATE credit SET balance = NULL, since = NULL, as_of = NULL"
        ))?;
        slots::block_for_period(&self.session, now, self.shared.rate_period())?;
        self.shared.metrics.rewinds.inc();
        self.is_renamed.set(true);
        *self.known_batch.borrow_mut() = name.to_string();
        *lock(&self.shared.name) = name;
        Ok(())
    }

    /// Renames a ledger that has forgotten transactions, unless another server has: names sort by their
    /// time.
    fn notice_loss(&self, locked: Locked) -> Result<Locked> {
        if locked.has_known {
            return Ok(locked);
        }
        if locked.name > self.shared.name() {
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

    /// Records a step of the database's clock for all servers. Returns whether it was set ahead.
    fn note_step(&self, locked: &mut Locked) -> Result<bool> {
        let before = self.last_reading.get();
        let step = before.map_or(0, |before| locked.reading.step_since(before));
        if step == 0 || self.session.target.reads_only {
            return Ok(false);
        }
        let stepped = &mut locked.reading.stepped;
        *stepped = stepped.saturating_add(step);
        self.session.execute("UPDATE ledger SET stepped = ?", &[stepped])?;
        if step > 0 {
            self.shared.metrics.clock_jumps.inc();
            warn!("database clock jumped ahead; rate limit slots kept");
        }
        Ok(step > 0)
    }

    /// Takes in what the transaction began with, now that it has ended well: after a rollback, all of it
    /// is news once more.
    fn note_end(&self, batch: String) {
        self.last_reading.set(Some(self.locked.borrow().reading));
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
        let locked = self.lock_known()?;
        let target = &self.session.target;
        let (row, others) = servers::renew(&self.session, self.row.get(), target, locked.time)?;
        self.simple("COMMIT")?;
        self.row.set(row);
        self.shared.server.store(row.number, Ordering::Relaxed);
        let before = self.shared.metrics.settings_differ.set(others);
        if before == 0 && others > 0 {
            warn!(servers = others, "other servers have other budgets or limits");
        }
        Ok(())
    }
}

impl WriterEngine for PostgresEngine {
    fn statements(&self) -> &(dyn Engine + 'static) {
        &self.session
    }

    fn shared(&self) -> Option<&SharedLedger> {
        Some(&self.shared)
    }

    fn begin(&self, _: bool) -> Result<Begun> {
        let mut locked = self.lock_known()?;
        let has_jumped = self.note_step(&mut locked)?;
        let has_changed = self.is_renamed.get() || *self.known_batch.borrow() != locked.batch;
        if has_changed && !self.session.target.reads_only {
            ensure_not_moved(&self.session)?;
        }
        let now = locked.time;
        let steady = duration(nanos(now).saturating_sub(locked.reading.stepped));
        *self.locked.borrow_mut() = locked;
        Ok(Begun { has_changed, now, steady, since_boot: None, has_jumped })
    }

    fn commit(&self, _: Option<i64>) -> Result<bool> {
        if !self.session.has_written.get() {
            // No decision depends on its answer.
            self.roll_back()?;
            let batch = self.locked.borrow().batch.clone();
            self.note_end(batch);
            return Ok(false);
        }
        let (id, now) = (Uuid::now_v7().simple().to_string(), nanos(self.shared.clock.now()));
        let next = self.locked.borrow().version + 1;
        let purge = if next % BATCHES_PER_PURGE == 0 {
            let before = now.saturating_sub(nanos(BATCH_RETENTION));
            // The last one stays: other servers know it.
            let last = &self.locked.borrow().batch;
            format!("DELETE FROM batches WHERE at < {before} AND id <> '{last}';")
        } else {
            String::new()
        };
        let sent = self.simple(&format!(
            "UPDATE ledger SET version = {next}, batch = '{id}';
            INSERT INTO batches VALUES ('{id}', {now}); {purge} COMMIT"
        ));
        if let Err(why) = sent
            && !(matches!(why, StoreError::Disconnected(_)) && self.resolve(&id, &why)?)
        {
            return Err(why);
        }
        self.note_end(id);
        Ok(true)
    }

    fn roll_back(&self) -> Result<()> {
        // A connection that has ended has rolled it back.
        let done =
            if self.session.is_lost.get() { Ok(()) } else { self.simple("ROLLBACK").map(drop) };
        done.or_else(|fault| if self.session.is_lost.get() { Ok(()) } else { Err(fault) })
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

    fn close(self: Box<Self>, _: bool, _: bool) {
        if !self.session.target.reads_only && !self.session.is_lost.get() {
            let left = servers::leave(&self.session, self.row.get(), self.shared.clock.now());
            if let Err(error) = left.map_err(|fault| fault.unavailable()) {
                warn!(%error, "server not signed off; others take its videos over in 30 s");
            }
        }
    }
}
