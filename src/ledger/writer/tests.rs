mod threads;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use allocation_counter::measure;
use futures_util::future::join;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::*;
use crate::gateway::contract::money::Usd;
use crate::ledger::Store;
use crate::ledger::engine::Sql;
use crate::ledger::sqlite::ledger_file::{
    LedgerFile, MAX_WAL_PAGES, OpenMode, WAL_CHECKPOINT_PAGES,
};
use crate::ledger::sqlite::schema;
use crate::ledger::tables::slots;
use crate::ledger::writer::CommandReceiver;
use crate::ledger::{
    AccountLimit, AccountStatus, Budgets, DedupeKey, Held, KeptReply, PurchaseId, Reservation,
    ReserveError, Service, Settlement, SlotId, SlotLimit, SlotRate, StoreCapacity, WantedSlot,
};

const NOW: Duration = Duration::from_secs(1_763_640_000);

type Answered<T> = oneshot::Receiver<Result<T, Unavailable>>;

#[test]
fn only_expensive_purchases_are_synced() {
    let mut writer = writer();
    let (cheap, dear) = (reservation(Usd::mills(6)), reservation(Usd::mills(100)));
    for (asked, weight, synchronous) in [
        (&cheap, Durability::Buffered, 1),
        (&dear, Durability::Synced, 2),
        (&cheap, Durability::OfPurchase(cheap.id), 1),
    ] {
        let asked = asked.clone();
        writer.process(vec![request(weight, move |ledger| ledger.reserve(&asked, None)).0]);
        assert_eq!(level(&writer), synchronous, "{weight:?}");
    }
    let settle = |id| {
        request(Durability::OfPurchase(id), move |ledger| ledger.settle(id, &Settlement::Released))
            .0
    };
    writer.process(vec![settle(cheap.id), settle(dear.id)]);
    assert_eq!(level(&writer), 2, "one dear step makes its batch wait");
    writer.process(vec![settle(cheap.id)]);
    assert_eq!(level(&writer), 1);
}

#[test]
fn failed_command_is_rolled_back_alone() {
    let mut writer = writer();
    let (first, first_answer) = reserve(Usd::mills(1));
    let (broken, broken_answer) = request(Durability::Buffered, |ledger| {
        ledger.db.run("DELETE FROM purchases", ())?;
        Err::<(), _>(Unavailable("on purpose".into()).into())
    });
    let (last, last_answer) = reserve(Usd::mills(2));
    writer.process(vec![first, broken, last]);
    assert!(reply(first_answer).is_ok() && reply(last_answer).is_ok());
    assert_eq!(reply(broken_answer).unwrap_err().0.text.as_ref(), "on purpose");
    assert_eq!(purchases(&writer), 2);
}

#[test]
fn failed_write_stops_all_writing_until_restart() {
    let mut writer = writer();
    let (first, first_answer) = reserve(Usd::mills(1));
    let (broken, _) = request(Durability::Buffered, |_| {
        Err::<(), _>(StoreError::Permanent(Unavailable("the disk broke".into())))
    });
    writer.process(vec![first, broken]);
    assert_eq!(reply(first_answer).unwrap_err().0.text.as_ref(), "the disk broke");
    let (later, later_answer) = reserve(Usd::mills(1));
    writer.process(vec![later]);
    assert_eq!(reply(later_answer).unwrap_err().0.text.as_ref(), "the disk broke");
    assert_eq!(purchases(&writer), 0);
}

#[test]
fn write_ahead_log_is_checkpointed_before_it_grows_too_large() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer_on(Connection::open(folder.path().join("ledger.db")).unwrap());
    let mode = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
    file(&writer).connection().query_row("PRAGMA journal_mode = WAL", [], mode).unwrap();
    let mut last = 0;
    loop {
        writer.process(vec![reserve(Usd::mills(1)).0]);
        let pages = file(&writer).wal_pages.load(Ordering::Relaxed);
        assert!(pages < MAX_WAL_PAGES + 100, "{pages} pages");
        if pages < last {
            break;
        }
        last = pages;
        writer.ledger.db.maintain();
    }
    assert!(last >= WAL_CHECKPOINT_PAGES, "it started over after {last} pages");
    assert!(lock(&writer.gate.fault).is_none());
}

