//! What outlives a process: time, gateway, clients, and what the store has acknowledged.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tollgate::clock;

use crate::clients::Clients;
use crate::dice::Dice;
use crate::gateway::Gateway;
use crate::model_ledger::Books;
use crate::setup::Setup;
use crate::tally::Tally;

/// Shared by everything in a run. It is never locked across an await.
#[derive(Clone)]
pub(crate) struct World(Arc<Mutex<State>>);

pub(crate) struct State {
    pub(crate) setup: Setup,
    pub(crate) time: Time,
    pub(crate) books: Books,
    pub(crate) gateway: Gateway,
    pub(crate) clients: Clients,
    /// The range of store operations that fail.
    pub(crate) refused: (u64, u64),
    pub(crate) operations: u64,
    /// The number of the process.
    pub(crate) life: u64,
    /// When this process read the balance, if the clock was not set since.
    pub(crate) balance_read_at: Option<Duration>,
    pub(crate) tally: Tally,
    trace: Option<Vec<String>>,
    broken: Option<String>,
}

/// The time since the start of the run, independent of the wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Time {
    before: Duration,
    life: Option<clock::Instant>,
}

impl Time {
    /// Starts a process, whose runtime must be entered.
    pub(crate) fn begin(&mut self) {
        self.life = Some(clock::now());
    }

    /// Ends the process, followed by a pause.
    pub(crate) fn end(&mut self, pause: Duration) {
        self.before = self.now() + pause;
        self.life = None;
    }

    pub(crate) fn now(&self) -> Duration {
        self.before + self.life.map(|life| clock::now() - life).unwrap_or_default()
    }
}

impl World {
    pub(crate) fn new(setup: Setup, dice: Dice, is_traced: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            time: Time::default(),
            books: Books::new(setup.limits),
            gateway: Gateway::new(&setup, dice),
            clients: Clients::default(),
            refused: (0, 0),
            operations: 0,
            life: 0,
            balance_read_at: None,
            tally: Tally::default(),
            trace: is_traced.then(Vec::new),
            broken: None,
            setup,
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it holds the world")
    }
}

impl State {
    pub(crate) fn now(&self) -> Duration {
        self.time.now()
    }

    pub(crate) fn note(&mut self, words: impl FnOnce() -> String) {
        let now = self.now();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>10.3} {}", now.as_millis(), words()));
        }
    }

    /// Records a broken guarantee. Only the first one is reported.
    pub(crate) fn broken(&mut self, words: impl Into<String>) {
        let words = words.into();
        self.note(|| format!("BROKEN: {words}"));
        self.broken.get_or_insert(words);
    }

    pub(crate) fn hold(&mut self, guarantee: Result<(), String>) {
        if let Err(words) = guarantee {
            self.broken(words);
        }
    }

    pub(crate) fn is_broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    pub(crate) fn take_trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }
}
