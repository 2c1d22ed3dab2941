//! Guarantee 7 for commands: what they ask has its place in the account's window, too, whether a server
//! runs beside them or not.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::commands::fixture::{CHAT_BODY, Fixture, Server, post};
use crate::commands::recorder::{recorder, telling};
use crate::support::server::{ReservedPort, exchange};
use crate::support::{Upstream, until};

const LIMIT: usize = 3;
const PERIOD: Duration = Duration::from_secs(2);

/// A fixture before a gateway that remembers, with a small window.
fn fixture() -> (Fixture, Upstream) {
    let (fixture, recorder) = (Fixture::open(), recorder());
    let settings = format!(
        "[gateway]\nbase_url = \"http://{}\"\nrate_limit = {{ requests = {LIMIT}, seconds = {} }}\n\
         [page]\nmedia_origins = [\"https://cdn.example\"]\n",
        recorder.address(),
        PERIOD.as_secs()
    );
    fs::write(fixture.folder.path().join("proxy.toml"), settings).unwrap();
    (fixture, recorder)
}

fn buy(server: &Server, key: &str) {
    let header = format!("Idempotency-Key: {key}");
    let answer = post(server.address, "/api/v1/chat", &header, CHAT_BODY);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// A server that has asked for the books and sold until its window was full.
fn busy(fixture: &Fixture, recorder: &Upstream) -> Server {
    let server = fixture.serve();
    until("a start notes a checkpoint", || fixture.checked().is_some());
    for number in 1..LIMIT {
        buy(&server, &number.to_string());
    }
    assert_eq!(recorder.arrivals().len(), LIMIT);
    server
}

/// The whole answer to a request of the admin listener.
fn ask(admin: SocketAddr, method: &str, host: &str, header: &str) -> String {
    let more = header.split_once(": ").map(|(name, value)| (name, value.trim_end()));
    let headers: Vec<_> = more.into_iter().chain([("Host", host)]).collect();
    exchange(admin, method, "/billing", &headers, "")
}

#[test]
fn reconcile_waits_for_a_slot_of_the_running_server() {
    let (fixture, recorder) = fixture();
    let server = busy(&fixture, &recorder);
    let out = fixture.done(&["reconcile"]);
    assert!(out.contains("gateway    $0.00 spent"), "{out}");
    assert_eq!(recorder.arrivals().len(), LIMIT + 1, "it asked, once");
    buy(&server, "after");
    recorder.assert_held(LIMIT, PERIOD);
}

#[test]
fn reconcile_without_a_server_counts_earlier_requests_and_is_counted() {
    let (fixture, recorder) = fixture();
    drop(busy(&fixture, &recorder));
    for _ in 0..LIMIT {
        fixture.done(&["reconcile", "--dry-run"]);
    }
    assert_eq!(recorder.arrivals().len(), 2 * LIMIT);
    let server = fixture.serve();
    buy(&server, "after");
    recorder.assert_held(LIMIT, PERIOD);
}

#[test]
fn commands_use_the_rate_limit_reported_to_the_server() {
    let (fixture, recorder) = (Fixture::open(), telling(LIMIT, PERIOD.as_secs()));
    let settings = format!(
        "[gateway]\nbase_url = \"http://{}\"\n[page]\nmedia_origins = [\"https://cdn.example\"]\n",
        recorder.address()
    );
    fs::write(fixture.folder.path().join("proxy.toml"), settings).unwrap();
    drop(busy(&fixture, &recorder));
    for _ in 0..LIMIT {
        fixture.done(&["reconcile", "--dry-run"]);
    }
    assert_eq!(recorder.arrivals().len(), 2 * LIMIT);
    recorder.assert_held(LIMIT, PERIOD);
}

#[test]
fn check_online_takes_slots_of_the_recorded_rate_limit() {
    let (fixture, recorder) = fixture();
    let out = fixture.done(&["check", "--online"]);
    assert!(out.contains("without a ledger"), "{out}");
    assert!(!fixture.path().exists(), "nobody but the server makes a ledger");
    // What it sent is recorded nowhere.
    let before = recorder.arrivals().len();
    drop(fixture.serve());
    for _ in 0..2 {
        let out = fixture.done(&["check", "--online"]);
        assert!(out.contains("each key takes one slot"), "{out}");
        assert!(out.contains("key 2     accepted") && out.contains("balance   $42.10"), "{out}");
    }
    assert!(recorder.arrivals().len() >= before + 4, "each key is tried");
    recorder.assert_held_after(before, LIMIT, PERIOD);
}

#[test]
fn check_online_asks_the_running_server_and_reports_its_keys() {
    let (fixture, recorder) = fixture();
    let server = busy(&fixture, &recorder);
    let out = fixture.done(&["check", "--online"]);
    for says in [
        "asked     by the running server (process ",
        "key 1     not tried; listed as svc_sk_CANARY_01…",
        "key 2     not tried; no listed key matches it",
        "balance   $42.10",
    ] {
        assert!(out.contains(says), "{says}: {out}");
    }
    assert_eq!(recorder.arrivals().len(), LIMIT + 1);
    recorder.assert_held(LIMIT, PERIOD);
    drop(server);
}

#[test]
fn command_sends_nothing_if_the_running_server_cannot_be_asked() {
    let (fixture, recorder) = fixture();
    let server = fixture.server();
    let port = ReservedPort::new();
    let closed = port.address().to_string();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let wrong = other.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in other.incoming().flatten() {
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n";
            stream.write_all(answer.as_bytes()).ok();
        }
    });
    for admin in [&closed, &wrong] {
        for command in [&["reconcile"][..], &["reconcile", "--dry-run"], &["check", "--online"]] {
            let ended = fixture.run(command, &[("TOLLGATE_ADMIN__LISTEN", admin)]);
            assert_eq!(ended.code, Some(1), "{command:?}: {}", ended.said());
            let process = std::process::id();
            for says in [&format!("process {process}"), admin, "was not asked", "or stop the"] {
                assert!(ended.err.contains(says), "{command:?}: {says}: {}", ended.err);
            }
        }
    }
    assert_eq!(recorder.arrivals().len(), 0);
    drop(server);
}

#[test]
fn ops_listener_shows_billing_to_operators_but_not_to_pages() {
    let (fixture, recorder) = fixture();
    let server = fixture.serve();
    let admin = server.admin;
    let own = admin.to_string();
    for (method, host, header, status) in [
        ("GET", "evil.example", "", "421"),
        ("GET", "192.0.2.7:9464", "", "421"),
        ("GET", own.as_str(), "Origin: http://evil.example\r\n", "403"),
        ("GET", own.as_str(), "Sec-Fetch-Site: cross-site\r\n", "403"),
        ("GET", own.as_str(), "Sec-Fetch-Site: same-site\r\n", "403"),
        ("OPTIONS", own.as_str(), "", "405"),
        ("POST", own.as_str(), "Content-Length: 0\r\n", "405"),
    ] {
        let answer = ask(admin, method, host, header);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{method} {host}: {answer}");
        assert!(!answer.contains("4210") && !answer.contains("access-control"), "{answer}");
    }
    for host in [own.as_str(), "localhost:1"] {
        let answer = ask(admin, "GET", host, "");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("no-store"), "{answer}");
        assert!(answer.contains(r#""balanceCents":4210"#), "{answer}");
        assert!(
            !answer.contains("access-control") && !answer.contains("0123456789abc"),
            "{answer}"
        );
    }
    recorder.assert_held(LIMIT, PERIOD);
}
