//! Requests that need the ledger wait while a start opens it. All others are answered at once.

use rusqlite::Connection;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio_postgres::NoTls;

use super::startup::ask;
use crate::support::bridge::Transport;
use crate::support::client::{Answer, Client};
use crate::support::fleet::Fleet;
use crate::support::login::Login;
use crate::support::login_service::{Browser, LoginService};
use crate::support::members::SECRET;
use crate::support::postgres::Cluster;
use crate::support::process::{Signal, run};
use crate::support::reply::Latch;
use crate::support::{CHAT, Gate, Reply, Upstream, until};

/// No test takes so long to let the ledger open.
const SETTINGS: &str = "store = { url = \"sqlite:ledger.db\", wait = \"600s\" }\n";
/// Purchases that wait at once.
const CHATS: usize = 24;

fn start(upstream: &Upstream, access: &str) -> Gate {
    Gate::binary_over(Transport::Plain, upstream, &format!("{access}{SETTINGS}"))
}

/// Kills the gate and starts it again, and keeps its ledger from being opened until `ask` has returned.
/// Does it again if that took longer than a server waits for another program's transaction.
fn while_opening<T>(gate: &mut Gate, mut ask: impl FnMut(&Gate) -> T) -> T {
    for _ in 0..20 {
        gate.kill();
        let before = gate.printed().len();
        let writer = Connection::open(gate.folder().join("ledger.db")).unwrap();
        writer.execute_batch("BEGIN IMMEDIATE").unwrap();
        gate.start_listening();
        let asked = ask(gate);
        let ready = operators(gate, "/readyz");
        writer.execute_batch("ROLLBACK").unwrap();
        until("it has started", || gate.printed()[before..].contains("\"started\""));
        if !gate.printed()[before..].contains("ledger unusable") {
            assert!(
                ready.status == 503 && ready.text().contains("\"starting\""),
                "{}",
                ready.text()
            );
            return asked;
        }
    }
    panic!("the ledger was never released in time");
}

/// Asserts that requests are answered at once that need no ledger, by a gate with this many other clients.
fn assert_others_are_served(gate: &Gate, clients: usize) {
    gate.wait_for_clients(clients);
    for target in ["/", "/healthz", "/bff/catalog", "/bff/openapi.json"] {
        assert_eq!(gate.get(target).status, 200, "{target}");
    }
    assert_eq!(operators(gate, "/healthz").status, 200);
}

fn operators(gate: &Gate, target: &str) -> Answer {
    let mut client = gate.admin_client();
    client.send("GET", target, &[], "");
    client.answer()
}

/// A request that signs in, and the status of its answer.
struct SignIn {
    method: &'static str,
    target: String,
    headers: Credentials,
    body: String,
    status: u16,
}

