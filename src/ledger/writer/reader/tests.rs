use std::time::Duration;

use rusqlite::{Connection, ToSql};
use tokio::time::timeout;

use super::*;
use crate::ledger::engine::Sql;
use crate::ledger::schema::SqlDialect;
use crate::ledger::tables::reports;
use crate::ledger::{Store, ZoneOffsets};

const PATIENCE: Duration = Duration::from_secs(60);
const ENDLESS: &str =
    "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n";

fn ledger() -> (tempfile::TempDir, PathBuf, Store) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let clock = Arc::new(|| Duration::from_secs(1));
    let ledger = Store::serve(&path, clock).unwrap();
    (folder, path, ledger)
}

fn endless(
    reader: &ReportReader,
    begun: mpsc::Sender<()>,
) -> impl Future<Output = Result<i64, Unavailable>> + use<> {
    reader.read(move |db| {
        begun.send(()).unwrap();
        db.one(ENDLESS, (), |row| row.get(0))
    })
}

#[tokio::test]
async fn query_is_interrupted_when_its_caller_is_gone() {
    let (_folder, path, _ledger) = ledger();
    let reader = ReportReader::start(path).unwrap();
    let (begins, begun) = mpsc::channel();
    let first = endless(&reader, begins.clone());
    let never_begun = endless(&reader, begins);
    let last = reader.read(|db| db.one("SELECT 1", (), |row| row.get::<i64>(0)));
    begun.recv_timeout(PATIENCE).expect("the first query runs");
    drop(never_begun);
    drop(first);
    let last = timeout(PATIENCE, last).await.expect("the thread is free again");
    assert_eq!(last.unwrap(), 1);
    begun.recv_timeout(PATIENCE).expect_err("no caller waits for the second");
}

#[tokio::test]
async fn dropping_the_store_interrupts_the_query() {
    let (_folder, path, _ledger) = ledger();
    let reader = ReportReader::start(path).unwrap();
    let (begins, begun) = mpsc::channel();
    let first = endless(&reader, begins);
    begun.recv_timeout(PATIENCE).expect("the query runs");
    drop(reader);
    timeout(PATIENCE, first).await.expect("it has ended").unwrap_err();
}

#[test]
fn reports_of_one_and_of_all_callers_use_an_index() {
    let (_folder, path, _ledger) = ledger();
    let file = Connection::open(path).unwrap();
    for has_caller in [true, false] {
        let query = reports::spend_query(SqlDialect::Sqlite, has_caller, &ZoneOffsets::default());
        let query = format!("EXPLAIN QUERY PLAN {query}");
        let mut plan = file.prepare(&query).unwrap();
        let values: &[&dyn ToSql] = if has_caller { &[&1, &5, &"ann"] } else { &[&1, &5] };
        let steps = plan.query_map(values, |row| row.get::<_, String>("detail")).unwrap();
        let steps: Vec<_> = steps.map(Result::unwrap).collect();
        let search = "SEARCH purchases USING INDEX purchases_caller (caller=? AND at>?)";
        assert!(steps.iter().any(|step| step == search), "{steps:?}");
        assert!(!steps.iter().any(|step| step.contains("SCAN purchases")), "{steps:?}");
    }
}
