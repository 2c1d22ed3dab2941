//! A ledger moves from a file to a database and back, with all that it holds, whatever happens to the
//! connection.

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tollgate::ledger::copy::{CopyEvent, MovedLedger, move_to_postgres, move_to_sqlite};
use tollgate::ledger::postgres::{InstanceKind, PostgresTarget};
use tollgate::ledger::{Cause, MoneyKind, Reason, ReserveError, Settlement, Store};

use super::wire::{Course, Wire};
use crate::cluster::{Cluster, Database};
use crate::fixture::*;

/// Rows of all tables, in more than one page, and more bytes than one statement may have.
const ROWS: &str = "
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600)
    INSERT INTO purchases (number, id, at, day, month, caller, service, model, price_micros, cost_micros, state,
        key, payload, fingerprint, delivered, ended_at, keep_until, assumed, unrecognised, replays)
    SELECT i * 2, randomblob(16), i, i / 100, 24310, 'caller ' || (i % 7) || ' ü',
        CASE WHEN i % 3 = 0 THEN 'video' ELSE 'chat' END, 'm', 6000,
        CASE i % 5 WHEN 0 THEN 5000 END,
        CASE i % 5 WHEN 0 THEN 'charged' WHEN 1 THEN 'released' WHEN 2 THEN 'unknown' WHEN 3 THEN 'held'
            ELSE 'sent' END,
        CASE WHEN i % 5 <> 1 AND i % 2 = 0 THEN randomblob(32) END,
        CASE WHEN i % 5 <> 1 AND i % 2 = 0 THEN randomblob(32) END,
        CASE WHEN i % 2 = 1 THEN randomblob(32) END, i % 2,
        CASE WHEN i % 5 < 3 THEN i + 1 END, CASE i % 5 WHEN 0 THEN 9000000000000000000 END, i % 2, i % 2, i % 9
    FROM n;
    UPDATE purchases SET group_name = 'design', token = nullif('t' || number % 2, 't1') WHERE number % 3 = 0;
    UPDATE identity SET ended_through = 0;
    INSERT INTO replies SELECT number, 9000000000000000000, 200, number % 4 = 0,
        randomblob(CASE number WHEN 400 THEN 2000000 ELSE number END) FROM purchases WHERE state = 'charged';
    DELETE FROM spent;
    INSERT INTO spent SELECT scope, unit, period, sum(micros) FROM (
        SELECT s.scope, u.unit, CASE u.unit WHEN 'day' THEN day ELSE month END AS period,
            CASE state WHEN 'released' THEN 0 ELSE coalesce(cost_micros, price_micros) END AS micros
        FROM purchases, (SELECT 'day' AS unit UNION SELECT 'month') AS u,
            (SELECT number AS of, 'total' AS scope FROM purchases
            UNION ALL SELECT number, 'caller ' || caller FROM purchases
            UNION ALL SELECT number, 'group ' || group_name FROM purchases WHERE group_name IS NOT NULL
            UNION ALL SELECT number, 'token ' || token FROM purchases WHERE token IS NOT NULL) AS s
        WHERE s.of = purchases.number) GROUP BY 1, 2, 3;
    INSERT INTO jobs (request_id, owner, key, model, price_micros, at, status_at, body, state, prompt, purchase)
        SELECT 'job-' || number, caller, randomblob(8), model, price_micros, at,
            CASE WHEN number % 4 = 0 THEN at END, CASE WHEN number % 4 = 0 THEN randomblob(50) END,
            CASE WHEN number % 4 = 0 THEN 'finished' ELSE 'open' END,
            CASE WHEN number % 8 = 0 THEN 'a prompt' END, id
        FROM purchases WHERE service = 'video' AND state = 'charged';
    INSERT INTO checkpoints VALUES (1, 5, 100, 3, 2, 1, NULL, NULL), (4, 6, 90, 4, 3, 2, 7, 9);
    INSERT INTO account_keys VALUES ('key', 5, NULL), ('old', 4, 5);
    INSERT INTO slots VALUES (-5, 1763640000000000000, 1763640000000000001, 7), (9, 1763640000000000002, 1763640000000000003, NULL);
    INSERT INTO rate_limit VALUES (1, 60, 60);
    INSERT INTO members (name, role, budget, token, prefix, added, revoked, secret, may_buy, group_name)
        VALUES ('ann', 'admin', '0.01/day', randomblob(32), 'tg_a', 6, NULL, NULL, 'chat', 'design'),
        ('Bea', 'member', '', randomblob(32), 'tg_b', 6, 8, randomblob(32), NULL, NULL);
    INSERT INTO links VALUES (2, '0123456789abcdef', 'fair', 6000, 'chat', 1, 1, 'member:ann', 5, 9, NULL),
        (5, 'fedcba9876543210', 'demo', 7000, NULL, NULL, 0, 'a', 6, 9, 8);
    INSERT INTO groups VALUES ('design', '0.07/week 0.08/month');
    INSERT INTO extras VALUES (4, 'member:ann', 6, 9, 5), (7, 'member:Bea', 5, 8, 4);
    INSERT INTO budget_requests VALUES (3, 'member:ann', 6, 'a reason', 5);
    INSERT INTO audit VALUES (2, 5, 'command line', 'member.add', 'ann', NULL, '{}'), (9, 6, 'a', 'b', 'c', '{}', NULL);
    INSERT INTO logins VALUES (3, randomblob(32), 'ann', randomblob(32), 9000000000000000000);
    INSERT INTO subjects VALUES ('https://a.example/', 'ann', 'member', '1.00/day', 'design', NULL, 'Ann', 5);
    INSERT INTO subject_logins VALUES (3, randomblob(32), 'https://a.example/', 'ann', 9, NULL, NULL, NULL, NULL, NULL),
        (8, randomblob(32), 'https://a.example/', 'ann', 9, 'laptop', 'tg_b', '', 5, 6);
    INSERT INTO webhooks VALUES ('job.failed', randomblob(16));
    INSERT INTO outbox VALUES (4, 'id', randomblob(16), 'job.failed', 5, '{}', 6, 2), (5, 'it', randomblob(16), '*', 5, '{}', 6, 0);
    INSERT INTO alerts VALUES ('balance', '', 0, 7);
    INSERT INTO notes VALUES ('change', randomblob(32), 'member:ann', 5, 0, randomblob(32), randomblob(90));
    INSERT INTO secret VALUES (1, randomblob(32));
    UPDATE members_version SET version = 41";
