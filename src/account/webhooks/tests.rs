//! The course of retries, in paused time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::clock::Instant;
use crate::ledger::{Alert, Clock};
use crate::sync::lock;

const HOUR: Duration = Duration::from_secs(3_600);

/// A receiver that is down until `up`, and records the id of each message with its time.
#[derive(Clone)]
struct Receiver {
    start: Instant,
    up: Duration,
    got: Arc<Mutex<Vec<(Duration, String)>>>,
    open: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Receiver {
    fn down_for(up: Duration) -> Self {
        let start = clock::now();
        Self { start, up, got: Arc::default(), open: Arc::default(), most: Arc::default() }
    }

    fn got(&self) -> Vec<(Duration, String)> {
        lock(&self.got).clone()
    }
}

impl PostMessage for Receiver {
    async fn post(&self, _: &Url, headers: HeaderMap, _: Bytes) -> io::Result<StatusCode> {
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(open, Ordering::Relaxed);
        let id = headers["webhook-id"].to_str().unwrap().to_owned();
        lock(&self.got).push((self.start.elapsed(), id));
        sleep(Duration::from_secs(2)).await;
        self.open.fetch_sub(1, Ordering::Relaxed);
        let is_up = self.start.elapsed() >= self.up;
        Ok(if is_up { StatusCode::NO_CONTENT } else { StatusCode::SERVICE_UNAVAILABLE })
    }
}

fn settings(path: &str) -> Settings {
    let mut settings = Settings::default();
    let url = Url::parse("https://hooks.example.com/").unwrap().join(path).unwrap();
    settings.webhooks.targets.push(WebhookConfig { url, events: EventKind::ALL.to_vec() });
    settings
}

fn webhooks() -> Webhooks {
    let start = clock::now();
    let ledger_clock: Clock =
        Arc::new(move || Duration::from_secs(1_763_640_000) + start.elapsed());
    Webhooks::new(&settings("a"), Store::in_memory(ledger_clock), Arc::default())
}

async fn raise(webhooks: &Webhooks, whose: &str) {
    let alert =
        Alert { kind: EventKind::BalanceLow, whose: whose.into(), period: 0, data: "{}".into() };
    webhooks.0.store.raise_alert(alert).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn receiver_that_is_down_for_an_hour_gets_the_event_with_its_first_id() {
    let (webhooks, receiver) = (webhooks(), Receiver::down_for(HOUR));
    webhooks.subscribe().await;
    raise(&webhooks, "account").await;
    let run = webhooks.deliver_with(receiver.clone());
    tokio::time::timeout(HOUR * 4, run).await.unwrap_err();
    let got = receiver.got();
    assert!((6..=10).contains(&got.len()), "{got:?}");
    assert!(got.iter().all(|(_, id)| *id == got[0].1 && id.starts_with("evt_")), "{got:?}");
    assert!(got.iter().filter(|(at, _)| *at + Duration::from_secs(2) >= HOUR).count() == 1);
    let gaps: Vec<_> = got.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(gaps.is_sorted(), "{gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn event_is_dropped_after_three_days() {
    let (webhooks, receiver) = (webhooks(), Receiver::down_for(HOUR * 10_000));
    webhooks.subscribe().await;
    raise(&webhooks, "account").await;
    tokio::time::advance(HOUR * 66).await;
    let run = webhooks.deliver_with(receiver.clone());
    tokio::time::timeout(HOUR * 14, run).await.unwrap_err();
    let last = receiver.got().last().unwrap().0;
    assert!(last <= HOUR * 72 && last > HOUR * 66, "{last:?}");
    let metrics = webhooks.0.metrics.encode(crate::metrics::Readings::default());
    let dropped = "tollgate_webhooks_total{event=\"balance.low\",outcome=\"dropped\"} 1";
    assert!(metrics.contains(dropped), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn at_most_four_messages_are_under_way() {
    let (webhooks, receiver) = (webhooks(), Receiver::down_for(Duration::ZERO));
    webhooks.subscribe().await;
    for number in 0..20 {
        raise(&webhooks, &number.to_string()).await;
    }
    let run = webhooks.deliver_with(receiver.clone());
    tokio::time::timeout(HOUR, run).await.unwrap_err();
    assert_eq!((receiver.got().len(), receiver.most.load(Ordering::Relaxed)), (20, 4));
}

#[tokio::test(start_paused = true)]
async fn event_without_a_ledger_is_retried_from_memory() {
    let (webhooks, receiver) = (webhooks(), Receiver::down_for(HOUR));
    let data = "{\"cause\":\"disk_full\"}".to_owned();
    webhooks.send_from_memory(EventKind::LedgerUnusable, data, receiver.clone()).await;
    let got = receiver.got();
    assert!(got.len() > 3 && got.iter().all(|(_, id)| *id == got[0].1), "{got:?}");
}

/// A receiver during whose answer the settings are reloaded with another one.
#[derive(Clone)]
struct Reloading(Webhooks, Arc<AtomicUsize>);

impl PostMessage for Reloading {
    async fn post(&self, _: &Url, _: HeaderMap, _: Bytes) -> io::Result<StatusCode> {
        let number = self.1.fetch_add(1, Ordering::Relaxed);
        self.0.reconfigure(&settings(&number.to_string()));
        Ok(StatusCode::NO_CONTENT)
    }
}

#[tokio::test(start_paused = true)]
async fn reload_at_the_end_of_an_attempt_is_not_lost() {
    let (webhooks, posted) = (webhooks(), Arc::new(AtomicUsize::new(0)));
    webhooks.subscribe().await;
    let delivering = webhooks.clone();
    let receiver = Reloading(webhooks.clone(), Arc::clone(&posted));
    let run = tokio::spawn(async move { delivering.deliver_with(receiver).await });
    // The reload and the end of the attempt are ready at once, and either may be taken first.
    for number in 0..20 {
        raise(&webhooks, &number.to_string()).await;
        sleep(POLL_INTERVAL * 3).await;
        assert_eq!(posted.load(Ordering::Relaxed), number + 1);
    }
    run.abort();
}
