//! Every member and every login is remembered; what ends one ends it everywhere, for good.

use std::time::Duration;

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    Actor, LimitChange, LoginSession, Member, MemberChange, MemberError, MemberTerms, Period, Role,
    SpendLimit, Store, TermsChange, is_member_name,
};

use crate::fixture::*;

const OWN: SpendLimit = SpendLimit::of(Period::Day, Usd::dollars(5));

/// Who makes the changes.
pub(crate) fn operator() -> Actor {
    Actor::command_line("ops", "host")
}

pub(crate) fn member(name: &str) -> Member {
    Member {
        name: name.into(),
        terms: MemberTerms { budget: OWN, ..MemberTerms::default() },
        token: identity(name),
        prefix: format!("tg_{name}").into(),
        added_at: START,
        revoked_at: None,
    }
}

/// Returns the member with other terms.
pub(crate) fn member_with(name: &str, terms: MemberTerms) -> Member {
    Member { terms, ..member(name) }
}

pub(crate) fn login(id: &str, member: &str, until: Duration) -> LoginSession {
    LoginSession {
        id: identity(id),
        member: member.into(),
        token: identity(member),
        expires_at: until,
    }
}

impl Fixture {
    async fn enlist(&self, member: &Member) -> Result<(), MemberError> {
        let added = MemberChange::Add(member.clone());
        bounded(self.store.change_member(&operator(), member.name.clone(), added)).await
    }

    async fn revoke(&self, name: &str) -> Result<(), MemberError> {
        bounded(self.store.change_member(&operator(), name.into(), MemberChange::Revoke)).await
    }

    async fn rotate(&self, name: &str, token: &str) -> Result<(), MemberError> {
        let rotated = MemberChange::Rotate(identity(token), token.into());
        bounded(self.store.change_member(&operator(), name.into(), rotated)).await
    }

    async fn update(
        &self,
        name: &str,
        role: Option<Role>,
        budget: LimitChange,
    ) -> Result<(), MemberError> {
        let change = MemberChange::Update(TermsChange { role, budget, ..TermsChange::default() });
        bounded(self.store.change_member(&operator(), name.into(), change)).await
    }

    async fn members(&self) -> Vec<Member> {
        bounded(self.store.members()).await.expect("the list")
    }

    async fn log_in(&self, session: &LoginSession) {
        bounded(self.store.log_in(session)).await.expect("kept");
    }

    async fn sessions(&self) -> Vec<LoginSession> {
        bounded(self.store.sessions()).await.expect("the logins")
    }

    async fn edition(&self) -> u64 {
        bounded(self.store.members_version()).await.expect("a number")
    }
}

async fn members_are_listed_by_name_as_added(fixture: Fixture) {
    assert_eq!(fixture.members().await, []);
    let budget = SpendLimit::of(Period::Month, Usd::micros(1));
    let bob =
        member_with("bob", MemberTerms { role: Role::Admin, budget, ..MemberTerms::default() });
    fixture.enlist(&bob).await.unwrap();
    fixture.enlist(&member("ann")).await.unwrap();
    fixture.enlist(&member("a.n-n_2")).await.unwrap();
    assert_eq!(fixture.members().await, [member("a.n-n_2"), member("ann"), bob]);
}

async fn member_name_is_never_reused(fixture: Fixture) {
    fixture.enlist(&member("ann")).await.unwrap();
    let other = Member { token: identity("other"), terms: MemberTerms::default(), ..member("ann") };
    assert!(matches!(fixture.enlist(&other).await, Err(MemberError::NameTaken)));
    fixture.revoke("ann").await.unwrap();
    assert!(matches!(fixture.enlist(&other).await, Err(MemberError::NameTaken)));
    assert_eq!(fixture.members().await, [Member { revoked_at: Some(START), ..member("ann") }]);
}

async fn revoked_member_stays_revoked(fixture: Fixture) {
    fixture.enlist(&member("ann")).await.unwrap();
    fixture.pass(HOUR);
    fixture.revoke("ann").await.unwrap();
    fixture.pass(HOUR);
    fixture.revoke("ann").await.unwrap();
    let updated = fixture.update("ann", Some(Role::Admin), LimitChange::default()).await;
    assert!(matches!(updated, Err(MemberError::Revoked)));
    assert!(matches!(fixture.rotate("ann", "new").await, Err(MemberError::Revoked)));
    assert_eq!(
        fixture.members().await,
        [Member { revoked_at: Some(START + HOUR), ..member("ann") }]
    );
}

