//! Where a client leaves decides: before the first byte was sent, nothing is bought; after it, the
//! purchase is finished and its reply is kept for its key.

use crate::support::client::request;
use crate::support::reply::Latch;
use crate::support::upstream::Welcome;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream, VIDEO, until};

/// What one video costs, and no more.
const ONE_VIDEO: &str = "budget.total = { day = \"3.00\" }";

fn replied(_: &crate::support::received::ReceivedRequest) -> Reply {
    Reply::video("job-1")
}

#[test]
fn incomplete_request_holds_nothing() {
    for store in STORES {
        let upstream = Upstream::start(replied);
        let gate = Gate::start(&upstream, &format!("{store}\n{ONE_VIDEO}"));
        let whole = request(gate.address(), "POST", "/api/v1/video", &[], VIDEO);
        for at in (1..whole.len()).step_by(7) {
            gate.client().write(&whole[..at]);
        }
        gate.wait_for_clients(0);
        assert_eq!(upstream.connections(), 0);
        assert_eq!(gate.video().status, 200, "{store}");
    }
}

#[test]
fn disconnect_before_the_gateway_connection_releases_the_hold() {
    for store in STORES {
        let upstream = Upstream::closed(1, |_| Welcome::Serve, replied);
        upstream.fill_backlog();
        let settings = format!("{store}\n{ONE_VIDEO}\ngateway.connect_timeout = \"60s\"");
        let gate = Gate::start(&upstream, &settings);
        let mut client = gate.client();
        client.send("POST", "/api/v1/video", &[("idempotency-key", "k")], VIDEO);
        until("it waits for a connection", || upstream.is_waited_for());
        // While it waits, its price is set aside.
        assert_eq!(gate.video().code(), "budget_exhausted", "{store}");
        drop(client);
        gate.wait_for_clients(0);
        upstream.open();
        until("the connection is made", || !upstream.is_waited_for());
        // There is money for one: another gets it as soon as the first is given up.
        until("the price is given back", || gate.video().status == 200);
        assert_eq!(upstream.charges(), [3_000_000], "{store}");
        let written = upstream.received().iter().filter(|bytes| !bytes.is_empty()).count();
        assert_eq!(written, 1, "not a byte on the first connection");
    }
}

#[test]
fn one_of_two_waiting_clients_may_disconnect_before_the_first_byte() {
    let upstream = Upstream::closed(1, |_| Welcome::Serve, replied);
    upstream.fill_backlog();
    let settings = format!("{ONE_VIDEO}\ngateway.connect_timeout = \"60s\"");
    let gate = Gate::start(&upstream, &settings);
    let headers = [("idempotency-key", "k")];
    let (mut first, mut second) = (gate.client(), gate.client());
    first.send("POST", "/api/v1/video", &headers, VIDEO);
    until("it waits for a connection", || upstream.is_waited_for());
    second.send("POST", "/api/v1/video", &headers, VIDEO);
    // Both are in: a third with another payload finds the key taken, and came later.
    let other = VIDEO.replace("lighthouse", "tide");
    assert_eq!(gate.ask("POST", "/api/v1/video", &headers, &other).status, 422);
    drop(first);
    gate.wait_for_clients(1);
    upstream.open();
    let answer = second.answer();
    assert_eq!((answer.status, answer.value("idempotent-replayed")), (200, Some("true")));
    assert_eq!(upstream.charges(), [3_000_000]);
}

#[test]
fn disconnect_after_the_first_byte_keeps_the_reply_for_its_key() {
    for store in STORES {
        let latch = Latch::new();
        let upstream = Upstream::start(move |_| Reply::video("job-1").when(latch));
        let mut gate = Gate::start(&upstream, &format!("{store}\n{ONE_VIDEO}"));
        let headers = [("idempotency-key", "k")];
        let mut client = gate.client();
        client.send("POST", "/api/v1/video", &headers, VIDEO);
        upstream.wait_for(1);
        drop(client);
        gate.wait_for_clients(0);
        latch.open();
        if store.contains("sqlite") {
            // A stop waits for it.
            gate.restart();
        }
        let kept = gate.ask("POST", "/api/v1/video", &headers, VIDEO);
        assert_eq!((kept.status, kept.value("idempotent-replayed")), (200, Some("true")));
        assert_eq!((kept.cost(), kept.body), (Some(3_000_000), Reply::video("job-1").body()));
        assert_eq!(upstream.charges(), [3_000_000], "{store}");
    }
}

#[test]
fn disconnect_during_the_reply_keeps_it_for_its_key() {
    for store in STORES {
        let upstream = Upstream::start(|_| Reply::chat(&"x".repeat(50_000)));
        let gate = Gate::start(&upstream, store);
        let headers = [("idempotency-key", "k")];
        let mut whole = Vec::new();
        for read in [1, 12, 100, 10_000] {
            let mut client = gate.narrow_client();
            client.send("POST", "/api/v1/chat", &headers, CHAT);
            let mut some = vec![0; read];
            std::io::Read::read_exact(&mut client.stream(), &mut some).unwrap();
            drop(client);
            let again = gate.ask("POST", "/api/v1/chat", &headers, CHAT);
            assert_eq!((again.status, again.value("idempotent-replayed")), (200, Some("true")));
            assert!(whole.is_empty() || whole == again.body, "{store}");
            whole = again.body;
        }
        assert_eq!(whole.len(), Reply::chat(&"x".repeat(50_000)).body().len());
        assert_eq!(upstream.charges(), [6_000], "{store}");
    }
}
