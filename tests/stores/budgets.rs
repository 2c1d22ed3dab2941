//! No budget is overrun, and whoever is refused hears which one, what is left and when it renews.

use std::time::Duration;

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    BudgetScope, Budgets, OverBudget, Period, Reservation, ReserveError, ScopeKind, Service,
    Settlement, SpendLimit, SpendRow, ZoneOffsets,
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
    weeks_begin_on_monday_and_cross_months_and_years,
    budget_for_ever_counts_every_year,
    limit_that_is_added_counts_what_was_spent_before,
    group_keeps_the_purchases_of_a_caller_that_moves,
    token_has_a_budget_besides_its_caller,
    every_scope_and_period_is_spent_to_its_end_by_purchases_at_once,
    clock_set_back_opens_no_new_period,
    purchase_dated_far_ahead_blocks_no_budget,
    uncountable_amount_is_refused,
    spending_is_summed_by_day_service_and_model_for_one_caller,
);

fn within(limits: Budgets, price: Usd) -> Reservation {
    Reservation { budgets: limits, ..reservation("ann", price) }
}

fn daily(budget: Usd) -> Budgets {
    Budgets { total: SpendLimit::of(Period::Day, budget), ..Budgets::default() }
}

async fn over(fixture: &Fixture, reservation: &Reservation) -> OverBudget {
    match fixture.reserve(reservation).await {
        Err(ReserveError::OverBudget(over)) => over,
        other => panic!("expected it to be over budget, not {other:?}"),
    }
}

async fn budget_is_spent_to_its_end_and_not_beyond(fixture: Fixture) {
    let limits = daily(Usd::dollars(10));
    fixture.reserve(&within(limits, Usd::dollars(5))).await.unwrap();
    let refused = over(&fixture, &within(limits, Usd::micros(5_000_001))).await;
    assert_eq!((refused.budget, refused.remaining), (Usd::dollars(10), Usd::dollars(5)));
    fixture.reserve(&within(limits, Usd::dollars(5))).await.unwrap();
    assert_eq!(over(&fixture, &within(limits, Usd::micros(1))).await.remaining, Usd::ZERO);
    fixture.reserve(&within(limits, Usd::ZERO)).await.unwrap();
}

async fn held_sent_and_unknown_count_as_spent(fixture: Fixture) {
    fixture.reserve(&reservation("ann", Usd::dollars(1))).await.unwrap();
    fixture.send(&reservation("ann", Usd::dollars(2))).await;
    let unknown = fixture.send(&reservation("ann", Usd::dollars(4))).await;
    fixture.settle(unknown, Settlement::Unknown).await;
    fixture.buy(&reservation("ann", Usd::dollars(8)), "").await;
    for spent in [fixture.total().await, fixture.of("ann").await] {
        assert_eq!((spent.day, spent.month), (Usd::dollars(15), Usd::dollars(15)));
    }
    assert_eq!(fixture.of("bob").await.month, Usd::ZERO);
}

async fn released_purchase_frees_its_hold(fixture: Fixture) {
    let limits = daily(Usd::dollars(5));
    for _ in 0..3 {
        let id = fixture.send(&within(limits, Usd::dollars(5))).await;
        fixture.settle(id, Settlement::Released).await;
    }
    assert_eq!(fixture.total().await.day, Usd::ZERO);
}

async fn different_cost_adjusts_the_counters(fixture: Fixture) {
    for (cost, spent) in [(Usd::dollars(3), 3), (Usd::dollars(7), 10), (Usd::ZERO, 10)] {
        let id = fixture.send(&reservation("ann", Usd::dollars(5))).await;
        fixture.settle(id, charged(cost, "")).await;
        assert_eq!(fixture.total().await.day, Usd::dollars(spent));
        assert_eq!(fixture.of("ann").await.month, Usd::dollars(spent));
    }
    let rows = fixture.store.purchases_since(Duration::ZERO).await.unwrap();
    let prices: Vec<_> = rows.into_iter().map(|row| row.price).collect();
    assert_eq!(prices, [Usd::dollars(3), Usd::dollars(7), Usd::ZERO]);
}