async fn member_change_affects_no_other_member(fixture: Fixture) {
    fixture.enlist(&member("ann")).await.unwrap();
    fixture.log_in(&login("cookie", "ann", START + HOUR)).await;
    for name in ["", "an", "annn", "Ann", "ann ", "%", "' OR 1=1"] {
        assert!(matches!(fixture.revoke(name).await, Err(MemberError::NotFound)), "{name}");
        assert!(matches!(fixture.rotate(name, "new").await, Err(MemberError::NotFound)), "{name}");
        let updated = fixture.update(name, Some(Role::Admin), LimitChange::default()).await;
        assert!(matches!(updated, Err(MemberError::NotFound)), "{name}");
    }
    assert_eq!(fixture.members().await, [member("ann")]);
    assert_eq!(fixture.sessions().await.len(), 1);
}

async fn update_changes_named_fields_and_ends_no_login(fixture: Fixture) {
    fixture.enlist(&member("ann")).await.unwrap();
    fixture.log_in(&login("cookie", "ann", START + HOUR)).await;
    fixture.update("ann", Some(Role::Admin), LimitChange::default()).await.unwrap();
    let with =
        |role, budget| member_with("ann", MemberTerms { role, budget, ..MemberTerms::default() });
    assert_eq!(fixture.members().await, [with(Role::Admin, OWN)]);
    let own = SpendLimit::of(Period::Month, Usd::mills(6));
    fixture.update("ann", None, LimitChange::REMOVE_ALL.set(own)).await.unwrap();
    assert_eq!(fixture.members().await, [with(Role::Admin, own)]);
    let (week, ever) = (Usd::dollars(7), Usd::ZERO);
    let more = SpendLimit { week: Some(week), ever: Some(ever), ..SpendLimit::NONE };
    fixture.update("ann", None, LimitChange::default().set(more)).await.unwrap();
    let all = with(Role::Admin, more.or(own));
    assert_eq!(fixture.members().await, [all], "the limits that it names");
    let without_month = LimitChange([None, None, Some(None), None]);
    fixture.update("ann", None, without_month).await.unwrap();
    assert_eq!(fixture.members().await, [with(Role::Admin, more)]);
    fixture.update("ann", Some(Role::Member), LimitChange::REMOVE_ALL).await.unwrap();
    assert_eq!(fixture.members().await, [with(Role::Member, SpendLimit::NONE)]);
    assert_eq!(fixture.sessions().await, [login("cookie", "ann", START + HOUR)]);
}

async fn rotated_token_replaces_the_old_one(fixture: Fixture) {
    fixture.enlist(&member("ann")).await.unwrap();
    fixture.rotate("ann", "new").await.unwrap();
    let rotated = Member { token: identity("new"), prefix: "new".into(), ..member("ann") };
    assert_eq!(fixture.members().await, [rotated]);
}

async fn login_is_valid_until_it_expires_or_ends(fixture: Fixture) {
    fixture.enlist(&member("ann")).await.unwrap();
    let (short, long) =
        (login("short", "ann", START + HOUR), login("long", "ann", START + 2 * HOUR));
    fixture.log_in(&short).await;
    fixture.log_in(&long).await;
    fixture.log_in(&login("left", "ann", START + 2 * HOUR)).await;
    bounded(fixture.store.log_out(identity("left"))).await.unwrap();
    bounded(fixture.store.log_out(identity("nobody's"))).await.unwrap();
    assert_eq!(fixture.sessions().await, [short.clone(), long.clone()]);
    fixture.pass(HOUR - Duration::from_millis(1));
    assert_eq!(fixture.sessions().await, [short, long.clone()]);
    fixture.pass(Duration::from_millis(1));
    assert_eq!(fixture.sessions().await, [long]);
    fixture.pass(HOUR);
    assert_eq!(fixture.sessions().await, []);
}

async fn ending_a_token_ends_only_its_logins(fixture: Fixture) {
    for name in ["ann", "bob", "eve"] {
        fixture.enlist(&member(name)).await.unwrap();
        fixture.log_in(&login(name, name, START + HOUR)).await;
    }
    fixture.revoke("ann").await.unwrap();
    fixture.rotate("bob", "new").await.unwrap();
    assert_eq!(fixture.sessions().await, [login("eve", "eve", START + HOUR)]);
}