/// They say where a ledger is.
const NOT_COPIED: [&str; 2] = ["identity", "moved"];

/// A ledger in a file, and an empty database.
struct Ledgers {
    file: Fixture,
    database: Database<'static>,
}

impl Ledgers {
    fn new() -> Self {
        let file = Fixture::on_disk(Default::default());
        Self { file, database: Cluster::shared().database() }
    }

    /// The file has rows in all tables, and no server.
    fn filled() -> Self {
        let mut ledgers = Self::new();
        ledgers.file.stop();
        ledgers.execute(ROWS);
        ledgers
    }

    fn execute(&self, statements: &str) {
        Connection::open(self.file.path()).unwrap().execute_batch(statements).unwrap();
    }

    /// Where the ledger comes back to.
    fn back(&self) -> PathBuf {
        beside(&self.file.path(), ".back")
    }

    async fn there(&self, url: &str) -> Result<MovedLedger, Reason> {
        let (path, play) = (self.file.path(), target(url, MoneyKind::Play));
        bounded(move_to_postgres(&path, play, self.file.clock(), &mut |_| {})).await
    }

    async fn here(&self, url: &str) -> Result<MovedLedger, Reason> {
        bounded(move_to_sqlite(target(url, MoneyKind::Play), &self.back(), &mut |_| {})).await
    }

    /// Opens the database as a server.
    async fn serve(&self) -> Store {
        let target = target(&self.database.url(), MoneyKind::Play);
        bounded(Store::open_database(target, Some(self.file.clock()))).await.expect("it opens")
    }

    fn serve_file(&self, path: &Path) -> Store {
        Store::serve(path, self.file.clock()).expect("it opens")
    }

    /// Asserts that a file sells.
    async fn assert_sells(&self, path: &Path) {
        bounded(self.serve_file(path).reserve(&reservation("ann", PRICE))).await.expect("held");
    }

