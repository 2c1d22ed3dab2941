//! Each act on members is in the audit log, in the act's own transaction.

use std::time::Duration;

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    Actor, AuditEntry, AuditQuery, Caller, Extra, GroupChange, LimitChange, MemberChange,
    MemberError, MemberTerms, Period, PurchaseState, Role, Selection, Settlement, SpendLimit,
    Store, TermsChange,
};

use crate::fixture::*;
use crate::members::{member, member_with, operator};

const ALL: AuditQuery = AuditQuery { before: None, since: Duration::ZERO, most: usize::MAX };

impl Fixture {
    async fn audit_log(&self, query: AuditQuery) -> Vec<AuditEntry> {
        bounded(self.store.audit_log(query)).await.expect("the log")
    }

    /// Returns who, what, of whom, old and new, the earliest first.
    async fn acts(&self) -> Vec<String> {
        let mut log = self.audit_log(ALL).await;
        log.reverse();
        let value = |value: Option<&str>| value.unwrap_or("-").to_owned();
        let text = |AuditEntry { by, act, of, old, new, .. }: &AuditEntry| {
            format!("{by}: {act} {of}: {} > {}", value(old.as_deref()), value(new.as_deref()))
        };
        log.iter().map(text).collect()
    }

    async fn act(&self, by: &Actor, name: &str, change: MemberChange) {
        bounded(self.store.change_member(by, name.into(), change)).await.expect("changed");
    }
}

fn update(
    role: Option<Role>,
    own_budget: Option<SpendLimit>,
    may_buy: Option<Option<&str>>,
) -> MemberChange {
    let may_buy = may_buy.map(|names| names.map(Selection::parse));
    let budget =
        own_budget.map_or(LimitChange::default(), |limit| LimitChange::REMOVE_ALL.set(limit));
    MemberChange::Update(TermsChange { role, budget, may_buy, ..TermsChange::default() })
}

async fn resolved_purchase_is_written_once(fixture: Fixture) {
    let id = fixture.send(&reservation("ann", PRICE)).await;
    let resolve = |ending: Settlement, new: &str| {
        bounded(fixture.store.resolve(operator(), id, ending, new.to_owned()))
    };
    fixture.settle(id, Settlement::Unknown).await;
    for _ in 0..2 {
        resolve(Settlement::Released, "released: it").await.expect("resolved");
    }
    let row = bounded(fixture.store.purchase(id)).await.expect("read").expect("it is there");
    assert_eq!(row.state, PurchaseState::Released);
    let by = operator().name().to_owned();
    assert_eq!(
        fixture.acts().await,
        [format!("{by}: purchase.resolve ann: unknown > released: it")]
    );
}

async fn each_act_writes_who_what_of_whom_old_and_new(fixture: Fixture) {
    let root = Actor::from(&Caller::Member("root".into()));
    let terms = MemberTerms {
        budget: SpendLimit {
            day: Some(Usd::mills(6)),
            week: Some(Usd::dollars(12_345)),
            month: Some(Usd::micros(50_123_456)),
            ever: Some(Usd::ZERO),
        },
        may_buy: Some(Selection::parse("chat")),
        ..MemberTerms::default()
    };
    let ann = member_with("ann", terms);
    let bob = member_with("bob", MemberTerms { role: Role::Admin, ..MemberTerms::default() });
    fixture.act(&operator(), "ann", MemberChange::Add(ann)).await;
    fixture.act(&operator(), "bob", MemberChange::Add(bob)).await;
    fixture.pass(HOUR);
    let month = SpendLimit::of(Period::Month, Usd::dollars(50));
    let chat = Some(Some("chat,video-b"));
    fixture.act(&root, "ann", update(Some(Role::Admin), Some(month), chat)).await;
    fixture.act(&root, "ann", update(None, Some(SpendLimit::NONE), Some(None))).await;
    fixture.act(&root, "ann", MemberChange::Rotate(identity("new"), "tg_new".into())).await;
    fixture.act(&root, "ann", MemberChange::Revoke).await;

    let budget = "0.006/day 12345.00/week 50.123456/month 0.00/ever";
    assert_eq!(
        fixture.acts().await,
        [
            &format!(
                "command line (ops@host): member.add member:ann: - > role member, budget {budget}, may buy chat"
            ),
            "command line (ops@host): member.add member:bob: - > role admin",
            "member:root: member.role member:ann: member > admin",
            &format!("member:root: member.budget member:ann: {budget} > 50.00/month"),
            "member:root: member.may_buy member:ann: chat > chat video-b",
            "member:root: member.budget member:ann: 50.00/month > -",
            "member:root: member.may_buy member:ann: chat video-b > -",
            "member:root: token.rotate member:ann: tg_ann > tg_new",
            "member:root: member.revoke member:ann: - > -",
        ]
    );
    let log = fixture.audit_log(ALL).await;
    assert!(log.iter().map(|entry| entry.id).is_sorted_by(|later, earlier| later > earlier));
    assert_eq!((log[0].at, log[8].at), (START + HOUR, START));
}

