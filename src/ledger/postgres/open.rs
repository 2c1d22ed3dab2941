//! Opens a ledger in a database that servers share.

use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::engine::PostgresEngine;
use super::session::PostgresSession;
use super::target::PostgresTarget;
use crate::clock::simulated_since_boot;
use crate::ledger::handle::{Executor, StoreInner};
use crate::ledger::shared::SharedLedger;
use crate::ledger::sqlite::spawn;
use crate::ledger::tables::Ledger;
use crate::ledger::writer::{CommandGate, CommandReceiver, ReportReader, Writer};
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
        inner.since_boot = simulated_since_boot;
        Ok(Self::new(inner))
    }

    async fn start(target: PostgresTarget, test_clock: Option<Clock>) -> Result<Self, Reason> {
        let parts = parts(&target, test_clock);
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        let (send, opened) = oneshot::channel();
        let reports = ReportReader::start(PostgresSession::new(target.clone())?)?;
        let work = {
            let parts = parts.clone();
            move || match connect(target, parts) {
                Ok(writer) => {
                    if send.send(Ok(())).is_ok() {
                        writer.run(&commands);
                    }
                }
                Err(reason) => drop(send.send(Err(reason))),
            }
        };
        let executor = Executor::Thread { queue, thread: spawn(Path::new(""), work)? };
        let mut inner = inner(parts, executor);
        inner.report_reader = Some(reports);
        let store = Self::new(inner);
        opened.await.unwrap_or_else(|_| Err("the ledger's thread has ended".into()))?;
        Ok(store)
    }
}

/// What the writer and its callers share.
type Parts = (CommandGate, Arc<SharedLedger>);

fn parts(target: &PostgresTarget, test_clock: Option<Clock>) -> Parts {
    let shared = SharedLedger::new(target.deadlines, target.rate_period, test_clock);
    (CommandGate::opened(), Arc::new(shared))
}

fn connect(target: PostgresTarget, (gate, shared): Parts) -> Result<Writer, Reason> {
    let (money, metrics) = (target.money, shared.metrics.clone());
    let engine = PostgresEngine::open(target, gate.clone(), shared)?;
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
    let clock = Arc::new(move || known.clock.now());
    let mut inner = StoreInner::new(Path::new(""), clock, executor, gate);
    inner.shared = Some(shared);
    inner
}
