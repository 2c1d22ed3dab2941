use super::*;
use crate::access::jwt::tests::issuer::{ED, P256, Told, document};

fn keys(told: &Told) -> Arc<KeyCache> {
    Arc::new(KeyCache::new(told.source()))
}

#[tokio::test(start_paused = true)]
async fn keys_are_asked_for_at_once_and_then_from_time_to_time() {
    let told = Told::new(&[P256.jwk()]);
    let keys = keys(&told);
    tokio::spawn(keys.run());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(told.asked(), 1);
    assert!(keys.current().is_some());
    // Each pause is up to a tenth shorter than ten minutes.
    tokio::time::sleep(Duration::from_secs(538)).await;
    assert_eq!(told.asked(), 1);
    tokio::time::sleep(Duration::from_secs(63)).await;
    assert_eq!(told.asked(), 2);
    tokio::time::sleep(Duration::from_secs(6_000)).await;
    assert!((11..=14).contains(&told.asked()), "{}", told.asked());
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_asked_about_every_half_minute() {
    let told = Told::new(&[P256.jwk()]);
    let keys = keys(&told);
    tokio::spawn(keys.run());
    tokio::time::sleep(Duration::from_secs(1)).await;
    told.says(None);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let before = told.asked();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!((9..=12).contains(&(told.asked() - before)), "{}", told.asked() - before);
    assert!(keys.current().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_operator_is_not_made_to_wait() {
    let told = Told::new(&[P256.jwk()]);
    let keys = keys(&told);
    tokio::spawn(keys.run());
    tokio::time::sleep(Duration::from_secs(1)).await;
    for asked in 2..5 {
        keys.refetch();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(told.asked(), asked);
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_told_within_seconds_when_nobody_asks() {
    let keys = keys(&Told::new(&[P256.jwk()]));
    let start = clock::now();
    assert!(keys.refetched(None).await.is_none(), "nobody keeps them");
    assert_eq!(start.elapsed(), MAX_WAIT);
}

#[tokio::test(start_paused = true)]
async fn the_same_document_is_not_read_twice() {
    let told = Told::new(&[P256.jwk()]);
    let keys = keys(&told);
    tokio::spawn(keys.run());
    let first = keys.refetched(None).await.expect("keys");
    tokio::time::sleep(Duration::from_secs(1_300)).await;
    assert!(told.asked() >= 3);
    assert!(Arc::ptr_eq(&first, &keys.current().expect("keys")));
    // A short while after it was asked, nobody waits.
    tokio::time::sleep(Duration::from_secs(31)).await;
    keys.refetched(Some(&first)).await.expect("keys");
    assert!(keys.refetched(Some(&first)).now_or_never().expect("at once").is_none());
}

#[tokio::test(start_paused = true)]
async fn keys_that_came_just_after_one_had_looked_are_the_newer_ones() {
    let told = Told::new(&[P256.jwk()]);
    let keys = keys(&told);
    assert!(keys.current().is_none(), "what a token finds that comes before them");
    tokio::spawn(keys.run());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let found = keys.refetched(None).now_or_never().expect("at once");
    let first = found.expect("those that came meanwhile");
    told.says(Some(document(&[P256.jwk(), ED.jwk()])));
    keys.refetch();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let found = keys.refetched(Some(&first)).now_or_never().expect("at once");
    let second = found.expect("those that came meanwhile");
    assert!(!Arc::ptr_eq(&first, &second));
    assert!(keys.refetched(Some(&second)).now_or_never().expect("at once").is_none());
    assert_eq!(told.asked(), 2);
}

#[test]
fn pauses_are_at_most_a_tenth_shorter() {
    for _ in 0..1_000 {
        let pause = with_jitter(Duration::from_secs(30));
        assert!((Duration::from_secs(27)..=Duration::from_secs(30)).contains(&pause), "{pause:?}");
    }
}
