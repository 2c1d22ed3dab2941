//! A ledger with a clock that the test winds, and purchases made in a line.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tollgate::contract::money::Usd;
use tollgate::store::memory::Memory;
use tollgate::store::sqlite::Sqlite;
use tollgate::store::{
    Claim, Clock, Earlier, Ending, Identity, KeptReply, Ledger, Limits, PurchaseId, Refused,
    Reservation, Room, Scope, Service, Spent, State, Twin,
};

/// 2025-11-20, noon.
pub const START: Duration = Duration::from_secs(1_763_640_000);
pub const SECOND: Duration = Duration::from_secs(1);
pub const HOUR: Duration = Duration::from_secs(3_600);
pub const DAY: Duration = Duration::from_secs(86_400);
pub const TOLL: Usd = Usd::mills(6);

pub struct Desk {
    pub ledger: Arc<dyn Ledger>,
    time: Arc<Mutex<Duration>>,
    folder: Option<TempDir>,
}

impl Desk {
    pub fn in_memory(room: Room) -> Self {
        let time = Arc::new(Mutex::new(START));
        Self { ledger: Arc::new(Memory::with_room(clock(&time), room)), time, folder: None }
    }

    pub fn on_disk(room: Room) -> Self {
        let time = Arc::new(Mutex::new(START));
        let folder = tempfile::tempdir().expect("a folder");
        let ledger = Sqlite::serve_within(&folder.path().join("ledger.db"), clock(&time), room);
        Self { ledger: Arc::new(ledger.expect("a new ledger")), time, folder: Some(folder) }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.as_ref().expect("on disk").path().join("ledger.db")
    }

    pub fn clock(&self) -> Clock {
        clock(&self.time)
    }

    /// Ends the server and starts it again, where the store outlives it.
    pub fn restart(&mut self) {
        self.ledger = Arc::new(tollgate::store::Broken("restarting".into()));
        self.ledger = Arc::new(Sqlite::serve(&self.path(), self.clock()).expect("it opens again"));
    }

    pub fn now(&self) -> Duration {
        *self.time.lock().expect("the clock")
    }

    pub fn set(&self, time: Duration) {
        *self.time.lock().expect("the clock") = time;
    }

    pub fn pass(&self, time: Duration) {
        self.set(self.now() + time);
    }

    pub async fn reserve(&self, asked: &Reservation) -> Result<(), Refused> {
        bounded(self.ledger.reserve(asked)).await
    }

    /// Reserves and sends.
    pub async fn send(&self, asked: &Reservation) -> PurchaseId {
        self.reserve(asked).await.expect("set aside");
        bounded(self.ledger.sent(asked.id)).await.expect("marked");
        asked.id
    }

    /// Buys for the toll that was expected.
    pub async fn buy(&self, asked: &Reservation, body: &str) -> PurchaseId {
        let id = self.send(asked).await;
        self.settle(id, posted(asked.toll, body)).await;
        id
    }

    pub async fn settle(&self, id: PurchaseId, ending: Ending) {
        bounded(self.ledger.settle(id, ending)).await.expect("settled");
    }

    pub async fn known(&self, asked: &Reservation) -> Earlier {
        match self.reserve(asked).await {
            Err(Refused::Known(earlier)) => earlier,
            other => panic!("expected it to be known, not {other:?}"),
        }
    }

    pub async fn total(&self) -> Spent {
        bounded(self.ledger.spent(Scope::Total)).await.expect("counted")
    }

    pub async fn of(&self, caller: &str) -> Spent {
        bounded(self.ledger.spent(Scope::Caller(caller.into()))).await.expect("counted")
    }

    pub async fn states(&self) -> Vec<State> {
        let rows = bounded(self.ledger.rows(Duration::ZERO)).await.expect("rows");
        rows.into_iter().map(|row| row.state).collect()
    }
}

fn clock(time: &Arc<Mutex<Duration>>) -> Clock {
    let time = Arc::clone(time);
    Arc::new(move || *time.lock().expect("the clock"))
}

/// No answer takes longer than this.
pub async fn bounded<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), answer).await.expect("an answer in time")
}

pub fn copy_of(ledger: &Path, to: &Path) {
    for ending in ["", "-wal"] {
        let from = PathBuf::from(format!("{}{ending}", ledger.display()));
        if from.exists() {
            std::fs::copy(from, format!("{}{ending}", to.display())).expect("copied");
        }
    }
}

pub fn identity(name: &str) -> Identity {
    let mut identity = [0; 32];
    identity[..name.len()].copy_from_slice(name.as_bytes());
    identity
}

/// A purchase that resembles no other.
pub fn asked(caller: &str, toll: Usd) -> Reservation {
    let id = PurchaseId::new();
    let mut likeness = [0; 32];
    likeness[16..].copy_from_slice(id.0.as_bytes());
    let claim = Claim::Twin(Twin { likeness, since: START, is_retry: false });
    Reservation {
        id,
        caller: caller.into(),
        service: Service::Chat,
        model: "alpha".into(),
        toll,
        claim,
        limits: Limits::default(),
    }
}

pub fn keyed(key: &str, payload: &str) -> Reservation {
    let claim = Claim::Key { key: identity(key), payload: identity(payload) };
    Reservation { claim, ..asked("ann", TOLL) }
}

pub fn twin(likeness: &str, since: Duration, is_retry: bool) -> Reservation {
    let claim = Claim::Twin(Twin { likeness: identity(likeness), since, is_retry });
    Reservation { claim, ..asked("ann", TOLL) }
}

pub fn reply(body: &str) -> KeptReply {
    KeptReply { status: 200, is_json: true, body: body.to_owned().into() }
}

pub fn posted(cost: Usd, body: &str) -> Ending {
    Ending::Posted { cost, reply: Some(reply(body)), keep: 24 * HOUR }
}

/// Runs each promise on each backend, with the usual room.
macro_rules! on_every_backend {
    ($($promise:ident),+ $(,)?) => {
        mod memory {
            $(#[tokio::test] async fn $promise() {
                super::$promise($crate::desk::Desk::in_memory(Default::default())).await;
            })+
        }
        mod sqlite {
            $(#[tokio::test] async fn $promise() {
                super::$promise($crate::desk::Desk::on_disk(Default::default())).await;
            })+
        }
    };
}
pub(crate) use on_every_backend;
