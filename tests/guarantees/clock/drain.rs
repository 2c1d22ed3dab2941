//! A drain that ends before the purchases in flight do.

use crate::support::process::Signal;
use crate::support::{CHAT, Ending, Gate, Reply, Upstream};

#[test]
fn drain_ends_and_logs_unfinished_purchases() {
    let upstream = Upstream::start(|_| Reply::nothing(Ending::Hang));
    let mut gate = Gate::binary(&upstream, "server.drain = \"300ms\"", &[]);
    let mut client = gate.client();
    client.send("POST", "/api/v1/chat", &[], CHAT);
    upstream.wait_for(1);
    gate.signal(Signal::SIGTERM);
    let answer = client.answer();
    assert_eq!((answer.status, answer.code().as_str()), (424, "outcome_unknown"));
    assert_eq!(answer.charged().as_deref(), Some("unknown"));
    assert!(answer.closes || client.try_answer().is_none());
    // A gate that ends waits a second for clients to close their connections.
    drop(client);
    assert_eq!(gate.wait().code(), Some(0));
    let printed = gate.printed();
    assert!(printed.contains("\"remaining\":1"), "{printed}");
}

#[test]
fn drain_end_answers_purchases_in_flight_like_their_retries() {
    let upstream = Upstream::start(|_| Reply::nothing(Ending::Hang));
    let settings = "store.url = \"sqlite:ledger.db\"\nserver.drain = \"300ms\"";
    let mut gate = Gate::binary(&upstream, settings, &[]);
    let key = |number: usize| format!("key-{number}");
    let mut buyers: Vec<_> = (0..8)
        .map(|number| {
            let mut client = gate.client();
            client.send("POST", "/api/v1/chat", &[("idempotency-key", &key(number))], CHAT);
            client
        })
        .collect();
    upstream.wait_for(8);
    gate.signal(Signal::SIGTERM);
    for client in &mut buyers {
        let answer = client.answer();
        assert_eq!((answer.status, answer.code().as_str()), (424, "outcome_unknown"));
        assert!(answer.closes || client.try_answer().is_none());
    }
    drop(buyers);
    assert_eq!(gate.wait().code(), Some(0));
    gate.restart();
    let again = gate.ask("POST", "/api/v1/chat", &[("idempotency-key", &key(0))], CHAT);
    assert_eq!((again.status, again.charged().as_deref()), (424, Some("unknown")));
    assert_eq!(upstream.requests(), 8);
}
