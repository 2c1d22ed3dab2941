//! Two servers act as one: budgets, idempotency keys, members, videos.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::process::Signal;
use crate::support::reply::Latch;
use crate::support::{CHAT, Reply, Upstream, VIDEO, until};

const CHATS: &str = "/api/v1/chat";

fn chat(words: &str) -> String {
    CHAT.replace("hello", words)
}

#[test]
fn budget_holds_over_both_servers() {
    // Ten chats of $0.006.
    const ALLOWED: usize = 10;
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let settings = "budget.total = { day = \"0.06\" }";
    let fleet = Fleet::start(Cluster::shared(), &upstream, settings, 2);
    let statuses = thread::scope(|scope| {
        let buy = |number: usize| {
            let fleet = &fleet;
            scope.spawn(move || {
                let key = format!("key-{number}");
                fleet.buy(number % 2, CHATS, &key, &chat(&key)).status
            })
        };
        let all: Vec<_> = (0..4 * ALLOWED).map(buy).collect();
        let mut statuses = BTreeMap::new();
        for one in all {
            *statuses.entry(one.join().expect("an answer")).or_insert(0) += 1;
        }
        statuses
    });
    assert_eq!(statuses, BTreeMap::from([(200, ALLOWED), (402, 3 * ALLOWED)]));
    assert_eq!(upstream.charges().len(), ALLOWED);
    let counted = "SELECT micros FROM spent WHERE scope = 'total' AND unit = 'day'";
    assert_eq!(fleet.database.sql(counted), "60000");
}

#[test]
fn key_that_one_server_bought_is_replayed_by_the_other() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch));
    let fleet = Fleet::start(Cluster::shared(), &upstream, "", 2);
    let headers = [("idempotency-key", "k")];
    let (mut first, mut second) = (fleet.client(0), fleet.client(1));
    first.send("POST", CHATS, &headers, CHAT);
    upstream.wait_for(1);
    // Wherever it is by then, the second server neither sends it nor refuses it.
    second.send("POST", CHATS, &headers, CHAT);
    latch.open();
    let (bought, joined) = (first.answer(), second.answer());
    assert_eq!((bought.status, joined.status), (200, 200), "{}", joined.text());
    assert_eq!(bought.body, joined.body);
    let again = fleet.buy(1, CHATS, "k", CHAT);
    assert!(again.is_replay(), "{}", again.text());
    assert_eq!((again.status, again.body), (200, bought.body));
    let other = fleet.buy(1, CHATS, "k", &chat("other"));
    assert_eq!(other.code(), "idempotency_key_reused");
    assert_eq!(upstream.charges(), [6_000]);
}

#[test]
fn rate_limit_holds_over_both_servers() {
    const LIMIT: usize = 6;
    let period = Duration::from_secs(2);
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let settings = "gateway.rate_limit = { requests = 6, seconds = 2 }\ngateway.max_wait = \"60s\"";
    let fleet = Fleet::start(Cluster::shared(), &upstream, settings, 2);
    thread::scope(|scope| {
        for number in 0..3 * LIMIT {
            let fleet = &fleet;
            scope.spawn(move || {
                let key = format!("key-{number}");
                let answer = fleet.buy(number % 2, CHATS, &key, &chat(&key));
                assert_eq!(answer.status, 200, "{}", answer.text());
            });
        }
    });
    upstream.assert_held(LIMIT, period);
    assert_eq!(upstream.charges().len(), 3 * LIMIT);
}

