//! `tollgate store copy`: a ledger moves from a file to PostgreSQL and back, with all that it holds.

use std::path::Path;

use rusqlite::Connection;

use super::crashes::before;
use super::relay::{Point, Relay, Traffic, Verdict};
use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::process::{Ended, Process, Signal};
use crate::support::{CHAT, Reply, Upstream, until};

pub(super) const CHATS: &str = "/api/v1/chat";
pub(super) const FILE: [(&str, &str); 1] = [("TOLLGATE_STORE__URL", "sqlite:ledger.db")];
pub(super) const THERE: [&str; 6] =
    ["store", "copy", "--from", "sqlite:ledger.db", "--to", "postgres"];
pub(super) const BACK: [&str; 6] =
    ["store", "copy", "--from", "postgres", "--to", "sqlite:back.db"];
/// All purchases were copied to the database, and nothing else was.
pub(super) const PURCHASES_ARE_THERE: Point = before(Traffic::Statement("INSERT INTO replies", ""));

/// Purchases in all states, with replies, jobs, members, logins and slots.
const ROWS: &str = "
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
    INSERT INTO purchases (number, id, at, day, month, caller, service, model, price_micros, cost_micros, state,
        key, payload, fingerprint, delivered, ended_at, keep_until, assumed, unrecognised, replays)
    SELECT i * 2, randomblob(16), i, i / 100, 24310, 'caller ' || (i % 7) || ' ü',
        CASE WHEN i % 3 = 0 THEN 'video' ELSE 'chat' END, 'm', 6000,
        CASE i % 5 WHEN 0 THEN 5000 END,
        CASE i % 5 WHEN 0 THEN 'charged' WHEN 1 THEN 'released' WHEN 2 THEN 'unknown' WHEN 3 THEN 'held'
            ELSE 'sent' END,
        CASE WHEN i % 5 <> 1 AND i % 2 = 0 THEN randomblob(32) END,
        CASE WHEN i % 5 <> 1 AND i % 2 = 0 THEN randomblob(32) END,
        CASE WHEN i % 2 = 1 THEN randomblob(32) END, i % 2,
        CASE WHEN i % 5 < 3 THEN i + 1 END, CASE i % 5 WHEN 0 THEN 9000000000000000000 END, i % 2, i % 2, i % 9
    FROM n;
    UPDATE purchases SET group_name = 'design', token = nullif('t' || number % 2, 't1') WHERE number % 3 = 0;
    UPDATE identity SET ended_through = 0;
    INSERT INTO replies SELECT number, 9000000000000000000, 200, number % 4 = 0, randomblob(number % 3000)
        FROM purchases WHERE state = 'charged';
    INSERT INTO spent SELECT scope, unit, period, sum(micros) FROM (
        SELECT s.scope, u.unit, CASE u.unit WHEN 'day' THEN day ELSE month END AS period,
            CASE state WHEN 'released' THEN 0 ELSE coalesce(cost_micros, price_micros) END AS micros
        FROM purchases, (SELECT 'day' AS unit UNION SELECT 'month') AS u,
            LATERAL_SCOPES) GROUP BY 1, 2, 3;
    INSERT INTO jobs (request_id, owner, key, model, price_micros, at, status_at, body, state, prompt, purchase)
        SELECT 'job-' || number, caller, randomblob(8), model, price_micros, at,
            CASE WHEN number % 4 = 0 THEN at END, CASE WHEN number % 4 = 0 THEN randomblob(50) END,
            CASE WHEN number % 4 = 0 THEN 'finished' ELSE 'open' END,
            CASE WHEN number % 8 = 0 THEN 'a prompt' END, id
        FROM purchases WHERE service = 'video' AND state = 'charged';
    INSERT INTO checkpoints VALUES (1, 5, 100, 3, 2, 1, NULL, NULL), (4, 6, 90, 4, 3, 2, 7, 9);
    INSERT INTO account_keys VALUES ('key', 5, NULL), ('old', 4, 5);
    INSERT INTO members (name, role, budget, token, prefix, added, revoked, secret, may_buy, group_name)
        VALUES ('ann', 'admin', '0.01/day', randomblob(32), 'tg_a', 6, NULL, NULL, 'chat', 'design');
    INSERT INTO members (name, role, budget, token, prefix, added, revoked, secret, may_buy, group_name)
        VALUES ('Bea', 'member', '', randomblob(32), 'tg_b', 6, 8, randomblob(32), NULL, NULL);
    INSERT INTO groups VALUES ('design', '0.07/week 0.08/month');
    INSERT INTO extras VALUES (4, 'member:ann', 6, 9, 5), (7, 'member:Bea', 5, 8, 4);
    INSERT INTO budget_requests VALUES (3, 'member:ann', 6, 'a reason', 5);
    INSERT INTO audit VALUES (2, 5, 'command line', 'member.add', 'ann', NULL, '{}'), (9, 6, 'a', 'b', 'c', '{}', NULL);
    INSERT INTO logins VALUES (3, randomblob(32), 'ann', randomblob(32), 9000000000000000000);
    INSERT INTO subjects VALUES ('https://a.example/', 'ann', 'member', '1.00/day', 'design', NULL, 'Ann', 5);
    INSERT INTO subject_logins VALUES (3, randomblob(32), 'https://a.example/', 'ann', 9, NULL, NULL, NULL, NULL, NULL),
        (8, randomblob(32), 'https://a.example/', 'ann', 9, 'laptop', 'tg_b', '', 5, 6);
    INSERT INTO outbox VALUES (4, 'id', randomblob(16), 'job.failed', 5, '{}', 6, 2), (5, 'it', randomblob(16), '*', 5, '{}', 6, 0);
    INSERT INTO alerts VALUES ('balance', '', 0, 7);
    UPDATE members_version SET version = 41;
    INSERT OR REPLACE INTO rate_limit VALUES (1, 60, 60)";

