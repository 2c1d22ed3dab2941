//! A server or the database dies: no purchase is lost or made twice, and all is said truly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::process::Signal;
use crate::support::{CHAT, Ending, Reply, Upstream, VIDEO, until, until_within};

const CHATS: &str = "/api/v1/chat";
/// A lease is 15 seconds, after which another server has to notice.
const BURIAL: Duration = Duration::from_secs(180);

fn chat(words: &str) -> String {
    CHAT.replace("hello", words)
}

#[test]
fn purchase_of_a_killed_server_becomes_unknown_at_the_others() {
    let is_done = Arc::new(AtomicBool::new(false));
    let has_ended = Arc::clone(&is_done);
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "GET" if has_ended.load(Ordering::SeqCst) => {
            Reply::new(200, r#"{"status":"completed","video_url":"https://cdn.example/a.mp4"}"#)
        }
        "GET" => Reply::new(200, r#"{"status":"running"}"#),
        _ if received.target.ends_with("/video") => Reply::video("job-1"),
        _ if received.json()["messages"][0]["content"] == "hang" => {
            Reply::nothing(Ending::Hang).charged(true)
        }
        _ => Reply::chat("hi"),
    });
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, "", 2);
    let answered = fleet.buy(0, CHATS, "done", CHAT);
    assert_eq!(answered.status, 200, "{}", answered.text());
    let ordered = fleet.buy(0, "/api/v1/video", "video", VIDEO);
    assert_eq!(ordered.status, 200, "{}", ordered.text());
    let mut client = fleet.client(0);
    client.send("POST", CHATS, &[("idempotency-key", "cut")], &chat("hang"));
    until("the gateway has the purchase", || upstream.purchases() == 3);
    fleet.servers[0].process.signal(Signal::SIGKILL);
    assert!(client.try_answer().is_none());
    is_done.store(true, Ordering::SeqCst);
    let replayed = fleet.buy(1, CHATS, "done", CHAT);
    assert!(replayed.is_replay());
    assert_eq!(replayed.body, answered.body);
    until_within(BURIAL, "the dead server is found out", || {
        fleet.instances().iter().any(|(name, state)| name == "gate-0" && state == "ended")
    });
    let repeated = fleet.buy(1, CHATS, "cut", &chat("hang"));
    assert_eq!(repeated.status, 424, "{}", repeated.text());
    assert_eq!(repeated.charged().as_deref(), Some("unknown"));
    assert_eq!(fleet.database.sql("SELECT count(*) FROM purchases WHERE ended_at IS NULL"), "0");
    // Nobody watches the video of the dead server, and another one polls it.
    let open = "SELECT count(*) FROM jobs WHERE state = 'open'";
    until("the video has ended", || fleet.database.sql(open) == "0");
    // In the place of the dead one, another sells.
    fleet.add();
    assert_eq!(fleet.buy(2, CHATS, "next", &chat("next")).status, 200);
    assert_eq!(fleet.buy(2, CHATS, "cut", &chat("hang")).status, 424);
    let mut charges = upstream.charges();
    charges.sort_unstable();
    assert_eq!(charges, [6_000, 6_000, 6_000, 3_000_000]);
}

#[test]
fn server_that_stops_signs_off() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, "", 2);
    fleet.servers[0].process.signal(Signal::SIGTERM);
    assert_eq!(fleet.servers[0].process.wait().code(), Some(0));
    let named = |name: &str, state: &str| (name.to_owned(), state.to_owned());
    assert_eq!(fleet.instances(), [named("gate-0", "ended"), named("gate-1", "alive")]);
    assert_eq!(fleet.buy(1, CHATS, "k", CHAT).status, 200);
}

#[test]
fn server_that_others_have_ended_is_not_ready() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let fleet = Fleet::start(Cluster::shared(), &upstream, "", 1);
    assert_eq!(fleet.ops(0, "/readyz").status, 200);
    // A ledger that was moved keeps it from joining again.
    fleet.database.sql(
        "UPDATE store SET moved_to = 'elsewhere', moved_at = 1; UPDATE instances SET ended = until",
    );
    until("the probe says so", || {
        let ready = fleet.ops(0, "/readyz");
        ready.status == 503 && ready.text().contains("declared_dead")
    });
    until("its lease has ended", || {
        fleet.ops(0, "/metrics").text().contains("\ntollgate_lease_seconds 0\n")
    });
    fleet.database.sql("UPDATE store SET moved_to = NULL, moved_at = NULL");
    until("it is ready again", || fleet.ops(0, "/readyz").status == 200);
}

#[test]
fn nothing_is_sold_while_the_database_is_down() {
    let cluster = Cluster::start("");
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let fleet = Fleet::start(&cluster, &upstream, "", 1);
    let before = fleet.buy(0, CHATS, "before", CHAT);
    assert_eq!(before.status, 200, "{}", before.text());
    cluster.crash();
    let refused = fleet.buy(0, CHATS, "during", &chat("during"));
    assert_eq!((refused.status, &*refused.code()), (503, "ledger_unavailable"));
    assert_eq!(refused.charged().as_deref(), Some("no"));
    assert!(refused.value("retry-after").is_some(), "{refused:?}");
    // Another server would not do better.
    let is_degraded = || {
        let ready = fleet.ops(0, "/readyz");
        assert_eq!(ready.status, 200, "{}", ready.text());
        ready.json()["degraded"].as_array().is_some_and(|all| all.iter().any(|one| one == "ledger"))
    };
    until("the probe says that the ledger is out of reach", is_degraded);
    assert_eq!(fleet.ask(0, "GET", "/bff/catalog", &[], "").status, 200);
    assert_eq!(upstream.purchases(), 1);
    cluster.recover();
    until("it sells again", || fleet.buy(0, CHATS, "after", &chat("after")).status == 200);
    until("it replays again", || {
        let replayed = fleet.buy(0, CHATS, "before", CHAT);
        replayed.is_replay() && replayed.body == before.body
    });
    assert_eq!(upstream.charges(), [6_000; 2]);
    until("the probe says that it is back", || !is_degraded());
}

#[test]
fn purchase_that_waits_after_a_429_is_not_sent_once_others_have_ended_it() {
    let sent = AtomicUsize::new(0);
    let upstream = Upstream::start(move |_| match sent.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::error(429).header("retry-after", "15"),
        _ => Reply::chat("hi"),
    });
    let settings = "gateway.max_wait = \"600s\"";
    let fleet = Fleet::start(Cluster::shared(), &upstream, settings, 1);
    let mut client = fleet.client(0);
    client.send("POST", CHATS, &[("idempotency-key", "k")], CHAT);
    until("the server waits", || {
        fleet.database.sql("SELECT blocked_until > 0 FROM rate_limit") == "t"
    });
    // What another server does when this one was stopped for longer than its lease.
    fleet.database.sql(
        "UPDATE instances SET ended = until; UPDATE purchases SET state = 'unknown', ended_at = at",
    );
    let alive = "SELECT count(*) FROM instances WHERE ended IS NULL";
    until("it joins again", || fleet.database.sql(alive) == "1");
    let refused = client.answer();
    assert_eq!((refused.status, &*refused.code()), (503, "ledger_unavailable"));
    assert_eq!(refused.charged().as_deref(), Some("no"));
    assert_eq!(upstream.requests(), 1);
    // It knows that nothing was charged, and says so.
    until("the purchase is released", || {
        fleet.database.sql("SELECT state FROM purchases") == "released"
    });
    assert_eq!(fleet.buy(0, CHATS, "k", CHAT).status, 200);
}
