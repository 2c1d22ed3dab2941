use super::*;
use crate::access::jwt::tests::issuer::{ED, FakeSource, P256, document};

fn keys(source: &FakeSource) -> Arc<KeyCache> {
    Arc::new(KeyCache::new(source.source()))
}

#[tokio::test(start_paused = true)]
async fn keys_are_fetched_at_once_and_then_periodically() {
    let source = FakeSource::new(&[P256.jwk()]);
    let keys = keys(&source);
    tokio::spawn(keys.run());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(source.fetches(), 1);
    assert!(keys.current().is_some());
    // Each pause is up to a tenth shorter than ten minutes.
    tokio::time::sleep(Duration::from_secs(538)).await;
    assert_eq!(source.fetches(), 1);
    tokio::time::sleep(Duration::from_secs(63)).await;
    assert_eq!(source.fetches(), 2);
    tokio::time::sleep(Duration::from_secs(6_000)).await;
    assert!((11..=14).contains(&source.fetches()), "{}", source.fetches());
}

#[tokio::test(start_paused = true)]
async fn outage_is_retried_every_thirty_seconds() {
    let source = FakeSource::new(&[P256.jwk()]);
    let keys = keys(&source);
    tokio::spawn(keys.run());
    tokio::time::sleep(Duration::from_secs(1)).await;
    source.serve(None);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let before = source.fetches();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!((9..=12).contains(&(source.fetches() - before)), "{}", source.fetches() - before);
    assert!(keys.current().is_some());
}

#[tokio::test(start_paused = true)]
async fn refetch_ignores_the_minimum_interval() {
    let source = FakeSource::new(&[P256.jwk()]);
    let keys = keys(&source);
    tokio::spawn(keys.run());
    tokio::time::sleep(Duration::from_secs(1)).await;
    for fetches in 2..5 {
        keys.refetch();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(source.fetches(), fetches);
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_for_keys_times_out_when_nothing_runs() {
    let keys = keys(&FakeSource::new(&[P256.jwk()]));
    let start = clock::now();
    assert!(keys.refetched(None).await.is_none(), "no task fetches them");
    assert_eq!(start.elapsed(), MAX_WAIT);
}

#[tokio::test(start_paused = true)]
async fn unchanged_document_is_not_parsed_again() {
    let source = FakeSource::new(&[P256.jwk()]);
    let keys = keys(&source);
    tokio::spawn(keys.run());
    let first = keys.refetched(None).await.expect("keys");
    tokio::time::sleep(Duration::from_secs(1_300)).await;
    assert!(source.fetches() >= 3);
    assert!(Arc::ptr_eq(&first, &keys.current().expect("keys")));
    // Shortly after a fetch, no token waits.
    tokio::time::sleep(Duration::from_secs(31)).await;
    keys.refetched(Some(&first)).await.expect("keys");
    assert!(keys.refetched(Some(&first)).now_or_never().expect("at once").is_none());
}

#[tokio::test(start_paused = true)]
async fn keys_fetched_in_the_meantime_count_as_newer() {
    let source = FakeSource::new(&[P256.jwk()]);
    let keys = keys(&source);
    assert!(keys.current().is_none(), "no keys before the first fetch");
    tokio::spawn(keys.run());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let found = keys.refetched(None).now_or_never().expect("at once");
    let first = found.expect("those that came meanwhile");
    source.serve(Some(document(&[P256.jwk(), ED.jwk()])));
    keys.refetch();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let found = keys.refetched(Some(&first)).now_or_never().expect("at once");
    let second = found.expect("those that came meanwhile");
    assert!(!Arc::ptr_eq(&first, &second));
    assert!(keys.refetched(Some(&second)).now_or_never().expect("at once").is_none());
    assert_eq!(source.fetches(), 2);
}

#[test]
fn jitter_shortens_a_pause_by_at_most_a_tenth() {
    for _ in 0..1_000 {
        let pause = with_jitter(Duration::from_secs(30));
        assert!((Duration::from_secs(27)..=Duration::from_secs(30)).contains(&pause), "{pause:?}");
    }
}
