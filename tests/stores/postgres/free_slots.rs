//! A purchase takes a free slot of all instances in the step that holds its price, and leaves it to
//! those that wait.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join, join_all};
use tollgate::store::{
    AccountLimit, AccountStatus, BudgetScope, Reservation, ReserveError, Settlement, SlotLimit,
    SlotRate, Store, WantedSlot,
};

use super::fleet::{LIFETIME, fleet, granted, leave, purchases, slots, turn};
use super::timed::{BEAT, Timed};
use super::wire::{Course, Wire};
use crate::cluster::Cluster;
use crate::fixture::*;
use crate::moment::until;

/// Buys, and returns whether the purchase has its slot and is marked as sent.
async fn is_sent(store: &Store, slot: WantedSlot) -> bool {
    let reservation = reservation("ann", PRICE);
    let held = store.reserve_and_send(&reservation, slot, AccountStatus::Confirmed);
    bounded(held).await.expect("held").is_sent
}

/// Buys so many, one after another, and returns how many of them got slots.
async fn sent(store: &Store, slot: impl Fn() -> WantedSlot, count: usize) -> usize {
    let mut sent = 0;
    for _ in 0..count {
        sent += usize::from(is_sent(store, slot()).await);
    }
    sent
}

#[tokio::test]
async fn purchase_takes_a_free_slot_with_its_hold() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    let (first, key) = (wanted(2), keyed("a", "p"));
    let held = one.store.reserve_and_send(&key, first, AccountStatus::Unconfirmed);
    assert!(bounded(held).await.expect("held").is_sent);
    let same = keyed("a", "p");
    let again = one.store.reserve_and_send(&same, wanted(2), AccountStatus::Confirmed);
    assert!(matches!(bounded(again).await, Err(ReserveError::Duplicate(_))), "it takes no slot");
    assert!(is_sent(&other, wanted(2)).await);
    let late = reservation("bob", PRICE);
    let held = other.reserve_and_send(&late, wanted(2), AccountStatus::Unconfirmed);
    assert!(!bounded(held).await.expect("held").is_sent, "no slot is free");
    let states =
        "SELECT string_agg(state || ' ' || unrecognised, ', ' ORDER BY number) FROM purchases";
    assert_eq!(one.database().sql(states), "sent true, sent false, held false");
    assert_eq!(one.database().sql("SELECT count(*) FROM slots"), "2");
    // It waits for its turn, and is marked by itself.
    bounded(other.mark_sent(late.id, AccountStatus::Confirmed)).await.expect("marked");
    one.store.slot_replied(first.id);
    assert_eq!(granted(&one.store, &[], 2).await, []);
    one.pass(LIFETIME - Duration::from_nanos(1));
    assert!(!is_sent(&other, wanted(2)).await);
    one.pass(Duration::from_nanos(1));
    assert!(is_sent(&other, wanted(2)).await);
}

#[tokio::test]
async fn purchase_leaves_a_free_slot_to_those_that_wait_at_any_instance() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    let eve = purchases("eve", 3);
    assert_eq!(granted(&other, &eve, 2).await, slots(&eve[..2]));
    other.release_slot(eve[0].slot);
    // Asked after all that it has written.
    bounded(other.recorded_rate_limit()).await.expect("read");
    assert!(!is_sent(&one.store, wanted(2)).await);
    assert!(!is_sent(&other, wanted(2)).await);
    one.pass(2 * SECOND);
    assert!(is_sent(&one.store, wanted(2)).await, "eve has not renewed her request");
}

#[tokio::test]
async fn purchases_of_one_transaction_share_the_free_slots() {
    let fixture = Fixture::on_postgres().await;
    let all = join_all((0..32).map(|_| is_sent(&fixture.store, wanted(12)))).await;
    // The last tenth is left to turns.
    assert_eq!(all.iter().filter(|sent| **sent).count(), 10);
    assert_eq!(fixture.database().sql("SELECT count(*) FROM slots"), "10");
    assert_eq!(granted(&fixture.store, &purchases("bob", 9), 12).await.len(), 2);
}

#[tokio::test]
async fn racing_purchases_and_turns_take_each_slot_once() {
    let one = Fixture::on_postgres().await;
    let others = [one.join().await, one.join().await];
    let taken = join_all([&one.store, &others[0], &others[1]].into_iter().map(async |store| {
        let turns = async {
            let (mut waiting, mut taken) = (purchases("bob", 20), 0);
            for _ in 0..10 {
                let granted = granted(store, &waiting, 30).await;
                leave(&mut waiting, &granted);
                taken += granted.len();
            }
            taken
        };
        let (sent, taken) = join(sent(store, || wanted(30), 20), turns).await;
        sent + taken
    }))
    .await;
    assert_eq!(taken.iter().sum::<usize>(), 30);
    assert_eq!(one.database().sql("SELECT count(*) FROM slots"), "30");
}

