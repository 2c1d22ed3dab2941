//! Opens a ledger in a database that servers share.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::clock::LedgerClock;
use super::engine::PostgresEngine;
use super::session::PostgresSession;
use super::target::PostgresTarget;
use crate::metrics::SharedLedgerMetrics;
use crate::store::handle::{Executor, SharedLedger, StoreInner};
use crate::store::sqlite::spawn;
use crate::store::tables::Ledger;
use crate::store::writer::{CommandGate, CommandReceiver, ReportReader, Writer};
use crate::store::{Clock, MoneyKind, OpenError, Reason, Store, StoreCapacity};

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
        Self::connect(target, clock).await.map_err(OpenError::Unusable)
    }

    async fn connect(target: PostgresTarget, clock: Option<Clock>) -> Result<Self, Reason> {
        let (path, deadlines) = (Path::new(""), target.deadlines);
        let gate = CommandGate::opened();
        let metrics = SharedLedgerMetrics::default();
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        let clock = Arc::new(LedgerClock::new(clock));
        let (send, opened) = oneshot::channel();
        let name = Arc::default();
        let reports = ReportReader::start(PostgresSession::new(target.clone())?)?;
        let work = {
            let (clock, gate, name) = (Arc::clone(&clock), gate.clone(), Arc::clone(&name));
            let metrics = metrics.clone();
            move || {
                let money = target.money;
                let shared = (&gate, &metrics);
                let ledger = PostgresEngine::open(target, clock, name, shared).and_then(|engine| {
                    let mut ledger = Ledger::new(Box::new(engine), StoreCapacity::default());
                    ledger.metrics = metrics.clone();
                    start(&ledger, money)?;
                    Ok(ledger)
                });
                match ledger {
                    Ok(ledger) => {
                        if send.send(Ok(())).is_ok() {
                            Writer::new(ledger, &gate).run(&commands);
                        }
                    }
                    Err(reason) => drop(send.send(Err(reason))),
                }
            }
        };
        let executor = Executor::Thread { queue, thread: spawn(path, work)? };
        let mut inner = StoreInner::new(path, Arc::new(move || clock.now()), executor, gate);
        inner.name = name;
        inner.report_reader = Some(reports);
        inner.shared = Some(SharedLedger { deadlines, metrics });
        let store = Self::new(inner);
        opened.await.unwrap_or_else(|_| Err("the ledger's thread has ended".into()))?;
        Ok(store)
    }
}

/// Binds the ledger to its kind of money. Purchases that run may be those of other servers.
fn start(ledger: &Ledger, money: MoneyKind) -> Result<(), Reason> {
    ledger.begin(true)?;
    ledger.ensure_money_kind(money)?;
    ledger.commit()?;
    Ok(())
}
