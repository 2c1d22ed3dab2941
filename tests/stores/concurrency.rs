//! However many ask at once, there is one money and one purchase.

use tollgate::contract::money::Usd;
use tollgate::store::{Budgets, PurchaseId, Reservation, ReserveError, Settlement};

use crate::fixture::*;

on_every_backend!(
    concurrent_purchases_hold_exactly_the_budget,
    concurrent_purchases_hold_exactly_the_balance,
    awaited_purchase_has_ended,
    concurrent_purchases_with_one_key_are_made_once,
);

async fn concurrent_purchases_hold_exactly_the_budget(desk: Desk) {
    let limits = Budgets { total_day: Some(Usd::dollars(20)), ..Budgets::default() };
    let answers = at_once(&desk, 200, |turn| {
        let caller = format!("caller {turn}");
        Reservation { budgets: limits, ..asked(&caller, Usd::dollars(5)) }
    });
    let answers = answers.await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 4);
    let over = answers.iter().filter(|answer| matches!(answer, Err(ReserveError::OverBudget(_))));
    assert_eq!(over.count(), 196);
    assert_eq!(desk.total().await.day, Usd::dollars(20));
    assert_eq!(desk.states().await.len(), 4);
}

async fn concurrent_purchases_hold_exactly_the_balance(desk: Desk) {
    let before = desk.buy(&asked("ann", Usd::dollars(5)), "hello").await;
    let mark = bounded(desk.store.credit_watermark()).await.expect("a mark");
    let meanwhile = desk.send(&asked("ann", Usd::dollars(5))).await;
    desk.store.record_balance(mark, Usd::dollars(28));
    let limits = Budgets { balance_floor: Usd::dollars(1), ..Budgets::default() };
    let answers =
        at_once(&desk, 200, |_| Reservation { budgets: limits, ..asked("ann", Usd::dollars(5)) })
            .await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 4);
    let short =
        answers.iter().filter(|answer| matches!(answer, Err(ReserveError::InsufficientCredit)));
    assert_eq!(short.count(), 196);
    let left =
        async || bounded(desk.store.remaining_credit()).await.expect("read").expect("told").amount;
    assert_eq!(left().await, Usd::dollars(3));
    // What is found out of a purchase that has ended changes nothing: the balance may have counted it.
    desk.settle(meanwhile, Settlement::Unknown).await;
    desk.settle(meanwhile, Settlement::Released).await;
    desk.settle(before, Settlement::Released).await;
    assert_eq!(left().await, Usd::dollars(3));
}

async fn awaited_purchase_has_ended(desk: Desk) {
    bounded(desk.store.wait_until_ended(PurchaseId::new())).await.expect("nothing is under way");
    for ending in [charged(PRICE, "hello"), Settlement::Released, Settlement::Unknown] {
        let id = desk.send(&asked("ann", PRICE)).await;
        let waits = bounded(desk.store.wait_until_ended(id));
        let ends = async {
            tokio::task::yield_now().await;
            desk.store.settle_later(id, ending);
        };
        tokio::join!(waits, ends).0.expect("it ended");
        assert!(desk.rows().await.iter().any(|row| row.id == id && row.ended_at.is_some()));
    }
}

async fn concurrent_purchases_with_one_key_are_made_once(desk: Desk) {
    let answers = at_once(&desk, 50, |_| keyed("k", "p")).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    let known = answers.iter().filter(|answer| matches!(answer, Err(ReserveError::Duplicate(_))));
    assert_eq!(known.count(), 49);
    assert_eq!(desk.total().await.day, PRICE);
}

/// From threads of their own, since the store is one for all cores.
async fn at_once(
    desk: &Desk,
    times: usize,
    purchase: impl Fn(usize) -> Reservation,
) -> Vec<Result<(), ReserveError>> {
    let asked: Vec<_> = (0..times).map(purchase).collect();
    let threads = asked.into_iter().map(|asked| {
        let ledger = desk.store.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            runtime.expect("a runtime").block_on(bounded(ledger.reserve(&asked))).map(drop)
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}
