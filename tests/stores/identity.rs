//! The ledger's public name: it stays as long as every purchase is there, and changes when some may be missing.
//! And the file itself: checked when it is not as the last server closed it, and missed when it is gone.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tollgate::ledger::{AccountStatus, Clock, OpenError, ReserveError, Settlement, Store};

use crate::disk::eventually;
use crate::fixture::*;
use crate::moment::moment;

fn serve(path: &Path, clock: Clock) -> Store {
    Store::serve(path, clock).expect("it opens")
}

/// The name that the next server has, which closes it again.
fn next_name(path: &Path, clock: Clock) -> Arc<str> {
    serve(path, clock).name()
}

fn with(path: &Path, statements: &str) {
    Connection::open(path).unwrap().execute_batch(statements).unwrap();
}

async fn sell(ledger: &Store, count: usize) {
    for _ in 0..count {
        let reservation = reservation("ann", PRICE);
        bounded(ledger.reserve(&reservation)).await.unwrap();
        bounded(ledger.mark_sent(reservation.id, AccountStatus::Confirmed)).await.unwrap();
        bounded(ledger.settle(reservation.id, Settlement::Released)).await.unwrap();
    }
}

/// Leaves the files as a killed server does: a copy of them, made while it runs, is put in their place.
fn kill(ledger: Store, path: &Path) {
    let left = path.with_file_name("left.db");
    copy(path, &left);
    drop(ledger);
    copy(&left, path);
}

struct Place {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    clock: Clock,
}

fn place() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    Place { _folder: folder, path, clock: Fixture::in_memory(Default::default()).clock() }
}

#[tokio::test]
async fn ledger_name_survives_restarts_and_crashes_in_one_boot() {
    let Place { path, clock, .. } = &place();
    let ledger = serve(path, clock.clone());
    let name = ledger.name();
    sell(&ledger, 3).await;
    drop(ledger);
    let ledger = serve(path, clock.clone());
    assert_eq!(ledger.name(), name);
    sell(&ledger, 3).await;
    kill(ledger, path);
    assert_eq!(next_name(path, clock.clone()), name);
    // Commands write beside it and in its place.
    drop(Store::open_shared(path, clock.clone()).unwrap());
    drop(Store::open_exclusive(path, clock.clone()).unwrap());
    assert_eq!(next_name(path, clock.clone()), name);
}

#[tokio::test]
async fn ledger_name_changes_after_a_system_crash_only() {
    let Place { path, clock, .. } = &place();
    let ledger = serve(path, clock.clone());
    let name = ledger.name();
    sell(&ledger, 1).await;
    kill(ledger, path);
    with(path, "UPDATE identity SET boot = 'an earlier one'");
    let after = next_name(path, clock.clone());
    assert_ne!(after, name);
    // What was closed may be opened in another boot.
    assert_eq!(next_name(path, clock.clone()), after);
}

#[tokio::test]
async fn ledger_name_changes_when_a_backup_is_restored_in_place() {
    let Place { path, clock, .. } = &place();
    let backup = path.with_file_name("backup.db");
    for is_killed in [false, true] {
        let ledger = serve(path, clock.clone());
        let name = ledger.name();
        sell(&ledger, 1).await;
        with(path, &format!("VACUUM INTO '{}'", backup.display()));
        sell(&ledger, 1).await;
        if is_killed {
            kill(ledger, path)
        } else {
            drop(ledger)
        }
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
        let before = inode(path);
        fs::write(path, fs::read(&backup).unwrap()).unwrap();
        let _ = fs::remove_file(beside(path, "-wal"));
        let _ = fs::remove_file(beside(path, "-shm"));
        assert_eq!(inode(path), before);
        assert_ne!(next_name(path, clock.clone()), name, "killed: {is_killed}");
        fs::remove_file(&backup).unwrap();
    }
}

#[tokio::test]
async fn ledger_name_changes_even_if_a_command_opened_the_backup_first() {
    let Place { path, clock, .. } = &place();
    let backup = path.with_file_name("backup.db");
    let ledger = serve(path, clock.clone());
    let name = ledger.name();
    let reservation = reservation("ann", PRICE);
    bounded(ledger.reserve(&reservation)).await.unwrap();
    with(path, &format!("VACUUM INTO '{}'", backup.display()));
    // It is charged after the backup, which a server would take for one that was never sent.
    bounded(ledger.mark_sent(reservation.id, AccountStatus::Confirmed)).await.unwrap();
    bounded(ledger.settle(reservation.id, Settlement::Unknown)).await.unwrap();
    drop(ledger);
    fs::write(path, fs::read(&backup).unwrap()).unwrap();
    drop(Store::open_exclusive(path, clock.clone()).unwrap());
    assert_ne!(next_name(path, clock.clone()), name);
}

