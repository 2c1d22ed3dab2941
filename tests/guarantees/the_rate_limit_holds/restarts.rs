//! A restart begins with the slots that the last process took, and with the limit that the gateway told it.

use super::*;
use crate::support::STORES;

const AUTO: &str = "gateway.rate_limit = \"auto\"";
const MINUTE: Duration = Duration::from_secs(60);

/// Answers each of so many callers, all at once.
async fn chats(gate: &PausedGate, count: usize) -> usize {
    let calls: Vec<_> = (0..count).map(|caller| send(gate, caller, "hi")).collect();
    served(&answers(calls).await)
}

#[tokio::test(start_paused = true)]
async fn rate_limit_survives_a_restart() {
    for store in STORES {
        let upstream = upstream();
        let limit = "gateway.rate_limit = { requests = 3, seconds = 60 }";
        let settings = format!("{store}\n{limit}\ngateway.max_wait = \"2m\"");
        let mut gate = gate(&upstream, &settings).await;
        assert_eq!(chats(&gate, 3).await, 3);
        gate.advance(MINUTE / 2).await;
        gate.restart().await;
        assert_eq!(gate.figure("rate_limit_free"), 0);
        assert_eq!(gate.chat().await.status, 200);
        upstream.assert_held(3, MINUTE);
        let arrivals = upstream.arrivals();
        let took = arrivals[3] - arrivals[0];
        assert!(took < MINUTE + Duration::from_secs(2), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn small_rate_limit_holds_after_a_restart_with_silent_billing() {
    for store in STORES {
        let upstream = upstream();
        upstream.set_listing(books(5, 60));
        let settings = format!("{store}\n{AUTO}\ngateway.max_wait = \"7s\"");
        let mut gate = gate(&upstream, &settings).await;
        gate.settle().await;
        assert_eq!(gate.figure("rate_limit_free"), 4, "the limit is known");
        assert_eq!(chats(&gate, 8).await, 4);
        // It is asked, and does not answer; an assumed limit would hold in five seconds.
        upstream.set_listing(Reply::nothing(Ending::Hang));
        gate.restart().await;
        assert_eq!(chats(&gate, 20).await, 0);
        upstream.assert_held(5, MINUTE);
    }
}

#[tokio::test(start_paused = true)]
async fn large_account_is_served_right_after_a_restart_under_load() {
    for store in STORES {
        let upstream = upstream();
        upstream.set_listing(books(1_000, 60));
        let mut gate = gate(&upstream, &format!("{store}\n{AUTO}")).await;
        gate.settle().await;
        assert!(gate.figure("rate_limit_free") > 900, "the limit is known");
        assert_eq!(chats(&gate, 120).await, 120);
        upstream.set_listing(Reply::nothing(Ending::Hang));
        gate.restart().await;
        let start = tollgate::clock::now();
        assert_eq!(gate.chat().await.status, 200);
        let took = tollgate::clock::now() - start;
        assert!(took < Duration::from_secs(4), "{took:?}");
        upstream.assert_held(1_000, MINUTE);
    }
}