    fn purchases_there(&self) -> String {
        let exists = "SELECT to_regclass('purchases')";
        if self.database.sql(exists).is_empty() {
            return String::new();
        }
        self.database.sql("SELECT count(*) FROM purchases")
    }
}

fn target(url: &str, money: MoneyKind) -> PostgresTarget {
    let target = PostgresTarget::parse(url, money, InstanceKind::Command).expect("an address");
    target.with_instance_name("copy".to_owned())
}

/// Holds a purchase, and releases it.
async fn sell_nothing(store: &Store) {
    let purchase = reservation("bob", PRICE);
    bounded(store.reserve(&purchase)).await.expect("held");
    bounded(store.settle(purchase.id, Settlement::Released)).await.expect("settled");
}

#[track_caller]
fn assert_refused<T>(refused: &Result<T, Reason>, why: &str) {
    let refused = refused.as_ref().err().expect("refused");
    assert!(refused.text.contains(why), "{refused}");
}

fn tables(path: &Path) -> Vec<String> {
    let file = Connection::open(path).unwrap();
    let find = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    let mut statement = file.prepare(find).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

fn rows(path: &Path, query: &str) -> Vec<String> {
    let file = Connection::open(path).unwrap();
    let mut statement = file.prepare(&format!("SELECT {query}")).unwrap();
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        (0..columns).map(|at| Ok(format!("{:?} ", row.get_ref(at)?))).collect::<Result<String, _>>()
    });
    rows.unwrap().collect::<Result<_, _>>().unwrap()
}

#[tokio::test]
async fn all_rows_are_the_same_there_and_back() {
    let ledgers = Ledgers::filled();
    let (path, back) = (ledgers.file.path(), ledgers.back());
    let (mut started, mut copied, mut compared) = (0, 0, 0);
    let mut watch = |event| match event {
        CopyEvent::Started { rows } => started += rows,
        CopyEvent::Copied { rows, .. } => copied += rows,
        CopyEvent::Compared { rows, .. } => compared += rows,
    };
    let play = target(&ledgers.database.url(), MoneyKind::Play);
    let there = bounded(move_to_postgres(&path, play, ledgers.file.clock(), &mut watch));
    let there = there.await.expect("moved");
    assert!(
        started > 800 && (copied, compared) == (started, started),
        "{started} {copied} {compared}"
    );
    let purchases = &there.tables[0];
    assert_eq!((purchases.name, purchases.rows), ("purchases", 600));
    assert_eq!(purchases.sums[0], ("price_micros".to_owned(), times(600)));
    // Running purchases ended as after a crash.
    let states = "SELECT state, count(*) FROM purchases GROUP BY 1 ORDER BY 1";
    assert_eq!(ledgers.database.sql(states), "charged|120\nreleased|240\nunknown|240");

    let here = ledgers.here(&ledgers.database.url()).await.expect("moved back");
    assert_eq!(here.tables, there.tables);
    assert_eq!((here.secret, here.secret.is_some()), (there.secret, true));
    let tables = tables(&path);
    assert_eq!(tables.len(), there.tables.len() + NOT_COPIED.len());
    for table in &tables {
        let all = rows(&path, &format!("* FROM {table} ORDER BY 1, 2"));
        assert!(!all.is_empty(), "the test has no row of {table}");
        if !NOT_COPIED.contains(&&**table) {
            assert_eq!(all, rows(&back, &format!("* FROM {table} ORDER BY 1, 2")), "{table}");
            let count = ledgers.database.sql(&format!("SELECT count(*) FROM {table}"));
            assert_eq!(count, all.len().to_string(), "{table}");
        }
    }
    let name = "name FROM identity";
    assert_eq!(rows(&path, name), rows(&back, name));
}