#[test]
fn fault_of_another_thread_stops_all_writing() {
    let mut writer = writer();
    writer.gate.report_fault(StoreError::Permanent(Unavailable("it is damaged".into())));
    let (later, answer) = reserve(Usd::mills(1));
    writer.process(vec![later]);
    assert_eq!(reply(answer).unwrap_err().0.text.as_ref(), "it is damaged");
    assert_eq!(purchases(&writer), 0);
}

#[test]
fn reported_damage_is_not_replaced_by_a_fault_that_passes() {
    let mut writer = writer();
    writer.gate.report_fault(StoreError::Permanent(Unavailable("it is damaged".into())));
    writer.gate.report_fault(StoreError::Transient(Unavailable("it is locked".into())));
    let (later, answer) = reserve(Usd::mills(1));
    writer.process(vec![later]);
    assert_eq!(reply(answer).unwrap_err().0.text.as_ref(), "it is damaged");
}

#[test]
fn full_retry_queue_blocks_purchases_and_loses_nothing() {
    let mut writer = writer();
    let (is_down, done) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicI32::new(0)));
    let count = MAX_RETRIES + 50;
    for number in 0..count {
        assert_eq!(
            writer.gate.is_retry_queue_full.load(Ordering::Relaxed),
            number >= MAX_RETRIES,
            "{number}"
        );
        let (is_down, done) = (Arc::clone(&is_down), Arc::clone(&done));
        writer.process(vec![notification(Durability::Buffered, move |_| {
            if is_down.load(Ordering::Relaxed) {
                return Err(Unavailable("not yet".into()).into());
            }
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })]);
    }
    is_down.store(false, Ordering::Relaxed);
    let waiting = writer.retries.drain(..).collect();
    writer.process(waiting);
    assert_eq!(done.load(Ordering::Relaxed), i32::try_from(count).unwrap());
    assert!(!writer.gate.is_retry_queue_full.load(Ordering::Relaxed));
}

#[test]
fn fault_ends_after_a_write_and_a_quiet_period() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer_on(Connection::open(folder.path().join("ledger.db")).unwrap());
    let mode = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
    file(&writer).connection().query_row("PRAGMA journal_mode = WAL", [], mode).unwrap();
    writer.log_fault(&StoreError::DiskFull(Unavailable("no room".into())));
    writer.process(vec![reserve(Usd::mills(1)).0]);
    assert!(writer.incident.is_some(), "it may be full again in a moment");
    let earlier = clock::now().checked_sub(RECOVERY_PERIOD).unwrap();
    writer.incident = Some(Incident { is_disk_full: true, at: earlier });
    writer.process(vec![
        request(Durability::Buffered, |ledger| ledger.needs_sync(PurchaseId::generate())).0,
    ]);
    assert!(writer.incident.is_some(), "that was read only");
    writer.process(vec![reserve(Usd::mills(1)).0]);
    assert!(writer.incident.is_none());
}

#[test]
fn retried_limit_command_keeps_newer_limit() {
    let mut writer = writer();
    let latest = Arc::new(Mutex::new(None));
    let record = || {
        let latest = Arc::clone(&latest);
        notification(Durability::Synced, move |ledger| slots::write_latest_limit(ledger, &latest))
    };
    let limit = |requests| AccountLimit { requests, window_seconds: 60 };
    *latest.lock().unwrap() = Some(limit(60));
    let older = record();
    *latest.lock().unwrap() = Some(limit(5));
    writer.process(vec![record()]);
    // A fault had undone it.
    writer.process(vec![older]);
    assert_eq!(slots::read_rate_limit(&*writer.ledger.db).ok().flatten(), Some(limit(5)));
}

