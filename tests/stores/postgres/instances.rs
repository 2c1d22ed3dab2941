//! Several instances on one ledger: budgets and keys are exact over all of them, and the dead are
//! buried.

use std::pin::pin;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tollgate::contract::event::EventKind;
use tollgate::contract::money::Usd;
use tollgate::store::postgres::{InstanceKind, PostgresConnection, PostgresTarget, connect};
use tollgate::store::{
    AccountStatus, BudgetScope, Budgets, MoneyKind, Period, PurchaseState, Reservation,
    ReserveError, SecretRecord, Settlement, SpendLimit, Store,
};

use super::timed::{BEAT, Timed};
use super::wire::{Course, Wire};
use crate::cluster::Cluster;
use crate::fixture::*;
use crate::moment::until;
use crate::outbox::{LEASE, claim, hook, low, raise, want};

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

#[tokio::test(start_paused = true)]
async fn dead_instance_is_buried_and_its_testimony_is_heard() {
    let fixture = Timed::new().await;
    let wire = Wire::to(Cluster::shared().address()).await;
    let cut_off = fixture.join_at(&fixture.database().url_at(wire.address)).await;
    let living = [&fixture.store];
    let (held, sent) = (keyed("held", "p"), keyed("sent", "p"));
    bounded(cut_off.reserve(&held)).await.unwrap();
    bounded(cut_off.reserve(&sent)).await.unwrap();
    bounded(cut_off.mark_sent(sent.id, AccountStatus::Confirmed)).await.unwrap();
    // Others declare it dead only after they have lived as long themselves.
    fixture.pass(20 * SECOND, &[&fixture.store, &cut_off]).await;
    assert!(cut_off.may_send(held.id) && cut_off.may_send(sent.id));

    wire.set(Course::Down);
    fixture.pass(14 * SECOND, &living).await;
    assert!(!cut_off.may_send(held.id), "its own lease ends before that of others");
    assert_eq!((state(&fixture, &held).await, state(&fixture, &sent).await), both("held", "sent"));
    fixture.pass(4 * SECOND, &living).await;
    let ended = both("released", "unknown");
    assert_eq!((state(&fixture, &held).await, state(&fixture, &sent).await), ended);
    assert_eq!(fixture.total().await.day, PRICE);
    bounded(cut_off.reserve(&keyed("late", "p"))).await.unwrap_err();

    cut_off.settle_later(sent.id, charged(PRICE, "hello"));
    wire.set(Course::Pass);
    fixture.pass(2 * BEAT, &[&fixture.store, &cut_off]).await;
    bounded(cut_off.ensure_usable()).await.expect("it has joined again");
    assert_eq!(state(&fixture, &sent).await, "charged");
    assert_eq!(fixture.replayed(&keyed("sent", "p")).await, Some(reply("hello")));
    // It joins again under a new number, and what it held before is not its any more.
    bounded(cut_off.mark_sent(held.id, AccountStatus::Confirmed)).await.unwrap_err();
    assert!(!cut_off.may_send(held.id), "the lease is of another number");
    let again = keyed("held", "q");
    bounded(cut_off.reserve(&again)).await.unwrap();
    assert!(cut_off.may_send(again.id));
    bounded(cut_off.mark_sent(again.id, AccountStatus::Confirmed)).await.unwrap();
}