/// The scopes that a row counts for: all, its caller, its group and its token.
const SCOPES: &str = "(SELECT number AS of, 'total' AS scope FROM purchases
    UNION ALL SELECT number, 'caller ' || caller FROM purchases
    UNION ALL SELECT number, 'group ' || group_name FROM purchases WHERE group_name IS NOT NULL
    UNION ALL SELECT number, 'token ' || token FROM purchases WHERE token IS NOT NULL) AS s WHERE s.of = purchases.number";

/// All that both files have to hold, in order.
const TABLES: [&str; 20] = [
    "* FROM purchases ORDER BY number",
    "* FROM replies ORDER BY number",
    "* FROM spent ORDER BY 1, 2, 3",
    "* FROM jobs ORDER BY number",
    "* FROM checkpoints ORDER BY number",
    "* FROM account_keys ORDER BY id",
    "* FROM slots ORDER BY number",
    "* FROM members ORDER BY name",
    "* FROM logins ORDER BY number",
    "* FROM members_version",
    "* FROM rate_limit",
    "name FROM identity",
    "* FROM groups ORDER BY name",
    "* FROM extras ORDER BY number",
    "* FROM budget_requests ORDER BY number",
    "* FROM audit ORDER BY number",
    "* FROM subjects",
    "* FROM subject_logins ORDER BY number",
    "* FROM outbox ORDER BY number",
    "* FROM alerts",
];

fn rows(path: &Path, query: &str) -> Vec<String> {
    let file = Connection::open(path).expect("a ledger");
    let mut statement = file.prepare(&format!("SELECT {query}")).expect("a query");
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        (0..columns).map(|at| Ok(format!("{:?}", row.get_ref(at)?))).collect::<Result<String, _>>()
    });
    rows.expect("rows").collect::<Result<_, _>>().expect("a row")
}

/// A fleet without servers, and a ledger in a file that a server has had.
pub(super) fn ledger<'a>(upstream: &Upstream) -> Fleet<'a> {
    let mut fleet = Fleet::start(Cluster::shared(), upstream, "", 0);
    fleet.add_with(&FILE);
    assert_eq!(fleet.buy(0, CHATS, "k", CHAT).status, 200);
    stop(&mut fleet);
    fleet
}

pub(super) fn stop(fleet: &mut Fleet<'_>) {
    for mut server in fleet.servers.drain(..) {
        server.process.signal(Signal::SIGTERM);
        assert!(server.process.wait().success(), "{}", server.process.printed());
    }
}

pub(super) fn fill(path: &Path) {
    let file = Connection::open(path).expect("a ledger");
    file.execute_batch("DELETE FROM replies; DELETE FROM spent; DELETE FROM purchases; DELETE FROM account_keys; DELETE FROM checkpoints").expect("empty");
    file.execute_batch(&ROWS.replace("LATERAL_SCOPES", SCOPES)).expect("rows");
}