#[tokio::test]
async fn limit_reported_to_any_instance_applies_to_purchases() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    let assumed = SlotRate { requests: 3, period: Duration::from_secs(60) };
    let slot = || WantedSlot { limit: SlotLimit { fixed: None, assumed }, ..wanted(3) };
    assert_eq!(sent(&one.store, slot, 4).await, 2, "one is kept for the request that reports it");
    other.record_rate_limit(AccountLimit { requests: 5, window_seconds: 60 });
    bounded(other.recorded_rate_limit()).await.expect("read");
    assert_eq!(sent(&one.store, slot, 4).await, 2, "and then one for turns");
}

#[tokio::test]
async fn refusal_of_the_gateway_stops_purchases_at_all_instances() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    fleet(&one.store).block_slots(5 * SECOND);
    assert_eq!(granted(&one.store, &[], 9).await, []);
    assert!(!is_sent(&other, wanted(9)).await);
    one.pass(5 * SECOND);
    assert!(is_sent(&other, wanted(9)).await);
}

#[tokio::test(start_paused = true)]
async fn jump_of_the_databases_clock_frees_no_slot_for_purchases() {
    let fixture = Timed::new().await;
    for _ in 0..2 {
        let slot = wanted(2);
        assert!(is_sent(&fixture.store, slot).await);
        fixture.store.slot_replied(slot.id);
    }
    fixture.pass(BEAT, &[&fixture.store]).await;
    assert!(turn(&fixture.store, &[], 2).await.next_free_in.is_some());
    fixture.set_database_ahead(90 * SECOND).await;
    assert!(!is_sent(&fixture.store, wanted(2)).await);
    assert_eq!(fixture.database().sql("SELECT count(*) FROM slots"), "2");
}

#[tokio::test]
async fn purchases_and_turns_read_no_slots_that_are_free_again() {
    let mut fixture = Fixture::on_postgres().await;
    let nanos = (START - HOUR).as_nanos();
    let past = format!(
        "INSERT INTO slots (id, owner, at, replied)
         SELECT gen_random_uuid(), 0, {nanos} - n, {nanos} FROM generate_series(1, 20000) AS n"
    );
    fixture.database().sql(&past);
    fixture.database().sql("ANALYZE slots");
    assert!(is_sent(&fixture.store, wanted(9)).await);
    assert_eq!(granted(&fixture.store, &purchases("bob", 1), 9).await.len(), 1);
    fixture.stop();
    // A connection reports what it has read when it ends.
    let open = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'tollgate %'";
    until("all have ended", async || fixture.database().sql(open) == "0").await;
    let read =
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'slots'";
    let read: u64 = fixture.database().sql(read).parse().expect("a count");
    assert!((1..1_000).contains(&read), "{read} rows");
}

/// If the task of a purchase ends while its hold is in flight, the release must not overtake the hold.
#[tokio::test(start_paused = true)]
async fn slot_of_a_purchase_that_is_dropped_before_its_answer_is_free() {
    let fixture = Timed::new().await;
    let wire = Wire::to(Cluster::shared().address()).await;
    let store = fixture.join_at(&fixture.database().url_at(wire.address)).await;
    let purchase = Reservation { caller: "marked-ann".into(), ..keyed("a", "p") };
    let slot = wanted(9);
    wire.set(Course::Hold("marked-ann"));
    let mut held = Box::pin(store.reserve_and_send(&purchase, slot, AccountStatus::Confirmed));
    assert!(held.as_mut().now_or_never().is_none());
    bounded(wire.is_holding()).await;
    drop(held);
    store.release_slot(slot.id);
    store.settle_later(purchase.id, Settlement::Released);
    // A turn comes after the release.
    assert_eq!(granted(&store, &[], 9).await, []);
    wire.set(Course::Pass);
    let spent = bounded(store.current_spend(BudgetScope::Total)).await.expect("counted");
    assert_eq!(spent.day, Default::default());
    assert_eq!(fixture.database().sql("SELECT state FROM purchases"), "released");
    assert_eq!(fixture.database().sql("SELECT count(*) FROM slots"), "0");
}
