//! Groups: their members, and a budget that their callers share.

use std::sync::Arc;

use futures_util::future::join_all;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    BudgetScope, Group, GroupChange, GroupError, LimitChange, Member, MemberChange, MemberError,
    MemberTerms, Period, Reservation, ReserveError, ScopeKind, Settlement, SpendLimit, TermsChange,
};

use crate::fixture::*;
use crate::members::{member, member_with, operator};

impl Fixture {
    pub(crate) async fn change_group(
        &self,
        name: &str,
        change: GroupChange,
    ) -> Result<(), GroupError> {
        bounded(self.store.change_group(&operator(), name.into(), change)).await
    }

    pub(crate) async fn add_group(&self, name: &str, budget: SpendLimit) {
        self.change_group(name, GroupChange::Add(budget)).await.expect("added");
    }

    async fn groups(&self) -> Vec<Group> {
        bounded(self.store.groups()).await.expect("the list")
    }

    pub(crate) async fn change(&self, name: &str, change: MemberChange) -> Result<(), MemberError> {
        bounded(self.store.change_member(&operator(), name.into(), change)).await
    }
}

fn grouped(name: &str, group: Option<&str>) -> Member {
    let group = group.map(Arc::from);
    member_with(name, MemberTerms { group, ..member(name).terms })
}

fn moved(group: Option<&str>) -> MemberChange {
    let group = Some(group.map(Arc::from));
    MemberChange::Update(TermsChange { group, ..TermsChange::default() })
}

fn of(group: &str, caller: &str, price: Usd) -> Reservation {
    Reservation { group: Some(group.into()), ..reservation(caller, price) }
}

fn group(name: &str, budget: SpendLimit, members: u64) -> Group {
    Group { name: name.into(), budget, members }
}

const FIVE: SpendLimit = SpendLimit::of(Period::Month, Usd::dollars(5));

async fn groups_are_added_changed_and_removed_by_name(fixture: Fixture) {
    assert_eq!(fixture.groups().await, []);
    let all = Period::ALL.into_iter().zip([1, 20, 50, 500]);
    let all = all.fold(SpendLimit::NONE, |limit, (period, amount)| {
        limit.or(SpendLimit::of(period, Usd::dollars(amount)))
    });
    fixture.add_group("sales", all).await;
    fixture.add_group("design", SpendLimit::NONE).await;
    let expected = [group("design", SpendLimit::NONE, 0), group("sales", all, 0)];
    assert_eq!(fixture.groups().await, expected);

    let taken = fixture.change_group("sales", GroupChange::Add(FIVE)).await;
    assert!(matches!(taken, Err(GroupError::NameTaken)));
    for change in [GroupChange::Update(LimitChange::REMOVE_ALL.set(FIVE)), GroupChange::Remove] {
        let missing = fixture.change_group("legal", change).await;
        assert!(matches!(missing, Err(GroupError::NotFound)), "{change:?}");
    }
    assert_eq!(fixture.groups().await, expected);

    fixture
        .change_group("sales", GroupChange::Update(LimitChange::REMOVE_ALL.set(FIVE)))
        .await
        .unwrap();
    fixture.change_group("design", GroupChange::Remove).await.unwrap();
    assert_eq!(fixture.groups().await, [group("sales", FIVE, 0)]);
    fixture.add_group("design", FIVE).await;
}

async fn member_joins_known_groups_only_and_its_group_stays(fixture: Fixture) {
    let ann = grouped("ann", Some("design"));
    let refused = fixture.change("ann", MemberChange::Add(ann.clone())).await;
    assert!(matches!(refused, Err(MemberError::UnknownGroup)), "{refused:?}");
    assert_eq!(bounded(fixture.store.members()).await.unwrap(), []);

    fixture.add_group("design", FIVE).await;
    fixture.add_group("sales", FIVE).await;
    fixture.change("ann", MemberChange::Add(ann.clone())).await.unwrap();
    fixture.change("bob", MemberChange::Add(grouped("bob", None))).await.unwrap();
    assert_eq!(bounded(fixture.store.members()).await.unwrap(), [ann, grouped("bob", None)]);

    let refused = fixture.change("ann", moved(Some("legal"))).await;
    assert!(matches!(refused, Err(MemberError::UnknownGroup)), "{refused:?}");
    let before = bounded(fixture.store.members_version()).await.unwrap();
    fixture.change("ann", moved(Some("sales"))).await.unwrap();
    fixture.change("bob", moved(Some("sales"))).await.unwrap();
    assert_eq!(bounded(fixture.store.members_version()).await.unwrap(), before + 2);
    assert_eq!(fixture.groups().await, [group("design", FIVE, 0), group("sales", FIVE, 2)]);

    fixture.change_group("design", GroupChange::Remove).await.unwrap();
    let refused = fixture.change_group("sales", GroupChange::Remove).await;
    assert!(matches!(refused, Err(GroupError::HasMembers)), "{refused:?}");
    fixture.change("ann", moved(None)).await.unwrap();
    fixture.change("bob", MemberChange::Revoke).await.unwrap();
    assert_eq!(fixture.groups().await, [group("sales", FIVE, 0)]);
    fixture.change_group("sales", GroupChange::Remove).await.unwrap();
    let members = bounded(fixture.store.members()).await.unwrap();
    assert_eq!(
        members.iter().map(|member| member.terms.group.as_deref()).collect::<Vec<_>>(),
        [None, Some("sales")]
    );
}

