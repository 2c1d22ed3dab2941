//! Whoever refuses under `/v1/`, it is said in OpenAI's shape, with the same statuses and headers.

use super::{CHATS, VIDEOS};
use crate::support::client::Answer;
use crate::support::{CHAT, Gate, Reply, Upstream, VIDEO};

/// A refusal as SDKs read it.
fn assert_shape(answer: &Answer, status: u16, code: &str, family: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (status, code), "{}", answer.text());
    assert_eq!(answer.value("content-type"), Some("application/json"));
    assert_eq!(answer.value("cache-control"), Some("no-store"));
    let error = &answer.json()["error"];
    assert_eq!((&error["type"], &error["charged"]), (&family.into(), &"no".into()), "{error}");
    assert!(error["message"].as_str().is_some_and(|message| message.len() > 10), "{error}");
    assert!(error.get("param").is_some());
    let id = answer.value("x-request-id").expect("an id");
    assert!(!id.is_empty());
    let again = [408, 409, 429].contains(&status) || status >= 500;
    assert_eq!(answer.value("x-should-retry"), (!again).then_some("false"));
}

#[test]
fn base_url_without_v1_gets_a_hint_in_openai_shape() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let gate = Gate::start(&upstream, "");
    for (method, target, status) in [
        ("POST", "/chat/completions", 405),
        ("GET", "/models", 404),
        ("GET", "/models/eta-5-mini", 404),
        ("POST", "/videos", 405),
        ("GET", "/videos", 404),
        ("GET", "/videos/vid_1/content", 404),
        ("POST", "/responses", 405),
        ("POST", "/embeddings", 405),
        ("POST", "/v1/v1/chat/completions", 404),
        ("GET", "/v1/v1/models", 404),
    ] {
        let body = if method == "POST" { CHAT } else { "" };
        let answer = gate.ask(method, target, &[("accept", "application/json")], body);
        let error = &answer.json()["error"];
        assert_eq!(answer.status, status, "{target}: {}", answer.text());
        assert_eq!(answer.value("content-type"), Some("application/json"), "{target}");
        assert_eq!(
            (&error["charged"], answer.value("x-should-retry")),
            (&"no".into(), Some("false"))
        );
        let told = error["message"].as_str().unwrap_or_default();
        // One hint, and not that of the kind besides.
        assert_eq!(told, "the base URL of OpenAI's SDKs must end in exactly one /v1", "{target}");
    }
    for target in ["/nothing", "/modelsx", "/chat"] {
        assert_eq!(gate.get(target).value("content-type"), Some("application/problem+json"));
    }
    assert!(gate.ask("GET", "/models", &[("accept", "text/html")], "").text().contains("<h1>"));
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn refusals_of_every_layer_have_openai_shape() {
    const BAD: &str = "invalid_request_error";
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let gate = Gate::start(&upstream, "server.video_body = \"1KiB\"");
    let long = VIDEO.replace("lighthouse", &"x".repeat(2_000));
    for (method, target, headers, body, status, code, family) in [
        ("POST", CHATS, &[("host", "evil.example")][..], CHAT, 421, "misdirected_request", BAD),
        ("POST", CHATS, &[("host", "a b")], CHAT, 400, "malformed_request", BAD),
        (
            "POST",
            CHATS,
            &[("origin", "https://evil.example")],
            CHAT,
            403,
            "origin_not_allowed",
            "permission_error",
        ),
        (
            "POST",
            CHATS,
            &[("content-type", "text/plain")],
            CHAT,
            415,
            "unsupported_media_type",
            BAD,
        ),
        (
            "POST",
            CHATS,
            &[("content-type", "multipart/form-data; boundary=x"), ("authorization", "Bearer x")],
            CHAT,
            415,
            "unsupported_media_type",
            BAD,
        ),
        (
            "POST",
            VIDEOS,
            &[("content-type", "multipart/form-data; boundary=x")],
            VIDEO,
            415,
            "unsupported_media_type",
            BAD,
        ),
        ("POST", VIDEOS, &[], &long, 413, "payload_too_large", BAD),
        ("POST", CHATS, &[], "{\"model\":", 400, "malformed_json", BAD),
        ("POST", CHATS, &[("idempotency-key", "")], CHAT, 400, "invalid_idempotency_key", BAD),
        ("POST", CHATS, &[], "{}", 422, "invalid_request", BAD),
        ("GET", CHATS, &[], "", 405, "method_not_allowed", BAD),
        ("POST", "/v1/models", &[], "{}", 405, "method_not_allowed", BAD),
        ("DELETE", "/v1/videos/vid_1", &[], "", 405, "method_not_allowed", BAD),
        ("GET", "/v1/videos/vid_1", &[], "", 404, "job_not_found", BAD),
        ("GET", "/v1/videos/vid_1/content", &[], "", 404, "job_not_found", BAD),
        ("GET", "/v1/videos/vid_1/remix", &[], "", 404, "unknown_endpoint", BAD),
        ("POST", "/v1/completions", &[], "{}", 404, "unknown_endpoint", BAD),
        ("POST", "/v1/responses", &[], "{}", 404, "unknown_endpoint", BAD),
        ("POST", "/v1/embeddings", &[], "{}", 404, "unknown_endpoint", BAD),
        ("POST", "/v1/images/generations", &[], "{}", 404, "unknown_endpoint", BAD),
        ("GET", "/v1", &[], "", 404, "unknown_endpoint", BAD),
    ] {
        println!("{method} {target} {headers:?}");
        let answer = gate.ask(method, target, headers, body);
        assert_shape(&answer, status, code, family);
        let is_guess = code == "unknown_endpoint";
        assert!(!is_guess || answer.text().contains("/v1/"), "a hint: {}", answer.text());
        assert!(status != 405 || answer.value("allow").is_some());
    }
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn other_paths_get_problems_with_a_hint() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let gate = Gate::start(&upstream, "");
    let answer = gate.post("/api/v1/chat/completions", CHAT);
    assert_eq!(answer.value("content-type"), Some("application/problem+json"));
    assert!(answer.text().contains("/v1"), "{}", answer.text());
    assert_eq!(answer.value("x-should-retry"), None);
}

