//! A panic at any station is one answer that says what is known of the money, and nobody else notices.
//!
//! The store is asked at every station, so that is what breaks.

mod store;

use std::time::Duration;

use store::{Brittle, When};

use crate::support::client::Answer;
use crate::support::paused::{PausedGate, PausedUpstream};
use crate::support::{CHAT, Reply, VIDEO};

const SETTINGS: &str = "budget = { total = { day = \"50.00\" } }\n";

/// A gate on a store that the test breaks.
async fn gate() -> (Brittle, PausedUpstream, PausedGate) {
    let upstream = PausedUpstream::start(|received| match received.target.as_str() {
        "/api/v1/video" => Reply::video(&format!("job-{}", received.number)),
        "/api/v1/chat" => Reply::chat("hello"),
        _ => Reply::new(200, r#"{"status":"running"}"#),
    });
    let store = Brittle::default();
    let breaking = store.clone();
    let gate = PausedGate::on(&upstream, SETTINGS, move |inner| breaking.wrap(&inner)).await;
    (store, upstream, gate)
}

async fn buy(gate: &PausedGate, target: &str, key: &str, body: &str) -> Answer {
    gate.ask("POST", target, &[("Idempotency-Key", key)], body).await
}

#[tokio::test(start_paused = true)]
async fn panic_during_a_purchase_never_releases_or_repeats_it() {
    // What the gateway has received of it by then, and what is known of the charge.
    let (free, unknown) = ((500, "internal", "no"), (424, "outcome_unknown", "unknown"));
    for (verb, received, told) in [
        ("reserve", 0, free),
        ("take_slot", 0, free),
        // It is said before that it goes out: on the safe side.
        ("mark_sent", 0, unknown),
        ("settle", 1, unknown),
    ] {
        for when in [When::Before, When::After] {
            for (target, body) in [("/api/v1/chat", CHAT), ("/api/v1/video", VIDEO)] {
                let (store, upstream, gate) = gate().await;
                store.arm(verb, when);
                let broken = buy(&gate, target, "one", body).await;
                let at = format!("{verb}, {when:?}, {target}");
                assert!(!store.disarm(), "{at}: it was not asked");
                let (code, charged) = (broken.code(), broken.charged().unwrap_or_default());
                assert_eq!((broken.status, &*code, &*charged), told, "{at}");
                assert_eq!(upstream.purchases(), received, "{at}");
                assert!(!broken.text().contains("a test breaks"), "{at}: {}", broken.text());
                // The same key is answered, and buys at most what was not bought.
                let again = buy(&gate, target, "one", body).await;
                assert!(matches!(again.status, 200 | 409 | 424), "{at}: {}", again.text());
                assert!(upstream.purchases() <= 1, "{at}: bought twice");
                // Everybody else buys as before.
                let before = upstream.purchases();
                for key in ["two", "three"] {
                    assert_eq!(buy(&gate, "/api/v1/chat", key, CHAT).await.status, 200, "{at}");
                }
                assert_eq!(upstream.purchases(), before + 2, "{at}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn panic_during_a_read_is_a_free_500() {
    let (store, upstream, gate) = gate().await;
    assert_eq!(gate.video().await.status, 200);
    for (verb, target) in [
        ("current_spend", "/bff/me"),
        // Another question each time: the same one has the same answer for a moment.
        ("spend", "/bff/usage?since=DAYS"),
        ("jobs_of", "/bff/jobs"),
        ("find_job", "/bff/jobs?request_id=job-unknown"),
        ("find_job", "/api/v1/video/status?request_id=job-unknown"),
        ("find_job", "/bff/events?request_id=job-unknown"),
    ] {
        for (when, days) in [(When::Before, "1d"), (When::After, "2d")] {
            let target = &target.replace("DAYS", days);
            store.arm(verb, when);
            let answer = gate.get(target).await;
            assert!(!store.disarm(), "{target}: it was not asked");
            assert_eq!((answer.status, answer.code().as_str()), (500, "internal"), "{target}");
            assert_eq!(answer.charged().as_deref(), Some("no"), "{target}");
            assert!(answer.value("x-request-id").is_some() && !answer.text().contains("a test"));
            let sound = gate.get(target).await.status;
            assert!(matches!(sound, 200 | 404), "{target}: {sound}");
        }
    }
    assert_eq!(upstream.purchases(), 1);
}

#[tokio::test(start_paused = true)]
async fn panic_at_the_end_of_a_connection_loses_no_purchase() {
    let (store, upstream, gate) = gate().await;
    store.arm("mark_delivered", When::Before);
    // Without a key, its delivery is noted. Who does not get the answer asks again, and pays once.
    let lost = gate.send("POST", "/api/v1/chat", &[], CHAT).try_answer().await;
    assert!(!store.disarm(), "its delivery is noted");
    if lost.is_none() {
        assert_eq!(gate.post("/api/v1/chat", CHAT).await.status, 200);
    }
    assert_eq!(upstream.purchases(), 1);
    assert_eq!(gate.chat().await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn poller_restarts_after_a_panic() {
    for verb in ["job_durations", "update_job"] {
        let (store, upstream, gate) = gate().await;
        store.arm(verb, When::Before);
        assert_eq!(gate.video().await.status, 200);
        let polls = || upstream.requests() - upstream.purchases();
        let start = tollgate::clock::now();
        // Each is asked after the first poll.
        while polls() <= 1 {
            let asked = gate.get("/api/v1/video/status?request_id=job-0").await.status;
            assert!(matches!(asked, 200 | 502), "{asked}");
            gate.advance(Duration::from_millis(100)).await;
            let waited = tollgate::clock::now() - start;
            assert!(waited < Duration::from_secs(30), "{verb}: nobody asks for the job any more");
        }
        assert!(!store.disarm(), "{verb}: it was not asked");
        let asked = gate.get("/api/v1/video/status?request_id=job-0").await;
        assert_eq!(asked.status, 200, "{verb}");
    }
}
