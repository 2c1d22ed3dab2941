//! Concurrent callers share one request, and what its answer changes.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::StatusCode;
use tokio::sync::Notify;
use tower::service_fn;

use super::*;
use crate::gateway::Abort;
use crate::gateway::contract::money::Usd;
use crate::ledger::{self, AccountBinding, Budgets, DedupeKey, PurchaseId, Reservation};

fn listing(cents: u64, keys: &str) -> Bytes {
    format!(
        r#"{{"keys":[{keys}],"billing":{{"balanceCents":{cents},"rateLimit":{{"requests":7,"windowSeconds":60}},"usage":{{"chat":{{"count":0,"costCents":0}},"totalSpentCents":0}}}}}}"#
    )
    .into()
}

fn reply(body: Bytes) -> GatewayReply {
    GatewayReply { status: StatusCode::OK, is_json: true, body, key: 0, video: None }
}

fn summary<F, R>(gateway: F) -> BillingSummary
where
    F: Fn(GatewayRequest) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<GatewayReply, Error>> + Send + 'static,
{
    let store = Store::in_memory(Arc::new(clock::wall));
    let window = RateLimit::new(store.clone(), None, CancellationToken::new());
    let keys = [Key::new("svc_sk_ab12rest".to_owned())];
    BillingSummary::new(
        BillingClient::new(service_fn(gateway)),
        &keys,
        (store, AccountBinding::trusted()),
        window,
    )
}

/// A summary whose gateway returns `answer(n)` to request `n`, and the number of requests.
fn answering(
    answer: impl Fn(usize) -> Option<Bytes> + Clone + Send + Sync + 'static,
) -> (BillingSummary, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let summary = summary(move |_| {
        let answer = answer(counted.fetch_add(1, Ordering::SeqCst));
        async move {
            tokio::task::yield_now().await;
            answer.map(reply).ok_or(Error::ClosedBeforeSend)
        }
    });
    (summary, count)
}

impl BillingSummary {
    /// Makes the latest answer too old.
    fn forget(&self) {
        *lock(&self.0.last) = None;
    }

    /// The balance that purchases are checked against, in cents.
    async fn balance(&self) -> Option<u64> {
        self.0.ledger.remaining_credit().await.unwrap().map(|left| left.amount.as_micros() / 10_000)
    }

    /// The rate limit in effect, if the gateway reported one.
    fn limit(&self) -> Option<usize> {
        lock(&self.0.limit).map(|_| self.0.rate_limit.free_slots())
    }

    fn is_read(&self) -> Option<bool> {
        self.0.latest.borrow().is_readable
    }
}

/// The balance in cents, as an operator reads it.
async fn now(summary: &BillingSummary) -> i64 {
    summary.fetch_now().await.expect("a summary").listing.billing.balance_cents
}

#[tokio::test]
async fn two_hundred_callers_share_one_request() {
    let (summary, count) = answering(|_| Some(listing(4_210, "")));
    futures_util::future::join_all((0..200).map(|_| summary.refresh())).await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert_eq!(summary.balance().await, Some(4_210));
    assert!(!summary.is_stale());
    assert_eq!(summary.limit(), Some(7));
}

#[tokio::test]
async fn silent_gateway_is_not_asked_more_often_and_the_summary_is_stale() {
    let (summary, count) = answering(|nth| (nth == 0).then(|| listing(4_210, "")));
    summary.refresh().await;
    summary.forget();
    for _ in 0..10 {
        summary.refresh().await;
    }
    assert_eq!(count.load(Ordering::SeqCst), 2);
    assert!(summary.is_stale());
    assert_eq!((summary.balance().await, summary.limit()), (Some(4_210), Some(7)));
    assert!(summary.reading().is_some());
}

#[tokio::test(start_paused = true)]
async fn fault_of_the_gateway_passes_without_a_purchase() {
    let (summary, _) = answering(|nth| (nth > 0).then(|| listing(4_210, "")));
    summary.refresh().await;
    assert!(summary.fault().is_some());
    let polling = tokio::spawn(summary.run());
    sleep(MAX_AGE * 2).await;
    assert!(summary.fault().is_none());
    polling.abort();
}

#[tokio::test(start_paused = true)]
async fn refresh_does_not_wait_for_a_hanging_gateway() {
    let summary = summary(|_| std::future::pending());
    timeout(Duration::from_secs(2), summary.refresh()).await.expect("it is given up");
}

#[tokio::test(start_paused = true)]
async fn operator_request_does_not_wait_for_background_request() {
    let summary = summary(|request: GatewayRequest| async move {
        if request.is_patient {
            std::future::pending().await
        } else {
            sleep(3 * MAX_WAIT).await
        }
        Ok(reply(listing(7, "")))
    });
    // No other caller asks, so its own answer is waited for.
    let began = clock::now();
    now(&summary).await;
    assert_eq!(began.elapsed(), 3 * MAX_WAIT);
    tokio::spawn(summary.run());
    sleep(MAX_WAIT).await;
    let began = clock::now();
    let answer = timeout(100 * MAX_WAIT, now(&summary)).await;
    assert_eq!(answer.expect("an answer"), 7);
    assert_eq!(began.elapsed(), 4 * MAX_WAIT);
}

