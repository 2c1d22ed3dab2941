//! Events are written in the transaction that causes them, and stay until they are delivered.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::contract::event::EventKind;
use tollgate::contract::money::Usd;
use tollgate::store::{
    Alert, JobState, OutboxEvent, PurchaseId, Settlement, StatusUpdate, Store, Subscription,
    WebhookId,
};

use crate::fixture::*;
use crate::jobs::job;

const LEASE: Duration = Duration::from_secs(15);

fn hook(name: &str) -> WebhookId {
    WebhookId::of(&format!("https://hooks.example.com/{name}"))
}

async fn want(store: &Store, wanted: &[Subscription]) {
    bounded(store.set_webhooks(wanted.into())).await.expect("set");
}

async fn claim(store: &Store, webhook: WebhookId) -> Vec<OutboxEvent> {
    bounded(store.claim_events(webhook, 100, LEASE)).await.expect("claimed")
}

/// Returns the events that are due, each with its data.
async fn due(store: &Store, webhook: WebhookId) -> Vec<(String, Value)> {
    let claimed = claim(store, webhook).await;
    let read = |event: &OutboxEvent| serde_json::from_str(&event.data).expect("JSON");
    let mut due: Vec<_> =
        claimed.iter().map(|event| (event.event.to_string(), read(event))).collect();
    due.sort_by_key(|(_, data): &(String, Value)| data.to_string());
    due
}

fn low(whose: &str, period: u64) -> Alert {
    let data = json!({"balance": "1.000000"}).to_string();
    Alert { kind: EventKind::BalanceLow, whose: whose.into(), period, data: data.into() }
}

async fn raise(store: &Store, alert: Alert) {
    bounded(store.raise_alert(alert)).await.expect("raised");
}

fn unknown(id: PurchaseId, price: Usd) -> (String, Value) {
    let data = json!({
        "purchase": id.to_string(), "caller": "ann", "model": "alpha",
        "price": price.to_string(), "price_micros": price.as_micros(),
    });
    ("outcome.unknown".to_owned(), data)
}

async fn unknown_outcome_is_reported_once_to_each_webhook_that_wants_it(fixture: Fixture) {
    let (a, b, other) = (hook("a"), hook("b"), hook("other"));
    let wanted = [EventKind::OutcomeUnknown, EventKind::JobFailed];
    let wanted = [(wanted[0], a), (wanted[0], b), (wanted[1], other)];
    want(&fixture.store, &wanted).await;
    for ending in [Settlement::Released, charged(PRICE, "{}")] {
        let id = fixture.send(&reservation("ann", PRICE)).await;
        fixture.settle(id, ending).await;
    }
    assert_eq!(due(&fixture.store, a).await, []);
    let price = Usd::micros(12_345_067);
    let id = fixture.send(&reservation("ann", price)).await;
    fixture.settle(id, Settlement::Unknown).await;
    fixture.settle(id, Settlement::Unknown).await;
    let first = claim(&fixture.store, a).await;
    fixture.pass(LEASE);
    assert_eq!(due(&fixture.store, a).await, [unknown(id, price)]);
    assert_eq!(due(&fixture.store, other).await, []);
    let second = claim(&fixture.store, b).await;
    assert_eq!(first, second, "the same id and text at each webhook");
    assert_eq!((first.len(), first[0].at), (1, START));
    // Reconciled later: nothing else is said.
    fixture.settle(id, charged(price, "{}")).await;
    fixture.pass(LEASE);
    assert_eq!(claim(&fixture.store, b).await, second);
}

async fn event_is_claimed_once_until_its_lease_ends(fixture: Fixture) {
    let a = hook("a");
    want(&fixture.store, &[(EventKind::BalanceLow, a)]).await;
    for whose in ["one", "two", "three"] {
        raise(&fixture.store, low(whose, 0)).await;
        fixture.pass(SECOND);
    }
    let two = bounded(fixture.store.claim_events(a, 2, LEASE)).await.unwrap();
    let third = claim(&fixture.store, a).await;
    assert_eq!((two.len(), third.len()), (2, 1));
    assert_eq!(claim(&fixture.store, a).await, []);
    bounded(fixture.store.finish_event(Arc::clone(&two[0].id), a)).await.unwrap();
    let wait = Duration::from_secs(3_600);
    bounded(fixture.store.delay_event(Arc::clone(&two[1].id), a, wait)).await.unwrap();
    fixture.pass(LEASE);
    assert_eq!(claim(&fixture.store, a).await, third);
    bounded(fixture.store.finish_event(Arc::clone(&third[0].id), a)).await.unwrap();
    fixture.pass(wait - LEASE - SECOND);
    assert_eq!(claim(&fixture.store, a).await, []);
    fixture.pass(SECOND);
    let late = claim(&fixture.store, a).await;
    assert_eq!(late, [OutboxEvent { attempts: 1, ..two[1].clone() }]);
}

