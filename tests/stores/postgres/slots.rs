//! Servers share the gateway's rate limit.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tollgate::ledger::{
    AccountLimit, AccountStatus, BudgetScope, DedupeKey, ReserveError, Settlement, SlotAnswer,
    SlotLimit, SlotRate, Store, WantedSlot,
};

use super::wire::Course;
use super::{ann, behind_a_wire, hasty};
use crate::cluster::Cluster;
use crate::fixture::*;
use crate::moment::until;

/// The period of the tests' rate limit, and the thousandth by which clocks may differ.
const LIFETIME: Duration = Duration::from_millis(60_060);

async fn take(store: &Store, limit: u64) -> SlotAnswer {
    bounded(store.take_free_slot(wanted(limit))).await.expect("an answer")
}

/// Buys, and returns whether the purchase has its slot and is marked as sent.
async fn is_sent(store: &Store, slot: WantedSlot) -> bool {
    let reservation = reservation("ann", PRICE);
    let held = store.reserve_and_send(&reservation, slot, AccountStatus::Confirmed);
    bounded(held).await.expect("held").is_sent
}

#[tokio::test]
async fn servers_never_exceed_the_rate_limit_together() {
    let fixture = Fixture::on_postgres().await;
    let other = fixture.join().await;
    let (first, second) = (wanted(2), wanted(2));
    assert!(is_sent(&fixture.store, first).await && is_sent(&other, second).await);
    assert!(!is_sent(&fixture.store, wanted(2)).await, "it only holds");
    let full = take(&other, 2).await;
    assert_eq!((full.is_taken, full.next_free_in), (false, None), "none has a reply");
    fixture.pass(SECOND);
    fixture.store.slot_replied(first.id);
    other.release_slot(second.id);
    until("it is free", async || take(&other, 2).await.is_taken).await;
    until("the reply is recorded", async || take(&other, 2).await.next_free_in.is_some()).await;
    assert_eq!(take(&fixture.store, 2).await.next_free_in, Some(LIFETIME));
    fixture.pass(LIFETIME - Duration::from_nanos(1));
    assert!(!take(&fixture.store, 2).await.is_taken);
    fixture.pass(Duration::from_nanos(1));
    assert!(take(&fixture.store, 2).await.is_taken && !take(&other, 2).await.is_taken);
}

#[tokio::test]
async fn purchase_takes_a_free_slot_with_its_hold() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    let key = keyed("a", "p");
    let held = one.store.reserve_and_send(&key, wanted(2), AccountStatus::Unconfirmed);
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
    assert_eq!(one.database().sql(states), "sent 1, sent 0, held 0");
    assert_eq!(one.database().sql("SELECT count(*) FROM slots"), "2");
    // It waits for its slot, and is marked by itself.
    bounded(other.mark_sent(late.id, AccountStatus::Confirmed)).await.expect("marked");
}

#[tokio::test]
async fn racing_servers_take_each_slot_once() {
    let fixture = Fixture::on_postgres().await;
    let others = [fixture.join().await, fixture.join().await];
    let race = [&fixture.store, &others[0], &others[1]].into_iter().map(async |store| {
        let mut taken = 0;
        for _ in 0..10 {
            taken += usize::from(take(store, 30).await.is_taken);
            taken += usize::from(is_sent(store, wanted(30)).await);
        }
        taken
    });
    assert_eq!(join_all(race).await.iter().sum::<usize>(), 30);
    assert_eq!(fixture.database().sql("SELECT count(*) FROM slots"), "30");
}

#[tokio::test]
async fn purchases_of_one_transaction_share_the_free_slots() {
    let fixture = Fixture::on_postgres().await;
    let all = join_all((0..32).map(|_| is_sent(&fixture.store, wanted(12)))).await;
    assert_eq!(all.iter().filter(|sent| **sent).count(), 12);
    assert_eq!(fixture.database().sql("SELECT count(*) FROM slots"), "12");
}

#[tokio::test]
async fn refusal_of_the_gateway_stops_all_servers() {
    let fixture = Fixture::on_postgres().await;
    let other = fixture.join().await;
    fixture.store.block_slots(5 * SECOND);
    fixture.store.block_slots(3 * SECOND);
    // Asked after all that it has written.
    bounded(fixture.store.recorded_rate_limit()).await.expect("read");
    assert!(!is_sent(&other, wanted(9)).await);
    let blocked = take(&other, 9).await;
    assert_eq!((blocked.is_taken, blocked.next_free_in), (false, Some(5 * SECOND)));
    fixture.pass(5 * SECOND);
    assert!(is_sent(&other, wanted(9)).await && take(&fixture.store, 9).await.is_taken);
}

#[tokio::test]
async fn limit_reported_to_any_server_applies_to_all() {
    let fixture = Fixture::on_postgres().await;
    let other = fixture.join().await;
    let assumed = SlotRate { requests: 1, period: Duration::from_secs(60) };
    let slot = || WantedSlot { limit: SlotLimit { fixed: None, assumed }, ..wanted(1) };
    assert!(is_sent(&fixture.store, slot()).await);
    let full = bounded(other.take_free_slot(slot())).await.expect("an answer");
    assert_eq!((full.is_taken, full.reported), (false, None));
    let limit = AccountLimit { requests: 3, window_seconds: 120 };
    other.record_rate_limit(limit);
    bounded(other.recorded_rate_limit()).await.expect("read");
    let answer = bounded(fixture.store.take_free_slot(slot())).await.expect("an answer");
    assert_eq!((answer.is_taken, answer.reported), (true, Some(limit)));
    assert!(is_sent(&other, slot()).await && !is_sent(&fixture.store, slot()).await);
}

