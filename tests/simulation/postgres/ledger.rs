//! The database, its clock, and what the checks read of it.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls};
use tollgate::contract::money::Usd;
use tollgate::store::PurchaseId;
use uuid::Uuid;

use crate::cluster::{Cluster, Database};

/// Statements of the store find this clock before the database's own. A process may see it with a
/// deviation.
const CLOCK: &str = "
CREATE TABLE simulated_time (at timestamptz NOT NULL);
INSERT INTO simulated_time VALUES ('epoch');
CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
DECLARE set_to timestamptz;
BEGIN
  SELECT at INTO set_to FROM simulated_time;
  RETURN set_to + coalesce(current_setting('simulation.deviation', true), '0')::interval;
END $$;";
const CLEAR: &str = "
DELETE FROM replies; DELETE FROM purchases; DELETE FROM spent; DELETE FROM slots;
DELETE FROM waiting; DELETE FROM instances;
UPDATE account SET committed = 0;
UPDATE rate_limit SET blocked_until = 0, purchases_since_poll = 0, clock_moved = 0;";
const PURCHASES: &str = "
SELECT p.id, p.state, coalesce(p.cost_micros, p.price_micros), i.id IS NULL OR i.ended IS NOT NULL
FROM purchases p LEFT JOIN instances i ON i.id = p.owner ORDER BY p.number";
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
const LEFT_OPEN: &str = "
SELECT (SELECT count(*) FROM purchases WHERE ended_at IS NULL),
    (SELECT count(*) FROM slots WHERE replied IS NULL),
    (SELECT count(*) FROM instances WHERE ended IS NULL)";

/// A purchase as the ledger has it.
pub(super) struct Row {
    pub(super) id: PurchaseId,
    pub(super) state: String,
    /// Its cost, or its price.
    pub(super) micros: Usd,
    pub(super) is_owner_dead: bool,
}

/// What still runs.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) purchases: usize,
    pub(super) slots: usize,
    pub(super) instances: usize,
}

pub(super) struct Ledger {
    runtime: Runtime,
    client: Client,
    statements: [tokio_postgres::Statement; 4],
    database: Database<'static>,
}

impl Ledger {
    /// Makes a database whose tables are those of a new store.
    pub(super) fn new(make_tables: impl FnOnce(&Database<'static>)) -> Self {
        let database = Cluster::shared().database();
        database.sql(CLOCK);
        database
            .sql(&format!("ALTER DATABASE {} SET search_path = public, pg_catalog", database.name));
        make_tables(&database);
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (client, statements) = runtime.block_on(async {
            let connected = tokio_postgres::connect(&database.url(), NoTls).await;
            let (client, connection) = connected.expect("the database listens");
            tokio::spawn(connection);
            let set = "UPDATE simulated_time SET at = to_timestamp($1::bigint / 1000.0)";
            let mut prepared = Vec::new();
            for sql in [set, PURCHASES, WRONG_COUNTERS, LEFT_OPEN] {
                prepared.push(client.prepare(sql).await.expect("SQL"));
            }
            (client, prepared.try_into().expect("four"))
        });
        Self { runtime, client, statements, database }
    }

    pub(super) fn database(&self) -> &Database<'static> {
        &self.database
    }

    /// Removes what an earlier run has left.
    pub(super) fn clear(&self) {
        self.runtime.block_on(self.client.batch_execute(CLEAR)).expect("cleared");
    }

    /// Sets the clock, to the millisecond.
    pub(super) fn set_time(&self, now: Duration) {
        let millis = i64::try_from(now.as_millis()).expect("this century");
        let values: [&(dyn ToSql + Sync); 1] = [&millis];
        let set = self.client.execute(&self.statements[0], &values);
        self.runtime.block_on(set).expect("set");
    }

    pub(super) fn purchases(&self) -> Vec<Row> {
        let rows = self.runtime.block_on(self.client.query(&self.statements[1], &[]));
        let read = |row: &tokio_postgres::Row| Row {
            id: PurchaseId(row.get::<_, Uuid>(0)),
            state: row.get(1),
            micros: Usd::micros(row.get::<_, i64>(2).try_into().expect("positive")),
            is_owner_dead: row.get(3),
        };
        rows.expect("read").iter().map(read).collect()
    }

    pub(super) fn wrong_counters(&self) -> i64 {
        let row = self.runtime.block_on(self.client.query_one(&self.statements[2], &[]));
        row.expect("read").get(0)
    }

    pub(super) fn open(&self) -> Open {
        let row = self.runtime.block_on(self.client.query_one(&self.statements[3], &[]));
        let row = row.expect("read");
        let count = |at| usize::try_from(row.get::<_, i64>(at)).expect("a count");
        Open { purchases: count(0), slots: count(1), instances: count(2) }
    }
}