async fn over_budget_names_the_budget_that_renews_last(fixture: Fixture) {
    fixture.reserve(&reservation("ann", Usd::dollars(1))).await.unwrap();
    let one = |period| SpendLimit::of(period, Usd::dollars(1));
    let (day, month) = (one(Period::Day), one(Period::Month));
    let midnight = START + 12 * HOUR;
    let december = midnight + 10 * DAY;
    let none = Budgets::default();
    let (total, caller) = (ScopeKind::Total, ScopeKind::Caller);
    for (limits, scope, period, renews_at) in [
        (Budgets { total: day, ..none }, total, Period::Day, Some(midnight)),
        (Budgets { caller: day, ..none }, caller, Period::Day, Some(midnight)),
        (Budgets { total: day, caller: month, ..none }, caller, Period::Month, Some(december)),
        (Budgets { total: month, caller: day, ..none }, total, Period::Month, Some(december)),
        (Budgets { total: month, caller: one(Period::Ever), ..none }, caller, Period::Ever, None),
    ] {
        let refused = over(&fixture, &within(limits, PRICE)).await;
        let expected =
            OverBudget { scope, period, budget: Usd::dollars(1), remaining: Usd::ZERO, renews_at };
        assert_eq!(refused, expected);
    }
}

async fn callers_have_separate_budgets(fixture: Fixture) {
    let limits =
        Budgets { caller: SpendLimit::of(Period::Month, Usd::dollars(5)), ..Budgets::default() };
    let of = |caller| Reservation { budgets: limits, ..reservation(caller, Usd::dollars(5)) };
    fixture.reserve(&of("ann")).await.unwrap();
    assert_eq!(over(&fixture, &of("ann")).await.scope, ScopeKind::Caller);
    fixture.reserve(&of("bob")).await.unwrap();
}

async fn days_and_months_end_at_midnight_utc(fixture: Fixture) {
    let limits = Budgets {
        total: SpendLimit {
            day: Some(Usd::dollars(5)),
            month: Some(Usd::dollars(10)),
            ..SpendLimit::NONE
        },
        ..Budgets::default()
    };
    let five = || within(limits, Usd::dollars(5));
    let midnight = START + 12 * HOUR;
    fixture.reserve(&five()).await.unwrap();
    fixture.set(midnight - Duration::from_nanos(1));
    assert_eq!(over(&fixture, &five()).await.period, Period::Day);
    fixture.set(midnight);
    fixture.reserve(&five()).await.unwrap();
    fixture.set(midnight + 10 * DAY - Duration::from_nanos(1));
    assert_eq!(over(&fixture, &five()).await.period, Period::Month);
    fixture.set(midnight + 10 * DAY);
    fixture.reserve(&five()).await.unwrap();
    assert_eq!(fixture.total().await.month, Usd::dollars(5));
}

async fn late_settlement_counts_in_the_period_of_its_hold(fixture: Fixture) {
    let id = fixture.send(&reservation("ann", Usd::dollars(5))).await;
    fixture.settle(id, Settlement::Unknown).await;
    fixture.pass(DAY);
    fixture.settle(id, charged(Usd::dollars(7), "")).await;
    let spent = fixture.total().await;
    assert_eq!((spent.day, spent.month), (Usd::ZERO, Usd::dollars(7)));
    fixture.set(START);
    assert_eq!(fixture.total().await.day, Usd::dollars(7));
}

/// Returns a limit for one scope and period.
fn limit(scope: ScopeKind, period: Period, amount: Usd) -> Budgets {
    let (limit, none) = (SpendLimit::of(period, amount), Budgets::default());
    match scope {
        ScopeKind::Total => Budgets { total: limit, ..none },
        ScopeKind::Caller => Budgets { caller: limit, ..none },
        ScopeKind::Token => Budgets { token: limit, ..none },
        ScopeKind::Group => unreachable!("the ledger keeps it"),
    }
}

async fn weeks_begin_on_monday_and_cross_months_and_years(fixture: Fixture) {
    let limits = limit(ScopeKind::Caller, Period::Week, Usd::dollars(5));
    // 2024-12-30 is a Monday.
    let monday = Duration::from_secs(1_735_516_800);
    let nano = Duration::from_nanos(1);
    fixture.set(monday - nano);
    fixture.reserve(&within(limits, Usd::dollars(5))).await.unwrap();
    assert_eq!(over(&fixture, &within(limits, PRICE)).await.renews_at, Some(monday));
    fixture.set(monday);
    fixture.reserve(&within(limits, Usd::dollars(3))).await.unwrap();
    // The next year has begun; the week goes on.
    fixture.set(monday + 7 * DAY - nano);
    let refused = over(&fixture, &within(limits, Usd::dollars(3))).await;
    assert_eq!((refused.period, refused.remaining), (Period::Week, Usd::dollars(2)));
    assert_eq!(refused.renews_at, Some(monday + 7 * DAY));
    let spent = fixture.of("ann").await;
    assert_eq!(
        (spent.week, spent.month, spent.ever),
        (Usd::dollars(3), Usd::ZERO, Usd::dollars(8))
    );
    fixture.set(monday + 7 * DAY);
    fixture.reserve(&within(limits, Usd::dollars(5))).await.unwrap();
}

