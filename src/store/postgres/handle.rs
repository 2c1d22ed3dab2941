//! The handle of a PostgreSQL store, and the thread that its connections live on.
//!
//! They outlive the runtimes of callers: each core of a server has its own, and ends it by itself.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, thread};

use futures_util::future::BoxFuture;
use tokio::sync::{oneshot, watch};
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresTarget;
use super::clock::LedgerClock;
use super::cluster;
use super::column::{self, Read};
use super::connect::connect;
use super::flush::PreparedConnection;
use super::instance;
use super::lane::{Lane, LaneQueue};
use super::lanes::{Lanes, SALES};
use super::moved;
use super::schema;
use super::shared::Shared;
use super::step::{Statement, Step, StepRows, statement};
use crate::clock;
use crate::metrics::{Histogram, SharedLedgerMetrics};
use crate::store::{Cause, Clock, LockHolder, PurchaseId, Reason, Unavailable};
use crate::sync::lock;

/// Dropping the last clone waits until everything that is queued was written.
#[derive(Clone)]
pub(in crate::store) struct PostgresStore {
    inner: Arc<PostgresInner>,
}

struct PostgresInner {
    shared: Arc<Shared>,
    lanes: Lanes,
    stop: watch::Sender<bool>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl PostgresStore {
    /// Connects, makes or migrates the tables, and joins the instances of the ledger.
    ///
    /// With a `clock`, the ledger's time is that of a test, not the database's.
    pub(in crate::store) async fn open(
        target: PostgresTarget,
        clock: Option<Clock>,
    ) -> Result<Self, Reason> {
        Self::open_with(target, clock, clock::since_boot, |work| spawn(work).map(Some)).await
    }

    /// The same on the caller's runtime: its time is the store's, and its end is a crash.
    pub(in crate::store) async fn open_here(target: PostgresTarget) -> Result<Self, Reason> {
        let spawn_here = |work| {
            tokio::spawn(work);
            Ok(None)
        };
        Self::open_with(target, None, clock::simulated_since_boot, spawn_here).await
    }

    async fn open_with(
        target: PostgresTarget,
        clock: Option<Clock>,
        since_boot: fn() -> Duration,
        start: impl FnOnce(BoxFuture<'static, ()>) -> Result<Option<thread::JoinHandle<()>>, Reason>,
    ) -> Result<Self, Reason> {
        let shared = Arc::new(Shared::new(target, LedgerClock::new(clock), since_boot));
        let (stop, stopped) = watch::channel(false);
        let (lanes, all) = Lanes::new(&shared, &stopped);
        let (opened, is_open) = oneshot::channel();
        let work = run(Arc::clone(&shared), lanes.clone(), all, stopped, opened);
        let thread = start(Box::pin(work))?;
        // A caller that goes away drops the store, which ends the thread.
        let inner = PostgresInner { shared, lanes, stop, thread: Mutex::new(thread) };
        let store = Self { inner: Arc::new(inner) };
        is_open.await.unwrap_or_else(|_| Err("the ledger's thread has ended".into()))?;
        Ok(store)
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    pub(super) fn lanes(&self) -> &Lanes {
        &self.inner.lanes
    }

    /// Runs a step on a lane.
    pub(super) async fn run(&self, lane: &LaneQueue, step: Step) -> Result<StepRows, Unavailable> {
        self.lanes().request(lane, step).await
    }

    /// Asks on the connection of heartbeats, which answers in order.
    pub(in crate::store) async fn heartbeats_answered(&self) -> Result<(), Unavailable> {
        self.run(&self.lanes().pulse, Step::plain(statement!("SELECT 1"))).await.map(drop)
    }

    /// Returns the rows of a query, as `read` converts them.
    pub(super) async fn query<T>(
        &self,
        lane: &LaneQueue,
        statement: Statement,
        read: impl Fn(&Row) -> Read<T>,
    ) -> Result<Vec<T>, Unavailable> {
        let rows = self.lanes().read(lane, statement).await?;
        rows.iter().flatten().map(read).collect()
    }

    pub(super) async fn query_one<T>(
        &self,
        lane: &LaneQueue,
        statement: Statement,
        read: impl Fn(&Row) -> Read<T>,
    ) -> Result<Option<T>, Unavailable> {
        Ok(self.query(lane, statement, read).await?.into_iter().next())
    }

    pub(in crate::store) fn now(&self) -> Duration {
        self.shared().clock.now()
    }

    pub(in crate::store) fn name(&self) -> Arc<str> {
        Arc::clone(&lock(&self.shared().name))
    }

    pub(in crate::store) fn commit_durations(&self) -> Histogram {
        self.shared().commits.clone()
    }

    pub(in crate::store) fn metrics(&self) -> SharedLedgerMetrics {
        let Shared { metrics, lease, since_boot, .. } = self.shared();
        let seconds = lease.remaining(since_boot()).as_secs();
        metrics.lease_seconds.set(i64::try_from(seconds).unwrap_or(i64::MAX));
        metrics.clone()
    }

    /// The name has the time of the loss for which the ledger was renamed; the first one has none.
    pub(in crate::store) fn may_lack_purchases_since(&self, complete_at: Duration) -> bool {
        let name = self.name();
        let id = name.rsplit('-').next().and_then(|id| Uuid::try_parse(id).ok());
        let lost_at = id.and_then(|id| id.get_timestamp()).map(|stamp| stamp.to_unix());
        lost_at.is_some_and(|(secs, nanos)| Duration::new(secs, nanos) > complete_at)
    }

    pub(in crate::store) fn may_send(&self, id: PurchaseId) -> bool {
        self.shared().may_send(id)
    }

    pub(in crate::store) fn is_unusable(&self) -> bool {
        false
    }

    pub(in crate::store) fn is_starting(&self) -> bool {
        false
    }

    /// Other instances are no obstacle.
    pub(in crate::store) fn lock_holder(&self) -> Option<LockHolder> {
        None
    }

    /// Returns an error if a purchase cannot be recorded now.
    pub(super) fn check_capacity(&self) -> Result<(), Unavailable> {
        self.shared().check_reached()?;
        if self.shared().is_retry_queue_full.load(Ordering::Relaxed) {
            return Err(Unavailable("too many purchases wait to be recorded".into()));
        }
        Ok(())
    }

    pub(in crate::store) fn close(&self) {
        self.inner.close();
    }
}

impl PostgresInner {
    fn close(&self) {
        self.stop.send_replace(true);
        if let Some(thread) = lock(&self.thread).take() {
            thread.join().ok();
        }
    }
}

impl Drop for PostgresInner {
    fn drop(&mut self) {
        self.close();
    }
}

fn spawn(
    work: impl Future<Output = ()> + Send + 'static,
) -> Result<thread::JoinHandle<()>, Reason> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let thread = thread::Builder::new().name("ledger".to_owned());
    Ok(thread.spawn(move || runtime.block_on(work))?)
}

async fn run(
    shared: Arc<Shared>,
    lanes: Lanes,
    all: [Lane; 5],
    mut stop: watch::Receiver<bool>,
    opened: oneshot::Sender<Result<(), Reason>>,
) {
    let joined = tokio::select! {
        joined = join(&shared) => joined,
        _ = stop.wait_for(|stop| *stop) => return,
    };
    let is_joined = joined.is_ok();
    opened.send(joined).ok();
    if !is_joined {
        return;
    }
    let beats = tokio::spawn(instance::pulse(Arc::clone(&shared), lanes, stop.clone()));
    let [sales, others @ ..] = all.map(|lane| tokio::spawn(lane.run()));
    // A lane that ends by itself has panicked.
    let session = sales.await.ok().flatten();
    for lane in others {
        if let Ok(Some(session)) = lane.await {
            session.close().await;
        }
    }
    beats.await.ok();
    if let Some(mut session) = session {
        let farewell = [instance::farewell(&shared)];
        if let Err(error) = session.flush(SALES, schema::NEWEST, &farewell).await {
            tracing::warn!(?error, "instance not signed off; others wait for its lease");
        }
        session.close().await;
    }
}

/// Prepares the tables and registers this instance, with a connection of its own.
async fn join(shared: &Shared) -> Result<(), Reason> {
    let connection = connect(&shared.target).await?;
    let session = PreparedConnection::new(connection, Arc::clone(&shared.clock));
    schema::prepare(&session, shared.target.may_migrate).await?;
    moved::ensure_here(&session, shared.target.reads_only).await?;
    if !shared.target.reads_only {
        cluster::check_cluster(&session, &shared.target).await?;
    }
    let money = shared.target.money.name();
    let bind = statement!(
        "UPDATE store SET money = coalesce(money, $1) RETURNING name, money = $1",
        money.to_owned(),
    );
    let rows = session.query(bind.sql, &bind.values).await?;
    let row = rows.first().ok_or("its table `store` is empty")?;
    if !row.try_get::<_, bool>(1)? {
        let why = "it holds the other kind of money; use separate databases for play money and real money";
        return Err(Reason::new(Cause::Other, why));
    }
    shared.join_ledger(column::text(row, 0).map_err(|error| error.0)?);
    instance::register(&session, shared).await?;
    session.close().await;
    Ok(())
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("target", &self.shared().target)
            .finish_non_exhaustive()
    }
}