async fn each_act_on_a_group_is_written(fixture: Fixture) {
    let (five, root) = (SpendLimit::of(Period::Day, Usd::dollars(5)), operator());
    let add = GroupChange::Add(five);
    let update = |limit| GroupChange::Update(LimitChange::REMOVE_ALL.set(limit));
    let change = async |name: &str, change| {
        bounded(fixture.store.change_group(&root, name.into(), change)).await
    };
    change("design", add).await.unwrap();
    assert!(change("design", GroupChange::Add(SpendLimit::NONE)).await.is_err());
    assert!(change("sales", update(five)).await.is_err());
    assert!(change("sales", GroupChange::Remove).await.is_err());
    change("design", update(SpendLimit::of(Period::Ever, Usd::mills(6)))).await.unwrap();
    change("design", update(SpendLimit::of(Period::Ever, Usd::mills(6)))).await.unwrap();
    let terms = MemberTerms { group: Some("design".into()), ..MemberTerms::default() };
    let ann = member_with("ann", terms);
    fixture.act(&root, "ann", MemberChange::Add(ann)).await;
    assert!(change("design", GroupChange::Remove).await.is_err(), "it has a member");
    let leave = MemberChange::Update(TermsChange { group: Some(None), ..TermsChange::default() });
    fixture.act(&root, "ann", leave).await;
    change("design", GroupChange::Remove).await.unwrap();
    let acts = [
        "group.add group:design: - > 5.00/day",
        "group.budget group:design: 5.00/day > 0.006/ever",
        "member.add member:ann: - > role member, group design",
        "member.group member:ann: design > -",
        "group.remove group:design: 0.006/ever > -",
    ];
    assert_eq!(fixture.acts().await, acts.map(|act| format!("{}: {act}", root.name())));
}

async fn extra_and_its_early_end_are_written(fixture: Fixture) {
    let root = operator();
    fixture.act(&root, "ann", MemberChange::Add(member("ann"))).await;
    fixture.act(&root, "ann", MemberChange::Extra(None)).await;
    let extra = Extra { amount: Usd::mills(2_500), until: START + 12 * HOUR };
    fixture.act(&root, "ann", MemberChange::Extra(Some(extra))).await;
    fixture.act(&root, "ann", MemberChange::Extra(None)).await;
    fixture.act(&root, "ann", MemberChange::Extra(None)).await;
    let refused = MemberChange::Extra(Some(extra));
    assert!(bounded(fixture.store.change_member(&root, "eve".into(), refused)).await.is_err());
    let acts =
        ["member.extra member:ann: - > 2.50 through 2025-11-20", "member.extra member:ann: - > -"];
    assert_eq!(fixture.acts().await[1..], acts.map(|act| format!("{}: {act}", root.name())));
}

async fn act_that_changes_nothing_writes_nothing(fixture: Fixture) {
    fixture.act(&operator(), "ann", MemberChange::Add(member("ann"))).await;
    let same = update(Some(Role::Member), Some(member("ann").terms.budget), Some(None));
    fixture.act(&operator(), "ann", same).await;
    fixture.act(&operator(), "ann", MemberChange::Revoke).await;
    fixture.act(&operator(), "ann", MemberChange::Revoke).await;
    assert_eq!(fixture.acts().await.len(), 2, "added and revoked");
}

