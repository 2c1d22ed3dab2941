//! The ledger of files in a database that several servers share: what a lost connection, a dead server, a
//! restored copy and a clock that jumps may do to it.

use std::time::Duration;

use futures_util::future::join_all;
use tollgate::contract::money::Usd;
use tollgate::store::postgres::{InstanceKind, PostgresTarget};
use tollgate::store::{
    AccountStatus, Deadlines, MoneyKind, Precondition, Reservation, ReserveError, Settlement,
    SlotAnswer, SlotId, SlotLimit, SlotRate, Store, WantedSlot,
};

use super::wire::{Course, Wire};
use crate::cluster::Cluster;
use crate::fixture::*;
use crate::moment::until;

/// The period of the tests' rate limit, and the thousandth by which clocks may differ.
const LIFETIME: Duration = Duration::from_millis(60_060);

fn ann(key: &str) -> Reservation {
    Reservation { caller: "marked-ann".into(), ..keyed(key, "p") }
}

/// Another server, behind a wire.
async fn behind_a_wire(fixture: &Fixture) -> (Wire, Store) {
    let wire = Wire::to(Cluster::shared().address()).await;
    let store = fixture.join_at(&fixture.database().url_at(wire.address)).await;
    (wire, store)
}

async fn take(store: &Store, limit: u64) -> SlotAnswer {
    bounded(store.take_free_slot(wanted(limit))).await.expect("an answer")
}

async fn is_sent(store: &Store, slot: WantedSlot) -> bool {
    let held =
        store.reserve_and_send(&reservation("ann", PRICE), slot, AccountStatus::Confirmed).await;
    held.expect("held").is_sent
}

#[tokio::test]
async fn commit_whose_answer_is_lost_counts_once() {
    let fixture = Fixture::in_database().await;
    for course in [Course::CutAfterCommit("marked-ann"), Course::CutBeforeCommit("marked-ann")] {
        let (wire, store) = behind_a_wire(&fixture).await;
        let bought = ann(&format!("{course:?}")[..10]);
        wire.set(course);
        bounded(store.reserve(&bought)).await.expect("held, whatever the connection does");
        assert_eq!(fixture.of("marked-ann").await.day, PRICE, "{course:?}");
        let again = Reservation { id: reservation("x", PRICE).id, ..bought.clone() };
        let known = bounded(store.reserve(&again)).await;
        assert!(matches!(known, Err(ReserveError::Duplicate(earlier)) if earlier.id == bought.id));
        bounded(store.settle(bought.id, Settlement::Released)).await.expect("settled");
        assert_eq!(fixture.of("marked-ann").await.day, Usd::ZERO);
    }
}

#[tokio::test]
async fn settlement_whose_answer_is_lost_counts_once() {
    let fixture = Fixture::in_database().await;
    for course in [Course::CutAfterCommit("marked-reply"), Course::CutBeforeCommit("marked-reply")]
    {
        let (wire, store) = behind_a_wire(&fixture).await;
        let bought = Reservation { caller: format!("{course:?}").into(), ..reservation("", PRICE) };
        bounded(store.reserve(&bought)).await.expect("held");
        wire.set(course);
        bounded(store.settle(bought.id, charged(times(2), "marked-reply"))).await.expect("settled");
        assert_eq!(fixture.of(&bought.caller).await.day, times(2), "{course:?}");
    }
}

#[tokio::test]
async fn outage_sells_nothing_and_ends_without_a_restart() {
    let fixture = Fixture::in_database().await;
    let (wire, store) = behind_a_wire(&fixture).await;
    let sent = fixture.send(&ann("sent")).await;
    wire.set(Course::Down);
    let refused = bounded(store.reserve(&ann("k"))).await;
    assert!(matches!(refused, Err(ReserveError::Unavailable(_))), "{refused:?}");
    assert!(bounded(store.ensure_usable()).await.is_err());
    // What was sent is recorded when the database is back.
    store.settle_later(sent, Settlement::Unknown);
    wire.set(Course::Pass);
    until("it sells again", async || store.reserve(&reservation("bob", PRICE)).await.is_ok()).await;
    let state = format!("SELECT state FROM purchases WHERE id = '\\x{}'", sent.0.simple());
    until("it is recorded", async || fixture.database().sql(&state) == "unknown").await;
    assert_eq!(fixture.of("marked-ann").await.day, PRICE);
}

