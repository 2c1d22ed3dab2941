//! Never more than the limit, wherever it comes from, and whatever is asked.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn rate_limit_of_five_a_second_holds_for_all_requests() {
    let upstream = upstream();
    let limit = "gateway.rate_limit = { requests = 5, seconds = 1 }\ngateway.max_wait = \"6s\"";
    let gate = gate(&upstream, limit).await;
    let mut jobs = Vec::new();
    for _ in 0..2 {
        jobs.push(gate.video().await.json()["request_id"].as_str().unwrap().to_owned());
    }
    let chats: Vec<_> =
        (0..34).map(|number| send(&gate, number % 4, &format!("chat {number}"))).collect();
    let poll = |number: usize| format!("/api/v1/video/status?request_id={}", jobs[number % 2]);
    let polls: Vec<_> = (0..6).map(|number| gate.send("GET", &poll(number), &[], "")).collect();
    let answers = answers(chats.into_iter().chain(polls)).await;
    answers.iter().for_each(assert_honest);
    let is_poll = |received: &crate::support::received::ReceivedRequest| received.method == "GET";
    assert!(upstream.received_requests().iter().any(is_poll), "polls are among them");
    upstream.assert_held(5, SECOND);
    assert!(served(&answers) >= 30, "{} are served", served(&answers));
    assert!(served(&answers) < answers.len(), "some wait in vain");
}

#[tokio::test(start_paused = true)]
async fn retry_after_a_429_takes_its_own_slot() {
    let upstream = PausedUpstream::start(|received| match received.number {
        0 => Reply::error(429).header("retry-after", "1"),
        _ => Reply::chat("hi"),
    });
    let settings = "gateway.rate_limit = { requests = 3, seconds = 60 }\ngateway.max_wait = \"5s\"";
    let gate = gate(&upstream, settings).await;
    assert_eq!((gate.chat().await.status, upstream.requests()), (200, 2));
    assert_eq!(gate.figure("rate_limit_free"), 1);
    assert_eq!((gate.chat().await.status, upstream.requests()), (200, 3));
    assert_eq!((gate.chat().await.status, upstream.requests()), (503, 3));
}

#[tokio::test(start_paused = true)]
async fn slow_reply_keeps_its_slot_for_a_window_after_it() {
    let slow = Duration::from_millis(600);
    let upstream = PausedUpstream::start(move |_| Reply::chat("hi").after(slow));
    let gate = gate(&upstream, "gateway.rate_limit = { requests = 2, seconds = 1 }").await;
    let calls: Vec<_> = (0..6).map(|caller| send(&gate, caller, "hi")).collect();
    assert_eq!(served(&answers(calls).await), 6);
    let arrivals = upstream.arrivals();
    let took = arrivals[5] - arrivals[0];
    let least = 2 * (SECOND + slow);
    assert!((least..least + SECOND).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn auto_rate_limit_follows_the_gateway() {
    let upstream = upstream();
    upstream.set_listing(books(7, 1));
    let gate = gate(&upstream, "gateway.rate_limit = \"auto\"").await;
    let calls: Vec<_> = (0..20).map(|caller| send(&gate, caller, "hi")).collect();
    assert_eq!(served(&answers(calls).await), 20);
    upstream.assert_held(7, SECOND);
    gate.advance(2 * SECOND).await;
    assert_eq!(gate.figure("rate_limit_free"), 7, "the window is empty again");
}

#[tokio::test(start_paused = true)]
async fn silent_billing_delays_purchases_five_seconds_at_most() {
    for (listing, seconds) in [(Reply::nothing(Ending::Hang), 5), (Reply::error(404), 0)] {
        let upstream = upstream();
        upstream.set_listing(listing);
        let start = tollgate::clock::now();
        let gate = gate(&upstream, "gateway.rate_limit = \"auto\"").await;
        assert_eq!(gate.chat().await.status, 200);
        let took = tollgate::clock::now() - start;
        assert_eq!(took.as_secs(), seconds, "{took:?}");
    }
}
