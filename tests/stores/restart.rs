//! What a server leaves behind is found by the next one.

use tollgate::contract::money::Usd;
use tollgate::store::{PurchaseState, Settlement};

use crate::fixture::*;

#[tokio::test]
async fn crash_releases_held_and_makes_sent_unknown() {
    let mut desk = Desk::on_disk(Default::default());
    desk.reserve(&keyed("held", "p")).await.unwrap();
    desk.send(&keyed("sent", "p")).await;
    desk.buy(&keyed("charged", "p"), "hello").await;
    desk.send(&desk.duplicate("duplicate", START, false)).await;
    desk.pass(HOUR);
    desk.restart();

    let states = [
        PurchaseState::Released,
        PurchaseState::Unknown,
        PurchaseState::Charged,
        PurchaseState::Unknown,
    ];
    assert_eq!(desk.states().await, states);
    assert_eq!(desk.total().await.day, Usd::mills(18));
    assert_eq!(desk.of("ann").await.month, Usd::mills(18));
    assert_eq!(desk.known(&keyed("sent", "p")).await.state, PurchaseState::Unknown);
    assert_eq!(desk.replayed(&keyed("charged", "p")).await, Some(reply("hello")));
    // Whoever was cut off by the crash comes back now, not when the purchase began.
    assert_eq!(
        desk.known(&desk.duplicate("duplicate", START + HOUR, false)).await.state,
        PurchaseState::Unknown
    );
    desk.reserve(&keyed("held", "q")).await.unwrap();
}

#[tokio::test]
async fn last_handle_flushes_pending_writes() {
    let mut desk = Desk::on_disk(Default::default());
    let mut ids = Vec::new();
    for _ in 0..300 {
        ids.push(desk.send(&asked("ann", PRICE)).await);
    }
    for id in &ids {
        desk.store.settle_later(*id, charged(PRICE, "hello"));
    }
    desk.restart();
    assert!(desk.states().await.iter().all(|state| *state == PurchaseState::Charged));
}

#[tokio::test]
async fn restart_does_not_settle_a_settled_purchase() {
    let mut desk = Desk::on_disk(Default::default());
    let id = desk.send(&asked("ann", PRICE)).await;
    desk.settle(id, Settlement::Unknown).await;
    desk.restart();
    desk.settle(id, charged(Usd::mills(7), "late")).await;
    desk.restart();
    assert_eq!(
        (desk.states().await, desk.total().await.day),
        (vec![PurchaseState::Charged], Usd::mills(7))
    );
}

#[tokio::test]
async fn latest_counted_day_survives_a_restart() {
    let mut desk = Desk::on_disk(Default::default());
    desk.buy(&asked("ann", PRICE), "").await;
    desk.set(START - 2 * DAY);
    desk.restart();
    assert_eq!(desk.total().await.day, PRICE);
}