/// A server whose purchases others end after these times.
async fn hasty(fixture: &Fixture) -> Store {
    let target =
        PostgresTarget::parse(&fixture.database().url(), MoneyKind::Play, InstanceKind::Server);
    let mut target = target.expect("an address").with_instance_name("hasty".to_owned());
    target.deadlines = Deadlines { held: 10 * SECOND, sent: 20 * SECOND };
    Store::open_database(target, Some(fixture.clock())).await.expect("it opens")
}

#[tokio::test]
async fn purchases_of_a_server_that_is_gone_end_after_their_deadlines() {
    let fixture = Fixture::in_database().await;
    let gone = hasty(&fixture).await;
    let (held, sent) = (ann("held"), ann("sent"));
    for purchase in [&held, &sent] {
        bounded(gone.reserve(purchase)).await.expect("held");
    }
    bounded(gone.mark_sent(sent.id, AccountStatus::Confirmed)).await.expect("marked");
    assert!(gone.may_send(sent.id) && !gone.may_send(held.id));
    let states = "SELECT string_agg(state, ' ' ORDER BY number) FROM purchases";
    fixture.pass(10 * SECOND);
    fixture.total().await;
    assert_eq!(fixture.database().sql(states), "held sent");
    fixture.pass(SECOND);
    // Any transaction of another server ends it, and its key is free.
    assert_eq!(fixture.of("marked-ann").await.day, PRICE);
    assert_eq!(fixture.database().sql(states), "released sent");
    fixture.pass(10 * SECOND);
    fixture.total().await;
    assert_eq!(fixture.database().sql(states), "released unknown");
    // Its owner only stood still: nothing may be sent, and a late outcome still counts.
    let late = bounded(gone.mark_sent(held.id, AccountStatus::Confirmed)).await;
    assert!(late.is_err(), "it was given up");
    bounded(gone.settle(sent.id, charged(times(2), "late"))).await.expect("settled");
    assert_eq!(fixture.of("marked-ann").await.day, times(2));
    bounded(fixture.store.reserve(&ann("held"))).await.expect("its key is free");
}

/// Others may end it at any moment, so nothing is sent for it.
#[tokio::test]
async fn hold_past_its_deadline_is_not_sent_although_nobody_has_ended_it() {
    let fixture = Fixture::in_database().await;
    let slow = hasty(&fixture).await;
    let held = ann("held");
    bounded(slow.reserve(&held)).await.expect("held");
    fixture.pass(10 * SECOND);
    // It looks for what is overdue once a second, and has just done so.
    bounded(slow.current_spend(tollgate::store::BudgetScope::Total)).await.expect("counted");
    fixture.pass(Duration::from_millis(500));
    let late = bounded(slow.mark_sent(held.id, AccountStatus::Confirmed)).await;
    assert!(late.is_err(), "its deadline is over");
    assert_eq!(fixture.database().sql("SELECT state FROM purchases"), "held");
}

