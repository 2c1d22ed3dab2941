//! Several instances on one ledger: budgets and keys are exact over all of them, and the dead are
//! buried.

use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tollgate::contract::money::Usd;
use tollgate::store::postgres::{InstanceKind, PostgresConnection, PostgresTarget, connect};
use tollgate::store::{
    AccountStatus, BudgetScope, Budgets, MoneyKind, Period, PurchaseState, Reservation,
    ReserveError, SecretRecord, Settlement, SpendLimit, Store,
};

use crate::fixture::*;
use crate::postgres::Cluster;
use crate::wire::{Course, Wire};

async fn state(fixture: &Fixture, reservation: &Reservation) -> String {
    let ask = format!("SELECT state FROM purchases WHERE id = '{}'", reservation.id);
    fixture.database().sql(&ask)
}

pub(crate) const LOCK_WAITS: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'";

/// Takes a lock until its transaction ends.
pub(crate) async fn blocker(fixture: &Fixture, lock: &str) -> PostgresConnection {
    let url = fixture.database().url();
    let target = PostgresTarget::parse(&url, MoneyKind::Play, InstanceKind::Command).unwrap();
    let blocker = connect(&target).await.unwrap();
    let begin = "SET idle_in_transaction_session_timeout = 0; BEGIN;";
    blocker.client.batch_execute(&format!("{begin} {lock}")).await.unwrap();
    blocker
}

pub(crate) async fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let poll = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(120), poll).await.is_ok(), "{what}");
}