/// As where the login is kept just after the token ended.
async fn login_with_an_ended_token_is_invalid(fixture: Fixture) {
    for name in ["ann", "bob"] {
        fixture.enlist(&member(name)).await.unwrap();
    }
    fixture.revoke("ann").await.unwrap();
    fixture.rotate("bob", "new").await.unwrap();
    for name in ["ann", "bob", "nobody"] {
        fixture.log_in(&login(name, name, START + HOUR)).await;
    }
    assert_eq!(fixture.sessions().await, []);
    let new = LoginSession { token: identity("new"), ..login("cookie", "bob", START + HOUR) };
    fixture.log_in(&new).await;
    assert_eq!(fixture.sessions().await, [new]);
}

async fn member_has_at_most_a_hundred_logins(fixture: Fixture) {
    for name in ["ann", "bob"] {
        fixture.enlist(&member(name)).await.unwrap();
    }
    fixture.log_in(&login("bob's", "bob", START + HOUR)).await;
    for turn in 0..103 {
        fixture.log_in(&login(&format!("{turn}"), "ann", START + HOUR)).await;
    }
    let left: Vec<_> = fixture.sessions().await.into_iter().map(|session| session.id).collect();
    let expected = (3..103).map(|turn| identity(&format!("{turn}")));
    assert_eq!(left, [identity("bob's")].into_iter().chain(expected).collect::<Vec<_>>());
}

async fn every_member_change_increments_the_version(fixture: Fixture) {
    let mut seen = vec![fixture.edition().await];
    let note = async |seen: &mut Vec<u64>| seen.push(fixture.edition().await);
    fixture.enlist(&member("ann")).await.unwrap();
    note(&mut seen).await;
    fixture.log_in(&login("a", "ann", START + HOUR)).await;
    note(&mut seen).await;
    bounded(fixture.store.log_out(identity("a"))).await.unwrap();
    note(&mut seen).await;
    fixture.update("ann", Some(Role::Admin), LimitChange::default().set(OWN)).await.unwrap();
    note(&mut seen).await;
    fixture.rotate("ann", "new").await.unwrap();
    note(&mut seen).await;
    fixture.revoke("ann").await.unwrap();
    note(&mut seen).await;
    let changes = seen.len();
    seen.dedup();
    assert_eq!(seen.len(), changes, "{seen:?}");

    fixture.members().await;
    fixture.sessions().await;
    fixture.buy(&reservation("ann", PRICE), "").await;
    assert_eq!(fixture.edition().await, *seen.last().unwrap(), "nothing was changed");
}

on_every_backend!(
    members_are_listed_by_name_as_added,
    member_name_is_never_reused,
    revoked_member_stays_revoked,
    member_change_affects_no_other_member,
    update_changes_named_fields_and_ends_no_login,
    rotated_token_replaces_the_old_one,
    login_is_valid_until_it_expires_or_ends,
    ending_a_token_ends_only_its_logins,
    login_with_an_ended_token_is_invalid,
    member_has_at_most_a_hundred_logins,
    every_member_change_increments_the_version,
);

#[tokio::test]
async fn member_changes_are_seen_by_server_and_commands() {
    let fixture = Fixture::on_disk(Default::default());
    let beside = Store::open_shared(&fixture.path(), fixture.clock()).unwrap();
    let edition = fixture.edition().await;
    bounded(beside.change_member(&operator(), "ann".into(), MemberChange::Add(member("ann"))))
        .await
        .unwrap();
    let enlisted = fixture.edition().await;
    assert_ne!(enlisted, edition);
    assert_eq!(fixture.members().await, [member("ann")]);

    fixture.log_in(&login("cookie", "ann", START + HOUR)).await;
    assert_eq!(bounded(beside.members_version()).await.unwrap(), fixture.edition().await);
    let logged_in = fixture.edition().await;
    assert_ne!(logged_in, enlisted);
    bounded(beside.change_member(&operator(), "ann".into(), MemberChange::Revoke)).await.unwrap();
    assert_ne!(fixture.edition().await, logged_in);
    assert_eq!(fixture.sessions().await, []);
    assert_eq!(fixture.members().await[0].revoked_at, Some(START));
}

