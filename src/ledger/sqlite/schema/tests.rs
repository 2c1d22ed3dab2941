//! Ledgers of earlier versions are migrated with all they hold, and statements use the indexes.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::ledger::Store;
use crate::ledger::schema::IS_RUNNING;
use crate::ledger::schema::newest_version;

#[test]
fn query_for_running_purchases_reads_only_later_ones() {
    let mut file = Connection::open_in_memory().unwrap();
    migrate(&mut file).unwrap();
    let query = format!("SELECT id FROM purchases WHERE {IS_RUNNING}");
    let mut plan = file.prepare(&format!("EXPLAIN QUERY PLAN {query}")).unwrap();
    let steps = plan.query_map([], |row| row.get::<_, String>(3)).unwrap();
    let steps: Vec<_> = steps.map(Result::unwrap).collect();
    let search = "SEARCH purchases USING INTEGER PRIMARY KEY (rowid>?)";
    assert!(steps.iter().any(|step| step == search), "{steps:?}");
}

#[test]
fn writing_a_purchase_and_a_job_builds_no_temporary_table() {
    let mut file = Connection::open_in_memory().unwrap();
    migrate(&mut file).unwrap();
    for write in [
        "INSERT INTO purchases (id, at, day, month, caller, service, model, price_micros, state)
            VALUES (randomblob(16), 1, 2, 3, 'ann', 'chat', 'a', 5, 'held')",
        "UPDATE purchases SET state = 'sent' WHERE id = x'00'",
        "UPDATE purchases SET state = 'charged', cost_micros = 1, keep_until = 2, ended_at = 3,
            assumed = 0 WHERE number = 1",
        "INSERT INTO jobs (request_id, owner, model, price_micros, at) VALUES ('r', 'ann', 'b', 5, 1)
            ON CONFLICT (request_id) DO NOTHING",
        "UPDATE jobs SET status_at = 2, body = x'7b7d', state = 'finished'
            WHERE request_id = 'r' AND state = 'open'",
    ] {
        let mut program = file.prepare(&format!("EXPLAIN {write}")).unwrap();
        let opcodes = program.query_map([], |row| row.get::<_, String>(1)).unwrap();
        let opcodes: Vec<_> = opcodes.map(Result::unwrap).collect();
        assert!(!opcodes.iter().any(|code| code == "OpenEphemeral"), "{write}: {opcodes:?}");
    }
}

#[test]
fn every_earlier_version_migrates_to_the_newest_with_its_rows() {
    let later = "ALTER TABLE checkpoints ADD COLUMN note TEXT";
    let versions: Vec<&str> = MIGRATIONS.iter().copied().chain([later]).collect();
    for start in 1..=MIGRATIONS.len() {
        let mut file = Connection::open_in_memory().unwrap();
        apply_migrations(&mut file, &versions[..start]).unwrap();
        assert_eq!(file_kind(&file).unwrap(), FileKind::Ledger(i64::try_from(start).unwrap()));
        let note =
            "INSERT INTO checkpoints (number, at, balance_cents, chats, chat_cents, spent_cents)
            VALUES (1, 2, 3, 4, 5, 6)";
        file.execute(note, []).unwrap();

        apply_migrations(&mut file, &versions).unwrap();
        apply_migrations(&mut file, &versions).unwrap();
        assert_eq!(file_kind(&file).unwrap(), FileKind::Ledger(newest_version() + 1));
        let row = "SELECT at, note IS NULL FROM checkpoints";
        let row = file.query_row(row, [], |row| Ok((row.get(0)?, row.get(1)?)));
        assert_eq!(row, Ok((2, true)));
    }
}

#[test]
fn failed_migration_changes_nothing() {
    let mut file = Connection::open_in_memory().unwrap();
    migrate(&mut file).unwrap();
    let faulty = "DROP TABLE checkpoints; DROP TABLE nothing";
    let versions: Vec<&str> = MIGRATIONS.iter().copied().chain([faulty]).collect();
    assert!(apply_migrations(&mut file, &versions).is_err());
    assert_eq!(file_kind(&file).unwrap(), FileKind::Ledger(newest_version()));
    let left: i64 =
        file.query_row("SELECT count(*) FROM checkpoints", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

#[test]
fn query_for_unknown_purchases_uses_an_index() {
    let mut file = Connection::open_in_memory().unwrap();
    migrate(&mut file).unwrap();
    for query in [
        "SELECT id FROM purchases WHERE state = 'unknown' ORDER BY at DESC, number DESC LIMIT 5",
        "SELECT count(*), coalesce(sum(price_micros), 0) FROM purchases WHERE state = 'unknown'",
        "SELECT count(*) FROM purchases WHERE at >= 5 AND state = 'unknown'",
    ] {
        let mut plan = file.prepare(&format!("EXPLAIN QUERY PLAN {query}")).unwrap();
        let steps = plan.query_map([], |row| row.get::<_, String>(3)).unwrap();
        let steps: Vec<_> = steps.map(Result::unwrap).collect();
        assert_eq!(steps.len(), 1, "nothing is sorted: {steps:?}");
        assert!(steps[0].contains("purchases_unknown"), "{steps:?}");
    }
}

#[test]
fn foreign_files_are_not_ledgers() {
    let file = Connection::open_in_memory().unwrap();
    assert_eq!(file_kind(&file).unwrap(), FileKind::Empty);
    file.execute_batch("CREATE TABLE theirs (x)").unwrap();
    assert_eq!(file_kind(&file).unwrap(), FileKind::Foreign);
    file.pragma_update(None, "user_version", 1).unwrap();
    assert_eq!(file_kind(&file).unwrap(), FileKind::Foreign);
}

#[test]
fn file_from_before_the_first_release_is_refused_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let file = Connection::open(&path).unwrap();
    file.execute_batch("CREATE TABLE purchases (number); PRAGMA user_version = 13").unwrap();
    file.pragma_update(None, "application_id", BEFORE_RELEASE).unwrap();
    drop(file);
    let before = std::fs::read(&path).unwrap();
    let clock = || Arc::new(|| Duration::from_secs(9));
    for opened in [
        Store::serve(&path, clock()),
        Store::open_shared(&path, clock()),
        Store::open_read_only(&path, clock()),
    ] {
        let why = opened.unwrap_err().to_string();
        assert!(why.contains("before the first release"), "{why}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}
