//! When both books are looked into, and when a checkpoint is noted.

use std::sync::{Arc, Mutex};

use super::*;
use crate::billing::reconcile;
use crate::billing::reconcile::tests::world::{Bought, Dice, World};
use crate::clock;
use crate::contract::money::Usd;
use crate::store::{
    Account, Claim, Ending, Job, JobState, KeptReply, Limits, PurchaseId, Reservation,
    SETTLES_WITHIN, Service as Kind, State, Word,
};

const NOON: Duration = Duration::from_secs(1_763_640_000);

fn listing(keys: &[&str], snapshot: Snapshot) -> Listing {
    let keys: Vec<_> = keys
        .iter()
        .map(|id| format!(r#"{{"id":"{id}","name":"a key","keyPrefix":"svc_sk_ab..."}}"#))
        .collect();
    let Snapshot { balance_cents, chats, chat_cents, spent_cents, .. } = snapshot;
    let text = format!(
        r#"{{"keys":[{}],"billing":{{"balanceCents":{balance_cents},
        "rateLimit":{{"requests":60,"windowSeconds":60}},
        "usage":{{"chat":{{"count":{chats},"costCents":{chat_cents}}},"totalSpentCents":{spent_cents}}}}}}}"#,
        keys.join(",")
    );
    serde_json::from_str(&text).unwrap()
}

fn figures() -> Snapshot {
    Snapshot { at: NOON, balance_cents: 4_210, chats: 3, chat_cents: 1, spent_cents: 790 }
}

fn known(keys: &[&str]) -> Known {
    let listing = Arc::new(listing(keys, figures()));
    Known { listing, as_of: NOON, asked: NOON, generation: 0 }
}

fn ledger() -> Store {
    Store::in_memory(Arc::new(|| NOON))
}

async fn reserve(ledger: &Store, (service, price): (Kind, Usd), model: &str, id: PurchaseId) {
    send(ledger, (service, price), model, id, Account::Recognised).await;
}

async fn send(
    ledger: &Store,
    (service, price): (Kind, Usd),
    model: &str,
    id: PurchaseId,
    account: Account,
) {
    let mut key = [0; 32];
    key[..16].copy_from_slice(id.0.as_bytes());
    let reservation = Reservation {
        id,
        caller: "192.0.2.1".to_owned(),
        service,
        model: model.into(),
        price,
        claim: Claim::Key { key, payload: key },
        limits: Limits::default(),
        only_repeats: false,
    };
    ledger.reserve(&reservation).await.unwrap();
    ledger.sent(id, account).await.unwrap();
}

async fn lose(ledger: &Store) {
    let id = PurchaseId::new();
    reserve(ledger, (Kind::Chat, Usd::mills(3)), "eta-5-mini", id).await;
    ledger.settle(id, Ending::Unknown).await.unwrap();
}

