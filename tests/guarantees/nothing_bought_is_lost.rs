//! Guarantee 5: when the client goes away after the first byte was sent, the call is finished and
//! booked; and a shutdown waits for what is under way.

mod crashes;
mod disconnects;

use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use socket2::SockRef;

use crate::support::client::{Client, request};
use crate::support::process::Signal;
use crate::support::reply::Latch;
use crate::support::{CHAT, Ending, Gate, Reply, Upstream, VIDEO, until};

type Leaving = (&'static str, fn(&Client));

const LEAVINGS: &[Leaving] = &[
    ("by closing", |client| client.stream().shutdown(Shutdown::Both).unwrap()),
    ("by closing one way", |client| client.stream().shutdown(Shutdown::Write).unwrap()),
    ("by a reset", |client| {
        SockRef::from(client.stream()).set_linger(Some(Duration::ZERO)).unwrap();
    }),
];

/// Whether that many purchases ended so, as an operator sees it.
fn booked(gate: &Gate, service: &str, outcome: &str, count: u64) -> bool {
    let row =
        format!(r#"tollgate_purchases_total{{service="{service}",outcome="{outcome}"}} {count}"#);
    gate.metrics().lines().any(|line| line == row)
}

#[test]
fn disconnect_does_not_cut_the_purchase() {
    for (how, leave) in LEAVINGS {
        for (service, target, body) in
            [("chat", "/api/v1/chat", CHAT), ("video", "/api/v1/video", VIDEO)]
        {
            let latch = Latch::new();
            let upstream = Upstream::start(move |received| match received.target.as_str() {
                "/api/v1/chat" => Reply::chat("hi").when(latch),
                _ => Reply::video("job-1").when(latch),
            });
            let gate = Gate::start(&upstream, "");
            let mut client = gate.client();
            client.send("POST", target, &[], body);
            upstream.wait_for(1);
            leave(&client);
            drop(client);
            gate.wait_for_clients(0);
            latch.open();
            until("the purchase is booked", || booked(&gate, service, "charged", 1));
            assert_eq!(upstream.purchases(), 1, "{how}");
            // The video may be polled by now.
            let is_poll = |bytes: &Vec<u8>| bytes.starts_with(b"GET ");
            until("one connection is no poll's", || {
                upstream.received().iter().filter(|bytes| !is_poll(bytes)).count() == 1
            });
        }
    }
}

#[test]
fn disconnect_during_a_slow_reply_does_not_cut_the_purchase() {
    let upstream = Upstream::start(|_| Reply::chat(&"x".repeat(20_000)).dribbled());
    let gate = Gate::start(&upstream, "");
    let mut client = gate.client();
    client.send("POST", "/api/v1/chat", &[], CHAT);
    upstream.wait_for(1);
    drop(client);
    until("the purchase is booked", || booked(&gate, "chat", "charged", 1));
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn immediate_disconnect_buys_completely_or_not_at_all() {
    const CALLS: usize = 30;
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let gate = Gate::start(&upstream, "");
    for _ in 0..CALLS {
        let mut client = gate.client();
        client.send("POST", "/api/v1/chat", &[], CHAT);
    }
    assert_eq!(gate.chat().status, 200);
    until("whatever was sent is booked", || {
        let requests = upstream.requests() as u64;
        booked(&gate, "chat", "charged", requests) && upstream.requests() as u64 == requests
    });
    assert!(upstream.requests() <= CALLS + 1);
    assert!(!gate.metrics().contains("outcome=\"unknown\""), "{}", gate.metrics());
}

#[test]
fn unknown_outcome_after_a_disconnect_is_recorded() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch).cut(30, Ending::Reset));
    let gate = Gate::start(&upstream, "");
    let mut client = gate.client();
    client.send("POST", "/api/v1/chat", &[], CHAT);
    upstream.wait_for(1);
    drop(client);
    gate.wait_for_clients(0);
    latch.open();
    until("the purchase is booked", || booked(&gate, "chat", "unknown", 1));
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn incomplete_request_buys_nothing() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let gate = Gate::start(&upstream, "");
    let whole = request(gate.address(), "POST", "/api/v1/chat", &[], CHAT);
    for at in 1..whole.len() {
        let mut client = gate.client();
        client.write(&whole[..at]);
        client.end_of_requests();
        let rest = client.rest();
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{at}: {}", String::from_utf8_lossy(&rest));
    }
    assert_eq!(upstream.connections(), 0);
}

#[test]
fn sigterm_waits_for_the_purchase_in_flight() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let latch = Latch::new();
        let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch));
        let mut gate = Gate::binary(&upstream, "", &[]);
        let (mut idle, mut buying) = (gate.client(), gate.client());
        idle.send("GET", "/healthz", &[], "");
        assert_eq!(idle.answer().status, 200);
        buying.send("POST", "/api/v1/chat", &[], CHAT);
        upstream.wait_for(1);
        gate.signal(signal);
        // An idle connection is no reason to wait; while there is one, nobody new is let in.
        assert!(idle.try_answer().is_none());
        until("nobody new is let in", || TcpStream::connect(gate.behind_bridge()).is_err());
        let mut probe = gate.admin_client();
        probe.send("GET", "/readyz", &[], "");
        assert_eq!((probe.answer().status, upstream.requests()), (503, 1));

        latch.open();
        let answer = buying.answer();
        assert_eq!(
            (answer.status, answer.cost()),
            (200, Some(6_000)),
            "{signal}: {}",
            answer.text()
        );
        assert!(answer.closes || buying.try_answer().is_none());
        // A gate that ends waits a second for clients to close their connections.
        drop((idle, buying, probe));
        assert_eq!(gate.wait().code(), Some(0), "{signal}");
    }
}

#[test]
fn sigterm_waits_for_a_purchase_after_a_disconnect() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch));
    let mut gate = Gate::binary(&upstream, "", &[]);
    let mut client = gate.client();
    client.send("POST", "/api/v1/chat", &[], CHAT);
    upstream.wait_for(1);
    drop(client);
    gate.signal(Signal::SIGTERM);
    until("it is stopping", || gate.printed().contains("drain started"));
    latch.open();
    assert_eq!(gate.wait().code(), Some(0));
    let printed = gate.printed();
    let bought = |line: &str| line.contains("\"purchase\"") && line.contains("\"charged\"");
    assert!(printed.lines().any(bought), "{printed}");
}

#[test]
fn second_signal_exits_at_once() {
    let upstream = Upstream::start(|_| Reply::nothing(Ending::Hang));
    let mut gate = Gate::binary(&upstream, "", &[]);
    let mut client = gate.client();
    client.send("POST", "/api/v1/chat", &[], CHAT);
    upstream.wait_for(1);
    gate.signal(Signal::SIGTERM);
    until("it is stopping", || gate.printed().contains("drain started"));
    gate.signal(Signal::SIGINT);
    assert_eq!(gate.wait().code(), Some(1));
    assert!(client.try_answer().is_none());
    let printed = gate.printed();
    let warns =
        |line: &str| line.contains("stopping with purchases") && line.contains("\"remaining\":1");
    assert!(printed.lines().any(warns), "{printed}");
}
