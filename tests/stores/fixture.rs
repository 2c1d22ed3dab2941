//! A ledger with a clock that the test winds, and purchases made in a line.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::postgres::{InstanceKind, PostgresTarget};
use tollgate::ledger::{
    AccountStatus, BudgetScope, Budgets, Clock, Deadlines, DedupeKey, Digest, DuplicateCheck,
    EarlierReply, ExistingPurchase, KeptReply, MoneyKind, OpenError, Opening, PeriodSpend,
    PurchaseId, PurchaseRecord, PurchaseState, Reservation, ReserveError, ServerOptions, Service,
    Settlement, SlotId, SlotLimit, SlotRate, Store, StoreCapacity, WantedSlot,
};

use crate::cluster::{Cluster, Database};
use crate::moment::PATIENCE;

/// Opens a file as the program does: the time since boot is the system's.
pub(crate) async fn start_serving(
    path: &Path,
    clock: Clock,
) -> Result<(Store, Opening), OpenError> {
    Store::start_serving(path, clock, ServerOptions::new(MoneyKind::Play)).await
}

/// 2025-11-20, noon.
pub(crate) const START: Duration = Duration::from_secs(1_763_640_000);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);
pub(crate) const PRICE: Usd = Usd::mills(6);

pub(crate) struct Fixture {
    pub(crate) store: Store,
    time: Arc<Mutex<Duration>>,
    folder: Option<TempDir>,
    /// Dropped after the store, which signs off.
    database: Option<Database<'static>>,
}

impl Fixture {
    pub(crate) fn in_memory(capacity: StoreCapacity) -> Self {
        let time = Arc::new(Mutex::new(START));
        let store = Store::in_memory_with_capacity(clock(&time), capacity);
        Self { store, time, folder: None, database: None }
    }

    pub(crate) fn on_disk(capacity: StoreCapacity) -> Self {
        let time = Arc::new(Mutex::new(START));
        let folder = tempfile::tempdir().expect("a folder");
        let store =
            Store::serve_with(&folder.path().join("ledger.db"), clock(&time), capacity, None);
        let store = store.expect("a new ledger");
        Self { store, time, folder: Some(folder), database: None }
    }

    pub(crate) async fn on_postgres() -> Self {
        let database = Cluster::shared().database();
        let time = Arc::new(Mutex::new(START));
        let store = open_database(&database.url(), clock(&time)).await;
        Self { store, time, folder: None, database: Some(database) }
    }

