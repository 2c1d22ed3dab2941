//! Commands on a shared ledger, from any machine.

use std::fs;

use tempfile::TempDir;

use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::process::{Process, Signal, run};
use crate::support::{CHAT, Reply, Upstream};

pub(super) const LIVE: [(&str, &str); 3] = [
    ("TOLLGATE_STORE__URL", "postgres"),
    ("TOLLGATE_GATEWAY__BASE_URL", "http://127.0.0.1:1"),
    ("GATEWAY_API_KEY", "svc_sk_example"),
];

#[test]
fn reports_and_checks_read_the_shared_ledger() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let fleet = Fleet::start(Cluster::shared(), &upstream, "", 1);
    assert_eq!(fleet.buy(0, "/api/v1/chat", "k", CHAT).status, 200);
    let shown = format!("postgres, {}", fleet.database.url().replace("tollgate@", ""));
    let checked = fleet.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.stdout.contains(&shown), "{checked:?}");
    assert!(fleet.servers[0].process.printed().contains(&shown));
    let usage = fleet.run(&["usage", "--by", "model", "--format", "csv"]);
    assert!(usage.stdout.contains("alpha-sonnet-4.5,"), "{usage:?}");
    let listed = fleet.run(&["purchase", "list", "--format", "csv"]);
    assert!(listed.stdout.contains(",alpha-sonnet-4.5,0.006000,charged"), "{listed:?}");
    assert_eq!(fleet.instances(), [("gate-0".to_owned(), "alive".to_owned())]);
    let metrics = fleet.ops(0, "/metrics").text();
    assert!(metrics.contains("\ntollgate_instances{state=\"alive\"} 1\n"), "{metrics}");
    let table = fleet.run(&["store", "instances"]);
    assert!(table.stdout.contains("gate-0"), "{table:?}");
}

#[test]
fn tables_are_made_by_the_command_if_servers_may_not() {
    let folder = TempDir::with_prefix("tollgate-fleet-").expect("a folder");
    let database = Cluster::shared().database();
    let address = database.url();
    let more = [
        ("DATABASE_URL", address.as_str()),
        ("TOLLGATE_STORE__MIGRATE", "never"),
        ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0"),
        ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0"),
    ];
    let environment = [&LIVE[..], &more].concat();
    let mut refused = Process::start(folder.path(), &environment);
    assert_eq!(refused.wait().code(), Some(1), "{}", refused.printed());
    assert!(refused.printed().contains("run `tollgate store migrate`"), "{}", refused.printed());
    for command in [&["store", "instances"][..], &["usage"], &["purchase", "list"]] {
        let early = run(folder.path(), command, &environment);
        assert_eq!(early.code, Some(1), "{early:?}");
        assert!(early.stderr.contains("`tollgate store migrate`"), "{early:?}");
    }
    for _ in 0..2 {
        let migrated = run(folder.path(), &["store", "migrate"], &environment);
        assert_eq!(migrated.code, Some(0), "{migrated:?}");
        assert!(migrated.stdout.contains("the tables are up to date: postgres, "), "{migrated:?}");
    }
    let mut server = Process::start(folder.path(), &environment);
    server.address("page");
    server.kill();
}

#[test]
fn contraction_waits_for_older_programs_and_then_refuses_them() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let fleet = Fleet::start(Cluster::shared(), &upstream, "", 1);
    fleet.database.sql("UPDATE ledger SET floor = 0");
    let older = "UPDATE servers SET schema = schema - 1 WHERE name = 'gate-0'";
    fleet.database.sql(older);
    let floor = || fleet.database.sql("SELECT floor = schema FROM ledger");
    let refused = fleet.run(&["store", "migrate", "--contract"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("gate-0 run an older tollgate"), "{refused:?}");
    assert_eq!(floor(), "f");
    fleet.database.sql("UPDATE servers SET schema = schema + 1 WHERE name = 'gate-0'");
    let done = fleet.run(&["store", "migrate", "--contract"]);
    assert_eq!((done.code, floor().as_str()), (Some(0), "t"), "{done:?}");
    assert_eq!(fleet.buy(0, "/api/v1/chat", "k", CHAT).status, 200);
}

