//! A purchase goes one way through its states, and reports tell it as it is.

use std::time::Duration;

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{AccountStatus, PurchaseId, PurchaseState, Settlement};

use crate::fixture::*;

on_every_backend!(
    purchase_ends_once_unless_unknown,
    nothing_is_sent_without_a_hold,
    unawaited_settlement_is_recorded,
    settling_an_unknown_id_changes_nothing,
    reports_begin_at_the_requested_time,
);

async fn purchase_ends_once_unless_unknown(fixture: Fixture) {
    let ends = || [charged(Usd::dollars(2), "x"), Settlement::Released, Settlement::Unknown];
    for (first, state, spent) in [
        (0, PurchaseState::Charged, 2),
        (1, PurchaseState::Released, 0),
        (2, PurchaseState::Unknown, 1),
    ] {
        for second in ends() {
            let before = fixture.total().await.day;
            let id = fixture.send(&reservation("ann", Usd::dollars(1))).await;
            fixture.settle(id, ends()[first].clone()).await;
            let counted = fixture.total().await.day.saturating_sub(before);
            assert_eq!(counted, Usd::dollars(spent));

            fixture.settle(id, second.clone()).await;
            let (state, spent) = match (state, &second) {
                (PurchaseState::Unknown, Settlement::Charged { .. }) => (PurchaseState::Charged, 2),
                (PurchaseState::Unknown, Settlement::Released) => (PurchaseState::Released, 0),
                _ => (state, spent),
            };
            assert_eq!(fixture.states().await.last(), Some(&state), "{first} {second:?}");
            let counted = fixture.total().await.day.saturating_sub(before);
            assert_eq!(counted, Usd::dollars(spent), "{first} {second:?}");
        }
    }
}

async fn nothing_is_sent_without_a_hold(fixture: Fixture) {
    assert!(
        fixture.store.mark_sent(PurchaseId::generate(), AccountStatus::Confirmed).await.is_err()
    );
    for ending in [charged(PRICE, "x"), Settlement::Released, Settlement::Unknown] {
        let id = fixture.send(&reservation("ann", PRICE)).await;
        fixture.store.mark_sent(id, AccountStatus::Confirmed).await.expect("marking twice is once");
        fixture.settle(id, ending).await;
        assert!(fixture.store.mark_sent(id, AccountStatus::Confirmed).await.is_err());
    }
}

async fn unawaited_settlement_is_recorded(fixture: Fixture) {
    let id = fixture.send(&reservation("ann", PRICE)).await;
    fixture.store.settle_later(id, Settlement::Unknown);
    fixture.total().await;
    assert_eq!(fixture.states().await, [PurchaseState::Unknown]);
}

async fn settling_an_unknown_id_changes_nothing(fixture: Fixture) {
    fixture.settle(PurchaseId::generate(), charged(PRICE, "x")).await;
    fixture.store.mark_delivered(PurchaseId::generate());
    assert_eq!((fixture.total().await.day, fixture.states().await), (Usd::ZERO, vec![]));
}

async fn reports_begin_at_the_requested_time(fixture: Fixture) {
    for _ in 0..3 {
        fixture.send(&reservation("ann", PRICE)).await;
        fixture.pass(HOUR);
    }
    let rows = fixture.store.purchases_since(START + HOUR).await.unwrap();
    let times: Vec<_> = rows.iter().map(|row| row.at).collect();
    assert_eq!(times, [START + HOUR, START + 2 * HOUR]);
    assert_eq!((rows[0].caller.as_str(), rows[0].model.as_str()), ("ann", "alpha"));
    assert_eq!(fixture.store.purchases_since(Duration::MAX).await.unwrap(), []);
}