#[tokio::test]
async fn first_listing_notes_checkpoint_though_purchases_are_under_way() {
    let ledger = ledger();
    let id = PurchaseId::new();
    reserve(&ledger, (Kind::Chat, Usd::mills(3)), "eta-5-mini", id).await;
    let keeper = Keeper::new(ledger.clone(), Binding::real());
    keeper.judge(&known(&["k1"])).await;
    let noted = ledger.last_check().await.unwrap().expect("noted");
    assert_eq!((noted.snapshot, noted.settled, noted.number), (figures(), 0, 1));
    // One is enough for a process.
    ledger.settle(id, Ending::Released).await.unwrap();
    keeper.judge(&known(&["k1"])).await;
    assert_eq!(ledger.checks(9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn checkpoint_is_tried_again_with_each_listing() {
    let ledger = ledger();
    let (told, latest) = watch::channel(Latest::default());
    let binding = Binding::real();
    let following = tokio::spawn(Keeper::new(ledger.clone(), binding.clone()).run(latest));
    for known in [None, Some(known(&[])), Some(known(&["k1"]))] {
        assert_eq!(ledger.last_check().await.unwrap(), None);
        told.send_replace(Latest { is_read: Some(known.is_some()), known });
        binding.must_not_be_other().expect("nothing is decided");
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    assert!(ledger.last_check().await.unwrap().is_some());
    drop(told);
    following.await.expect("it ends with the books");
}

#[tokio::test]
async fn checkpoint_is_noted_anew_once_the_account_is_back() {
    let ledger = ledger();
    let keeper = Keeper::new(ledger.clone(), Binding::real());
    keeper.judge(&known(&["k1"])).await;
    assert!(ledger.last_check().await.unwrap().is_some());
    keeper.judge(&known(&["another's"])).await;
    assert!(ledger.last_check().await.unwrap().is_none());
    keeper.judge(&known(&["k1"])).await;
    assert!(ledger.last_check().await.unwrap().is_some());
}

#[tokio::test]
async fn unknown_outcomes_keep_their_checkpoint() {
    let ledger = ledger();
    lose(&ledger).await;
    let note = async || {
        Keeper::new(ledger.clone(), Binding::real()).judge(&known(&["k1"])).await;
        ledger.checks(9).await.unwrap().len()
    };
    assert_eq!(note().await, 1, "the first, whatever was lost before");
    assert_eq!(note().await, 1, "what was lost just before may be counted since");
    let ledger = self::ledger();
    let note = async || {
        Keeper::new(ledger.clone(), Binding::real()).judge(&known(&["k1"])).await;
        ledger.checks(9).await.unwrap().len()
    };
    assert_eq!((note().await, note().await), (1, 2));
    lose(&ledger).await;
    assert_eq!(note().await, 2, "what was lost since can be told from there alone");
}

#[tokio::test]
async fn keys_rotated_one_by_one_keep_the_account() {
    let ledger = ledger();
    let binding = Binding::real();
    let mut keys = vec!["k0", "k1", "k2", "k3", "k4"];
    let recognise = async |keys: &[&str]| {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        binding.recognise(&ledger, keys).await.unwrap()
    };
    assert!(recognise(&keys).await);
    for (place, new) in ["n0", "n1", "n2", "n3", "n4"].into_iter().enumerate() {
        keys[place] = new;
        assert!(recognise(&keys).await, "{keys:?}");
        binding.must_not_be_other().unwrap();
    }
    assert!(!recognise(&["x0"]).await, "none in common");
    let refusal = binding.must_not_be_other().unwrap_err();
    assert_eq!(refusal.kind().code, "ledger_unavailable");
    assert!(!recognise(&["x0", "x1"]).await, "and it was not noted");
    assert!(recognise(&["n4", "x0"]).await);
    binding.must_not_be_other().expect("it sells again");

    Keeper::new(ledger.clone(), binding.clone()).judge(&known(&["k0"])).await;
    assert!(ledger.last_check().await.unwrap().is_some());
    binding.renew();
    assert!(recognise(&["y0"]).await);
    assert_eq!(ledger.last_check().await.unwrap(), None, "it is the earlier account's");
    assert!(!recognise(&["n4"]).await);
}

#[tokio::test]
async fn purchase_that_another_account_was_charged_for_is_not_released() {
    let time = Arc::new(Mutex::new(NOON));
    let clock = Arc::clone(&time);
    let ledger = Store::in_memory(Arc::new(move || *clock.lock().unwrap()));
    Keeper::new(ledger.clone(), Binding::real()).judge(&known(&["a"])).await;
    // The next process sells with a key of another account until the first listing arrives.
    let binding = Binding::real();
    binding.is_not_told();
    binding.must_not_be_other().expect("nobody can say");
    lose(&ledger).await;
    Keeper::new(ledger.clone(), binding.clone()).judge(&known(&["x"])).await;
    assert!(binding.must_not_be_other().is_err());
    // Back with the first account's key, whose counters did not move.
    let listing = listing(&["a"], figures());
    *time.lock().unwrap() = NOON + 2 * SETTLES_WITHIN;
    let look = look(&ledger, async { Ok(listing) }).await.unwrap();
    assert_eq!(look.before, None, "there is nothing to compare it with");
    assert_eq!(look.evidence.len(), 1);
    write_down(&ledger, &look, None, |_| Duration::from_secs(60)).await.unwrap();
    let row = ledger.purchase(look.evidence[0].row.id).await.unwrap().expect("it is there");
    assert_eq!(row.state, State::Unknown);
}

#[tokio::test(start_paused = true)]
async fn first_sale_waits_a_moment_for_the_first_listing() {
    let binding = Binding::real();
    let began = clock::now();
    binding.listed().await;
    binding.must_not_be_other().expect("nobody can say");
    assert_eq!(began.elapsed(), Duration::from_millis(300));
    binding.listed().await;
    assert_eq!(began.elapsed(), Duration::from_millis(300), "once");
}

#[tokio::test]
async fn other_account_is_not_compared() {
    let ledger = ledger();
    let look = async |keys: &[&str]| {
        let listing = listing(keys, figures());
        look(&ledger, async { Ok(listing) }).await
    };
    assert!(look(&["k1"]).await.is_ok());
    ledger.recognise(vec!["k1".to_owned()], Recognise::Note).await.unwrap();
    assert!(look(&["k0", "k1"]).await.is_ok());
    assert!(matches!(look(&["k2"]).await, Err(Blocked::OtherAccount)));
    assert!(matches!(look(&[]).await, Err(Blocked::NoKeys)));
}

#[tokio::test]
async fn reconciliation_notes_the_account_that_it_compared() {
    let ledger = ledger();
    let keep = |_| Duration::from_secs(60);
    let is_same =
        async |key: &str| ledger.recognise(vec![key.to_owned()], Recognise::Look).await.unwrap();
    let look = look(&ledger, async { Ok(listing(&["k1"], figures())) }).await.unwrap();
    assert!(is_same("k2").await, "a dry run notes nothing");
    assert!(write_down(&ledger, &look, None, keep).await.unwrap());
    assert!(is_same("k1").await && !is_same("k2").await);
}

#[tokio::test]
async fn reconciliation_notes_no_checkpoint_of_another_account() {
    let ledger = ledger();
    let look = look(&ledger, async { Ok(listing(&["k1"], figures())) }).await.unwrap();
    // A server notes its account meanwhile.
    Keeper::new(ledger.clone(), Binding::real()).judge(&known(&["k2"])).await;
    let keep = |_| Duration::from_secs(60);
    let written = write_down(&ledger, &look, None, keep).await;
    assert!(matches!(written, Err(Blocked::OtherAccount)), "{written:?}");
    assert_eq!(ledger.checks(9).await.unwrap().len(), 1, "the server's");
}

/// Something that happens in a world.
enum Event {
    Begins(usize),
    Ends(usize),
    Hears(usize),
    Reconciles,
}

async fn end(ledger: &Store, bought: &Bought) {
    let Bought { id, price, .. } = *bought;
    let (keep, job) = (Duration::from_secs(60), bought.job.map(|_| Box::new(job(bought))));
    let reply = KeptReply { status: 200, is_json: true, body: "{}".into() };
    let reply = (!bought.is_assumed).then_some(reply);
    let ending = match bought.state {
        State::Charged => Ending::Charged { cost: price, reply, keep, job },
        State::Released => Ending::Released,
        State::Held | State::Sent | State::Unknown => Ending::Unknown,
    };
    ledger.settle(id, ending).await.unwrap();
}

fn job(bought: &Bought) -> Job {
    Job {
        request_id: bought.id.to_string().into(),
        purchase: Some(bought.id),
        owner: "".into(),
        key: None,
        model: bought.model.into(),
        price: bought.price,
        at: NOON,
        latest: None,
    }
}

/// Lives through a world, and reconciles now and then; how often something was released.
async fn live(seed: u64) -> usize {
    let mut dice = Dice::new(seed);
    let world = World::random(&mut dice, 9, false);
    let time = Arc::new(Mutex::new(world.wall(0)));
    let clock = Arc::clone(&time);
    let ledger = Store::in_memory(Arc::new(move || *clock.lock().unwrap()));
    let mut events = Vec::new();
    for (place, bought) in world.bought.iter().enumerate() {
        events.push((bought.begun, 0, Event::Begins(place)));
        events.push((bought.ended, 1, Event::Ends(place)));
        if let Some((heard, state)) = bought.job
            && state != JobState::Open
        {
            events.push((heard, 2, Event::Hears(place)));
        }
    }
    for _ in 0..6 {
        events.push((dice.below(6_000), 3, Event::Reconciles));
    }
    events.sort_by_key(|(at, order, _)| (*at, *order));
    let mut released = 0;
    for (at, _, event) in events {
        *time.lock().unwrap() = world.wall(at);
        match event {
            Event::Begins(place) => {
                let Bought { service, price, model, id, is_recognised, .. } = world.bought[place];
                let account =
                    if is_recognised { Account::Recognised } else { Account::Unrecognised };
                send(&ledger, (service, price), model, id, account).await;
            }
            Event::Ends(place) => end(&ledger, &world.bought[place]).await,
            Event::Hears(place) => {
                let (_, state) = world.bought[place].job.unwrap();
                let word = Word { at: world.wall(at), body: "{}".into(), state };
                let request_id = world.bought[place].id.to_string().into();
                ledger.heard(request_id, word).await.unwrap();
            }
            Event::Reconciles => {
                let listing = listing(&["k"], world.snapshot(at, at));
                let look = look(&ledger, async { Ok(listing) }).await.unwrap();
                let verdict = look.before.map(|before| {
                    reconcile::decide(&before, &look.now, &look.evidence, look.read_at)
                });
                for settled in verdict.iter().flat_map(|verdict| &verdict.settled) {
                    let is_free = settled.charged.is_none();
                    released += usize::from(is_free);
                    let has_paid = world.has_paid(settled.id, at);
                    assert!(!(is_free && has_paid), "seed {seed}: {settled:?}\n{world:#?}");
                }
                let keep = |_| Duration::from_secs(60);
                write_down(&ledger, &look, verdict.as_ref(), keep).await.unwrap();
            }
        }
    }
    released
}

#[tokio::test]
async fn reconciling_again_and_again_releases_nothing_that_was_charged() {
    let mut released = 0;
    for seed in 0..3_000 {
        released += live(seed).await;
    }
    assert!(released > 200, "{released}");
}
