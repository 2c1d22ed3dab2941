//! What raises a caller's limits for a time.

use std::time::Duration;

use futures_util::future::join_all;
use tollgate::clock::Date;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    AuditQuery, BudgetScope, Budgets, Extra, KeptLimit, MemberChange, MemberError, OverBudget,
    Period, Reservation, ReserveError, SpendLimit,
};

use crate::fixture::*;
use crate::members::member;

const ANN: &str = "member:ann";

/// A purchase of the member ann, whose own limit is five dollars in each of these periods.
fn within(periods: &[Period], price: Usd) -> Reservation {
    let caller = periods
        .iter()
        .fold(SpendLimit::NONE, |limit, period| limit.or(SpendLimit::of(*period, Usd::dollars(5))));
    Reservation { budgets: Budgets { caller, ..Budgets::default() }, ..reservation(ANN, price) }
}

async fn over(fixture: &Fixture, reservation: &Reservation) -> OverBudget {
    match fixture.reserve(reservation).await {
        Err(ReserveError::OverBudget(over)) => over,
        other => panic!("expected it to be over budget, not {other:?}"),
    }
}

async fn with_ann(fixture: &Fixture) {
    fixture.change("ann", MemberChange::Add(member("ann"))).await.unwrap();
}

async fn raise(fixture: &Fixture, dollars: u64, until: Duration) {
    let extra = Extra { amount: Usd::dollars(dollars), until };
    fixture.change("ann", MemberChange::Extra(Some(extra))).await.unwrap();
}

async fn extra_raises_every_limit_of_its_caller_until_it_ends(fixture: Fixture) {
    with_ann(&fixture).await;
    let until = START + HOUR;
    raise(&fixture, 2, until).await;
    for period in Period::ALL {
        let refused = over(&fixture, &within(&[period], Usd::dollars(8))).await;
        assert_eq!((refused.period, refused.budget), (period, Usd::dollars(7)));
    }
    let all = &Period::ALL;
    fixture.reserve(&within(all, Usd::dollars(7))).await.unwrap();
    over(&fixture, &within(all, PRICE)).await;
    // Others have no part in it.
    let bob = Reservation { caller: "member:bob".into(), ..within(all, Usd::dollars(6)) };
    assert_eq!(over(&fixture, &bob).await.budget, Usd::dollars(5));
    let total =
        Budgets { total: SpendLimit::of(Period::Day, Usd::dollars(7)), ..Budgets::default() };
    over(&fixture, &Reservation { budgets: total, ..reservation(ANN, PRICE) }).await;

    fixture.set(until - Duration::from_nanos(1));
    let refused = over(&fixture, &within(&[Period::Ever], PRICE)).await;
    assert_eq!((refused.budget, refused.remaining), (Usd::dollars(7), Usd::ZERO));
    fixture.set(until);
    let refused = over(&fixture, &within(&[Period::Ever], PRICE)).await;
    assert_eq!((refused.budget, refused.remaining), (Usd::dollars(5), Usd::ZERO));
}

/// The last of May 2026 is a Sunday: a day, a week, a month and the extra end at once.
async fn one_midnight_ends_every_period_and_the_extra(fixture: Fixture) {
    const RENEWING: [Period; 3] = [Period::Day, Period::Week, Period::Month];
    let midnight = Date { year: 2026, month: 6, day: 1 }.start();
    fixture.set(midnight - HOUR);
    with_ann(&fixture).await;
    let last_day = Date::at(midnight - HOUR);
    let extra = Extra::through(Usd::dollars(2), last_day);
    fixture.change("ann", MemberChange::Extra(Some(extra))).await.unwrap();
    fixture.reserve(&within(&Period::ALL, Usd::dollars(7))).await.unwrap();
    fixture.set(midnight - Duration::from_nanos(1));
    for period in RENEWING {
        let refused = over(&fixture, &within(&[period], PRICE)).await;
        assert_eq!((refused.budget, refused.remaining), (Usd::dollars(7), Usd::ZERO));
        assert_eq!(refused.renews_at, Some(midnight), "{period:?}");
    }

    fixture.set(midnight);
    let refused = over(&fixture, &within(&Period::ALL, PRICE)).await;
    assert_eq!((refused.period, refused.budget), (Period::Ever, Usd::dollars(5)));
    for period in RENEWING {
        let refused = over(&fixture, &within(&[period], Usd::dollars(6))).await;
        assert_eq!((refused.budget, refused.remaining), (Usd::dollars(5), Usd::dollars(5)));
    }
    let buy = |_| {
        let (store, reservation) = (fixture.store.clone(), within(&RENEWING, Usd::dollars(2)));
        async move { bounded(store.reserve(&reservation)).await.is_ok() }
    };
    let answers = join_all((0..20).map(buy)).await;
    assert_eq!(answers.iter().filter(|is_held| **is_held).count(), 2);
    let spent = fixture.of(ANN).await;
    let four = Usd::dollars(4);
    assert_eq!(
        [spent.day, spent.week, spent.month, spent.ever],
        [four, four, four, Usd::dollars(11)]
    );
}