#[tokio::test]
async fn moved_ledger_keeps_its_name_and_replays() {
    let mut ledgers = Ledgers::new();
    let name = ledgers.file.store.name();
    let bought = ledgers.file.buy(&keyed("k", "p"), "a reply").await;
    ledgers.file.stop();
    ledgers.there(&ledgers.database.url()).await.expect("moved");
    ledgers.file.take(ledgers.serve().await);
    assert_eq!(ledgers.file.store.name(), name);
    assert_eq!(ledgers.file.replayed(&keyed("k", "p")).await, Some(reply("a reply")));
    assert_eq!(ledgers.file.of("ann").await.day, PRICE);
    ledgers.file.buy(&keyed("l", "p"), "another one").await;
    ledgers.file.stop();

    ledgers.here(&ledgers.database.url()).await.expect("moved back");
    ledgers.file.take(ledgers.serve_file(&ledgers.back()));
    assert_eq!(ledgers.file.store.name(), name);
    assert_eq!(ledgers.file.known(&keyed("k", "p")).await.id, bought);
    assert_eq!(ledgers.file.replayed(&keyed("l", "p")).await, Some(reply("another one")));
    assert_eq!(ledgers.file.of("ann").await.day, times(2));
}

#[tokio::test]
async fn numbers_go_on_after_the_highest_copied_one() {
    // One query for each column that numbers rows; without rows, it returns none.
    const NUMBERED: &str = "
        SELECT format('SELECT nextval(%L) > max(%I) FROM %s HAVING count(*) > 0',
            pg_get_serial_sequence(attrelid::regclass::text, attname), attname, attrelid::regclass)
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        WHERE attidentity <> '' AND relnamespace = current_schema()::regnamespace";
    let ledgers = Ledgers::filled();
    ledgers.there(&ledgers.database.url()).await.expect("moved");
    let queries = ledgers.database.sql(NUMBERED);
    assert!(queries.lines().count() >= 7, "{queries}");
    for query in queries.lines() {
        assert_eq!(ledgers.database.sql(query), "t", "{query}");
    }
}

#[tokio::test]
async fn ledger_in_use_is_not_copied() {
    let mut ledgers = Ledgers::new();
    let url = ledgers.database.url();
    assert_refused(&ledgers.there(&url).await, "already uses the ledger");
    ledgers.file.stop();
    ledgers.serve().await.close();
    let join = |seen: &str, ended: &str| {
        ledgers.database.sql(&format!(
            "INSERT INTO servers (number, kind, name, pid, began, seen, ended, schema)
            SELECT 9, 'server', 'gate-9', 1, 0, (extract(epoch FROM clock_timestamp()) - {seen})::bigint * 1000000000,
                {ended}, 1"
        ));
    };
    join("5", "NULL");
    assert_refused(&ledgers.there(&url).await, "gate-9 use it: stop all servers");
    ledgers.database.sql("DELETE FROM servers");
    join("31", "NULL");
    ledgers.there(&url).await.expect("moved");
    ledgers.database.sql("DELETE FROM servers");
    join("5", "NULL");
    assert_refused(&ledgers.here(&url).await, "gate-9 use it: stop all servers");
    ledgers.database.sql("DELETE FROM servers");
    join("5", "1");
    ledgers.here(&url).await.expect("moved back");
}

#[tokio::test]
async fn mistakes_are_refused_and_change_nothing() {
    let mut ledgers = Ledgers::new();
    let url = ledgers.database.url();
    ledgers.file.stop();
    assert_refused(&ledgers.here(&url).await, "run `tollgate store migrate`");
    let server = ledgers.serve().await;
    bounded(server.reserve(&reservation("bob", PRICE))).await.expect("held");
    server.close();
    assert_refused(&ledgers.here(&url).await, "purchases of ended servers are still open");
    let full = "it is not empty, and a copy overwrites nothing: create another database";
    assert_refused(&ledgers.there(&url).await, full);
    assert_refused(&ledgers.there(&url).await, "(table purchases)");
    ledgers.assert_sells(&ledgers.file.path()).await;

    ledgers.database.sql("UPDATE purchases SET state = 'released', ended_at = 1");
    std::fs::write(ledgers.back(), [b'x'; 600]).unwrap();
    assert_refused(&ledgers.here(&url).await, "it exists, and a copy overwrites nothing");
    bounded(ledgers.serve().await.reserve(&reservation("bob", PRICE))).await.expect("held");
}

