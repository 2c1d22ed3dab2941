//! The database, the ledger's clock, and what the checks read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls, Statement};
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{Clock, PurchaseId};
use uuid::Uuid;

use crate::cluster::{Cluster, Database};

const CLEAR: &str = "
DELETE FROM replies; DELETE FROM purchases; DELETE FROM spent; DELETE FROM slots; DELETE FROM batches;
UPDATE credit SET held = 0, spent = 0;
UPDATE ledger SET blocked_until = 0, batch = '';";
const PURCHASES: &str =
    "SELECT id, state, coalesce(cost_micros, price_micros) FROM purchases ORDER BY number";
/// Counters that are not the sum of the purchases of their period.
const WRONG_COUNTERS: &str = "
WITH counted AS (
    SELECT caller, day, month, CASE state WHEN 'released' THEN 0
        ELSE coalesce(cost_micros, price_micros) END AS micros
    FROM purchases
), sums AS (
    SELECT scope, unit, period, sum(micros) AS micros
    FROM counted, LATERAL (VALUES ('total', 'day', day), ('total', 'month', month),
        ('caller ' || caller, 'day', day), ('caller ' || caller, 'month', month))
        AS c(scope, unit, period)
    GROUP BY scope, unit, period
)
SELECT count(*) FROM sums FULL JOIN spent USING (scope, unit, period)
WHERE coalesce(sums.micros, 0) <> coalesce(spent.micros, 0)";
const OPEN: &str = "SELECT (SELECT count(*) FROM purchases WHERE ended_at IS NULL)
    + (SELECT count(*) FROM slots WHERE replied IS NULL)";
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'";

/// A purchase as the ledger has it.
pub(super) struct Row {
    pub(super) id: PurchaseId,
    pub(super) state: String,
    /// Its cost, or its price.
    pub(super) micros: Usd,
}

pub(super) struct Ledger {
    runtime: Runtime,
    client: Client,
    statements: [Statement; 4],
    database: Database<'static>,
    /// The time, in milliseconds.
    now: Arc<AtomicU64>,
}

impl Ledger {
    /// Makes a database whose tables are those of a new store.
    pub(super) fn new(make_tables: impl FnOnce(&Database<'static>)) -> Self {
        let database = Cluster::shared().database();
        make_tables(&database);
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (client, statements) = runtime.block_on(async {
            let connected = tokio_postgres::connect(&database.url(), NoTls).await;
            let (client, connection) = connected.expect("the database listens");
            tokio::spawn(connection);
            let mut prepared = Vec::new();
            for sql in [PURCHASES, WRONG_COUNTERS, OPEN, WAITING] {
                prepared.push(client.prepare(sql).await.expect("SQL"));
            }
            (client, prepared.try_into().expect("four"))
        });
        Self { runtime, client, statements, database, now: Arc::default() }
    }

    pub(super) fn database(&self) -> &Database<'static> {
        &self.database
    }

    /// Returns the ledger's clock, as a process sees it that is so far ahead.
    pub(super) fn clock(&self, ahead: Duration) -> Clock {
        let now = Arc::clone(&self.now);
        Arc::new(move || Duration::from_millis(now.load(Ordering::Relaxed)) + ahead)
    }

    pub(super) fn set_time(&self, now: Duration) {
        let millis = now.as_millis().try_into().expect("this century");
        self.now.store(millis, Ordering::Relaxed);
    }

    /// Removes what an earlier run has left.
    pub(super) fn clear(&self) {
        self.runtime.block_on(self.client.batch_execute(CLEAR)).expect("cleared");
    }

    pub(super) fn purchases(&self) -> Vec<Row> {
        let rows = self.runtime.block_on(self.client.query(&self.statements[0], &[]));
        let read = |row: &tokio_postgres::Row| Row {
            id: PurchaseId(Uuid::from_slice(row.get(0)).expect("an id")),
            state: row.get(1),
            micros: Usd::micros(row.get::<_, i64>(2).try_into().expect("positive")),
        };
        rows.expect("read").iter().map(read).collect()
    }

    pub(super) fn state(&self, id: PurchaseId) -> String {
        let found = self.purchases().into_iter().find(|row| row.id == id);
        found.map_or_else(|| "missing".to_owned(), |row| row.state)
    }

    pub(super) fn wrong_counters(&self) -> i64 {
        self.count(&self.statements[1])
    }

    /// Returns how many purchases and slots are open.
    pub(super) fn open(&self) -> i64 {
        self.count(&self.statements[2])
    }

    /// Returns whether a process waits for another one's transaction.
    pub(super) fn is_waited_for(&self) -> bool {
        self.count(&self.statements[3]) > 0
    }

    fn count(&self, statement: &Statement) -> i64 {
        self.runtime.block_on(self.client.query_one(statement, &[])).expect("read").get(0)
    }
}
