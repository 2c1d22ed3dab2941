use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::advance;

use super::*;
use crate::access::{NO_MEMBER, NO_SESSION, RETRY_AFTER};
use crate::gateway::contract::money::Usd;
use crate::ledger::{
    Actor, HookFuture, LimitChange, MemberChange, MemberTerms, Period, ReserveError, SpendLimit,
    StoreHook, StoreOp, TermsChange,
};

/// A store that can be made unavailable.
struct Away {
    inner: Store,
    is_away: AtomicBool,
}

impl Away {
    fn new() -> Arc<Self> {
        let inner = Store::in_memory(Arc::new(clock::wall));
        Arc::new(Self { inner, is_away: AtomicBool::new(false) })
    }

    fn go_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    async fn change(&self, name: &str, change: MemberChange) {
        self.inner.change_member(&operator(), name.into(), change).await.expect("changed");
    }
}

impl StoreHook for Away {
    fn before<'a>(&'a self, verb: StoreOp<'a>) -> HookFuture<'a, Result<(), Unavailable>> {
        let is_away = self.is_away.load(Ordering::SeqCst);
        let refuses = is_away && matches!(verb, StoreOp::Other("members_version"));
        Box::pin(ready(if refuses { Err(Unavailable("away".into())) } else { Ok(()) }))
    }

    fn after<'a>(&'a self, _: StoreOp<'a>, _: &'a Result<(), ReserveError>) -> HookFuture<'a, ()> {
        Box::pin(ready(()))
    }

    fn allows(&self, _: StoreOp<'_>) -> bool {
        true
    }
}

fn operator() -> Actor {
    Actor::command_line("ops", "host")
}

fn secret() -> Secret {
    Secret::new(b"a secret")
}

fn hash(token: &str) -> Digest {
    token::hash_token(&secret(), token)
}

async fn add(store: &Away, name: &str, token: &str) {
    let member = Member {
        name: name.into(),
        terms: MemberTerms::default(),
        token: hash(token),
        prefix: "tg_".into(),
        added_at: Duration::ZERO,
        revoked_at: None,
    };
    store.change(name, MemberChange::Add(member)).await;
}

async fn cache(store: &Arc<Away>) -> MemberCache {
    let cache = MemberCache::new(store.inner.with_hook(Arc::clone(store) as _), secret());
    cache.refresh().await;
    cache
}

fn name((caller, _): &(Caller, Session)) -> String {
    caller.to_string()
}

fn is_revoked(session: &Session) -> bool {
    session.revoked.as_ref().is_some_and(CancellationToken::is_cancelled)
}

const UNAVAILABLE: Denied = Denied::Unavailable(RETRY_AFTER);

#[tokio::test(start_paused = true)]
async fn change_by_another_process_applies_at_next_refresh() {
    let store = Away::new();
    add(&store, "ann", "tg_ann").await;
    let cache = cache(&store).await;
    let (caller, ann) = cache.by_token("tg_ann").unwrap();
    assert_eq!(caller, Caller::Member("ann".into()));
    assert_eq!(cache.by_token("tg_bob").unwrap_err(), Denied::Invalid(NO_MEMBER));

    add(&store, "bob", "tg_bob").await;
    let own = SpendLimit::of(Period::Day, Usd::dollars(1));
    store
        .change(
            "ann",
            MemberChange::Update(TermsChange {
                role: Some(Role::Admin),
                budget: LimitChange::default().set(own),
                ..TermsChange::default()
            }),
        )
        .await;
    cache.refresh().await;
    assert_eq!(name(&cache.by_token("tg_bob").unwrap()), "member:bob");
    let (_, now) = cache.by_token("tg_ann").unwrap();
    assert_eq!((now.role, now.own_budget), (Role::Admin, own));
    assert_eq!(cache.count(), Some(MemberCount { members: 2, admins: 1 }));
    assert!(!is_revoked(&ann) && !is_revoked(&now), "the token is the same one");

    store.change("ann", MemberChange::Rotate(hash("tg_new"), "tg_".into())).await;
    let (_, bob) = cache.by_token("tg_bob").unwrap();
    store.change("bob", MemberChange::Revoke).await;
    cache.refresh().await;
    assert!(is_revoked(&ann) && is_revoked(&now) && is_revoked(&bob));
    for token in ["tg_ann", "tg_bob"] {
        assert_eq!(cache.by_token(token).unwrap_err(), Denied::Invalid(NO_MEMBER), "{token}");
    }
    assert_eq!(name(&cache.by_token("tg_new").unwrap()), "member:ann");
    assert_eq!(cache.count(), Some(MemberCount { members: 1, admins: 1 }));
}

