//! What a caller may do how often, how large and how slowly, told before anything is read or bought.

use std::io::Write;
use std::time::Duration;

use socket2::SockRef;
use tollgate::clock;

use crate::support::client::{Answer, Client};
use crate::support::paused::{PausedGate, PausedUpstream};
use crate::support::process::addresses_in;
use crate::support::reply::Latch;
use crate::support::{CHAT, Gate, Reply, Upstream, until};

const POLL: &str = "/api/v1/video/status?request_id=job-1";
const MEBIBYTE: usize = 1 << 20;

fn upstream() -> Upstream {
    Upstream::start(|_| Reply::chat("hello"))
}

/// `"caller";r=…;t=…` as two numbers.
fn left(answer: &Answer) -> (u64, u64) {
    let text = answer.value("ratelimit").expect("RateLimit");
    let rest = text.strip_prefix("\"caller\";r=").expect("the caller's");
    let (room, seconds) = rest.split_once(";t=").expect("both numbers");
    (room.parse().unwrap(), seconds.parse().unwrap())
}

#[test]
fn third_call_in_a_burst_of_two_gets_retry_after() {
    let upstream = upstream();
    let gate = Gate::start(
        &upstream,
        "limits = { requests = 2, seconds = 3600, burst = 2, concurrent = 9 }",
    );
    let policy = Some("\"caller\";q=2;w=3600");
    for room in [1, 0] {
        let answer = gate.chat();
        assert_eq!((answer.status, answer.value("ratelimit-policy")), (200, policy));
        assert_eq!(left(&answer), (room, 3_600 - 1_800 * room));
        assert_eq!(answer.value("retry-after"), None);
    }
    let refused = gate.chat();
    assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limited"));
    assert_eq!(refused.charged().as_deref(), Some("no"));
    assert_eq!((left(&refused).0, refused.value("ratelimit-policy")), (0, policy));
    let wait: u64 = refused.value("retry-after").unwrap().parse().unwrap();
    assert!((1..=1_800).contains(&wait), "{wait}");
    assert!(!refused.closes, "its body was small and had arrived");
    assert_eq!(upstream.requests(), 2);
}

#[test]
fn connection_outlives_the_refusal_of_a_small_request_only() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, "limits = { requests = 1, seconds = 3600, burst = 1 }");
    let mut client = gate.client();
    for status in [200, 429, 429] {
        client.send("POST", "/api/v1/chat", &[], CHAT);
        let answer = client.answer();
        assert_eq!((answer.status, answer.closes), (status, false));
    }
    client.send("POST", "/api/v1/chat", &[], &CHAT.replace("hello", &"x".repeat(20_000)));
    let answer = client.answer();
    assert_eq!((answer.status, answer.closes), (429, true));
    let mut client = gate.client();
    client.send("POST", "/api/v1/chat", &[("Expect", "100-continue")], CHAT);
    let answer = client.answer();
    assert_eq!((answer.status, answer.closes), (429, true), "its body was not asked for");
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn counted_refusal_reports_the_remaining_limit() {
    let upstream = upstream();
    let settings = "limits = { requests = 2, seconds = 3600, burst = 5, concurrent = 9 }";
    let gate = Gate::start(&upstream, settings);
    let text = [("content-type", "text/plain")];
    for (headers, body, status, room) in
        [(&[][..], "{}", 422, 4), (&text, CHAT, 415, 3), (&[], "{", 400, 2), (&[], CHAT, 200, 1)]
    {
        let answer = gate.ask("POST", "/api/v1/chat", headers, body);
        assert_eq!((answer.status, left(&answer).0), (status, room), "{}", answer.text());
        assert_eq!(answer.value("ratelimit-policy"), Some("\"caller\";q=2;w=3600"));
    }
}

#[test]
fn retry_after_is_at_least_a_second_and_a_later_call_is_served() {
    let upstream = upstream();
    let gate =
        Gate::start(&upstream, "limits = { requests = 1, seconds = 1, burst = 1, concurrent = 9 }");
    assert_eq!(gate.chat().status, 200);
    // A slow machine may need longer than a second for a call, which is then served.
    let mut refused = None;
    until("a call is refused", || {
        refused = Some(gate.chat()).filter(|answer| answer.status != 200);
        refused.is_some()
    });
    let refused = refused.unwrap();
    assert_eq!((refused.status, refused.value("retry-after")), (429, Some("1")));
    until("a call is served again", || gate.chat().status == 200);
}

