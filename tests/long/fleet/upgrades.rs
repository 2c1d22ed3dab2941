//! Servers are replaced one by one while callers buy, also by versions that know other tables.
//!
//! `TOLLGATE_LAST` names the program of the last release. Its servers are then those that are replaced.

use std::path::{Path, PathBuf};

use super::trial::{SERVERS, Trial};
use crate::support::postgres::Cluster;
use crate::support::process::{PROGRAM, Signal};

/// What the next version may do to the tables: it only adds to them.
const NEWER: &str = "ALTER TABLE purchases ADD COLUMN later text;
    ALTER TABLE servers ADD COLUMN later bigint NOT NULL DEFAULT 0;
    CREATE TABLE later (one boolean); UPDATE ledger SET schema = schema + 1";

#[expect(clippy::disallowed_methods, reason = "the workflow names it")]
fn last_release() -> Option<PathBuf> {
    std::env::var_os("TOLLGATE_LAST").filter(|path| !path.is_empty()).map(PathBuf::from)
}

#[test]
fn rolling_upgrade_under_load_loses_nothing() {
    let cluster = Cluster::shared();
    let last = last_release();
    let mut trial = Trial::start_of(last.as_deref().unwrap_or(Path::new(PROGRAM)), cluster);
    trial.under_load(|trial| {
        // Programs of the old version go on while the new one has migrated.
        if last.is_none() {
            trial.fleet.database.sql(NEWER);
        }
        for old in 0..SERVERS {
            trial.add(cluster.address(), &[]);
            // The callers know the old ones first, and the new one last.
            let new = SERVERS;
            for (first, second) in [(0, new), (new, 0)] {
                let key = format!("upgrade-{old}-{first}");
                assert_eq!(trial.callers.buy(&key, first).status, 200);
                let again = trial.callers.buy(&key, second);
                assert!(again.is_replay() && again.status == 200, "{}", again.text());
                assert_eq!(trial.charges(&key), 1);
            }
            let server = &mut trial.fleet.servers[old];
            server.process.signal(Signal::SIGTERM);
            trial.callers.replace(server.address, None);
            assert_eq!(server.process.wait().code(), Some(0), "{}", server.process.printed());
            trial.wait_for_purchases(5);
        }
    });
    trial.finish();
    assert_eq!(trial.unknown(), "0");
    let ended = "SELECT count(*) FROM servers WHERE ended IS NOT NULL";
    assert_eq!(trial.fleet.database.sql(ended), SERVERS.to_string());
}
