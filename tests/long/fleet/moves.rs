//! Copies that go wrong: killed on the way back or at the end, with a source that changes between two
//! tries, of another money or version, and next to a server that stood still.

use rusqlite::Connection;

use super::copy::{BACK, CHATS, FILE, PURCHASES_ARE_THERE, StoppedCopy, THERE, fill, ledger, stop};
use super::crashes::before;
use super::relay::{Point, Side, Traffic};
use crate::support::fleet::Fleet;
use crate::support::process::Signal;
use crate::support::server::{Server, exchange};
use crate::support::{CHAT, Reply, Upstream, until};

const RETURNED: [(&str, &str); 1] = [("TOLLGATE_STORE__URL", "sqlite:back.db")];
/// All purchases were copied to the file, and nothing else was.
const PURCHASES_ARE_BACK: Point =
    before(Traffic::Statement("SELECT number, until", "FROM replies"));
/// The source has noted where its ledger went, and the target is not complete.
const NOTED_THERE: Point = before(Traffic::Statement("DELETE FROM moved", ""));
const NOTED_BACK: Point =
    Point { traffic: Traffic::Statement("UPDATE ledger SET version", "COMMIT"), side: Side::After };
const IS_SILENT: &str =
    "SELECT bool_and(seen < (extract(epoch FROM clock_timestamp()) - 30) * 10^9) FROM servers";
/// A ledger of many purchases in the database.
fn ledger_there<'a>(upstream: &Upstream) -> Fleet<'a> {
    let fleet = ledger(upstream);
    fill(&fleet.path().join("ledger.db"));
    copy(&fleet, &THERE);
    fleet
}

fn copy(fleet: &Fleet<'_>, arguments: &[&str]) -> String {
    let moved = fleet.run(arguments);
    assert_eq!(moved.code, Some(0), "{moved:?}");
    moved.stdout
}

/// Starts a server on this ledger, buys, and stops the server.
fn sell(fleet: &mut Fleet<'_>, own: &[(&str, &str)], key: &str) {
    fleet.add_with(own);
    let bought = fleet.buy(0, CHATS, key, CHAT);
    assert_eq!(bought.status, 200, "{}", bought.text());
    stop(fleet);
}

/// Asserts that a server on this ledger knows a purchase.
fn assert_replays(fleet: &mut Fleet<'_>, own: &[(&str, &str)], key: &str) {
    fleet.add_with(own);
    let again = fleet.buy(0, CHATS, key, CHAT);
    assert!(again.is_replay() && again.status == 200, "{}", again.text());
    stop(fleet);
}

#[test]
fn copy_killed_on_the_way_back_can_run_again() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = ledger_there(&upstream);
    sell(&mut fleet, &[], "there");
    StoppedCopy::start(&fleet, &BACK, PURCHASES_ARE_BACK).kill();
    assert!(!fleet.path().join("back.db").exists(), "a part of a ledger");
    let printed = copy(&fleet, &BACK);
    assert!(printed.contains("purchases: 20001 rows"), "{printed}");
    assert_replays(&mut fleet, &RETURNED, "there");
    assert_eq!(upstream.charges().len(), 2);
}

#[test]
fn ledger_whose_copy_was_killed_on_the_way_back_still_sells() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = ledger_there(&upstream);
    StoppedCopy::start(&fleet, &BACK, PURCHASES_ARE_BACK).kill();
    // What is sold now is not in the part that was copied.
    sell(&mut fleet, &[], "between");
    copy(&fleet, &BACK);
    assert_replays(&mut fleet, &RETURNED, "between");
    assert_eq!(upstream.charges().len(), 2);
}

#[test]
fn file_that_has_sold_or_changed_between_two_tries_is_copied_again() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = ledger(&upstream);
    let path = fleet.path().join("ledger.db");
    fill(&path);
    StoppedCopy::start(&fleet, &THERE, PURCHASES_ARE_THERE).kill();
    sell(&mut fleet, &FILE, "between");
    StoppedCopy::start(&fleet, &THERE, PURCHASES_ARE_THERE).kill();
    // No purchase is new, but one has another outcome.
    let file = Connection::open(&path).expect("a ledger");
    let find = "SELECT lower(hex(id)) FROM purchases WHERE state = 'unknown' LIMIT 1";
    let unknown: String = file.query_row(find, [], |row| row.get(0)).expect("one");
    drop(file);
    let resolved = fleet.run_with(&["purchase", "resolve", &unknown, "released"], &FILE);
    assert_eq!(resolved.code, Some(0), "{resolved:?}");
    copy(&fleet, &THERE);
    let find = format!("SELECT state FROM purchases WHERE encode(id, 'hex') = '{unknown}'");
    assert_eq!(fleet.database.sql(&find), "released");
    assert_replays(&mut fleet, &[], "between");
    assert_eq!(upstream.charges().len(), 2);
}

#[test]
fn copy_killed_after_its_source_was_closed_leaves_no_ledger_that_sells() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = ledger(&upstream);
    let mut copying = StoppedCopy::start(&fleet, &THERE, NOTED_THERE);
    copying.kill();
    let source = fleet.run_with(&["member", "add", "ann"], &FILE);
    assert!(source.stderr.contains("it was moved to postgres://"), "{source:?}");
    let target = fleet.run(&["member", "add", "ann"]);
    assert!(target.stderr.contains("it was moved to sqlite:"), "{target:?}");
    let elsewhere = fleet.run(&THERE);
    assert!(elsewhere.stderr.contains("it was moved to postgres://"), "{elsewhere:?}");
    let moved = copying.repeat(&fleet, &THERE);
    assert_eq!(moved.code, Some(0), "{moved:?}");
    assert_replays(&mut fleet, &[], "k");

    let mut copying = StoppedCopy::start(&fleet, &BACK, NOTED_BACK);
    let source = fleet.run(&["member", "add", "ann"]);
    assert!(source.stderr.contains("it was moved to sqlite:"), "{source:?}");
    copying.kill();
    assert!(!fleet.path().join("back.db").exists(), "a part of a ledger");
    let moved = copying.repeat(&fleet, &BACK);
    assert_eq!(moved.code, Some(0), "{moved:?}");
    assert_replays(&mut fleet, &RETURNED, "k");
    assert_eq!(upstream.charges().len(), 1);
}