/// Waits for a state that only the stores can bring about.
async fn becomes(fixture: &Fixture, reservation: &Reservation, expected: &str) {
    bounded(async {
        while state(fixture, reservation).await != expected {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budget_is_exact_over_instances() {
    let fixture = Fixture::on_postgres().await;
    let others = [fixture.join().await, fixture.join().await];
    let limits = Budgets { total: SpendLimit::of(Period::Day, times(50)), ..Budgets::default() };
    let reservations: Vec<_> = (0..150)
        .map(|turn| Reservation {
            budgets: limits,
            ..reservation(if turn % 2 == 0 { "ann" } else { "bob" }, PRICE)
        })
        .collect();
    let stores = [&fixture.store, &others[0], &others[1]];
    let all = reservations.iter().zip(stores.iter().cycle());
    let held = join_all(all.map(|(reservation, store)| bounded(store.reserve(reservation)))).await;
    assert_eq!(held.iter().filter(|held| held.is_ok()).count(), 50);
    for refused in held.iter().filter_map(|held| held.as_ref().err()) {
        assert!(matches!(refused, ReserveError::OverBudget(_)), "{refused}");
    }
    for store in stores {
        let spent = bounded(store.current_spend(BudgetScope::Total)).await.unwrap();
        assert_eq!(spent.day, times(50));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_buys_once_over_instances() {
    let fixture = Fixture::on_postgres().await;
    let other = fixture.join().await;
    for turn in 0..20 {
        let (first, second) = (keyed(&format!("{turn}"), "p"), keyed(&format!("{turn}"), "p"));
        let held = tokio::join!(fixture.store.reserve(&first), other.reserve(&second));
        match held {
            (Ok(_), Err(ReserveError::Duplicate(known))) => assert_eq!(known.id, first.id),
            (Err(ReserveError::Duplicate(known)), Ok(_)) => assert_eq!(known.id, second.id),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn duplicate_waits_for_another_instance_and_gets_its_reply() {
    let fixture = Fixture::on_postgres().await;
    let other = fixture.join().await;
    let first = fixture.send(&keyed("k", "p")).await;
    let known = match other.reserve(&keyed("k", "p")).await {
        Err(ReserveError::Duplicate(known)) => known,
        other => panic!("{other:?}"),
    };
    assert_eq!((known.id, known.state), (first, PurchaseState::Sent));
    let end = fixture.settle(first, charged(PRICE, "hello"));
    let (ended, ()) = tokio::join!(bounded(other.wait_until_ended(first)), end);
    ended.unwrap();
    assert_eq!(bounded(other.reply(first)).await.unwrap(), Some(reply("hello")));
}

#[tokio::test]
async fn stopped_instance_leaves_nothing_open() {
    let mut fixture = Fixture::on_postgres().await;
    let (held, sent) = (keyed("held", "p"), keyed("sent", "p"));
    fixture.reserve(&held).await.unwrap();
    fixture.send(&sent).await;
    let later = fixture.send(&reservation("ann", PRICE)).await;
    fixture.store.settle_later(later, charged(PRICE, "hello"));
    fixture.rejoin().await;
    assert_eq!(state(&fixture, &held).await, "released");
    assert_eq!(state(&fixture, &sent).await, "unknown");
    assert_eq!(bounded(fixture.store.reply(later)).await.unwrap(), Some(reply("hello")));
    assert_eq!(fixture.total().await.day, times(2));
    fixture.reserve(&keyed("held", "q")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_instance_is_buried_and_its_testimony_is_heard() {
    let fixture = Fixture::on_postgres().await;
    let wire = Wire::to(Cluster::shared().address()).await;
    let cut_off = fixture.join_at(&fixture.database().url_at(wire.address)).await;
    let (held, sent) = (keyed("held", "p"), keyed("sent", "p"));
    bounded(cut_off.reserve(&held)).await.unwrap();
    bounded(cut_off.reserve(&sent)).await.unwrap();
    bounded(cut_off.mark_sent(sent.id, AccountStatus::Confirmed)).await.unwrap();
    assert!(cut_off.may_send(held.id) && cut_off.may_send(sent.id));

    wire.set(Course::Down);
    becomes(&fixture, &sent, "unknown").await;
    assert_eq!(state(&fixture, &held).await, "released");
    assert!(!cut_off.may_send(held.id), "its own lease ends before that of others");
    assert_eq!(fixture.total().await.day, PRICE);
    bounded(cut_off.reserve(&keyed("late", "p"))).await.unwrap_err();

    cut_off.settle_later(sent.id, charged(PRICE, "hello"));
    wire.set(Course::Pass);
    becomes(&fixture, &sent, "charged").await;
    assert_eq!(fixture.replayed(&keyed("sent", "p")).await, Some(reply("hello")));
    // It joins again under a new number, and what it held before is not its any more.
    bounded(async {
        while cut_off.ensure_usable().await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    bounded(cut_off.mark_sent(held.id, AccountStatus::Confirmed)).await.unwrap_err();
    assert!(!cut_off.may_send(held.id), "the lease is of another number");
    let again = keyed("held", "q");
    bounded(cut_off.reserve(&again)).await.unwrap();
    assert!(cut_off.may_send(again.id));
    bounded(cut_off.mark_sent(again.id, AccountStatus::Confirmed)).await.unwrap();
}

#[tokio::test]
async fn program_older_than_the_floor_decides_nothing_more() {
    let fixture = Fixture::on_postgres().await;
    let sent = fixture.send(&reservation("ann", PRICE)).await;
    fixture.database().sql("UPDATE store SET floor = 1000");
    fixture.reserve(&reservation("ann", PRICE)).await.unwrap_err();
    fixture.settle(sent, charged(PRICE, "hello")).await;
    let target =
        PostgresTarget::parse(&fixture.database().url(), MoneyKind::Play, InstanceKind::Server);
    let refused = bounded(Store::open_postgres(target.unwrap())).await.unwrap_err().to_string();
    assert!(refused.contains("newer tollgate"), "{refused}");
}

#[tokio::test]
async fn other_kind_of_money_is_refused() {
    let fixture = Fixture::on_postgres().await;
    let url = fixture.database().url();
    let target = PostgresTarget::parse(&url, MoneyKind::Real, InstanceKind::Server).unwrap();
    let refused = bounded(Store::open_postgres(target)).await.unwrap_err().to_string();
    assert!(refused.contains("other kind of money"), "{refused}");
}

#[tokio::test]
async fn settlements_of_an_unknown_outcome_move_the_counters_once() {
    let fixture = Fixture::on_postgres().await;
    let other = fixture.join().await;
    let sent = fixture.send(&reservation("ann", PRICE)).await;
    fixture.settle(sent, Settlement::Unknown).await;
    let cost = Usd::mills(9);
    let both = tokio::join!(
        fixture.store.settle(sent, charged(cost, "a")),
        other.settle(sent, charged(cost, "b")),
    );
    assert!(both.0.is_ok() && both.1.is_ok());
    assert_eq!(fixture.total().await.day, cost);
}

/// A decision that waits in its queue while others end this instance is refused, although the
/// instance has joined again by the time it is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_from_before_a_rejoin_is_refused() {
    let fixture = Fixture::on_postgres().await;
    let database = fixture.database();
    let held = keyed("held", "p");
    fixture.reserve(&held).await.unwrap();
    let blocker = blocker(&fixture, "SELECT 1 FROM account FOR UPDATE").await;
    let (first, store) = (keyed("first", "p"), fixture.store.clone());
    let first = tokio::spawn(async move { store.reserve(&first).await });
    wait_for("the lane is busy", || database.sql(LOCK_WAITS) == "1").await;
    let store = fixture.store.clone();
    let mut mark = pin!(store.mark_sent(held.id, AccountStatus::Confirmed));
    // Its first poll puts it into the queue.
    assert!(mark.as_mut().now_or_never().is_none());
    database.sql("UPDATE instances SET ended = until");
    let alive = "SELECT count(*) FROM instances WHERE ended IS NULL";
    wait_for("the instance has joined again", || database.sql(alive) == "1").await;
    blocker.client.batch_execute("ROLLBACK").await.unwrap();
    let refused = bounded(mark).await.unwrap_err().to_string();
    assert!(refused.contains("declared dead"), "{refused}");
    drop(bounded(first).await);
    assert_eq!(state(&fixture, &held).await, "held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeat_waits_for_no_reply() {
    let fixture = Fixture::on_postgres().await;
    let database = fixture.database();
    let bought = fixture.buy(&keyed("k", "p"), "hello").await;
    let blocker = blocker(&fixture, "LOCK TABLE replies IN ACCESS EXCLUSIVE MODE").await;
    let store = fixture.store.clone();
    let replies = tokio::spawn(async move { join_all((0..20).map(|_| store.reply(bought))).await });
    wait_for("a read waits", || database.sql(LOCK_WAITS) == "1").await;
    let beat = || database.sql("SELECT max(beat) FROM instances").parse::<i64>().unwrap();
    let before = beat();
    wait_for("a heartbeat", || {
        assert!(!replies.is_finished(), "the heartbeat waits for replies");
        beat() > before
    })
    .await;
    blocker.client.batch_execute("ROLLBACK").await.unwrap();
    drop(bounded(replies).await);
}

#[tokio::test]
async fn charge_of_a_released_purchase_is_counted() {
    let fixture = Fixture::on_postgres().await;
    let other = fixture.join().await;
    let counted = |store: &Store| store.shared_metrics().unwrap().charges_of_released.get();
    let released = fixture.send(&reservation("ann", PRICE)).await;
    bounded(other.settle(released, Settlement::Released)).await.unwrap();
    fixture.settle(released, charged(PRICE, "late")).await;
    assert_eq!((counted(&fixture.store), counted(&other)), (1, 0));
    assert_eq!(
        state(&fixture, &Reservation { id: released, ..reservation("ann", PRICE) }).await,
        "released"
    );
    // A settlement that is made twice is none.
    let bought = fixture.buy(&reservation("ann", PRICE), "hello").await;
    fixture.settle(bought, charged(PRICE, "hello")).await;
    bounded(other.settle(released, Settlement::Released)).await.unwrap();
    assert_eq!((counted(&fixture.store), counted(&other)), (1, 0));
}

#[tokio::test]
async fn outcome_of_a_lost_purchase_is_counted() {
    let fixture = Fixture::on_postgres().await;
    let counted = || fixture.store.shared_metrics().unwrap().charges_of_lost.get();
    for (expected, end) in [
        (1, charged(PRICE, "hello")),
        (2, Settlement::Unknown),
        // Nothing was charged.
        (2, Settlement::Released),
    ] {
        let sent = fixture.send(&reservation("ann", PRICE)).await;
        // As after a failover to a replica that lags behind.
        fixture.database().sql("DELETE FROM purchases");
        fixture.settle(sent, end).await;
        assert_eq!(counted(), expected);
    }
}

#[tokio::test]
async fn open_purchases_of_a_dead_number_are_swept_by_others() {
    let fixture = Fixture::on_postgres().await;
    let _other = fixture.join().await;
    let (held, sent) = (keyed("held", "p"), keyed("sent", "p"));
    fixture.reserve(&held).await.unwrap();
    fixture.send(&sent).await;
    // They were written under a number that others have ended, so no burial finds them any more.
    fixture
        .database()
        .sql("UPDATE instances SET ended = until WHERE id = (SELECT min(id) FROM instances)");
    fixture.pass(60 * SECOND);
    becomes(&fixture, &held, "released").await;
    becomes(&fixture, &sent, "unknown").await;
    assert_eq!(fixture.total().await.day, PRICE);
}

#[tokio::test]
async fn servers_that_start_with_a_new_secret_accept_each_other() {
    let fixture = Fixture::on_postgres().await;
    let record = async |server: &Store, secret: u8| {
        format!("{:?}", bounded(server.record_secret([secret; 32])).await.unwrap())
    };
    let accepted = format!("{:?}", SecretRecord::Accepted);
    assert_eq!(record(&fixture.store, 1).await, accepted);
    let [one, two] = [fixture.join().await, fixture.join().await];
    assert_eq!(record(&one, 2).await, format!("{:?}", SecretRecord::OtherOfServers));
    // The one that refused it ends, and both others live when the first of them records it.
    fixture.database().sql("UPDATE instances SET ended = 1 WHERE secret IS NOT NULL RETURNING 1");
    assert_eq!(record(&one, 2).await, accepted);
    assert_eq!(record(&two, 2).await, accepted);
    assert_eq!(record(&two, 1).await, format!("{:?}", SecretRecord::OtherOfServers));
}

/// A server that did not beat for its whole lease, with this number.
fn dead_server(number: i64) -> String {
    format!(
        "INSERT INTO instances (id, kind, name, pid, version, began, until)
        OVERRIDING SYSTEM VALUE VALUES ({number}, 'server', 'dead', 1, 1, 0, 0);"
    )
}

#[tokio::test]
async fn server_without_an_answer_to_its_heartbeat_declares_nobody_dead() {
    let fixture = Fixture::on_postgres().await;
    let database = fixture.database();
    database.sql(&dead_server(1_000));
    let is_dead = |number: i64| {
        database.sql(&format!("SELECT ended IS NOT NULL FROM instances WHERE id = {number}")) == "t"
    };
    wait_for("the first is declared dead", || is_dead(1_000)).await;
    database.sql(&format!(
        "CREATE SEQUENCE attempts;
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM nextval('attempts'); RAISE 'not now'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE OF beat ON instances
            FOR EACH ROW EXECUTE FUNCTION refuse();
        {}",
        dead_server(1_001)
    ));
    let attempts = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM attempts";
    // What the first two cause has happened by then.
    let refused = || database.sql(attempts).parse::<i64>().unwrap() >= 3;
    wait_for("three heartbeats are refused", refused).await;
    assert!(!is_dead(1_001));
    database.sql("DROP TRIGGER refuse ON instances");
    wait_for("the second is declared dead", || is_dead(1_001)).await;
}

#[tokio::test]
async fn heartbeat_does_not_wait_until_slots_are_kept_after_a_clock_jump() {
    let cluster = Cluster::with_own_clock();
    let database = cluster.database();
    let open = |kind| PostgresTarget::parse(&database.url(), MoneyKind::Play, kind).unwrap();
    let store = bounded(Store::open_postgres(open(InstanceKind::Server))).await.unwrap();
    let beat = "SELECT max(beat) FROM instances";
    wait_for("a heartbeat", || database.sql(beat) != "0").await;
    let blocker = connect(&open(InstanceKind::Command)).await.unwrap();
    let lock =
        "SET idle_in_transaction_session_timeout = 0; BEGIN; SELECT 1 FROM rate_limit FOR UPDATE";
    blocker.client.batch_execute(lock).await.unwrap();
    cluster.set_ahead(90);
    // One statement waits for the lock for five seconds at most, then a later one does.
    let waits = format!(
        "SELECT coalesce(max(xact_start::text), ''), ({beat}) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'"
    );
    let first = std::cell::RefCell::new((String::new(), String::new()));
    wait_for("a heartbeat while slots wait", || {
        let now = database.sql(&waits);
        let (wait, beat) = now.split_once('|').unwrap();
        let mut first = first.borrow_mut();
        if wait.is_empty() || *wait != first.0 {
            *first = (wait.to_owned(), beat.to_owned());
        }
        !wait.is_empty() && *beat != first.1
    })
    .await;
    blocker.client.batch_execute("ROLLBACK").await.unwrap();
    drop(store);
}