    pub(crate) fn database(&self) -> &Database<'static> {
        self.database.as_ref().expect("on PostgreSQL")
    }

    /// Opens the shared store once more, as another server does.
    pub(crate) async fn join(&self) -> Store {
        self.join_at(&self.database().url()).await
    }

    /// The same, over a wire of the test's.
    pub(crate) async fn join_at(&self, url: &str) -> Store {
        open_database(url, self.clock()).await
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.as_ref().expect("on disk").path().join("ledger.db")
    }

    pub(crate) fn clock(&self) -> Clock {
        clock(&self.time)
    }

    /// Ends the server and starts it again, where the store outlives it.
    pub(crate) fn restart(&mut self) {
        self.restart_with(StoreCapacity::default());
    }

    pub(crate) fn restart_with(&mut self, capacity: StoreCapacity) {
        self.stop();
        let store = Store::serve_with(&self.path(), self.clock(), capacity, None);
        self.take(store.expect("it opens again"));
    }

    /// Ends what runs, as the next start does after a crash. The shared ledger lives on.
    pub(crate) async fn crash_and_recover(&mut self, capacity: StoreCapacity) {
        if self.database.is_some() {
            self.stop();
            self.database().sql("UPDATE purchases SET deadline = 0 WHERE ended_at IS NULL");
            self.store = self.join().await;
        } else if self.folder.is_some() {
            self.restart_with(capacity);
        } else {
            bounded(self.store.recover()).await.expect("recovered");
        }
    }

    /// Signs off, and joins again.
    pub(crate) async fn rejoin(&mut self) {
        self.stop();
        self.store = self.join().await;
    }

    pub(crate) fn stop(&mut self) {
        self.take(Store::unusable("stopped"));
    }

    pub(crate) fn take(&mut self, store: Store) {
        self.store = store;
    }

    pub(crate) fn now(&self) -> Duration {
        *self.time.lock().expect("the clock")
    }

    pub(crate) fn set(&self, time: Duration) {
        *self.time.lock().expect("the clock") = time;
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.set(self.now() + time);
    }

    pub(crate) async fn reserve(&self, reservation: &Reservation) -> Result<(), ReserveError> {
        bounded(self.store.reserve(reservation)).await.map(drop)
    }

    /// Reserves, takes a slot and sends in one step.
    pub(crate) async fn reserve_and_send(
        &self,
        reservation: &Reservation,
        account: AccountStatus,
    ) -> Result<(), ReserveError> {
        let sent = self.store.reserve_and_send(reservation, wanted(u64::MAX), account);
        bounded(sent).await.map(|held| assert!(held.is_sent))
    }

    /// A purchase that is matched from `since` on.
    pub(crate) fn duplicate(
        &self,
        fingerprint: &str,
        since: Duration,
        is_retry: bool,
    ) -> Reservation {
        let (fingerprint, within) = (identity(fingerprint), self.now() - since);
        let claim = DedupeKey::Fingerprint(DuplicateCheck {
            fingerprint,
            within,
            refused_as: is_retry.then(|| vec![fingerprint]),
            separate_from: Vec::new(),
        });
        Reservation { dedupe_key: claim, ..reservation("ann", PRICE) }
    }

    /// Reserves and sends.
    pub(crate) async fn send(&self, reservation: &Reservation) -> PurchaseId {
        self.reserve(reservation).await.expect("set aside");
        bounded(self.store.mark_sent(reservation.id, AccountStatus::Confirmed))
            .await
            .expect("marked");
        reservation.id
    }

    /// Buys for the price that was expected.
    pub(crate) async fn buy(&self, reservation: &Reservation, body: &str) -> PurchaseId {
        let id = self.send(reservation).await;
        self.settle(id, charged(reservation.price, body)).await;
        id
    }

    pub(crate) async fn settle(&self, id: PurchaseId, ending: Settlement) {
        bounded(self.store.settle(id, ending)).await.expect("settled");
    }

    pub(crate) async fn known(&self, reservation: &Reservation) -> ExistingPurchase {
        match self.reserve(reservation).await {
            Err(ReserveError::Duplicate(earlier)) => earlier,
            other => panic!("expected it to be known, not {other:?}"),
        }
    }

    /// What a repeat is answered with.
    pub(crate) async fn replayed(&self, reservation: &Reservation) -> Option<KeptReply> {
        let earlier = self.known(reservation).await;
        let reply = bounded(self.store.reply(earlier.id)).await.expect("looked up");
        match earlier.reply {
            EarlierReply::NotKept => None,
            EarlierReply::Kept { bytes } => {
                assert_eq!(Some(bytes), reply.as_ref().map(|reply| reply.body.len()));
                reply
            }
            EarlierReply::Read(early) => {
                assert_eq!(Some(&early), reply.as_ref());
                reply
            }
        }
    }

    pub(crate) async fn total(&self) -> PeriodSpend {
        bounded(self.store.current_spend(BudgetScope::Total)).await.expect("counted")
    }

    pub(crate) async fn of(&self, caller: &str) -> PeriodSpend {
        self.spent(BudgetScope::Caller(caller.into())).await
    }

    pub(crate) async fn spent(&self, scope: BudgetScope) -> PeriodSpend {
        bounded(self.store.current_spend(scope)).await.expect("counted")
    }

    pub(crate) async fn rows(&self) -> Vec<PurchaseRecord> {
        bounded(self.store.purchases_since(Duration::ZERO)).await.expect("rows")
    }

    pub(crate) async fn states(&self) -> Vec<PurchaseState> {
        self.rows().await.into_iter().map(|row| row.state).collect()
    }
}

