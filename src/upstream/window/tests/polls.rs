//! What polls leave to purchases.

use super::*;

fn poll(job: usize) -> Attempt {
    let what = What::VideoStatus { request_id: format!("job-{job}").into() };
    let ask = Ask { caller: job.to_string().into(), ..Ask::free(what) };
    Attempt { ask, key: 0, since: clock::now() }
}

#[tokio::test(start_paused = true)]
async fn purchases_never_wait_behind_the_polls_of_fifty_jobs() {
    let (window, gateway) = (window(60, 60), Gateway::slow(SECOND / 10));
    let start = clock::now();
    let five_minutes = 300 * SECOND;
    let pollers = (0..50).map(|job| {
        let (window, gateway) = (Arc::clone(&window), gateway.clone());
        tokio::spawn(async move {
            while clock::now() - start < five_minutes {
                let _ = gateway.ask(&window, poll(job)).await;
                tokio::time::sleep(5 * SECOND).await;
            }
        })
    });
    let pollers: Vec<_> = pollers.collect();
    // The first minute is the polls' own; then a purchase comes every ten seconds.
    tokio::time::sleep(60 * SECOND).await;
    let mut bought = 0;
    while clock::now() - start < five_minutes {
        let asked = clock::now();
        gateway.ask(&window, chat("a buyer")).await.expect("there is room");
        assert!(clock::now() - asked < SECOND / 2, "it waited {:?}", clock::now() - asked);
        bought += 1;
        tokio::time::sleep(10 * SECOND).await;
    }
    for poller in pollers {
        poller.await.expect("it ends");
    }
    let polls = gateway.asked() - bought;
    assert!(bought >= 20 && polls >= 100, "{bought} purchases, {polls} polls");
}
