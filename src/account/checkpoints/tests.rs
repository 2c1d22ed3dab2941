//! When the ledger and the gateway are compared, and when checkpoints are recorded.

use std::sync::{Arc, Mutex};

use super::*;
use crate::account::reconcile;
use crate::account::reconcile::tests::world::{Bought, Dice, World};
use crate::clock;
use crate::gateway::contract::money::Usd;
use crate::ledger::{
    AccountLimit, AccountStatus, Budgets, DedupeKey, Job, JobState, KeptReply, PurchaseId,
    PurchaseState, Reservation, SETTLES_WITHIN, Service as Kind, Settlement, StatusUpdate,
};

const NOON: Duration = Duration::from_secs(1_763_640_000);

fn listing(keys: &[&str], snapshot: Snapshot) -> ApiKeysResponse {
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

fn known(keys: &[&str]) -> SummaryReading {
    let listing = Arc::new(listing(keys, figures()));
    SummaryReading { listing, as_of: NOON, asked_at: NOON, generation: 0 }
}

fn ledger() -> Store {
    Store::in_memory(Arc::new(|| NOON))
}

async fn reserve(ledger: &Store, (service, price): (Kind, Usd), model: &str, id: PurchaseId) {
    send(ledger, (service, price), model, id, AccountStatus::Confirmed).await;
}

async fn send(
    ledger: &Store,
    (service, price): (Kind, Usd),
    model: &str,
    id: PurchaseId,
    account: AccountStatus,
) {
    let mut key = [0; 32];
    key[..16].copy_from_slice(id.0.as_bytes());
    let reservation = Reservation {
        id,
        caller: "192.0.2.1".into(),
        service,
        model: model.to_owned().into(),
        price,
        dedupe_key: DedupeKey::IdempotencyKey { key, payload: key },
        group: None,
        token: None,
        budgets: Budgets::default(),
        attempt: 0,
        replay_only: false,
        requires: Default::default(),
    };
    ledger.reserve(&reservation).await.unwrap();
    ledger.mark_sent(id, account).await.unwrap();
}

async fn lose(ledger: &Store) {
    let id = PurchaseId::generate();
    reserve(ledger, (Kind::Chat, Usd::mills(3)), "eta-5-mini", id).await;
    ledger.settle(id, Settlement::Unknown).await.unwrap();
}

#[tokio::test]
async fn first_listing_records_checkpoint_despite_running_purchases() {
    let ledger = ledger();
    let id = PurchaseId::generate();
    reserve(&ledger, (Kind::Chat, Usd::mills(3)), "eta-5-mini", id).await;
    let mut keeper = CheckpointKeeper::new(ledger.clone(), AccountBinding::unchecked());
    keeper.process(&known(&["k1"])).await;
    let checkpoint = ledger.latest_checkpoint().await.unwrap().expect("recorded");
    assert_eq!(
        (checkpoint.snapshot, checkpoint.settled_through, checkpoint.last_number),
        (figures(), 0, 1)
    );
    // Each process records one.
    ledger.settle(id, Settlement::Released).await.unwrap();
    keeper.process(&known(&["k1"])).await;
    assert_eq!(ledger.latest_snapshots(9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn failed_checkpoint_is_retried_with_each_listing() {
    let ledger = ledger();
    let (sender, latest) = watch::channel(SummaryStatus::default());
    let binding = AccountBinding::unchecked();
    let keeping = tokio::spawn(CheckpointKeeper::new(ledger.clone(), binding.clone()).run(latest));
    for known in [None, Some(known(&[])), Some(known(&["k1"]))] {
        assert_eq!(ledger.latest_checkpoint().await.unwrap(), None);
        sender.send_replace(SummaryStatus { is_readable: Some(known.is_some()), known });
        binding.ensure_same_account().expect("nothing is decided");
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    assert!(ledger.latest_checkpoint().await.unwrap().is_some());
    drop(sender);
    keeping.await.expect("it ends with the summary");
}

#[tokio::test]
async fn listing_of_another_account_changes_nothing() {
    let ledger = ledger();
    let mut keeper = CheckpointKeeper::new(ledger.clone(), AccountBinding::unchecked());
    keeper.process(&known(&["k1"])).await;
    assert!(ledger.latest_checkpoint().await.unwrap().is_some());
    let limit = AccountLimit { requests: 60, window_seconds: 60 };
    ledger.record_rate_limit(limit);
    let before = ledger.latest_checkpoint().await.unwrap();
    keeper.process(&known(&["another's"])).await;
    assert_eq!(ledger.latest_checkpoint().await.unwrap(), before);
    assert_eq!(ledger.recorded_rate_limit().await.unwrap(), Some(limit));
    keeper.process(&known(&["k1"])).await;
    assert_eq!(ledger.latest_snapshots(9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn unknown_outcomes_keep_their_checkpoint() {
    let ledger = ledger();
    lose(&ledger).await;
    let record = async || {
        CheckpointKeeper::new(ledger.clone(), AccountBinding::unchecked())
            .process(&known(&["k1"]))
            .await;
        ledger.latest_snapshots(9).await.unwrap().len()
    };
    assert_eq!(record().await, 1, "the first is recorded despite losses");
    assert_eq!(record().await, 1, "charges of earlier losses may be counted since");
    let ledger = self::ledger();
    let record = async || {
        CheckpointKeeper::new(ledger.clone(), AccountBinding::unchecked())
            .process(&known(&["k1"]))
            .await;
        ledger.latest_snapshots(9).await.unwrap().len()
    };
    assert_eq!((record().await, record().await), (1, 2));
    lose(&ledger).await;
    assert_eq!(record().await, 2, "later losses can be decided from this checkpoint only");
}

#[tokio::test]
async fn keys_rotated_one_by_one_keep_the_account() {
    let ledger = ledger();
    let binding = AccountBinding::unchecked();
    let mut keys = vec!["k0", "k1", "k2", "k3", "k4"];
    let is_accepted = async |keys: &[&str]| {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        binding.check_account(&ledger, keys).await.unwrap()
    };
    assert!(is_accepted(&keys).await);
    for (place, new) in ["n0", "n1", "n2", "n3", "n4"].into_iter().enumerate() {
        keys[place] = new;
        assert!(is_accepted(&keys).await, "{keys:?}");
        binding.ensure_same_account().unwrap();
    }
    assert!(!is_accepted(&["x0"]).await, "none in common");
    let refusal = binding.ensure_same_account().unwrap_err();
    assert_eq!(refusal.kind().code, "ledger_unavailable");
    assert!(!is_accepted(&["x0", "x1"]).await, "the refused key was not recorded");
    assert!(is_accepted(&["n4", "x0"]).await);
    binding.ensure_same_account().expect("purchases continue");

    CheckpointKeeper::new(ledger.clone(), binding.clone()).process(&known(&["k0"])).await;
    assert!(ledger.latest_checkpoint().await.unwrap().is_some());
    binding.adopt_next_account();
    assert!(is_accepted(&["y0"]).await);
    assert_eq!(
        ledger.latest_checkpoint().await.unwrap(),
        None,
        "it belongs to the earlier account"
    );
    assert!(!is_accepted(&["n4"]).await);
}

#[tokio::test]
async fn purchase_that_another_account_was_charged_for_is_not_released() {
    let time = Arc::new(Mutex::new(NOON));
    let clock = Arc::clone(&time);
    let ledger = Store::in_memory(Arc::new(move || *clock.lock().unwrap()));
    CheckpointKeeper::new(ledger.clone(), AccountBinding::unchecked())
        .process(&known(&["a"]))
        .await;
    // The next process sells with a key of another account until the first listing arrives.
    let binding = AccountBinding::unchecked();
    binding.listing_failed();
    binding.ensure_same_account().expect("no account is known");
    let id = PurchaseId::generate();
    let chat = (Kind::Chat, Usd::mills(3));
    send(&ledger, chat, "eta-5-mini", id, binding.account_status()).await;
    ledger.settle(id, Settlement::Unknown).await.unwrap();
    CheckpointKeeper::new(ledger.clone(), binding.clone()).process(&known(&["x"])).await;
    assert!(binding.ensure_same_account().is_err());
    // Back with the first account's key, whose counters did not move.
    let listing = listing(&["a"], figures());
    *time.lock().unwrap() = NOON + 2 * SETTLES_WITHIN;
    let comparison = compare(&ledger, async { Ok(listing) }).await.unwrap();
    let before = comparison.before.expect("the first account's");
    assert_eq!(comparison.evidence.len(), 1);
    let (now, read_at) = (&comparison.now, comparison.read_at);
    let verdict = reconcile::decide(&before, now, &comparison.evidence, read_at);
    let keep = |_| Duration::from_secs(60);
    apply_verdict(&ledger, &comparison, Some(&verdict), keep).await.unwrap();
    let row = ledger.purchase(comparison.evidence[0].purchase.id).await.unwrap().expect("recorded");
    assert_eq!(row.state, PurchaseState::Unknown);
}

#[tokio::test(start_paused = true)]
async fn first_purchase_waits_for_the_first_listing() {
    let binding = AccountBinding::unchecked();
    let began = clock::now();
    binding.wait_for_check().await;
    binding.ensure_same_account().expect("no account is known");
    assert_eq!(began.elapsed(), Duration::from_millis(300));
    binding.wait_for_check().await;
    assert_eq!(began.elapsed(), Duration::from_millis(300), "once");
}

#[tokio::test]
async fn other_account_is_not_compared() {
    let ledger = ledger();
    let comparison = async |keys: &[&str]| {
        let listing = listing(keys, figures());
        compare(&ledger, async { Ok(listing) }).await
    };
    assert!(comparison(&["k1"]).await.is_ok());
    ledger.check_account(vec!["k1".to_owned()], AccountCheck::Record).await.unwrap();
    assert!(comparison(&["k0", "k1"]).await.is_ok());
    assert!(matches!(comparison(&["k2"]).await, Err(CompareError::OtherAccount)));
    assert!(matches!(comparison(&[]).await, Err(CompareError::NoKeys)));
}

#[tokio::test]
async fn reconcile_records_the_compared_account() {
    let ledger = ledger();
    let keep = |_| Duration::from_secs(60);
    let is_same = async |key: &str| {
        ledger.check_account(vec![key.to_owned()], AccountCheck::Compare).await.unwrap()
    };
    let comparison = compare(&ledger, async { Ok(listing(&["k1"], figures())) }).await.unwrap();
    assert!(is_same("k2").await, "a comparison records nothing");
    assert!(apply_verdict(&ledger, &comparison, None, keep).await.unwrap());
    assert!(is_same("k1").await && !is_same("k2").await);
}

#[tokio::test]
async fn reconcile_records_no_checkpoint_of_another_account() {
    let ledger = ledger();
    let comparison = compare(&ledger, async { Ok(listing(&["k1"], figures())) }).await.unwrap();
    // A server records its account meanwhile.
    CheckpointKeeper::new(ledger.clone(), AccountBinding::unchecked())
        .process(&known(&["k2"]))
        .await;
    let keep = |_| Duration::from_secs(60);
    let written = apply_verdict(&ledger, &comparison, None, keep).await;
    assert!(matches!(written, Err(CompareError::OtherAccount)), "{written:?}");
    assert_eq!(ledger.latest_snapshots(9).await.unwrap().len(), 1, "the server's");
}

enum Event {
    Begins(usize),
    Ends(usize),
    JobEnds(usize),
    Reconciles,
}

async fn end(ledger: &Store, bought: &Bought) {
    let Bought { id, price, .. } = *bought;
    let (keep, job) = (Duration::from_secs(60), bought.job.map(|_| Box::new(job(bought))));
    let reply = KeptReply { status: 200, is_json: true, body: "{}".into() };
    let reply = (!bought.is_assumed).then_some(reply);
    let ending = match bought.state {
        PurchaseState::Charged => Settlement::Charged { cost: price, reply, keep, job },
        PurchaseState::Released => Settlement::Released,
        PurchaseState::Held | PurchaseState::Sent | PurchaseState::Unknown => Settlement::Unknown,
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
        prompt: None,
        latest_update: None,
    }
}

/// Replays a world, reconciles now and then, and returns the number of releases.
async fn replay(seed: u64) -> usize {
    let mut dice = Dice::new(seed);
    let world = World::random(&mut dice, 9, false);
    let time = Arc::new(Mutex::new(world.wall(0)));
    let clock = Arc::clone(&time);
    let ledger = Store::in_memory(Arc::new(move || *clock.lock().unwrap()));
    let mut events = Vec::new();
    for (place, bought) in world.bought.iter().enumerate() {
        events.push((bought.begun, 0, Event::Begins(place)));
        events.push((bought.ended, 1, Event::Ends(place)));
        if let Some((ended, state)) = bought.job
            && state != JobState::Open
        {
            events.push((ended, 2, Event::JobEnds(place)));
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
                let Bought { service, price, model, id, is_confirmed, .. } = world.bought[place];
                let account = if is_confirmed {
                    AccountStatus::Confirmed
                } else {
                    AccountStatus::Unconfirmed
                };
                send(&ledger, (service, price), model, id, account).await;
            }
            Event::Ends(place) => end(&ledger, &world.bought[place]).await,
            Event::JobEnds(place) => {
                let (_, state) = world.bought[place].job.unwrap();
                let update = StatusUpdate { at: world.wall(at), body: "{}".into(), state };
                let request_id = world.bought[place].id.to_string().into();
                ledger.update_job(request_id, update).await.unwrap();
            }
            Event::Reconciles => {
                let listing = listing(&["k"], world.snapshot(at, at));
                let comparison = compare(&ledger, async { Ok(listing) }).await.unwrap();
                let verdict = comparison.before.map(|before| {
                    reconcile::decide(
                        &before,
                        &comparison.now,
                        &comparison.evidence,
                        comparison.read_at,
                    )
                });
                for settled in verdict.iter().flat_map(|verdict| &verdict.settled) {
                    let is_free = settled.charged.is_none();
                    released += usize::from(is_free);
                    let has_paid = world.has_paid(settled.id, at);
                    assert!(!(is_free && has_paid), "seed {seed}: {settled:?}\n{world:#?}");
                }
                let keep = |_| Duration::from_secs(60);
                apply_verdict(&ledger, &comparison, verdict.as_ref(), keep).await.unwrap();
            }
        }
    }
    released
}

#[tokio::test]
async fn repeated_reconcile_releases_no_charged_purchase() {
    let mut released = 0;
    for seed in 0..1_000 {
        released += replay(seed).await;
    }
    assert!(released > 66, "{released}");
}