#[tokio::test]
async fn ledger_of_other_money_stays_where_it_is() {
    const OTHER: &str = "it holds the other kind of money";
    let mut ledgers = Ledgers::new();
    let url = ledgers.database.url();
    ledgers.file.stop();
    ledgers.serve().await.close();
    ledgers.execute("INSERT INTO money VALUES (1, 'real')");
    assert_refused(&ledgers.there(&url).await, OTHER);
    ledgers.execute("UPDATE money SET kind = 'play'");
    ledgers.database.sql("UPDATE money SET kind = 'real'");
    assert_refused(&ledgers.there(&url).await, OTHER);
    assert_refused(&ledgers.here(&url).await, OTHER);
    ledgers.database.sql("UPDATE money SET kind = 'play'");
    ledgers.assert_sells(&ledgers.file.path()).await;
    ledgers.there(&url).await.expect("moved");
}

#[tokio::test]
async fn text_that_postgres_cannot_store_is_named() {
    let ledgers = Ledgers::filled();
    ledgers.execute("UPDATE jobs SET prompt = 'a' || char(0) || 'b' WHERE number = 3");
    let refused = ledgers.there(&ledgers.database.url()).await;
    assert_refused(&refused, "the row 3 has text with U+0000");
    assert_refused(&refused, "(table jobs)");
    ledgers.assert_sells(&ledgers.file.path()).await;
}

#[tokio::test]
async fn column_that_the_target_lacks_is_not_left_behind() {
    let ledgers = Ledgers::filled();
    ledgers.execute("ALTER TABLE jobs ADD COLUMN later TEXT");
    assert_refused(&ledgers.there(&ledgers.database.url()).await, "\"later\"");
    ledgers.assert_sells(&ledgers.file.path()).await;
}

#[tokio::test]
async fn copy_whose_connection_is_lost_leaves_the_target_empty() {
    let ledgers = Ledgers::filled();
    let wire = Wire::to(Cluster::shared().address()).await;
    let url = ledgers.database.url_at(wire.address);
    wire.set(Course::Hold("INSERT INTO audit"));
    let (refused, ()) = tokio::join!(ledgers.there(&url), async {
        wire.is_holding().await;
        wire.set(Course::Down);
    });
    assert_refused(&refused, "(table audit)");
    assert_eq!(ledgers.purchases_there(), "0");
    ledgers.assert_sells(&ledgers.file.path()).await;
    wire.set(Course::Pass);
    ledgers.there(&url).await.expect("moved");
    assert_eq!(ledgers.purchases_there(), "601");
}

#[tokio::test]
async fn copy_whose_source_is_lost_on_the_way_back_leaves_no_file() {
    let ledgers = Ledgers::filled();
    let wire = Wire::to(Cluster::shared().address()).await;
    let url = ledgers.database.url_at(wire.address);
    ledgers.there(&url).await.expect("moved");
    let at_the_end = Course::CutBeforeCommit("INSERT INTO moved");
    for course in [Course::Hold("FROM outbox"), at_the_end] {
        wire.set(course);
        let (refused, ()) = tokio::join!(ledgers.here(&url), async {
            if course != at_the_end {
                wire.is_holding().await;
                wire.set(Course::Down);
            }
        });
        assert!(refused.is_err() && !ledgers.back().exists(), "{course:?}: {refused:?}");
        sell_nothing(&ledgers.serve().await).await;
    }
    wire.set(Course::CutAfterCommit("INTO moved"));
    let moved = ledgers.here(&url).await.expect("its commit is looked up");
    assert_eq!(moved.tables[0].rows, 602);
    ledgers.assert_sells(&ledgers.back()).await;
}