#[tokio::test(start_paused = true)]
async fn operator_request_during_another_gets_the_next_answer_two_seconds_later() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let summary = summary(move |_| {
        let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            sleep(Duration::from_millis(100)).await;
            Ok(reply(listing(number as u64, "")))
        }
    });
    let began = clock::now();
    let first = tokio::spawn({
        let summary = summary.clone();
        async move { now(&summary).await }
    });
    sleep(Duration::from_millis(50)).await;
    let late = (0..20).map(|_| now(&summary));
    assert_eq!(
        futures_util::future::join_all(late).await,
        [2; 20],
        "the request was sent after they came"
    );
    assert_eq!(first.await.unwrap(), 1);
    assert!(began.elapsed() >= MIN_FETCH_INTERVAL);
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn disconnected_operator_does_not_shorten_the_interval() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let summary = summary(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            sleep(Duration::from_millis(100)).await;
            Ok(reply(listing(1, "")))
        }
    });
    for _ in 0..50 {
        timeout(Duration::from_millis(10), summary.fetch_now()).await.unwrap_err();
    }
    assert_eq!(count.load(Ordering::SeqCst), 1, "in half a second");
    now(&summary).await;
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn same_limit_of_another_account_is_applied_again() {
    let (summary, _) = answering(|_| Some(listing(1, "")));
    now(&summary).await;
    assert_eq!(summary.limit(), Some(7));
    let gateway = lock(&summary.0.source).gateway.clone();
    summary.replace_gateway(BillingClient::new(gateway), &[], true);
    assert_eq!(summary.limit(), None);
    now(&summary).await;
    assert_eq!(summary.limit(), Some(7));
}

#[tokio::test(start_paused = true)]
async fn summary_is_refreshed_while_there_are_purchases_and_clones() {
    let (summary, count) = answering(|_| Some(listing(1, "")));
    let polling = tokio::spawn(summary.run());
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
    buy(&summary.0.ledger).await;
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(count.load(Ordering::SeqCst), 2);
    drop(summary);
    timeout(Duration::from_secs(3_600), polling).await.expect("it ends").unwrap();
}

