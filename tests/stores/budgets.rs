//! No budget is overrun, and whoever is refused hears which one, what is left and when it renews.

use std::time::Duration;

use tollgate::contract::money::Usd;
use tollgate::store::{
    BudgetKind, Budgets, OverBudget, Reservation, ReserveError, Service, Settlement, SpendRow,
};

use crate::fixture::*;

on_every_backend!(
    budget_is_spent_to_its_end_and_not_beyond,
    held_sent_and_unknown_count_as_spent,
    released_purchase_frees_its_hold,
    different_cost_adjusts_the_counters,
    over_budget_names_the_budget_that_renews_last,
    callers_have_separate_budgets,
    days_and_months_end_at_midnight_utc,
    late_settlement_counts_in_the_period_of_its_hold,
    clock_set_back_opens_no_new_period,
    purchase_dated_far_ahead_blocks_no_budget,
    uncountable_amount_is_refused,
    spending_is_summed_by_day_service_and_model_for_one_caller,
);

fn within(limits: Budgets, price: Usd) -> Reservation {
    Reservation { budgets: limits, ..asked("ann", price) }
}

fn daily(budget: Usd) -> Budgets {
    Budgets { total_day: Some(budget), ..Budgets::default() }
}

async fn over(desk: &Desk, asked: &Reservation) -> OverBudget {
    match desk.reserve(asked).await {
        Err(ReserveError::OverBudget(over)) => over,
        other => panic!("expected it to be over budget, not {other:?}"),
    }
}

async fn budget_is_spent_to_its_end_and_not_beyond(desk: Desk) {
    let limits = daily(Usd::dollars(10));
    desk.reserve(&within(limits, Usd::dollars(5))).await.unwrap();
    let refused = over(&desk, &within(limits, Usd::micros(5_000_001))).await;
    assert_eq!((refused.budget, refused.remaining), (Usd::dollars(10), Usd::dollars(5)));
    desk.reserve(&within(limits, Usd::dollars(5))).await.unwrap();
    assert_eq!(over(&desk, &within(limits, Usd::micros(1))).await.remaining, Usd::ZERO);
    desk.reserve(&within(limits, Usd::ZERO)).await.unwrap();
}

async fn held_sent_and_unknown_count_as_spent(desk: Desk) {
    desk.reserve(&asked("ann", Usd::dollars(1))).await.unwrap();
    desk.send(&asked("ann", Usd::dollars(2))).await;
    let unknown = desk.send(&asked("ann", Usd::dollars(4))).await;
    desk.settle(unknown, Settlement::Unknown).await;
    desk.buy(&asked("ann", Usd::dollars(8)), "").await;
    for spent in [desk.total().await, desk.of("ann").await] {
        assert_eq!((spent.day, spent.month), (Usd::dollars(15), Usd::dollars(15)));
    }
    assert_eq!(desk.of("bob").await.month, Usd::ZERO);
}

async fn released_purchase_frees_its_hold(desk: Desk) {
    let limits = daily(Usd::dollars(5));
    for _ in 0..3 {
        let id = desk.send(&within(limits, Usd::dollars(5))).await;
        desk.settle(id, Settlement::Released).await;
    }
    assert_eq!(desk.total().await.day, Usd::ZERO);
}

async fn different_cost_adjusts_the_counters(desk: Desk) {
    for (cost, spent) in [(Usd::dollars(3), 3), (Usd::dollars(7), 10), (Usd::ZERO, 10)] {
        let id = desk.send(&asked("ann", Usd::dollars(5))).await;
        desk.settle(id, charged(cost, "")).await;
        assert_eq!(desk.total().await.day, Usd::dollars(spent));
        assert_eq!(desk.of("ann").await.month, Usd::dollars(spent));
    }
    let rows = desk.store.purchases_since(Duration::ZERO).await.unwrap();
    let prices: Vec<_> = rows.into_iter().map(|row| row.price).collect();
    assert_eq!(prices, [Usd::dollars(3), Usd::dollars(7), Usd::ZERO]);
}

