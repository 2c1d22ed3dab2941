//! A restored dump of the shared ledger, and what was sold after it.

use crate::commands::fixture::{Ended, Fixture, Server, post};
use crate::support::postgres::{Cluster, Database};
use crate::support::process::Signal;
use crate::support::until;

/// Makes the last balance that servers learned too small for a video.
const SMALL_BALANCE: &str = "UPDATE credit SET balance = 1000000, since = spent,
    as_of = extract(epoch FROM clock_timestamp())::bigint * 1000000000";

/// A shared ledger before a sandbox that charges real money.
struct SharedLedger<'a> {
    fixture: Fixture,
    database: Database<'a>,
    url: String,
}

impl SharedLedger<'_> {
    fn new() -> Self {
        let database = Cluster::shared().database();
        Self { fixture: Fixture::open(), url: database.url(), database }
    }

    fn environment(&self) -> [(&str, &str); 2] {
        [("TOLLGATE_STORE__URL", "postgres"), ("DATABASE_URL", &self.url)]
    }

    fn serve(&self) -> Server {
        self.fixture.serve_with(&["serve"], &self.environment())
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        self.fixture.run(arguments, &self.environment())
    }

    fn sql(&self, query: &str) -> String {
        self.database.sql(query)
    }

    /// Waits until a server has recorded its checkpoint.
    fn is_noted(&self) {
        until("a checkpoint", || self.sql("SELECT count(*) FROM checkpoints") != "0");
    }

    /// Sells a video, stops the server, and restores what was dumped before the sale.
    fn lose_a_video(&self, server: Server) {
        self.database.dump();
        buy_video(&server);
        stop(server);
        self.database.restore();
    }
}

const WARNING: &str = "purchases may be missing since the last checkpoint";
/// How long nothing is sent, in seconds.
const SHUT: &str = "SELECT round(blocked_until / 1e9 - extract(epoch FROM clock_timestamp()))
    FROM ledger";

fn buy_video(server: &Server) -> String {
    let body = r#"{"model":"video-a-2","prompt":"a lighthouse","duration":8}"#;
    let answer = post(server.address, "/api/v1/video", "X-Of: test", body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

fn stop(mut server: Server) {
    server.process.signal(Signal::SIGTERM);
    assert_eq!(server.process.wait().code(), Some(0), "{}", server.process.printed());
}

#[test]
fn spending_since_a_backup_is_recorded_whatever_the_balance_covers() {
    let ledger = SharedLedger::new();
    let server = ledger.serve();
    ledger.is_noted();
    ledger.lose_a_video(server);
    ledger.sql(SMALL_BALANCE);
    let spent_before = ledger.sql("SELECT spent FROM credit");
    for expected in
        ["missing    $3.00 was recorded as spent by `restore` today", "missing    $0.00"]
    {
        let done = ledger.run(&["reconcile", "--since-backup"]);
        assert_eq!(done.code, Some(0), "{}", done.said());
        assert!(done.out.contains(expected), "{}", done.said());
    }
    let spent =
        "SELECT sum(micros) FROM spent WHERE unit = 'day' AND scope IN ('total', 'caller restore')";
    assert_eq!(ledger.sql(spent), "6000000");
    // The balance that the gateway reports includes it already.
    assert_eq!(ledger.sql("SELECT spent FROM credit"), spent_before);
}

#[test]
fn restored_ledger_is_renamed_and_warns_until_it_is_reconciled() {
    let ledger = SharedLedger::new();
    let name = || ledger.sql("SELECT name FROM ledger");
    let server = ledger.serve();
    ledger.is_noted();
    let old = name();
    let refused = ledger.run(&["store", "restored"]);
    assert_eq!((refused.code, name()), (Some(1), old.clone()), "{}", refused.said());
    assert!(refused.err.contains("stop all servers and commands"), "{}", refused.said());
    ledger.lose_a_video(server);
    // The dump has a server that had not stopped.
    ledger.sql("UPDATE servers SET seen = 0");

    let done = ledger.run(&["store", "restored"]);
    assert_eq!(done.code, Some(0), "{}", done.said());
    assert_ne!(name(), old);
    assert!(done.out.contains(&name()), "{}", done.said());
    assert!((50..=60).contains(&ledger.sql(SHUT).parse().unwrap()), "{}", ledger.sql(SHUT));
    ledger.sql("UPDATE ledger SET blocked_until = 0");
    for _ in 0..2 {
        let server = ledger.serve();
        until("it warns", || server.process.printed().contains(WARNING));
        stop(server);
    }
    let done = ledger.run(&["reconcile", "--since-backup"]);
    assert!(done.out.contains("missing    $3.00 was recorded"), "{}", done.said());
    let renamed = name();
    let noted = ledger.sql("SELECT count(*) FROM checkpoints");
    let server = ledger.serve();
    until("a checkpoint", || ledger.sql("SELECT count(*) FROM checkpoints") != noted);
    assert!(!server.process.printed().contains(WARNING), "{}", server.process.printed());
    assert_eq!(name(), renamed);
}

#[test]
fn start_on_another_timeline_renames_the_ledger() {
    let cluster = Cluster::start("");
    let database = cluster.database();
    let ledger = SharedLedger { fixture: Fixture::open(), url: database.url(), database };
    let name = || ledger.sql("SELECT name FROM ledger");
    stop(ledger.serve());
    let old = name();
    stop(ledger.serve());
    assert_eq!(name(), old);
    cluster.crash();
    cluster.become_replica();
    cluster.recover();
    cluster.promote();
    let server = ledger.serve();
    let renamed = name();
    assert_ne!(renamed, old);
    assert!(server.process.printed().contains("ledger renamed"), "{}", server.process.printed());
    stop(server);
    stop(ledger.serve());
    assert_eq!(name(), renamed, "once");
}

#[test]
fn charge_that_a_failover_lost_is_logged_and_found_by_reconcile() {
    // A failover forgets the transaction with the purchase while the gateway works on it.
    const LOSE: &str = "
        CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            DELETE FROM purchases WHERE state = 'sent';
            IF FOUND THEN
                DELETE FROM spent;
                UPDATE ledger SET batch = '';
                DELETE FROM batches;
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER lose AFTER INSERT ON batches FOR EACH ROW EXECUTE FUNCTION lose()";
    let ledger = SharedLedger::new();
    let server = ledger.serve();
    ledger.is_noted();
    ledger.sql(LOSE);
    let answer = buy_video(&server);
    let id =
        answer.lines().find_map(|line| line.strip_prefix("tollgate-purchase: ")).expect("an id");
    let is_logged = |line: &str| {
        line.contains("ledger lost a purchase") && line.contains(id) && line.contains("3.00")
    };
    until("it is logged", || server.process.printed().lines().any(is_logged));
    stop(server);
    ledger.sql("UPDATE ledger SET blocked_until = 0");
    let done = ledger.run(&["reconcile", "--since-backup"]);
    assert!(done.out.contains("missing    $3.00 was recorded"), "{}", done.said());
}
