//! What is open, or waits, ends when the credentials do that opened it.

use serde_json::json;
use tollgate::ledger::{Role, SpendLimit};

use super::MEMBERS;
use crate::support::client::Client;
use crate::support::members::Holder;
use crate::support::{CHAT, Ending, Gate, Reply, Upstream, VIDEO, until};

const EVENTS: &str = "/bff/events?request_id=job-1";

/// Waits for the first byte of an answer, which stays to be read.
fn wait_for_bytes(client: &Client) {
    assert!(matches!(client.stream().peek(&mut [0]), Ok(1)), "it begins");
}

#[test]
fn revoked_member_is_refused_and_its_streams_end() {
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "POST" => Reply::video("job-1"),
        _ => Reply::new(200, r#"{"status":"running"}"#),
    });
    let gate = Gate::start(&upstream, MEMBERS);
    let (ann, bob) = (gate.member("ann"), gate.member("bob"));
    assert_eq!(gate.ask("POST", "/api/v1/video", &[ann.bearer()], VIDEO).status, 200);
    let token = format!("{{\"token\":\"{}\"}}", ann.token);
    let login = gate.post("/bff/login", &token);
    let cookie = login.value("set-cookie").unwrap().split(';').next().unwrap().to_owned();

    let (mut by_token, mut by_cookie, mut later) = (gate.client(), gate.client(), gate.client());
    by_token.send("GET", EVENTS, &[ann.bearer()], "");
    by_cookie.send("GET", EVENTS, &[("Cookie", &cookie)], "");
    wait_for_bytes(&by_token);
    wait_for_bytes(&by_cookie);
    let out = [("X-Tollgate", "1"), ("Cookie", &cookie)];
    assert_eq!(gate.ask("POST", "/bff/logout", &out, "").status, 204);
    let told = by_cookie.answer();
    assert!(told.status == 200 && told.text().contains("job-1"), "{}", told.text());

    ann.revoke();
    let told = by_token.answer();
    assert!(told.status == 200 && told.text().contains("job-1"), "{}", told.text());
    later.send("GET", EVENTS, &[ann.bearer()], "");
    assert_eq!(later.answer().code(), "invalid_credentials");
    assert_eq!(gate.ask("GET", "/bff/me", &[bob.bearer()], "").status, 200);
}

#[test]
fn revoked_member_loses_a_running_download() {
    let media = Upstream::start(|_| {
        Reply::new(200, "x").header("content-type", "video/mp4").then(Ending::Endless)
    });
    let video = format!("http://{}/a.mp4", media.address());
    let done = format!(r#"{{"status":"completed","video_url":"{video}"}}"#);
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "POST" => Reply::video("job-1"),
        _ => Reply::new(200, done.clone()),
    });
    let origins = format!("page.media_origins = [\"http://{}\"]", media.address());
    let gate = Gate::start(&upstream, &format!("{MEMBERS}{origins}"));
    let ann = gate.member("ann");
    assert_eq!(gate.ask("POST", "/api/v1/video", &[ann.bearer()], VIDEO).status, 200);
    let mut client = gate.client();
    client.send("GET", "/bff/video/content?request_id=job-1", &[ann.bearer()], "");
    wait_for_bytes(&client);
    ann.revoke();
    until("she is out", || gate.ask("GET", "/bff/me", &[ann.bearer()], "").status == 401);
    // A gigabyte was announced. What is left in the buffers comes, and then the end.
    let rest = client.rest();
    assert!(rest.starts_with(b"HTTP/1.1 200") && rest.len() < 500_000_000, "{}", rest.len());
}

#[test]
fn queued_purchase_of_a_revoked_member_is_not_bought() {
    let upstream = Upstream::start(|received| match received.target.as_str() {
        "/api/v1/chat" => Reply::chat("hello"),
        _ => Reply::video("job-1"),
    });
    let window =
        "gateway.rate_limit = { requests = 1, seconds = 3600 }\ngateway.max_wait = \"10000s\"\n";
    let gate = Gate::start(&upstream, &format!("{window}{MEMBERS}"));
    let (ann, bob) = (gate.member("ann"), gate.member("bob"));
    let root = gate.member_with("root", Role::Admin, SpendLimit::default());
    let buy = |holder: &Holder, target, key, what| {
        let mut client = gate.client();
        client.send("POST", target, &[holder.bearer(), ("idempotency-key", key)], what);
        client
    };
    assert_eq!(buy(&bob, "/api/v1/chat", "first", CHAT).answer().status, 200);
    let mut queue = [
        buy(&ann, "/api/v1/chat", "chat", CHAT),
        buy(&ann, "/api/v1/chat", "chat", CHAT),
        buy(&ann, "/api/v1/video", "video", VIDEO),
    ];
    // The repeat of the chat waits with the first.
    until("two of hers wait", || {
        gate.metrics().lines().any(|line| line == "tollgate_rate_limit_waiting 2")
    });
    ann.revoke();
    for client in &mut queue {
        let told = client.answer();
        assert_eq!((told.status, told.code().as_str()), (401, "invalid_credentials"));
        assert_eq!(told.charged().as_deref(), Some("no"));
        assert!(told.text().contains("nothing was sent"), "{}", told.text());
    }
    assert_eq!(upstream.requests(), 1, "nobody else's turn has come");
    let usage = gate.ask("GET", "/bff/admin/usage", &[root.bearer()], "").json();
    let [row] = &usage["rows"].as_array().unwrap()[..] else { panic!("bob's alone: {usage}") };
    assert_eq!((&row["caller"], &row["held_micros"]), (&json!("member:bob"), &json!(0)));
    assert_eq!(upstream.charges(), [6_000]);
}