#[tokio::test]
async fn token_and_secret_fingerprint_commit_together() {
    let fixture = Fixture::on_disk(Default::default());
    let beside = Store::open_shared(&fixture.path(), fixture.clock()).unwrap();
    let keyed = async || bounded(beside.token_secret_fingerprint()).await.unwrap();
    let change = async |print, name: &str, to| {
        let done =
            bounded(beside.change_members(&operator(), Some([print; 32]), vec![(name.into(), to)]))
                .await;
        done.map_err(|(whose, fault)| {
            assert_eq!(&*whose, name);
            fault
        })
    };
    let rotated = || MemberChange::Rotate([3; 32], "tg_".into());
    change(1, "ann", MemberChange::Add(member("ann"))).await.unwrap();
    assert_eq!(keyed().await, Some([1; 32]));
    let refused = change(2, "ann", MemberChange::Add(member("ann"))).await;
    assert!(matches!(refused, Err(MemberError::NameTaken)), "{refused:?}");
    let refused = change(2, "bob", rotated()).await;
    assert!(matches!(refused, Err(MemberError::NotFound)), "{refused:?}");
    assert_eq!(keyed().await, Some([1; 32]));
    change(2, "ann", rotated()).await.unwrap();
    assert_eq!((keyed().await, fixture.members().await[0].token), (Some([2; 32]), [3; 32]));
}

#[tokio::test]
async fn change_of_many_members_is_atomic() {
    let fixture = Fixture::on_disk(Default::default());
    let beside = Store::open_shared(&fixture.path(), fixture.clock()).unwrap();
    let added = |name: &str| (name.into(), MemberChange::Add(member(name)));
    let names = ["a", "b", "c"];
    bounded(beside.change_members(&operator(), None, names.map(added).to_vec())).await.unwrap();
    assert_eq!(fixture.members().await.len(), 3);
    let before = fixture.edition().await;
    let refused =
        bounded(beside.change_members(&operator(), Some([9; 32]), ["d", "b"].map(added).to_vec()))
            .await;
    assert!(matches!(refused, Err((name, MemberError::NameTaken)) if &*name == "b"));
    let revoked = |name: &str| (name.into(), MemberChange::Revoke);
    let refused =
        bounded(beside.change_members(&operator(), None, ["a", "e"].map(revoked).to_vec())).await;
    assert!(matches!(refused, Err((name, MemberError::NotFound)) if &*name == "e"));
    assert_eq!((fixture.edition().await, fixture.members().await.len()), (before, 3));
    assert!(fixture.members().await.iter().all(|member| member.revoked_at.is_none()));
    assert_eq!(bounded(beside.token_secret_fingerprint()).await.unwrap(), None);
}

#[tokio::test]
async fn members_and_logins_survive_restarts_and_crashes() {
    let mut fixture = Fixture::on_disk(Default::default());
    fixture.enlist(&member("ann")).await.unwrap();
    fixture.log_in(&login("cookie", "ann", START + HOUR)).await;
    fixture.enlist(&member("bob")).await.unwrap();
    fixture.revoke("bob").await.unwrap();
    let crashed = fixture.path().with_file_name("crashed.db");
    copy(&fixture.path(), &crashed);
    let known = (fixture.members().await, fixture.sessions().await, fixture.edition().await);
    fixture.restart();
    assert_eq!((fixture.members().await, fixture.sessions().await, fixture.edition().await), known);

    let left = Store::serve(&crashed, fixture.clock()).expect("it opens");
    fixture.take(left);
    assert_eq!((fixture.members().await, fixture.sessions().await, fixture.edition().await), known);
}

#[tokio::test]
async fn reader_lists_members_without_writing() {
    let fixture = Fixture::on_disk(Default::default());
    fixture.enlist(&member("ann")).await.unwrap();
    let reader = Store::open_read_only(&fixture.path(), fixture.clock()).unwrap();
    assert_eq!(bounded(reader.members()).await.unwrap(), [member("ann")]);
    let refused =
        bounded(reader.change_member(&operator(), "ann".into(), MemberChange::Revoke)).await;
    assert!(matches!(refused, Err(MemberError::Unavailable(_))), "{refused:?}");
    assert_eq!(fixture.members().await, [member("ann")]);
}

#[tokio::test]
async fn broken_store_authenticates_nobody() {
    let broken = Store::unusable("damaged");
    let refused =
        broken.change_member(&operator(), "ann".into(), MemberChange::Add(member("ann"))).await;
    assert!(matches!(refused, Err(MemberError::Unavailable(_))));
    assert!(broken.members().await.is_err() && broken.sessions().await.is_err());
    assert!(broken.members_version().await.is_err());
}

#[test]
fn member_name_is_plain_and_short() {
    for name in ["a", "0", "ann", "a.b_c-9", ".", &"x".repeat(64)] {
        assert!(is_member_name(name), "{name}");
    }
    for name in ["", "Ann", "a b", "a/b", "é", "a:b", "a\n", &"x".repeat(65)] {
        assert!(!is_member_name(name), "{name}");
    }
}