#[tokio::test]
async fn ledger_name_changes_when_an_earlier_runs_backup_is_restored() {
    let Place { path, clock, .. } = &place();
    let name = next_name(path, clock.clone());
    let backup = fs::read(path).unwrap();
    let ledger = serve(path, clock.clone());
    assert_eq!(ledger.name(), name);
    sell(&ledger, 1).await;
    drop(ledger);
    fs::write(path, backup).unwrap();
    assert_ne!(next_name(path, clock.clone()), name);
}

#[tokio::test]
async fn ledger_name_changes_with_another_file_or_a_missing_lock_file() {
    let Place { path, clock, .. } = &place();
    let other = path.with_file_name("other.db");
    let names = [path, &other].map(|path| next_name(path, clock.clone()));
    assert_ne!(names[0], names[1]);
    fs::rename(&other, path).unwrap();
    let found = next_name(path, clock.clone());
    assert!(!names.contains(&found), "it cannot tell how old that file is");
    fs::remove_file(beside(path, ".lock")).unwrap();
    assert_ne!(next_name(path, clock.clone()), found);
}

/// Something that only a check of the whole file finds.
const DAMAGE: &str = "UPDATE spent SET micros = micros + 1";

#[tokio::test]
async fn whole_file_is_checked_only_after_an_unclean_end() {
    let Place { path, clock, .. } = &place();
    let ledger = serve(path, clock.clone());
    sell(&ledger, 1).await;
    // Beside a server, nothing is checked.
    with(path, DAMAGE);
    drop(Store::open_shared(path, clock.clone()).expect("commands work"));
    drop(ledger);
    // Closed by a server, as it is.
    drop(serve(path, clock.clone()));

    let ledger = serve(path, clock.clone());
    kill(ledger, path);
    let refused = Store::serve(path, clock.clone()).unwrap_err();
    assert!(matches!(&refused, OpenError::Unusable(why) if why.text.contains("sum")), "{refused}");
    let refused = Store::open_exclusive(path, clock.clone()).unwrap_err();
    assert!(matches!(&refused, OpenError::Unusable(why) if why.text.contains("sum")), "{refused}");

    let Place { path, clock, .. } = &place();
    let ledger = serve(path, clock.clone());
    sell(&ledger, 1).await;
    drop(ledger);
    with(path, DAMAGE);
    let refused = Store::serve(path, clock.clone()).unwrap_err();
    assert!(matches!(&refused, OpenError::Unusable(why) if why.text.contains("sum")), "{refused}");
}

#[tokio::test]
async fn command_on_a_stopped_ledger_closes_it_as_the_server_did() {
    let Place { path, clock, .. } = &place();
    let ledger = serve(path, clock.clone());
    sell(&ledger, 1).await;
    with(path, DAMAGE);
    drop(ledger);
    for _ in 0..2 {
        let command = Store::open_shared(path, clock.clone()).unwrap();
        bounded(command.record_secret([1; 32])).await.unwrap();
        drop(command);
    }
    drop(serve(path, clock.clone()));
    // What was found open is left so.
    let ledger = serve(path, clock.clone());
    kill(ledger, path);
    drop(Store::open_shared(path, clock.clone()).unwrap());
    assert!(Store::serve(path, clock.clone()).is_err());
}

#[tokio::test]
async fn ledger_sells_after_a_crash_until_the_check_finds_damage() {
    let Place { path, clock, .. } = &place();
    let start = async || start_serving(path, clock.clone()).await;
    let (ledger, mut opening) = start().await.unwrap();
    opening.wait().await.unwrap();
    opening.serve();
    sell(&ledger, 1).await;
    with(path, DAMAGE);
    kill(ledger, path);

    let (ledger, mut opening) = start().await.unwrap();
    opening.wait().await.expect("the check goes on");
    opening.serve();
    eventually(async || {
        let sold = bounded(ledger.reserve(&reservation("ann", PRICE))).await;
        matches!(sold, Err(ReserveError::Unavailable(why)) if why.0.text.contains("sum"))
    })
    .await;
    drop(ledger);

    let (_ledger, mut opening) = start().await.unwrap();
    let refused = opening.wait().await.unwrap_err();
    assert!(matches!(&refused, OpenError::Unusable(why) if why.text.contains("sum")), "{refused}");
}

