//! What a server leaves behind is found by the next one.

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{AccountStatus, PurchaseState, ReserveError, Settlement};

use crate::fixture::*;

#[tokio::test]
async fn crash_releases_held_and_makes_sent_unknown() {
    let mut fixture = Fixture::on_disk(Default::default());
    fixture.reserve(&keyed("held", "p")).await.unwrap();
    fixture.send(&keyed("sent", "p")).await;
    fixture.buy(&keyed("charged", "p"), "hello").await;
    fixture.send(&fixture.duplicate("duplicate", START, false)).await;
    fixture.pass(HOUR);
    fixture.restart();

    let states = [
        PurchaseState::Released,
        PurchaseState::Unknown,
        PurchaseState::Charged,
        PurchaseState::Unknown,
    ];
    assert_eq!(fixture.states().await, states);
    assert_eq!(fixture.total().await.day, Usd::mills(18));
    assert_eq!(fixture.of("ann").await.month, Usd::mills(18));
    assert_eq!(fixture.known(&keyed("sent", "p")).await.state, PurchaseState::Unknown);
    assert_eq!(fixture.replayed(&keyed("charged", "p")).await, Some(reply("hello")));
    // Whoever was cut off by the crash comes back now, not when the purchase began.
    assert_eq!(
        fixture.known(&fixture.duplicate("duplicate", START + HOUR, false)).await.state,
        PurchaseState::Unknown
    );
    fixture.reserve(&keyed("held", "q")).await.unwrap();
}

#[tokio::test]
async fn last_handle_flushes_pending_writes() {
    let mut fixture = Fixture::on_disk(Default::default());
    let mut ids = Vec::new();
    for _ in 0..300 {
        ids.push(fixture.send(&reservation("ann", PRICE)).await);
    }
    for id in &ids {
        fixture.store.settle_later(*id, charged(PRICE, "hello"));
    }
    fixture.restart();
    assert!(fixture.states().await.iter().all(|state| *state == PurchaseState::Charged));
}

#[tokio::test]
async fn crash_ends_purchases_that_ran_while_a_thousand_others_ended() {
    let mut fixture = Fixture::on_disk(Default::default());
    let mut running = Vec::new();
    for key in ["first", "second"] {
        running.push(fixture.send(&keyed(key, "p")).await);
        for _ in 0..1_100 {
            let other = reservation("ann", PRICE);
            fixture.reserve(&other).await.expect("set aside");
            fixture.store.settle_later(other.id, Settlement::Released);
        }
        fixture.settle(running[0], charged(PRICE, "hello")).await;
    }
    fixture.restart();
    let rows = fixture.rows().await;
    let state = |id| rows.iter().find(|row| row.id == id).map(|row| row.state);
    let states = [PurchaseState::Charged, PurchaseState::Unknown].map(Some);
    assert_eq!([state(running[0]), state(running[1])], states);
    assert_eq!(rows.iter().filter(|row| row.ended_at.is_none()).count(), 0);
}

#[tokio::test]
async fn restart_does_not_settle_a_settled_purchase() {
    let mut fixture = Fixture::on_disk(Default::default());
    let id = fixture.send(&reservation("ann", PRICE)).await;
    fixture.settle(id, Settlement::Unknown).await;
    fixture.restart();
    fixture.settle(id, charged(Usd::mills(7), "late")).await;
    fixture.restart();
    assert_eq!(
        (fixture.states().await, fixture.total().await.day),
        (vec![PurchaseState::Charged], Usd::mills(7))
    );
}

#[tokio::test]
async fn latest_counted_day_survives_a_restart() {
    let mut fixture = Fixture::on_disk(Default::default());
    fixture.buy(&reservation("ann", PRICE), "").await;
    fixture.set(START - 2 * DAY);
    fixture.restart();
    assert_eq!(fixture.total().await.day, PRICE);
}

#[tokio::test]
async fn crash_makes_a_purchase_unknown_that_was_held_and_sent_in_one_step() {
    let mut fixture = Fixture::on_disk(Default::default());
    fixture.reserve_and_send(&keyed("a", "p"), AccountStatus::Confirmed).await.unwrap();
    let refused = fixture.reserve_and_send(&keyed("a", "p"), AccountStatus::Confirmed).await;
    assert!(matches!(refused, Err(ReserveError::Duplicate(_))), "{refused:?}");
    fixture.pass(HOUR);
    fixture.restart();
    assert_eq!(fixture.states().await, [PurchaseState::Unknown]);
    assert_eq!(fixture.total().await.day, PRICE);
    // Its slot counts from the start on; the refused one took none.
    let replies = bounded(fixture.store.recent_replies(DAY)).await.unwrap();
    assert_eq!(replies, [std::time::Duration::ZERO]);
}

#[tokio::test]
async fn purchase_aborted_after_its_record_is_free_and_may_be_bought() {
    let mut fixture = Fixture::on_disk(Default::default());
    let (purchase, slot) = (keyed("a", "p"), wanted(1));
    let sent = fixture.store.reserve_and_send(&purchase, slot, AccountStatus::Confirmed);
    bounded(sent).await.expect("held and sent");
    fixture.settle(purchase.id, Settlement::Released).await;
    fixture.store.release_slot(slot.id);
    fixture.restart();
    assert_eq!(fixture.states().await, [PurchaseState::Released]);
    assert_eq!(fixture.total().await.day, Usd::ZERO);
    assert_eq!(bounded(fixture.store.recent_replies(DAY)).await.unwrap(), [DAY; 0]);
    fixture.reserve(&keyed("a", "p")).await.expect("the key is free");
}
