//! A failover or a restore has lost commits: the ledger gets another name, once, and buys nothing that it may
//! have bought already.

use std::sync::Arc;
use std::time::Duration;

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    AccountLimit, BudgetScope, Precondition, Reservation, ReserveError, Settlement, Store,
};

use super::wire::Course;
use super::{DISCONNECT, ann, behind_a_wire};
use crate::fixture::*;
use crate::moment::until;

/// Counts the renames; names sort by their time.
const COUNT_RENAMES: &str = "CREATE SEQUENCE renames;
    CREATE FUNCTION count_rename() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM nextval('renames'); RETURN NEW; END $$;
    CREATE TRIGGER count_rename BEFORE UPDATE ON ledger FOR EACH ROW
        WHEN (NEW.name > OLD.name) EXECUTE FUNCTION count_rename()";

fn of_ledger(name: Arc<str>) -> Reservation {
    let requires = Precondition { name: Some(name), ..Precondition::default() };
    Reservation { requires, ..ann("k") }
}

/// Asserts that a purchase that names an earlier ledger is refused.
async fn refuses(store: &Store, name: &Arc<str>) {
    for replay_only in [false, true] {
        let purchase = Reservation { replay_only, ..of_ledger(Arc::clone(name)) };
        let refused = bounded(store.reserve(&purchase)).await;
        assert!(matches!(refused, Err(ReserveError::LedgerChanged)), "{refused:?}");
    }
    assert_ne!(&store.name(), name);
}

/// The ledger's row at some time.
struct Snapshot(String);

impl Snapshot {
    fn of(fixture: &Fixture) -> Self {
        let row = "SELECT format('version = %s, batch = %L, name = %L', version, batch, name)
            FROM ledger";
        Self(fixture.database().sql(row))
    }

    /// Forgets all later commits, as a failover to a replica that lags behind does.
    fn restore(&self, fixture: &Fixture) {
        let restore = format!(
            "UPDATE ledger SET {}; DELETE FROM batches WHERE id > (SELECT batch FROM ledger)",
            self.0
        );
        fixture.database().sql(&restore);
    }
}

fn renames(fixture: &Fixture) -> String {
    let count = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM renames";
    fixture.database().sql(count)
}

#[tokio::test]
async fn purchase_that_has_waited_for_a_lost_one_is_refused() {
    let fixture = Fixture::on_postgres().await;
    let after = |earlier| {
        let requires = Precondition { earlier: Some(earlier), ..Precondition::default() };
        Reservation { requires, ..keyed("k", "p") }
    };
    let lost = fixture.reserve(&after(reservation("x", PRICE).id)).await;
    assert!(matches!(lost, Err(ReserveError::LedgerChanged)), "{lost:?}");
    let earlier = fixture.send(&keyed("k", "p")).await;
    let known = fixture.reserve(&after(earlier)).await;
    assert!(matches!(known, Err(ReserveError::Duplicate(_))), "{known:?}");
    fixture.settle(earlier, Settlement::Released).await;
    fixture.reserve(&after(earlier)).await.expect("it was not bought");
}

#[tokio::test]
async fn purchase_of_a_ledger_that_another_server_renamed_is_refused() {
    let fixture = Fixture::on_postgres().await;
    let old = fixture.store.name();
    fixture.database().sql("UPDATE ledger SET name = 'durable-next'");
    refuses(&fixture.store, &old).await;
    // Callers are told the new name at once.
    assert_eq!(&*fixture.store.name(), "durable-next");
    assert_eq!((fixture.rows().await.len(), fixture.total().await.day), (0, Usd::ZERO));
    fixture.reserve(&of_ledger(fixture.store.name())).await.expect("it names this ledger");
}

#[tokio::test]
async fn ledger_that_lost_commits_is_renamed_once_by_its_own_time() {
    let fixture = Fixture::on_postgres().await;
    fixture.database().sql(COUNT_RENAMES);
    let others = [fixture.join().await, fixture.join().await];
    let stores = [&fixture.store, &others[0], &others[1]];
    let old = fixture.store.name();
    let before = Snapshot::of(&fixture);
    for _ in 0..3 {
        fixture.reserve(&reservation("bob", PRICE)).await.expect("held");
    }
    for store in stores {
        bounded(store.current_spend(BudgetScope::Total)).await.expect("read");
        assert_eq!(store.name(), old);
    }
    before.restore(&fixture);
    for store in stores {
        refuses(store, &old).await;
        assert_eq!(store.name(), fixture.store.name());
    }
    assert_eq!(renames(&fixture), "1");
    assert_eq!(fixture.store.shared_metrics().expect("a shared ledger").rewinds.get(), 1);
    let complete_at = fixture.now() - Duration::from_nanos(1);
    assert!(others[0].may_lack_purchases_since(complete_at));
    assert!(!others[0].may_lack_purchases_since(fixture.now()), "{}", fixture.store.name());
    let named = of_ledger(fixture.store.name());
    bounded(others[1].reserve(&named)).await.expect("it names this ledger");
    fixture.reserve(&reservation("bob", PRICE)).await.expect("held");
    assert_eq!(renames(&fixture), "1");
}

