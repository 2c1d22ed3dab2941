//! Guarantee 2: a request that breaks the contract is answered here. Nobody asks the gateway.

mod payloads;

use serde_json::Value;

use self::payloads::{CHATS, MALFORMED, VIDEOS};
use crate::support::client::{Answer, request};
use crate::support::{CHAT, Gate, Reply, Upstream, VIDEO};

const TO_CHAT: &str = "/api/v1/chat";
const TO_VIDEO: &str = "/api/v1/video";

/// Fields of a chat around what is wrong: `M` is a good model, `S` are good messages.
fn chat(text: &str) -> String {
    let messages = r#""messages":[{"role":"user","content":"hello"}]"#;
    text.replace("`M`", r#""model":"iota-5""#).replace("`S`", messages)
}

/// Fields of a video around what is wrong: `P` is a good prompt.
fn video(text: &str) -> String {
    text.replace("`P`", r#""prompt":"a lighthouse""#)
}

struct Watched {
    gate: Gate,
    upstream: Upstream,
}

impl Watched {
    fn start(settings: &str) -> Self {
        let upstream = Upstream::start(|_| Reply::chat("you should not have asked"));
        Self { gate: Gate::start(&upstream, settings), upstream }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.upstream.connections(), 0, "the gateway was asked");
        }
    }
}

/// Whether the answer says that nothing was bought, and why.
fn assert_refused(answer: &Answer, status: u16, code: &str, what: &str) {
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (status, code),
        "{what}: {}",
        answer.text()
    );
    assert_eq!(answer.charged().as_deref(), Some("no"), "{what}");
    assert_eq!(answer.cost(), None, "{what}");
}

fn faults(answer: &Answer) -> Vec<(String, String)> {
    let field = |fault: &Value, name: &str| fault[name].as_str().unwrap_or_default().to_owned();
    let json = answer.json();
    let errors = json["errors"].as_array().expect("errors").iter();
    errors.map(|fault| (field(fault, "pointer"), field(fault, "code"))).collect()
}

#[test]
fn every_invalid_field_is_named() {
    let watched = Watched::start("");
    let rows = CHATS.iter().map(|(body, pointer, code)| (TO_CHAT, chat(body), pointer, code));
    let videos = VIDEOS.iter().map(|(body, pointer, code)| (TO_VIDEO, video(body), pointer, code));
    for (target, body, pointer, code) in rows.chain(videos) {
        let answer = watched.gate.post(target, &body);
        assert_refused(&answer, 422, "invalid_request", &body);
        let faults = faults(&answer);
        let named = ((*pointer).to_owned(), (*code).to_owned());
        assert!(faults.contains(&named), "{body}: {faults:?}");
        assert!(answer.json()["detail"].as_str().is_some_and(|text| !text.is_empty()), "{body}");
    }
}

