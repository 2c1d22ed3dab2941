//! `stream: true`: signs of life while the gateway works, then the whole answer; and nothing lost or
//! bought twice, whoever hangs up when.

use super::CHATS;
use crate::support::client::{Answer, Client};
use crate::support::reply::Latch;
use crate::support::{CHAT, Ending, Gate, Reply, STORES, Upstream, until};

fn streamed() -> String {
    CHAT.replacen('{', r#"{"stream":true,"#, 1)
}

/// The text of a whole stream, which must be well formed.
fn text(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let events = answer.events();
    assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    for event in &events {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!((&event["id"], &event["model"]), (&events[0]["id"], &events[0]["model"]));
    }
    let delta = |event: &serde_json::Value| event["choices"][0]["delta"].clone();
    assert_eq!(delta(&events[0])["role"], "assistant");
    let last = events.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    let texts =
        events.iter().filter_map(|event| delta(event)["content"].as_str().map(str::to_owned));
    texts.collect()
}

fn stream(gate: &Gate, headers: &[(&str, &str)]) -> Answer {
    gate.ask("POST", CHATS, headers, &streamed())
}

#[test]
fn stream_is_the_whole_text_in_chunks_and_done() {
    let long = "日本語 \u{2028} \"x\"\r\n".repeat(3_000);
    for content in ["hi", "", &long] {
        let reply = content.to_owned();
        let upstream = Upstream::start(move |_| Reply::chat(&reply));
        let gate = Gate::start(&upstream, "");
        let answer = stream(&gate, &[]);
        assert_eq!(answer.value("content-type"), Some("text/event-stream"));
        assert_eq!(answer.value("x-accel-buffering"), Some("no"));
        assert_eq!(text(&answer), content);
        assert_eq!((answer.cost(), upstream.charges()), (Some(6_000), vec![6_000]));
        let received = upstream.received_requests()[0].json();
        assert_eq!(received.get("stream"), None, "how it travels is between the caller and us");
    }
}

#[test]
fn stream_sends_keep_alives_before_the_reply() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("worth the wait").when(latch));
    let gate = Gate::start(&upstream, "");
    let answer = late_stream(&gate, latch);
    assert!(answer.text().starts_with(": keep-alive\n\n"), "{}", answer.text());
    assert_eq!(text(&answer), "worth the wait");
    assert_eq!(answer.value("tollgate-cost"), None, "nobody knew yet");
    assert_eq!(answer.cost(), Some(6_000), "the last chunk says it");
    assert_eq!(upstream.charges(), [6_000]);
}

#[test]
fn refusal_before_sending_is_a_plain_status() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    for (settings, body, status, code) in [
        ("budget.total = { day = \"0.001\" }", streamed(), 402, "budget_exhausted"),
        ("", streamed().replace("alpha-sonnet-4.5", "gpt-4o"), 422, "invalid_request"),
        ("", streamed().replace("hello", ""), 422, "invalid_request"),
    ] {
        let gate = Gate::start(&upstream, settings);
        let answer = gate.post(CHATS, &body);
        assert_eq!((answer.status, answer.code().as_str()), (status, code));
        assert_eq!(answer.value("content-type"), Some("application/json"));
    }
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn immediate_gateway_refusal_is_a_plain_status() {
    for (reply, status, charged) in [
        (Reply::error(402), 402, "no"),
        (Reply::error(400), 400, "no"),
        (Reply::error(502).charged(true), 424, "unknown"),
        (Reply::nothing(Ending::Fin).charged(true), 424, "unknown"),
    ] {
        // A stream begins a second after the purchase was sent.
        let mut answered = None;
        until("a reply comes within a second", || {
            let reply = reply.clone();
            let upstream = Upstream::start(move |_| reply.clone());
            let answer = stream(&Gate::start(&upstream, ""), &[]);
            answered = (answer.status != 200).then_some((upstream, answer));
            answered.is_some()
        });
        let (upstream, answer) = answered.expect("until it was there");
        assert_eq!((answer.status, answer.charged().as_deref()), (status, Some(charged)));
        assert_eq!(answer.value("x-should-retry"), Some("false"));
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(status == 424 || message.contains("as the gateway words a"), "{message}");
        assert_eq!(upstream.requests(), 1);
    }
}

