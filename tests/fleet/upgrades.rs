//! Servers are replaced one by one while callers buy, also by versions that know other tables.

use super::trial::{SERVERS, Trial};
use crate::support::postgres::Cluster;
use crate::support::process::Signal;

/// There is one version of the tables so far. Newer ones only add to it, as this one does.
const NEWER: &str = "ALTER TABLE purchases ADD COLUMN later text;
    ALTER TABLE instances ADD COLUMN later bigint NOT NULL DEFAULT 0;
    CREATE TABLE later (one boolean); UPDATE store SET version = version + 1";

#[test]
fn rolling_upgrade_under_load_loses_nothing() {
    let cluster = Cluster::shared();
    let mut trial = Trial::start(cluster);
    trial.under_load(|trial| {
        // Programs of the old version go on while the new one has migrated.
        trial.fleet.database.sql(NEWER);
        for old in 0..SERVERS {
            trial.add(cluster.address(), &[]);
            let server = &mut trial.fleet.servers[old];
            server.process.signal(Signal::SIGTERM);
            trial.callers.replace(server.address, None);
            assert_eq!(server.process.wait().code(), Some(0), "{}", server.process.printed());
            trial.wait_for_purchases(5);
        }
    });
    trial.finish();
    assert_eq!(trial.unknown(), "0");
    let ended = "SELECT count(*) FROM instances WHERE ended IS NOT NULL";
    assert_eq!(trial.fleet.database.sql(ended), SERVERS.to_string());
}