#[test]
fn all_payload_faults_are_reported_at_once() {
    let watched = Watched::start("");
    let body = r#"{"prompt":"","model":"video-d-3.1","duration":7,"aspect_ratio":"1:1","image_url":"x","seed":1}"#;
    let answer = watched.gate.post(TO_VIDEO, body);
    let mut pointers: Vec<_> = faults(&answer).into_iter().map(|(pointer, _)| pointer).collect();
    pointers.sort_unstable();
    assert_eq!(pointers, ["/aspect_ratio", "/duration", "/image_url", "/prompt", "/seed"]);
    let detail = |answer: &Answer| answer.json()["detail"].as_str().unwrap_or_default().to_owned();
    assert!(detail(&answer).ends_with("it is empty; and 4 more errors"), "{}", answer.text());
    let two = watched.gate.post(TO_VIDEO, r#"{"prompt":"","duration":7,"seed":1}"#);
    assert!(detail(&two).ends_with("; and 1 more error"), "{}", two.text());
}

#[test]
fn malformed_json_is_reported_by_line_and_column() {
    let watched = Watched::start("");
    for target in [TO_CHAT, TO_VIDEO] {
        for body in MALFORMED {
            let answer = watched.gate.post(target, body);
            assert_refused(&answer, 400, "malformed_json", body);
            assert!(answer.text().contains("line 1, column "), "{body}: {}", answer.text());
        }
    }
}

#[test]
fn deep_nesting_and_invalid_utf8_are_refused() {
    let watched = Watched::start("gateway.chat_fields = [\"tools\"]");
    let deep = format!(r#"{{"tools":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    assert_refused(&watched.gate.post(TO_CHAT, &deep), 400, "malformed_json", "deep");
    for bytes in [
        &b"{\"a\":\"\xff\"}"[..],
        b"{\"a\":\"\xc0\xaf\"}",
        b"\xff\xfe{\0}\0",
        b"{\"a\":\"\xed\xa0\x80\"}",
    ] {
        let text = "x".repeat(bytes.len());
        let mut whole = request(watched.gate.address(), "POST", TO_CHAT, &[], &text);
        let start = whole.len() - bytes.len();
        whole[start..].copy_from_slice(bytes);
        let mut client = watched.gate.client();
        client.write(&whole);
        assert_refused(&client.answer(), 400, "malformed_json", &format!("{bytes:?}"));
    }
}

#[test]
fn prompt_length_counts_code_points() {
    let upstream = Upstream::start(|_| Reply::video("job-1"));
    let gate = Gate::start(&upstream, "");
    for character in ["a", "é", "語", "🦀"] {
        for (count, status) in [(4_000, 200), (4_001, 422)] {
            let body = format!(r#"{{"prompt":"{}"}}"#, character.repeat(count));
            let answer = gate.post(TO_VIDEO, &body);
            assert_eq!(answer.status, status, "{count} × {character}: {}", answer.text());
        }
    }
    assert_eq!(upstream.purchases(), 4);
}

#[test]
fn only_uncompressed_json_is_accepted() {
    let watched = Watched::start("");
    for (target, body) in [(TO_CHAT, CHAT), (TO_VIDEO, VIDEO)] {
        for header in [
            ("Content-Type", ""),
            ("Content-Type", "text/plain"),
            ("Content-Type", "text/plain; x=application/json"),
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Content-Type", "multipart/form-data; boundary=x"),
            ("Content-Type", "application/problem+json"),
            ("Content-Encoding", "gzip"),
            ("Content-Encoding", "identity, br"),
        ] {
            let answer = watched.gate.ask("POST", target, &[header], body);
            assert_refused(&answer, 415, "unsupported_media_type", header.1);
            let found = match header {
                ("Content-Type", "") => "found \\\"\\\"".to_owned(),
                ("Content-Type", media_type) => media_type.to_owned(),
                (_, _) => "Content-Encoding".to_owned(),
            };
            assert!(answer.text().contains(&found), "{found}: {}", answer.text());
        }
    }
}

#[test]
fn too_large_body_is_refused_before_it_is_read() {
    let watched = Watched::start("server = { chat_body = \"1KiB\", video_body = \"1KiB\" }");
    for (target, body) in [(TO_CHAT, CHAT), (TO_VIDEO, VIDEO)] {
        let large = body.replace('}', &format!("}}{}", " ".repeat(1_024)));
        assert_refused(&watched.gate.post(target, &large), 413, "payload_too_large", target);
        let mut client = watched.gate.client();
        let announced = ("Content-Length", "99999999");
        client.write(&request(watched.gate.address(), "POST", target, &[announced], "{"));
        let answer = client.answer();
        assert_refused(&answer, 413, "payload_too_large", target);
        assert!(answer.closes && client.rest().is_empty());
    }
}

#[test]
fn unknown_paths_and_methods_are_not_forwarded() {
    let watched = Watched::start("");
    for target in [
        "/api/api-keys",
        "/api/api-keys/",
        "/api//api-keys",
        "/api/v1/../api-keys",
        "/api/%61pi-keys",
        "/api/v1/search",
        "/api/v1/images",
        "/api/v1/chat/",
        "/api/v1/Chat",
        "/api/v1/chat%00",
        "//api/v1/chat",
        "/api/v1/%63hat",
        "/api/v1/chat;x=y",
        "/api/v1/video/status/",
        "/api/v2/chat",
        "/api/v1",
        "/api/",
        "/api",
    ] {
        for method in ["GET", "POST", "PUT", "DELETE"] {
            if method == "GET" && target.starts_with("//") {
                continue; // a file of the page, or none
            }
            let body = if method == "GET" { "" } else { CHAT };
            let answer = watched.gate.ask(method, target, &[], body);
            assert!([404, 405].contains(&answer.status), "{method} {target}: {answer:?}");
        }
    }
    for method in ["GET", "HEAD", "PUT", "PATCH", "DELETE", "TRACE", "post", "BUY"] {
        let mut client = watched.gate.client();
        let last = [("Connection", "close")];
        client.write(&request(watched.gate.address(), method, TO_CHAT, &last, ""));
        let answer = String::from_utf8_lossy(&client.rest()).to_lowercase();
        let is_refused = answer.starts_with("http/1.1 405 ") && answer.contains("\r\nallow: post");
        assert!(is_refused, "{method}: {answer}");
    }
}

#[test]
fn status_query_without_exactly_one_job_is_not_forwarded() {
    let watched = Watched::start("");
    let long = format!("?request_id={}", "a".repeat(10_000));
    for query in [
        "",
        "?",
        "?request_id",
        "?request_id=",
        "?request_id=a&request_id=b",
        "?request_id[]=a",
        "?request_id=a%00b",
        "?request_id=a%0d%0ab",
        "?request_id=%20",
        "?id=a",
        "?request_id=a&x=1",
        &long,
    ] {
        let answer = watched.gate.get(&format!("/api/v1/video/status{query}"));
        assert_refused(&answer, 422, "invalid_request", query);
    }
}

#[test]
fn valid_request_is_forwarded_in_contract_form() {
    let upstream = Upstream::start(|received| match received.target.as_str() {
        TO_CHAT => Reply::chat("hi"),
        _ => Reply::video("job-1"),
    });
    let gate = Gate::start(&upstream, "");
    let spaced = r#" { "messages" : [ {"content":"a\u00e9\n", "role":"\u0075ser"} ] , "model" : "iota-5" } "#;
    assert_eq!(gate.post(TO_CHAT, spaced).status, 200);
    assert_eq!(gate.post(TO_VIDEO, r#"{"prompt":"a lighthouse"}"#).status, 200);
    let received = upstream.received_requests();
    assert_eq!((received[0].method.as_str(), received[0].target.as_str()), ("POST", TO_CHAT));
    let chat = r#"{"model":"iota-5","messages":[{"role":"user","content":"aé\n"}]}"#;
    assert_eq!(String::from_utf8_lossy(&received[0].body), chat);
    // No default of the gateway can drift from what was priced here.
    let video = r#"{"prompt":"a lighthouse","model":"video-a-2","duration":8}"#;
    assert_eq!(received[1].json(), serde_json::from_str::<Value>(video).unwrap());
}