#[tokio::test]
async fn loss_that_also_forgets_a_rename_renames_the_ledger_again() {
    let fixture = Fixture::on_postgres().await;
    fixture.database().sql(COUNT_RENAMES);
    let other = fixture.join().await;
    let mut known = fixture.store.name();
    let before = Snapshot::of(&fixture);
    for count in ["1", "2", "3"] {
        fixture.reserve(&reservation("bob", PRICE)).await.expect("held");
        bounded(other.current_spend(BudgetScope::Total)).await.expect("read");
        fixture.pass(SECOND);
        before.restore(&fixture);
        for store in [&other, &fixture.store] {
            refuses(store, &known).await;
        }
        assert_eq!(fixture.store.name(), other.name());
        assert_eq!(renames(&fixture), count);
        known = other.name();
    }
}

#[tokio::test]
async fn idle_server_notices_lost_commits() {
    let fixture = Fixture::on_postgres().await;
    let (wire, store) = behind_a_wire(&fixture).await;
    let old = store.name();
    let before = Snapshot::of(&fixture);
    bounded(store.reserve(&reservation("bob", PRICE))).await.expect("held");
    wire.set(Course::Down);
    bounded(store.reserve(&reservation("bob", PRICE))).await.expect_err("it is down");
    before.restore(&fixture);
    wire.set(Course::Pass);
    // Nothing is asked of it.
    until("it has renamed the ledger", async || store.name() != old).await;
    refuses(&fixture.store, &old).await;
    assert_eq!(fixture.store.name(), store.name());
}

#[tokio::test]
async fn ledger_that_cannot_be_renamed_sells_nothing_until_it_can() {
    let fixture = Fixture::on_postgres().await;
    let old = fixture.store.name();
    let before = Snapshot::of(&fixture);
    fixture.reserve(&reservation("bob", PRICE)).await.expect("held");
    before.restore(&fixture);
    fixture.database().sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'not now'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE OF name ON ledger
            FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    for _ in 0..2 {
        let refused = fixture.reserve(&ann("k")).await;
        assert!(matches!(refused, Err(ReserveError::Unavailable(_))), "{refused:?}");
    }
    assert_eq!(fixture.store.name(), old);
    fixture.database().sql("DROP TRIGGER refuse ON ledger");
    refuses(&fixture.store, &old).await;
}

/// Slots may be missing, and the longest known period is over when they would be free.
#[tokio::test]
async fn rename_blocks_slots_for_the_configured_or_reported_period() {
    for (fixed, reported, blocked) in
        [(Some(10), None, 10), (Some(10), Some(30), 30), (None, Some(30), 30), (None, None, 60)]
    {
        let fixture = Fixture::on_postgres().await;
        let mut target = target(&fixture.database().url());
        target.rate_period = fixed.map(Duration::from_secs);
        let store = Store::open_database(target, Some(fixture.clock())).await.expect("it opens");
        if let Some(window_seconds) = reported {
            store.record_rate_limit(AccountLimit { requests: 5, window_seconds });
        }
        let old = store.name();
        let before = Snapshot::of(&fixture);
        bounded(store.reserve(&reservation("bob", PRICE))).await.expect("held");
        before.restore(&fixture);
        refuses(&store, &old).await;
        let until = fixture.database().sql("SELECT blocked_until FROM ledger");
        let expected = fixture.now() + Duration::from_secs(blocked);
        assert_eq!(until, expected.as_nanos().to_string(), "{fixed:?} {reported:?}");
    }
}

/// A replica that takes over has another timeline, and may lack commits.
#[tokio::test]
async fn other_database_cluster_renames_the_ledger_once() {
    const TAKE_OVER: &str = "UPDATE ledger SET cluster = 'another'";
    let fixture = Fixture::on_postgres().await;
    fixture.database().sql(COUNT_RENAMES);
    let others = [fixture.join().await, fixture.join().await];
    let stores = [&fixture.store, &others[0], &others[1]];
    for (count, loses) in [("1", false), ("2", true)] {
        let old = fixture.store.name();
        let before = Snapshot::of(&fixture);
        fixture.reserve(&reservation("bob", PRICE)).await.expect("held");
        for store in stores {
            bounded(store.current_spend(BudgetScope::Total)).await.expect("read");
        }
        fixture.pass(SECOND);
        if loses {
            before.restore(&fixture);
        }
        fixture.database().sql(&format!("{TAKE_OVER}; {DISCONNECT}"));
        for store in stores {
            refuses(store, &old).await;
            assert_eq!(store.name(), fixture.store.name());
        }
        assert_eq!(renames(&fixture), count, "{loses}");
    }
}