async fn open_database(url: &str, clock: Clock) -> Store {
    let mut target = target(url);
    // Tests wind the clock by days while a purchase runs.
    target.deadlines = Deadlines { held: 36_500 * DAY, sent: 36_500 * DAY };
    let opened = bounded(Store::open_database(target.with_patience(PATIENCE), Some(clock))).await;
    opened.expect("it opens")
}

/// Returns the database of a server with play money.
pub(crate) fn target(url: &str) -> PostgresTarget {
    let target = PostgresTarget::parse(url, MoneyKind::Play, InstanceKind::Server);
    target.expect("an address").with_instance_name("test".to_owned())
}

fn clock(time: &Arc<Mutex<Duration>>) -> Clock {
    let time = Arc::clone(time);
    Arc::new(move || *time.lock().expect("the clock"))
}

/// No answer takes longer than this.
pub(crate) async fn bounded<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, answer).await.expect("an answer in time")
}

/// Copies a ledger that may be open. Another process does it: closing the file in this one would drop
/// the locks that SQLite holds on it.
pub(crate) fn copy(ledger: &Path, to: &Path) {
    for ending in ["", "-wal", ".lock"] {
        let from = beside(ledger, ending);
        if from.exists() {
            let copied = Command::new("cp").arg(from).arg(beside(to, ending)).status();
            assert!(copied.expect("cp").success());
        }
    }
}

pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    PathBuf::from(format!("{}{ending}", path.display()))
}

pub(crate) fn identity(name: &str) -> Digest {
    let mut identity = [0; 32];
    identity[..name.len()].copy_from_slice(name.as_bytes());
    identity
}

/// A purchase that resembles no other.
pub(crate) fn reservation(caller: &str, price: Usd) -> Reservation {
    let id = PurchaseId::generate();
    let mut fingerprint = [0; 32];
    fingerprint[16..].copy_from_slice(id.0.as_bytes());
    let claim = DedupeKey::Fingerprint(DuplicateCheck {
        fingerprint,
        within: Duration::MAX,
        refused_as: None,
        separate_from: Vec::new(),
    });
    Reservation {
        id,
        caller: caller.into(),
        service: Service::Chat,
        model: "alpha".into(),
        price,
        dedupe_key: claim,
        group: None,
        token: None,
        budgets: Budgets::default(),
        attempt: 0,
        replay_only: false,
        requires: Default::default(),
    }
}

pub(crate) fn keyed(key: &str, payload: &str) -> Reservation {
    let claim = DedupeKey::IdempotencyKey { key: identity(key), payload: identity(payload) };
    Reservation { dedupe_key: claim, ..reservation("ann", PRICE) }
}

/// Returns a new slot under a limit of so many requests a minute.
pub(crate) fn wanted(requests: u64) -> WantedSlot {
    let rate = SlotRate { requests, period: Duration::from_secs(60) };
    WantedSlot { id: SlotId::generate(), limit: SlotLimit { fixed: Some(rate), assumed: rate } }
}

/// The price of so many purchases.
pub(crate) fn times(count: u64) -> Usd {
    Usd::micros(PRICE.as_micros() * count)
}

pub(crate) fn reply(body: &str) -> KeptReply {
    KeptReply { status: 200, is_json: true, body: body.to_owned().into() }
}

pub(crate) fn charged(cost: Usd, body: &str) -> Settlement {
    Settlement::Charged { cost, reply: Some(reply(body)), keep: 24 * HOUR, job: None }
}

/// Runs each test in memory and on PostgreSQL, with the usual capacity.
macro_rules! on_every_backend {
    ($($test:ident),+ $(,)?) => {
        mod memory {
            $(#[tokio::test] async fn $test() {
                super::$test($crate::fixture::Fixture::in_memory(Default::default())).await;
            })+
        }
        mod postgres {
            $(#[tokio::test] async fn $test() {
                super::$test($crate::fixture::Fixture::on_postgres().await).await;
            })+
        }
    };
}
pub(crate) use on_every_backend;
