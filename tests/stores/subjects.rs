//! Users of a login service: their sessions and tokens are remembered, and end everywhere, for good.

use tollgate::gateway::contract::money::Usd;
use tollgate::gateway::contract::selection::Selection;
use tollgate::ledger::{
    Actor, AuditQuery, MAX_TOKENS_PER_SUBJECT, Period, Role, SpendLimit, Subject, SubjectLogin,
    SubjectTerms, SubjectToken, TokenRefusal,
};

use crate::fixture::*;

const ISSUER: &str = "https://login.example.com";

fn session(id: &str, name: &str) -> SubjectLogin {
    let terms = SubjectTerms {
        role: Role::Admin,
        own_budget: SpendLimit::of(Period::Week, Usd::dollars(5)),
        group: Some("design".into()),
        may_buy: Some(Selection::parse("chat video-c-2")),
        display_name: Some("Ada".into()),
    };
    let subject = Subject { issuer: ISSUER.into(), name: name.into(), terms };
    SubjectLogin { id: identity(id), subject, expires_at: START + HOUR, token_budget: None }
}

fn token(id: &str) -> SubjectToken {
    SubjectToken {
        id: identity(id),
        name: id.into(),
        prefix: "tg_abc".into(),
        budget: SpendLimit::of(Period::Ever, Usd::dollars(1)),
        created_at: START,
        expires_at: START + DAY,
        last_used: None,
    }
}

impl Fixture {
    async fn sign_in(&self, login: &SubjectLogin) {
        bounded(self.store.sign_in(login)).await.expect("kept");
    }

    async fn logins(&self) -> Vec<SubjectLogin> {
        bounded(self.store.subject_logins()).await.expect("the list")
    }

    async fn add_token(&self, session: &str, token: &SubjectToken) -> Result<(), TokenRefusal> {
        bounded(self.store.add_token(identity(session), token)).await.expect("a verdict")
    }

    async fn tokens(&self, session: &str) -> Vec<SubjectToken> {
        bounded(self.store.tokens(identity(session))).await.expect("the list")
    }

    async fn version(&self) -> u64 {
        bounded(self.store.members_version()).await.expect("a number")
    }
}

async fn session_is_kept_as_it_was_until_it_ends(fixture: Fixture) {
    let ada = session("a", "ada");
    let before = fixture.version().await;
    fixture.sign_in(&ada).await;
    fixture.sign_in(&session("b", "bob")).await;
    assert_eq!(fixture.logins().await, [ada.clone(), session("b", "bob")]);
    assert_ne!(fixture.version().await, before);
    // What the login service said last counts for all sessions.
    let mut again = session("c", "ada");
    again.subject.terms = SubjectTerms::default();
    fixture.sign_in(&again).await;
    let of_ada = |login: &SubjectLogin| &*login.subject.name == "ada";
    let terms: Vec<_> = fixture.logins().await.into_iter().filter(of_ada).collect();
    assert!(terms.iter().all(|login| login.subject.terms == SubjectTerms::default()));
    assert_eq!(terms.len(), 2);
    bounded(fixture.store.sign_out(identity("a"))).await.expect("ended");
    assert_eq!(fixture.logins().await, [session("b", "bob"), again]);
    fixture.pass(HOUR);
    assert_eq!(fixture.logins().await, []);
}

async fn oldest_of_too_many_sessions_ends(fixture: Fixture) {
    for number in 0..101 {
        fixture.sign_in(&session(&number.to_string(), "ada")).await;
    }
    let ids: Vec<_> = fixture.logins().await.into_iter().map(|login| login.id).collect();
    assert_eq!((ids.len(), ids[0]), (100, identity("1")));
}