#[test]
fn faults_of_the_shared_ledger_are_explained_without_the_password() {
    let folder = TempDir::with_prefix("tollgate-fleet-").expect("a folder");
    let address = "postgres://tollgate:hunter2@127.0.0.1:1/tollgate";
    let environment = [&LIVE[..], &[("DATABASE_URL", address)]].concat();
    for command in [&["check"][..], &["usage"], &["store", "migrate"], &["store", "instances"]] {
        let ended = run(folder.path(), command, &environment);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains("postgres://127.0.0.1:1/tollgate: "), "{ended:?}");
        assert!(!format!("{ended:?}").contains("hunter2"), "{ended:?}");
    }
    let unnamed = run(folder.path(), &["check"], &LIVE);
    assert_eq!(unnamed.code, Some(2), "{unnamed:?}");
    assert!(unnamed.stderr.contains("in DATABASE_URL or DATABASE_URL_FILE"), "{unnamed:?}");
    let remote = [&LIVE[..], &[("DATABASE_URL", "postgres://db/t?sslmode=disable")]].concat();
    let plain = run(folder.path(), &["check"], &remote);
    assert_eq!(plain.code, Some(2), "{plain:?}");
    assert!(plain.stderr.contains("DATABASE_URL: expected no sslmode=disable"), "{plain:?}");
    fs::write(folder.path().join("ca.pem"), "none").expect("a file");
    let ca = [&LIVE[..], &[("DATABASE_URL", "postgres://db/t"), ("TOLLGATE_STORE__CA", "ca.pem")]];
    let ca = run(folder.path(), &["check"], &ca.concat());
    assert_eq!(ca.code, Some(2), "{ca:?}");
    assert!(ca.stderr.contains("store.ca: expected a file of certificates in PEM"), "{ca:?}");
    let file = [("TOLLGATE_STORE__URL", "sqlite:t.db"), LIVE[1], LIVE[2]];
    let alone = run(folder.path(), &["store", "instances"], &file);
    assert_eq!(alone.code, Some(2), "{alone:?}");
    let tokens = [&LIVE[..], &[("DATABASE_URL", address)]].concat();
    let added = run(folder.path(), &["member", "add", "ann"], &tokens);
    assert!(!added.stdout.contains("tg_"), "{added:?}");
}

#[test]
fn new_secret_is_refused_while_a_server_uses_the_old_one() {
    const OTHER: (&str, &str) = ("TOLLGATE_SECRET", "another secret of 0123456789abcdef0123456789");
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, "access.mode = \"members\"\n", 1);
    let added = fleet.run(&["member", "add", "ann"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let recorded = || fleet.database.sql("SELECT print, token FROM secret, members");
    let before = recorded();
    let rotate = ["member", "rotate", "ann", "--new-secret"];
    let refused = fleet.run_with(&rotate, &[OTHER]);
    assert_eq!((refused.code, &*refused.stdout), (Some(2), ""), "{refused:?}");
    assert!(refused.stderr.contains("stop all of them first"), "{refused:?}");
    assert_eq!(recorded(), before);
    fleet.servers[0].process.signal(Signal::SIGTERM);
    assert_eq!(fleet.servers[0].process.wait().code(), Some(0));
    let rotated = fleet.run_with(&rotate, &[OTHER]);
    assert_eq!(rotated.code, Some(0), "{rotated:?}");
    let token = format!("Bearer {}", rotated.stdout.trim_end());
    fleet.add_with(&[OTHER]);
    let me = fleet.ask(1, "GET", "/bff/me", &[("authorization", &token)], "");
    assert_eq!(me.status, 200, "{}", me.text());
}
