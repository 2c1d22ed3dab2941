//! The connection to the database fails at the worst moments. Nothing is counted twice or lost.

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{Reservation, ReserveError, Settlement};

use super::wire::Course;
use super::{ann, behind_a_wire, state};
use crate::fixture::*;
use crate::moment::until;

#[tokio::test]
async fn hold_whose_commit_is_lost_counts_once() {
    let fixture = Fixture::on_postgres().await;
    for course in [Course::CutAfterCommit("marked-ann"), Course::CutBeforeCommit("marked-ann")] {
        let (wire, store) = behind_a_wire(&fixture).await;
        let bought = ann(&format!("{course:?}")[..10]);
        wire.set(course);
        bounded(store.reserve(&bought)).await.expect("held, whatever the connection does");
        assert_eq!(fixture.of("marked-ann").await.day, PRICE, "{course:?}");
        let again = Reservation { id: reservation("x", PRICE).id, ..bought.clone() };
        let known = bounded(store.reserve(&again)).await;
        assert!(matches!(known, Err(ReserveError::Duplicate(earlier)) if earlier.id == bought.id));
        bounded(store.settle(bought.id, Settlement::Released)).await.expect("settled");
        assert_eq!(fixture.of("marked-ann").await.day, Usd::ZERO);
    }
}

#[tokio::test]
async fn settlement_whose_commit_is_lost_counts_once() {
    let fixture = Fixture::on_postgres().await;
    for course in [Course::CutAfterCommit("marked-reply"), Course::CutBeforeCommit("marked-reply")]
    {
        let (wire, store) = behind_a_wire(&fixture).await;
        let bought = Reservation {
            caller: format!("{course:?}").into(),
            ..keyed(&format!("{course:?}")[..10], "p")
        };
        bounded(store.reserve(&bought)).await.expect("held");
        wire.set(course);
        store.settle_later(bought.id, charged(times(2), "marked-reply"));
        until("it is charged", async || state(&fixture, &bought) == "charged").await;
        assert_eq!(fixture.of(&bought.caller).await.day, times(2), "{course:?}");
        let again = Reservation { id: reservation("x", PRICE).id, ..bought };
        assert_eq!(fixture.replayed(&again).await, Some(reply("marked-reply")));
    }
}

#[tokio::test]
async fn outage_sells_nothing_and_ends_without_a_restart() {
    let fixture = Fixture::on_postgres().await;
    let (wire, store) = behind_a_wire(&fixture).await;
    let sent = ann("sent");
    fixture.send(&sent).await;
    wire.set(Course::Down);
    let refused = bounded(store.reserve(&ann("k"))).await;
    assert!(matches!(refused, Err(ReserveError::Unavailable(_))), "{refused:?}");
    assert!(bounded(store.ensure_usable()).await.is_err());
    // The end of what was sent is recorded when the database is back.
    store.settle_later(sent.id, Settlement::Unknown);
    wire.set(Course::Pass);
    until("it sells again", async || store.reserve(&reservation("bob", PRICE)).await.is_ok()).await;
    until("it is recorded", async || state(&fixture, &sent) == "unknown").await;
    assert_eq!(fixture.of("marked-ann").await.day, PRICE);
}

#[tokio::test]
async fn idle_server_finds_its_database_again() {
    let fixture = Fixture::on_postgres().await;
    let (wire, store) = behind_a_wire(&fixture).await;
    wire.set(Course::Down);
    assert!(bounded(store.reserve(&ann("k"))).await.is_err());
    wire.set(Course::Pass);
    // Nothing asks the ledger for anything but whether it is reached.
    until("it is reached", async || store.ensure_usable().await.is_ok()).await;
}

/// A server waits for eight seconds for an answer, and then for ten to connect again.
mod long {
    use tollgate::ledger::Store;

    use super::super::wire::Wire;
    use super::*;
    use crate::cluster::Cluster;

    #[tokio::test]
    async fn deaf_database_sells_nothing_and_recovers_without_a_restart() {
        let fixture = Fixture::on_postgres().await;
        let wire = Wire::to(Cluster::shared().address()).await;
        let target = target(&fixture.database().url_at(wire.address));
        let opened = Store::open_database(target, Some(fixture.clock())).await;
        let store = opened.expect("it opens");
        let sent = ann("sent");
        fixture.send(&sent).await;
        wire.set(Course::Deaf);
        let refused = bounded(store.reserve(&ann("k"))).await;
        assert!(matches!(refused, Err(ReserveError::Unavailable(_))), "{refused:?}");
        store.settle_later(sent.id, Settlement::Unknown);
        assert!(bounded(store.ensure_usable()).await.is_err());
        wire.set(Course::Down);
        wire.set(Course::Pass);
        until("it is recorded", async || state(&fixture, &sent) == "unknown").await;
        bounded(store.reserve(&ann("k"))).await.expect("nothing was bought");
        assert_eq!(fixture.of("marked-ann").await.day, times(2));
    }
}
