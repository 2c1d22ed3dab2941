//! Several servers on one ledger: budgets and keys are exact over all of them.

use futures_util::future::join_all;
use tollgate::gateway::contract::event::EventKind;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    BudgetScope, Budgets, MemberChange, Period, PurchaseState, Reservation, ReserveError,
    Settlement, SpendLimit, Store,
};

use super::state;
use crate::fixture::*;
use crate::members::{login, member, operator};
use crate::outbox::{LEASE, claim, hook, low, raise, want};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budget_is_exact_over_servers() {
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
async fn key_buys_once_over_servers() {
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
async fn duplicate_waits_for_another_server_and_gets_its_reply() {
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
async fn server_that_stops_writes_what_is_queued() {
    let mut fixture = Fixture::on_postgres().await;
    let (held, sent, bought) = (keyed("held", "p"), keyed("sent", "p"), keyed("bought", "p"));
    fixture.reserve(&held).await.unwrap();
    fixture.send(&sent).await;
    fixture.send(&bought).await;
    fixture.store.settle_later(held.id, Settlement::Released);
    fixture.store.settle_later(sent.id, Settlement::Unknown);
    fixture.store.settle_later(bought.id, charged(PRICE, "hello"));
    fixture.rejoin().await;
    let states = [&held, &sent, &bought].map(|purchase| state(&fixture, purchase));
    assert_eq!(states, ["released", "unknown", "charged"]);
    assert_eq!(fixture.replayed(&keyed("bought", "p")).await, Some(reply("hello")));
    assert_eq!(fixture.total().await.day, times(2));
    fixture.reserve(&keyed("held", "q")).await.unwrap();
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

#[tokio::test]
async fn charge_of_a_released_purchase_is_counted() {
    let fixture = Fixture::on_postgres().await;
    let other = fixture.join().await;
    let counted = |store: &Store| store.shared_metrics().unwrap().charges_of_released.get();
    let released = reservation("ann", PRICE);
    fixture.send(&released).await;
    bounded(other.settle(released.id, Settlement::Released)).await.unwrap();
    fixture.settle(released.id, charged(PRICE, "late")).await;
    assert_eq!((counted(&fixture.store), counted(&other)), (1, 0));
    assert_eq!(state(&fixture, &released), "released");
    // A settlement that is made twice is none.
    let bought = fixture.buy(&reservation("ann", PRICE), "hello").await;
    fixture.settle(bought, charged(PRICE, "hello")).await;
    bounded(other.settle(released.id, Settlement::Released)).await.unwrap();
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
        fixture.database().sql("DELETE FROM purchases; UPDATE ledger SET batch = 'earlier'");
        fixture.settle(sent, end).await;
        assert_eq!(counted(), expected);
    }
}

#[tokio::test]
async fn revoked_member_is_out_at_every_server() {
    let one = Fixture::on_postgres().await;
    let other = one.join().await;
    let add = MemberChange::Add(member("ann"));
    bounded(one.store.change_member(&operator(), "ann".into(), add)).await.expect("added");
    bounded(other.log_in(&login("cookie", "ann", START + HOUR))).await.expect("kept");
    let version = bounded(one.store.members_version()).await.expect("a number");
    assert_eq!(bounded(other.members_version()).await.expect("a number"), version);
    assert_eq!(bounded(one.store.sessions()).await.expect("read").len(), 1);
    bounded(one.store.change_member(&operator(), "ann".into(), MemberChange::Revoke))
        .await
        .expect("revoked");
    assert_ne!(bounded(other.members_version()).await.expect("a number"), version);
    assert_eq!(bounded(other.sessions()).await.expect("read"), []);
    assert_eq!(bounded(other.members()).await.expect("read")[0].revoked_at, Some(START));
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
async fn servers_claim_different_events() {
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
