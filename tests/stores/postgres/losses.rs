//! A failover has lost commits: the ledger gets another name, once, and buys nothing that it may have
//! bought already.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tollgate::contract::money::Usd;
use tollgate::store::{Precondition, PurchaseId, Reservation, ReserveError, Settlement};

use super::timed::{BEAT, Timed};
use super::wire::{Course, Wire};
use crate::cluster::Cluster;
use crate::fixture::*;

/// Renames the ledger, as another instance does after it has noticed a loss.
const RENAME: &str = "UPDATE store SET name = 'durable-next'";

fn of_ledger(name: Arc<str>) -> Reservation {
    let requires = Precondition { name: Some(name), ..Precondition::default() };
    Reservation { requires, ..keyed("k", "p") }
}

#[tokio::test(start_paused = true)]
async fn purchase_of_a_ledger_that_was_renamed_meanwhile_is_refused() {
    let fixture = Timed::new().await;
    let wire = Wire::to(Cluster::shared().address()).await;
    let store = fixture.join_at(&fixture.database().url_at(wire.address)).await;
    let old = store.name();
    wire.set(Course::Hold("marked-ann"));
    let first = Reservation { caller: "marked-ann".into(), ..of_ledger(Arc::clone(&old)) };
    let mut first = pin!(store.reserve(&first));
    assert!(first.as_mut().now_or_never().is_none());
    bounded(wire.is_holding()).await;
    let queued = of_ledger(Arc::clone(&old));
    let mut queued = pin!(store.reserve(&queued));
    // Its first poll puts it into the queue, behind what the wire keeps back.
    assert!(queued.as_mut().now_or_never().is_none());
    fixture.database().sql(RENAME);
    wire.set(Course::Pass);
    for refused in [bounded(first).await, bounded(queued).await] {
        assert!(matches!(refused, Err(ReserveError::LedgerChanged)), "{refused:?}");
    }
    // Callers are told the new name at once.
    assert_eq!(&*store.name(), "durable-next");
    assert_eq!((fixture.rows().await.len(), fixture.total().await.day), (0, Usd::ZERO));
    let only = Reservation { replay_only: true, ..of_ledger(old) };
    let refused = bounded(store.reserve(&only)).await;
    assert!(matches!(refused, Err(ReserveError::LedgerChanged)), "{refused:?}");
    bounded(store.reserve(&of_ledger(store.name()))).await.expect("it names this ledger");
}

#[tokio::test]
async fn purchase_that_has_waited_for_a_lost_one_is_refused() {
    let fixture = Fixture::on_postgres().await;
    let after = |earlier| {
        let requires = Precondition { earlier: Some(earlier), ..Precondition::default() };
        Reservation { requires, ..keyed("k", "p") }
    };
    let lost = fixture.reserve(&after(PurchaseId::generate())).await;
    assert!(matches!(lost, Err(ReserveError::LedgerChanged)), "{lost:?}");
    let earlier = fixture.send(&keyed("k", "p")).await;
    let known = fixture.reserve(&after(earlier)).await;
    assert!(matches!(known, Err(ReserveError::Duplicate(_))), "{known:?}");
    fixture.settle(earlier, Settlement::Released).await;
    fixture.reserve(&after(earlier)).await.expect("it was not bought");
}

#[tokio::test(start_paused = true)]
async fn lost_commits_rename_the_ledger_at_every_instance() {
    let fixture = Timed::new().await;
    let other = fixture.join().await;
    let stores = [&fixture.store, &other];
    let old = fixture.store.name();
    assert_eq!(other.name(), old);
    fixture.pass(2 * BEAT, &stores).await;
    assert_eq!(fixture.store.name(), old);
    // As after a failover to a replica that lags behind.
    fixture.database().sql("UPDATE instances SET beat = 0");
    fixture.pass(2 * BEAT, &stores).await;
    assert_ne!(fixture.store.name(), old);
    assert_eq!(fixture.store.name(), other.name());
    assert!(stores.iter().all(|store| store.may_lack_purchases_since(Duration::ZERO)));
}

#[tokio::test(start_paused = true)]
async fn ledger_is_renamed_by_the_ledgers_time_as_soon_as_it_can_be() {
    let fixture = Timed::new().await;
    let (database, servers) = (fixture.database(), [&fixture.store]);
    let old = fixture.store.name();
    fixture.pass(2 * BEAT, &servers).await;
    database.sql(
        "CREATE SEQUENCE attempts;
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM nextval('attempts'); RAISE 'not now'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE OF name ON store
            FOR EACH ROW EXECUTE FUNCTION refuse();
        UPDATE instances SET beat = 0",
    );
    fixture.pass(BEAT, &servers).await;
    assert_eq!(database.sql("SELECT is_called FROM attempts"), "t");
    database.sql("DROP TRIGGER refuse ON store");
    fixture.pass(BEAT, &servers).await;
    assert_ne!(fixture.store.name(), old);
    let complete_at = fixture.now() - Duration::from_nanos(1);
    assert!(fixture.store.may_lack_purchases_since(complete_at));
    assert!(!fixture.store.may_lack_purchases_since(fixture.now()), "{}", fixture.store.name());
}

/// Whichever of its connections and heartbeats notice a loss first.
#[tokio::test(start_paused = true)]
async fn loss_that_all_instances_notice_renames_the_ledger_once() {
    const COUNT: &str = "CREATE SEQUENCE renames;
        CREATE FUNCTION count_rename() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM nextval('renames'); RETURN NEW; END $$;
        CREATE TRIGGER count_rename BEFORE UPDATE ON store FOR EACH ROW
            WHEN (OLD.name <> NEW.name) EXECUTE FUNCTION count_rename()";
    const LOSE_BEATS: &str = "UPDATE instances SET beat = 0";
    const TAKE_OVER: &str = "UPDATE store SET cluster = 'another';
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'tollgate %'";
    let fixture = Timed::new().await;
    let others = [fixture.join().await, fixture.join().await];
    let stores = [&fixture.store, &others[0], &others[1]];
    let database = fixture.database();
    let least = || database.sql("SELECT min(beat) FROM instances").parse::<i64>().unwrap();
    database.sql(COUNT);
    let renames =
        || database.sql("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM renames");
    for (number, takes_over) in [(1, false), (2, true)] {
        fixture.pass_until("heartbeats", &stores, || least() >= 3).await;
        let old = fixture.store.name();
        // Both at once: a connection that is cut beats no more.
        let both = format!("{LOSE_BEATS}; {TAKE_OVER}");
        database.sql(if takes_over { &both } else { LOSE_BEATS });
        fixture.pass_until("heartbeats after the loss", &stores, || least() >= 3).await;
        assert_ne!(fixture.store.name(), old);
        assert_eq!(renames(), number.to_string(), "{takes_over}");
    }
}