/// The headers of a caller.
type Credentials = Vec<(&'static str, String)>;

/// Kills a gate during a purchase. While it starts again, many requests come from a caller, and one that
/// signs somebody in.
fn restart_under_load(access: &str, caller: impl Fn(&Gate) -> (Credentials, Option<SignIn>)) {
    let latch = Latch::new();
    let upstream = Upstream::start(move |received| match received.number {
        0 => Reply::chat("lost").when(latch),
        _ => Reply::chat("hello"),
    });
    let mut gate = start(&upstream, access);
    let (credentials, sign_in) = caller(&gate);
    let send = |client: &mut Client, method: &str, target: &str, key: Option<&str>| {
        let mut headers: Vec<_> =
            credentials.iter().map(|(name, value)| (*name, value.as_str())).collect();
        headers.push(("x-tollgate", "1"));
        headers.extend(key.map(|key| ("idempotency-key", key)));
        client.send(method, target, &headers, if method == "POST" { CHAT } else { "" });
    };
    let mut lost = gate.client();
    send(&mut lost, "POST", "/api/v1/chat", Some("in-flight-at-the-kill"));
    upstream.wait_for(1);
    let mut attempt = 0;
    let (mut clients, is_early) = while_opening(&mut gate, |gate| {
        attempt += 1;
        let mut clients: Vec<_> = (0..CHATS + 3).map(|_| gate.client()).collect();
        let [again, me, signing, chats @ ..] = &mut clients[..] else { panic!("clients") };
        send(again, "POST", "/api/v1/chat", Some("in-flight-at-the-kill"));
        send(me, "GET", "/bff/me", None);
        if let Some(SignIn { method, target, headers, body, .. }) = &sign_in {
            let headers: Vec<_> =
                headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            signing.send(method, target, &headers, body);
        }
        for (number, client) in chats.iter_mut().enumerate() {
            let key = format!("chat-{number}-of-attempt-{attempt}");
            send(client, "POST", "/api/v1/chat", Some(&key));
        }
        assert_others_are_served(gate, CHATS + 3);
        let is_early = clients.iter().any(Client::has_news);
        (clients, is_early)
    });
    assert!(!is_early, "an answer came before the ledger was open");
    let [again, me, signing, chats @ ..] = &mut clients[..] else { panic!("clients") };
    let again = again.answer();
    assert_eq!((again.status, &*again.code()), (424, "outcome_unknown"), "{}", again.text());
    assert_eq!(me.answer().status, 200);
    if let Some(SignIn { status, .. }) = sign_in {
        let answer = signing.answer();
        assert_eq!(answer.status, status, "{}", answer.text());
    }
    for client in chats {
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(upstream.requests(), 1 + CHATS);
}

#[test]
fn restart_under_load_refuses_nobody_in_open_mode() {
    restart_under_load("", |_| (Vec::new(), None));
}

#[test]
fn restart_under_load_refuses_no_member() {
    restart_under_load("access.mode = \"members\"\n", |gate| {
        let added = run(gate.folder(), &["member", "add", "ann"], &[("TOLLGATE_SECRET", SECRET)]);
        let token = added.stdout.trim().to_owned();
        let bearer = vec![("authorization", format!("Bearer {token}"))];
        let knows = || {
            let headers: Vec<_> =
                bearer.iter().map(|(name, value)| (*name, value.as_str())).collect();
            gate.ask("GET", "/bff/me", &headers, "").status == 200
        };
        until("the gate knows the member", knows);
        let sign_in = SignIn {
            method: "POST",
            target: "/bff/login".to_owned(),
            headers: Vec::new(),
            body: json!({ "token": token }).to_string(),
            status: 204,
        };
        (bearer, Some(sign_in))
    });
}

#[test]
fn restart_under_load_refuses_no_bearer_of_a_jwt() {
    let login = Login::start();
    restart_under_load(&login.settings(), |_| {
        (vec![("authorization", login.token(&login.claims("ann", 3_600)))], None)
    });
}

#[test]
fn restart_under_load_refuses_no_user_of_a_login_service() {
    let service = LoginService::start();
    restart_under_load(&service.settings(""), |gate| {
        let (mut ann, mut bob) = (Browser::default(), Browser::default());
        assert_eq!(service.sign_in(gate, &mut ann, "ann").status, 303);
        let begun = service.begin(gate, &mut bob, "/bff/login");
        service.vouch(&service.claims(&begun, "bob"));
        let sign_in = SignIn {
            method: "GET",
            target: begun.callback(&[("code", "c1"), ("iss", &service.issuer())]),
            headers: vec![("cookie", cookie(&bob, "tollgate-login"))],
            body: String::new(),
            status: 303,
        };
        (vec![("cookie", cookie(&ann, "tollgate"))], Some(sign_in))
    });
}

fn cookie(browser: &Browser, name: &str) -> String {
    format!("{name}={}", browser.cookie(name).unwrap())
}

#[test]
fn client_that_disconnects_while_the_ledger_is_opened_buys_nothing() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let mut gate = start(&upstream, "");
    let large = CHAT.replace("hello", &"x".repeat(256 << 10));
    while_opening(&mut gate, |gate| {
        let mut clients = [gate.client(), gate.client()];
        clients[0].send("POST", "/api/v1/chat", &[], CHAT);
        clients[1].send("POST", "/api/v1/chat", &[], &large);
        assert_others_are_served(gate, 2);
    });
    gate.wait_for_clients(0);
    gate.signal(Signal::SIGTERM);
    assert_eq!(gate.wait().code(), Some(0));
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn stop_does_not_wait_for_the_ledger_to_open() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let mut gate = start(&upstream, "server.drain = \"600s\"\n");
    gate.kill();
    let writer = Connection::open(gate.folder().join("ledger.db")).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    gate.start_listening();
    let mut client = gate.client();
    client.send("POST", "/api/v1/chat", &[], CHAT);
    gate.wait_for_clients(1);
    gate.signal(Signal::SIGTERM);
    let answer = client.answer();
    drop(writer);
    assert!(answer.value("retry-after").is_some() && answer.charged().as_deref() == Some("no"));
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(gate.wait().code(), Some(0), "{}", gate.printed());
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn members_wait_until_a_start_has_read_their_list_from_a_shared_ledger() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let settings = "access.mode = \"members\"\nstore.wait = \"600s\"\n";
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, settings, 1);
    let added = fleet.run(&["member", "add", "ann"]);
    let bearer = format!("Bearer {}", added.stdout.trim());
    fleet.servers.clear();
    let runtime = Runtime::new().unwrap();
    let url = fleet.database.url();
    let (other, connection) = runtime.block_on(tokio_postgres::connect(&url, NoTls)).unwrap();
    runtime.spawn(connection);
    let run = |sql: &str| runtime.block_on(other.batch_execute(sql)).unwrap();
    for attempt in 0..20 {
        run("BEGIN; LOCK TABLE logins IN ACCESS EXCLUSIVE MODE");
        let server = fleet.start_command(&["serve"], &[]);
        let (page, admin) = server.listening();
        let mut client = Client::connect(page, &fleet.record());
        let key = format!("key-{attempt}");
        let headers = [("authorization", bearer.as_str()), ("idempotency-key", &key)];
        client.send("POST", "/api/v1/chat", &headers, CHAT);
        for at in [page, admin] {
            assert_eq!(ask(at, "GET", "/healthz", "").status, 200);
        }
        let is_early = client.has_news();
        run("ROLLBACK");
        let answer = client.answer();
        until("it has started", || server.printed().contains("\"started\""));
        // The server waits for a lock for five seconds.
        if !server.printed().contains("member list unreadable") {
            assert!(!is_early, "an answer came before the list was read");
            assert_eq!(answer.status, 200, "{}", answer.text());
            return;
        }
    }
    panic!("the list was never released in time");
}
