//! Events are written in the transaction that causes them, and stay until they are delivered.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::gateway::contract::event::EventKind;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    Alert, Budgets, Extra, JobState, MemberChange, OutboxEvent, Period, PurchaseId, Reservation,
    Settlement, SpendLimit, StatusUpdate, Store, Subscription, Thresholds, WebhookId,
};

use crate::fixture::*;
use crate::jobs::job;
use crate::members::member;

pub(crate) const LEASE: Duration = Duration::from_secs(15);

pub(crate) fn hook(name: &str) -> WebhookId {
    WebhookId::of(&format!("https://hooks.example.com/{name}"))
}

pub(crate) async fn want(store: &Store, wanted: &[Subscription]) {
    bounded(store.set_webhooks(wanted.into())).await.expect("set");
}

pub(crate) async fn claim(store: &Store, webhook: WebhookId) -> Vec<OutboxEvent> {
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

pub(crate) fn low(whose: &str, period: u64) -> Alert {
    let data = json!({"balance": "1.000000"}).to_string();
    Alert { kind: EventKind::BalanceLow, whose: whose.into(), period, data: data.into() }
}

pub(crate) async fn raise(store: &Store, alert: Alert) {
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
            "request_id": request_id, "model": "video-a-2", "caller": "ann",
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

/// Limits the caller to a dollar a month, and reports at 80 and 100 percent of each budget.
fn watched(price: u64) -> Reservation {
    let budgets = Budgets {
        total: SpendLimit::of(Period::Ever, Usd::dollars(2)),
        caller: SpendLimit::of(Period::Month, Usd::dollars(1)),
        thresholds: Thresholds::new(&[80, 100]).expect("percentages"),
        ..Budgets::default()
    };
    Reservation { budgets, ..reservation("ann", Usd::mills(price)) }
}

fn crossing(
    (scope, whose): (&str, Option<&str>),
    (period, percent): (&str, u8),
    [limit, spent]: [u64; 2],
) -> (String, Value) {
    let (limit, spent) = (Usd::mills(limit), Usd::mills(spent));
    let data = json!({
        "scope": scope, "name": whose, "period": period, "percent": percent,
        "limit": limit, "limit_micros": limit.as_micros(),
        "spent": spent, "spent_micros": spent.as_micros(),
    });
    ("budget.threshold".to_owned(), data)
}

/// Fails unless these events are due, which are delivered then.
async fn assert_reported<const N: usize>(
    fixture: &Fixture,
    webhook: WebhookId,
    mut expected: [(String, Value); N],
) {
    let mut events = Vec::new();
    for OutboxEvent { id, event, data, .. } in claim(&fixture.store, webhook).await {
        events.push((event.to_string(), serde_json::from_str(&data).expect("JSON")));
        bounded(fixture.store.finish_event(id, webhook)).await.expect("finished");
    }
    let text = |(_, data): &(String, Value)| data.to_string();
    events.sort_by_key(text);
    expected.sort_by_key(text);
    assert_eq!(events, expected);
}

async fn threshold_is_reported_by_the_purchase_that_reaches_it(fixture: Fixture) {
    let (a, ann) = (hook("a"), ("caller", Some("ann")));
    // Nothing is remembered while no webhook wants it.
    let unwanted = fixture.send(&watched(900)).await;
    fixture.settle(unwanted, Settlement::Released).await;
    want(&fixture.store, &[(EventKind::BudgetThreshold, a)]).await;
    fixture.reserve(&watched(799)).await.unwrap();
    assert_reported(&fixture, a, []).await;
    let id = fixture.send(&watched(1)).await;
    let at_80 = crossing(ann, ("month", 80), [1_000, 800]);
    assert_reported(&fixture, a, [at_80]).await;
    // It falls below, and reaches it again.
    fixture.settle(id, Settlement::Released).await;
    fixture.reserve(&watched(1)).await.unwrap();
    assert_reported(&fixture, a, []).await;
    // Refused, and more than the limit leaves.
    assert!(fixture.reserve(&watched(201)).await.is_err());
    assert_reported(&fixture, a, []).await;
    fixture.reserve(&watched(200)).await.unwrap();
    assert_reported(&fixture, a, [crossing(ann, ("month", 100), [1_000, 1_000])]).await;
    // The next month is another period; the budget for ever is not.
    fixture.pass(31 * DAY);
    fixture.reserve(&watched(1_000)).await.unwrap();
    let total = ("total", None);
    let crossed = [
        crossing(ann, ("month", 80), [1_000, 1_000]),
        crossing(ann, ("month", 100), [1_000, 1_000]),
        crossing(total, ("ever", 80), [2_000, 2_000]),
        crossing(total, ("ever", 100), [2_000, 2_000]),
    ];
    assert_reported(&fixture, a, crossed).await;
}

async fn thresholds_of_groups_tokens_and_raised_limits_are_those_in_force(fixture: Fixture) {
    let a = hook("a");
    want(&fixture.store, &[(EventKind::BudgetThreshold, a)]).await;
    fixture.change("ann", MemberChange::Add(member("ann"))).await.unwrap();
    let extra = Extra { amount: Usd::dollars(1), until: START + HOUR };
    fixture.change("ann", MemberChange::Extra(Some(extra))).await.unwrap();
    let dollar = |period| SpendLimit::of(period, Usd::dollars(1));
    fixture.add_group("design", dollar(Period::Week)).await;
    let buy = Reservation {
        caller: "member:ann".into(),
        group: Some("design".into()),
        token: Some("t-1".into()),
        budgets: Budgets {
            caller: dollar(Period::Day),
            token: dollar(Period::Ever),
            thresholds: Thresholds::new(&[50]).expect("a percentage"),
            ..Budgets::default()
        },
        ..reservation("ann", Usd::mills(500))
    };
    fixture.reserve(&buy).await.unwrap();
    let of_group = crossing(("group", Some("design")), ("week", 50), [1_000, 500]);
    let of_token = crossing(("token", Some("t-1")), ("ever", 50), [1_000, 500]);
    assert_reported(&fixture, a, [of_token, of_group]).await;
    let again = reservation("ann", Usd::mills(500));
    fixture
        .reserve(&Reservation { id: again.id, dedupe_key: again.dedupe_key, ..buy })
        .await
        .unwrap();
    let raised = crossing(("caller", Some("member:ann")), ("day", 50), [2_000, 1_000]);
    assert_reported(&fixture, a, [raised]).await;
}

async fn two_hundred_purchases_at_once_report_a_threshold_once(fixture: Fixture) {
    let (a, b) = (hook("a"), hook("b"));
    want(&fixture.store, &[(EventKind::BudgetThreshold, a), (EventKind::BudgetThreshold, b)]).await;
    let buy = |_| {
        let (store, reservation) = (fixture.store.clone(), watched(4));
        async move { bounded(store.reserve(&reservation)).await.is_ok() }
    };
    let answers = futures_util::future::join_all((0..249).map(buy)).await;
    assert!(answers.iter().all(|is_held| *is_held));
    let at_80 = [crossing(("caller", Some("ann")), ("month", 80), [1_000, 800])];
    for webhook in [a, b] {
        assert_eq!(due(&fixture.store, webhook).await, at_80);
    }
}

on_every_backend! {
    threshold_is_reported_by_the_purchase_that_reaches_it,
    thresholds_of_groups_tokens_and_raised_limits_are_those_in_force,
    two_hundred_purchases_at_once_report_a_threshold_once,
    unknown_outcome_is_reported_once_to_each_webhook_that_wants_it,
    event_is_claimed_once_until_its_lease_ends,
    alert_is_raised_once_until_it_ends,
    end_of_a_job_is_reported_once_in_both_shapes,
    crash_reports_what_became_unknown,
    unwanted_webhook_gets_nothing_new,
    event_that_nothing_delivers_is_deleted_after_days,
}

#[tokio::test]
async fn crash_of_a_server_on_a_file_reports_what_became_unknown() {
    crash_reports_what_became_unknown(Fixture::on_disk(Default::default())).await;
}