async fn over_budget_names_the_budget_that_renews_last(desk: Desk) {
    desk.reserve(&asked("ann", Usd::dollars(1))).await.unwrap();
    let one = Some(Usd::dollars(1));
    let midnight = START + 12 * HOUR;
    let december = midnight + 10 * DAY;
    let none = Budgets::default();
    for (limits, limit, renews) in [
        (Budgets { total_day: one, ..none }, BudgetKind::TotalDay, midnight),
        (Budgets { caller_day: one, ..none }, BudgetKind::CallerDay, midnight),
        (Budgets { total_day: one, caller_month: one, ..none }, BudgetKind::CallerMonth, december),
        (Budgets { total_month: one, caller_day: one, ..none }, BudgetKind::TotalMonth, december),
    ] {
        let refused = over(&desk, &within(limits, PRICE)).await;
        let expected = OverBudget {
            kind: limit,
            budget: Usd::dollars(1),
            remaining: Usd::ZERO,
            renews_at: renews,
        };
        assert_eq!(refused, expected);
    }
}

async fn callers_have_separate_budgets(desk: Desk) {
    let limits = Budgets { caller_month: Some(Usd::dollars(5)), ..Budgets::default() };
    let of = |caller| Reservation { budgets: limits, ..asked(caller, Usd::dollars(5)) };
    desk.reserve(&of("ann")).await.unwrap();
    assert_eq!(over(&desk, &of("ann")).await.kind, BudgetKind::CallerMonth);
    desk.reserve(&of("bob")).await.unwrap();
}

async fn days_and_months_end_at_midnight_utc(desk: Desk) {
    let limits = Budgets {
        total_day: Some(Usd::dollars(5)),
        total_month: Some(Usd::dollars(10)),
        ..Budgets::default()
    };
    let five = || within(limits, Usd::dollars(5));
    let midnight = START + 12 * HOUR;
    desk.reserve(&five()).await.unwrap();
    desk.set(midnight - Duration::from_nanos(1));
    assert_eq!(over(&desk, &five()).await.kind, BudgetKind::TotalDay);
    desk.set(midnight);
    desk.reserve(&five()).await.unwrap();
    desk.set(midnight + 10 * DAY - Duration::from_nanos(1));
    assert_eq!(over(&desk, &five()).await.kind, BudgetKind::TotalMonth);
    desk.set(midnight + 10 * DAY);
    desk.reserve(&five()).await.unwrap();
    assert_eq!(desk.total().await.month, Usd::dollars(5));
}

async fn late_settlement_counts_in_the_period_of_its_hold(desk: Desk) {
    let id = desk.send(&asked("ann", Usd::dollars(5))).await;
    desk.settle(id, Settlement::Unknown).await;
    desk.pass(DAY);
    desk.settle(id, charged(Usd::dollars(7), "")).await;
    let spent = desk.total().await;
    assert_eq!((spent.day, spent.month), (Usd::ZERO, Usd::dollars(7)));
    desk.set(START);
    assert_eq!(desk.total().await.day, Usd::dollars(7));
}

async fn clock_set_back_opens_no_new_period(desk: Desk) {
    let limits = daily(Usd::dollars(5));
    desk.reserve(&within(limits, Usd::dollars(5))).await.unwrap();
    for back in [SECOND, DAY, 2 * DAY] {
        desk.set(START - back);
        let refused = over(&desk, &within(limits, PRICE)).await;
        assert_eq!((refused.remaining, refused.renews_at), (Usd::ZERO, START + 12 * HOUR));
        assert_eq!(desk.total().await.day, Usd::dollars(5));
    }
}

