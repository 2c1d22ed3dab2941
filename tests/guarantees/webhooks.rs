//! Events reach webhooks at least once, signed, and without a part of a key.

mod alerts;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde_json::{Value, json};

use crate::support::paused::{PausedGate, PausedUpstream};
use crate::support::process::Signal;
use crate::support::received::{ReceivedRequest, parse_head, read_head, values};
use crate::support::reply::Latch;
use crate::support::server::ReservedPort;
use crate::support::{CHAT, Ending, Gate, Reply, Upstream, lock, process, until};

pub(crate) const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const OTHER_SECRET: &str = "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";

/// A request as it arrived.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    pub(crate) fn header(&self, name: &str) -> &str {
        let [value] = values(&self.headers, name)[..] else { panic!("one {name}") };
        value
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// Fails unless one of the signatures was made with this secret.
    fn assert_signed(&self, secret: &str) {
        let bytes = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        let (id, stamp) = (self.header("webhook-id"), self.header("webhook-timestamp"));
        let signed = [format!("{id}.{stamp}.").as_bytes(), &self.body].concat();
        let is_signed = self.header("webhook-signature").split(' ').any(|one| {
            let tag = STANDARD.decode(one.strip_prefix("v1,").expect("a version")).unwrap();
            hmac::verify(&key, &signed, &tag).is_ok()
        });
        assert!(is_signed, "{:?}", self.headers);
    }
}

/// Receives messages on a port of its own, and answers each with these bytes.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    answer: Arc<Mutex<Vec<u8>>>,
    got: Arc<Mutex<Vec<Message>>>,
}

impl Receiver {
    pub(crate) fn answering(answer: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answer = Arc::new(Mutex::new(answer.as_bytes().to_vec()));
        let got = Arc::<Mutex<Vec<Message>>>::default();
        let (bytes, all) = (Arc::clone(&answer), Arc::clone(&got));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, bytes, all) =
                    (stream.unwrap(), Arc::clone(&bytes), Arc::clone(&all));
                thread::spawn(move || {
                    let Some(head) = read_head(&mut stream) else {
                        return;
                    };
                    let (line, headers) = parse_head(&head);
                    assert!(line.starts_with("POST "), "{line}");
                    let length = values(&headers, "content-length")[0].parse().unwrap();
                    let mut body = vec![0; length];
                    stream.read_exact(&mut body).unwrap();
                    lock(&all).push(Message { headers, body });
                    let answer = lock(&bytes).clone();
                    if answer.is_empty() {
                        // It hangs until the client gives up.
                        stream.read_to_end(&mut Vec::new()).ok();
                    }
                    stream.write_all(&answer).ok();
                });
            }
        });
        Self { address, answer, got }
    }

    pub(crate) fn ok() -> Self {
        Self::answering("HTTP/1.1 204 No Content\r\n\r\n")
    }

    fn answer_with(&self, answer: &str) {
        *lock(&self.answer) = answer.as_bytes().to_vec();
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/a-secret-path", self.address)
    }

    pub(crate) fn got(&self) -> Vec<Message> {
        lock(&self.got).clone()
    }

    pub(crate) fn wait_for(&self, count: usize) -> Vec<Message> {
        until("the webhook gets its messages", || self.got().len() >= count);
        self.got()
    }

    /// The settings that send it these events.
    fn settings(&self, events: &str) -> String {
        format!("webhooks = [{{ url = \"{}\", events = {events} }}]\n", self.url())
    }
}

fn gate(upstream: &Upstream, receiver: &Receiver, more: &str) -> Gate {
    let settings = format!(
        "store.url = \"sqlite:ledger.db\"\n{more}{}",
        receiver.settings("[\"outcome.unknown\", \"job.finished\", \"video.completed\"]")
    );
    Gate::binary(upstream, &settings, &[("TOLLGATE_WEBHOOK_SECRET", SECRET)])
}

/// A gateway that loses the replies of chats after it has charged for them.
fn lossy() -> Upstream {
    Upstream::start(|_| Reply::nothing(Ending::Fin).charged(true))
}