async fn extras_add_up_and_end_one_by_one(fixture: Fixture) {
    with_ann(&fixture).await;
    let kept = async || {
        let scope = BudgetScope::Caller(ANN.to_owned());
        bounded(fixture.store.kept_limit(scope)).await.unwrap()
    };
    assert_eq!(kept().await, KeptLimit::default());
    let (first, second) = (START + HOUR, START + DAY);
    raise(&fixture, 3, second).await;
    raise(&fixture, 2, first).await;
    let sum = |dollars, until| {
        let extra = Some(Extra { amount: Usd::dollars(dollars), until });
        KeptLimit { extra, ..KeptLimit::default() }
    };
    assert_eq!(kept().await, sum(5, first));
    let day = &[Period::Month];
    assert_eq!(over(&fixture, &within(day, Usd::dollars(11))).await.budget, Usd::dollars(10));
    fixture.set(first);
    assert_eq!(kept().await, sum(3, second));
    assert_eq!(over(&fixture, &within(day, Usd::dollars(11))).await.budget, Usd::dollars(8));
    fixture.change("ann", MemberChange::Extra(None)).await.unwrap();
    assert_eq!(kept().await, KeptLimit::default());
    assert_eq!(over(&fixture, &within(day, Usd::dollars(11))).await.budget, Usd::dollars(5));
}

/// The limit itself is as before once the extra has ended.
async fn extra_changes_no_limit_and_ends_with_its_last_day(fixture: Fixture) {
    with_ann(&fixture).await;
    let midnight = START + 12 * HOUR;
    let extra = Extra::through(Usd::dollars(1), Date::at(START));
    assert_eq!(extra, Extra { amount: Usd::dollars(1), until: midnight });
    fixture.change("ann", MemberChange::Extra(Some(extra))).await.unwrap();
    assert_eq!(bounded(fixture.store.members()).await.unwrap(), [member("ann")]);
}

async fn extra_is_for_members_that_are_not_revoked(fixture: Fixture) {
    let extra = MemberChange::Extra(Some(Extra { amount: Usd::dollars(1), until: START + HOUR }));
    for change in [extra, MemberChange::Extra(None)] {
        let missing = fixture.change("bob", change.clone()).await;
        assert!(matches!(missing, Err(MemberError::NotFound)), "{missing:?}");
        fixture.change("ann", MemberChange::Add(member("ann"))).await.ok();
        fixture.change("ann", MemberChange::Revoke).await.unwrap();
        let revoked = fixture.change("ann", change).await;
        assert!(matches!(revoked, Err(MemberError::Revoked)), "{revoked:?}");
    }
    let scope = BudgetScope::Caller(ANN.to_owned());
    assert_eq!(bounded(fixture.store.kept_limit(scope)).await.unwrap().extra, None);
}

async fn raised_limit_is_spent_to_its_end_by_purchases_at_once(fixture: Fixture) {
    with_ann(&fixture).await;
    raise(&fixture, 4, START + HOUR).await;
    let buy = |_| {
        let (store, reservation) =
            (fixture.store.clone(), within(&[Period::Week], Usd::dollars(2)));
        async move { bounded(store.reserve(&reservation)).await.is_ok() }
    };
    let answers = join_all((0..20).map(buy)).await;
    assert_eq!(answers.iter().filter(|is_held| **is_held).count(), 4);
    assert_eq!(fixture.of(ANN).await.week, Usd::dollars(8));
}

/// Whom the ledger does not list can be raised, too.
async fn extra_of_a_user_of_a_login_can_be_ended_early(fixture: Fixture) {
    const ADA: &str = "subject:ada";
    let change = async |extra| {
        let by = crate::members::operator();
        bounded(fixture.store.change_extras(by, ADA.into(), extra)).await.unwrap();
    };
    let buy =
        |price| Reservation { caller: ADA.into(), ..within(&Period::ALL, Usd::dollars(price)) };
    let until = START + HOUR;
    change(None).await;
    change(Some(Extra { amount: Usd::dollars(2), until })).await;
    change(Some(Extra { amount: Usd::dollars(1), until })).await;
    assert_eq!(over(&fixture, &buy(9)).await.budget, Usd::dollars(8));
    fixture.reserve(&buy(6)).await.unwrap();
    change(None).await;
    let refused = over(&fixture, &buy(1)).await;
    assert_eq!((refused.budget, refused.remaining), (Usd::dollars(5), Usd::ZERO));
    change(None).await;
    let all = AuditQuery { before: None, since: Duration::ZERO, most: usize::MAX };
    let log = bounded(fixture.store.audit_log(all)).await.unwrap();
    let acts: Vec<_> =
        log.iter().map(|entry| (&*entry.act, &*entry.of, entry.new.as_deref())).collect();
    let raised = |new| ("member.extra", ADA, new);
    let (one, two) = ("1.00 through 2025-11-20", "2.00 through 2025-11-20");
    assert_eq!(acts, [raised(None), raised(Some(one)), raised(Some(two))]);
}

on_every_backend!(
    extra_of_a_user_of_a_login_can_be_ended_early,
    extra_raises_every_limit_of_its_caller_until_it_ends,
    one_midnight_ends_every_period_and_the_extra,
    extras_add_up_and_end_one_by_one,
    extra_changes_no_limit_and_ends_with_its_last_day,
    extra_is_for_members_that_are_not_revoked,
    raised_limit_is_spent_to_its_end_by_purchases_at_once,
);
