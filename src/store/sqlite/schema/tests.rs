//! Ledgers of earlier versions are migrated with all they hold.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::contract::money::Usd;
use crate::store::{
    Actor, BudgetScope, MemberChange, PurchaseState, SecretRecord, Snapshot, Store,
};

/// Two purchases of a server that knew no members, with their counters.
const SOLD: &str = "
    INSERT INTO purchases (id, at, day, month, caller, service, model, toll_micros, cost_micros,
        state, ended_at, keep_until) VALUES
        (zeroblob(16), 5, 0, 23640, 'ann', 'chat', 'alpha', 3000, 4000, 'posted', 6, 7),
        (randomblob(16), 5, 0, 23640, 'ann', 'video', 'beta', 3000000, NULL, 'unknown', 6, NULL);
    INSERT INTO spent SELECT scope, unit, period, 3004000
        FROM (SELECT 'total' AS scope UNION SELECT 'caller ann'),
             (SELECT 'day' AS unit, 0 AS period UNION SELECT 'month', 23640);
    INSERT INTO money VALUES (1, 'real')";

#[tokio::test]
async fn version_one_ledger_keeps_its_purchases_after_migration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let mut file = Connection::open(&path).unwrap();
    apply_migrations(&mut file, &MIGRATIONS[..1]).unwrap();
    file.execute_batch(SOLD).unwrap();
    drop(file);
    let clock = || Arc::new(|| Duration::from_secs(9));
    for opened in [Store::open_read_only(&path, clock()), Store::open_shared(&path, clock())] {
        let why = opened.unwrap_err().to_string();
        let advice = format!("start the server once to migrate it to {}", newest_version());
        assert!(why.contains(&advice), "{why}");
    }

    let ledger = Store::serve(&path, clock()).unwrap();
    let rows = ledger.purchases_since(Duration::ZERO).await.unwrap();
    let states: Vec<_> = rows.iter().map(|row| row.state).collect();
    assert_eq!(states, [PurchaseState::Charged, PurchaseState::Unknown]);
    let spent = ledger.current_spend(BudgetScope::Caller("ann".to_owned())).await.unwrap();
    assert_eq!(spent.month, Usd::micros(3_004_000));
    assert_eq!(ledger.members().await.unwrap(), []);
    drop(ledger);
    let read = Store::open_read_only(&path, clock()).unwrap();
    assert_eq!(read.members_version().await.unwrap(), 0);
}

#[tokio::test]
async fn version_two_ledger_keeps_its_members_and_records_their_secret() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let mut file = Connection::open(&path).unwrap();
    apply_migrations(&mut file, &MIGRATIONS[..2]).unwrap();
    let ann = "INSERT INTO members VALUES ('ann', 'admin', NULL, 5, zeroblob(32), 'tg_a', 6, NULL)";
    file.execute_batch(ann).unwrap();
    drop(file);
    let clock = || Arc::new(|| Duration::from_secs(9));
    let why = Store::open_shared(&path, clock()).unwrap_err().to_string();
    let newest = newest_version();
    let advice = format!("its version is 2; start the server once to migrate it to {newest}");
    assert!(why.contains(&advice), "{why}");

    let ledger = Store::serve(&path, clock()).unwrap();
    let members = ledger.members().await.unwrap();
    assert_eq!((members.len(), &*members[0].name, members[0].token), (1, "ann", [0; 32]));
    assert_eq!(ledger.token_secret_fingerprint().await.unwrap(), None);
    for (print, outcome) in
        [([8; 32], SecretRecord::Accepted), ([7; 32], SecretRecord::OtherOfMembers)]
    {
        assert_eq!(ledger.record_secret(print).await.unwrap(), outcome);
        assert_eq!(ledger.token_secret_fingerprint().await.unwrap(), Some([8; 32]));
    }
    drop(ledger);
    let read = Store::open_read_only(&path, clock()).unwrap();
    assert_eq!(read.token_secret_fingerprint().await.unwrap(), Some([8; 32]));
    drop(read);
    // No token depends on it any more.
    let beside = Store::open_shared(&path, clock()).unwrap();
    let by = Actor::command_line("ops", "host");
    beside.change_member(&by, "ann".into(), MemberChange::Revoke).await.unwrap();
    assert_eq!(beside.token_secret_fingerprint().await.unwrap(), None);
}