/// Bought while the clock was years ahead, and then it was set right.
async fn purchase_dated_far_ahead_blocks_no_budget(desk: Desk) {
    let limits = daily(Usd::dollars(5));
    let five = || within(limits, Usd::dollars(5));
    let renews = START + 12 * HOUR;
    for ahead in [3 * DAY, 4_000 * DAY] {
        desk.set(START + ahead);
        desk.reserve(&five()).await.unwrap();
    }
    desk.set(START);
    let spent = desk.total().await;
    assert_eq!((spent.day, spent.day_renews_at), (Usd::ZERO, renews));
    assert_eq!(spent.month_renews_at, START + 10 * DAY + 12 * HOUR);
    desk.reserve(&five()).await.unwrap();
    assert_eq!(over(&desk, &five()).await.renews_at, renews);
    // What was counted in the day that was ahead still counts there.
    desk.set(START + 3 * DAY);
    assert_eq!(over(&desk, &five()).await.renews_at, renews + 3 * DAY);
    desk.set(START + DAY);
    assert_eq!(over(&desk, &five()).await.renews_at, renews + 3 * DAY);
}

async fn uncountable_amount_is_refused(desk: Desk) {
    let most = Usd::micros(i64::MAX as u64);
    for price in [Usd::micros(u64::MAX), Usd::micros(most.as_micros() + 1)] {
        assert!(matches!(
            desk.reserve(&asked("ann", price)).await,
            Err(ReserveError::Unavailable(_))
        ));
    }
    let id = desk.send(&asked("ann", most)).await;
    assert!(matches!(desk.reserve(&asked("bob", PRICE)).await, Err(ReserveError::Unavailable(_))));
    over(&desk, &Reservation { budgets: daily(Usd::dollars(1)), ..asked("bob", PRICE) }).await;
    assert!(desk.store.settle(id, charged(Usd::micros(u64::MAX), "")).await.is_err());
    assert_eq!(desk.total().await.day, most);
    desk.settle(id, Settlement::Released).await;
    assert_eq!(desk.total().await.day, Usd::ZERO);
}

async fn spending_is_summed_by_day_service_and_model_for_one_caller(desk: Desk) {
    let of = |caller: &str, service, model: &str, price| Reservation {
        service,
        model: model.into(),
        ..asked(caller, price)
    };
    desk.buy(&of("ann", Service::Chat, "early", PRICE), "{}").await;
    desk.pass(DAY);
    let since = desk.now();
    desk.buy(&of("bob", Service::Chat, "alpha", PRICE), "{}").await;
    desk.buy(&of("ann", Service::Video, "reel", Usd::dollars(3)), "{}").await;
    desk.buy(&of("ann", Service::Chat, "alpha", PRICE), "{}").await;
    let dearer = desk.send(&of("ann", Service::Chat, "alpha", PRICE)).await;
    desk.settle(dearer, charged(Usd::mills(9), "{}")).await;
    let released = desk.send(&of("ann", Service::Chat, "alpha", PRICE)).await;
    desk.settle(released, Settlement::Released).await;
    desk.pass(DAY);
    let unknown = desk.send(&of("ann", Service::Other, "/api/v1/search", PRICE)).await;
    desk.settle(unknown, Settlement::Unknown).await;
    desk.reserve(&of("ann", Service::Chat, "alpha", PRICE)).await.unwrap();

    let rows =
        bounded(desk.store.spend(Some("ann".to_owned()), since, 0, usize::MAX)).await.unwrap();
    let spent = |row: &SpendRow| {
        let sum = row.charged.checked_add(row.unknown).and_then(|sum| sum.checked_add(row.held));
        sum.expect("small amounts")
    };
    assert!(rows.iter().all(|row| row.caller == "ann"));
    let short: Vec<_> =
        rows.iter().map(|row| (row.service, &*row.model, row.count, spent(row))).collect();
    assert_eq!(
        short,
        [
            (Service::Chat, "alpha", 2, Usd::mills(15)),
            (Service::Video, "reel", 1, Usd::dollars(3)),
            (Service::Chat, "alpha", 1, PRICE),
            (Service::Other, "/api/v1/search", 1, PRICE),
        ]
    );
    let day = START.as_secs() / DAY.as_secs();
    assert_eq!(rows.iter().map(|row| row.day - day).collect::<Vec<_>>(), [1, 1, 2, 2]);
    assert!(
        bounded(desk.store.spend(Some("eve".to_owned()), since, 0, 9)).await.unwrap().is_empty()
    );
}