#[test]
fn invalid_requests_count_against_the_limit() {
    let upstream = upstream();
    let gate = Gate::start(
        &upstream,
        "limits = { requests = 1, seconds = 3600, burst = 3, concurrent = 9 }",
    );
    let statuses: Vec<_> = ["{", "{}", "[]", CHAT]
        .into_iter()
        .map(|body| gate.post("/api/v1/chat", body).status)
        .collect();
    assert_eq!(statuses, [400, 422, 400, 429]);
    assert_eq!(gate.video().status, 429, "all paid paths share the room");
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn reads_have_ten_times_the_limit_and_pages_are_free() {
    let upstream = upstream();
    let gate = Gate::start(
        &upstream,
        "access.allowed_origins = [\"https://app.example\"]\n\
         limits = { requests = 1, seconds = 3600, burst = 1, concurrent = 9 }",
    );
    assert_eq!((gate.chat().status, gate.chat().status), (200, 429));
    let polls: Vec<_> = (0..11).map(|_| gate.get(POLL)).collect();
    let refused = polls.iter().position(|answer| answer.status == 429);
    assert_eq!(refused, Some(10));
    assert_eq!(polls[10].value("ratelimit-policy"), Some("\"caller\";q=10;w=3600"));
    let preflight = [("Origin", "https://app.example"), ("Access-Control-Request-Method", "POST")];
    let mut client = gate.client();
    for _ in 0..40 {
        for (method, path, headers) in [
            ("GET", "/", &[][..]),
            ("GET", "/healthz", &[]),
            ("GET", "/bff/catalog", &[]),
            ("GET", "/problems/rate_limited", &[]),
            ("OPTIONS", "/api/v1/chat", &preflight),
        ] {
            client.send(method, path, headers, "");
            let answer = client.answer();
            assert!(matches!(answer.status, 200 | 204), "{path}: {}", answer.status);
            assert_eq!(answer.value("ratelimit"), None, "{path}");
        }
    }
}

#[test]
fn untrusted_forwarded_header_is_ignored() {
    let upstream = upstream();
    let gate = Gate::start(
        &upstream,
        "limits = { requests = 1, seconds = 3600, burst = 1, concurrent = 9 }",
    );
    assert_eq!(gate.chat().status, 200);
    for headers in [
        &[][..],
        &[("X-Forwarded-For", "198.51.100.1")],
        &[("X-Forwarded-For", "198.51.100.2, 127.0.0.1")],
        &[("Forwarded", "for=198.51.100.3")],
        &[("X-Real-IP", "198.51.100.4"), ("True-Client-IP", "198.51.100.4")],
        &[("X_Forwarded_For", "198.51.100.5"), ("CF-Connecting-IP", "198.51.100.5")],
        &[("Authorization", "Bearer somebody")],
        &[("Cookie", "tollgate=somebody")],
    ] {
        assert_eq!(gate.ask("POST", "/api/v1/chat", headers, CHAT).status, 429, "{headers:?}");
    }
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn trusted_proxy_is_believed_one_hop() {
    let upstream = upstream();
    let gate = Gate::start(
        &upstream,
        "server.trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]\n\
         limits = { requests = 1, seconds = 3600, burst = 1, concurrent = 9 }",
    );
    for (headers, status) in [
        (&[("X-Forwarded-For", "198.51.100.1")][..], 200),
        (&[("X-Forwarded-For", "198.51.100.2")], 200),
        (&[("X-Forwarded-For", "198.51.100.1")], 429),
        (&[("X-Forwarded-For", "203.0.113.9, 198.51.100.1")], 429),
        (&[("X-Forwarded-For", "203.0.113.9"), ("X-Forwarded-For", "198.51.100.1, 10.0.0.9")], 429),
        (&[("X-Forwarded-For", "::ffff:198.51.100.1")], 429),
        (&[("Forwarded", "for=198.51.100.1;proto=https")], 429),
        (&[("Forwarded", "for=\"[2001:db8::1]:4711\"")], 200),
        (&[("X-Forwarded-For", "2001:db8::ffff")], 429),
        (&[("X-Forwarded-For", "2001:db8:0:1::1")], 200),
        (&[], 200),
        (&[("X-Forwarded-For", "nobody")], 429),
        (&[("X-Forwarded-For", "203.0.113.9"), ("Forwarded", "for=203.0.113.10")], 429),
    ] {
        let answer = gate.ask("POST", "/api/v1/chat", headers, CHAT);
        assert_eq!(answer.status, status, "{headers:?}");
    }
}

#[test]
fn limits_are_per_caller_across_listeners() {
    let upstream = upstream();
    let gate = Gate::binary(
        &upstream,
        "limits = { requests = 1, seconds = 3600, burst = 1, concurrent = 9 }",
        &[("TOLLGATE_SERVER__LISTEN", "[\"127.0.0.1:0\", \"[::1]:0\"]")],
    );
    let printed = gate.printed();
    let pages = addresses_in(&printed, "page");
    let [v4, v6] = pages[..] else { panic!("two pages: {printed}") };
    assert!(v4.is_ipv4() && v6.is_ipv6(), "{printed}");
    for (address, status) in [(v4, 200), (v6, 200), (v4, 429), (v6, 429)] {
        let mut client = gate.client_of(address);
        client.send("POST", "/api/v1/chat", &[], CHAT);
        assert_eq!(client.answer().status, status, "{address}");
    }
}

#[test]
fn concurrent_calls_of_a_caller_are_limited() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("hello").when(latch));
    let gate = Gate::start(
        &upstream,
        "limits = { requests = 1000, seconds = 1, burst = 1000, concurrent = 2 }",
    );
    let mut busy = [gate.client(), gate.client()];
    for (number, client) in busy.iter_mut().enumerate() {
        // Payloads differ: equal ones may be taken for one.
        client.send("POST", "/api/v1/chat", &[], &CHAT.replace("hello", &number.to_string()));
    }
    upstream.wait_for(2);
    let refused = gate.chat();
    assert_eq!((refused.status, refused.value("retry-after")), (429, Some("1")));
    assert!(!refused.closes && refused.text().contains("concurrent calls"), "{}", refused.text());
    assert_ne!(gate.get(POLL).status, 429, "reads are not counted so");
    latch.open();
    for client in &mut busy {
        assert_eq!(client.answer().status, 200);
    }
    assert_eq!(gate.chat().status, 200);
}