#[test]
fn member_added_or_revoked_anywhere_changes_every_server() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let fleet = Fleet::start(Cluster::shared(), &upstream, "access.mode = \"members\"", 2);
    let added = fleet.run(&["member", "add", "ann"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let bearer = format!("Bearer {}", added.stdout.trim());
    let status =
        |server| fleet.ask(server, "GET", "/bff/me", &[("Authorization", &bearer)], "").status;
    until("both servers know ann", || status(0) == 200 && status(1) == 200);
    let listed = fleet.run(&["member", "list", "--format", "csv"]);
    assert!(listed.stdout.contains("\nann,member,active,"), "{listed:?}");
    let revoked = fleet.run(&["member", "revoke", "ann"]);
    assert_eq!(revoked.code, Some(0), "{revoked:?}");
    until("neither server accepts ann", || status(0) == 401 && status(1) == 401);
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn job_of_one_server_is_known_to_the_other() {
    const STATUS: &str = "/api/v1/video/status?request_id=job-1";
    let done = r#"{"status":"completed","video_url":"https://cdn.example/a.mp4"}"#;
    let latch = Latch::new();
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "POST" => Reply::video("job-1"),
        _ => Reply::new(200, done).when(latch),
    });
    let fleet = Fleet::start(Cluster::shared(), &upstream, "", 2);
    let ordered = fleet.buy(0, "/api/v1/video", "v", VIDEO);
    assert_eq!(ordered.status, 200, "{}", ordered.text());
    let mut watcher = fleet.client(1);
    let closing = [("connection", "close")];
    watcher.send("GET", "/bff/events?request_id=job-1", &closing, "");
    latch.open();
    let events = String::from_utf8_lossy(&watcher.rest()).into_owned();
    assert!(events.contains("https://cdn.example/a.mp4"), "{events}");
    let status = fleet.ask(1, "GET", STATUS, &[], "");
    assert_eq!((status.status, status.text().as_str()), (200, done));
    assert_eq!(upstream.charges(), [3_000_000]);
}

#[test]
fn server_with_another_secret_is_refused_while_others_depend_on_theirs() {
    const OTHER: [(&str, &str); 1] = [("TOLLGATE_SECRET", "zyxwvutsrqponmlkjihgfedcba9876543210")];
    const REFUSAL: &str = "other servers share this ledger and use another secret";
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, "mcp.enabled = true\n", 1);
    let mut refused = fleet.start_command(&["serve"], &OTHER);
    assert_eq!(refused.wait().code(), Some(2), "{}", refused.printed());
    assert!(refused.printed().contains(REFUSAL), "{}", refused.printed());
    let added = fleet.run_with(&["member", "add", "ann"], &OTHER);
    assert_eq!(added.code, Some(2), "{added:?}");
    assert!(added.stderr.contains(REFUSAL), "{added:?}");
    fleet.add();
    assert_eq!(fleet.buy(1, "/api/v1/chat", "k", CHAT).status, 200);
    // Without a member and without a server, nothing depends on it.
    for server in &mut fleet.servers {
        server.process.signal(Signal::SIGTERM);
        assert_eq!(server.process.wait().code(), Some(0));
    }
    fleet.add_with(&OTHER);
    assert_eq!(fleet.buy(2, "/api/v1/chat", "k", CHAT).status, 200);
}

mod long {
    use super::*;

    #[test]
    fn servers_notice_other_budgets_and_limits_and_sell_by_their_own() {
        let upstream = Upstream::start(|_| Reply::chat("hi"));
        let mut fleet = Fleet::start(Cluster::shared(), &upstream, "", 2);
        fleet.add_with(&[("TOLLGATE_BUDGET__TOTAL", "{ day = \"0.006\" }")]);
        let differing = |fleet: &Fleet<'_>, server: usize| {
            let metrics = fleet.ops(server, "/metrics").text();
            let line =
                metrics.lines().find_map(|line| line.strip_prefix("tollgate_settings_differ "));
            line.expect("a gauge").to_owned()
        };
        for (server, others) in [(0, "1"), (1, "1"), (2, "2")] {
            until("it notices", || differing(&fleet, server) == others);
            let printed = || fleet.servers[server].process.printed();
            until("it says so", || {
                printed().contains("other servers have other budgets or limits")
            });
        }
        let buy = |server, key: &str| fleet.buy(server, CHATS, key, &chat(key)).status;
        assert_eq!([buy(2, "a"), buy(2, "b"), buy(0, "c")], [200, 402, 200]);
        fleet.servers[2].process.signal(Signal::SIGTERM);
        until("it is gone", || differing(&fleet, 0) == "0");
    }
}

