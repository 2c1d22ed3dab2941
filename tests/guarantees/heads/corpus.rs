//! Byte streams as attackers and odd clients write them, and what becomes of each.

use Want::{Bought, BoughtThenClosed, Free, Refused, Silence};

use crate::support::CHAT;

/// A name for people, the bytes, and what becomes of them.
pub(crate) type Case = (&'static str, String, Want);

/// What becomes of a request and of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Answered with 200 by the gateway, which received exactly one request; the connection stays.
    Bought,
    /// As `Bought`, but nobody could say where the next request begins.
    BoughtThenClosed,
    /// This status, without the gateway; the connection closes, whatever follows on it.
    Refused(u16),
    /// This status, without the gateway; the connection stays.
    Free(u16),
    /// The connection ends without a word: the other side speaks another protocol.
    Silence,
}

/// A second request, which is answered only where it is one.
pub(crate) const NEXT: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

pub(crate) fn get(path: &str, lines: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")
}

pub(crate) fn post(path: &str, lines: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n{body}")
}

pub(crate) fn chat(lines: &str, body: &str) -> String {
    post("/api/v1/chat", &format!("Content-Type: application/json\r\n{lines}"), body)
}

/// Lengths and codings that two parsers could read differently.
pub(crate) fn framing() -> Vec<Case> {
    let length = CHAT.len();
    let chunked = format!("{length:x}\r\n{CHAT}\r\n0\r\n\r\n");
    let many = |count: usize| (0..count).map(|n| format!("X-{n}: y\r\n")).collect::<String>();
    vec![
        ("a length", chat(&format!("Content-Length: {length}\r\n"), CHAT), Bought),
        ("chunks", chat("Transfer-Encoding: chunked\r\n", &chunked), Bought),
        ("chunks in capitals", chat("Transfer-Encoding: CHUNKED\r\n", &chunked), Bought),
        (
            "two equal lengths",
            chat(&format!("Content-Length: {length}\r\nContent-Length: {length}\r\n"), CHAT),
            Bought,
        ),
        (
            "a length, then chunks",
            chat(&format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"), &chunked),
            BoughtThenClosed,
        ),
        (
            "chunks, then a length",
            chat(&format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"), &chunked),
            BoughtThenClosed,
        ),
        (
            "trailers with a name of ours",
            chat(
                "Transfer-Encoding: chunked\r\nTrailer: Authorization\r\n",
                &format!("{length:x}\r\n{CHAT}\r\n0\r\nAuthorization: Bearer other\r\n\r\n"),
            ),
            Bought,
        ),
        (
            "a chunk with an extension",
            chat(
                "Transfer-Encoding: chunked\r\n",
                &format!("{length:x};a=b\r\n{CHAT}\r\n0\r\n\r\n"),
            ),
            Bought,
        ),
        (
            "two lengths that differ",
            chat("Content-Length: 2\r\nContent-Length: 3\r\n", "{}"),
            Refused(400),
        ),
        ("a list of lengths", chat("Content-Length: 2, 2\r\n", "{}"), Refused(400)),
        ("a length with a sign", chat("Content-Length: +2\r\n", "{}"), Refused(400)),
        ("a hexadecimal length", chat("Content-Length: 0x2\r\n", "{}"), Refused(400)),
        ("a negative length", chat("Content-Length: -1\r\n", "{}"), Refused(400)),
        (
            "a length that wraps around",
            chat("Content-Length: 18446744073709551618\r\n", "{}"),
            Refused(400),
        ),
        (
            "the largest length",
            chat("Content-Length: 18446744073709551615\r\n", "{}"),
            Refused(431),
        ),
        ("an empty length", chat("Content-Length:\r\n", "{}"), Refused(400)),
        ("an unknown coding", chat("Transfer-Encoding: xchunked\r\n", &chunked), Refused(400)),
        ("the identity coding", chat("Transfer-Encoding: identity\r\n", CHAT), Refused(400)),
        (
            "the identity coding and a length",
            chat(&format!("Transfer-Encoding: identity\r\nContent-Length: {length}\r\n"), CHAT),
            Refused(400),
        ),
        (
            "chunks that are not last",
            chat("Transfer-Encoding: chunked, identity\r\n", &chunked),
            Refused(400),
        ),
        (
            "codings in two lines",
            chat("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", &chunked),
            Refused(400),
        ),
        ("zipped chunks", chat("Transfer-Encoding: gzip, chunked\r\n", &chunked), Refused(400)),
        (
            "chunks of chunks",
            chat("Transfer-Encoding: chunked, chunked\r\n", &chunked),
            Refused(400),
        ),
        (
            "chunks in two equal lines",
            chat("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", &chunked),
            Refused(400),
        ),
        (
            "a coding behind a tab",
            chat("Transfer-Encoding: \x0bchunked\r\n", &chunked),
            Refused(400),
        ),
        (
            "a blank before the colon",
            chat("Transfer-Encoding : chunked\r\n", &chunked),
            Refused(400),
        ),
        ("a folded coding", chat("Transfer-Encoding:\r\n chunked\r\n", &chunked), Refused(400)),
        (
            "chunks in HTTP/1.0",
            chat("Transfer-Encoding: chunked\r\n", &chunked).replacen("/1.1", "/1.0", 1),
            Refused(400),
        ),
        (
            "a chunk size with a sign",
            chat("Transfer-Encoding: chunked\r\n", "+1\r\n{\r\n0\r\n\r\n"),
            Refused(400),
        ),
        (
            "a chunk size with 0x",
            chat("Transfer-Encoding: chunked\r\n", "0x1\r\n{\r\n0\r\n\r\n"),
            Refused(400),
        ),
        (
            "a chunk size that overflows",
            chat("Transfer-Encoding: chunked\r\n", "fffffffffffffffff\r\n{\r\n0\r\n\r\n"),
            Refused(400),
        ),
        (
            "a bare line feed after a chunk size",
            chat("Transfer-Encoding: chunked\r\n", "1\n{\r\n0\r\n\r\n"),
            Refused(400),
        ),
        (
            "a bare line feed in a chunk extension",
            chat("Transfer-Encoding: chunked\r\n", "1;a\nb\r\n{\r\n0\r\n\r\n"),
            Refused(400),
        ),
        (
            "a chunk that does not end where it says",
            chat("Transfer-Encoding: chunked\r\n", "1\r\n{}\r\n0\r\n\r\n"),
            Refused(400),
        ),
        ("64 headers", get("/healthz", &many(63)), Free(200)),
        ("65 headers", get("/healthz", &many(64)), Refused(431)),
        (
            "a head of 17 KiB",
            get("/healthz", &format!("X: {}\r\n", "y".repeat(17_000))),
            Refused(431),
        ),
        (
            "a head of 512 KiB",
            get("/healthz", &format!("X: {}\r\n", "y".repeat(512 << 10))),
            Refused(431),
        ),
        ("a path of 8 KiB", get(&format!("/api/{}", "a".repeat(8_000)), ""), Free(404)),
        ("a path of 64 KiB", get(&format!("/{}", "a".repeat(65_535)), ""), Refused(431)),
        (
            "a length without a body's type",
            post("/api/v1/chat", "Content-Length: 2\r\n", "{}"),
            Refused(415),
        ),
        ("a body that is not announced", chat("", ""), Free(400)),
    ]
}

/// Lines of a head that are no HTTP, or no longer.
pub(crate) fn syntax() -> Vec<Case> {
    let with = |line: &str| get("/healthz", line);
    let line = |first: &str| format!("{first}\r\nHost: localhost\r\n\r\n");
    vec![
        ("line feeds alone", "GET /healthz HTTP/1.1\nHost: localhost\n\n".into(), Free(200)),
        (
            "empty lines first",
            "\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".into(),
            Free(200),
        ),
        ("a folded header", with("X: a\r\n b\r\n"), Refused(400)),
        (
            "a blank before the first header",
            "GET /healthz HTTP/1.1\r\n Host: localhost\r\n\r\n".into(),
            Refused(400),
        ),
        ("a bare carriage return in a value", with("X: a\rb\r\n"), Refused(400)),
        ("a NUL in a value", with("X: a\0b\r\n"), Refused(400)),
        ("a header without a name", with(": x\r\n"), Refused(400)),
        ("a header without a colon", with("nothing\r\n"), Refused(400)),
        ("a blank in the request line", line("GET /heal thz HTTP/1.1"), Refused(400)),
        ("a tab in the request line", line("GET\t/healthz HTTP/1.1"), Refused(400)),
        ("HTTP/1.2", line("GET /healthz HTTP/1.2"), Refused(400)),
        ("HTTP/2 in words", line("GET /healthz HTTP/2.0"), Refused(400)),
        ("HTTP/0.9", "GET /healthz\r\n\r\n".into(), Refused(400)),
        ("the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), Silence),
        (
            "an upgrade to h2c",
            with(
                "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
            ),
            Free(200),
        ),
        (
            "an upgrade to a web socket",
            with(
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
            ),
            Free(200),
        ),
        ("a lower-case method", line("get /healthz HTTP/1.1"), Free(405)),
        (
            "a lower-case method that spends",
            chat(&format!("Content-Length: {}\r\n", CHAT.len()), CHAT).replacen("POST", "post", 1),
            Refused(405),
        ),
        ("a method of nobody's", line("BREW /api/v1/chat HTTP/1.1"), Free(405)),
        ("TRACE", line("TRACE /api/v1/chat HTTP/1.1"), Free(405)),
        ("PUT", line("PUT /api/v1/chat HTTP/1.1"), Free(405)),
        ("GET where only POST goes", get("/api/v1/chat", ""), Free(405)),
        (
            "GET that would be POST",
            get(
                "/api/v1/chat",
                "X-HTTP-Method-Override: POST\r\nX-HTTP-Method: POST\r\nX-Method-Override: POST\r\n",
            ),
            Free(405),
        ),
        ("GET with a length", get("/healthz", "Content-Length: 5\r\n") + "hello", Refused(400)),
        (
            "GET with chunks",
            get("/healthz", "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n",
            Refused(400),
        ),
        ("GET with a length of nothing", get("/healthz", "Content-Length: 0\r\n"), Free(200)),
        (
            "OPTIONS with a body",
            "OPTIONS /api/v1/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
                .into(),
            Refused(400),
        ),
        (
            "DELETE with a body",
            "DELETE /api/v1/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}".into(),
            Refused(405),
        ),
    ]
}

/// Names that are ours, nobody's, or no names at all.
pub(crate) fn hosts() -> Vec<Case> {
    let of = |lines: &str| format!("GET /bff/catalog HTTP/1.1\r\n{lines}\r\n");
    let chat_at = |host: &str| {
        chat(&format!("Content-Length: {}\r\n", CHAT.len()), CHAT).replacen("localhost", host, 1)
    };
    vec![
        ("our name", of("Host: localhost:8080\r\n"), Free(200)),
        ("our name in capitals", of("Host: LocalHost.\r\n"), Free(200)),
        ("our address", of("Host: 127.0.0.1:1\r\n"), Free(200)),
        ("our other address", of("Host: [::1]\r\n"), Free(200)),
        ("a listed name", of("Host: chat.example:8443\r\n"), Free(200)),
        ("no Host", of(""), Free(400)),
        ("two Hosts", of("Host: localhost\r\nHost: evil.example\r\n"), Free(400)),
        ("two equal Hosts", of("Host: localhost\r\nHost: localhost\r\n"), Free(400)),
        ("a list of Hosts", of("Host: localhost, evil.example\r\n"), Free(400)),
        ("an empty Host", of("Host:\r\n"), Free(400)),
        ("a Host with a user", of("Host: localhost@evil.example\r\n"), Free(400)),
        ("a Host with a user that is ours", of("Host: evil@localhost\r\n"), Free(400)),
        ("a Host with a path", of("Host: localhost/evil\r\n"), Free(400)),
        ("a Host with a port of letters", of("Host: localhost:http\r\n"), Free(400)),
        ("a Host with half a bracket", of("Host: [::1\r\n"), Free(400)),
        ("a Host that is no text", of("Host: localhost\u{e9}\r\n"), Free(400)),
        ("a rebound name", of("Host: evil.example\r\n"), Free(421)),
        ("a rebound name that spends", chat_at("evil.example"), Refused(421)),
        ("our name as a prefix", chat_at("localhost.evil.example"), Refused(421)),
        ("a listed name as a suffix", chat_at("evilchat.example"), Refused(421)),
        ("an address of others", chat_at("192.0.2.1"), Refused(421)),
        (
            "no name to forward to",
            of(
                "Host: localhost\r\nX-Forwarded-Host: evil.example\r\nForwarded: host=evil.example\r\n",
            ),
            Free(200),
        ),
        (
            "a rebound name behind a forwarded one of ours",
            of("Host: evil.example\r\nX-Forwarded-Host: localhost\r\n"),
            Free(421),
        ),
        (
            "a probe under any name",
            "GET /healthz HTTP/1.1\r\nHost: 10.1.2.3:8080\r\n\r\n".into(),
            Free(200),
        ),
    ]
}

/// Targets that are no plain path.
pub(crate) fn targets() -> Vec<Case> {
    let line = |first: &str| format!("{first} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let bought_at = |path: &str| {
        post(
            path,
            &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", CHAT.len()),
            CHAT,
        )
    };
    vec![
        ("an absolute target", line("GET http://localhost/healthz"), Free(400)),
        ("an absolute target of others", bought_at("http://evil.example/api/v1/chat"), Refused(400)),
        ("an absolute target with a user", bought_at("http://localhost@evil.example/api/v1/chat"), Refused(400)),
        ("an authority", line("GET localhost:80"), Free(400)),
        ("CONNECT", line("CONNECT evil.example:443"), Free(400)),
        ("CONNECT with a path", line("CONNECT /api/v1/chat"), Free(405)),
        ("OPTIONS of everything", line("OPTIONS *"), Free(400)),
        ("GET of everything", line("GET *"), Free(400)),
        ("a preflight of everything", "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nOrigin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n\r\n".into(), Free(204)),
        ("two slashes to spend", bought_at("//api/v1/chat"), Refused(405)),
        ("two slashes and a host", bought_at("//evil.example/api/v1/chat"), Refused(405)),
        ("two slashes within", bought_at("/api/v1//chat"), Refused(404)),
        ("a slash after", bought_at("/api/v1/chat/"), Refused(404)),
        ("a path in capitals", bought_at("/API/V1/CHAT"), Refused(405)),
        ("an encoded letter", bought_at("/api/v1/%63hat"), Refused(404)),
        ("an encoded slash", bought_at("/api/v1%2fchat"), Refused(404)),
        ("an encoded NUL", bought_at("/api/v1/chat%00"), Refused(404)),
        ("half an escape", bought_at("/api/v1/chat%zz"), Refused(404)),
        ("a parameter of a path", bought_at("/api/v1/chat;x=y"), Refused(404)),
        ("a dot", bought_at("/api/v1/./chat"), Refused(404)),
        ("a fragment", bought_at("/api/v1/chat#frag"), Bought),
        ("a query", bought_at("/api/v1/chat?model=video-a-2"), Bought),
        ("the key list", get("/api/api-keys", ""), Free(404)),
        ("the key list, a step up", get("/api/v1/../api-keys", ""), Free(404)),
        ("the key list, an encoded step up", get("/api/v1/%2e%2e/api-keys", ""), Free(404)),
        ("the key list, doubly encoded", get("/api/v1/%252e%252e/api-keys", ""), Free(404)),
        ("the key list, backslashes", get("/api/v1/..\\api-keys", ""), Free(404)),
        ("the key list with a query", get("/api/api-keys?x=y", ""), Free(404)),
        ("the key list by another address", get("/healthz", "X-Original-URL: /api/api-keys\r\nX-Rewrite-URL: /api/api-keys\r\nX-Forwarded-Uri: /api/api-keys\r\n"), Free(200)),
        ("an endpoint that is not let through", bought_at("/api/v1/search"), Refused(404)),
        ("a path of raw UTF-8", get("/api/v1/ch\u{e4}t", ""), Free(404)),
    ]
}
