//! Whatever bytes come through a front, the gate answers each request to whom it belongs, and the
//! gateway hears nothing but purchases that were made.

use std::net::SocketAddr;

use crate::guarantees::heads::corpus::{self, NEXT};
use crate::long::fronts::front::{Front, Kind};
use crate::long::fronts::hidden;
use crate::support::client::Client;
use crate::support::{CHAT, Gate, Reply, Upstream};

/// Ends every connection that is still understood.
const LAST: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[test]
fn smuggled_requests_fail_behind_nginx() {
    through(Some(Kind::Nginx));
}

#[test]
fn smuggled_requests_fail_behind_haproxy() {
    through(Some(Kind::HaProxy));
}

#[test]
fn smuggled_requests_fail_behind_caddy() {
    through(Some(Kind::Caddy));
}

#[test]
fn smuggled_requests_fail_without_a_front() {
    through(None);
}

fn through(kind: Option<Kind>) {
    let upstream = Upstream::start(|received| {
        Reply::chat(received.json()["messages"][0]["content"].as_str().unwrap_or("nothing"))
    });
    let gate = Gate::start(
        &upstream,
        "server.hosts = [\"chat.example\"]\nserver.trusted_proxies = [\"127.0.0.1/32\"]",
    );
    let front = kind.map(|kind| Front::start(kind, gate.address()));
    let at = front.as_ref().map_or(gate.address(), Front::address);

    let known = [corpus::framing(), corpus::syntax(), corpus::hosts(), corpus::targets()];
    let known = known.into_iter().flatten().map(|(name, bytes, _)| (name.to_owned(), bytes));
    let mut bystander = Bystander { gate: &gate, at, asked: 0 };
    for (name, bytes) in known.chain(hidden::streams()) {
        let before = requests(&gate);
        let answers = attack(&gate, at, &bytes, kind);
        let seen = requests(&gate) - before;
        // An answer to what a front takes for HTTP/0.9 has no head.
        assert!(seen <= answers.max(1), "{name}: {seen} requests came, {answers} were answered");
        bystander.asks(&name);
    }
    assert!(bystander.asked > 150 && requests(&gate) > 200, "most of them were read");
    for received in upstream.received_requests() {
        let is_own =
            received.body == CHAT.as_bytes() || bystander.chats().any(|own| received.body == own);
        assert!(received.target == "/api/v1/chat" && is_own, "the gateway received {received:?}");
        let names = ["host", "authorization", "content-type", "content-length", "accept"];
        for (name, _) in &received.headers {
            let known =
                names.contains(&&**name) || ["accept-encoding", "user-agent"].contains(&&**name);
            assert!(known, "{received:?}");
        }
    }
}

/// Sends it and what it may have left room for; counts the answers.
fn attack(gate: &Gate, at: SocketAddr, bytes: &str, kind: Option<Kind>) -> usize {
    let mut client = gate.client_of(at);
    // Whoever refuses may stop to read.
    client.try_write(format!("{bytes}{NEXT}{LAST}").as_bytes()).ok();
    if kind == Some(Kind::HaProxy) {
        // Else it leaves some connections open. Others would give up the requests.
        client.end_of_requests();
    }
    let mut answers = 0;
    while client.try_answer().is_some() {
        answers += 1;
    }
    answers
}

/// Somebody who shares the front's connections to the gate with the attacker.
struct Bystander<'a> {
    gate: &'a Gate,
    at: SocketAddr,
    asked: usize,
}

impl Bystander<'_> {
    /// Asks, and gets the own answer.
    fn asks(&mut self, after: &str) {
        let id = format!("bystander-{}", self.asked);
        let own = chat_of(self.asked);
        self.asked += 1;
        let mut client: Client = self.gate.client_of(self.at);
        let headers = [("X-Request-Id", &*id), ("Idempotency-Key", &*id)];
        client.send("POST", "/api/v1/chat", &headers, &own);
        let answer = client.answer();
        assert_eq!(answer.value("x-request-id"), Some(&*id), "after {after}: {answer:?}");
        assert_eq!(answer.status, 200, "after {after}: {}", answer.text());
        assert!(answer.text().contains(&format!("\"{id}\"")), "after {after}: {}", answer.text());
    }

    fn chats(&self) -> impl Iterator<Item = Vec<u8>> + use<> {
        (0..self.asked).map(|number| chat_of(number).into_bytes())
    }
}

fn chat_of(number: usize) -> String {
    CHAT.replace("hello", &format!("bystander-{number}"))
}

/// How many requests the gate has answered.
fn requests(gate: &Gate) -> usize {
    let metrics = gate.metrics();
    let lines = metrics.lines().filter(|line| line.starts_with("tollgate_requests_total{"));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok()).sum()
}