#[test]
fn unknown_outcome_reaches_a_webhook_signed_by_each_secret() {
    let (upstream, receiver) = (lossy(), Receiver::ok());
    let settings = receiver.settings("\"*\"");
    let secrets = format!("{OTHER_SECRET}, {SECRET}");
    let gate = Gate::binary(&upstream, &settings, &[("TOLLGATE_WEBHOOK_SECRET", &secrets)]);
    let refused = gate.chat();
    assert_eq!(refused.status, 424);
    let [message] = &receiver.wait_for(1)[..] else { panic!("one message") };
    message.assert_signed(SECRET);
    message.assert_signed(OTHER_SECRET);
    let event = message.json();
    assert_eq!(event["type"], "outcome.unknown");
    assert_eq!((&event["object"], &event["sandbox"]), (&"event".into(), &false.into()));
    assert_eq!(event["id"], message.header("webhook-id"));
    assert_eq!(
        (&event["data"]["price"], &event["data"]["price_micros"]),
        (&"0.006000".into(), &6_000.into())
    );
    assert!(event["data"]["purchase"].is_string() && event["created_at"].is_u64(), "{event}");
    let body = String::from_utf8(message.body.clone()).unwrap();
    assert!(!body.contains("svc_sk_") && !body.contains("hello"), "{body}");
    let row = "tollgate_webhooks_total{event=\"outcome.unknown\",outcome=\"delivered\"} 1";
    until("the delivery is counted", || gate.metrics().contains(row));
    assert!(!gate.printed().contains("a-secret-path"));
}

#[test]
fn key_that_the_gateway_echoes_in_a_job_id_reaches_no_webhook() {
    let receiver = Receiver::ok();
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "POST" => {
            let key = received.values("authorization")[0].trim_start_matches("Bearer ").to_owned();
            Reply::video(&key)
        }
        _ => Reply::new(200, r#"{"status":"completed","video_url":"https://cdn.example/a.mp4"}"#),
    });
    let gate = gate(&upstream, &receiver, "");
    gate.video();
    for message in receiver.wait_for(2) {
        let text = String::from_utf8_lossy(&message.body).into_owned();
        for canary in upstream.canaries() {
            assert!(!text.contains(canary.key()), "{text}");
        }
    }
}