#[test]
fn rate_limited_reply_has_retry_after_readable_by_listed_origins() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let settings = "limits = { requests = 1, seconds = 3600, burst = 1 }\n\
                    access.allowed_origins = [\"https://app.example\"]";
    let gate = Gate::start(&upstream, settings);
    assert_eq!(gate.chat().status, 200);
    let answer = gate.ask("POST", CHATS, &[("origin", "https://app.example")], CHAT);
    assert_shape(&answer, 429, "rate_limited", "rate_limit_error");
    assert!(answer.value("retry-after").is_some_and(|wait| wait.parse::<u32>().unwrap() >= 1));
    assert!(answer.value("ratelimit").is_some());
    assert_eq!(answer.value("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn unretryable_errors_say_x_should_retry_false() {
    let upstream = Upstream::start(|_| Reply::error(401).charged(false));
    let gate = Gate::start(&upstream, "");
    let answer = gate.post(CHATS, CHAT);
    assert_shape(&answer, 502, "gateway_key_rejected", "server_error");

    let upstream = Upstream::start(|_| Reply::error(500).charged(true));
    let gate = Gate::start(&upstream, "");
    let answer = gate.post(CHATS, CHAT);
    assert_eq!((answer.status, answer.charged().as_deref()), (424, Some("unknown")));
    assert_eq!(answer.value("x-should-retry"), Some("false"));
    let again = gate.post(CHATS, CHAT);
    assert_eq!((again.status, again.value("idempotent-replayed")), (424, Some("true")));
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn gateway_refusals_keep_their_status_in_openai_shape() {
    for status in [400, 402, 403, 404, 413, 415, 422] {
        let upstream = Upstream::start(move |_| Reply::error(status));
        let gate = Gate::start(&upstream, "");
        let answer = gate.post(CHATS, CHAT);
        assert_eq!((answer.status, answer.code().as_str()), (status, "refused_by_gateway"));
        let error = &answer.json()["error"];
        assert_eq!(error["gateway"]["error"], format!("as the gateway words a {status}"));
        assert!(error["message"].as_str().unwrap().contains("as the gateway words a"));
        assert_eq!((&error["charged"], answer.cost()), (&"no".into(), Some(0)));
        assert_eq!(answer.value("x-should-retry"), Some("false"));
        assert!(upstream.charges().is_empty());
    }
    let upstream = Upstream::start(|_| Reply::new(422, "<p>no</p>"));
    let gate = Gate::start(&upstream, "");
    let answer = gate.post(CHATS, CHAT);
    assert_eq!((answer.status, answer.json()["error"].get("gateway")), (422, None));
}
