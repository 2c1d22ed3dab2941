//! Opens a ledger in a database that servers share.

use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::command_gate::CommandGate;
use super::command_queue::CommandReceiver;
use super::handle::{Executor, SqliteStore, StoreInner};
use super::ledger::Ledger;
use super::open::{begin, spawn};
use super::writer::Writer;
use crate::clock::simulated_since_boot;
use crate::store::postgres::{LedgerClock, PostgresEngine, PostgresTarget};
use crate::store::{Clock, Reason, StoreCapacity};

impl SqliteStore {
    /// Connects, and makes the tables if there are none. With a `clock`, the ledger's time is that of a
    /// test, not the database's.
    pub(in crate::store) async fn open_database(
        target: PostgresTarget,
        clock: Option<Clock>,
    ) -> Result<Self, Reason> {
        let parts = Parts::new(target, clock);
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        let (send, opened) = oneshot::channel();
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
        let store = Self::from_inner(parts.inner(executor));
        opened.await.unwrap_or_else(|_| Err("the ledger's thread has ended".into()))?;
        Ok(store)
    }

    /// Runs each operation on the caller's thread, which must not be a runtime's, for a simulation: its
    /// time since boot is that of the runtime that the caller has entered.
    pub(in crate::store) fn open_database_inline(
        target: PostgresTarget,
        clock: Clock,
    ) -> Result<Self, Reason> {
        let parts = Parts::new(target, Some(clock));
        let executor = Executor::Inline(Box::new(Mutex::new(parts.connect()?)));
        let mut inner = parts.inner(executor);
        inner.since_boot = simulated_since_boot;
        Ok(Self::from_inner(inner))
    }
}

/// What the writer and the handle share.
#[derive(Clone)]
struct Parts {
    target: PostgresTarget,
    clock: Arc<LedgerClock>,
    gate: CommandGate,
    name: Arc<Mutex<Arc<str>>>,
}

impl Parts {
    fn new(target: PostgresTarget, clock: Option<Clock>) -> Self {
        let clock = Arc::new(LedgerClock::new(clock));
        Self { target, clock, gate: CommandGate::opened(), name: Arc::default() }
    }

    fn connect(&self) -> Result<Writer, Reason> {
        let Self { target, clock, gate, name } = self.clone();
        let money = target.money;
        let engine = PostgresEngine::open(target, clock, name, &gate)?;
        let ledger = Ledger::new(Box::new(engine), StoreCapacity::default());
        begin(&ledger, Some(money), None)?;
        Ok(Writer::new(ledger, &gate))
    }

    fn inner(self, executor: Executor) -> StoreInner {
        let Self { target, clock, gate, name } = self;
        let clock = Arc::new(move || clock.now());
        let mut inner = StoreInner::new(Path::new(""), clock, executor, gate);
        (inner.name, inner.deadlines) = (name, Some(target.deadlines));
        inner
    }
}
