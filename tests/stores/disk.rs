//! The file: who may have it, who may see it, and what happens when it cannot be written or used.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    AccountStatus, BudgetScope, MoneyKind, OpenError, PurchaseState, ReserveError, Settlement,
    Store, StoreCapacity,
};

use crate::fixture::*;
use crate::jobs::job;

#[tokio::test]
async fn second_server_is_told_the_lock_holder() {
    let mut fixture = Fixture::on_disk(StoreCapacity::default());
    let other_name = fixture.path().with_file_name("other.db");
    std::os::unix::fs::symlink(fixture.path(), &other_name).unwrap();
    for path in [fixture.path(), other_name] {
        let second = Store::serve(&path, fixture.clock());
        let Err(OpenError::Locked { pid, .. }) = second else { panic!("{second:?}") };
        assert_eq!(pid, Some(std::process::id()));
    }
    fixture.buy(&reservation("ann", PRICE), "").await;
    fixture.restart();
    assert_eq!(fixture.states().await, [PurchaseState::Charged]);
}

#[tokio::test]
async fn play_money_and_real_money_never_share_a_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Fixture::in_memory(StoreCapacity::default()).clock();
    for (first, other) in [(MoneyKind::Play, MoneyKind::Real), (MoneyKind::Real, MoneyKind::Play)] {
        let path = folder.path().join(format!("{first:?}.db"));
        drop(
            Store::serve_with(&path, clock.clone(), StoreCapacity::default(), Some(first)).unwrap(),
        );
        let refused =
            Store::serve_with(&path, clock.clone(), StoreCapacity::default(), Some(other))
                .unwrap_err();
        assert!(matches!(refused, OpenError::Unusable(_)), "{refused}");
        let says = refused.to_string();
        assert!(says.contains("other kind of money") && says.contains(".db"), "{says}");
        drop(
            Store::serve_with(&path, clock.clone(), StoreCapacity::default(), Some(first))
                .expect("it stays what it was"),
        );
    }
}

#[tokio::test]
async fn ledger_files_are_private_to_their_owner() {
    let fixture = Fixture::on_disk(StoreCapacity::default());
    fixture.buy(&reservation("ann", PRICE), "").await;
    let folder = fs::read_dir(fixture.path().parent().unwrap()).unwrap();
    let modes: Vec<_> = folder
        .map(|file| file.unwrap())
        .map(|file| (file.file_name(), file.metadata().unwrap().permissions().mode() & 0o777))
        .collect();
    assert_eq!(modes.len(), 4, "{modes:?}");
    assert!(modes.iter().all(|(_, mode)| *mode == 0o600), "{modes:?}");
}