async fn budget_for_ever_counts_every_year(fixture: Fixture) {
    let limits = limit(ScopeKind::Total, Period::Ever, Usd::dollars(5));
    let first = fixture.send(&within(limits, Usd::dollars(2))).await;
    fixture.pass(400 * DAY);
    fixture.reserve(&within(limits, Usd::dollars(2))).await.unwrap();
    let refused = over(&fixture, &within(limits, Usd::dollars(2))).await;
    assert_eq!((refused.remaining, refused.renews_at), (Usd::dollars(1), None));
    fixture.settle(first, Settlement::Released).await;
    fixture.reserve(&within(limits, Usd::dollars(3))).await.unwrap();
    over(&fixture, &within(limits, PRICE)).await;
}

async fn limit_that_is_added_counts_what_was_spent_before(fixture: Fixture) {
    fixture.buy(&reservation("ann", Usd::dollars(4)), "").await;
    fixture.pass(DAY);
    fixture.reserve(&reservation("ann", Usd::dollars(3))).await.unwrap();
    for period in [Period::Week, Period::Ever] {
        let limits = limit(ScopeKind::Caller, period, Usd::dollars(8));
        let refused = over(&fixture, &within(limits, Usd::dollars(2))).await;
        assert_eq!(refused.remaining, Usd::dollars(1), "{period:?}");
    }
}

async fn group_keeps_the_purchases_of_a_caller_that_moves(fixture: Fixture) {
    let of = |group: &str, price| Reservation {
        group: Some(group.into()),
        ..reservation("ann", Usd::dollars(price))
    };
    let spent = async |group: &str| fixture.spent(BudgetScope::Group(group.to_owned())).await.month;
    let running = fixture.send(&of("design", 4)).await;
    let failed = fixture.send(&of("design", 2)).await;
    fixture.reserve(&of("sales", 1)).await.unwrap();
    assert_eq!((spent("design").await, spent("sales").await), (Usd::dollars(6), Usd::dollars(1)));
    fixture.settle(running, charged(Usd::dollars(3), "")).await;
    fixture.settle(failed, Settlement::Released).await;
    assert_eq!((spent("design").await, spent("sales").await), (Usd::dollars(3), Usd::dollars(1)));
    assert_eq!(fixture.of("ann").await.month, Usd::dollars(4));
}

async fn token_has_a_budget_besides_its_caller(fixture: Fixture) {
    let limits = limit(ScopeKind::Token, Period::Day, Usd::dollars(5));
    let with = |token: &str| Reservation {
        token: Some(token.into()),
        budgets: limits,
        ..reservation("ann", Usd::dollars(5))
    };
    fixture.reserve(&with("one")).await.unwrap();
    assert_eq!(over(&fixture, &with("one")).await.scope, ScopeKind::Token);
    fixture.reserve(&with("two")).await.unwrap();
    fixture.reserve(&within(limits, Usd::dollars(5))).await.unwrap();
    assert_eq!(fixture.of("ann").await.day, Usd::dollars(15));
}

async fn every_scope_and_period_is_spent_to_its_end_by_purchases_at_once(fixture: Fixture) {
    for scope in [ScopeKind::Total, ScopeKind::Caller, ScopeKind::Token] {
        for period in Period::ALL {
            let name = format!("{}-{}", scope.name(), period.name());
            let before = fixture.total().await.get(period).as_micros();
            let base = if scope == ScopeKind::Total { before } else { 0 };
            let limits = limit(scope, period, Usd::micros(base + 10_000_000));
            let buy = || {
                let reservation = Reservation {
                    budgets: limits,
                    token: Some(name.as_str().into()),
                    ..reservation(&name, Usd::dollars(3))
                };
                let store = fixture.store.clone();
                async move { bounded(store.reserve(&reservation)).await }
            };
            let answers = futures_util::future::join_all((0..20).map(|_| buy())).await;
            let held = answers.iter().filter(|answer| answer.is_ok()).count();
            assert_eq!(held, 3, "{name}");
            let refused = answers.iter().filter(|answer| {
                matches!(answer, Err(ReserveError::OverBudget(over))
                    if (over.scope, over.period) == (scope, period))
            });
            assert_eq!(refused.count(), 17, "{name}");
        }
    }
}