#[test]
fn body_limit_is_exact_to_the_byte() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, "server.chat_body = \"1KiB\"\nserver.video_body = \"100B\"");
    let padded = |length: usize| format!("{CHAT:<length$}");
    let chunked = |body: &str| format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let coding = [("Transfer-Encoding", "chunked")];
    for (length, status) in [(1_024, 200), (1_025, 413)] {
        let body = padded(length);
        assert_eq!(gate.post("/api/v1/chat", &body).status, status, "{length}");
        let answer = gate.ask("POST", "/api/v1/chat", &coding, &chunked(&body));
        assert_eq!((answer.status, answer.closes), (status, status == 413), "{length} in chunks");
    }
    let answer = gate.post("/api/v1/video", &padded(101));
    assert_eq!((answer.status, answer.code().as_str()), (413, "payload_too_large"));
    assert!(answer.text().contains("at most 100 bytes"), "{}", answer.text());
    assert_eq!(upstream.requests(), 2);
}

#[test]
fn client_that_keeps_sending_still_reads_the_refusal() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, "server.chat_body = \"1KiB\"");
    let head =
        "POST /api/v1/chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let announced = format!("{head}Content-Length: {MEBIBYTE}\r\n\r\n");
    let streamed = format!("{head}Transfer-Encoding: chunked\r\n\r\n{MEBIBYTE:x}\r\n");
    let elsewhere = announced.replacen("/chat", "/nothing", 1);
    for (head, status) in [(announced, 413), (streamed, 413), (elsewhere, 404)] {
        // The gate reads on for a second, which may be too short for a slow machine.
        let mut kept = None;
        until("the refusal is there to read", || {
            let mut client = gate.client();
            // Else the client's own kernel would take all of it before anything can go wrong.
            SockRef::from(client.stream()).set_send_buffer_size(16_384).unwrap();
            client.write(head.as_bytes());
            let piece = [b' '; 16_384];
            // As a client does that reads only when it has written: a reset would show here or below.
            let mut pieces = 0..MEBIBYTE / piece.len();
            let is_written = pieces.all(|_| client.try_write(&piece).is_ok());
            let answer = if is_written { client.try_answer() } else { None };
            kept = answer.map(|answer| (client, answer));
            kept.is_some()
        });
        let (mut client, answer) = kept.unwrap();
        assert_eq!((answer.status, answer.closes), (status, true));
        client.stream().write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").ok();
        assert_eq!(client.rest(), b"", "nothing is answered after it");
    }
    assert_eq!(upstream.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn slow_body_times_out_and_buys_nothing() {
    let upstream = PausedUpstream::start(|_| Reply::chat("hello"));
    let timeout = Duration::from_millis(300);
    let gate = PausedGate::start(&upstream, "server.body_timeout = \"300ms\"").await;
    for headers in [&[][..], &[("Content-Length", "1000")]] {
        let start = clock::now();
        // A byte now and then does not prolong it.
        let pieces = std::iter::repeat_n((Duration::from_millis(50), " "), 1_000);
        let answer = gate.send_slowly(("POST", "/api/v1/chat"), headers, pieces).answer().await;
        let took = clock::now() - start;
        assert_eq!((answer.status, answer.code().as_str()), (408, "request_timeout"));
        assert_eq!(answer.charged().as_deref(), Some("no"));
        assert!((timeout..2 * timeout).contains(&took), "{took:?}");
    }
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn connection_with_an_incomplete_body_is_closed_at_its_timeout() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, "server.body_timeout = \"1s\"");
    for headers in [[("Transfer-Encoding", "chunked")], [("Content-Length", "1000")]] {
        let mut client = gate.client();
        client.send("POST", "/api/v1/chat", &headers, "1\r\n{\r\n");
        let answer = client.answer();
        assert_eq!((answer.status, answer.closes), (408, true));
    }
    assert_eq!(upstream.requests(), 0);
}