#[test]
fn budget_that_is_nearly_spent_is_reported_once() {
    let (upstream, receiver) = (Upstream::start(|_| Reply::chat("hello")), Receiver::ok());
    let settings = format!(
        "budget.total = {{ day = \"0.018\" }}\nalerts.budget = [60, 100]\n{}",
        receiver.settings("[\"budget.threshold\"]")
    );
    let gate = Gate::binary(&upstream, &settings, &[("TOLLGATE_WEBHOOK_SECRET", SECRET)]);
    let buy = |what: &str| gate.post("/api/v1/chat", &CHAT.replace("hello", what)).status;
    assert_eq!([buy("one"), buy("two"), buy("three"), buy("four")], [200, 200, 200, 402]);
    let row = "tollgate_webhooks_total{event=\"budget.threshold\",outcome=\"delivered\"} 2";
    until("the deliveries are counted", || gate.metrics().contains(row));
    let messages = receiver.got();
    assert_eq!(messages.len(), 2);
    let mut data: Vec<_> = messages.iter().map(|message| message.json()["data"].clone()).collect();
    data.sort_by_key(|data| data["percent"].as_u64());
    for (data, (percent, spent)) in data.iter().zip([(60, "0.012000"), (100, "0.018000")]) {
        let expected = json!({
            "scope": "total", "name": null, "period": "day", "percent": percent,
            "limit": "0.018000", "limit_micros": 18_000,
            "spent": spent, "spent_micros": data["spent_micros"],
        });
        assert_eq!(*data, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn key_that_stays_refused_is_reported_once_over_restarts() {
    let are_all_refused = Latch::new();
    let first = Mutex::new(None);
    let answer = move |received: &ReceivedRequest| {
        let key = received.values("authorization")[0].to_owned();
        let is_first = *lock(&first).get_or_insert_with(|| key.clone()) == key;
        if is_first || are_all_refused.is_open() { Reply::error(401) } else { Reply::chat("hi") }
    };
    let upstream = PausedUpstream::with(2, answer);
    // Nothing listens there, so events stay in the ledger.
    let port = ReservedPort::new();
    let webhook = format!("webhooks = [{{ url = \"http://{}/\"", port.address());
    let settings =
        format!("store.url = \"sqlite:ledger.db\"\n{webhook}, events = [\"key.refused\"] }}]\n");
    let mut gate = PausedGate::start(&upstream, &settings).await;
    let reported = |gate: &PausedGate| -> Vec<Value> {
        let ledger = rusqlite::Connection::open(gate.folder().join("ledger.db")).unwrap();
        let mut rows = ledger.prepare("SELECT data FROM outbox ORDER BY number").unwrap();
        let rows = rows.query_map([], |row| row.get::<_, String>(0)).unwrap();
        let key = |data: String| serde_json::from_str::<Value>(&data).unwrap()["key"].clone();
        rows.map(|data| key(data.unwrap())).collect()
    };
    assert_eq!(gate.chat().await.status, 200);
    // The keys are looked at each second.
    gate.advance(Duration::from_secs(2)).await;
    assert_eq!(reported(&gate), [1]);
    are_all_refused.open();
    gate.restart().await;
    // A key that was not used yet may still be refused.
    gate.advance(Duration::from_secs(3)).await;
    assert_eq!(reported(&gate), [1]);
    assert_eq!(gate.chat().await.code(), "gateway_key_rejected");
    gate.advance(Duration::from_secs(2)).await;
    assert_eq!(reported(&gate), [1, 2]);
}

#[test]
fn webhooks_change_at_a_reload() {
    let (upstream, old, new) = (lossy(), Receiver::ok(), Receiver::ok());
    let of = |receiver: &Receiver| {
        let limits = "limits = { requests = 100000, seconds = 1, burst = 100000 }";
        format!("{limits}\n{}", receiver.settings("[\"outcome.unknown\"]"))
    };
    let gate = Gate::binary(&upstream, &of(&old), &[("TOLLGATE_WEBHOOK_SECRET", SECRET)]);
    let lose = |what: &str| {
        let answer = gate.post("/api/v1/chat", &CHAT.replace("hello", what));
        assert_eq!(answer.status, 424, "{}", answer.text());
        answer.value("tollgate-purchase").expect("its id").to_owned()
    };
    let has = |receiver: &Receiver, purchase: &str| {
        receiver.got().iter().any(|message| message.json()["data"]["purchase"] == purchase)
    };
    let first = lose("first");
    until("the old webhook gets an event", || has(&old, &first));
    fs::write(gate.folder().join("proxy.toml"), of(&new)).unwrap();
    gate.signal(Signal::SIGHUP);
    until("the settings are reloaded", || gate.printed().contains("settings reloaded"));
    // Until the ledger knows the new webhook, events are written for the old one.
    let mut number = 0;
    until("the new webhook gets an event", || {
        number += 1;
        lose(&number.to_string());
        !new.got().is_empty()
    });
    let last = lose("last");
    until("the new webhook gets it", || has(&new, &last));
    assert!(!has(&old, &last) && !has(&new, &first));
}

#[test]
fn kill_between_commit_and_delivery_keeps_the_event_and_its_id() {
    let upstream = lossy();
    // It hangs, so the process is killed during the first attempt.
    let receiver = Receiver::answering("");
    let mut gate = gate(&upstream, &receiver, "");
    assert_eq!(gate.chat().status, 424);
    let first = receiver.wait_for(1)[0].header("webhook-id").to_owned();
    gate.kill();
    receiver.answer_with("HTTP/1.1 204 No Content\r\n\r\n");
    gate.restart();
    let again = receiver.wait_for(2);
    assert!(again.iter().all(|message| message.header("webhook-id") == first));
    again[1].assert_signed(SECRET);
    let row = "tollgate_webhooks_total{event=\"outcome.unknown\",outcome=\"delivered\"} 1";
    until("the delivery is counted", || gate.metrics().contains(row));
}

#[test]
fn redirect_is_not_followed_and_fails_the_attempt() {
    let (upstream, elsewhere) = (lossy(), Receiver::ok());
    let answer = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n",
        elsewhere.url()
    );
    let receiver = Receiver::answering(&answer);
    let gate = gate(&upstream, &receiver, "");
    gate.chat();
    let row = "tollgate_webhooks_total{event=\"outcome.unknown\",outcome=\"failed\"} 1";
    until("the failure is counted", || gate.metrics().contains(row));
    receiver.wait_for(2);
    assert!(elsewhere.got().is_empty());
}

#[test]
fn large_answer_is_not_read() {
    let upstream = lossy();
    let large = "x".repeat(5 << 20);
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", large.len());
    let receiver = Receiver::answering(&format!("{head}{large}"));
    let gate = gate(&upstream, &receiver, "");
    gate.chat();
    let row = "tollgate_webhooks_total{event=\"outcome.unknown\",outcome=\"delivered\"} 1";
    until("the attempt is counted", || gate.metrics().contains(row));
}

#[test]
fn webhook_command_sends_a_ping_and_reports_the_result() {
    let (receiver, folder) = (Receiver::ok(), tempfile::tempdir().unwrap());
    fs::write(folder.path().join("proxy.toml"), receiver.settings("\"*\"")).unwrap();
    let test = |arguments: &[&str], secret: &str| {
        let arguments = [&["webhook", "test"], arguments].concat();
        process::run(folder.path(), &arguments, &[("TOLLGATE_WEBHOOK_SECRET", secret)])
    };
    let sent = test(&[], SECRET);
    assert_eq!((sent.code, &*sent.stderr), (Some(0), ""));
    assert_eq!(sent.stdout, format!("http://{}: delivered\n", receiver.address));
    let [ping] = &receiver.got()[..] else { panic!("one message") };
    ping.assert_signed(SECRET);
    assert_eq!(ping.json()["type"], "ping");
    receiver.answer_with("HTTP/1.1 401 Unauthorized\r\n\r\n");
    let refused = test(&[&receiver.url()], SECRET);
    assert_eq!(refused.code, Some(1));
    assert_eq!(
        refused.stdout,
        format!("http://{}: failed: answered 401 Unauthorized\n", receiver.address)
    );
    assert_eq!(test(&[], "").code, Some(2));
    let plain = test(&["http://hooks.example.com/a"], SECRET);
    assert_eq!(plain.code, Some(2));
    assert!(plain.stderr.contains("expected https, got http"), "{}", plain.stderr);
}

#[test]
fn wrong_webhook_settings_are_rejected_without_their_values() {
    let folder = tempfile::tempdir().unwrap();
    let check = |settings: &str, secret: &str| {
        fs::write(folder.path().join("proxy.toml"), settings).unwrap();
        process::run(folder.path(), &["check"], &[("TOLLGATE_WEBHOOK_SECRET", secret)])
    };
    let row = |url: &str, events: &str| format!("[[webhooks]]\nurl = \"{url}\"\nevents = {events}");
    let right = row("https://hooks.example.com/CANARY", "\"*\"");
    for (settings, secret, expected) in [
        (row("http://hooks.example.com/CANARY", "\"*\""), SECRET, "webhooks.url: expected https"),
        (row("https://u:CANARY@h.example.com", "\"*\""), SECRET, "no user or password"),
        (row("https://h.example.com", "[\"balance.lo\"]"), SECRET, "\"balance.low\""),
        (row("https://h.example.com", "\"all\""), SECRET, "webhooks.events: expected \"*\""),
        ("[[webhooks]]\nurl = \"https://h.example.com\"".to_owned(), SECRET, "`events`"),
        (format!("{right}\n{right}"), SECRET, "each url once"),
        ("[webhooks]\nurl = \"https://CANARY\"".to_owned(), SECRET, "[[webhooks]]"),
        (right.clone(), "", "TOLLGATE_WEBHOOK_SECRET_FILE"),
        (right.clone(), "CANARY", "secret 1: expected whsec_"),
        (right.clone(), "whsec_Q0FOQVJZ", "secret 1: expected whsec_"),
    ] {
        let ended = check(&settings, secret);
        assert_eq!(ended.code, Some(2), "{settings}: {}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{expected}: {}", ended.stderr);
        assert!(!ended.stderr.contains("CANARY"), "{}", ended.stderr);
    }
    let ended = check(&right, SECRET);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("https://hooks.example.com (13 events)"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("CANARY"), "{}", ended.stdout);
}

mod long {
    use super::*;

    #[test]
    fn attempt_without_an_answer_fails_after_ten_seconds() {
        let (upstream, receiver) = (lossy(), Receiver::answering(""));
        let gate = gate(&upstream, &receiver, "");
        gate.chat();
        let row = "tollgate_webhooks_total{event=\"outcome.unknown\",outcome=\"failed\"} 1";
        until("the attempt is counted", || gate.metrics().contains(row));
    }
}
