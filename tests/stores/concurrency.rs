//! However many ask at once, there is one money and one purchase.

use tollgate::contract::money::Usd;
use tollgate::store::{Limits, Refused, Reservation};

use crate::desk::*;

on_every_backend!(
    of_200_purchases_at_once_exactly_those_are_set_aside_that_the_budget_covers,
    of_50_purchases_with_one_key_exactly_one_is_made,
);

async fn of_200_purchases_at_once_exactly_those_are_set_aside_that_the_budget_covers(desk: Desk) {
    let limits = Limits { total_day: Some(Usd::dollars(20)), ..Limits::default() };
    let answers = at_once(&desk, 200, |turn| {
        let caller = format!("caller {turn}");
        Reservation { limits, ..asked(&caller, Usd::dollars(5)) }
    });
    let answers = answers.await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 4);
    let over = answers.iter().filter(|answer| matches!(answer, Err(Refused::OverBudget(_))));
    assert_eq!(over.count(), 196);
    assert_eq!(desk.total().await.day, Usd::dollars(20));
    assert_eq!(desk.states().await.len(), 4);
}

async fn of_50_purchases_with_one_key_exactly_one_is_made(desk: Desk) {
    let answers = at_once(&desk, 50, |_| keyed("k", "p")).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    let known = answers.iter().filter(|answer| matches!(answer, Err(Refused::Known(_))));
    assert_eq!(known.count(), 49);
    assert_eq!(desk.total().await.day, TOLL);
}

/// From threads of their own, since the store is one for all cores.
async fn at_once(
    desk: &Desk,
    times: usize,
    purchase: impl Fn(usize) -> Reservation,
) -> Vec<Result<(), Refused>> {
    let asked: Vec<_> = (0..times).map(purchase).collect();
    let threads = asked.into_iter().map(|asked| {
        let ledger = desk.store.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            runtime.expect("a runtime").block_on(bounded(ledger.reserve(&asked)))
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}