#[tokio::test(start_paused = true)]
async fn revoked_key_is_logged_once() {
    let row = |name: &str, prefix: &str, revoked: bool| {
        let revoked = if revoked { r#""2025-01-01T00:00:00Z""# } else { "null" };
        format!(r#"{{"name":"{name}","keyPrefix":"{prefix}","revokedAt":{revoked}}}"#)
    };
    for (keys, logged) in [
        (vec![row("ours", "svc_sk_ab12", true)], &["svc_sk_ab12"][..]),
        (
            vec![row("ours", "svc_sk_ab12…", true), row("ours", "svc_sk_ab12", true)],
            &["svc_sk_ab12"],
        ),
        (vec![row("ours", "svc_sk_ab12", false), row("theirs", "svc_sk_cd34", true)], &[]),
        (vec![row("says nothing", "svc_sk_", true)], &[]),
        (vec![row("one of two", "svc_sk_ab", true), row("the other", "svc_sk_ab", false)], &[]),
    ] {
        let answer = listing(1, &keys.join(","));
        let (summary, _) = answering(move |_| Some(answer.clone()));
        now(&summary).await;
        now(&summary).await;
        let names = summary.0.revoked.lock().unwrap().iter().cloned().collect::<Vec<_>>();
        assert_eq!(names, logged);
    }
}

#[tokio::test(start_paused = true)]
async fn settings_change_sends_no_request_but_account_change_does() {
    let (summary, count) = answering(|_| Some(listing(1, "")));
    let polling = tokio::spawn(summary.run());
    sleep(Duration::from_secs(1)).await;
    let others = Arc::new(AtomicUsize::new(0));
    let other = {
        let others = Arc::clone(&others);
        service_fn(move |_: GatewayRequest| {
            others.fetch_add(1, Ordering::SeqCst);
            async { Ok(reply(listing(2, ""))) }
        })
    };
    let balance = || summary.reading().unwrap().listing.billing.balance_cents;
    for _ in 0..100 {
        summary.replace_gateway(BillingClient::new(other.clone()), &[], false);
        summary.refresh().await;
    }
    assert_eq!((others.load(Ordering::SeqCst), balance()), (0, 1));
    summary.replace_gateway(BillingClient::new(other), &[], true);
    sleep(Duration::from_secs(1)).await;
    assert_eq!((others.load(Ordering::SeqCst), balance()), (1, 2));
    summary.forget();
    summary.refresh().await;
    assert_eq!((count.load(Ordering::SeqCst), others.load(Ordering::SeqCst)), (1, 2));
    drop(summary);
    timeout(Duration::from_secs(600), polling).await.expect("there is one task").unwrap();
}

/// Replaces the gateway during the first request. Returns the summary, and the balance that the
/// request returned.
async fn replaced_while_fetching(is_another: bool) -> (BillingSummary, i64) {
    let answer = Arc::new(Notify::new());
    let answered = Arc::clone(&answer);
    let summary = summary(move |_| {
        let answered = Arc::clone(&answered);
        async move {
            answered.notified().await;
            Ok(reply(listing(1, "")))
        }
    });
    let replace = async {
        tokio::task::yield_now().await;
        let next = service_fn(|_: GatewayRequest| async { Ok(reply(listing(2, ""))) });
        summary.replace_gateway(BillingClient::new(next), &[], is_another);
        answer.notify_one();
    };
    let (balance, ()) = tokio::join!(now(&summary), replace);
    (summary, balance)
}

#[tokio::test]
async fn late_answer_of_former_gateway_has_no_effect() {
    let (summary, balance) = replaced_while_fetching(true).await;
    assert_eq!((balance, summary.balance().await, summary.is_read()), (2, Some(2), Some(true)));
    assert_eq!(summary.reading().unwrap().generation, 1);
}

#[tokio::test]
async fn late_answer_counts_if_only_other_settings_changed() {
    let (summary, balance) = replaced_while_fetching(false).await;
    assert_eq!((balance, summary.balance().await), (1, Some(1)));
    assert!(summary.reading().is_some());
}

#[tokio::test(start_paused = true)]
async fn request_that_was_not_sent_does_not_make_the_summary_stale() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    // The ledger is being opened, so no rate-limit slot can be recorded.
    let summary = summary(move |_| {
        let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first {
                return Err(Error::Aborted(Abort::Unrecorded));
            }
            Ok(reply(listing(7, "")))
        }
    });
    summary.refresh().await;
    assert!(summary.limit().is_none() && summary.is_stale());
    assert_eq!(summary.is_read(), None);
    assert!(summary.fault().is_none(), "the gateway was not asked");

    let polling = tokio::spawn(summary.run());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(summary.is_read(), Some(true), "the request is sent at once");
    assert_eq!(count.load(Ordering::SeqCst), 2);
    polling.abort();
}

#[tokio::test(start_paused = true)]
async fn new_gateway_is_asked_while_the_old_one_hangs() {
    let summary = summary(|_| std::future::pending());
    let polling = tokio::spawn(summary.run());
    sleep(Duration::from_secs(1)).await;
    let next = service_fn(|_: GatewayRequest| async { Ok(reply(listing(2, ""))) });
    summary.replace_gateway(BillingClient::new(next), &[], true);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(summary.is_read(), Some(true));
    polling.abort();
}

/// Something is sold against the balance.
async fn buy(ledger: &Store) {
    let key = [1; 32];
    let reservation = Reservation {
        id: PurchaseId::generate(),
        caller: "ann".into(),
        service: ledger::Service::Chat,
        model: "alpha".into(),
        price: Usd::mills(6),
        dedupe_key: DedupeKey::IdempotencyKey { key, payload: key },
        group: None,
        token: None,
        budgets: Budgets::default(),
        attempt: 0,
        replay_only: false,
        requires: Default::default(),
    };
    ledger.reserve(&reservation).await.unwrap();
}

#[tokio::test]
async fn credit_use_is_reported_once() {
    let ledger = Store::in_memory(Arc::new(clock::wall));
    assert!(!ledger.take_credit_used());
    buy(&ledger).await;
    assert!(ledger.take_credit_used());
    assert!(!ledger.take_credit_used());
}

#[test]
fn listed_prefix_is_the_longest_but_never_the_whole_key() {
    let row = |prefix: &str| ApiKey {
        id: None,
        name: "a key".to_owned(),
        key_prefix: prefix.to_owned(),
        created_at: None,
        last_used_at: None,
        revoked_at: None,
        usage_count: None,
    };
    let key = Key::new("svc_sk_abcdefgh".to_owned());
    for (listed, named) in [
        (&["svc_sk_abcd"][..], Some("svc_sk_abcd")),
        (&["svc_sk_abcd..."], Some("svc_sk_abcd")),
        (&["svc_sk_ab", "svc_sk_abc", "svc_sk_x"], Some("svc_sk_abc")),
        (&["svc_sk_abcdefgh"], None),
        (&["svc_sk_", "", "svc_sk_b", "svc_sk_abcdefghi"], None),
        (&[], None),
    ] {
        let listed: Vec<_> = listed.iter().map(|prefix| row(prefix)).collect();
        assert_eq!(listed_prefix(&key, &listed), named, "{listed:?}");
    }
}