#[test]
fn ledger_goes_to_postgres_and_back_and_repeats_replay() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, "", 0);
    fleet.add_with(&FILE);
    let first = fleet.buy(0, CHATS, "k", CHAT);
    assert_eq!(first.status, 200, "{}", first.text());
    let name = first.value("tollgate-ledger").expect("a name").to_owned();
    let busy = fleet.run(&THERE);
    assert_eq!(busy.code, Some(1), "{busy:?}");
    assert!(busy.stderr.contains("another server uses the ledger"), "{busy:?}");
    stop(&mut fleet);

    let moved = fleet.run(&THERE);
    assert_eq!(moved.code, Some(0), "{moved:?}");
    assert!(moved.stdout.contains("next: set store.url = \"postgres\""), "{moved:?}");
    for sells in [&["purchase", "resolve"][..], &["member", "add", "ann"], &["check"]] {
        let refused = fleet.run_with(sells, &FILE);
        assert_ne!(refused.code, Some(0), "{refused:?}");
    }
    let member = fleet.run_with(&["member", "add", "ann"], &FILE);
    assert!(member.stderr.contains("it was moved to postgres://"), "{member:?}");
    let usage = fleet.run_with(&["usage", "--by", "model"], &FILE);
    assert!(usage.stdout.contains("alpha-sonnet-4.5"), "{usage:?}");
    fleet.add_with(&FILE);
    let closed = fleet.buy(0, CHATS, "other", CHAT);
    assert_eq!((closed.status, &*closed.code()), (503, "ledger_unavailable"));
    assert!(fleet.servers[0].process.printed().contains("ledger_moved"));
    stop(&mut fleet);

    (0..2).for_each(|_| fleet.add());
    for server in 0..2 {
        let again = fleet.ask(
            server,
            "POST",
            CHATS,
            &[("idempotency-key", "k"), ("tollgate-ledger", &name)],
            CHAT,
        );
        assert!(again.is_replay(), "{}", again.text());
        assert_eq!((again.status, &again.body), (200, &first.body));
    }
    assert_eq!(fleet.buy(1, CHATS, "l", CHAT).status, 200);
    let busy = fleet.run(&BACK);
    assert!(busy.stderr.contains("gate-0, gate-1 use it: stop all servers"), "{busy:?}");
    stop(&mut fleet);

    let back = fleet.run(&BACK);
    assert_eq!(back.code, Some(0), "{back:?}");
    let usage = fleet.run(&["usage", "--by", "model"]);
    assert!(usage.stdout.contains("alpha-sonnet-4.5"), "{usage:?}");
    let refused = fleet.run(&["member", "add", "ann"]);
    assert!(refused.stderr.contains("it was moved to sqlite:"), "{refused:?}");
    fleet.add_with(&[("TOLLGATE_STORE__URL", "sqlite:back.db")]);
    for key in ["k", "l"] {
        let named = [("idempotency-key", key), ("tollgate-ledger", &*name)];
        let again = fleet.ask(0, "POST", CHATS, &named, CHAT);
        assert!(again.is_replay(), "{}", again.text());
    }
    assert_eq!(upstream.charges().len(), 2);
}

#[test]
fn all_rows_are_the_same_there_and_back() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let fleet = ledger(&upstream);
    let (file, back) = (fleet.path().join("ledger.db"), fleet.path().join("back.db"));
    fill(&file);
    let moved = fleet.run(&THERE);
    assert_eq!(moved.code, Some(0), "{moved:?}");
    assert!(moved.stdout.contains("purchases: 20000 rows, price_micros 120.000000"), "{moved:?}");
    // Running purchases ended as after a crash.
    let states = "SELECT state, count(*) FROM purchases GROUP BY 1 ORDER BY 1";
    assert_eq!(fleet.database.sql(states), "charged|4000\nreleased|8000\nunknown|8000");
    let returned = fleet.run(&BACK);
    assert_eq!(returned.code, Some(0), "{returned:?}");
    for table in TABLES {
        assert_eq!(rows(&file, table), rows(&back, table), "{table}");
    }
}

/// A copy that has stopped at a point of its traffic with the database.
pub(super) struct StoppedCopy {
    process: Process,
    relay: Relay,
    url: String,
}

impl StoppedCopy {
    pub(super) fn start(fleet: &Fleet<'_>, arguments: &[&str], point: Point) -> Self {
        let relay = Relay::to(Cluster::shared().address());
        relay.arm(point);
        let url = fleet.database.url_at(relay.address);
        let mut process = fleet.start_command(arguments, &[("DATABASE_URL", &url)]);
        until("the copy stops", || {
            let has_stopped = relay.has_stopped();
            assert!(has_stopped || process.is_running(), "{}", process.printed());
            has_stopped
        });
        Self { process, relay, url }
    }

    pub(super) fn kill(&mut self) {
        self.process.kill();
        self.relay.release(Verdict::Cut);
    }

    /// Lets it go on to its end.
    pub(super) fn finish(mut self) {
        self.relay.release(Verdict::Pass);
        assert_eq!(self.process.wait().code(), Some(0), "{}", self.process.printed());
    }

