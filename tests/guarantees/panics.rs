//! A panic at any station is one answer that says what is known of the money, and nobody else notices.
//!
//! The store is asked at every station, so that is what breaks.

mod store;

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use store::When;

use crate::support::client::Answer;
use crate::support::{CHAT, Gate, Reply, Upstream, VIDEO, lock, until};

/// Short enough to wait for a repeat of what never ends.
const SETTINGS: &str = "gateway.max_wait = \"300ms\"\ngateway.chat_timeout = \"4s\"\n\
    gateway.video_timeout = \"4s\"\nbudget = { total = { day = \"50.00\" } }\n";

/// The store that breaks is one for all of this binary's threads.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn gate() -> (MutexGuard<'static, ()>, Upstream, Gate) {
    let alone = lock(&ONE_AT_A_TIME);
    let upstream = Upstream::start(|received| match received.target.as_str() {
        "/api/v1/video" => Reply::video(&format!("job-{}", received.number)),
        "/api/v1/chat" => Reply::chat("hello"),
        _ => Reply::new(200, r#"{"status":"running"}"#),
    });
    let gate = Gate::on(&upstream, SETTINGS, store::wrap);
    (alone, upstream, gate)
}

fn bought(upstream: &Upstream) -> usize {
    upstream.received_requests().iter().filter(|received| received.method == "POST").count()
}

fn buy(gate: &Gate, target: &str, key: &str, body: &str) -> Answer {
    gate.ask("POST", target, &[("Idempotency-Key", key)], body)
}

#[test]
fn panic_during_a_purchase_never_releases_or_repeats_it() {
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
                let (_alone, upstream, gate) = gate();
                store::arm(verb, when);
                let broken = buy(&gate, target, "one", body);
                let at = format!("{verb}, {when:?}, {target}");
                assert!(!store::disarm(), "{at}: it was not asked");
                let (code, charged) = (broken.code(), broken.charged().unwrap_or_default());
                assert_eq!((broken.status, &*code, &*charged), told, "{at}");
                assert_eq!(bought(&upstream), received, "{at}");
                assert!(!broken.text().contains("a test breaks"), "{at}: {}", broken.text());
                // The same key is answered, and buys at most what was not bought.
                let again = buy(&gate, target, "one", body);
                assert!(matches!(again.status, 200 | 409 | 424), "{at}: {}", again.text());
                assert!(bought(&upstream) <= 1, "{at}: bought twice");
                // Everybody else buys as before.
                let before = bought(&upstream);
                for key in ["two", "three"] {
                    assert_eq!(buy(&gate, "/api/v1/chat", key, CHAT).status, 200, "{at}");
                }
                assert_eq!(bought(&upstream), before + 2, "{at}");
            }
        }
    }
}

#[test]
fn panic_during_a_read_is_a_free_500() {
    let (_alone, upstream, gate) = gate();
    assert_eq!(gate.video().status, 200);
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
            store::arm(verb, when);
            let answer = gate.get(target);
            assert!(!store::disarm(), "{target}: it was not asked");
            assert_eq!((answer.status, answer.code().as_str()), (500, "internal"), "{target}");
            assert_eq!(answer.charged().as_deref(), Some("no"), "{target}");
            assert!(answer.value("x-request-id").is_some() && !answer.text().contains("a test"));
            let sound = gate.get(target).status;
            assert!(matches!(sound, 200 | 404), "{target}: {sound}");
        }
    }
    assert_eq!(bought(&upstream), 1);
}

#[test]
fn panic_at_the_end_of_a_connection_loses_no_purchase() {
    let (_alone, upstream, gate) = gate();
    store::arm("mark_delivered", When::Before);
    // Without a key, its delivery is noted. Who does not get the answer asks again, and pays once.
    let mut client = gate.client();
    client.send("POST", "/api/v1/chat", &[], CHAT);
    let lost = client.try_answer();
    until("its delivery is noted", store::has_struck);
    if lost.is_none() {
        assert_eq!(gate.post("/api/v1/chat", CHAT).status, 200);
    }
    assert_eq!(bought(&upstream), 1);
    assert_eq!(gate.chat().status, 200);
}

#[test]
fn poller_restarts_after_a_panic() {
    for verb in ["job_durations", "update_job"] {
        let (_alone, upstream, gate) = gate();
        store::arm(verb, When::Before);
        assert_eq!(gate.video().status, 200);
        let polls = || upstream.requests() - bought(&upstream);
        let mut looks = 0;
        // Each is asked after the first poll.
        while polls() <= 1 {
            let asked = gate.get("/api/v1/video/status?request_id=job-0").status;
            assert!(matches!(asked, 200 | 502), "{asked}");
            std::thread::sleep(Duration::from_millis(100));
            looks += 1;
            assert!(looks < 300, "{verb}: nobody asks for the job any more");
        }
        assert!(!store::disarm(), "{verb}: it was not asked");
        assert_eq!(gate.get("/api/v1/video/status?request_id=job-0").status, 200, "{verb}");
    }
}