/// These counts keep what was won: each page is 4 KiB to write, and each transaction a round trip.
/// SQLite's own memory is not counted.
#[test]
fn chats_write_few_transactions_and_pages_and_allocate_little() {
    let folder = tempfile::tempdir().unwrap();
    let mut connection = Connection::open(folder.path().join("ledger.db")).unwrap();
    let mode = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
    connection.query_row("PRAGMA journal_mode = WAL", [], mode).unwrap();
    let commits = Arc::new(AtomicI32::new(0));
    let counted = Arc::clone(&commits);
    let count = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        false
    };
    connection.commit_hook(Some(count)).unwrap();
    let mut writer = writer_on(connection);
    // The tree of keys that wait has a node for every six or eleven.
    for (chats, max_pages, max_allocations) in [(1, 10, 20), (16, 17, 130)] {
        let mut buy = || {
            let (holds, settlements) = (0..chats).map(|_| chat()).unzip();
            let settlements: Vec<Vec<_>> = settlements;
            let before = file(&writer).wal_pages.load(Ordering::Relaxed);
            let allocations = measure(|| writer.process(holds)).count_total
                + measure(|| writer.process(settlements.into_iter().flatten().collect()))
                    .count_total;
            let pages = file(&writer).wal_pages.load(Ordering::Relaxed) - before;
            (commits.swap(0, Ordering::Relaxed), pages, allocations)
        };
        buy();
        let bought: Vec<_> = (0..10).map(|_| buy()).collect();
        assert!(bought.iter().all(|(transactions, ..)| *transactions == 2), "{bought:?}");
        let pages = bought.iter().map(|(_, pages, _)| *pages).min().unwrap();
        let allocations = bought.iter().map(|(.., allocations)| *allocations).min().unwrap();
        println!("{chats} chats: {pages} pages, {allocations} allocations");
        assert!(pages <= max_pages && allocations <= max_allocations, "{chats} chats");
    }
}

/// The commands of a chat: what holds its price, and what settles it.
fn chat() -> (Box<dyn WriteCommand>, Vec<Box<dyn WriteCommand>>) {
    let (asked, slot) = (reservation(Usd::mills(6)), SlotId::generate());
    let id = asked.id;
    let rate = SlotRate { requests: 60, period: Duration::from_secs(60) };
    let wanted = WantedSlot { id: slot, limit: SlotLimit { fixed: None, assumed: rate } };
    let send = Some((wanted, AccountStatus::Confirmed));
    let reserve = move |ledger: &Ledger| ledger.reserve(&asked, send);
    let hold = request(Durability::Buffered, reserve).0;
    let reply = KeptReply { status: 200, is_json: true, body: vec![b'x'; 250].into() };
    let (cost, keep) = (Usd::mills(6), Duration::from_secs(60));
    let end = Settlement::Charged { cost, reply: Some(reply), keep, job: None };
    let replied = move |ledger: &Ledger| slots::replied(ledger, slot, (NOW, NOW));
    let settle = move |ledger: &Ledger| ledger.settle(id, &end);
    let settle = request(Durability::OfPurchase(id), settle).0;
    (hold, vec![notification(Durability::Buffered, replied), settle])
}

/// Each change of a row is written with its checks, so duplicates that come together share one.
#[test]
fn replays_of_one_purchase_in_a_transaction_change_it_once() {
    let mut writer = writer();
    let (asked, other) = (reservation(Usd::mills(6)), reservation(Usd::mills(6)));
    for asked in [&asked, &other].map(Clone::clone) {
        let hold = move |ledger: &Ledger| ledger.reserve(&asked, None);
        writer.process(vec![request(Durability::Buffered, hold).0]);
    }
    let replay = |id| {
        notification(Durability::Buffered, move |ledger: &Ledger| {
            ledger.count_replay(id);
            Ok(())
        })
    };
    let before = file(&writer).connection().total_changes();
    let broken =
        request(Durability::Buffered, |_| Err::<(), _>(Unavailable("on purpose".into()).into()));
    writer.process(vec![replay(asked.id), broken.0]);
    assert_eq!(file(&writer).connection().total_changes() - before, 1, "counted once");
    writer.process(vec![replay(asked.id), replay(other.id), replay(asked.id)]);
    assert_eq!(file(&writer).connection().total_changes() - before, 3);
    let counts = "SELECT replays FROM purchases ORDER BY number";
    let counts = writer.ledger.db.all(counts, (), |row| row.get::<i64>(0)).unwrap();
    assert_eq!(counts, [3, 1]);
}