#[tokio::test]
async fn readable_ledger_file_is_made_private() {
    let mut fixture = Fixture::on_disk(StoreCapacity::default());
    fixture.stop();
    fs::set_permissions(fixture.path(), fs::Permissions::from_mode(0o644)).unwrap();
    fixture.restart();
    assert_eq!(fixture.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn full_disk_refuses_purchases_until_space_is_free() {
    let mut fixture =
        Fixture::on_disk(StoreCapacity { pages: Some(60), ..StoreCapacity::default() });
    let big = "x".repeat(20_000);
    let mut bought = 0;
    let refused = loop {
        let next = reservation("ann", PRICE);
        if let Err(refused) = fixture.reserve(&next).await {
            break refused;
        }
        let _ = fixture.store.mark_sent(next.id, AccountStatus::Confirmed).await;
        // A reply that finds no capacity leaves its purchase as it was, and one without a reply may still fit.
        if fixture.store.settle(next.id, charged(PRICE, &big)).await.is_err() {
            let bare = Settlement::Charged { cost: PRICE, reply: None, keep: HOUR, job: None };
            let _ = fixture.store.settle(next.id, bare).await;
        }
        bought += 1;
        assert!(bought < 10_000, "the disk never fills");
    };
    assert!(matches!(refused, ReserveError::Unavailable(_)), "{refused:?}");
    let spent = fixture.total().await.day;
    assert_eq!(spent, Usd::mills(6 * bought), "a refused reservation leaves nothing behind");

    // The replies' time comes, and there is capacity again, without a restart.
    fixture.pass(25 * HOUR);
    fixture.store.purge_expired().await.unwrap();
    fixture.buy(&reservation("ann", PRICE), "hello").await;
    fixture.restart();
    assert_eq!(fixture.states().await.len() as u64, bought + 1);
}

#[tokio::test]
async fn settlement_is_retried_after_a_full_disk() {
    let fixture = Fixture::on_disk(StoreCapacity { pages: Some(60), ..StoreCapacity::default() });
    let id = fixture.send(&reservation("ann", PRICE)).await;
    fixture.store.settle_later(id, charged(PRICE, &"x".repeat(500_000)));
    assert_eq!(fixture.total().await.day, PRICE);
    assert_eq!(fixture.states().await, [PurchaseState::Sent]);
    // Another process gives the ledger's capacity back.
    fixture.settle(id, Settlement::Released).await;
    eventually(async || fixture.states().await == [PurchaseState::Released]).await;
}

#[tokio::test]
async fn charge_and_job_commit_together() {
    let fixture = Fixture::on_disk(StoreCapacity { pages: Some(60), ..StoreCapacity::default() });
    let reservation = reservation("ann", PRICE);
    let id = fixture.send(&reservation).await;
    let job = job("r-1", "ann");
    let accepted = |body: &str| {
        let Settlement::Charged { cost, reply, keep, .. } = charged(PRICE, body) else {
            unreachable!()
        };
        Settlement::Charged { cost, reply, keep, job: Some(Box::new(job.clone())) }
    };
    let known = async || bounded(fixture.store.find_job("r-1".into())).await.unwrap();
    // Whatever does not fit takes the rest with it.
    let refused = fixture.store.settle(id, accepted(&"x".repeat(500_000))).await;
    assert!(refused.is_err());
    assert_eq!((known().await, fixture.states().await), (None, vec![PurchaseState::Sent]));
    fixture.store.settle_later(id, accepted("hello"));
    eventually(async || fixture.states().await == [PurchaseState::Charged]).await;
    assert_eq!(known().await, Some(job.clone()));
}

#[tokio::test]
async fn changes_beside_a_server_apply_at_once() {
    let fixture = Fixture::on_disk(StoreCapacity::default());
    let id = fixture.send(&keyed("k", "p")).await;
    fixture.settle(id, Settlement::Unknown).await;

    let beside = Store::open_shared(&fixture.path(), fixture.clock()).unwrap();
    bounded(beside.settle(id, charged(Usd::mills(7), "found"))).await.unwrap();
    assert_eq!(fixture.replayed(&keyed("k", "p")).await, Some(reply("found")));
    assert_eq!(fixture.total().await.day, Usd::mills(7));

    fixture.buy(&reservation("bob", PRICE), "").await;
    assert_eq!(
        bounded(beside.current_spend(BudgetScope::Total)).await.unwrap().day,
        Usd::mills(13)
    );
    drop(beside);
    fixture.buy(&reservation("bob", PRICE), "").await;
}

#[tokio::test]
async fn second_process_cannot_serve_but_may_write_shared() {
    let fixture = Fixture::on_disk(StoreCapacity::default());
    let id = fixture.send(&keyed("k", "p")).await;
    fixture.settle(id, Settlement::Unknown).await;
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "disk::the_other_process"])
        .current_dir(fixture.path().parent().unwrap())
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    assert_eq!(fixture.replayed(&keyed("k", "p")).await, Some(reply("from the other process")));
    fixture.buy(&reservation("ann", PRICE), "").await;
    assert_eq!(fixture.total().await.day, Usd::mills(13));
}

/// What the test above runs in a process of its own, in the ledger's folder; there is none elsewhere.
#[tokio::test]
async fn the_other_process() {
    let path = Path::new("ledger.db");
    if !path.exists() {
        return;
    }
    let clock = Fixture::in_memory(StoreCapacity::default()).clock();
    let Err(OpenError::Locked { pid, .. }) = Store::serve(path, clock.clone()) else {
        panic!("the lock does not hold across processes");
    };
    assert_eq!(pid, Some(std::os::unix::process::parent_id()));
    let beside = Store::open_shared(path, clock).unwrap();
    let unknown = bounded(beside.purchases_since(Duration::ZERO)).await.unwrap()[0].id;
    let found = charged(Usd::mills(7), "from the other process");
    bounded(beside.settle(unknown, found)).await.unwrap();
}

