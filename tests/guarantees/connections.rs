//! Connections to the gateway: what comes on one that nobody asked for is nobody's answer.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::support::{Gate, Reply, Upstream};

const ROUNDS: usize = 120;

fn chat(words: &str) -> String {
    format!(r#"{{"model":"alpha-sonnet-4.5","messages":[{{"role":"user","content":"{words}"}}]}}"#)
}

/// The gateway answers each request twice, in two segments, the second one about when the next request
/// comes.
#[test]
fn stray_reply_is_never_the_answer_to_another_request() {
    let upstream = Upstream::start(|received| {
        let words = received.json()["messages"][0]["content"].as_str().unwrap().to_owned();
        let pause = Duration::from_micros(received.number as u64 * 53 % 1_300);
        Reply::chat(&format!("answer to {words}"))
            .followed_by(pause, &Reply::chat(&format!("second answer to {words}")))
    });
    let gate = Gate::start(&upstream, "");
    let callers = ["ann", "ben", "eve"];
    let mut clients: Vec<_> =
        (1..=3).map(|n| gate.client_from(Ipv4Addr::new(127, 0, 1, n), gate.address())).collect();
    for round in 0..ROUNDS {
        for (caller, client) in callers.iter().zip(&mut clients) {
            client.send("POST", "/api/v1/chat", &[], &chat(&format!("{round} by {caller}")));
            let answer = client.answer();
            let text = answer.text();
            assert_eq!(answer.status, 200, "{text}");
            let own = format!("\"answer to {round} by {caller}\"");
            assert!(text.contains(&own), "{caller} in round {round}: {text}");
        }
    }
    assert_eq!(upstream.requests(), ROUNDS * callers.len());
}