#[tokio::test]
async fn version_three_checkpoint_is_history_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let mut file = Connection::open(&path).unwrap();
    apply_migrations(&mut file, &MIGRATIONS[..3]).unwrap();
    file.execute_batch(SOLD).unwrap();
    file.execute("INSERT INTO checks VALUES (1, 2, 3, 4, 5, 6)", []).unwrap();
    drop(file);
    let ledger = Store::serve(&path, Arc::new(|| Duration::from_secs(900))).unwrap();
    assert_eq!(ledger.latest_snapshots(9).await.unwrap().len(), 1);
    assert_eq!(ledger.latest_checkpoint().await.unwrap(), None, "its coverage is unknown");
    let now = Snapshot { at: Duration::from_secs(900), ..Snapshot::default() };
    ledger.record_checkpoint(now).await.unwrap();
    let check = ledger.latest_checkpoint().await.unwrap().expect("a new one");
    assert_eq!((check.settled_through, check.last_number), (2, 2));
}

/// A purchase in each state, with a kept reply and a job.
const EACH_STATE: &str = "
    INSERT INTO purchases (number, id, at, day, month, caller, service, model, toll_micros,
        cost_micros, state, key, payload, likeness, ended_at, keep_until) VALUES
        (1, randomblob(16), 1, 0, 23640, 'ann', 'chat', 'a', 3000, 4000, 'posted',
            zeroblob(32), zeroblob(32), NULL, 6, 99000000000),
        (2, randomblob(16), 2, 0, 23640, 'ann', 'chat', 'b', 6000, NULL, 'voided',
            NULL, NULL, NULL, 6, NULL),
        (3, randomblob(16), 3, 0, 23640, 'ann', 'video', 'c', 3000000, NULL, 'unknown',
            NULL, NULL, zeroblob(32), 6, NULL),
        (4, randomblob(16), 4, 0, 23640, 'ann', 'chat', 'd', 5000, NULL, 'reserved',
            NULL, NULL, NULL, NULL, NULL),
        (5, randomblob(16), 5, 0, 23640, 'ann', 'chat', 'e', 7000, NULL, 'sent',
            NULL, NULL, NULL, NULL, NULL);
    INSERT INTO replies VALUES (1, 99000000000, 200, 1, x'7b7d');
    INSERT INTO jobs (request_id, owner, model, toll_micros, at)
        VALUES ('job-1', 'ann', 'c', 3000000, 3);
    INSERT INTO spent SELECT scope, unit, period, 3016000
        FROM (SELECT 'total' AS scope UNION SELECT 'caller ann'),
             (SELECT 'day' AS unit, 0 AS period UNION SELECT 'month', 23640);
    INSERT INTO money VALUES (1, 'real')";

#[tokio::test]
async fn ledger_of_each_version_with_former_names_keeps_its_money_and_states() {
    for version in 1..usize::try_from(NEW_NAMES).unwrap() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let mut file = Connection::open(&path).unwrap();
        apply_migrations(&mut file, &MIGRATIONS[..version]).unwrap();
        file.execute_batch(EACH_STATE).unwrap();
        drop(file);
        let ledger = Store::serve(&path, Arc::new(|| Duration::from_secs(9))).unwrap();
        let rows = ledger.purchases_since(Duration::ZERO).await.unwrap();
        let states_and_prices: Vec<_> =
            rows.iter().map(|row| (&*row.model, row.state, row.price.as_micros())).collect();
        // At the start, what was held is released, and what was sent is unknown.
        let expected = [
            ("a", PurchaseState::Charged, 4_000),
            ("b", PurchaseState::Released, 6_000),
            ("c", PurchaseState::Unknown, 3_000_000),
            ("d", PurchaseState::Released, 5_000),
            ("e", PurchaseState::Unknown, 7_000),
        ];
        assert_eq!(states_and_prices, expected, "version {version}");
        for scope in [BudgetScope::Total, BudgetScope::Caller("ann".to_owned())] {
            let spent = ledger.current_spend(scope).await.unwrap();
            assert_eq!(spent.month, Usd::micros(3_011_000), "version {version}");
        }
        let reply = ledger.reply(rows[0].id).await.unwrap().expect("kept");
        assert_eq!((reply.status, &*reply.body), (200, &b"{}"[..]));
        let job = ledger.find_job("job-1".into()).await.unwrap().expect("kept");
        assert_eq!((job.price, job.prompt), (Usd::dollars(3), None));
        drop(ledger);
        let mut file = Connection::open(&path).unwrap();
        crate::store::sqlite::file::check_integrity(&mut file).unwrap();
        let broken = "SELECT count(*) FROM pragma_foreign_key_check";
        let broken: i64 = file.query_row(broken, [], |row| row.get(0)).unwrap();
        let keys = "SELECT count(key) = 1 AND count(fingerprint) = 1 FROM purchases";
        let are_kept: bool = file.query_row(keys, [], |row| row.get(0)).unwrap();
        assert!(broken == 0 && are_kept, "version {version}");
    }
}

