//! Idempotency keys and fingerprints in a file: after a crash, beside another process, on a full disk.

use std::time::Duration;

use tollgate::ledger::{
    AccountStatus, Reservation, ReserveError, Settlement, Store, StoreCapacity,
};

use crate::fixture::*;

const FEW: StoreCapacity =
    StoreCapacity { replies: 1_000, reply_bytes: 1 << 20, ended_purchases: 250_000, pages: None };

/// A later one need not be larger.
fn key(number: u32) -> String {
    format!("{:08x}", number.wrapping_mul(2_654_435_761))
}

/// Every other purchase has no key.
fn purchase(fixture: &Fixture, number: u32) -> Reservation {
    match number % 2 {
        0 => keyed(&key(number), "p"),
        _ => fixture.duplicate(&key(number), Duration::ZERO, false),
    }
}

async fn is_known(ledger: &Store, key: &str) -> bool {
    is_duplicate(ledger, &keyed(key, "p")).await
}

async fn is_duplicate(ledger: &Store, again: &Reservation) -> bool {
    matches!(bounded(ledger.reserve(again)).await, Err(ReserveError::Duplicate(_)))
}

#[tokio::test]
async fn keys_survive_a_crash_at_any_time() {
    let fixture = Fixture::on_disk(FEW);
    for number in 0..500 {
        fixture.buy(&purchase(&fixture, number), "a reply").await;
        if number % 50 != 49 {
            continue;
        }
        let copied = fixture.path().with_file_name(format!("copy-{number}.db"));
        copy(&fixture.path(), &copied);
        let later = Store::serve_with(&copied, fixture.clock(), FEW, None).unwrap();
        for earlier in 0..=number {
            let again = purchase(&fixture, earlier);
            assert!(is_duplicate(&fixture.store, &again).await, "{earlier} of {number}");
            assert!(is_duplicate(&later, &again).await, "{earlier} of {number}, after a crash");
        }
    }
}

#[tokio::test]
async fn key_of_the_server_is_known_beside_it_and_the_other_way_round() {
    let fixture = Fixture::on_disk(Default::default());
    let beside = Store::open_shared(&fixture.path(), fixture.clock()).unwrap();
    fixture.buy(&keyed("a", "p"), "a reply").await;
    assert!(is_known(&beside, "a").await);
    bounded(beside.reserve(&keyed("b", "p"))).await.unwrap();
    assert!(is_known(&fixture.store, "b").await);
}

#[tokio::test]
async fn key_that_was_given_up_leads_to_its_latest_purchase_in_each_process() {
    let fixture = Fixture::on_disk(FEW);
    let beside = Store::open_shared(&fixture.path(), fixture.clock()).unwrap();
    let fill = async |numbers: std::ops::Range<u32>| {
        for number in numbers {
            fixture.buy(&keyed(&key(number), "p"), "a reply").await;
        }
    };
    let unknown = async |name| {
        let id = fixture.send(&keyed(name, "p")).await;
        fixture.settle(id, Settlement::Unknown).await;
        id
    };
    let release = async |id| bounded(beside.settle(id, Settlement::Released)).await.unwrap();

    // Another process sells it.
    release(unknown("a").await).await;
    let again = keyed("a", "p");
    bounded(beside.reserve(&again)).await.unwrap();
    bounded(beside.mark_sent(again.id, AccountStatus::Confirmed)).await.unwrap();
    assert!(is_known(&fixture.store, "a").await && is_known(&beside, "a").await);
    fill(0..150).await;
    assert!(is_known(&fixture.store, "a").await && is_known(&beside, "a").await);

    // The server sells it.
    let id = unknown("b").await;
    fill(150..300).await;
    release(id).await;
    fixture.buy(&keyed("b", "p"), "a reply").await;
    assert!(is_known(&fixture.store, "b").await && is_known(&beside, "b").await);

    let copied = fixture.path().with_file_name("copy.db");
    copy(&fixture.path(), &copied);
    let later = Store::serve_with(&copied, fixture.clock(), FEW, None).unwrap();
    assert!(is_known(&later, "a").await && is_known(&later, "b").await);
}

#[tokio::test]
async fn keys_are_known_after_the_disk_is_full() {
    let capacity = StoreCapacity { pages: Some(60), ..FEW };
    let fixture = Fixture::on_disk(capacity);
    let mut bought = 0;
    while fixture.reserve(&keyed(&key(bought), "p")).await.is_ok() {
        bought += 1;
        assert!(bought < 10_000, "the disk never fills");
    }
    assert_eq!(fixture.total().await.day, times(bought.into()));
    for number in 0..bought {
        assert!(is_known(&fixture.store, &key(number)).await, "{number} of {bought}");
    }
}
