//! Guarantees of the ledger in PostgreSQL alone: lost connections, servers that die, and shared state.

mod commits;
mod connect;
mod copy;
mod deadlines;
mod jobs;
mod losses;
mod purchases;
mod queue;
mod reports;
mod servers;
mod slots;
mod wire;

use tollgate::ledger::postgres::{PostgresConnection, connect};
use tollgate::ledger::{Deadlines, Reservation, Store};

use self::wire::Wire;
use crate::cluster::Cluster;
use crate::fixture::*;

/// Counts the sessions that wait for another one's lock.
const LOCK_WAITS: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'";
/// Ends all connections of all servers.
const DISCONNECT: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'tollgate %'";

/// A purchase whose statements a wire finds by its caller.
fn ann(key: &str) -> Reservation {
    Reservation { caller: "marked-ann".into(), ..keyed(key, "p") }
}

/// Returns another server, behind a wire.
async fn behind_a_wire(fixture: &Fixture) -> (Wire, Store) {
    let wire = Wire::to(Cluster::shared().address()).await;
    let store = fixture.join_at(&fixture.database().url_at(wire.address)).await;
    (wire, store)
}

/// Returns a server whose purchases others end after these times.
async fn hasty(fixture: &Fixture) -> Store {
    let mut target = target(&fixture.database().url());
    target.deadlines = Deadlines { held: 10 * SECOND, sent: 20 * SECOND };
    Store::open_database(target, Some(fixture.clock())).await.expect("it opens")
}

/// Takes a lock until its transaction ends.
async fn blocker(fixture: &Fixture, lock: &str) -> PostgresConnection {
    let blocker = connect(&target(&fixture.database().url())).await.expect("it connects");
    let begin = "SET idle_in_transaction_session_timeout = 0; BEGIN;";
    blocker.client.batch_execute(&format!("{begin} {lock}")).await.expect("locked");
    blocker
}

fn state(fixture: &Fixture, purchase: &Reservation) -> String {
    let id = purchase.id.0.simple();
    fixture.database().sql(&format!("SELECT state FROM purchases WHERE id = '\\x{id}'"))
}