#[tokio::test]
async fn copy_cut_off_at_its_commits_can_run_again() {
    let ledgers = Ledgers::filled();
    let wire = Wire::to(Cluster::shared().address()).await;
    let url = ledgers.database.url_at(wire.address);
    wire.set(Course::CutBeforeCommit("UPDATE credit"));
    assert!(ledgers.there(&url).await.is_err());
    assert_eq!(ledgers.purchases_there(), "0");
    ledgers.assert_sells(&ledgers.file.path()).await;

    wire.set(Course::CutBeforeCommit("DELETE FROM moved"));
    assert_refused(&ledgers.there(&url).await, "run the same copy again");
    // Neither of them sells.
    let refused = Store::serve(&ledgers.file.path(), ledgers.file.clock()).expect_err("moved");
    assert!(refused.to_string().contains("it was moved to postgres://"), "{refused}");
    let there = target(&url, MoneyKind::Play);
    let refused = bounded(Store::open_database(there, None)).await.expect_err("not complete");
    assert!(refused.to_string().contains("it was moved to sqlite:"), "{refused}");
    let elsewhere = Cluster::shared().database();
    assert_refused(&ledgers.there(&elsewhere.url()).await, "it was moved to postgres://");

    wire.set(Course::CutAfterCommit("DELETE FROM moved"));
    let moved = ledgers.there(&url).await.expect("its commit is looked up");
    assert_eq!((moved.tables[0].rows, &*ledgers.purchases_there()), (601, "601"));
    sell_nothing(&ledgers.serve().await).await;
    assert_refused(&ledgers.there(&url).await, "it is not empty");
}

#[tokio::test]
async fn ledger_comes_back_to_the_database_that_it_left() {
    let ledgers = Ledgers::filled();
    let url = ledgers.database.url();
    ledgers.there(&url).await.expect("moved");
    ledgers.here(&url).await.expect("moved back");
    sell_nothing(&ledgers.serve_file(&ledgers.back())).await;
    let there = || target(&url, MoneyKind::Play);
    let (back, clock) = (ledgers.back(), ledgers.file.clock());
    let rename = |statement: &str| {
        Connection::open(&back).unwrap().execute_batch(statement).unwrap();
    };
    // Another ledger does not have what is there.
    rename(
        "ALTER TABLE identity ADD COLUMN own TEXT; UPDATE identity SET own = name, name = 'other'",
    );
    let refused = bounded(move_to_postgres(&back, there(), clock.clone(), &mut |_| {})).await;
    assert_refused(&refused, "it was moved to sqlite:");
    rename("UPDATE identity SET name = own");
    let again = bounded(move_to_postgres(&back, there(), clock, &mut |_| {})).await;
    assert_eq!(again.expect("moved again").tables[0].rows, 601);
    sell_nothing(&ledgers.serve().await).await;
}

#[tokio::test]
async fn moved_ledger_is_read_and_sells_nothing() {
    let mut ledgers = Ledgers::new();
    let url = ledgers.database.url();
    ledgers.file.buy(&keyed("k", "p"), "a reply").await;
    ledgers.file.stop();
    ledgers.there(&url).await.expect("moved");
    let (path, clock) = (ledgers.file.path(), ledgers.file.clock());
    for refused in [Store::serve(&path, clock.clone()), Store::open_shared(&path, clock.clone())] {
        let refused = refused.expect_err("moved").to_string();
        assert!(refused.contains("it was moved to postgres://"), "{refused}");
    }
    let report = Store::open_read_only(&path, clock.clone()).expect("it is read");
    assert_eq!(bounded(report.purchases_since(Default::default())).await.unwrap().len(), 1);

    // A server that stood still is not seen, and knows nothing of the copy.
    let idle = ledgers.serve().await;
    sell_nothing(&idle).await;
    ledgers.database.sql("UPDATE servers SET seen = 0");
    ledgers.here(&url).await.expect("moved back");
    match bounded(idle.reserve(&reservation("bob", PRICE))).await {
        Err(ReserveError::Unavailable(why)) => assert_eq!(why.0.cause, Cause::Moved),
        other => panic!("{other:?}"),
    }
    assert_eq!(ledgers.purchases_there(), "2");
    let mut play = target(&url, MoneyKind::Play);
    let refused = bounded(Store::open_database(play.clone(), Some(clock.clone()))).await;
    let refused = refused.expect_err("moved").to_string();
    assert!(refused.contains("it was moved to sqlite:"), "{refused}");
    play.reads_only = true;
    let report = bounded(Store::open_database(play, Some(clock))).await.expect("it is read");
    assert_eq!(bounded(report.purchases_since(Default::default())).await.unwrap().len(), 2);
}