#[tokio::test]
async fn reader_reads_beside_a_server_without_writing() {
    let fixture = Fixture::on_disk(StoreCapacity::default());
    let reader = Store::open_read_only(&fixture.path(), fixture.clock()).unwrap();
    let id = fixture.buy(&reservation("ann", PRICE), "").await;
    assert_eq!(bounded(reader.purchases_since(Duration::ZERO)).await.unwrap()[0].id, id);
    assert_eq!(bounded(reader.current_spend(BudgetScope::Total)).await.unwrap().day, PRICE);
    let reservation = reservation("ann", PRICE);
    let refused = bounded(reader.reserve(&reservation)).await;
    assert!(matches!(refused, Err(ReserveError::Unavailable(_))), "{refused:?}");
    fixture.buy(&keyed("k", "p"), "").await;
}

#[tokio::test]
async fn shared_open_creates_a_ledger_before_the_first_server() {
    let fixture = Fixture::on_disk(StoreCapacity::default());
    let path = fixture.path().with_file_name("later.db");
    let missing = Store::open_read_only(&path, fixture.clock());
    assert!(matches!(missing, Err(OpenError::Unusable(_))), "{missing:?}");
    assert!(!path.exists());
    drop(Store::open_shared(&path, fixture.clock()).unwrap());
    drop(Store::serve(&path, fixture.clock()).unwrap());
}

#[tokio::test]
async fn foreign_file_is_refused_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("text"), "not a database at all, but longer than its header ".repeat(20)).unwrap();
    fs::write(at("short"), "x").unwrap();
    fs::create_dir(at("folder")).unwrap();
    with(&at("foreign"), "CREATE TABLE theirs (x)");
    drop(Store::serve(&at("newer"), Fixture::in_memory(StoreCapacity::default()).clock()).unwrap());
    with(&at("newer"), "PRAGMA user_version = 99");
    drop(
        Store::serve(&at("emptied"), Fixture::in_memory(StoreCapacity::default()).clock()).unwrap(),
    );
    fs::write(at("emptied"), "").unwrap();
    fs::write(at("gone-wal"), "x").unwrap();
    let _device = std::os::unix::net::UnixListener::bind(at("device")).unwrap();

    for (name, why) in [
        ("text", "not a database"),
        ("short", "not a tollgate ledger"),
        ("folder", "it is not a regular file"),
        ("device", "it is not a regular file"),
        ("foreign", "not a tollgate ledger"),
        ("newer", "its version is 99"),
        ("emptied", "it is empty, but a server has used it"),
        ("gone", "its write-ahead log exists"),
        ("nowhere/ledger", "No such file"),
    ] {
        let before = fs::read(at(name)).ok();
        let opened = Store::serve(&at(name), Fixture::in_memory(StoreCapacity::default()).clock());
        let Err(OpenError::Unusable(said)) = &opened else { panic!("{name}: {opened:?}") };
        assert!(said.text.contains(why), "{name}: {said}");
        assert!(said.text.contains(name), "{name}: {said}");
        assert_eq!(fs::read(at(name)).ok(), before, "{name}");
    }
}

#[tokio::test]
async fn unusable_ledger_refuses_every_command() {
    let broken = Store::unusable("damaged");
    let reservation = reservation("ann", PRICE);
    assert!(matches!(broken.reserve(&reservation).await, Err(ReserveError::Unavailable(_))));
    assert!(broken.mark_sent(reservation.id, AccountStatus::Confirmed).await.is_err());
    assert!(broken.settle(reservation.id, Settlement::Released).await.is_err());
    assert!(broken.current_spend(BudgetScope::Total).await.is_err());
    assert!(broken.purchases_since(Duration::ZERO).await.is_err());
    assert!(broken.latest_checkpoint().await.is_err());
}

fn with(path: &Path, statement: &str) {
    Connection::open(path).unwrap().execute_batch(statement).unwrap();
}

/// Asks again until it is so; a minute at most.
pub(crate) async fn eventually(is_so: impl AsyncFn() -> bool) {
    bounded(async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
