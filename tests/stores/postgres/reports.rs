//! Reports are read on a connection of their own.

use std::time::Duration;

use super::{DISCONNECT, LOCK_WAITS, blocker};
use crate::fixture::*;
use crate::moment::until;

#[tokio::test]
async fn reports_are_read_while_another_session_has_the_ledgers_row() {
    let fixture = Fixture::on_postgres().await;
    let bought = fixture.buy(&keyed("k", "p"), "hello").await;
    let blocker = blocker(&fixture, "SELECT 1 FROM ledger FOR UPDATE").await;
    let purchase = reservation("ann", PRICE);
    let held = fixture.store.reserve(&purchase);
    let read = async {
        let database = fixture.database();
        until("the purchase waits", async || database.sql(LOCK_WAITS) == "1").await;
        let store = &fixture.store;
        assert_eq!(bounded(store.purchases_since(Duration::ZERO)).await.expect("read").len(), 1);
        assert_eq!(bounded(store.totals()).await.expect("read").unknown, 0);
        assert!(bounded(store.purchase(bought)).await.expect("read").is_some());
        assert!(bounded(store.instance_counts()).await.is_some());
        assert_eq!(database.sql(LOCK_WAITS), "1", "the purchase still waits");
        blocker.client.batch_execute("ROLLBACK").await.expect("unlocked");
    };
    let (held, ()) = tokio::join!(held, read);
    held.expect("held");
}

#[tokio::test]
async fn report_connection_that_the_database_ended_is_opened_again() {
    let fixture = Fixture::on_postgres().await;
    fixture.buy(&keyed("k", "p"), "hello").await;
    for _ in 0..2 {
        assert_eq!(fixture.rows().await.len(), 1);
        fixture.database().sql(DISCONNECT);
    }
    assert_eq!(fixture.rows().await.len(), 1);
    fixture.reserve(&reservation("ann", PRICE)).await.expect("held");
}