fn both(one: &str, other: &str) -> (String, String) {
    (one.to_owned(), other.to_owned())
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
#[tokio::test(start_paused = true)]
async fn step_from_before_a_rejoin_is_refused() {
    let fixture = Timed::new().await;
    let wire = Wire::to(Cluster::shared().address()).await;
    let store = fixture.join_at(&fixture.database().url_at(wire.address)).await;
    let held = keyed("held", "p");
    bounded(store.reserve(&held)).await.unwrap();
    wire.set(Course::Hold("marked-first"));
    let first = Reservation { caller: "marked-first".into(), ..keyed("first", "p") };
    let mut first = pin!(store.reserve(&first));
    assert!(first.as_mut().now_or_never().is_none());
    bounded(wire.is_holding()).await;
    let mut mark = pin!(store.mark_sent(held.id, AccountStatus::Confirmed));
    // Its first poll puts it into the queue, behind what the wire keeps back.
    assert!(mark.as_mut().now_or_never().is_none());
    let alive = "SELECT count(*) FROM instances WHERE ended IS NULL";
    fixture.database().sql("UPDATE instances SET ended = until");
    fixture.advance(BEAT).await;
    let have_joined = async || fixture.database().sql(alive) == "2";
    until("both instances have joined again", have_joined).await;
    wire.set(Course::Pass);
    let refused = bounded(mark).await.unwrap_err().to_string();
    assert!(refused.contains("declared dead"), "{refused}");
    drop(bounded(first).await);
    assert_eq!(state(&fixture, &held).await, "held");
}

#[tokio::test(start_paused = true)]
async fn heartbeat_waits_for_no_reply() {
    let fixture = Timed::new().await;
    let database = fixture.database();
    let bought = fixture.buy(&keyed("k", "p"), "hello").await;
    let blocker = blocker(&fixture, "LOCK TABLE replies IN ACCESS EXCLUSIVE MODE").await;
    let store = fixture.store.clone();
    let replies = tokio::spawn(async move { join_all((0..20).map(|_| store.reply(bought))).await });
    until("a read waits", async || database.sql(LOCK_WAITS) == "1").await;
    let beat = || database.sql("SELECT max(beat) FROM instances").parse::<i64>().unwrap();
    let before = beat();
    fixture.advance(BEAT).await;
    until("a heartbeat", async || {
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

#[tokio::test(start_paused = true)]
async fn open_purchases_of_a_dead_number_are_swept_by_others() {
    let fixture = Timed::new().await;
    let other = fixture.join().await;
    let (held, sent) = (keyed("held", "p"), keyed("sent", "p"));
    fixture.reserve(&held).await.unwrap();
    fixture.send(&sent).await;
    // They were written under a number that others have ended, so no burial finds them any more.
    fixture
        .database()
        .sql("UPDATE instances SET ended = until WHERE id = (SELECT min(id) FROM instances)");
    fixture.pass(28 * SECOND, &[&fixture.store, &other]).await;
    assert_eq!((state(&fixture, &held).await, state(&fixture, &sent).await), both("held", "sent"));
    fixture.pass(16 * SECOND, &[&fixture.store, &other]).await;
    let ended = both("released", "unknown");
    assert_eq!((state(&fixture, &held).await, state(&fixture, &sent).await), ended);
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

const REFUSE_BEATS: &str = "CREATE SEQUENCE attempts;
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM nextval('attempts'); RAISE 'not now'; END $$;
    CREATE TRIGGER refuse BEFORE UPDATE OF beat ON instances
        FOR EACH ROW EXECUTE FUNCTION refuse()";

#[tokio::test(start_paused = true)]
async fn server_without_an_answer_to_its_heartbeat_declares_nobody_dead() {
    let fixture = Timed::new().await;
    let (database, servers) = (fixture.database(), [&fixture.store]);
    database.sql(&dead_server(1_000));
    let is_dead = |number: i64| {
        database.sql(&format!("SELECT ended IS NOT NULL FROM instances WHERE id = {number}")) == "t"
    };
    fixture.pass_until("the first is declared dead", &servers, || is_dead(1_000)).await;
    database.sql(&format!("{REFUSE_BEATS}; {}", dead_server(1_001)));
    fixture.pass(3 * BEAT, &servers).await;
    let attempts: u32 = database.sql("SELECT last_value FROM attempts").parse().unwrap();
    assert!(attempts >= 3 && !is_dead(1_001), "{attempts}");
    database.sql("DROP TRIGGER refuse ON instances");
    fixture.pass(BEAT, &servers).await;
    assert!(is_dead(1_001));
}

#[tokio::test(start_paused = true)]
async fn heartbeat_does_not_wait_until_slots_are_kept_after_a_clock_jump() {
    let fixture = Timed::new().await;
    let database = fixture.database();
    fixture.pass(BEAT, &[&fixture.store]).await;
    let blocker = blocker(&fixture, "SELECT 1 FROM rate_limit FOR UPDATE").await;
    fixture.set_database_ahead(90 * SECOND).await;
    // One statement waits for the lock for five seconds at most, then a later one does.
    let waiting = || {
        database.sql(
            "SELECT max(xact_start::text) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
    };
    let beat = || database.sql("SELECT max(beat) FROM instances");
    let beats_while_slots_wait = async || {
        fixture.advance(BEAT).await;
        until("slots wait", async || !waiting().is_empty()).await;
        let (first, before) = (waiting(), beat());
        fixture.advance(BEAT).await;
        until("a heartbeat", async || beat() != before).await;
        !first.is_empty() && waiting() == first
    };
    until("a heartbeat while slots wait", beats_while_slots_wait).await;
    blocker.client.batch_execute("ROLLBACK").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_issuers_that_start_at_once_one_is_refused() {
    let fixture = Fixture::on_postgres().await;
    let other = fixture.join().await;
    for _ in 0..20 {
        fixture.database().sql("DELETE FROM subjects");
        let both = tokio::join!(
            bounded(fixture.store.bind_issuer("https://one.example".into(), false)),
            bounded(other.bind_issuer("https://two.example".into(), false)),
        );
        let (one, two) = (both.0.unwrap(), both.1.unwrap());
        assert!(one.is_none() != two.is_none(), "{one:?} {two:?}");
    }
}

/// Two servers that share the ledger never have the same event at once.
#[tokio::test]
async fn servers_of_a_fleet_claim_different_events() {
    let fixture = Fixture::on_postgres().await;
    let (a, other) = (hook("a"), fixture.join().await);
    want(&fixture.store, &[(EventKind::BalanceLow, a)]).await;
    for number in 0..40 {
        raise(&fixture.store, low(&number.to_string(), 0)).await;
    }
    let take = |store: &Store| {
        let store = store.clone();
        async move {
            let mut all = Vec::new();
            while let Ok(some) = store.claim_events(a, 3, LEASE).await
                && !some.is_empty()
            {
                all.extend(some.into_iter().map(|event| event.id));
            }
            all
        }
    };
    let (mut ids, more) = bounded(async { tokio::join!(take(&fixture.store), take(&other)) }).await;
    ids.extend(more);
    ids.sort();
    ids.dedup();
    let left = claim(&fixture.store, a).await.len();
    assert_eq!(ids.len() + left, 40);
}