async fn changes_of_several_members_are_judged_together(fixture: Fixture) {
    fixture.add_group("design", FIVE).await;
    let add = |name: &str, group| (name.into(), MemberChange::Add(grouped(name, Some(group))));
    let changes = vec![add("ann", "design"), add("bob", "legal"), add("eve", "design")];
    let (name, refused) =
        bounded(fixture.store.change_members(&operator(), None, changes)).await.unwrap_err();
    assert_eq!(&*name, "bob");
    assert!(matches!(refused, MemberError::UnknownGroup), "{refused:?}");
    assert_eq!(bounded(fixture.store.members()).await.unwrap(), []);
    // A revoked member and a missing one are named before their group.
    fixture.change("ann", MemberChange::Add(grouped("ann", None))).await.unwrap();
    fixture.change("ann", MemberChange::Revoke).await.unwrap();
    let revoked = fixture.change("ann", moved(Some("legal"))).await;
    assert!(matches!(revoked, Err(MemberError::Revoked)), "{revoked:?}");
    let missing = fixture.change("bob", moved(Some("legal"))).await;
    assert!(matches!(missing, Err(MemberError::NotFound)), "{missing:?}");
}

async fn changed_budget_of_a_group_applies_to_its_next_purchase(fixture: Fixture) {
    let buy = async |price| fixture.reserve(&of("design", "ann", Usd::dollars(price))).await;
    let over = async |price| match buy(price).await {
        Err(ReserveError::OverBudget(over)) => over,
        other => panic!("expected an exceeded budget, not {other:?}"),
    };
    buy(3).await.unwrap();
    fixture.add_group("design", FIVE).await;
    let refused = over(3).await;
    assert_eq!((refused.scope, refused.period), (ScopeKind::Group, Period::Month));
    assert_eq!((refused.budget, refused.remaining), (Usd::dollars(5), Usd::dollars(2)));
    let ten = SpendLimit::of(Period::Month, Usd::dollars(10));
    fixture
        .change_group("design", GroupChange::Update(LimitChange::REMOVE_ALL.set(ten)))
        .await
        .unwrap();
    buy(6).await.unwrap();
    over(2).await;
    fixture.change_group("design", GroupChange::Remove).await.unwrap();
    buy(100).await.unwrap();
    // Another group of this name takes over what was spent under it.
    fixture.add_group("design", SpendLimit::of(Period::Ever, Usd::dollars(110))).await;
    assert_eq!(over(2).await.remaining, Usd::dollars(1));
}

async fn group_is_spent_to_its_end_by_all_of_its_callers_at_once(fixture: Fixture) {
    for period in Period::ALL {
        let name = period.name();
        fixture.add_group(name, SpendLimit::of(period, Usd::dollars(10))).await;
        let buy = |nth: usize| {
            let store = fixture.store.clone();
            let reservation = of(name, &format!("{name}-{}", nth % 5), Usd::dollars(3));
            async move { bounded(store.reserve(&reservation)).await }
        };
        let answers = join_all((0..20).map(buy)).await;
        let held = answers.iter().filter(|answer| answer.is_ok()).count();
        let refused = answers.iter().filter(|answer| {
            matches!(answer, Err(ReserveError::OverBudget(over))
                if (over.scope, over.period) == (ScopeKind::Group, period))
        });
        assert_eq!((held, refused.count()), (3, 17), "{name}");
        let spent = fixture.spent(BudgetScope::Group(name.to_owned())).await;
        assert_eq!(spent.get(period), Usd::dollars(9), "{name}");
    }
}

/// Members move to and fro while they buy: both groups stay within their budgets, and what was bought
/// counts in the group of that moment.
async fn groups_stay_exact_while_callers_move(fixture: Fixture) {
    for name in ["design", "sales"] {
        fixture.add_group(name, FIVE).await;
    }
    let buy = |nth: usize| {
        let store = fixture.store.clone();
        let group = if nth.is_multiple_of(2) { "design" } else { "sales" };
        let reservation = of(group, "ann", Usd::dollars(1));
        async move {
            bounded(store.reserve(&reservation)).await.ok()?;
            let is_charged = nth.is_multiple_of(3);
            let end = if is_charged { charged(Usd::mills(500), "") } else { Settlement::Unknown };
            bounded(store.settle(reservation.id, end)).await.expect("settled");
            Some((group, if is_charged { 500 } else { 1_000 }))
        }
    };
    let bought: Vec<_> = join_all((0..40).map(buy)).await.into_iter().flatten().collect();
    for name in ["design", "sales"] {
        let sum = bought.iter().filter(|one| one.0 == name).map(|one| one.1).sum();
        let spent = fixture.spent(BudgetScope::Group(name.to_owned())).await.month;
        assert_eq!(spent, Usd::mills(sum), "{name}");
        assert!(spent <= Usd::dollars(5), "{name}: {spent}");
        while fixture.reserve(&of(name, "bob", Usd::dollars(1))).await.is_ok() {}
        let spent = fixture.spent(BudgetScope::Group(name.to_owned())).await.month;
        assert!(Usd::dollars(4) < spent && spent <= Usd::dollars(5), "{name}: {spent}");
    }
}

on_every_backend!(
    groups_are_added_changed_and_removed_by_name,
    member_joins_known_groups_only_and_its_group_stays,
    changes_of_several_members_are_judged_together,
    changed_budget_of_a_group_applies_to_its_next_purchase,
    group_is_spent_to_its_end_by_all_of_its_callers_at_once,
    groups_stay_exact_while_callers_move,
);