/// Sends this much of a chat's body without its end, from a loopback address of its own.
fn unfinished(gate: &Gate, last: u8, length: Option<usize>, bytes: usize) -> Client {
    let mut client = gate.client_from([127, 0, 0, last].into(), gate.address());
    let (address, chunk) = (gate.address(), " ".repeat(bytes));
    let (header, body) = match length {
        Some(length) => (format!("Content-Length: {length}"), chunk),
        None if bytes == 0 => ("Transfer-Encoding: chunked".to_owned(), chunk),
        None => ("Transfer-Encoding: chunked".to_owned(), format!("{bytes:x}\r\n{chunk}\r\n")),
    };
    let head = format!(
        "POST /api/v1/chat HTTP/1.1\r\nContent-Type: application/json\r\nHost: {address}\r\n{header}"
    );
    // It may be refused before all of it is read.
    client.try_write(format!("{head}\r\n\r\n{body}").as_bytes()).ok();
    client
}

#[test]
fn body_that_has_not_arrived_takes_no_memory() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, "server.max_body_memory = \"2MiB\"");
    for length in [Some(2 * MEBIBYTE), None] {
        let waiting: Vec<_> = (2..8).map(|last| unfinished(&gate, last, length, 0)).collect();
        gate.wait_for_clients(waiting.len());
        assert_eq!(gate.chat().status, 200);
        // Until the memory is full, no body that arrives is refused.
        let whole = format!("{{\"x\":\"{}\"}}", "x".repeat(MEBIBYTE));
        assert_eq!(gate.post("/api/v1/chat", &whole).status, 422);
        drop(waiting);
    }
}

#[test]
fn bodies_share_max_body_memory_by_caller_and_small_ones_find_room() {
    let upstream = upstream();
    let limits = "limits = { requests = 1000, seconds = 1, burst = 1000, concurrent = 20 }";
    let server = "server = { max_body_memory = \"4MiB\", body_timeout = \"10m\" }";
    let gate = Gate::start(&upstream, &format!("{server}\n{limits}"));
    let size = MEBIBYTE * 5 / 4;
    let large = format!("{{\"x\":\"{}\"}}", "x".repeat(size));
    let refused = |last: u8| {
        let mut client = gate.client_from([127, 0, 0, last].into(), gate.address());
        client.send("POST", "/api/v1/chat", &[], &large);
        client.try_answer().filter(|answer| answer.status == 503)
    };
    let arrives = |last| unfinished(&gate, last, Some(size + 1), size);
    let answered = |clients: &[Client]| clients.iter().filter(|client| has_answer(client)).count();
    // One of these fits in the caller's share.
    let own = [2, 2, 2].map(arrives);
    until("its share is full", || answered(&own) == 2);
    assert!(refused(2).is_some());
    assert!(refused(3).is_none(), "others have their own");
    // One more fits into all but what is kept for small bodies.
    let others = [3, 4, 5, 6].map(arrives);
    until("the memory is full", || answered(&others) == 3);
    let answer = refused(7).expect("a refusal");
    assert_eq!((answer.code().as_str(), answer.value("retry-after")), ("overloaded", Some("5")));
    assert!(answer.closes);
    assert_eq!(gate.chat().status, 200);
    drop((own, others));
    until("it is given back", || refused(2).is_none());
    (0..20).for_each(|_| assert_eq!(gate.post("/api/v1/chat", &large).status, 422));
}

/// Returns whether an answer has begun to arrive.
fn has_answer(client: &Client) -> bool {
    client.stream().set_nonblocking(true).unwrap();
    client.stream().peek(&mut [0]).is_ok_and(|bytes| bytes > 0)
}
