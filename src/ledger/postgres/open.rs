//! Opens a ledger in a database that servers share.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::admin::on_thread;
use super::engine::{Parts, PostgresEngine, parts};
use super::session::PostgresSession;
use super::target::PostgresTarget;
use crate::clock::{simulated_since_boot, since_boot};
use crate::ledger::handle::{Executor, StoreInner};
use crate::ledger::sqlite::spawn;
use crate::ledger::tables::Ledger;
use crate::ledger::writer::{CommandReceiver, ReportReader, Writer};
use crate::ledger::{Clock, OpenError, Reason, Store, StoreCapacity};

impl Store {
    /// Connects, and makes or migrates the tables. A test sets the ledger's time.
    pub async fn open_database(
        target: PostgresTarget,
        test_clock: Option<Clock>,
    ) -> Result<Self, OpenError> {
        Self::start(target, test_clock).await.map_err(OpenError::Unusable)
    }

    /// Runs each operation on the caller's thread, which must not be a runtime's, for a simulation: its
    /// time since boot is that of the runtime that the caller has entered.
    #[doc(hidden)]
    pub fn open_database_inline(target: PostgresTarget, clock: Clock) -> Result<Self, OpenError> {
        let parts = parts(&target, Some(clock));
        let writer = connect(target, parts.clone()).map_err(OpenError::Unusable)?;
        let mut inner = inner(parts, Executor::Inline(Box::new(Mutex::new(writer))));
        inner.since_boot = Arc::new(simulated_since_boot);
        Ok(Self::new(inner))
    }

    async fn start(target: PostgresTarget, test_clock: Option<Clock>) -> Result<Self, Reason> {
        let parts = parts(&target, test_clock);
        let reports = ReportReader::start(PostgresSession::new(target.clone())?)?;
        let shared = parts.clone();
        let writer = on_thread(&target, move |target| connect(target, shared)).await?;
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        let thread = spawn(Path::new(""), move || writer.run(&commands))?;
        let mut inner = inner(parts, Executor::Thread { queue, thread });
        inner.report_reader = Some(reports);
        Ok(Self::new(inner))
    }
}

fn connect(target: PostgresTarget, parts: Parts) -> Result<Writer, Reason> {
    let (money, gate, metrics) = (target.money, parts.0.clone(), parts.1.metrics.clone());
    let engine = PostgresEngine::open(target, parts)?;
    let mut ledger = Ledger::new(Box::new(engine), StoreCapacity::default());
    ledger.metrics = metrics;
    // Purchases that run may be those of other servers.
    ledger.begin(true)?;
    ledger.ensure_money_kind(money)?;
    // It may have ended what other servers left.
    ledger.write_counters()?;
    ledger.commit()?;
    Ok(Writer::new(ledger, &gate))
}

fn inner((gate, shared): Parts, executor: Executor) -> StoreInner {
    let known = Arc::clone(&shared);
    let clocks: (Clock, Clock) = (Arc::new(move || known.clock.now()), Arc::new(since_boot));
    let mut inner = StoreInner::new(Path::new(""), clocks, executor, gate);
    inner.shared = Some(shared);
    inner
}