#[tokio::test]
async fn servers_never_exceed_the_rate_limit_together() {
    let fixture = Fixture::in_database().await;
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
async fn racing_servers_take_each_slot_once() {
    let fixture = Fixture::in_database().await;
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
async fn refusal_of_the_gateway_and_its_limit_hold_for_all_servers() {
    let fixture = Fixture::in_database().await;
    let other = fixture.join().await;
    fixture.store.block_slots(5 * SECOND);
    until("it is blocked", async || !take(&other, 99).await.is_taken).await;
    assert_eq!(take(&other, 99).await.next_free_in, Some(5 * SECOND));
    fixture.pass(5 * SECOND);
    let limit = tollgate::store::AccountLimit { requests: 1, window_seconds: 60 };
    fixture.store.record_rate_limit(limit);
    bounded(fixture.store.recorded_rate_limit()).await.expect("read");
    let assumed = SlotRate { requests: 99, period: Duration::from_secs(60) };
    let wanted =
        || WantedSlot { id: SlotId::generate(), limit: SlotLimit { fixed: None, assumed } };
    // The slots that were taken to see the block count, too.
    let answer = bounded(other.take_free_slot(wanted())).await.expect("an answer");
    assert_eq!(answer.reported, Some(limit));
    assert!(!bounded(other.take_free_slot(wanted())).await.expect("an answer").is_taken);
}

#[tokio::test]
async fn slot_of_a_server_that_is_gone_comes_free_a_period_later() {
    let fixture = Fixture::in_database().await;
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
    let target = PostgresTarget::parse(&database.url(), MoneyKind::Play, InstanceKind::Server);
    let target = target.expect("an address").with_instance_name("test".to_owned());
    let store = bounded(Store::open_database(target, None)).await.expect("it opens");
    let slot = wanted(1);
    assert!(bounded(store.take_free_slot(slot)).await.expect("an answer").is_taken);
    store.slot_replied(slot.id);
    bounded(store.recorded_rate_limit()).await.expect("read");
    cluster.set_ahead(90);
    let answer = take(&store, 1).await;
    assert!(!answer.is_taken && answer.next_free_in.is_some(), "{answer:?}");
}

#[tokio::test]
async fn ledger_that_lost_commits_is_renamed_once_and_sells_nothing_twice() {
    let fixture = Fixture::in_database().await;
    let other = fixture.join().await;
    let old = fixture.store.name();
    let of_ledger = |name| {
        let requires = Precondition { name: Some(name), ..Precondition::default() };
        Reservation { requires, ..ann("k") }
    };
    // What a replica that lags behind has.
    let batch = fixture.database().sql("SELECT batch FROM ledger");
    for _ in 0..3 {
        fixture.reserve(&reservation("bob", PRICE)).await.expect("held");
    }
    bounded(other.current_spend(tollgate::store::BudgetScope::Total)).await.expect("read");
    let lose = "UPDATE ledger SET batch = 'B'; DELETE FROM batches WHERE id > 'B'";
    fixture.database().sql(&lose.replace('B', &batch));
    for store in [&fixture.store, &other] {
        let refused = bounded(store.reserve(&of_ledger(old.clone()))).await;
        assert!(matches!(refused, Err(ReserveError::LedgerChanged)), "{refused:?}");
    }
    assert_ne!(fixture.store.name(), old);
    assert_eq!(fixture.store.name(), other.name());
    let complete_at = fixture.now() - HOUR * 24 * 3650;
    assert!(other.may_lack_purchases_since(complete_at));
    bounded(other.reserve(&of_ledger(other.name()))).await.expect("it names this ledger");
}

/// Each makes the tables if there are none.
#[tokio::test]
async fn servers_that_start_together_on_an_empty_database_share_it() {
    let database = Cluster::shared().database();
    let opened = join_all((0..4).map(|_| async {
        let target = PostgresTarget::parse(&database.url(), MoneyKind::Play, InstanceKind::Server);
        let target = target.expect("an address").with_instance_name("test".to_owned());
        bounded(Store::open_database(target, None)).await.expect("it opens")
    }))
    .await;
    assert!(opened.iter().all(|store| store.name() == opened[0].name()));
}

#[tokio::test]
async fn idle_server_finds_its_database_again() {
    let fixture = Fixture::in_database().await;
    let (wire, store) = behind_a_wire(&fixture).await;
    wire.set(Course::Down);
    assert!(bounded(store.reserve(&ann("k"))).await.is_err());
    wire.set(Course::Pass);
    // Nothing asks the ledger for anything but whether it is reached.
    until("it is reached", async || store.ensure_usable().await.is_ok()).await;
}

#[tokio::test]
async fn purchase_that_has_waited_for_a_lost_one_is_refused() {
    let fixture = Fixture::in_database().await;
    let after = |earlier| {
        let requires = Precondition { earlier: Some(earlier), ..Precondition::default() };
        Reservation { requires, ..keyed("k", "p") }
    };
    let lost = fixture.reserve(&after(reservation("x", PRICE).id)).await;
    assert!(matches!(lost, Err(ReserveError::LedgerChanged)), "{lost:?}");
    let earlier = fixture.send(&keyed("k", "p")).await;
    let known = fixture.reserve(&after(earlier)).await;
    assert!(matches!(known, Err(ReserveError::Duplicate(_))), "{known:?}");
    fixture.settle(earlier, Settlement::Released).await;
    fixture.reserve(&after(earlier)).await.expect("it was not bought");
}

#[tokio::test]
async fn ledger_of_play_money_is_not_opened_for_real_money() {
    let fixture = Fixture::in_database().await;
    let target =
        PostgresTarget::parse(&fixture.database().url(), MoneyKind::Real, InstanceKind::Server);
    let target = target.expect("an address").with_instance_name("test".to_owned());
    let refused = bounded(Store::open_database(target, None)).await.expect_err("refused");
    assert!(refused.to_string().contains("the other kind of money"), "{refused}");
}