#[test]
fn deferred_command_joins_the_next_transaction() {
    let mut writer = writer();
    let commands = CommandReceiver::default();
    let queue = commands.queue();
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |name| {
        let order = Arc::clone(&order);
        notification(Durability::Buffered, move |_| {
            order.lock().unwrap().push(name);
            Ok(())
        })
    };
    queue.defer(note("deferred"));
    drop(queue.push(note("next")));
    let batch = writer.next_batch(&commands).unwrap();
    assert_eq!(batch.len(), 2);
    writer.process(batch);
    assert_eq!(*order.lock().unwrap(), ["deferred", "next"]);

    // No other answer comes.
    queue.defer(note("alone"));
    let batch = writer.next_batch(&commands).unwrap();
    writer.process(batch);
    queue.defer(note("last"));
    queue.close();
    writer.run(&commands);
    assert_eq!(*order.lock().unwrap(), ["deferred", "next", "alone", "last"]);
}

fn charged(reply_bytes: usize) -> Settlement {
    let body = vec![b'x'; reply_bytes].into();
    let reply = Some(KeptReply { status: 200, is_json: true, body });
    Settlement::Charged { cost: Usd::mills(1), reply, keep: Duration::from_secs(60), job: None }
}

/// Runs a test with a store whose log has begun, and that has counted its replies.
fn on_file(test: impl AsyncFnOnce(Store, &Path)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let capacity = StoreCapacity::default();
    let store = Store::serve_with(&path, Arc::new(|| NOW), capacity, None).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let first = reservation(Usd::mills(1));
        store.reserve(&first).await.unwrap();
        store.settle(first.id, charged(1)).await.unwrap();
        test(store, &path).await;
    });
}

fn writer() -> Writer {
    writer_on(Connection::open_in_memory().unwrap())
}

fn writer_on(mut connection: Connection) -> Writer {
    schema::migrate(&mut connection).unwrap();
    let gate = CommandGate::default();
    let file =
        LedgerFile::new(connection, OpenMode::Write, (Arc::new(|| NOW), Arc::new(|| NOW)), &gate)
            .unwrap();
    Writer::new(Ledger::new(Box::new(file), StoreCapacity::default()), &gate)
}

fn file(writer: &Writer) -> &LedgerFile {
    LedgerFile::of(&*writer.ledger.db).unwrap()
}

fn reservation(price: Usd) -> Reservation {
    let id = PurchaseId::generate();
    let mut key = [0; 32];
    key[..16].copy_from_slice(id.0.as_bytes());
    Reservation {
        id,
        caller: "ann".into(),
        service: Service::Chat,
        model: "alpha".into(),
        price,
        dedupe_key: DedupeKey::IdempotencyKey { key, payload: key },
        group: None,
        token: None,
        budgets: Budgets::default(),
        attempt: 0,
        replay_only: false,
        requires: Default::default(),
    }
}

fn reserve(price: Usd) -> (Box<dyn WriteCommand>, Answered<Result<Held, ReserveError>>) {
    let asked = reservation(price);
    request(Durability::Buffered, move |ledger| ledger.reserve(&asked, None))
}

fn reply<T>(mut answer: Answered<T>) -> Result<T, Unavailable> {
    answer.try_recv().expect("an answer")
}

fn level(writer: &Writer) -> i64 {
    file(writer).connection().pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap()
}

fn purchases(writer: &Writer) -> i64 {
    let count = "SELECT count(*) FROM purchases";
    file(writer).connection().query_row(count, [], |row| row.get(0)).unwrap()
}

/// While a failing command is retried, others get their answers.
#[test]
fn commands_and_due_retries_take_turns() {
    let mut writer = writer();
    let commands = CommandReceiver::default();
    let queue = commands.queue();
    let fails = |_: &Ledger| Err(Unavailable("on purpose".into()).into());
    writer.process(vec![notification(Durability::Buffered, fails)]);
    for _ in 0..3 {
        // Each batch takes so long that the retry is due once more.
        writer.next_retry = clock::now();
        let retries = writer.next_batch(&commands).unwrap();
        assert_eq!(retries.len(), 1);
        writer.process(retries);
        writer.next_retry = clock::now();
        let (command, mut answered) = request(Durability::Buffered, |_| Ok(()));
        drop(queue.push(command));
        let batch = writer.next_batch(&commands).unwrap();
        writer.process(batch);
        assert!(answered.try_recv().is_ok_and(|answer| answer.is_ok()));
    }
}
