use std::future::ready;
use std::time::Duration;

use tokio::time::advance;

use super::*;
use crate::contract::money::Usd;
use crate::store::{HookFuture, MemberChange, OwnBudget, ReserveError, StoreHook, StoreOp};

/// A store that can be out of reach.
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
        self.inner.change_member(name.into(), change).await.expect("changed");
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

fn secret() -> Secret {
    Secret::new(b"a secret")
}

fn hash(token: &str) -> Digest {
    token::hash_token(&secret(), token)
}

async fn enlist(store: &Away, name: &str, token: &str) {
    let member = Member {
        name: name.into(),
        role: Role::Member,
        own_budget: OwnBudget::default(),
        token: hash(token),
        prefix: "tg_".into(),
        added_at: Duration::ZERO,
        revoked_at: None,
    };
    store.change(name, MemberChange::Add(member)).await;
}

async fn roll(store: &Arc<Away>) -> MemberCache {
    let roll = MemberCache::new(store.inner.with_hook(Arc::clone(store) as _), secret());
    roll.refresh().await;
    roll
}

fn name((caller, _): &(Caller, Session)) -> String {
    caller.to_string()
}

fn ended(standing: &Session) -> bool {
    standing.revoked.as_ref().is_some_and(CancellationToken::is_cancelled)
}

const AWAY: Denied = Denied::Unavailable(RETRY_AFTER);

#[tokio::test(start_paused = true)]
async fn what_another_process_changes_holds_at_the_next_look() {
    let store = Away::new();
    enlist(&store, "ann", "tg_ann").await;
    let roll = roll(&store).await;
    let (caller, ann) = roll.by_token("tg_ann").unwrap();
    assert_eq!(caller, Caller::Member("ann".into()));
    assert_eq!(roll.by_token("tg_bob").unwrap_err(), Denied::Invalid);

    enlist(&store, "bob", "tg_bob").await;
    let own = OwnBudget { day: Some(Usd::dollars(1)), month: None };
    store.change("ann", MemberChange::Update(Some(Role::Admin), Some(own))).await;
    roll.refresh().await;
    assert_eq!(name(&roll.by_token("tg_bob").unwrap()), "member:bob");
    let (_, now) = roll.by_token("tg_ann").unwrap();
    assert_eq!((now.role, now.own_budget), (Role::Admin, own));
    assert_eq!(roll.count(), Some(MemberCount { members: 2, admins: 1 }));
    assert!(!ended(&ann) && !ended(&now), "the token is the same one");

    store.change("ann", MemberChange::Rotate(hash("tg_new"), "tg_".into())).await;
    let (_, bob) = roll.by_token("tg_bob").unwrap();
    store.change("bob", MemberChange::Revoke).await;
    roll.refresh().await;
    assert!(ended(&ann) && ended(&now) && ended(&bob));
    for token in ["tg_ann", "tg_bob"] {
        assert_eq!(roll.by_token(token).unwrap_err(), Denied::Invalid, "{token}");
    }
    assert_eq!(name(&roll.by_token("tg_new").unwrap()), "member:ann");
    assert_eq!(roll.count(), Some(MemberCount { members: 1, admins: 1 }));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_read_at_the_start_lets_nobody_in_until_it_can() {
    let store = Away::new();
    enlist(&store, "ann", "tg_ann").await;
    store.go_away(true);
    let roll = roll(&store).await;
    for token in ["tg_ann", "tg_bob"] {
        assert_eq!(roll.by_token(token).unwrap_err(), AWAY, "{token}");
        assert_eq!(roll.by_login(token).unwrap_err(), AWAY, "{token}");
        assert_eq!(roll.log_in(token, None).await.err(), Some(AWAY), "{token}");
    }
    assert_eq!(roll.count(), None);
    store.go_away(false);
    roll.refresh().await;
    assert_eq!(name(&roll.by_token("tg_ann").unwrap()), "member:ann");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_cannot_be_read_any_more_holds_for_half_a_minute() {
    let store = Away::new();
    enlist(&store, "ann", "tg_ann").await;
    let roll = roll(&store).await;
    advance(Duration::from_secs(100)).await;
    roll.refresh().await;
    store.go_away(true);
    for (seconds, holds) in [(0, true), (29, true), (2, false), (1_000, false)] {
        advance(Duration::from_secs(seconds)).await;
        roll.refresh().await;
        let found = roll.by_token("tg_ann").map(|found| name(&found));
        assert_eq!(found, if holds { Ok("member:ann".to_owned()) } else { Err(AWAY) });
    }
    store.go_away(false);
    roll.refresh().await;
    assert!(roll.by_token("tg_ann").is_ok(), "nothing had changed meanwhile");
}

#[tokio::test(start_paused = true)]
async fn a_login_is_new_each_time_and_ends_with_the_next_a_logout_or_its_token() {
    let store = Away::new();
    enlist(&store, "ann", "tg_ann").await;
    let roll = roll(&store).await;
    let open = async |carried: Option<&str>| roll.log_in("tg_ann", carried).await.unwrap().value;
    let (first, second) = (open(None).await, open(None).await);
    assert_ne!(*first, *second);
    let (caller, standing) = roll.by_login(&first).unwrap();
    assert_eq!(caller, Caller::Member("ann".into()));
    assert!(standing.expires_at.is_some_and(|until| until > clock::wall()));

    let third = open(Some(first.as_str())).await;
    assert!(ended(&standing), "the browser has another one now");
    assert_eq!(roll.by_login(&first).unwrap_err(), Denied::Invalid);
    let (_, of_second) = roll.by_login(&second).unwrap();
    roll.log_out(&second).await.unwrap();
    assert!(ended(&of_second));
    assert_eq!(roll.by_login(&second).unwrap_err(), Denied::Invalid);
    roll.log_out("never opened").await.unwrap();

    assert_eq!(roll.by_login("tg_ann").unwrap_err(), Denied::Invalid, "a token is no cookie");
    assert_eq!(roll.by_token(&third).unwrap_err(), Denied::Invalid, "nor the other way round");
    assert_eq!(roll.log_in(&third, None).await.err(), Some(Denied::Invalid));

    let (_, of_third) = roll.by_login(&third).unwrap();
    store.change("ann", MemberChange::Rotate(hash("tg_new"), "tg_".into())).await;
    roll.refresh().await;
    assert!(ended(&of_third));
    assert_eq!(roll.by_login(&third).unwrap_err(), Denied::Invalid);
}

#[tokio::test(start_paused = true)]
async fn one_look_after_another_finds_a_change_within_a_second() {
    let store = Away::new();
    let roll = roll(&store).await;
    let following = roll.run();
    let adding = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        enlist(&store, "ann", "tg_ann").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    tokio::select! {
        () = following => unreachable!("it follows for ever"),
        () = adding => assert!(roll.by_token("tg_ann").is_ok()),
    }
}
