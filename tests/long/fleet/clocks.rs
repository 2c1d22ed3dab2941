//! Clocks of servers that differ by days: only the database's counts.

use super::trial::{SERVERS, Trial, wait_for_clock};
use crate::support::postgres::{Cluster, faketime};
use crate::support::process::Signal;

/// A server that was not seen for so many seconds is late.
const ALIVE: u64 = 30;
/// Purchases that a server's own clock has dated.
const MISDATED: &str = "SELECT count(*) FROM purchases
    WHERE abs(at / 1000000000 - extract(epoch FROM now())) > 3600
        OR day <> extract(epoch FROM now())::bigint / 86400";

#[test]
fn clocks_of_servers_do_not_matter() {
    let library = faketime();
    let skewed =
        |by| [("LD_PRELOAD", &*library), ("FAKETIME", by), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
    let (ahead, behind) = (skewed("+1d"), skewed("-1d"));
    let mut trial = Trial::start_with(Cluster::shared(), "", [&ahead, &behind, &[]]);
    trial.under_load(|trial| {
        for key in ["ahead", "behind", "right"] {
            let answers = [0, 1, 2].map(|server| trial.callers.buy(key, server));
            assert!(answers[1..].iter().all(|answer| answer.is_replay()), "{answers:?}");
            assert_eq!(trial.charges(key), 1);
        }
        // None is taken for late, also by a command on a machine whose clock is wrong.
        wait_for_clock(&trial.fleet.database, ALIVE + 5);
        for clock in [&ahead, &behind] {
            let listed = trial.fleet.run_with(&["store", "instances", "--format", "csv"], clock);
            assert_eq!(listed.stdout.matches(",alive").count(), SERVERS, "{listed:?}");
        }
    });
    assert_eq!(trial.fleet.database.sql(MISDATED), "0");
    let ahead = &trial.fleet.servers[0];
    ahead.process.signal(Signal::SIGTERM);
    trial.callers.replace(ahead.address, None);
    trial.finish();
}
