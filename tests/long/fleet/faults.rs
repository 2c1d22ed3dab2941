//! A server or the database dies: no purchase is lost or made twice, and all is said truly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::trial::RECOVERY;
use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::process::Signal;
use crate::support::{CHAT, Ending, Reply, Upstream, VIDEO, until, until_within};

const CHATS: &str = "/api/v1/chat";
/// Others end what a dead server has sent after 50 seconds.
const SHORT: &str =
    "gateway.max_wait = \"5s\"\ngateway.chat_timeout = \"10s\"\ngateway.video_timeout = \"10s\"\n";

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
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, SHORT, 2);
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
    let mut repeated = fleet.buy(1, CHATS, "cut", &chat("hang"));
    until_within(RECOVERY, "its deadline has passed", || {
        // It waits for the end, or is told that the purchase is in progress.
        if repeated.status != 424 {
            assert_eq!(repeated.status, 409, "{}", repeated.text());
            repeated = fleet.buy(1, CHATS, "cut", &chat("hang"));
        }
        repeated.status == 424
    });
    assert_eq!(repeated.charged().as_deref(), Some("unknown"));
    assert_eq!(fleet.database.sql("SELECT count(*) FROM purchases WHERE ended_at IS NULL"), "0");
    // Nobody watches the video of the dead server, and another one polls it.
    let open = "SELECT count(*) FROM jobs WHERE state = 'open'";
    until("the video has ended", || fleet.database.sql(open) == "0");
    let states = fleet.instances();
    assert!(states.iter().any(|(name, state)| name == "gate-0" && state == "late"), "{states:?}");
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
        0 => Reply::error(429).header("retry-after", "3"),
        _ => Reply::chat("hi"),
    });
    let fleet = Fleet::start(Cluster::shared(), &upstream, SHORT, 2);
    let mut client = fleet.client(0);
    client.send("POST", CHATS, &[("idempotency-key", "k")], CHAT);
    let blocked = "SELECT blocked_until > 0 FROM ledger";
    until("the server waits", || fleet.database.sql(blocked) == "t");
    let process = &fleet.servers[0].process;
    process.signal(Signal::SIGSTOP);
    let state = || fleet.database.sql("SELECT state FROM purchases");
    until_within(RECOVERY, "the other server ends the purchase", || state() == "unknown");
    process.signal(Signal::SIGCONT);
    let refused = client.answer();
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(refused.charged().as_deref(), Some("no"));
    assert_eq!(upstream.requests(), 1);
    // It knows that nothing was charged, and says so.
    until("the purchase is released", || state() == "released");
    assert_eq!(fleet.buy(0, CHATS, "k", CHAT).status, 200);
}