async fn token_belongs_to_the_user_of_the_session(fixture: Fixture) {
    fixture.sign_in(&session("a", "ada")).await;
    fixture.sign_in(&session("b", "bob")).await;
    let version = fixture.version().await;
    assert_eq!(fixture.add_token("a", &token("laptop")).await, Ok(()));
    assert_ne!(fixture.version().await, version);
    assert_eq!(
        fixture.add_token("b", &SubjectToken { id: identity("2"), ..token("laptop") }).await,
        Ok(())
    );
    let twice = SubjectToken { id: identity("3"), ..token("laptop") };
    assert_eq!(fixture.add_token("a", &twice).await, Err(TokenRefusal::NameTaken));
    for session in ["nobody", "laptop"] {
        let refused = fixture.add_token(session, &token("phone")).await;
        assert_eq!(refused, Err(TokenRefusal::SessionEnded), "a token makes no tokens");
        assert_eq!(fixture.tokens(session).await, []);
    }
    assert_eq!(fixture.tokens("a").await, [token("laptop")]);
    let logins = fixture.logins().await;
    let found = logins.iter().find(|login| login.id == identity("laptop")).expect("listed");
    assert_eq!(found.token_budget, Some(token("laptop").budget));
    assert_eq!((&*found.subject.name, found.expires_at), ("ada", START + DAY));

    let remove = |session: &str| fixture.store.remove_token(identity(session), "laptop".into());
    assert!(bounded(remove("a")).await.expect("known"));
    assert!(!bounded(remove("a")).await.expect("known"));
    assert_eq!((fixture.tokens("a").await.len(), fixture.tokens("b").await.len()), (0, 1));
}

async fn token_outlives_its_session_and_ends_in_time(fixture: Fixture) {
    fixture.sign_in(&session("a", "ada")).await;
    fixture.add_token("a", &token("laptop")).await.expect("added");
    fixture.pass(HOUR);
    assert_eq!(fixture.tokens("a").await, []);
    assert_eq!(fixture.add_token("a", &token("phone")).await, Err(TokenRefusal::SessionEnded));
    assert_eq!(fixture.logins().await.len(), 1);
    fixture.pass(DAY - HOUR);
    assert_eq!(fixture.logins().await, []);
    let later = SubjectLogin { expires_at: fixture.now() + HOUR, ..session("b", "ada") };
    fixture.sign_in(&later).await;
    let anew = SubjectToken { expires_at: fixture.now() + DAY, ..token("laptop") };
    assert_eq!(fixture.add_token("b", &anew).await, Ok(()), "the name is free");
}

async fn user_has_a_bounded_number_of_tokens(fixture: Fixture) {
    fixture.sign_in(&session("a", "ada")).await;
    for number in 0..MAX_TOKENS_PER_SUBJECT {
        assert_eq!(fixture.add_token("a", &token(&number.to_string())).await, Ok(()));
    }
    assert_eq!(fixture.add_token("a", &token("more")).await, Err(TokenRefusal::TooMany));
    assert_eq!(fixture.tokens("a").await.len(), MAX_TOKENS_PER_SUBJECT);
    bounded(fixture.store.remove_token(identity("a"), "7".into())).await.expect("removed");
    assert_eq!(fixture.add_token("a", &token("more")).await, Ok(()));
}

async fn last_use_of_a_token_is_no_change(fixture: Fixture) {
    fixture.sign_in(&session("a", "ada")).await;
    fixture.add_token("a", &token("laptop")).await.expect("added");
    let version = fixture.version().await;
    for (at, expected) in [(2, 2), (1, 2), (5, 5)] {
        let used = vec![(identity("laptop"), START + at * SECOND), (identity("a"), START)];
        // The shared ledger keeps it back for a second, or until another step comes.
        let recorded = bounded(fixture.store.mark_tokens_used(used));
        tokio::join!(recorded, fixture.tokens("a")).0.expect("recorded");
        let last = fixture.tokens("a").await.remove(0).last_used;
        assert_eq!(last, Some(START + expected * SECOND));
    }
    assert_eq!(fixture.version().await, version);
}