/// Stops a server until others take it for dead.
fn stand_still(fleet: &Fleet<'_>) {
    fleet.servers[0].process.signal(Signal::SIGSTOP);
    until("it is silent", || fleet.database.sql(IS_SILENT) == "t");
}

/// Lets it go on, and asserts that it sells nothing until it has logged this.
fn go_on_and_sell_nothing(fleet: &Fleet<'_>, message: &str) {
    fleet.servers[0].process.signal(Signal::SIGCONT);
    until("it knows", || {
        let refused = fleet.buy(0, CHATS, "k", CHAT);
        assert_eq!((refused.status, &*refused.code()), (503, "ledger_unavailable"));
        fleet.servers[0].process.printed().contains(message)
    });
}

#[test]
fn server_that_stood_still_sells_nothing_from_a_ledger_that_is_just_copied() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = ledger(&upstream);
    fleet.add();
    stand_still(&fleet);
    // It may have asked for the balance, and the database has to be empty.
    fleet.database.sql("DELETE FROM slots");
    let copying = StoppedCopy::start(&fleet, &THERE, PURCHASES_ARE_THERE);
    // It was bought from the file. This server does not know it yet.
    fleet.servers[0].process.signal(Signal::SIGCONT);
    let during = fleet.buy(0, CHATS, "k", CHAT);
    assert_eq!((during.status, &*during.code()), (503, "ledger_unavailable"));
    copying.finish();
    until("it knows", || {
        let again = fleet.buy(0, CHATS, "k", CHAT);
        assert!(matches!(again.status, 200 | 503), "{}", again.text());
        again.is_replay()
    });
    assert_eq!(upstream.charges().len(), 1);
}

#[test]
fn server_that_stood_still_sells_nothing_from_a_ledger_that_goes() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = ledger(&upstream);
    copy(&fleet, &THERE);
    fleet.add();
    stand_still(&fleet);
    let copying = StoppedCopy::start(&fleet, &BACK, PURCHASES_ARE_BACK);
    fleet.servers[0].process.signal(Signal::SIGCONT);
    let during = fleet.buy(0, CHATS, "during", CHAT);
    assert_eq!((during.status, &*during.code()), (503, "ledger_unavailable"));
    copying.finish();
    go_on_and_sell_nothing(&fleet, "it was moved to sqlite:");
    // While its purchases' connection is made again, the probe takes the database for unreachable.
    until("the probe says so", || fleet.ops(0, "/readyz").status == 503);
    stop(&mut fleet);
    assert_replays(&mut fleet, &RETURNED, "k");
    assert_eq!(upstream.charges().len(), 1);
}

#[test]
fn ledger_of_other_money_stays_where_it_is() {
    const OTHER: &str = "it holds the other kind of money";
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let fleet = ledger(&upstream);
    // Without a gateway, the built-in one sells for play money.
    let play = [("TOLLGATE_STORE__URL", "sqlite:play.db")];
    let sold = |key| {
        let server = Server::start(fleet.path(), &[], &play);
        let headers = [("idempotency-key", key)];
        let answer = exchange(server.address, "POST", CHATS, &headers, CHAT);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    sold("play");
    let there = ["store", "copy", "--from", "sqlite:play.db", "--to", "postgres"];
    let refused = fleet.run(&there);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains(OTHER), "{refused:?}");
    sold("more");

    let set_money = |kind: &str| {
        fleet.database.sql(&format!(
            "INSERT INTO money VALUES (1, '{kind}') ON CONFLICT (number) DO UPDATE SET kind = '{kind}'"
        ));
    };
    // The database was one of play money before.
    let migrated = fleet.run(&["store", "migrate"]);
    assert_eq!(migrated.code, Some(0), "{migrated:?}");
    set_money("play");
    for arguments in [THERE, BACK] {
        let refused = fleet.run(&arguments);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains(OTHER), "{refused:?}");
    }
    set_money("real");
    copy(&fleet, &THERE);
}

#[test]
fn ledger_of_another_version_stays_where_it_is() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = ledger(&upstream);
    let set_version = |version: i64| {
        let file = Connection::open(fleet.path().join("ledger.db")).expect("a ledger");
        let before = file.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0));
        file.pragma_update(None, "user_version", version).expect("a version");
        before.expect("the version")
    };
    let ours = set_version(99);
    let refused = fleet.run(&THERE);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("its version is 99"), "{refused:?}");
    set_version(ours);
    assert_replays(&mut fleet, &FILE, "k");
    copy(&fleet, &THERE);
    assert_replays(&mut fleet, &[], "k");

    // What a newer version has added would be lost.
    fleet.database.sql("ALTER TABLE purchases ADD COLUMN later text");
    let refused = fleet.run(&BACK);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("has no column named later"), "{refused:?}");
    assert_replays(&mut fleet, &[], "k");
    assert_eq!(upstream.charges().len(), 1);
}