#[tokio::test]
async fn slot_of_a_server_that_is_gone_comes_free_a_period_later() {
    let fixture = Fixture::on_postgres().await;
    let gone = hasty(&fixture).await;
    assert!(take(&gone, 1).await.is_taken);
    gone.close();
    let next = hasty(&fixture).await;
    fixture.pass(30 * SECOND);
    assert_eq!(take(&next, 1).await.next_free_in, None, "it may still be sent");
    fixture.pass(SECOND);
    until("it has ended", async || take(&next, 1).await.next_free_in.is_some()).await;
    fixture.pass(LIFETIME);
    assert!(take(&next, 1).await.is_taken);
}

#[tokio::test]
async fn clock_that_jumps_ahead_frees_no_slot() {
    let cluster = Cluster::with_own_clock();
    let database = cluster.database();
    let store = bounded(Store::open_database(target(&database.url()), None)).await;
    let store = store.expect("it opens");
    let slot = wanted(1);
    assert!(bounded(store.take_free_slot(slot)).await.expect("an answer").is_taken);
    store.slot_replied(slot.id);
    bounded(store.recorded_rate_limit()).await.expect("read");
    for (jumps, ahead) in [(1, 90), (2, 200)] {
        cluster.set_ahead(ahead);
        let answer = take(&store, 1).await;
        assert!(!answer.is_taken && answer.next_free_in.is_some(), "{answer:?}");
        let metrics = store.shared_metrics().expect("a shared ledger");
        assert_eq!(metrics.clock_jumps.get(), jumps);
    }
}

#[tokio::test]
async fn slots_that_are_free_again_are_not_read() {
    let mut fixture = Fixture::on_postgres().await;
    let nanos = (START - HOUR).as_nanos();
    let past = format!(
        "INSERT INTO slots (number, at, replied)
         SELECT n, {nanos} - n, {nanos} FROM generate_series(1, 20000) AS n"
    );
    fixture.database().sql(&past);
    fixture.database().sql("ANALYZE slots");
    assert!(is_sent(&fixture.store, wanted(9)).await && take(&fixture.store, 9).await.is_taken);
    fixture.stop();
    // A connection reports what it has read when it ends.
    let open = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'tollgate %'";
    until("all have ended", async || fixture.database().sql(open) == "0").await;
    let read =
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'slots'";
    let read: u64 = fixture.database().sql(read).parse().expect("a count");
    assert!(read < 1_000, "{read} rows");
}

/// If the task of a purchase ends while its hold is in flight, the release must not overtake the hold.
#[tokio::test]
async fn slot_of_a_purchase_that_is_dropped_before_its_answer_is_free() {
    let fixture = Fixture::on_postgres().await;
    let (wire, store) = behind_a_wire(&fixture).await;
    let (purchase, slot) = (ann("a"), wanted(9));
    wire.set(Course::Hold("marked-ann"));
    let mut held = Box::pin(store.reserve_and_send(&purchase, slot, AccountStatus::Confirmed));
    assert!(held.as_mut().now_or_never().is_none());
    bounded(wire.is_holding()).await;
    drop(held);
    store.release_slot(slot.id);
    store.settle_later(purchase.id, Settlement::Released);
    wire.set(Course::Pass);
    let spent = bounded(store.current_spend(BudgetScope::Total)).await.expect("counted");
    assert_eq!(spent.day, Default::default());
    assert_eq!(fixture.database().sql("SELECT state FROM purchases"), "released");
    assert_eq!(fixture.database().sql("SELECT count(*) FROM slots"), "0");
}

#[tokio::test]
async fn clock_that_jumps_hides_no_purchase_from_its_retries() {
    let cluster = Cluster::with_own_clock();
    let database = cluster.database();
    let open = async || {
        let opened = bounded(Store::open_database(target(&database.url()), None)).await;
        opened.expect("it opens")
    };
    let (store, other) = (open().await, open().await);
    let like = || {
        let mut purchase = reservation("ann", PRICE);
        if let DedupeKey::Fingerprint(check) = &mut purchase.dedupe_key {
            (check.fingerprint, check.within) = (identity("p"), 30 * SECOND);
        }
        purchase
    };
    let first = like();
    bounded(store.reserve(&first)).await.expect("held");
    bounded(store.mark_sent(first.id, AccountStatus::Confirmed)).await.expect("marked");
    bounded(store.settle(first.id, Settlement::Unknown)).await.expect("settled");
    for ahead in [3_600, 0, 7_200] {
        cluster.set_ahead(ahead);
        // One that is started later learns of the jumps from those that have seen them.
        for store in [&store, &other, &open().await] {
            let again = bounded(store.reserve(&like())).await;
            assert!(matches!(again, Err(ReserveError::Duplicate(_))), "{ahead} s: {again:?}");
        }
    }
}
