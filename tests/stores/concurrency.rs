//! However many ask at once, there is one money and one purchase.

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    Budgets, Period, PurchaseId, Reservation, ReserveError, Settlement, SpendLimit,
};

use crate::fixture::*;

on_every_backend!(
    concurrent_purchases_hold_exactly_the_budget,
    concurrent_purchases_hold_exactly_the_balance,
    awaited_purchase_has_ended,
    concurrent_purchases_with_one_key_are_made_once,
);

async fn concurrent_purchases_hold_exactly_the_budget(fixture: Fixture) {
    let limits =
        Budgets { total: SpendLimit::of(Period::Day, Usd::dollars(20)), ..Budgets::default() };
    let answers = at_once(&fixture, 200, |turn| {
        let caller = format!("caller {turn}");
        Reservation { budgets: limits, ..reservation(&caller, Usd::dollars(5)) }
    });
    let answers = answers.await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 4);
    let over = answers.iter().filter(|answer| matches!(answer, Err(ReserveError::OverBudget(_))));
    assert_eq!(over.count(), 196);
    assert_eq!(fixture.total().await.day, Usd::dollars(20));
    assert_eq!(fixture.states().await.len(), 4);
}

async fn concurrent_purchases_hold_exactly_the_balance(fixture: Fixture) {
    let before = fixture.buy(&reservation("ann", Usd::dollars(5)), "hello").await;
    let mark = bounded(fixture.store.credit_watermark()).await.expect("a mark");
    let meanwhile = fixture.send(&reservation("ann", Usd::dollars(5))).await;
    fixture.store.record_balance(mark, Usd::dollars(28));
    let limits = Budgets { balance_floor: Usd::dollars(1), ..Budgets::default() };
    let answers = at_once(&fixture, 200, |_| Reservation {
        budgets: limits,
        ..reservation("ann", Usd::dollars(5))
    })
    .await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 4);
    let short =
        answers.iter().filter(|answer| matches!(answer, Err(ReserveError::InsufficientCredit)));
    assert_eq!(short.count(), 196);
    let left = async || {
        bounded(fixture.store.remaining_credit()).await.expect("read").expect("told").amount
    };
    assert_eq!(left().await, Usd::dollars(3));
    // What is found out of a purchase that has ended changes nothing: the balance may have counted it.
    fixture.settle(meanwhile, Settlement::Unknown).await;
    fixture.settle(meanwhile, Settlement::Released).await;
    fixture.settle(before, Settlement::Released).await;
    assert_eq!(left().await, Usd::dollars(3));
}

async fn awaited_purchase_has_ended(fixture: Fixture) {
    bounded(fixture.store.wait_until_ended(PurchaseId::generate()))
        .await
        .expect("nothing is under way");
    for ending in [charged(PRICE, "hello"), Settlement::Released, Settlement::Unknown] {
        let id = fixture.send(&reservation("ann", PRICE)).await;
        let waits = bounded(fixture.store.wait_until_ended(id));
        let ends = async {
            tokio::task::yield_now().await;
            fixture.store.settle_later(id, ending);
        };
        tokio::join!(waits, ends).0.expect("it ended");
        assert!(fixture.rows().await.iter().any(|row| row.id == id && row.ended_at.is_some()));
    }
}

async fn concurrent_purchases_with_one_key_are_made_once(fixture: Fixture) {
    let answers = at_once(&fixture, 50, |_| keyed("k", "p")).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    let known = answers.iter().filter(|answer| matches!(answer, Err(ReserveError::Duplicate(_))));
    assert_eq!(known.count(), 49, "{answers:?}");
    assert_eq!(fixture.total().await.day, PRICE);
}

/// From threads of their own, since the store is one for all cores.
async fn at_once(
    fixture: &Fixture,
    times: usize,
    purchase: impl Fn(usize) -> Reservation,
) -> Vec<Result<(), ReserveError>> {
    let reservation: Vec<_> = (0..times).map(purchase).collect();
    let threads = reservation.into_iter().map(|reservation| {
        let ledger = fixture.store.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            runtime.expect("a runtime").block_on(bounded(ledger.reserve(&reservation))).map(drop)
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}