#[tokio::test]
async fn version_six_ledger_keeps_its_money_states_and_replies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let mut file = Connection::open(&path).unwrap();
    apply_migrations(&mut file, &MIGRATIONS[..5]).unwrap();
    file.execute_batch(EACH_STATE).unwrap();
    apply_migrations(&mut file, &MIGRATIONS[..6]).unwrap();
    let all = "SELECT json_group_array(json_array(number, hex(id), at, day, month, caller, service,
            model, price_micros, cost_micros, state, hex(key), hex(payload), hex(fingerprint),
            delivered, ended_at, keep_until, assumed, unrecognised))
        FROM (SELECT * FROM purchases ORDER BY number)";
    let read = |file: &Connection| file.query_row(all, [], |row| row.get::<_, String>(0)).unwrap();
    let before = read(&file);
    apply_migrations(&mut file, MIGRATIONS).unwrap();
    assert_eq!(read(&file), before);
    drop(file);
    let ledger = Store::serve(&path, Arc::new(|| Duration::from_secs(9))).unwrap();
    let spent = ledger.current_spend(BudgetScope::Total).await.unwrap();
    assert_eq!(spent.month, Usd::micros(3_011_000), "what was held is released");
    let rows = ledger.purchases_since(Duration::ZERO).await.unwrap();
    assert!(ledger.reply(rows[0].id).await.unwrap().is_some());
}

#[tokio::test]
async fn version_seven_ledger_keeps_its_slots_and_running_purchases() {
    for (running, ended_through) in [("3", 2), ("1", 0), ("NULL", 3)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let mut file = Connection::open(&path).unwrap();
        apply_migrations(&mut file, &MIGRATIONS[..7]).unwrap();
        file.execute_batch(&format!(
            "INSERT INTO purchases (number, id, at, day, month, caller, service, model, price_micros,
                state, ended_at)
             SELECT n, randomblob(16), n, 0, 23640, 'ann', 'chat', 'a', 0,
                iif(n = {running}, 'sent', 'unknown'), iif(n = {running}, NULL, 9)
                FROM (SELECT 1 AS n UNION SELECT 2 UNION SELECT 3);
             INSERT INTO spent SELECT scope, unit, period, 0
                FROM (SELECT 'total' AS scope UNION SELECT 'caller ann'),
                     (SELECT 'day' AS unit, 0 AS period UNION SELECT 'month', 23640);
             INSERT INTO slots VALUES (x'ff000000000000000000000000000000', 3, 4),
                (x'00000000000000000000000000000000', 6, NULL),
                (x'01000000000000000000000000000000', 5, 7);
             INSERT INTO identity VALUES (1, 'durable-1', zeroblob(16), '')"
        ))
        .unwrap();
        apply_migrations(&mut file, MIGRATIONS).unwrap();
        let through = "SELECT ended_through FROM identity";
        let through: i64 = file.query_row(through, [], |row| row.get(0)).unwrap();
        assert_eq!(through, ended_through, "{running}");
        drop(file);
        let ledger = Store::serve(&path, Arc::new(|| Duration::from_nanos(9))).unwrap();
        let states = ledger.purchases_since(Duration::ZERO).await.unwrap();
        assert!(states.iter().all(|row| row.state == PurchaseState::Unknown), "{running}");
        // What was running counts as answered at the start.
        let ages = ledger.recent_replies(Duration::from_nanos(9)).await.unwrap();
        assert_eq!(ages, [5, 2, 0].map(Duration::from_nanos));
    }
}