#[tokio::test]
async fn start_waits_for_a_concurrent_writer() {
    let Place { path, clock, _folder } = place();
    drop(serve(&path, clock.clone()));
    let writer = Connection::open(&path).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let starting = std::thread::spawn(move || Store::serve(&path, clock).map(drop));
    for _ in 0..60 {
        moment().await;
        assert!(!starting.is_finished(), "it writes beside another writer");
    }
    writer.execute_batch("COMMIT").unwrap();
    starting.join().unwrap().expect("it waits");
}

#[tokio::test]
async fn ledger_removed_or_replaced_under_the_server_stops_sales() {
    type Exchange = (&'static str, fn(&Path));
    let exchanges: [Exchange; 4] = [
        ("removed", |path| fs::remove_file(path).unwrap()),
        ("removed", |path| fs::rename(path, path.with_file_name("away.db")).unwrap()),
        ("replaced", |path| {
            fs::rename(path, path.with_file_name("away.db")).unwrap();
            fs::copy(path.with_file_name("away.db"), path).unwrap();
        }),
        ("replaced", |path| with(path, "UPDATE identity SET nonce = zeroblob(16)")),
    ];
    for (what, exchange) in exchanges {
        let Place { path, clock, _folder } = place();
        let ledger = serve(&path, clock);
        sell(&ledger, 1).await;
        bounded(ledger.purge_expired()).await.unwrap();
        exchange(&path);
        let noticed = bounded(ledger.purge_expired()).await.unwrap_err();
        assert!(
            noticed.to_string().contains(&format!("was {what} while the server was running")),
            "{noticed}"
        );
        let refused = bounded(ledger.reserve(&reservation("ann", PRICE))).await.unwrap_err();
        assert!(
            matches!(&refused, ReserveError::Unavailable(why) if why.0.text.contains(what)),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn file_with_several_hard_links_is_refused() {
    let Place { path, clock, .. } = &place();
    let ledger = serve(path, clock.clone());
    sell(&ledger, 1).await;
    // What is in the log alone is not to be seen under the other path, which would look damaged.
    with(path, "PRAGMA wal_checkpoint(TRUNCATE)");
    let folder = path.with_file_name("elsewhere");
    fs::create_dir(&folder).unwrap();
    let link = folder.join("link.db");
    fs::hard_link(path, &link).unwrap();
    for open in [Store::serve, Store::open_exclusive] {
        let second = open(&link, clock.clone());
        let Err(OpenError::Locked { pid, .. }) = second else { panic!("{second:?}") };
        assert_eq!(pid, Some(std::process::id()));
    }
    let refused = Store::open_shared(&link, clock.clone()).unwrap_err();
    assert!(refused.to_string().contains("2 hard links"), "{refused}");
    sell(&ledger, 1).await;
    drop(ledger);
    for path in [path, &link] {
        let refused = Store::serve(path, clock.clone()).unwrap_err();
        assert!(refused.to_string().contains("2 hard links"), "{refused}");
    }
    fs::remove_file(&link).unwrap();
    let ledger = serve(path, clock.clone());
    assert_eq!(bounded(ledger.purchases_since(Duration::ZERO)).await.unwrap().len(), 2);
}

#[tokio::test]
async fn wal_grown_by_a_long_reader_is_truncated_afterwards() {
    const LIMIT: u64 = 64 << 20;
    let Place { path, clock, .. } = &place();
    let ledger = serve(path, clock.clone());
    let size = || beside(path, "-wal").metadata().unwrap().len();
    let reader = Connection::open(path).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    reader.query_row("SELECT count(*) FROM purchases", [], |_| Ok(())).unwrap();
    let body = "x".repeat(4 << 20);
    while size() <= LIMIT {
        let reservation = reservation("ann", PRICE);
        bounded(ledger.reserve(&reservation)).await.unwrap();
        bounded(ledger.mark_sent(reservation.id, AccountStatus::Confirmed)).await.unwrap();
        bounded(ledger.settle(reservation.id, charged(PRICE, &body))).await.unwrap();
    }
    reader.execute_batch("COMMIT").unwrap();
    // Nothing is sold any more, but the server goes on with what it does each minute.
    for _ in 0..2 {
        bounded(ledger.purge_expired()).await.unwrap();
    }
    bounded(ledger.purge_expired()).await.unwrap();
    assert!(size() <= LIMIT, "{}", size());
}