async fn clock_set_back_opens_no_new_period(fixture: Fixture) {
    let limits = daily(Usd::dollars(5));
    fixture.reserve(&within(limits, Usd::dollars(5))).await.unwrap();
    for back in [SECOND, DAY, 2 * DAY] {
        fixture.set(START - back);
        let refused = over(&fixture, &within(limits, PRICE)).await;
        assert_eq!((refused.remaining, refused.renews_at), (Usd::ZERO, Some(START + 12 * HOUR)));
        assert_eq!(fixture.total().await.day, Usd::dollars(5));
    }
}

/// Bought while the clock was years ahead, and then it was set right.
async fn purchase_dated_far_ahead_blocks_no_budget(fixture: Fixture) {
    let limits = daily(Usd::dollars(5));
    let five = || within(limits, Usd::dollars(5));
    let renews = START + 12 * HOUR;
    for ahead in [3 * DAY, 4_000 * DAY] {
        fixture.set(START + ahead);
        fixture.reserve(&five()).await.unwrap();
    }
    fixture.set(START);
    let spent = fixture.total().await;
    assert_eq!((spent.day, spent.day_renews_at), (Usd::ZERO, renews));
    assert_eq!(spent.month_renews_at, START + 10 * DAY + 12 * HOUR);
    fixture.reserve(&five()).await.unwrap();
    assert_eq!(over(&fixture, &five()).await.renews_at, Some(renews));
    // What was counted in the day that was ahead still counts there.
    fixture.set(START + 3 * DAY);
    assert_eq!(over(&fixture, &five()).await.renews_at, Some(renews + 3 * DAY));
    fixture.set(START + DAY);
    assert_eq!(over(&fixture, &five()).await.renews_at, Some(renews + 3 * DAY));
}

async fn uncountable_amount_is_refused(fixture: Fixture) {
    let most = Usd::micros(i64::MAX as u64);
    for price in [Usd::micros(u64::MAX), Usd::micros(most.as_micros() + 1)] {
        assert!(matches!(
            fixture.reserve(&reservation("ann", price)).await,
            Err(ReserveError::Unavailable(_))
        ));
    }
    let id = fixture.send(&reservation("ann", most)).await;
    assert!(matches!(
        fixture.reserve(&reservation("bob", PRICE)).await,
        Err(ReserveError::Unavailable(_))
    ));
    over(&fixture, &Reservation { budgets: daily(Usd::dollars(1)), ..reservation("bob", PRICE) })
        .await;
    assert!(fixture.store.settle(id, charged(Usd::micros(u64::MAX), "")).await.is_err());
    assert_eq!(fixture.total().await.day, most);
    fixture.settle(id, Settlement::Released).await;
    assert_eq!(fixture.total().await.day, Usd::ZERO);
}

async fn spending_is_summed_by_day_service_and_model_for_one_caller(fixture: Fixture) {
    let of = |caller: &str, service, model: &str, price| Reservation {
        service,
        model: model.to_owned().into(),
        ..reservation(caller, price)
    };
    fixture.buy(&of("ann", Service::Chat, "early", PRICE), "{}").await;
    fixture.pass(DAY);
    let since = fixture.now();
    fixture.buy(&of("bob", Service::Chat, "alpha", PRICE), "{}").await;
    fixture.buy(&of("ann", Service::Video, "reel", Usd::dollars(3)), "{}").await;
    fixture.buy(&of("ann", Service::Chat, "alpha", PRICE), "{}").await;
    let dearer = fixture.send(&of("ann", Service::Chat, "alpha", PRICE)).await;
    fixture.settle(dearer, charged(Usd::mills(9), "{}")).await;
    let released = fixture.send(&of("ann", Service::Chat, "alpha", PRICE)).await;
    fixture.settle(released, Settlement::Released).await;
    fixture.pass(DAY);
    let unknown = fixture.send(&of("ann", Service::Other, "/api/v1/search", PRICE)).await;
    fixture.settle(unknown, Settlement::Unknown).await;
    fixture.reserve(&of("ann", Service::Chat, "alpha", PRICE)).await.unwrap();

    let rows = bounded(fixture.store.spend(
        Some("ann".to_owned()),
        since,
        ZoneOffsets::default(),
        usize::MAX,
    ))
    .await
    .unwrap();
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
        bounded(fixture.store.spend(Some("eve".to_owned()), since, ZoneOffsets::default(), 9))
            .await
            .unwrap()
            .is_empty()
    );
}
