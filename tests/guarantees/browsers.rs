//! Which web pages may spend, and which may read: exact origins, and refusals that JavaScript can
//! read.

use crate::support::client::Answer;
use crate::support::{CHAT, Ending, Gate, Reply, Upstream, until};

const APP: &str = "https://app.example";
const READABLE: &str = "ratelimit, ratelimit-policy, retry-after, idempotent-replayed, \
                        x-request-id, tollgate-cost, tollgate-ignored, tollgate-ledger, \
                        tollgate-purchase, openai-poll-after-ms, x-should-retry";

const LISTED: &str =
    "access.allowed_origins = [\"https://app.example\", \"http://localhost:5173\"]";

fn gate() -> (Upstream, Gate) {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(&upstream, LISTED);
    (upstream, gate)
}

/// The items of a list header, sorted, in lower case.
fn items(answer: &Answer, name: &str) -> Vec<String> {
    let lines = answer.headers.iter().filter(|(known, _)| known == name);
    let lines: Vec<_> = lines.map(|(_, value)| value.to_ascii_lowercase()).collect();
    // Browsers read several lines of the others in different ways.
    assert!(name == "vary" || lines.len() <= 1, "{name} several times: {lines:?}");
    let list = lines.join(",");
    let mut items: Vec<_> = list.split(',').map(|item| item.trim().to_owned()).collect();
    items.retain(|item| !item.is_empty());
    items.sort();
    items
}

fn sorted(list: &str) -> Vec<String> {
    let mut items: Vec<_> = list.split(',').map(|item| item.trim().to_owned()).collect();
    items.sort();
    items
}

/// What OpenAI's SDKs send besides, some of it where their settings say so.
const OF_SDKS: &str = "openai-beta,openai-organization,openai-project,user-agent";

/// Headers that tracing agents in pages send.
const OF_TRACES: &str = "b3,baggage,elastic-apm-traceparent,newrelic,request-context,request-id,sentry-trace,\
                         traceparent,tracestate,x-b3-traceid,x-datadog-trace-id";

fn preflight(gate: &Gate, origin: &str, path: &str, asked: &str) -> Answer {
    let headers = [
        ("Origin", origin),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", asked),
    ];
    gate.ask("OPTIONS", path, &headers, "")
}

