//! The database restarts, a connection is cut after its COMMIT, a network loses everything, a replica takes over.

use super::crashes::{HOLD, MARK_SENT, SELL, SETTLE, SLOT, after};
use super::relay::{Point, Verdict};
use super::trial::{Trial, each, wait_for_clock};
use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::{CHAT, Reply, Upstream, until};

#[test]
fn database_that_crashes_under_load_loses_and_doubles_nothing() {
    const RESTARTS: [usize; 2] = [1, 5];
    each(&RESTARTS, |restarts| {
        let cluster = Cluster::start("");
        let mut trial = Trial::start(&cluster);
        trial.under_load(|trial| {
            for _ in 0..restarts {
                cluster.restart();
                trial.wait_for_purchases(10);
            }
        });
        trial.finish();
        assert_eq!(trial.unknown(), "0", "servers that lived know all outcomes");
    });
}

#[test]
fn connection_cut_after_its_commit_buys_once() {
    const CUTS: [Point; 5] =
        [after(SELL), after(HOLD), after(SLOT), after(MARK_SENT), after(SETTLE)];
    each(&CUTS, |point| {
        let trial = Trial::start(Cluster::shared());
        assert_eq!(trial.callers.buy("before", 0).status, 200);
        let (mut client, relay) = trial.stop_at(point, "cut-off");
        relay.release(Verdict::Cut);
        let answer = client.answer();
        assert!(matches!(answer.status, 200 | 503), "{point:?}: {}", answer.text());
        let repeated = trial.callers.buy("cut-off", 0);
        assert_eq!((repeated.status, trial.charges("cut-off")), (200, 1), "{point:?}");
        trial.finish();
        assert_eq!(trial.unknown(), "0", "{point:?}");
    });
}

#[test]
fn server_that_reaches_nothing_sells_nothing_until_the_network_is_back() {
    // A server waits eight seconds for an answer. Others end what it has held after 35, and what it has sent
    // after 50.
    const SILENCES: [u64; 4] = [6, 12, 40, 60];
    let all = SILENCES.map(|seconds| [(seconds, Verdict::Pass), (seconds, Verdict::Cut)]);
    each(all.as_flattened(), |(seconds, verdict)| {
        let mut trial = Trial::start(Cluster::shared());
        trial.under_load(|trial| {
            trial.to_database[0].silence();
            wait_for_clock(&trial.fleet.database, seconds);
            trial.to_database[0].resume(verdict);
        });
        trial.finish();
    });
}

#[test]
fn synchronous_replica_that_takes_over_has_every_purchase() {
    let primary = Cluster::start("");
    let replica = primary.synchronous_replica();
    let mut trial = Trial::start(&primary);
    const SYNCHRONOUS: &str = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    until("commits wait for the replica", || trial.fleet.database.sql(SYNCHRONOUS) == "1");
    let name = trial.fleet.database.name.clone();
    trial.under_load(|trial| {
        primary.crash();
        replica.promote();
        trial.to_database.iter().for_each(|relay| relay.redirect(replica.address()));
    });
    trial.fleet.database = replica.adopt(&name);
    trial.finish();
    assert_eq!(trial.unknown(), "0", "servers that lived know all outcomes");
}

/// No commit is lost, so only the reconnect tells.
#[test]
fn replica_that_takes_over_without_a_loss_renames_the_ledger_before_the_next_sale() {
    let cluster = Cluster::start("");
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let limit = "gateway.rate_limit = { requests = 30, seconds = 2 }\n";
    let fleet = Fleet::start(&cluster, &upstream, limit, 2);
    let names = || {
        [0, 1].map(|server| {
            let catalog = fleet.ask(server, "GET", "/bff/catalog", &[], "");
            catalog.value("tollgate-ledger").expect("a name").to_owned()
        })
    };
    let [old, other] = names();
    assert_eq!(old, other);
    let buy = |server, key: &str, ledger: &str| {
        let headers = [("idempotency-key", key), ("tollgate-ledger", ledger)];
        fleet.ask(server, "POST", "/api/v1/chat", &headers, CHAT)
    };
    assert_eq!(buy(0, "before", &old).status, 200);
    cluster.crash();
    cluster.become_replica();
    cluster.recover();
    cluster.promote();
    for server in [0, 1] {
        let mut refused = None;
        until("the database is reached again", || {
            let answer = buy(server, "after", &old);
            let is_back = answer.status != 503;
            refused = is_back.then_some(answer);
            is_back
        });
        let refused = refused.expect("until then");
        assert_eq!((refused.status, &*refused.code()), (412, "ledger_changed"), "{server}");
    }
    let [renamed, other] = names();
    assert!(renamed == other && renamed != old, "{renamed}, {other}");
    assert_eq!(upstream.purchases(), 1);
    let renamings = || {
        let said = [0, 1].map(|server| fleet.servers[server].process.printed());
        said.iter().filter(|said| said.contains("ledger renamed")).count()
    };
    until("the first one to notice says so", || renamings() > 0);
    until("it sells again", || buy(0, "after", &renamed).status == 200);
    assert_eq!(renamings(), 1, "the other one finds the new name");
}