#[test]
fn query_for_running_purchases_reads_only_later_ones() {
    let mut file = Connection::open_in_memory().unwrap();
    migrate(&mut file).unwrap();
    let query = format!("SELECT id FROM purchases WHERE {}", is_running(newest_version()));
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
    let later = "ALTER TABLE checks ADD COLUMN note TEXT";
    let later = [later];
    let versions: Vec<&[&str]> = MIGRATIONS.iter().copied().chain([&later[..]]).collect();
    for start in 1..=MIGRATIONS.len() {
        let mut file = Connection::open_in_memory().unwrap();
        apply_migrations(&mut file, &versions[..start]).unwrap();
        assert_eq!(file_kind(&file).unwrap(), FileKind::Ledger(i64::try_from(start).unwrap()));
        let note = "INSERT INTO checks (number, at, balance_cents, chats, chat_cents, spent_cents)
            VALUES (1, 2, 3, 4, 5, 6)";
        file.execute(note, []).unwrap();

        apply_migrations(&mut file, &versions).unwrap();
        apply_migrations(&mut file, &versions).unwrap();
        assert_eq!(file_kind(&file).unwrap(), FileKind::Ledger(newest_version() + 1));
        let row = "SELECT at, note IS NULL FROM checks";
        let row = file.query_row(row, [], |row| Ok((row.get(0)?, row.get(1)?)));
        assert_eq!(row, Ok((2, true)));
    }
}

#[test]
fn failed_migration_changes_nothing() {
    let mut file = Connection::open_in_memory().unwrap();
    migrate(&mut file).unwrap();
    let faulty = ["DROP TABLE checks; DROP TABLE nothing"];
    let versions: Vec<&[&str]> = MIGRATIONS.iter().copied().chain([&faulty[..]]).collect();
    assert!(apply_migrations(&mut file, &versions).is_err());
    assert_eq!(file_kind(&file).unwrap(), FileKind::Ledger(newest_version()));
    let left: i64 = file.query_row("SELECT count(*) FROM checks", [], |row| row.get(0)).unwrap();
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
fn migration_keeps_a_copy_of_the_ledger_until_the_next_migration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let mut file = Connection::open(&path).unwrap();
    let earlier = MIGRATIONS.len() - 1;
    apply_migrations(&mut file, &MIGRATIONS[..earlier]).unwrap();
    drop(file);
    let [older, foreign] =
        ["before-3", "before-lunch"].map(|name| folder.path().join(format!("ledger.db.{name}")));
    for file in [&older, &foreign] {
        std::fs::write(file, "").unwrap();
    }
    let copy = folder.path().join(format!("ledger.db.before-{}", newest_version()));
    let clock: crate::store::Clock = Arc::new(|| Duration::from_secs(9));
    for _ in 0..2 {
        drop(Store::serve(&path, Arc::clone(&clock)).unwrap());
        let file = Connection::open(&copy).unwrap();
        assert_eq!(file_kind(&file).unwrap(), FileKind::Ledger(i64::try_from(earlier).unwrap()));
    }
    assert!(!older.exists() && foreign.exists());

    let fresh = folder.path().join("fresh.db");
    drop(Store::serve(&fresh, clock).unwrap());
    let of_fresh = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("fresh.db.before");
    let mut names = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!names.any(|name| of_fresh(&name)));
}

#[test]
fn migration_without_room_for_a_copy_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let mut file = Connection::open(&path).unwrap();
    apply_migrations(&mut file, &MIGRATIONS[..MIGRATIONS.len() - 1]).unwrap();
    drop(file);
    let copy = folder.path().join(format!("ledger.db.before-{}", newest_version()));
    std::fs::create_dir_all(
        copy.with_file_name(format!("{}.partial/in", copy.file_name().unwrap().display())),
    )
    .unwrap();
    let refused = Store::serve(&path, Arc::new(|| Duration::from_secs(9))).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("it must be migrated, and its copy"), "{text}");
    assert!(text.contains("needs up to 1 MiB"), "{text}");
    let file = Connection::open(&path).unwrap();
    let earlier = i64::try_from(MIGRATIONS.len() - 1).unwrap();
    assert_eq!(file_kind(&file).unwrap(), FileKind::Ledger(earlier), "it stays as it was");
}