#[test]
fn problem_after_the_stream_began_is_an_error_event() {
    for (reply, charged) in
        [(Reply::nothing(Ending::Fin).charged(true), "unknown"), (Reply::error(402), "no")]
    {
        let latch = Latch::new();
        let upstream = Upstream::start(move |_| reply.clone().when(latch));
        let gate = Gate::start(&upstream, "");
        let answer = late_stream(&gate, latch);
        assert_eq!(answer.status, 200);
        assert!(!answer.text().contains("[DONE]") && answer.text().starts_with(": keep-alive\n\n"));
        let events = answer.events();
        let [event] = &events[..] else { panic!("one event: {}", answer.text()) };
        assert_eq!(event["error"]["charged"], charged, "{event}");
        assert!(event["error"]["message"].is_string());
        assert_eq!(upstream.requests(), 1);
    }
}

#[test]
fn disconnect_within_a_stream_keeps_the_reply() {
    for store in STORES {
        let latch = Latch::new();
        let upstream = Upstream::start(move |_| Reply::chat("kept").when(latch));
        let gate = Gate::start(&upstream, store);
        let (mut lost, mut again) = (gate.client(), gate.client());
        lost.send("POST", CHATS, &[], &streamed());
        wait_for_a_sign(&lost);
        drop(lost);
        // It joins the running one.
        again.send("POST", CHATS, &[("x-stainless-retry-count", "1")], &streamed());
        gate.catch_up();
        latch.open();
        let again = again.answer();
        assert_eq!((text(&again).as_str(), again.is_replay()), ("kept", true), "{store}");
        let whole = gate.ask("POST", CHATS, &[("x-stainless-retry-count", "2")], CHAT);
        assert_eq!(whole.json()["choices"][0]["message"]["content"], "kept");
        assert!(whole.is_replay(), "with or without a stream, it is the same purchase");
        assert_eq!(upstream.charges(), [6_000], "{store}");
    }
}

#[test]
fn undelivered_stream_is_replayed_to_the_duplicate() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("kept").when(latch));
    let gate = Gate::start(&upstream, "");
    let mut lost = gate.client();
    lost.send("POST", CHATS, &[], &streamed());
    wait_for_a_sign(&lost);
    drop(lost);
    gate.wait_for_clients(0);
    latch.open();
    let booked = r#"tollgate_purchases_total{service="chat",outcome="charged"} 1"#;
    until("it is booked", || gate.metrics().contains(booked));
    let again = stream(&gate, &[]);
    assert_eq!((text(&again).as_str(), again.is_replay()), ("kept", true));
    let another = stream(&gate, &[]);
    assert_eq!((text(&another).as_str(), another.is_replay()), ("kept", false), "that one arrived");
    assert_eq!(upstream.charges(), [6_000; 2]);
}

#[test]
fn open_stream_counts_as_a_concurrent_call() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch));
    let settings = "limits = { requests = 100, seconds = 1, burst = 100, concurrent = 1 }";
    let gate = Gate::start(&upstream, settings);
    let mut first = gate.client();
    first.send("POST", CHATS, &[], &streamed());
    wait_for_a_sign(&first);
    let second = gate.post(CHATS, CHAT);
    assert_eq!((second.status, second.code().as_str()), (429, "rate_limited"));
    latch.open();
    assert_eq!(text(&first.answer()), "hi");
    let other = CHAT.replace("hello", "another");
    assert_eq!(gate.post(CHATS, &other).status, 200, "there is room again");
    assert_eq!(upstream.charges(), [6_000; 2]);
}

/// Waits until the first comment of a stream has arrived, and leaves it to be read.
fn wait_for_a_sign(client: &Client) {
    until("a stream begins", || {
        let mut begun = [0; 4_096];
        let length = client.stream().peek(&mut begun).expect("the gate answers");
        String::from_utf8_lossy(&begun[..length]).contains(": keep-alive\n\n")
    });
}

/// A stream whose reply comes when it has begun.
fn late_stream(gate: &Gate, latch: Latch) -> Answer {
    let mut client = gate.client();
    client.send("POST", CHATS, &[], &streamed());
    wait_for_a_sign(&client);
    latch.open();
    client.answer()
}
