//! The slots that polls leave to purchases.

use super::*;

fn poll(job: usize) -> Attempt {
    let what =
        GatewayCall::VideoStatus { request_id: format!("job-{job}").into(), is_watched: true };
    let request =
        GatewayRequest { caller: job.to_string().into(), ..GatewayRequest::free(what).patient() };
    Attempt { request, key: 0, since: clock::now() }
}

#[tokio::test(start_paused = true)]
async fn purchases_never_wait_behind_the_polls_of_fifty_jobs() {
    let (rate_limit, gateway) = (rate_limit(60, 60), Gateway::slow(SECOND / 10));
    let start = clock::now();
    let five_minutes = 300 * SECOND;
    let pollers = (0..50).map(|job| {
        let (rate_limit, gateway) = (Arc::clone(&rate_limit), gateway.clone());
        tokio::spawn(async move {
            while clock::now() - start < five_minutes {
                let _ = gateway.request(&rate_limit, poll(job)).await;
                sleep(5 * SECOND).await;
            }
        })
    });
    let pollers: Vec<_> = pollers.collect();
    // The first minute is the polls' own; then a purchase comes every ten seconds.
    sleep(60 * SECOND).await;
    let mut bought = 0;
    while clock::now() - start < five_minutes {
        let asked = clock::now();
        gateway.request(&rate_limit, chat("a buyer")).await.expect("a slot is free");
        assert!(clock::now() - asked < SECOND / 2, "it waited {:?}", clock::now() - asked);
        bought += 1;
        sleep(10 * SECOND).await;
    }
    for poller in pollers {
        poller.await.expect("it ends");
    }
    let polls = gateway.request_count() - bought;
    assert!(bought >= 20 && polls >= 100, "{bought} purchases, {polls} polls");
}

#[tokio::test(start_paused = true)]
async fn poll_is_not_refused_however_long_it_waits() {
    let (rate_limit, gateway) = (rate_limit(1, 3_600), Gateway::slow(SECOND / 10));
    gateway.request(&rate_limit, chat("a buyer")).await.unwrap();
    let start = clock::now();
    gateway.request(&rate_limit, poll(1)).await.unwrap();
    assert!(clock::now() - start > 3_600 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn thousand_waiting_polls_are_sent_one_by_one_although_first_ones_leave() {
    let (rate_limit, gateway) = (rate_limit(1_000, 10), Gateway::slow(SECOND / 10));
    let start = clock::now();
    let polls = (0..1_000).map(|job| {
        let (rate_limit, gateway) = (Arc::clone(&rate_limit), gateway.clone());
        // Every third one gives up while it waits: also the one that looks at the clock.
        let max_wait = if job % 3 == 0 { SECOND / 100 } else { 60 * SECOND };
        tokio::spawn(async move {
            timeout(max_wait, gateway.request(&rate_limit, poll(job))).await.is_ok()
        })
    });
    let polls = futures_util::future::join_all(polls.collect::<Vec<_>>()).await;
    let done = polls.into_iter().filter(|done| *done.as_ref().unwrap()).count();
    assert!((666..=668).contains(&done), "{done}");
    assert!(clock::now() - start < 12 * SECOND, "{:?}", clock::now() - start);
    assert_eq!(rate_limit.waiting_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn clock_watcher_that_leaves_or_is_granted_is_replaced() {
    let (rate_limit, gateway) = (rate_limit(1, 60), Gateway::slow(SECOND / 10));
    gateway.request(&rate_limit, chat("a buyer")).await.unwrap();
    let start = clock::now();
    let leaving = timeout(SECOND, gateway.request(&rate_limit, poll(1)));
    let (leaving, second, third) = tokio::join!(
        leaving,
        gateway.request(&rate_limit, poll(2)),
        gateway.request(&rate_limit, poll(3))
    );
    leaving.expect_err("it watched the clock and left");
    assert!(second.is_ok() && third.is_ok());
    let waited = clock::now() - start;
    assert!((120 * SECOND..122 * SECOND).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn poll_with_429s_gives_up_after_max_wait() {
    let retry_after = Some(SECOND);
    let gateway = Gateway::new(move |_| Err(Error::Throttled { retry_after }));
    let rate_limit = rate_limit(60, 60);
    let start = clock::now();
    let outcome = gateway.request(&rate_limit, poll(1)).await;
    assert!(matches!(outcome, Err(Error::Throttled { .. })), "{outcome:?}");
    assert!(clock::now() - start <= MAX_WAIT, "{:?}", clock::now() - start);
    assert!((15..=21).contains(&gateway.request_count()), "{}", gateway.request_count());
}
