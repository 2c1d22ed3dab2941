//! Guarantee 2, at the level of bytes: what two parsers could read differently is refused, once, and
//! never reaches the gateway.

pub(crate) mod corpus;

use std::io::Read;

use crate::support::{CHAT, Gate, Reply, Upstream};

use corpus::{Case, NEXT, Want, chat, get};

fn gate() -> (Upstream, Gate) {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(&upstream, "server.hosts = [\"chat.example\"]");
    (upstream, gate)
}

/// Sends each case with a second request right behind it, and sees what came back and what went on.
fn walk(cases: Vec<Case>) {
    let (upstream, gate) = gate();
    let wrong: Vec<_> =
        cases.iter().filter_map(|case| fault(&upstream, &gate, case).err()).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn fault(upstream: &Upstream, gate: &Gate, (name, bytes, want): &Case) -> Result<(), String> {
    let before = upstream.requests();
    let mut client = gate.client();
    // The gate may close before it has read everything.
    client.try_write(format!("{bytes}{NEXT}").as_bytes()).ok();
    let told = |what: String| Err(format!("{name} (meant: {want:?}): {what}"));
    // A connection that stays open without an answer fails the test.
    println!("{name}");
    let answer = client.try_answer();
    if *want == Want::Silence && answer.is_none() {
        let bought = upstream.requests() > before;
        return if bought { told("bought".to_owned()) } else { Ok(()) };
    }
    let Some(answer) = answer else { return told("no answer".to_owned()) };
    let (status, bought, stays) = match *want {
        Want::Silence => return told(format!("answered {}", answer.status)),
        Want::Bought => (200, 1, true),
        Want::BoughtThenClosed => (200, 1, false),
        Want::Refused(status) => (status, 0, false),
        Want::Free(status) => (status, 0, true),
    };
    if answer.status != status {
        return told(format!("answered {} {}", answer.status, answer.text()));
    }
    if stays {
        match client.try_answer() {
            Some(next) if (next.status, next.text().as_str()) == (200, "ok\n") => {}
            next => return told(format!("then {next:?}")),
        }
    } else {
        let rest = client.rest();
        if !rest.is_empty() {
            return told(format!("then {}", String::from_utf8_lossy(&rest)));
        }
        if !answer.closes {
            return told("does not say that it closes".to_owned());
        }
    }
    let received = upstream.received_requests().split_off(before);
    match &received[..] {
        [] if bought == 0 => Ok(()),
        [one] if bought == 1 && one.target == "/api/v1/chat" && one.body == CHAT.as_bytes() => {
            Ok(())
        }
        other => told(format!("the gateway received {other:?}")),
    }
}

#[test]
fn ambiguous_length_is_refused_and_closes_the_connection() {
    walk(corpus::framing());
}

#[test]
fn malformed_header_lines_are_refused() {
    walk(corpus::syntax());
}

#[test]
fn only_known_hosts_are_answered() {
    walk(corpus::hosts());
}

#[test]
fn paths_match_byte_for_byte() {
    walk(corpus::targets());
}

#[test]
fn unserved_paths_never_reach_the_gateway() {
    let (upstream, gate) = gate();
    for path in [
        "//api/v1/video/status?request_id=a",
        "/api%2fv1/chat",
        "/%61pi/api-keys",
        "/;/api/api-keys",
        "/.env",
        "/%2eenv",
        "/../.env",
        "/proxy.toml",
        "/x/..%2f..%2fproxy.toml",
        "/metrics",
    ] {
        let mut client = gate.client();
        client.write(get(path, "").as_bytes());
        let answer = client.answer();
        let text = answer.text();
        assert!(matches!(answer.status, 200 | 404), "{path}: {}", answer.status);
        assert!(!text.contains("svc_sk_") && !text.contains("tollgate_"), "{path}: {text}");
    }
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn caller_headers_are_not_copied_to_the_gateway() {
    let (upstream, gate) = gate();
    let length = CHAT.len();
    for lines in [
        "",
        "Connection: authorization, x-request-id\r\nAuthorization: Bearer mine\r\nAuthorization: Bearer other\r\n",
        "X_Forwarded_For: 1.2.3.4\r\nX-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nVia: 1.1 x\r\n",
        "Cookie: a=b\r\nX-Request-Id: mine\r\nUser-Agent: x\r\nAccept: text/html\r\nAccept-Encoding: gzip\r\n",
        "X-Stainless-Lang: js\r\nIdempotency-Key: k\r\nTE: trailers\r\nX: caf\u{e9}\r\n",
    ] {
        let mut client = gate.client();
        client.write(chat(&format!("{lines}Content-Length: {length}\r\n"), CHAT).as_bytes());
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{lines}: {}", answer.text());
    }
    let received = upstream.received_requests();
    assert_eq!(received.len(), 5);
    for one in &received {
        assert_eq!(one.bytes, received[0].bytes, "{one:?}");
    }
    let names: Vec<_> = received[0].headers.iter().map(|(name, _)| name.as_str()).collect();
    for name in &names {
        let known = ["host", "authorization", "content-type", "content-length", "accept"];
        let known = known.contains(name) || ["accept-encoding", "user-agent"].contains(name);
        assert!(known, "{names:?}");
    }
}

#[test]
fn expect_continue_is_answered_only_if_the_head_is_accepted() {
    let (upstream, gate) = gate();
    let expecting = |lines: &str| chat(&format!("Expect: 100-continue\r\n{lines}"), "");
    for (name, head, status) in [
        ("too long", expecting("Content-Length: 9000000\r\n"), 413),
        ("encoded", expecting("Content-Encoding: gzip\r\nContent-Length: 70\r\n"), 415),
        (
            "of another page",
            expecting("Origin: https://evil.example\r\nContent-Length: 70\r\n"),
            403,
        ),
        ("nowhere", expecting("Content-Length: 70\r\n").replacen("chat", "chats", 1), 404),
        (
            "under another name",
            expecting("Content-Length: 70\r\n").replacen("localhost", "evil", 1),
            421,
        ),
    ] {
        let mut client = gate.client();
        client.write(head.as_bytes());
        let mut line = [0; 12];
        client.stream().read_exact(&mut line).unwrap();
        assert_eq!(line, *format!("HTTP/1.1 {status}").as_bytes(), "{name}");
        let rest = String::from_utf8_lossy(&client.rest()).into_owned();
        assert!(rest.contains("connection: close") && !rest.contains("HTTP/1.1"), "{name}: {rest}");
    }
    assert_eq!(upstream.requests(), 0);

    let mut client = gate.client();
    client.write(expecting(&format!("Content-Length: {}\r\n", CHAT.len())).as_bytes());
    let mut interim = [0; 25];
    client.stream().read_exact(&mut interim).unwrap();
    assert_eq!(interim, *b"HTTP/1.1 100 Continue\r\n\r\n");
    client.write(CHAT.as_bytes());
    assert_eq!(client.answer().status, 200);
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn only_healthz_answers_http_1_0_without_a_host() {
    let (_upstream, gate) = gate();
    for (bytes, status) in [
        ("GET /healthz HTTP/1.0\r\n\r\n", "200"),
        ("HEAD /healthz HTTP/1.0\r\n\r\n", "200"),
        ("GET /healthz HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", "400"),
        ("GET /bff/catalog HTTP/1.0\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", "400"),
    ] {
        let mut client = gate.client();
        client.write(bytes.as_bytes());
        let answer = String::from_utf8_lossy(&client.rest()).into_owned();
        assert_eq!(answer.split(' ').nth(1), Some(status), "{bytes:?}: {answer}");
    }
}

#[test]
fn head_request_gets_length_and_no_body() {
    let (_upstream, gate) = gate();
    let whole = gate.get("/bff/catalog");
    let mut client = gate.client();
    let last = NEXT.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    client.write(format!("HEAD /bff/catalog HTTP/1.1\r\nHost: localhost\r\n\r\n{last}").as_bytes());
    let text = String::from_utf8_lossy(&client.rest()).into_owned();
    let (head, next) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("content-length: {}", whole.body.len())), "{head}");
    assert!(next.starts_with("HTTP/1.1 200"), "{next}");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (upstream, gate) = gate();
    let mut client = gate.client();
    let one = chat(&format!("Content-Length: {}\r\n", CHAT.len()), CHAT);
    let named = |id: &str| one.replacen("\r\n", &format!("\r\nX-Request-Id: {id}\r\n"), 1);
    client.write(format!("{}{NEXT}{}", named("a"), named("b")).as_bytes());
    let answers: Vec<_> = (0..3).map(|_| client.answer()).collect();
    let ids: Vec<_> = answers.iter().map(|answer| answer.value("x-request-id").unwrap()).collect();
    assert_eq!((ids[0], ids[2]), ("a", "b"));
    assert_eq!(answers[1].text(), "ok\n");
    assert_eq!(upstream.requests(), 2);
}

#[test]
fn truncated_body_buys_nothing() {
    let (upstream, gate) = gate();
    let whole = chat(&format!("Content-Length: {}\r\n", CHAT.len()), CHAT);
    let chunked =
        chat("Transfer-Encoding: chunked\r\n", &format!("{:x}\r\n{CHAT}\r\n", CHAT.len()));
    for bytes in [&whole[..whole.len() - 1], &chunked] {
        let mut client = gate.client();
        client.write(bytes.as_bytes());
        client.end_of_requests();
        if let Some(answer) = client.try_answer() {
            assert_eq!(answer.status, 400, "{}", answer.text());
        }
    }
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn unparsable_head_gets_a_bare_status_and_closes() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(&upstream, "");
    let headers: String = (0..70).map(|number| format!("x{number}: x\r\n")).collect();
    for (head, status) in [
        ("POST /api/v1/chat HTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), 400),
        ("POST /api/v1/chat\r\n\r\n".to_owned(), 400),
        (format!("GET / HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"), 431),
        (format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(70_000)), 431),
    ] {
        let mut client = gate.client();
        client.try_write(head.as_bytes()).ok();
        let answer = client.answer();
        assert_eq!((answer.status, answer.text().as_str()), (status, ""), "{head:.60}");
        assert_eq!(client.rest(), b"", "{head:.60}");
    }
    assert_eq!(upstream.requests(), 0);
}