async fn refused_change_writes_nothing(fixture: Fixture) {
    let root = operator();
    fixture.act(&root, "ann", MemberChange::Add(member("ann"))).await;
    let added = |name: &str| (name.into(), MemberChange::Add(member(name)));
    let refused =
        bounded(fixture.store.change_members(&root, None, ["bob", "ann"].map(added).into()));
    assert!(refused.await.is_err());
    let admin = || update(Some(Role::Admin), None, None);
    let changes = vec![("ann".into(), admin()), ("eve".into(), admin())];
    assert!(bounded(fixture.store.change_members(&root, None, changes)).await.is_err());
    assert!(bounded(fixture.store.change_member(&root, "eve".into(), admin())).await.is_err());
    assert_eq!(fixture.acts().await.len(), 1);
}

async fn caller_cannot_end_the_last_admin(fixture: Fixture) {
    let root = Actor::from(&Caller::Member("root".into()));
    let admin =
        |name: &str| member_with(name, MemberTerms { role: Role::Admin, ..MemberTerms::default() });
    for name in ["root", "ann"] {
        fixture.act(&operator(), name, MemberChange::Add(admin(name))).await;
    }
    let demote = || update(Some(Role::Member), None, None);
    let change = async |name: &str, change| {
        bounded(fixture.store.change_member(&root, name.into(), change)).await
    };
    // Each takes the role from the other at the same time.
    let both = futures_util::join!(change("root", demote()), change("ann", MemberChange::Revoke));
    assert_eq!(usize::from(both.0.is_ok()) + usize::from(both.1.is_ok()), 1, "{both:?}");
    let refused = both.0.err().or(both.1.err());
    assert!(matches!(refused, Some(MemberError::LastAdmin)), "{refused:?}");
    let acts = fixture.acts().await;
    let last = if acts.iter().any(|act| act.contains("revoke")) { "root" } else { "ann" };
    for wrong in [demote(), MemberChange::Revoke] {
        let refused = change(last, wrong).await;
        assert!(matches!(refused, Err(MemberError::LastAdmin)), "{refused:?}");
    }
    assert_eq!(fixture.acts().await, acts, "a refusal writes nothing");
    change(last, update(Some(Role::Admin), None, Some(None))).await.unwrap();
    fixture.act(&operator(), "bob", MemberChange::Add(member("bob"))).await;
    change("bob", MemberChange::Revoke).await.unwrap();
    // The command line can add another one.
    fixture.act(&operator(), last, demote()).await;
}

async fn log_is_read_page_by_page(fixture: Fixture) {
    for name in ["a", "b", "c", "d"] {
        fixture.act(&operator(), name, MemberChange::Add(member(name))).await;
        fixture.pass(HOUR);
    }
    let of = async |query| -> Vec<_> {
        fixture.audit_log(query).await.iter().map(|entry| entry.of.to_string()).collect()
    };
    let first = fixture.audit_log(AuditQuery { most: 2, ..ALL }).await;
    assert_eq!([&*first[0].of, &*first[1].of], ["member:d", "member:c"]);
    let next = AuditQuery { before: Some(first[1].id), ..ALL };
    assert_eq!(of(next).await, ["member:b", "member:a"]);
    assert_eq!(of(AuditQuery { since: START + HOUR, ..next }).await, ["member:b"]);
    assert_eq!(of(AuditQuery { before: Some(u64::MAX), most: 1, ..ALL }).await, ["member:d"]);
    assert_eq!(of(AuditQuery { before: Some(0), ..ALL }).await, [""; 0]);
}

on_every_backend!(
    resolved_purchase_is_written_once,
    each_act_writes_who_what_of_whom_old_and_new,
    each_act_on_a_group_is_written,
    extra_and_its_early_end_are_written,
    act_that_changes_nothing_writes_nothing,
    refused_change_writes_nothing,
    caller_cannot_end_the_last_admin,
    log_is_read_page_by_page,
);

#[tokio::test]
async fn act_and_entry_survive_a_crash_together() {
    let mut fixture = Fixture::on_disk(Default::default());
    fixture.act(&operator(), "ann", MemberChange::Add(member("ann"))).await;
    let crashed = fixture.path().with_file_name("crashed.db");
    copy(&fixture.path(), &crashed);
    let known = fixture.audit_log(ALL).await;
    fixture.take(Store::serve(&crashed, fixture.clock()).expect("it opens"));
    assert_eq!((fixture.audit_log(ALL).await, known.len()), (known, 1));
}
