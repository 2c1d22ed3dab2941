//! The connection to the shared ledger fails at the worst moments. Nothing is counted twice or lost.

use std::pin::pin;

use futures_util::FutureExt;
use tollgate::store::{AccountStatus, Reservation, ReserveError, Settlement, Store};

use super::timed::{RECONNECT, Timed};
use super::wire::{Course, Wire};
use crate::cluster::Cluster;
use crate::fixture::*;
use crate::moment::{moment, until};

/// A store behind a wire, and the fixture's own beside it.
struct Faulty {
    fixture: Timed,
    store: Store,
    wire: Wire,
}

impl Faulty {
    async fn new() -> Self {
        let fixture = Timed::new().await;
        let wire = Wire::to(Cluster::shared().address()).await;
        let store = fixture.join_at(&fixture.database().url_at(wire.address)).await;
        Self { fixture, store, wire }
    }

    fn state(&self, reservation: &Reservation) -> String {
        let ask = format!("SELECT state FROM purchases WHERE id = '{}'", reservation.id);
        self.fixture.database().sql(&ask)
    }

    async fn becomes(&self, reservation: &Reservation, expected: &str) {
        until(expected, async || {
            self.fixture.advance(RECONNECT).await;
            self.state(reservation) == expected
        })
        .await;
    }

    /// Buys as soon as the store reaches the database again.
    async fn recovers(&self) {
        until("it sells again", async || {
            self.fixture.advance(RECONNECT).await;
            self.store.reserve(&reservation("bob", PRICE)).await.is_ok()
        })
        .await;
    }
}

fn ann(key: &str) -> Reservation {
    Reservation { caller: "marked-ann".into(), ..keyed(key, "p") }
}

fn is_unavailable(held: &Result<impl Sized, ReserveError>) -> bool {
    matches!(held, Err(ReserveError::Unavailable(_)))
}

#[tokio::test(start_paused = true)]
async fn hold_with_a_lost_answer_is_released() {
    let faulty = Faulty::new().await;
    let lost = ann("k");
    faulty.wire.set(Course::CutAfterCommit("marked-ann"));
    assert!(is_unavailable(&bounded(faulty.store.reserve(&lost)).await));
    faulty.becomes(&lost, "released").await;
    assert_eq!(faulty.fixture.of("marked-ann").await.day.as_micros(), 0);
    bounded(faulty.store.reserve(&ann("k"))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn hold_without_a_commit_never_was() {
    let faulty = Faulty::new().await;
    let lost = ann("k");
    faulty.wire.set(Course::CutBeforeCommit("marked-ann"));
    assert!(is_unavailable(&bounded(faulty.store.reserve(&lost)).await));
    faulty.wire.is_cut().await;
    faulty.recovers().await;
    assert_eq!(faulty.state(&lost), "");
    bounded(faulty.store.reserve(&ann("k"))).await.unwrap();
    assert_eq!(faulty.fixture.of("marked-ann").await.day, PRICE);
}

#[tokio::test(start_paused = true)]
async fn settlement_with_a_lost_answer_counts_once() {
    let faulty = Faulty::new().await;
    let bought = ann("k");
    bounded(faulty.store.reserve(&bought)).await.unwrap();
    bounded(faulty.store.mark_sent(bought.id, AccountStatus::Confirmed)).await.unwrap();
    let cost = times(2);
    faulty.wire.set(Course::CutAfterCommit("marked-reply"));
    faulty.store.settle_later(bought.id, charged(cost, "marked-reply"));
    faulty.wire.is_cut().await;
    faulty.becomes(&bought, "charged").await;
    faulty.recovers().await;
    assert_eq!(faulty.fixture.of("marked-ann").await.day, cost);
    assert_eq!(faulty.fixture.replayed(&ann("k")).await, Some(reply("marked-reply")));
}

#[tokio::test(start_paused = true)]
async fn settlement_without_a_commit_is_made_again() {
    let faulty = Faulty::new().await;
    let bought = ann("k");
    bounded(faulty.store.reserve(&bought)).await.unwrap();
    bounded(faulty.store.mark_sent(bought.id, AccountStatus::Confirmed)).await.unwrap();
    faulty.wire.set(Course::CutBeforeCommit("marked-reply"));
    faulty.store.settle_later(bought.id, charged(PRICE, "marked-reply"));
    faulty.wire.is_cut().await;
    faulty.becomes(&bought, "charged").await;
    assert_eq!(faulty.fixture.of("marked-ann").await.day, PRICE);
}

#[tokio::test(start_paused = true)]
async fn deaf_database_sells_nothing_and_recovers_without_a_restart() {
    let faulty = Faulty::new().await;
    let sent = ann("sent");
    bounded(faulty.store.reserve(&sent)).await.unwrap();
    bounded(faulty.store.mark_sent(sent.id, AccountStatus::Confirmed)).await.unwrap();
    faulty.wire.set(Course::Deaf);
    let refused = ann("k");
    let mut refused = pin!(faulty.store.reserve(&refused));
    until("it waits for no longer", async || {
        faulty.fixture.advance(SECOND).await;
        refused.as_mut().now_or_never().is_some_and(|held| is_unavailable(&held))
    })
    .await;
    // What was sent is recorded when the database is back.
    faulty.store.settle_later(sent.id, Settlement::Unknown);
    assert!(bounded(faulty.store.ensure_usable()).await.is_err());
    faulty.wire.set(Course::Down);
    moment().await;
    faulty.wire.set(Course::Pass);
    faulty.becomes(&sent, "unknown").await;
    faulty.recovers().await;
    bounded(faulty.store.ensure_usable()).await.unwrap();
    assert_eq!(faulty.fixture.of("marked-ann").await.day, PRICE);
}