#[tokio::test(start_paused = true)]
async fn unreadable_store_at_start_rejects_everyone_until_it_recovers() {
    let store = Away::new();
    add(&store, "ann", "tg_ann").await;
    store.go_away(true);
    let cache = cache(&store).await;
    for token in ["tg_ann", "tg_bob"] {
        assert_eq!(cache.by_token(token).unwrap_err(), UNAVAILABLE, "{token}");
        assert_eq!(cache.by_login(token).unwrap_err(), UNAVAILABLE, "{token}");
        assert_eq!(cache.log_in(token, None).await.err(), Some(UNAVAILABLE), "{token}");
    }
    assert_eq!(cache.count(), None);
    store.go_away(false);
    cache.refresh().await;
    assert_eq!(name(&cache.by_token("tg_ann").unwrap()), "member:ann");
}

#[tokio::test(start_paused = true)]
async fn stale_member_list_is_valid_for_thirty_seconds() {
    let store = Away::new();
    add(&store, "ann", "tg_ann").await;
    let cache = cache(&store).await;
    advance(Duration::from_secs(100)).await;
    cache.refresh().await;
    store.go_away(true);
    for (seconds, holds) in [(0, true), (29, true), (2, false), (1_000, false)] {
        advance(Duration::from_secs(seconds)).await;
        cache.refresh().await;
        let found = cache.by_token("tg_ann").map(|found| name(&found));
        assert_eq!(found, if holds { Ok("member:ann".to_owned()) } else { Err(UNAVAILABLE) });
    }
    store.go_away(false);
    cache.refresh().await;
    assert!(cache.by_token("tg_ann").is_ok(), "the list had not changed");
}

#[tokio::test(start_paused = true)]
async fn login_ends_on_new_login_logout_or_token_rotation() {
    let store = Away::new();
    add(&store, "ann", "tg_ann").await;
    let cache = cache(&store).await;
    let open = async |carried: Option<&str>| cache.log_in("tg_ann", carried).await.unwrap();
    let (first, second) = (open(None).await, open(None).await);
    assert_ne!(*first, *second);
    let (caller, session) = cache.by_login(&first).unwrap();
    assert_eq!(caller, Caller::Member("ann".into()));
    assert!(session.expires_at.is_some_and(|until| until > clock::wall()));

    let third = open(Some(first.as_str())).await;
    assert!(is_revoked(&session), "replaced by the new login");
    assert_eq!(cache.by_login(&first).unwrap_err(), Denied::Invalid(NO_SESSION));
    let (_, of_second) = cache.by_login(&second).unwrap();
    cache.log_out(&second).await.unwrap();
    assert!(is_revoked(&of_second));
    assert_eq!(cache.by_login(&second).unwrap_err(), Denied::Invalid(NO_SESSION));
    cache.log_out("never opened").await.unwrap();

    assert_eq!(
        cache.by_login("tg_ann").unwrap_err(),
        Denied::Invalid(NO_SESSION),
        "a token is no cookie"
    );
    assert_eq!(
        cache.by_token(&third).unwrap_err(),
        Denied::Invalid(NO_MEMBER),
        "a cookie is no token"
    );
    assert_eq!(cache.log_in(&third, None).await.err(), Some(Denied::Invalid(NO_MEMBER)));

    let (_, of_third) = cache.by_login(&third).unwrap();
    store.change("ann", MemberChange::Rotate(hash("tg_new"), "tg_".into())).await;
    cache.refresh().await;
    assert!(is_revoked(&of_third));
    assert_eq!(cache.by_login(&third).unwrap_err(), Denied::Invalid(NO_SESSION));
}

#[tokio::test(start_paused = true)]
async fn run_picks_up_a_change_within_a_second() {
    let store = Away::new();
    let cache = cache(&store).await;
    let running = cache.run();
    let adding = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        add(&store, "ann", "tg_ann").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    tokio::select! {
        () = running => unreachable!("it never ends"),
        () = adding => assert!(cache.by_token("tg_ann").is_ok()),
    }
}