    /// Runs the same copy again, after it was killed.
    pub(super) fn repeat(&self, fleet: &Fleet<'_>, arguments: &[&str]) -> Ended {
        fleet.run_with(arguments, &[("DATABASE_URL", &self.url)])
    }
}

#[test]
fn killed_copy_leaves_an_empty_database_and_can_run_again() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = ledger(&upstream);
    fill(&fleet.path().join("ledger.db"));
    StoppedCopy::start(&fleet, &THERE, PURCHASES_ARE_THERE).kill();
    assert_eq!(fleet.database.sql("SELECT count(*) FROM purchases"), "0");
    let moved = fleet.run(&THERE);
    assert_eq!(moved.code, Some(0), "{moved:?}");
    assert!(moved.stdout.contains("purchases: 20000 rows, price_micros 120.000000"), "{moved:?}");
    fleet.add();
    assert_eq!(fleet.buy(0, CHATS, "new", CHAT).status, 200);
}

#[test]
fn progress_is_shown_on_a_terminal_and_nowhere_else() {
    const BATCH: &str = "purchases: 5000 rows copied\n";
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let fleet = ledger(&upstream);
    fill(&fleet.path().join("ledger.db"));
    let piped = fleet.run(&THERE);
    assert_eq!((piped.code, &*piped.stderr), (Some(0), ""), "{piped:?}");
    assert!(piped.stdout.contains(BATCH), "{piped:?}");
    assert!(!piped.stdout.contains(['\r', '\u{1b}', '%']), "{piped:?}");

    // The report goes to a file, and the bar to the terminal.
    let back = fleet.run_on_terminal(&BACK, &[], false);
    assert_eq!(back.code, Some(0), "{back:?}");
    assert!(
        back.stdout.contains(BATCH) && !back.stdout.contains(['\r', '\u{1b}', '%']),
        "{back:?}"
    );
    for shown in ["  0% [", "] copying purchases", "] comparing replies"] {
        assert!(back.stderr.contains(shown), "no {shown:?}: {back:?}");
    }
    assert!(!back.stderr.contains("rows"), "{back:?}");

    let other = Cluster::shared().database();
    let again = ["store", "copy", "--from", "sqlite:back.db", "--to", "postgres"];
    let whole = fleet.run_on_terminal(&again, &[("DATABASE_URL", &other.url())], true);
    assert_eq!(whole.code, Some(0), "{whole:?}");
    for shown in ["] copying purchases", "rows to copy and compare\r\n", "purchases: 20000 rows, "]
    {
        assert!(whole.stderr.contains(shown), "no {shown:?}: {whole:?}");
    }
    assert!(!whole.stderr.contains("rows copied"), "a line beside the bar: {whole:?}");
    // Nothing of the bar is left.
    let report = whole.stderr.rsplit('%').next().unwrap_or_default();
    assert!(report.contains("\u{1b}[2K") && report.contains("purchases: 20000 rows"), "{whole:?}");
}

#[test]
fn mistakes_are_explained_and_change_nothing() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = ledger(&upstream);
    for (from, to, code, expected) in [
        ("redis://db", "postgres", 2, "expected a file and PostgreSQL"),
        ("sqlite:ledger.db", "sqlite:other.db", 2, "expected a file and PostgreSQL"),
        ("sqlite:ledger.db", "mysql://db", 2, "--to: "),
        ("sqlite:none.db", "postgres", 1, "there is no ledger at none.db"),
        (
            "sqlite:ledger.db",
            "postgres://nobody@127.0.0.1:1/none",
            1,
            "postgres://127.0.0.1:1/none: ",
        ),
        ("postgres", "sqlite:back.db", 1, "run `tollgate store migrate`"),
    ] {
        let refused = fleet.run(&["store", "copy", "--from", from, "--to", to]);
        assert_eq!(refused.code, Some(code), "{refused:?}");
        assert!(refused.stderr.contains(expected), "{refused:?}");
    }
    fleet.add();
    let used = fleet.run(&THERE);
    assert!(used.stderr.contains("gate-0 use it"), "{used:?}");
    assert_eq!(fleet.buy(0, CHATS, "other", CHAT).status, 200);
    stop(&mut fleet);
    let full = fleet.run(&THERE);
    assert!(full.stderr.contains("it is not empty, and a copy overwrites nothing"), "{full:?}");
    let exists = fleet.run(&["store", "copy", "--from", "postgres", "--to", "sqlite:ledger.db"]);
    assert!(exists.stderr.contains("it exists, and a copy overwrites nothing"), "{exists:?}");
    fleet.add_with(&FILE);
    assert!(fleet.buy(0, CHATS, "k", CHAT).is_replay());
}