async fn alert_is_raised_once_until_it_ends(fixture: Fixture) {
    let a = hook("a");
    // An alert that nobody wants is not remembered.
    raise(&fixture.store, low("account", 0)).await;
    want(&fixture.store, &[(EventKind::BalanceLow, a)]).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        for _ in 0..3 {
            raise(&fixture.store, low("account", 0)).await;
            fixture.pass(SECOND);
        }
        let [event] = &claim(&fixture.store, a).await[..] else { panic!("one event") };
        bounded(fixture.store.finish_event(Arc::clone(&event.id), a)).await.unwrap();
        ids.push(Arc::clone(&event.id));
        bounded(fixture.store.end_alert(EventKind::BalanceLow, "account".into())).await.unwrap();
    }
    assert_ne!(ids[0], ids[1]);
    for period in [7, 7, 8] {
        raise(&fixture.store, low("account", period)).await;
    }
    bounded(fixture.store.end_alert(EventKind::BalanceLow, "account".into())).await.unwrap();
    raise(&fixture.store, low("account", 7)).await;
    assert_eq!(claim(&fixture.store, a).await.len(), 2, "one for each period");
}

async fn end_of_a_job_is_reported_once_in_both_shapes(fixture: Fixture) {
    let (own, openai) = (hook("own"), hook("openai"));
    let kinds = [
        (EventKind::JobFinished, own),
        (EventKind::JobFailed, own),
        (EventKind::VideoCompleted, openai),
        (EventKind::VideoFailed, openai),
    ];
    want(&fixture.store, &kinds).await;
    for (request_id, end) in [("r-1", JobState::Finished), ("r-2", JobState::Failed)] {
        bounded(fixture.store.insert_job(&job(request_id, "ann"))).await.unwrap();
        for state in [JobState::Open, end, end, JobState::Failed] {
            let update = StatusUpdate { at: START, body: "{}".into(), state };
            bounded(fixture.store.update_job(request_id.into(), update)).await.unwrap();
        }
    }
    let row = |event: &str, request_id: &str| {
        let data = json!({
            "request_id": request_id, "model": "video-a-2", "owner": "ann",
            "cost": "3.000000", "cost_micros": 3_000_000,
        });
        (event.to_owned(), data)
    };
    let rows = [row("job.finished", "r-1"), row("job.failed", "r-2")];
    assert_eq!(due(&fixture.store, own).await, rows);
    let video = |event: &str, id: &str| (event.to_owned(), json!({"id": id}));
    let videos = [video("video.completed", "r-1"), video("video.failed", "r-2")];
    assert_eq!(due(&fixture.store, openai).await, videos);
}

async fn crash_reports_what_became_unknown(mut fixture: Fixture) {
    let a = hook("a");
    want(&fixture.store, &[(EventKind::OutcomeUnknown, a)]).await;
    let held = reservation("ann", PRICE);
    fixture.reserve(&held).await.unwrap();
    let sent = fixture.send(&reservation("ann", PRICE)).await;
    fixture.crash_and_recover(Default::default()).await;
    assert_eq!(due(&fixture.store, a).await, [unknown(sent, PRICE)]);
}

async fn unwanted_webhook_gets_nothing_new(fixture: Fixture) {
    let (a, b) = (hook("a"), hook("b"));
    want(&fixture.store, &[(EventKind::BalanceLow, a), (EventKind::KeyRefused, a)]).await;
    want(&fixture.store, &[(EventKind::BalanceLow, b)]).await;
    raise(&fixture.store, low("account", 0)).await;
    assert_eq!(claim(&fixture.store, a).await, []);
    assert_eq!(claim(&fixture.store, b).await.len(), 1);
}

async fn event_that_nothing_delivers_is_deleted_after_days(fixture: Fixture) {
    let a = hook("a");
    want(&fixture.store, &[(EventKind::BalanceLow, a)]).await;
    raise(&fixture.store, low("account", 0)).await;
    fixture.pass(3 * DAY);
    bounded(fixture.store.purge_expired()).await.unwrap();
    assert_eq!(claim(&fixture.store, a).await.len(), 1);
    fixture.pass(2 * DAY);
    bounded(fixture.store.purge_expired()).await.unwrap();
    assert_eq!(claim(&fixture.store, a).await, []);
    // The alert itself goes on.
    raise(&fixture.store, low("account", 0)).await;
    assert_eq!(claim(&fixture.store, a).await, []);
}

on_every_backend! {
    unknown_outcome_is_reported_once_to_each_webhook_that_wants_it,
    event_is_claimed_once_until_its_lease_ends,
    alert_is_raised_once_until_it_ends,
    end_of_a_job_is_reported_once_in_both_shapes,
    crash_reports_what_became_unknown,
    unwanted_webhook_gets_nothing_new,
    event_that_nothing_delivers_is_deleted_after_days,
}

/// Two servers that share the ledger never have the same event at once.
#[tokio::test]
async fn servers_of_a_fleet_claim_different_events() {
    let fixture = Fixture::on_postgres().await;
    let (a, other) = (hook("a"), fixture.join().await);
    want(&fixture.store, &[(EventKind::BalanceLow, a)]).await;
    for number in 0..40 {
        raise(&fixture.store, low(&number.to_string(), 0)).await;
    }
    let take = |store: &Store| {
        let store = store.clone();
        async move {
            let mut all = Vec::new();
            while let Ok(some) = store.claim_events(a, 3, LEASE).await
                && !some.is_empty()
            {
                all.extend(some.into_iter().map(|event| event.id));
            }
            all
        }
    };
    let (mut ids, more) = bounded(async { tokio::join!(take(&fixture.store), take(&other)) }).await;
    ids.extend(more);
    ids.sort();
    ids.dedup();
    let left = claim(&fixture.store, a).await.len();
    assert_eq!(ids.len() + left, 40);
}
