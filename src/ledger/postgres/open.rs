//! Opens a ledger in a database that servers share.

use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::clock::LedgerClock;
use super::engine::PostgresEngine;
use super::session::PostgresSession;
use super::target::PostgresTarget;
use crate::clock::{simulated_since_boot, since_boot};
use crate::ledger::handle::{Executor, SharedLedger, StoreInner};
use crate::ledger::sqlite::spawn;
use crate::ledger::tables::Ledger;
use crate::ledger::writer::{CommandGate, CommandReceiver, ReportReader, Writer};
use crate::ledger::{Clock, OpenError, Reason, Store, StoreCapacity};
use crate::metrics::SharedLedgerMetrics;

impl Store {
    /// Connects, and makes or migrates the tables.
    pub async fn open_postgres(target: PostgresTarget) -> Result<Self, OpenError> {
        Self::open_database(target, None).await
    }

    /// Opens a shared ledger whose time the test sets.
    #[doc(hidden)]
    pub async fn open_database(
        target: PostgresTarget,
        clock: Option<Clock>,
    ) -> Result<Self, OpenError> {
        Self::start(Parts::new(target, clock)).await.map_err(OpenError::Unusable)
    }

    /// Runs each operation on the caller's thread, which must not be a runtime's, for a simulation: its
    /// time since boot is that of the runtime that the caller has entered.
    #[doc(hidden)]
    pub fn open_database_inline(target: PostgresTarget, clock: Clock) -> Result<Self, OpenError> {
        let parts = Parts::new(target, Some(clock));
        let writer = parts.connect().map_err(OpenError::Unusable)?;
        let mut inner = parts.inner(Executor::Inline(Box::new(Mutex::new(writer))));
        inner.since_boot = Arc::new(simulated_since_boot);
        Ok(Self::new(inner))
    }

    async fn start(parts: Parts) -> Result<Self, Reason> {
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        let (send, opened) = oneshot::channel();
        let reports = ReportReader::start(PostgresSession::new(parts.target.clone())?)?;
        let work = {
            let parts = parts.clone();
            move || match parts.connect() {
                Ok(writer) => {
                    if send.send(Ok(())).is_ok() {
                        writer.run(&commands);
                    }
                }
                Err(reason) => drop(send.send(Err(reason))),
            }
        };
        let executor = Executor::Thread { queue, thread: spawn(Path::new(""), work)? };
        let mut inner = parts.inner(executor);
        inner.report_reader = Some(reports);
        let store = Self::new(inner);
        opened.await.unwrap_or_else(|_| Err("the ledger's thread has ended".into()))?;
        Ok(store)
    }
}

/// The parts that the writer and the handle share.
#[derive(Clone)]
struct Parts {
    target: PostgresTarget,
    clock: Arc<LedgerClock>,
    gate: CommandGate,
    metrics: SharedLedgerMetrics,
    name: Arc<Mutex<Arc<str>>>,
}

impl Parts {
    fn new(target: PostgresTarget, clock: Option<Clock>) -> Self {
        Self {
            target,
            clock: Arc::new(LedgerClock::new(clock)),
            gate: CommandGate::opened(),
            metrics: SharedLedgerMetrics::default(),
            name: Arc::default(),
        }
    }

    fn connect(&self) -> Result<Writer, Reason> {
        let Self { target, clock, gate, metrics, name } = self.clone();
        let money = target.money;
        let engine = PostgresEngine::open(target, clock, name, (&gate, &metrics))?;
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

    fn inner(self, executor: Executor) -> StoreInner {
        let Self { target, clock, gate, metrics, name } = self;
        let clocks: (Clock, Clock) = (Arc::new(move || clock.now()), Arc::new(since_boot));
        let mut inner = StoreInner::new(Path::new(""), clocks, executor, gate);
        inner.name = name;
        inner.shared = Some(SharedLedger { deadlines: target.deadlines, metrics });
        inner
    }
}