async fn revoked_user_has_neither_sessions_nor_tokens(fixture: Fixture) {
    for (id, name) in [("a", "ada"), ("b", "bob")] {
        fixture.sign_in(&session(id, name)).await;
    }
    fixture.add_token("a", &token("laptop")).await.expect("added");
    let version = fixture.version().await;
    let by = Actor::command_line("ann", "host");
    let revoke =
        |issuer: &str, name: &str| fixture.store.revoke_subject(&by, issuer.into(), name.into());
    assert!(!bounded(revoke(ISSUER, "eve")).await.expect("known"));
    assert!(!bounded(revoke("https://other.example", "ada")).await.expect("known"));
    assert_eq!(fixture.logins().await.len(), 3);
    assert!(bounded(revoke(ISSUER, "ada")).await.expect("known"));
    assert_ne!(fixture.version().await, version);
    assert_eq!(fixture.logins().await, [session("b", "bob")]);
    let all = AuditQuery { before: None, since: START, most: 9 };
    let log = bounded(fixture.store.audit_log(all)).await.expect("the log");
    let acts: Vec<_> = log.iter().map(|entry| (&*entry.act, &*entry.of)).collect();
    assert_eq!(acts, [("subject.revoke", "subject:ada"), ("token.add", "subject:ada")]);
    // A request that was authenticated before adds nothing after it.
    assert_eq!(fixture.add_token("a", &token("late")).await, Err(TokenRefusal::SessionEnded));
}

async fn issuer_is_another_one_once_it_or_its_users_are_recorded(fixture: Fixture) {
    let other =
        async |issuer: &str| bounded(fixture.store.other_issuer(issuer.into())).await.unwrap();
    let bind = async |issuer: &str, is_new| {
        bounded(fixture.store.bind_issuer(issuer.into(), is_new)).await.unwrap()
    };
    assert_eq!(other(ISSUER).await, None, "an empty ledger");
    fixture.sign_in(&session("cookie", "ada")).await;
    assert_eq!(other(ISSUER).await, None);
    assert_eq!(other("https://two.example").await.as_deref(), Some(ISSUER), "by its users");
    assert_eq!(bind("https://two.example", false).await.as_deref(), Some(ISSUER), "it is refused");
    assert_eq!(other(ISSUER).await, None);
    assert_eq!(bind("https://two.example", true).await.as_deref(), Some(ISSUER));
    assert_eq!(other("https://two.example").await, None);
    assert_eq!(other(ISSUER).await.as_deref(), Some("https://two.example"));
    assert_eq!(bind(ISSUER, true).await.as_deref(), Some("https://two.example"));
    assert_eq!(bind(ISSUER, false).await, None);
    assert_eq!(other(ISSUER).await, None);
    assert_eq!(other("https://two.example").await.as_deref(), Some(ISSUER));
    assert_eq!(fixture.logins().await, [session("cookie", "ada")]);
}

async fn tokens_made_and_revoked_are_in_the_audit_log(fixture: Fixture) {
    fixture.sign_in(&session("cookie", "ada")).await;
    fixture.add_token("cookie", &token("a")).await.unwrap();
    assert_eq!(fixture.add_token("cookie", &token("a")).await, Err(TokenRefusal::NameTaken));
    assert_eq!(fixture.add_token("gone", &token("b")).await, Err(TokenRefusal::SessionEnded));
    let remove = async |name: &str| {
        bounded(fixture.store.remove_token(identity("cookie"), name.into())).await.unwrap()
    };
    assert!(remove("a").await && !remove("a").await && !remove("b").await);
    let query = AuditQuery { before: None, since: START, most: 10 };
    let log = bounded(fixture.store.audit_log(query)).await.unwrap();
    let acts: Vec<_> = log
        .iter()
        .map(|it| {
            let (old, new) = (it.old.as_deref().unwrap_or("-"), it.new.as_deref().unwrap_or("-"));
            format!("{} {} {}: {old} > {new}", it.by, it.act, it.of)
        })
        .collect();
    assert_eq!(
        acts,
        [
            "subject:ada token.revoke subject:ada: a (tg_abc) > -",
            "subject:ada token.add subject:ada: - > a (tg_abc), through 2025-11-21, budget 1.00/ever",
        ]
    );
}

on_every_backend!(
    issuer_is_another_one_once_it_or_its_users_are_recorded,
    tokens_made_and_revoked_are_in_the_audit_log,
    session_is_kept_as_it_was_until_it_ends,
    oldest_of_too_many_sessions_ends,
    token_belongs_to_the_user_of_the_session,
    token_outlives_its_session_and_ends_in_time,
    user_has_a_bounded_number_of_tokens,
    last_use_of_a_token_is_no_change,
    revoked_user_has_neither_sessions_nor_tokens,
);
