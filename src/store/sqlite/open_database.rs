//! Opens a ledger in a database that servers share.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::command_gate::CommandGate;
use super::command_queue::CommandReceiver;
use super::handle::{Executor, SharedLedger, SqliteStore, StoreInner};
use super::ledger::Ledger;
use super::open::{begin, spawn};
use super::reader::ReportReader;
use super::writer::Writer;
use crate::metrics::SharedLedgerMetrics;
use crate::store::postgres::{LedgerClock, PostgresEngine, PostgresSession, PostgresTarget};
use crate::store::{Clock, Reason, StoreCapacity};

impl SqliteStore {
    /// Connects, and makes the tables if there are none. With a `clock`, the ledger's time is that of a
    /// test, not the database's.
    pub(in crate::store) async fn open_database(
        target: PostgresTarget,
        clock: Option<Clock>,
    ) -> Result<Self, Reason> {
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
                    begin(&ledger, Some(money), None)?;
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
        let store = Self::from_inner(inner);
        opened.await.unwrap_or_else(|_| Err("the ledger's thread has ended".into()))?;
        Ok(store)
    }
}