#[test]
fn reply_names_the_ledger_that_its_purchase_was_held_under() {
    const NAME: &str = "tollgate-ledger";
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch));
    let fleet = Fleet::start(Cluster::shared(), &upstream, "", 1);
    let lookup = [("idempotency-key", "k"), ("tollgate-replay", "only")];
    let name_now = || {
        let answer = fleet.ask(0, "POST", CHATS, &lookup, CHAT);
        answer.value(NAME).expect("a name").to_owned()
    };
    let before = name_now();
    let mut client = fleet.client(0);
    client.send("POST", CHATS, &[("idempotency-key", "lost")], &chat("lost"));
    upstream.wait_for(1);
    // A failover loses the purchase, and the next transaction notices it.
    fleet.database.sql("DELETE FROM purchases");
    fleet.database.sql("DELETE FROM batches");
    until("the ledger is renamed", || name_now() != before);
    latch.open();
    let reply = client.answer();
    assert_eq!((reply.status, reply.value(NAME)), (200, Some(&*before)), "{}", reply.text());
    // Else it would be bought again.
    let headers = [("idempotency-key", "lost"), (NAME, &*before)];
    let again = fleet.ask(0, "POST", CHATS, &headers, &chat("lost"));
    assert_eq!((again.status, again.code().as_str()), (412, "ledger_changed"));
    assert_eq!(upstream.charges().len(), 1);
}

#[test]
fn attempt_that_another_server_has_seen_overtaken_buys_nothing() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let fleet = Fleet::start(Cluster::shared(), &upstream, "", 2);
    let lookup = [("idempotency-key", "k"), ("tollgate-replay", "only")];
    assert_eq!(fleet.ask(0, "POST", CHATS, &lookup, CHAT).code(), "purchase_not_found");
    assert_eq!(fleet.buy(1, CHATS, "k", CHAT).code(), "attempt_superseded");
    let again = [("idempotency-key", "k"), ("x-stainless-retry-count", "1")];
    assert_eq!(fleet.ask(1, "POST", CHATS, &again, CHAT).status, 200);
    assert_eq!(upstream.charges(), [6_000]);
}

#[test]
fn refusal_of_one_server_concerns_marked_retries_at_the_other() {
    let upstream = Upstream::start(|received| match received.number {
        1 => Reply::error(429).header("retry-after", "0"),
        number => Reply::chat(&format!("answer {number}")),
    });
    let fleet = Fleet::start(Cluster::shared(), &upstream, "gateway.max_wait = \"0s\"", 2);
    let send = |server: usize, count: &str| {
        fleet.ask(server, "POST", CHATS, &[("x-stainless-retry-count", count)], CHAT)
    };
    let first = send(0, "0");
    assert_eq!(first.status, 200, "{}", first.text());
    until("it is delivered", || {
        fleet.database.sql("SELECT count(*) FROM purchases WHERE delivered = 1") == "1"
    });
    assert_eq!(send(0, "0").status, 503);
    // The refused request is retried at the other server, and is not answered by the one before.
    let mut retried = send(1, "1");
    until("the gateway is asked again", || {
        let is_refused = retried.status == 503;
        if is_refused {
            retried = send(1, "2");
        }
        !is_refused
    });
    assert_eq!((retried.status, retried.is_replay()), (200, false), "{}", retried.text());
    assert!(send(0, "1").is_replay());
    assert_eq!(upstream.charges().len(), 2);
}

#[test]
fn change_of_an_admin_is_made_once_over_both_servers() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let fleet = Fleet::start(Cluster::shared(), &upstream, "access.mode = \"members\"", 2);
    let added = fleet.run(&["member", "add", "root", "--role", "admin"]);
    let bearer = format!("Bearer {}", added.stdout.trim());
    let headers = [("Authorization", &*bearer), ("idempotency-key", "one")];
    let until_day = tollgate::clock::today();
    let extra = format!(r#"{{"amount": "5.00", "until": "{until_day}"}}"#);
    let raise =
        |server| fleet.ask(server, "POST", "/bff/admin/members/root/extra", &headers, &extra);
    until("both servers know root", || {
        [0, 1]
            .iter()
            .all(|server| fleet.ask(*server, "GET", "/bff/me", &headers[..1], "").status == 200)
    });
    let (first, again) = (raise(0), raise(1));
    assert_eq!((first.status, again.status), (201, 201), "{} {}", first.text(), again.text());
    assert!(!first.is_replay() && again.is_replay() && first.body == again.body);
    assert_eq!(fleet.database.sql("SELECT sum(micros) FROM extras"), "5000000");
}