#[test]
fn preflight_lists_allowed_methods_and_headers() {
    let (upstream, gate) = gate();
    let known = "authorization,content-type,idempotency-key,last-event-id,tollgate-ledger,tollgate-replay,\
                 x-request-id,x-stainless-lang,x-stainless-retry-count,x-tollgate";
    for (asked, granted) in [
        (known, known),
        ("Content-Type, X-Stainless-OS", "content-type,x-stainless-os"),
        ("User-Agent, OpenAI-Organization, OpenAI-Project, OpenAI-Beta", OF_SDKS),
        ("content-type,cookie,x-evil,x-forwarded-for", "content-type"),
        ("x-stainles", ""),
        (OF_TRACES, OF_TRACES),
    ] {
        for path in ["/api/v1/chat", "/api/v1/video", "/bff/catalog", "/v1/chat/completions"] {
            let answer = preflight(&gate, APP, path, asked);
            assert_eq!((answer.status, answer.body.len()), (204, 0), "{path}");
            assert_eq!(answer.value("access-control-allow-origin"), Some(APP));
            assert_eq!(answer.value("access-control-max-age"), Some("7200"));
            assert_eq!(items(&answer, "access-control-allow-methods"), sorted("get,head,post"));
            let expected = if granted.is_empty() { vec![] } else { sorted(granted) };
            assert_eq!(items(&answer, "access-control-allow-headers"), expected, "{asked}");
            assert!(items(&answer, "vary").contains(&"origin".to_owned()));
            assert_eq!(answer.value("access-control-allow-credentials"), None);
        }
    }
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn allowed_origin_matches_byte_for_byte() {
    let (upstream, gate) = gate();
    for (origin, listed) in [
        (APP, true),
        ("http://localhost:5173", true),
        ("https://app.example.evil.example", false),
        ("https://evilapp.example", false),
        ("https://evil.app.example", false),
        ("http://app.example", false),
        ("https://app.example:443", false),
        ("https://app.example:8443", false),
        ("https://app.example.", false),
        ("https://App.example", false),
        ("https://app.example/", false),
        ("https://app.example, https://evil.example", false),
        ("http://localhost:5174", false),
        ("http://localhost", false),
        ("null", false),
        ("*", false),
        ("file://", false),
        ("https://\u{e4}pp.example", false),
    ] {
        let asked = preflight(&gate, origin, "/api/v1/chat", "content-type");
        assert_eq!(asked.value("access-control-allow-origin"), listed.then_some(origin));

        let before = upstream.requests();
        let sent = gate.ask("POST", "/api/v1/chat", &[("Origin", origin)], CHAT);
        assert_eq!(sent.status, if listed { 200 } else { 403 }, "{origin}: {}", sent.text());
        assert_eq!(upstream.requests() - before, usize::from(listed), "{origin}");
        assert_eq!(sent.value("access-control-allow-origin"), listed.then_some(origin), "{origin}");
        if !listed {
            assert_eq!(sent.code(), "origin_not_allowed");
            assert!(sent.closes, "{origin}: its body was not read");
        }
    }
}

#[test]
fn refused_origin_is_logged() {
    let (_upstream, gate) = gate();
    let sent = gate.ask("POST", "/api/v1/chat", &[("Origin", "https://evil.example:81")], CHAT);
    assert_eq!(sent.status, 403);
    let mut client = gate.client();
    client.write(b"GET / HTTP/1.1\r\nHost: rebound.example:82\r\n\r\n");
    assert_eq!(client.answer().status, 421);
    for named in ["https://evil.example:81", "rebound.example:82"] {
        until("it is logged", || gate.printed().contains(named));
    }
}

#[test]
fn refused_preflight_and_read_are_logged() {
    // Apart from the others: those in this process share a log.
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::binary(&upstream, LISTED, &[]);
    let own = format!("http://{}", gate.address());
    let read = |target, headers: &[(&str, &str)]| gate.ask("GET", target, headers, "");
    assert_eq!(preflight(&gate, "https://first.example", "/api/v1/chat", "x").status, 204);
    let foreign = ("Sec-Fetch-Site", "cross-site");
    read("/bff/me", &[("Origin", "https://second.example"), foreign]);
    read("/v1/models", &[("Origin", "https://third.example\u{9b}31m"), foreign]);
    // None of these is refused.
    for target in ["/bff/catalog", "/bff/openapi.json"] {
        let answer = read(target, &[("Origin", "https://reads.example"), foreign]);
        let readable = answer.value("access-control-allow-origin");
        let expected = (target == "/bff/openapi.json").then_some("*");
        assert_eq!((answer.status, readable), (200, expected), "{target}");
    }
    assert_eq!(read("/v1/models", &[("Origin", "https://plain.example")]).status, 200);
    preflight(&gate, APP, "/api/v1/chat", "content-type");
    read("/bff/catalog", &[("Origin", &own)]);
    read("/bff/catalog", &[("Origin", "https://same.example"), ("Sec-Fetch-Site", "same-origin")]);
    read("/bff/client.js", &[("Origin", "https://embeds.example")]);
    read("/", &[("Origin", "https://links.example")]);
    let named = |last: &str| {
        read("/bff/me", &[("Origin", last), foreign]);
        until("it is named", || gate.printed().contains(last));
        gate.printed()
    };
    let printed = named("https://fourth.example");
    let lines: Vec<_> =
        printed.lines().filter(|line| line.contains("unlisted origin refused")).collect();
    for named in ["https://first.example", "https://second.example", "https://third.example"] {
        assert!(lines.iter().any(|line| line.contains(named)), "{named}: {lines:?}");
    }
    assert!(!printed.contains('\u{9b}'));
    let silent =
        ["same.example", "embeds.example", "links.example", "reads.example", "plain.example"];
    for silent in silent.into_iter().chain([APP, &own]) {
        assert!(!lines.iter().any(|line| line.contains(silent)), "{silent}: {lines:?}");
    }
    for _ in 0..200 {
        read("/bff/me", &[("Origin", "https://flood.example"), foreign]);
    }
    let flood = named("https://last.example").matches("https://flood.example").count();
    assert!((1..=20).contains(&flood), "{flood} lines");
}

#[test]
fn sec_fetch_site_overrides_origin() {
    let (upstream, gate) = gate();
    let own = format!("http://{}", gate.address());
    for (site, origin, taken) in [
        (Some("same-origin"), Some(own.as_str()), true),
        (Some("same-origin"), None, true),
        (Some("none"), None, true),
        (Some("same-site"), None, false),
        (Some("same-site"), Some("https://evil.example"), false),
        (Some("same-site"), Some(APP), true),
        (Some("cross-site"), None, false),
        (Some("cross-site"), Some("null"), false),
        (Some("cross-site"), Some(own.as_str()), false),
        (Some("cross-site"), Some("https://evil.example"), false),
        (Some("cross-site"), Some(APP), true),
        (Some("Same-Origin"), Some("https://evil.example"), false),
        (Some("whatever"), None, false),
        (None, Some(own.as_str()), true),
        (None, Some(APP), true),
        (None, Some("https://evil.example"), false),
        (None, Some("null"), false),
        (None, None, true),
    ] {
        let headers: Vec<_> = [("Sec-Fetch-Site", site), ("Origin", origin)]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        let before = upstream.requests();
        let answer = gate.ask("POST", "/api/v1/chat", &headers, CHAT);
        assert_eq!(answer.status, if taken { 200 } else { 403 }, "{headers:?}");
        assert_eq!(upstream.requests() - before, usize::from(taken), "{headers:?}");
    }
}

#[test]
fn page_on_another_port_is_another_origin() {
    let (upstream, gate) = gate();
    let other = format!("http://127.0.0.1:{}", gate.address().port() ^ 1);
    let answer = gate.ask("POST", "/api/v1/chat", &[("Origin", &other)], CHAT);
    assert_eq!((answer.status, upstream.requests()), (403, 0));
}

#[test]
fn only_json_content_type_can_spend() {
    let (upstream, gate) = gate();
    let taken = [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=\"UTF-8\"",
        "Application/Json",
        // RFC 8259 gives JSON no parameters.
        "application/json; charset=utf-16",
        "application/json; charset=utf-8; charset=utf-7",
        "application/json; version=1",
        "application/json;odata.metadata=minimal;q=\"a;b\"",
    ];
    for media_type in taken {
        let answer = gate.ask("POST", "/api/v1/chat", &[("Content-Type", media_type)], CHAT);
        assert_eq!(answer.status, 200, "{media_type}: {}", answer.text());
    }
    for media_type in [
        "text/plain",
        "text/plain; application/json",
        "text/plain;charset=utf-8,application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=application/json",
        "application/json, text/plain",
        "application/jsonx",
        "application/problem+json",
        "application/*",
        "json",
        "\u{e9}",
        "",
    ] {
        let headers = [("Content-Type", media_type), ("Origin", APP)];
        let answer = gate.ask("POST", "/api/v1/chat", &headers, CHAT);
        assert_eq!(answer.status, 415, "{media_type}: {}", answer.text());
        assert_eq!((answer.code().as_str(), answer.closes), ("unsupported_media_type", true));
        assert_eq!(answer.value("access-control-allow-origin"), Some(APP), "{media_type}");
    }
    for headers in [
        &[("Content-Type", "application/json"), ("Content-Type", "text/plain")][..],
        &[("Content-Encoding", "gzip")],
        &[("Content-Encoding", "identity, br")],
        &[("Content-Encoding", "identity"), ("Content-Encoding", "deflate")],
    ] {
        let answer = gate.ask("POST", "/api/v1/chat", headers, CHAT);
        assert_eq!(answer.status, 415, "{headers:?}: {}", answer.text());
    }
    let plain = gate.ask("POST", "/api/v1/chat", &[("Content-Encoding", "identity")], CHAT);
    assert_eq!(plain.status, 200);
    assert_eq!(upstream.requests(), taken.len() + 1);
}

#[test]
fn api_answers_are_readable_by_listed_origins_only() {
    let upstream = Upstream::start(|received| match received.target.as_str() {
        "/api/v1/video" => Reply::error(404),
        "/api/v1/chat" => Reply::chat("hi").header("access-control-allow-origin", "*"),
        _ => Reply::error(500),
    });
    let gate = Gate::start(
        &upstream,
        "access.allowed_origins = [\"https://app.example\"]\n\
         limits = { requests = 1, seconds = 3600, burst = 9, concurrent = 100 }\n\
         server.video_body = \"100B\"",
    );
    let wide = format!(r#"{{"prompt":"{}"}}"#, "a".repeat(100));
    let right = r#"{"prompt":"a lighthouse"}"#;
    let ask = |origin, method, path, body| gate.ask(method, path, &[("Origin", origin)], body);
    for (method, path, body, status) in [
        ("GET", "/bff/catalog", "", 200),
        ("GET", "/healthz", "", 200),
        ("POST", "/api/v1/chat", CHAT, 200),
        ("POST", "/api/v1/chat", "{", 400),
        ("POST", "/api/v1/chat", "{}", 422),
        ("POST", "/api/v1/video", &wide, 413),
        ("POST", "/api/v1/video", right, 404),
        ("GET", "/api/v1/video/status", "", 422),
        ("GET", "/api/v1/chat", "", 405),
        ("GET", "/api/v1/nothing", "", 404),
        ("GET", "/problems/nothing", "", 404),
    ] {
        let answer = ask(APP, method, path, body);
        let of = format!("{method} {path} {body}: {} {}", answer.status, answer.text());
        assert_eq!(answer.status, status, "{of}");
        assert_eq!(answer.value("access-control-allow-origin"), Some(APP), "{of}");
        assert_eq!(items(&answer, "access-control-expose-headers"), sorted(READABLE), "{of}");
        assert!(items(&answer, "vary").contains(&"origin".to_owned()), "{of}");
        assert_eq!(answer.value("access-control-allow-credentials"), None, "{of}");
        assert!(answer.value("x-request-id").is_some(), "{of}");

        let status = if method == "POST" { 403 } else { status };
        let other = ask("https://evil.example", method, path, body);
        assert_eq!(other.status, status, "{of}");
        assert_eq!(other.value("access-control-allow-origin"), None, "{of}");
        assert!(items(&other, "vary").contains(&"origin".to_owned()), "{of}");
    }
    // A page cannot send it: it has no preflight's grant. No cache may keep it for another, though.
    let plain = ask(APP, "OPTIONS", "/api/v1/chat", "");
    assert_eq!((plain.status, items(&plain, "vary")), (405, vec!["origin".to_owned()]));
    let mut client = gate.client();
    let refused = (0..20).map(|_| {
        client.send("POST", "/api/v1/chat", &[("Origin", APP)], CHAT);
        client.answer()
    });
    let Some(refused) = refused.into_iter().find(|answer| answer.status == 429) else {
        panic!("no limit");
    };
    assert_eq!(refused.value("access-control-allow-origin"), Some(APP));
    assert!(refused.value("retry-after").is_some());
}

#[test]
fn unknown_outcome_is_readable_by_a_listed_origin() {
    let upstream = Upstream::start(|_| Reply::nothing(Ending::Hang).charged(true));
    let gate = Gate::start(
        &upstream,
        "access.allowed_origins = [\"https://app.example\"]\ngateway.chat_timeout = \"100ms\"",
    );
    let mut client = gate.client();
    client.send("POST", "/api/v1/chat", &[("Origin", APP)], CHAT);
    let answer = client.answer();
    assert_eq!((answer.status, answer.code().as_str()), (424, "outcome_unknown"));
    assert_eq!(answer.value("access-control-allow-origin"), Some(APP));
}

#[test]
fn api_answers_are_not_cached_or_rendered() {
    let (_upstream, gate) = gate();
    for (method, path, body) in [
        ("POST", "/api/v1/chat", CHAT),
        ("POST", "/api/v1/chat", "{}"),
        ("GET", "/api/v1/nothing", ""),
        ("GET", "/api/v1/chat", ""),
        ("POST", "/api/v1/chat/", CHAT),
    ] {
        let answer = gate.ask(method, path, &[], body);
        let of = format!("{method} {path}: {answer:?}");
        assert_eq!(answer.value("cache-control"), Some("no-store"), "{of}");
        assert_eq!(answer.value("x-content-type-options"), Some("nosniff"), "{of}");
        let policy = answer.value("content-security-policy").unwrap_or_default();
        assert!(policy.contains("default-src 'none'"), "{of}");
    }
}
