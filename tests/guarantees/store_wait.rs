//! A start that waits for the server that has the ledger (`store.wait`).

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;

use super::startup::ask;
use crate::support::client::Client;
use crate::support::process::{Process, Signal};
use crate::support::server::ReservedPort;
use crate::support::{CHAT, until};

fn start(folder: &Path, page: SocketAddr, admin: SocketAddr, wait: &str) -> Process {
    let (page, admin) = (page.to_string(), admin.to_string());
    let environment = [
        ("TOLLGATE_SERVER__LISTEN", page.as_str()),
        ("TOLLGATE_ADMIN__LISTEN", &admin),
        ("TOLLGATE_STORE__URL", "sqlite:ledger.db"),
        ("TOLLGATE_STORE__WAIT", wait),
        ("TOLLGATE_SANDBOX__REPLY_DELAY", "0s"),
    ];
    Process::start(folder, &environment)
}

#[test]
fn next_server_takes_over_when_the_last_one_has_stopped() {
    let folder = TempDir::with_prefix("tollgate-wait-").unwrap();
    let ports = [(); 4].map(|()| ReservedPort::new());
    let [page, admin, next_page, next_admin] = ports.each_ref().map(ReservedPort::address);
    let mut first = start(folder.path(), page, admin, "0s");
    first.address("page");
    let mut next = start(folder.path(), next_page, next_admin, "300s");
    let record = Arc::default();
    until("it answers probes", || Client::try_connect(next_admin, &record).is_some());
    assert_eq!(ask(next_admin, "GET", "/healthz", "").status, 200);
    let ready = ask(next_admin, "GET", "/readyz", "");
    assert!(ready.status == 503 && ready.text().contains("\"starting\""), "{}", ready.text());
    until("the wait is logged", || next.printed().contains("holds the ledger lock"));
    assert!(next.printed().contains(&format!("\"pid\":{}", first.id())), "{}", next.printed());
    // It waits in the queue of the socket.
    let mut queued = Client::connect(next_page, &record);
    queued.send("POST", "/api/v1/chat", &[("idempotency-key", "queued")], CHAT);
    assert_eq!(ask(page, "POST", "/api/v1/chat", CHAT).status, 200);
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait().code(), Some(0), "{}", first.printed());
    next.address("page");
    let answer = queued.answer();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(ask(next_page, "POST", "/api/v1/chat", CHAT).status, 200);
    assert_eq!(ask(next_admin, "GET", "/readyz", "").status, 200);
    next.signal(Signal::SIGTERM);
    assert_eq!(next.wait().code(), Some(0), "{}", next.printed());
}

#[test]
fn wait_ends_at_its_limit_and_at_a_signal() {
    let folder = TempDir::with_prefix("tollgate-wait-").unwrap();
    let ports = [(); 4].map(|()| ReservedPort::new());
    let [page, admin, next_page, next_admin] = ports.each_ref().map(ReservedPort::address);
    let first = start(folder.path(), page, admin, "0s");
    first.address("page");
    let mut short = start(folder.path(), next_page, next_admin, "50ms");
    assert_eq!(short.wait().code(), Some(1), "{}", short.printed());
    let named = format!("another server uses the ledger: process {}", first.id());
    assert!(short.printed().contains(&named), "{}", short.printed());
    let mut stopped = start(folder.path(), next_page, next_admin, "300s");
    until("the wait is logged", || stopped.printed().contains("holds the ledger lock"));
    stopped.signal(Signal::SIGTERM);
    assert_eq!(stopped.wait().code(), Some(0), "{}", stopped.printed());
}
